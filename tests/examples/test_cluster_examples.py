"""The examples for Slurm and Kubernetes, as far as they run on one machine without either.

Slurm's script runs as it is, once without Slurm and, where Slurm is installed, as a job. Of the
Kubernetes objects every field is known to Kubernetes' own client, and the containers' own commands
are run as processes here: paths and the service's name are all that is changed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import children
import pytest

from ampwatch import open_run

yaml = pytest.importorskip("yaml", reason="no PyYAML here")
ROOT = Path(__file__).parents[2]
SLURM = ROOT / "examples" / "slurm" / "train.sbatch"
KUBERNETES = ROOT / "examples" / "kubernetes" / "training.yaml"
STEPS = 40


def plain_script(folder):
    """The smallest loop without the line that watches it."""
    source = (ROOT / "examples" / "minimal.py").read_text("utf-8")
    lines = [line for line in source.splitlines(keepends=True) if "ampwatch.attach" not in line]
    script = folder / "train.py"
    script.write_text("".join(lines).replace("import ampwatch\n", ""))
    return script


def documents():
    return [one for one in yaml.safe_load_all(KUBERNETES.read_text("utf-8")) if one]


def container(kind):
    [one] = [d["spec"]["template"]["spec"] for d in documents() if d["kind"] == kind]
    return one["containers"][0], one["volumes"]


def environment(folder, base=os.environ, **more):
    """One in which `ampwatch` and `torchrun` are commands, as in an image."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, module in (("ampwatch", "ampwatch"), ("torchrun", "torch.distributed.run")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec {children.python(base)} -m {module} "$@"\n')
        script.chmod(0o755)
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    return {**base, **home, "PATH": path, "PYTHONPATH": str(ROOT), **more}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_slurms_script_is_bash_and_asks_slurm_for_what_it_names():
    subprocess.run(["bash", "-n", SLURM], check=True)
    asked = [line for line in SLURM.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {word.partition("=")[0] for line in asked for word in line.split()[1:]} == {
        "--job-name", "--nodes", "--ntasks-per-node", "--gpus-per-node", "--requeue",
    }  # fmt: skip


@pytest.mark.slow_starts
@pytest.mark.parametrize("fails", [False, True])
def test_slurms_script_trains_reports_and_ends_as_the_training_did(tmp_path, fails):
    script = plain_script(tmp_path)
    if fails:
        script.write_text("raise SystemExit(3)\n")
    done = subprocess.run(
        ["bash", SLURM, script, "--steps", str(STEPS)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment(
            tmp_path, children.forking(os.environ), AMPWATCH_ENDPOINT="off",
            MASTER_PORT=str(free_port()),
        ),
    )  # fmt: skip
    if fails:
        assert done.returncode != 0
        return
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "ampwatch-runs").glob("train-*")
    assert open_run(path).steps.num_rows == STEPS
    assert f"{STEPS} steps" in done.stdout


@pytest.mark.slow_starts
@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm here")
def test_slurm_itself_runs_the_script_as_a_job(tmp_path):
    done = subprocess.run(
        ["sbatch", "--wait", "--nodes=1", "--gpus-per-node=0", f"--output={tmp_path}/job.txt",
         SLURM, str(plain_script(tmp_path)), "--steps", str(STEPS)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment(tmp_path, AMPWATCH_ENDPOINT="off", MASTER_PORT=str(free_port())),
    )  # fmt: skip
    output = (tmp_path / "job.txt").read_text()
    assert done.returncode == 0, done.stderr + output
    [path] = (tmp_path / "ampwatch-runs").glob("train-*")
    assert open_run(path).steps.num_rows == STEPS
    assert f"{STEPS} steps" in output


def test_every_field_of_the_objects_is_one_that_kubernetes_knows():
    client = pytest.importorskip("kubernetes.client", reason="pip install kubernetes")
    api = client.ApiClient()
    models = {"PersistentVolumeClaim": "V1PersistentVolumeClaim", "Deployment": "V1Deployment",
              "Service": "V1Service", "Job": "V1Job"}  # fmt: skip
    assert {one["kind"] for one in documents()} == set(models)
    for one in documents():
        made = api._ApiClient__deserialize(one, models[one["kind"]])
        assert api.sanitize_for_serialization(made) == one


def test_names_ports_and_volumes_of_the_objects_fit_each_other():
    [service] = [one for one in documents() if one["kind"] == "Service"]
    [deployment] = [one for one in documents() if one["kind"] == "Deployment"]
    recorder, volumes = container("Deployment")
    training, _ = container("Job")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in recorder["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    told = {one["name"]: one["value"] for one in training["env"]}["AMPWATCH_ENDPOINT"]
    assert told == f"tcp://{service['metadata']['name']}:{ports['feed']}"
    assert {one["name"] for one in volumes} == {one["name"] for one in recorder["volumeMounts"]}
    claims = [one["metadata"]["name"] for one in documents() if "Claim" in one["kind"]]
    assert claims == [v["persistentVolumeClaim"]["claimName"] for v in volumes if "secret" not in v]


@pytest.mark.slow_starts
def test_the_training_of_the_job_arrives_at_the_recorder_of_the_deployment(tmp_path):
    """Each container's command and environment, with this machine's paths and ports."""
    keys, runs, (feed, metrics) = tmp_path / "keys", tmp_path / "runs", (free_port(), free_port())
    base = environment(tmp_path)
    keys.mkdir(mode=0o700)
    made = {**base, "AMPWATCH_CONFIG_DIR": str(keys)}
    subprocess.run(["ampwatch", "keys"], env=made, check=True, capture_output=True)
    for path in keys.iterdir():
        path.chmod(0o400)
    keys.chmod(0o500)
    places = {"/runs": runs, "/tmp/runs": tmp_path / "own", "/keys": keys,
              "ampwatch-recorder:5797": f"127.0.0.1:{feed}", "0.0.0.0:5797": f"127.0.0.1:{feed}",
              "0.0.0.0:9464": f"127.0.0.1:{metrics}",
              "train.py": plain_script(tmp_path)}  # fmt: skip

    def here(word):
        for there, ours in places.items():
            if word == there or word.endswith(f"://{there}"):
                return word.removesuffix(there) + str(ours)
        return word

    def process(kind, *more):
        its, _ = container(kind)
        words = [here(word) for word in (*its["command"], *its["args"])]
        own = {one["name"]: here(one["value"]) for one in its["env"]}
        return subprocess.Popen([*words, *more], env={**base, **own}, cwd=tmp_path)

    recorder = process("Deployment")
    try:
        assert process("Job", "--steps", str(STEPS)).wait(150) == 0
        until = time.monotonic() + 60
        while not ((runs / "train").exists() and open_run(runs / "train").steps.num_rows == STEPS):
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        recorder.terminate()
        recorder.wait(30)
