"""What goes wrong around a training leaves it as it would be without us, and leaves a run to read.

Every circumstance is met by a real child process, once bare and once watched: both must end in the
same way and with the same digest, and the watched one may add one warning.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import children
import pytest
import torch

import ampwatch

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="the circumstances are made with POSIX signals, limits and fork"
)

CHILD = Path(__file__).parent / "child_training.py"
STEPS = 80
AT = 40
KILLS = int(os.environ.get("AMPWATCH_KILLS", "5"))


@dataclass(frozen=True)
class End:
    """How a child ended."""

    code: int
    output: str
    errors: str

    @property
    def warnings(self) -> int:
        return self.errors.count("AmpwatchWarning:")


def start(log_dir: Path, *options: str) -> children.Running:
    environment = {
        **os.environ,
        "AMPWATCH_STRICT": "0",
        "AMPWATCH_ENDPOINT": "off",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(CHILD.parents[2]),
    }
    return children.start(CHILD, log_dir, *options, env=environment, stdout=PIPE, stderr=PIPE)


def finish(child: children.Running) -> End:
    output, errors = child.communicate(timeout=100)
    return End(child.returncode, output, errors)


def both(log_dir: Path, *options: str) -> tuple[End, End]:
    """The bare training and the watched one, at the same time."""
    children = start(log_dir, "--bare", *options), start(log_dir, *options)
    bare, watched = (finish(child) for child in children)
    return bare, watched


def assert_same_end(bare: End, watched: End, *, warnings: int = 0) -> None:
    assert watched.code == bare.code, watched.errors
    assert watched.output == bare.output
    assert watched.warnings == warnings, watched.errors
    assert traceback_of(watched) == traceback_of(bare)


def traceback_of(end: End) -> list[str]:
    """The last line of the traceback that ended the training, if one did."""
    return end.errors.splitlines()[-1:] if "Traceback" in end.errors else []


def steps_of(folder: Path) -> list[int]:
    return ampwatch.open_run(folder).steps["step"].to_pylist()


def events_of(folder: Path) -> list[str]:
    return ampwatch.open_run(folder).events["kind"].to_pylist()


def test_interpreter_exit_without_close_leaves_a_complete_run(tmp_path: Path) -> None:
    assert_same_end(*both(tmp_path / "runs"))
    run = ampwatch.open_run(tmp_path / "runs" / "run")
    assert run.clean_end
    assert run.notes == ()
    assert steps_of(run.path) == list(range(STEPS))


def test_a_log_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    bare, watched = both(tmp_path / "file" / "runs")
    assert_same_end(bare, watched, warnings=1)
    assert "no log" in watched.errors


def test_a_log_folder_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    bare, watched = both(tmp_path / "runs", "--way=folder-vanishes", "--pause-s=0.005")
    assert (watched.code, watched.output) == (bare.code, bare.output)
    assert watched.warnings <= 1


def test_a_full_disk_costs_one_warning_and_the_rows_after_it(tmp_path: Path) -> None:
    bare, watched = both(tmp_path / "runs", "--full-disk", "--pause-s=0.005")
    assert_same_end(bare, watched, warnings=1)
    assert "lost" in watched.errors
    steps = steps_of(tmp_path / "runs" / "run")
    assert 0 < len(steps) < STEPS
    assert steps == list(range(len(steps)))


def test_a_clock_that_jumps_back_leaves_steps_in_order(tmp_path: Path) -> None:
    assert_same_end(*both(tmp_path / "runs", "--way=clock-jumps-back", "--pause-s=0.005"))
    run = ampwatch.open_run(tmp_path / "runs" / "run")
    assert steps_of(run.path) == list(range(STEPS))
    times_ns = run.steps["time_ns"].to_pylist()
    assert times_ns[-1] < times_ns[0], "it did jump"
    assert min(t for t in run.steps["step_time_ms"].to_pylist() if t is not None) > 0


@pytest.mark.parametrize("way", ["forks", "forks-and-leaves"])
def test_a_forked_child_adds_nothing_to_the_run(way: str, tmp_path: Path) -> None:
    assert_same_end(*both(tmp_path / "runs", f"--way={way}"))
    run = ampwatch.open_run(tmp_path / "runs" / "run")
    assert run.notes == ()
    assert run.clean_end
    assert steps_of(run.path) == list(range(STEPS))
    assert events_of(run.path).count("ended") == 1


def test_dataloader_workers_add_nothing_to_the_run(tmp_path: Path) -> None:
    assert_same_end(*both(tmp_path / "runs", "--workers=2"))
    assert steps_of(tmp_path / "runs" / "run") == list(range(STEPS))
    assert events_of(tmp_path / "runs" / "run").count("ended") == 1


def test_a_notebook_cell_run_twice_keeps_the_watch_that_is_there(tmp_path: Path) -> None:
    bare, watched = both(tmp_path / "runs", "--way=scaler-is-watched-again")
    assert_same_end(bare, watched, warnings=1)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]
    assert steps_of(tmp_path / "runs" / "run") == list(range(STEPS))


def test_an_exception_in_forward_is_raised_untouched_and_recorded(tmp_path: Path) -> None:
    bare, watched = both(tmp_path / "runs", "--way=forward-fails")
    assert_same_end(bare, watched)
    assert traceback_of(watched) == ["ValueError: the layer broke"]
    run = ampwatch.open_run(tmp_path / "runs" / "run")
    assert steps_of(run.path)[:AT] == list(range(AT))
    exceptions = [e["detail"] for e in run.events.to_pylist() if e["kind"] == "exception"]
    assert len(exceptions) == 1
    assert "the layer broke" in exceptions[0]
    assert '"layer": "1"' in exceptions[0]


def test_sys_exit_leaves_a_complete_run(tmp_path: Path) -> None:
    bare, watched = both(tmp_path / "runs", "--way=exits")
    assert_same_end(bare, watched)
    assert watched.code == 3
    assert steps_of(tmp_path / "runs" / "run") == list(range(AT))
    assert ampwatch.open_run(tmp_path / "runs" / "run").clean_end


def test_os_exit_leaves_what_was_flushed(tmp_path: Path) -> None:
    bare, watched = both(tmp_path / "runs", "--way=exits-hard")
    assert_same_end(bare, watched)
    assert watched.code == 5
    run = ampwatch.open_run(tmp_path / "runs" / "run")
    assert steps_of(run.path) == list(range(AT))
    assert not run.clean_end


def test_ctrl_c_ends_training_as_without_us_and_is_recorded(tmp_path: Path) -> None:
    options = ("--steps=1000000", "--pause-s=0.001")
    children = start(tmp_path / "runs", "--bare", *options), start(tmp_path / "runs", *options)
    for child in children:
        wait_until_ready(child)
    while not steps_of(tmp_path / "runs" / "run"):
        time.sleep(0.01)
    for child in children:
        child.send_signal(signal.SIGINT)
    bare, watched = (finish(child) for child in children)
    assert watched.code == bare.code == -signal.SIGINT
    assert traceback_of(watched) == traceback_of(bare) == ["KeyboardInterrupt"]
    assert watched.warnings == 0
    steps = steps_of(tmp_path / "runs" / "run")
    assert len(steps) > 0
    assert steps == list(range(len(steps)))
    assert "exception" in events_of(tmp_path / "runs" / "run")


@pytest.mark.slow_kills
@pytest.mark.timeout(100 + 10 * KILLS)
def test_nothing_acknowledged_is_lost_to_kill_9(tmp_path: Path) -> None:
    """The child says what its log has acknowledged; AMPWATCH_KILLS=100 kills a hundred."""
    moments = random.Random(0)
    for first in range(0, KILLS, 2):
        folders = [tmp_path / str(kill) for kill in range(first, min(first + 2, KILLS))]
        children = [start(folder, "--acknowledge", "--steps=1000000") for folder in folders]
        for child in children:
            wait_until_ready(child)
        time.sleep(moments.uniform(0.0, 1.2))
        for child in children:
            child.kill()
        for folder, child in zip(folders, children, strict=True):
            assert_all_acknowledged_rows_are_readable(finish(child), folder / "run")


def wait_until_ready(child: children.Running) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line == "ready\n":
            return
    raise AssertionError(child.communicate()[1])


def assert_all_acknowledged_rows_are_readable(end: End, folder: Path) -> None:
    assert end.code == -signal.SIGKILL, end.errors
    acknowledged: Counter[str] = Counter()
    for line in end.output.splitlines(keepends=True):
        if line.startswith("acknowledged") and line.endswith("\n"):
            _, _, table, row_count = line.split()
            acknowledged[table] += int(row_count)
    run = ampwatch.open_run(folder)
    for table in ("steps", "layers", "events", "devices"):
        rows = run.read(table).num_rows
        assert rows >= acknowledged[table], f"{table}: {rows} of {acknowledged[table]}"
    steps = steps_of(folder)
    assert steps == list(range(len(steps)))
    assert not run.clean_end


def test_swapped_arguments_say_so() -> None:
    model, scaler = torch.nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    with pytest.raises(ampwatch.AmpwatchError, match=r"swapped.*attach\(scaler, model\)") as raised:
        ampwatch.attach(model, scaler)
    assert isinstance(raised.value, TypeError)
    assert type(scaler) is torch.amp.GradScaler


@pytest.mark.parametrize(
    ("scaler", "model", "remedy"),
    [
        (torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1), torch.nn.Linear(2, 2), "attach"),
        ("scaler", torch.nn.Linear(2, 2), "GradScaler"),
        (torch.amp.GradScaler("cpu"), "model", "Module"),
        (torch.amp.GradScaler("cpu"), 3, "Module"),
        (None, torch.nn.Linear(2, 2), "optimizer="),
        (None, None, "optimizer="),
    ],
)
def test_the_wrong_thing_is_refused_with_the_remedy(
    scaler: object, model: object, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(ampwatch.AmpwatchError, match=remedy):
        ampwatch.attach(scaler, model, log_dir=tmp_path)
    assert list(tmp_path.glob("*/run.json")) == []


def test_attach_after_close_begins_a_new_run(tmp_path: Path) -> None:
    model, scaler = torch.nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    first = ampwatch.attach(scaler, model, log_dir=tmp_path, run="run", endpoint="off")
    first.close()
    first.close()
    with pytest.warns(UserWarning, match="attach again"):
        first.log(loss=1.0)
    with ampwatch.attach(scaler, model, log_dir=tmp_path, run="run", endpoint="off"):
        scaler.scale(model(torch.ones(1, 2)).sum())
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run", "run-2"]
    assert type(scaler) is torch.amp.GradScaler


def test_the_same_scaler_again_gives_the_watch_that_is_there(tmp_path: Path) -> None:
    model, scaler = torch.nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, model, log_dir=tmp_path, endpoint="off") as first:
        with pytest.warns(UserWarning, match="already"):
            assert ampwatch.attach(scaler, model, log_dir=tmp_path, endpoint="off") is first


def test_switched_off_by_the_environment_nothing_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPWATCH", "0")
    model, scaler = torch.nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, model, log_dir=tmp_path / "runs") as watch:
        watch.log(loss=1.0)
        assert type(scaler) is torch.amp.GradScaler
    assert not (tmp_path / "runs").exists()
