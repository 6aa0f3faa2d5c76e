"""Trainings that meet with something: each ends with the weights that it has without us.

What cannot be kept then is counted: the rows that can be read and the rows that the watch says it
lost are together no fewer than the training made.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos_training as training
import psutil
from chaos_recorder import (
    Recording,
    finish,
    recording,
    train,
    trainer,
    until_all_acknowledged,
)
from chaos_trials import Changed, Hung, Lost, Trial, kind

from ampwatch import open_run
from ampwatch.errors import NotARunError

_PATIENCE_S = 60.0
_MS_READ_ONLY = 1
_MOVED = "moved"  # whoever moves a log away has its rows still: none of them is lost


def _train(trial: Trial, plan: training.Plan, made: int | None = None) -> None:
    """Train under the fault: it ends as without us, and what can be read is true.

    With what is counted as lost it is all of the steps that were made: by default those that the
    watch had a log for.
    """
    child = training.start(plan, trial.folder / "said.txt")
    child.wait()
    said = (trial.folder / "said.txt").read_text(errors="replace")
    if child.code or "Traceback" in said:
        raise Changed(f"the training ended with {child.code}: {said.strip()[-300:]}")
    end = child.said_at_end
    if end["digest"] != training.truth_of(trial.material, plan.seed)["digest"]:
        raise Changed("weights, scaler or random state differ from those without us")
    made = _made(plan) if made is None else made
    paths = [*plan.log_dir.glob("[!.]*"), *trial.folder.glob(_MOVED)]
    there = sum(_rows_in(trial, path, plan.seed) for path in paths)
    if there + end["lost_rows"] < made:
        raise Lost(
            f"of {made} steps {there} can be read and lost_rows is {end['lost_rows']}; said: "
            f"{_said(trial)!r}"
        )


def _made(plan: training.Plan) -> int:
    """The steps that are to be accounted for: none where attach found no log to be possible."""
    indexes = plan.log_dir.glob("run/rank-0/index")
    return training.STEPS if any(path.stat().st_size for path in indexes) else 0


def _rows_in(trial: Trial, path: Path, seed: int) -> int:
    """The steps of a run, which are the training's own; a run may lack a stretch."""
    try:
        rows = open_run(path).read("steps", ["step", "loss"])
    except NotARunError:
        return 0
    truth = training.truth_of(trial.material, seed)["losses"]
    steps, losses = rows["step"].to_pylist(), rows["loss"].to_pylist()
    if steps != sorted(set(steps)):
        raise Lost("steps are doubled or out of order")
    for step, loss in zip(steps, losses, strict=True):
        if loss == loss and abs(loss - truth[step]) > 1e-6 * abs(truth[step]):
            raise Lost(f"step {step} has the loss {loss}, truly {truth[step]}")
    return len(steps)


def _said(trial: Trial) -> str:
    text = (trial.folder / "said.txt").read_text(errors="replace").strip()
    return re.sub(r"/\S+/", "", text)[-200:]


def _plan(trial: Trial, **changes: Any) -> training.Plan:
    seed = trial.chance.randrange(training.SEEDS)
    return training.Plan(trial.folder / "runs", seed, **changes)


def _some_step(trial: Trial) -> int:
    return trial.chance.randrange(1, training.STEPS - 10)


def _mounted(trial: Trial, kilobytes: int, name: str = "disk") -> Path:
    """A disk of this size; an OSError where none can be mounted."""
    place = trial.folder / name
    place.mkdir()
    options = f"size={kilobytes}k".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"none", os.fsencode(place), b"tmpfs", 0, options):
        raise OSError(ctypes.get_errno(), "no disk can be mounted")
    return place


# --- disks ---------------------------------------------------------------------------------------


@kind("fault-file-limit", share=0.4)
def fault_file_limit(trial: Trial) -> None:
    """Files may not grow beyond some kilobytes."""
    most = trial.chance.randrange(500, 60_000)
    trial.say(f"files of at most {most} bytes")
    plan = _plan(trial, before=lambda: _limit(resource.RLIMIT_FSIZE, most))
    _train(trial, plan)


@kind("fault-disk-full", share=0.6)
def fault_disk_full(trial: Trial) -> None:
    """The disk is full at some moment, or from the start, and perhaps has room again later."""
    place = _mounted(trial, kilobytes=trial.chance.choice([4, 16, 40, 100, 400]))
    full = place / "full"
    at, frees = _some_step(trial), trial.chance.random() < 0.5

    def fill(*_: object) -> None:
        with full.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1024))
        if frees:
            _later(0.25, full.unlink)

    trial.say(f"a disk that is full at step {at}{', and has room later' if frees else ''}")
    plan = training.Plan(place, trial.chance.randrange(training.SEEDS), at=at, happens=fill)
    _train(trial, plan)


@kind("fault-read-only", share=0.4)
def fault_read_only(trial: Trial) -> None:
    """The folder's disk is read-only when the training begins."""
    place = _mounted(trial, kilobytes=1000)
    trial.say("a read-only disk")
    remount = _MS_READ_ONLY | 32
    assert not ctypes.CDLL(None).mount(b"none", os.fsencode(place), b"tmpfs", remount, None)
    plan = training.Plan(place / "runs", trial.chance.randrange(training.SEEDS))
    _train(trial, plan, made=0)
    if not _said(trial):
        raise Lost("nothing is recorded, and nothing is said of it")


@kind("fault-folder-removed", share=0.8)
def fault_folder_removed(trial: Trial) -> None:
    """The folder is deleted, moved or emptied in mid-run."""
    at, harm = _some_step(trial), trial.chance.choice([_remove, _move, _empty, _put_file])
    trial.say(f"{harm.__doc__} at step {at}")
    plan = _plan(trial, at=at)
    runs = plan.log_dir
    plan = training.Plan(runs, plan.seed, at=at, happens=lambda *_: harm(runs))
    _train(trial, plan, made=training.STEPS - at)


def _remove(runs: Path) -> None:
    """all runs' folder is removed"""
    shutil.rmtree(runs, ignore_errors=True)


def _move(runs: Path) -> None:
    """the run's folder is moved away"""
    (runs / "run").rename(runs.with_name(_MOVED))


def _empty(runs: Path) -> None:
    """the rank's files are removed"""
    for path in (runs / "run" / "rank-0").glob("*"):
        path.unlink()


def _put_file(runs: Path) -> None:
    """a file stands where the runs' folder was"""
    shutil.rmtree(runs, ignore_errors=True)
    runs.write_text("in the way")


# --- descriptors, forks, clocks ------------------------------------------------------------------


@kind("fault-descriptors", share=0.6)
def fault_descriptors(trial: Trial) -> None:
    """No or few descriptors are left, from the start or from some step on."""
    room, from_start = trial.chance.randrange(12), trial.chance.random() < 0.6
    at = -1 if from_start else _some_step(trial)

    def use_up(*_: object) -> None:
        used = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
        _limit(resource.RLIMIT_NOFILE, used + room)

    trial.say(f"{room} descriptors are left, from {'the start' if from_start else f'step {at}'} on")
    plan = _plan(trial, at=at, happens=use_up, before=use_up if from_start else lambda: None)
    _train(trial, plan)


@kind("fault-forks", share=0.6)
def fault_forks(trial: Trial) -> None:
    """The training forks; the child trains on and leaves, hard or softly, or is killed."""
    at, leaves = _some_step(trial), trial.chance.choice(["hard", "by exit handlers", "killed"])

    def fork(trained: training.Training, watch: Any) -> None:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return
        for _ in range(5):
            trained.step()
        if leaves == "killed":
            os.kill(os.getpid(), 9)
        if leaves == "by exit handlers":
            watch.close()
        os._exit(0)

    trial.say(f"forks at step {at}; the child leaves {leaves}")
    plan = _plan(trial, at=at, happens=fork)
    _train(trial, plan, made=training.STEPS)
    run = open_run(plan.log_dir / "run")
    if run.notes or not run.clean_end:
        raise Lost(f"after a fork: notes {run.notes}, clean end {run.clean_end}")


@kind("fault-clock", share=0.6)
def fault_clock(trial: Trial) -> None:
    """The clock jumps back or ahead, or stands still."""
    at = _some_step(trial)
    jump_s = trial.chance.choice([-3600.0, -1e9, 3600.0, 1e9, None])

    def jump(*_: object) -> None:
        real, real_ns = time.time, time.time_ns
        if jump_s is None:
            now, now_ns = real(), real_ns()
            time.time, time.time_ns = lambda: now, lambda: now_ns
        else:
            time.time = lambda: real() + jump_s
            time.time_ns = lambda: real_ns() + int(jump_s * 1e9)

    trial.say(f"the clock jumps by {jump_s} s at step {at}")
    plan = _plan(trial, at=at, happens=jump)
    _train(trial, plan, made=training.STEPS)
    if open_run(plan.log_dir / "run").notes:
        raise Lost("after a jump of the clock the run has notes")


# --- a recorder that does not answer -------------------------------------------------------------


@kind("fault-recorder-stopped", limit_s=240.0)
def fault_recorder_stopped(trial: Trial) -> None:
    """The recorder is stopped by SIGSTOP in mid-run, and perhaps goes on later."""
    at, goes_on = _some_step(trial), trial.chance.random() < 0.5
    with recording(trial.folder) as recorder:

        def stop(*_: object) -> None:
            recorder.stop()
            if goes_on:
                _later(0.3, recorder.go_on)

        trial.say(f"the recorder is stopped at step {at}{', and goes on' if goes_on else ''}")
        endpoint = {"endpoint": recorder.endpoint}
        plan = _plan(trial, at=at, happens=stop, attach=endpoint)
        began = time.monotonic()
        _train(trial, plan, made=training.STEPS)
        recorder.go_on()
        if time.monotonic() - began > _PATIENCE_S:
            raise Hung(f"the training took over {_PATIENCE_S:g} s beside a stopped recorder")


@kind("fault-recorder", limit_s=300.0)
def fault_recorder(trial: Trial) -> None:
    """The recorder's disk is full, its copies are taken away or it has no descriptors left."""
    chance, run_id = trial.chance, secrets.token_hex(16)
    harm = chance.choice([_fill_disk, _remove_copies, _move_copies, _use_up_descriptors])
    copies = _mounted(trial, kilobytes=4000, name="copies")
    with recording(trial.folder) as recorder:
        log_dir, endpoint = trial.folder / "runs", recorder.endpoint
        trainers = [trainer(log_dir, endpoint, 0, run_id)]
        train(trainers, chance.uniform(0.0, 1.0))
        trial.say(f"{harm.__doc__}")
        relieve = harm(recorder, copies)
        trainers += [trainer(log_dir, endpoint, rank, run_id) for rank in (1, 2)]
        train(trainers, chance.uniform(0.5, 2.0))
        relieve()
        until_all_acknowledged(trainers, recorder, "after the fault")
        finish(trainers, recorder, run_id)


def _fill_disk(recorder: Recording, copies: Path) -> Callable[[], object]:
    """the recorder's disk is full"""
    full = copies / "full"
    with full.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))
    return full.unlink


def _remove_copies(recorder: Recording, copies: Path) -> Callable[[], object]:
    """the recorder's copies are deleted"""
    for path in copies.iterdir():
        shutil.rmtree(path, ignore_errors=True)
    return lambda: None


def _move_copies(recorder: Recording, copies: Path) -> Callable[[], object]:
    """the recorder's copies are moved away"""
    for path in list(copies.iterdir()):
        path.rename(copies / f".{path.name}-moved")
    return lambda: None


def _use_up_descriptors(recorder: Recording, copies: Path) -> Callable[[], object]:
    """the recorder has no descriptors left"""
    processes, which = recorder.processes, psutil.RLIMIT_NOFILE
    before = [process.rlimit(which) for process in processes]
    for process, (_, most) in zip(processes, before, strict=True):
        process.rlimit(which, (process.num_fds() + 1, most))
    return lambda: [p.rlimit(which, b) for p, b in zip(processes, before, strict=True)]


def _limit(what: int, most: int) -> None:
    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def _later(seconds: float, do: Callable[[], None]) -> None:
    """Do it in a thread, which a training's end does not wait for."""
    import threading

    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()
