"""Who a run is: the same on all ranks of a launch, another for another launch."""

from __future__ import annotations

import json
import os
import socket
import string
import sys
from datetime import datetime
from pathlib import Path

import children
import pytest

from ampwatch.probe import run_identity

CHECKOUT = Path(run_identity.__file__).parents[2]
NOW = datetime(2026, 3, 14, 15, 9, 26)
HASHED = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


def child_environment(**more: str) -> dict[str, str]:
    """Ours without what a launcher of this test process may have left in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PMI"))}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT), **more}


SAY_WHO = """
import json, os, sys
from datetime import datetime
from pathlib import Path
from ampwatch.probe import run_identity
who = run_identity.identify(os.environ, sys.argv, datetime.now())
Path(sys.argv[1], f"{os.getpid()}.json").write_text(
    json.dumps([who.run_id, who.name, who.rank, who.world_size]))
"""


def said(folder: Path) -> list[list]:
    """What each rank said, in the order of ranks."""
    return sorted((json.loads(f.read_text()) for f in folder.glob("*.json")), key=lambda r: r[2])


# --- the run id -----------------------------------------------------------------------------


def test_a_run_id_is_thirty_two_hex_digits_whatever_the_launcher():
    for environment in ({}, HASHED, {"TORCHELASTIC_RUN_ID": "job 7"}, {"RANK": "3"}):
        run_id = run_identity.run_id(environment)
        assert len(run_id) == 32
        assert set(run_id) <= set(string.hexdigits.lower())


def test_a_single_process_draws_another_id_each_time():
    assert run_identity.run_id({}) != run_identity.run_id({})
    one = {**HASHED, "WORLD_SIZE": "1"}
    assert run_identity.run_id(one) != run_identity.run_id(one)


def test_all_ranks_of_a_launch_have_one_id():
    ranks = [{**HASHED, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(4)]
    assert len({run_identity.run_id(environment) for environment in ranks}) == 1


@pytest.mark.parametrize(
    "key",
    ["MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PBS_JOBID", "LSB_JOBID"],
)
def test_another_launch_has_another_id(key):
    assert run_identity.run_id(HASHED) != run_identity.run_id({**HASHED, key: "other"})


def test_without_a_rendezvous_id_a_restart_is_another_run():
    first = {**HASHED, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    again = {**first, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert run_identity.run_id(first) != run_identity.run_id(again)


def test_the_rendezvous_id_decides_over_address_and_restart():
    first = {**HASHED, "TORCHELASTIC_RUN_ID": "my-job", "TORCHELASTIC_RESTART_COUNT": "0"}
    again = {**first, "TORCHELASTIC_RESTART_COUNT": "1", "MASTER_PORT": "4000", "RANK": "2"}
    assert run_identity.run_id(first) == run_identity.run_id(again)
    assert run_identity.run_id(first) != run_identity.run_id(
        {**first, "TORCHELASTIC_RUN_ID": "other"}
    )


def test_a_rendezvous_id_that_is_a_uuid_is_kept_readable():
    drawn = "0f9B1d0c-7c7e-4e6e-9c1f-2f6d0a3b5c7d"
    expected = "0f9b1d0c7c7e4e6e9c1f2f6d0a3b5c7d"
    assert run_identity.run_id({**HASHED, "TORCHELASTIC_RUN_ID": drawn}) == expected


def test_each_watch_of_a_process_has_a_run_of_its_own():
    drawn = {**HASHED, "TORCHELASTIC_RUN_ID": "0f9b1d0c7c7e4e6e9c1f2f6d0a3b5c7d"}
    for environment in (HASHED, drawn):
        assert len({run_identity.run_id(environment, number) for number in range(3)}) == 3
        assert run_identity.run_id(environment, 1) == run_identity.run_id(
            {**environment, "RANK": "1"}, 1
        )


# --- rank and world size --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, (2, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0"}, (1, 2)),
        ({"RANK": "one", "WORLD_SIZE": "-2"}, (0, 1)),
        ({"RANK": "3"}, (3, 4)),
    ],
)
def test_rank_and_world_size_come_from_the_launcher(environment, expected):
    assert (run_identity.rank(environment), run_identity.world_size(environment)) == expected


def test_an_initialised_torch_distributed_is_believed_over_the_environment(tmp_path):
    code = """
import os, sys, torch.distributed as dist
from ampwatch.probe.run_identity import rank, world_size
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
print(rank({"RANK": "7", "WORLD_SIZE": "9"}), world_size({"WORLD_SIZE": "9"}))
dist.destroy_process_group()
"""
    done = children.run("-c", code, tmp_path / "rendezvous", env=child_environment())
    assert done.stdout.split() == ["0", "1"]


# --- real launchers -------------------------------------------------------------------------


def torchrun(
    out: Path, *words: object, env: dict[str, str] | None = None, fresh: bool = False
) -> list[list]:
    """What two ranks say who end with the folder among their arguments."""
    out.mkdir()
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", *words, out]
    done = children.run(*command, env=env or child_environment(), fresh=fresh)
    assert done.returncode == 0, done.stderr
    return said(out)


@pytest.mark.slow_ranks
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who launched a process")
def test_plain_torchrun_twice_on_one_port_gives_two_runs_with_both_ranks_in_each(tmp_path):
    """The ranks are fresh processes: who launched a fork is not to be seen. So is one torchrun."""
    script = tmp_path / "train.py"
    script.write_text(SAY_WHO)
    shell = tmp_path / "wrapper.sh"
    # Not `exec`: the shell stays, a parent of its own for each rank.
    shell.write_text(f'#!/bin/sh\n"{sys.executable}" "{script}" "$1"\nexit 0\n')
    shell.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = f"--master-port={held.getsockname()[1]}"
    first = torchrun(tmp_path / "first", port, script, fresh=True)
    second = torchrun(tmp_path / "second", port, "--no-python", shell)
    for ranks in (first, second):
        assert [r[2:] for r in ranks] == [[0, 2], [1, 2]]
        assert ranks[0][:2] == ranks[1][:2]
    assert first[0][0] != second[0][0]
    assert first[0][1] != second[0][1]
    assert first[0][1].startswith("train-")


@pytest.mark.slow_ranks
def test_standalone_torchrun_gives_all_ranks_its_own_id(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SAY_WHO + "\nprint(os.environ['TORCHELASTIC_RUN_ID'])\n")
    forks = children.forking(child_environment())
    first = torchrun(tmp_path / "first", "--standalone", script, env=forks)
    assert [r[2:] for r in first] == [[0, 2], [1, 2]]
    assert first[0][:2] == first[1][:2]


@pytest.mark.slow_ranks
def test_spawned_processes_meet_in_the_store_of_torch_distributed(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(
        """
import sys, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, folder, rendezvous, _):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    exec(SAY_WHO)
    dist.barrier()
    dist.destroy_process_group()
"""
        f"SAY_WHO = {SAY_WHO!r}\n"
        "if __name__ == '__main__':\n"
        "    mp.start_processes(work, tuple(sys.argv[1:]), 2, start_method=sys.argv[3])\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    methods = ("spawn", "fork" if sys.platform == "linux" else "spawn")  # which loads no torch
    for attempt, method in enumerate(methods):
        rendezvous = tmp_path / f"rendezvous-{attempt}"
        done = children.run(script, out, rendezvous, method, env=child_environment())
        assert done.returncode == 0, done.stderr
    everybody = said(out)
    assert [r[2] for r in everybody] == [0, 0, 1, 1]
    ids = [r[0] for r in everybody]
    assert sorted(ids[:2]) == sorted(ids[2:])
    assert len(set(ids)) == 2
    assert all(r[1].startswith("spawned-20") for r in everybody)


def test_no_launcher_is_looked_up_for_several_machines_or_other_launchers():
    assert (
        run_identity.torchrun_process({"TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2"})
        is None
    )
    assert run_identity.torchrun_process({"SLURM_PROCID": "0"}) is None


def test_a_single_process_is_named_by_script_and_time():
    who = run_identity.identify({}, ["/home/me/finetune.py", "--lr", "1"], NOW)
    assert (who.name, who.rank, who.world_size) == ("finetune-20260314-150926", 0, 1)


def test_launched_ranks_have_one_name_though_their_clocks_differ():
    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "77"}
    zero = run_identity.identify({**slurm, "SLURM_PROCID": "0"}, ["train.py"], NOW)
    one = run_identity.identify(
        {**slurm, "SLURM_PROCID": "1"}, ["train.py"], NOW.replace(second=27)
    )
    assert (zero.run_id, zero.name) == (one.run_id, one.name)
    assert zero.name == f"train-{zero.run_id[:8]}"


# --- names, folders, endpoints --------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["train.py"], "train-20260314-150926"),
        (["/a/b/trainer/__main__.py"], "trainer-20260314-150926"),
        (["/x/ipykernel_launcher.py", "-f", "k.json"], "notebook-20260314-150926"),
        (["-c"], "python-20260314-150926"),
        (["-"], "python-20260314-150926"),
        ([""], "python-20260314-150926"),
        ([], "python-20260314-150926"),
    ],
)
def test_the_default_name_is_what_the_user_would_call_the_program(argv, expected):
    assert run_identity.default_name(argv, NOW) == expected


def test_an_endpoint_is_as_given_else_as_the_environment_says():
    environment = {"AMPWATCH_ENDPOINT": "tcp://head:5797"}
    assert run_identity.endpoint(environment, "tcp://other:1") == "tcp://other:1"
    assert run_identity.endpoint(environment, None) == "tcp://head:5797"
    assert run_identity.endpoint({}, None) == "tcp://127.0.0.1:5797"


@pytest.mark.parametrize("off", ["off", "OFF", " off ", ""])
def test_off_means_no_endpoint(off):
    assert run_identity.endpoint({"AMPWATCH_ENDPOINT": "tcp://head:5797"}, off) is None
    assert run_identity.endpoint({"AMPWATCH_ENDPOINT": off}, None) is None


def test_the_log_folder_is_absolute_and_as_given_first(tmp_path):
    assert run_identity.log_dir({"AMPWATCH_DIR": "/elsewhere"}, tmp_path) == tmp_path
    assert run_identity.log_dir({"AMPWATCH_DIR": str(tmp_path)}, None) == tmp_path
    assert run_identity.log_dir({"AMPWATCH_DIR": ""}, None) == Path.cwd() / "ampwatch-runs"
    assert run_identity.log_dir({}, "~/runs") == Path.home() / "runs"


def test_versions_hold_only_what_is_known_and_are_text():
    import torch

    versions = run_identity.versions()
    assert versions["torch"] == str(torch.__version__)
    assert versions["python"] == sys.version.split()[0]
    assert ("cuda" in versions) == (torch.version.cuda is not None)
    assert json.loads(json.dumps(versions)) == versions


def test_only_variables_that_change_what_is_computed_are_told():
    environment = {
        "CUDA_VISIBLE_DEVICES": "0,1", "NVIDIA_TF32_OVERRIDE": "0", "PYTORCH_CUDA_ALLOC_CONF": "x",
        "OMP_NUM_THREADS": "4", "PATH": "/bin", "RANK": "3", "TORCHELASTIC_RUN_ID": "7",
        "AMPWATCH_NOTIFY": "https://hooks.example/T/B/secret", "HF_TOKEN": "hf_abcdefghijkl",
        "HISTORY": "", "CUDA_HOME": "/cuda", "OMPI_COMM_WORLD_RANK": "1",
    }  # fmt: skip
    assert list(run_identity.telling_environment(environment)) == [
        "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
        "PYTORCH_CUDA_ALLOC_CONF",
    ]  # fmt: skip
