"""What identifies a run, settled before any step: id, ranks, name, folder, endpoint, origin.

Each function takes the environment, the clock and the arguments that it reads, so its answer
depends on nothing else, with two exceptions: `rank` and `world_size` ask an initialised
`torch.distributed` first, and `identify` may ask its store, where all ranks of a launch meet.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import torch
from torch import distributed

LOG_DIR = "ampwatch-runs"

# Each launcher's names for rank and world size. A batch script under Slurm has SLURM_NTASKS but
# runs once, so only the size of the step that `srun` started counts.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
# What ranks of one launch share, and another launch has otherwise.
_LAUNCH_KEYS = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PBS_JOBID",
    "LSB_JOBID",
    "JOB_ID",
    "TORCHX_JOB_ID",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "TORCHELASTIC_RESTART_COUNT",
)
# Not AMPWATCH_*: alerts are sent to addresses that are secrets themselves.
_TELLING = re.compile(
    r"(?:CUDA|CUBLAS|CUDNN|NCCL|RCCL|PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|ROCR|HIP|HSA"
    r"|MIOPEN|MKL|OMP|KMP|ACCELERATE|DEEPSPEED|XLA)_\w+|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED"
)

_RENDEZVOUS = "TORCHELASTIC_RUN_ID"
_PROC = Path("/proc")
_DEEPEST_SHELL = 16
_PLACES = ("_DIR", "_HOME", "_PATH")

# Asking git cost 40 to 110 ms in a repository of 1,000 files; on a slow disk it may cost anything.
_PATIENCE_S = 2.0
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MOST_BYTES = 1 << 22  # of a file of git's
_NOT_SCRIPTS = (
    "-c", "-m", "ipykernel_launcher.py", "colab_kernel_launcher.py", "default_worker.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run this process writes, and as which of its ranks."""

    run_id: str
    name: str
    rank: int
    world_size: int


def identify(
    environment: Mapping[str, str], argv: Sequence[str], now: datetime, number: int = 0
) -> Identity:
    """Who this process is: the same run id and name on all ranks of one launch.

    `number` counts the watches this process attached before, so that each has its own run.
    """
    own_rank, size = rank(environment), world_size(environment)
    if not _launched(environment) and size == 1:
        return Identity(run_id(environment), default_name(argv, now), own_rank, size)
    unique = rendezvous_id(environment) or torchrun_process(environment)
    if not unique and _gathered():
        name = f"{default_name(argv, now)}{f'-{number + 1}' if number else ''}"
        agreed_id, _, agreed_name = _agree(f"{uuid.uuid4().hex} {name}", number).partition(" ")
        if agreed_name:
            return Identity(agreed_id, agreed_name, own_rank, size)
    shared_id = run_id(environment, number)
    # The ranks' clocks differ, so the time would give each a folder of its own.
    return Identity(shared_id, f"{_script_name(argv)}-{shared_id[:8]}", own_rank, size)


def run_id(environment: Mapping[str, str], number: int = 0) -> str:
    """Thirty-two hex digits: equal on all ranks of a launch, different for another launch.

    The launcher's rendezvous id decides; where there is none, the master's address and port, the
    job and the restart count do. A single process draws a random one.
    """
    rendezvous = rendezvous_id(environment)
    if rendezvous is None and not _launched(environment):
        return uuid.uuid4().hex
    if rendezvous and number == 0 and (as_uuid := _uuid_hex(rendezvous)):
        return as_uuid
    keys = () if rendezvous else _LAUNCH_KEYS
    parts = [f"{key}={environment.get(key, '')}" for key in keys]
    # A rendezvous id typed by hand, and a port, serve one launch after the other.
    parts += [rendezvous or "", torchrun_process(environment) or "", str(number)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def rank(environment: Mapping[str, str]) -> int:
    """This process's rank: torch.distributed's if initialised, else the launcher's, else 0."""
    return int(distributed.get_rank()) if _gathered() else _launch(environment)[0]


def world_size(environment: Mapping[str, str]) -> int:
    """How many ranks there are: torch.distributed's word if initialised, else the launcher's."""
    return int(distributed.get_world_size()) if _gathered() else _launch(environment)[1]


def default_name(argv: Sequence[str], now: datetime) -> str:
    """The script's name and the time, as in `train-20260314-150926`."""
    return f"{_script_name(argv)}-{now:%Y%m%d-%H%M%S}"


def endpoint(environment: Mapping[str, str], given: str | None) -> str | None:
    """Where the feed goes; None is off. A FeedError says what is wrong with what was given.

    As given, else $AMPWATCH_ENDPOINT, else the port that a recorder of this user's has announced
    because the usual one was taken, else the default.
    """
    chosen = given if given is not None else environment.get("AMPWATCH_ENDPOINT")
    if chosen is not None and chosen.strip().lower() in ("", "off"):
        return None
    from ampwatch.feed import resolve_endpoint  # loads zmq, which "off" must not need

    return resolve_endpoint(None if chosen is None else chosen.strip(), environment)


def log_dir(environment: Mapping[str, str], given: str | Path | None) -> Path:
    """The folder of runs: what was given, else $AMPWATCH_DIR, else ./ampwatch-runs; absolute.

    Absolute, because a training script may change its working directory later.
    """
    if environment.get("AMPWATCH_RERUN"):
        given = None  # a rerun's rows go to a folder of its own, whatever the script says
    chosen = given if given is not None else environment.get("AMPWATCH_DIR") or LOG_DIR
    return Path(chosen).expanduser().absolute()


def host() -> str:
    """This machine's name."""
    return platform.node() or "unknown"


def versions() -> dict[str, str]:
    """Versions that a reader needs to reproduce the run; unknown ones are left out."""
    from ampwatch import __version__

    versions_now = {
        "ampwatch": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "platform": platform.platform(),
    }
    return {name: version for name, version in versions_now.items() if version}


def telling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what a training computes, or how fast."""
    names = (name for name in sorted(environment) if not name.endswith(_PLACES))
    return {name: environment[name] for name in names if _TELLING.fullmatch(name)}


def _gathered() -> bool:
    """Whether torch.distributed knows the ranks; some builds of torch come without it."""
    return distributed.is_available() and distributed.is_initialized()


def _launch(environment: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size from the first launcher that set a rank."""
    for rank_key, size_key in _LAUNCHERS:
        own_rank = _number(environment, rank_key)
        if own_rank is not None:
            return own_rank, max(_number(environment, size_key) or 1, own_rank + 1)
    return 0, 1


def _launched(environment: Mapping[str, str]) -> bool:
    """Whether there may be other ranks, so that the run id may not be random."""
    if "RANK" in environment and _number(environment, "WORLD_SIZE") is None:
        return True
    return _launch(environment)[1] > 1


def _number(environment: Mapping[str, str], key: str) -> int | None:
    text = environment.get(key, "").strip()
    return int(text) if text.isdecimal() else None


def _uuid_hex(text: str) -> str | None:
    """The digits of a UUID as launchers draw them; None for any other text."""
    return text.replace("-", "").lower() if re.fullmatch(r"[\da-fA-F-]{32,36}", text) else None


def _script_name(argv: Sequence[str]) -> str:
    """The program's short name: `train.py` is train, `-m pkg` is pkg."""
    path = Path(argv[0] if argv else "")
    if path.stem == "__main__":
        return path.parent.name or "python"
    if path.stem in ("ipykernel_launcher", "colab_kernel_launcher"):
        return "notebook"
    if path.name == "default_worker.py":
        return "ray"
    return path.stem if path.stem.strip("-") and path.stem != "-c" else "python"


def _agree(proposal: str, number: int) -> str:
    """The proposal of the rank that came first, by the store that torch.distributed keeps.

    One round trip, not a collective: a rank that never attaches is not waited for. Empty where the
    backend has no such store.
    """
    try:
        store = store_of_process_group("run")
        agreed = b"" if store is None else store.compare_set(str(number), "", proposal)
    except (AttributeError, RuntimeError, ValueError, NotImplementedError):
        return ""
    return agreed.decode(errors="replace")


# -- where the ranks meet --------------------------------------------------------------------------


class Store(Protocol):
    """What is asked of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read what is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether they are there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and read it."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write if what is there is as expected, nothing if ""; read what is there then."""


@dataclass(slots=True)
class Ranks:
    """This process among those of one training, and where they meet."""

    rank: int
    world_size: int
    meeting: str  # the name of this training's part of the store
    _store: Store | None = None

    def store(self) -> Store | None:
        """Where all ranks write and read; None while the process group is not there."""
        if self._store is None:
            self._store = store_of_process_group(self.meeting)
        return self._store


def store_of_process_group(name: str) -> Store | None:
    """The store in which the training's own ranks met, under a name of ours."""
    if not _gathered():
        return None
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    store: Store = PrefixStore(f"ampwatch/{name}", _get_default_store())
    return store


# -- the launcher ----------------------------------------------------------------------------------


def rendezvous_id(environment: Mapping[str, str]) -> str | None:
    """The rendezvous id, or None where the launcher has none to tell launches apart."""
    given = environment.get(_RENDEZVOUS, "").strip()
    return None if given.lower() in ("", "none") else given


def torchrun_process(environment: Mapping[str, str]) -> str | None:
    """Text that names the torchrun process that started this rank, equal on all of its ranks.

    `torchrun train.py`, run twice on one machine, gives both launches the same address and port
    and the rendezvous id "none"; only the process that launched the ranks differs. None for other
    launchers, for several machines, and where the system has no /proc.
    """
    if _RENDEZVOUS not in environment or environment.get("GROUP_WORLD_SIZE") != "1":
        return None
    process_id = os.getpid()
    for _ in range(_DEEPEST_SHELL):
        process_id, started = _parent(process_id)
        if process_id <= 0:
            return None
        # Shells between torchrun and the script carry the rank's environment as well.
        if not _is_rank(process_id):
            return f"{process_id}@{started}"
    return None


def _parent(process_id: int) -> tuple[int, str]:
    """The parent's process id and start time (in ticks since boot); 0 where it cannot be read."""
    try:
        parent_id = int(_stat(process_id)[1])
        return parent_id, _stat(parent_id)[19]
    except (OSError, ValueError, IndexError):
        return 0, ""


def _stat(process_id: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name, which may hold anything."""
    return (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()


def _is_rank(process_id: int) -> bool:
    """Whether the process was itself started with a rank's environment."""
    try:
        environment = (_PROC / str(process_id) / "environ").read_bytes()
    except OSError:  # another user's process is no shell of ours
        return False
    return f"\0{_RENDEZVOUS}=".encode() in b"\0" + environment


# -- where the run was started from ----------------------------------------------------------------


def origin(argv: Sequence[str], folder: Path) -> dict[str, str]:
    """The working folder, the script, and its commit with whether the code differs from it.

    What is not known is left out.
    """
    found = {"folder": str(folder)}
    script = _script_file(argv, folder)
    if script is not None:
        found["script"] = str(script)
    places = [script.parent] if script is not None else []
    codes = (_code_of(place) for place in [*places, folder])
    return found | next((code for code in codes if code), {})


def _script_file(argv: Sequence[str], folder: Path) -> Path | None:
    path = Path(argv[0]) if argv and argv[0] else None
    if path is None or path.name in _NOT_SCRIPTS:
        return None
    try:
        whole = (folder / path).resolve()
        return whole if whole.is_file() else None
    except (OSError, RuntimeError):  # RuntimeError: a link to itself
        return None


@functools.cache
def _code_of(folder: Path) -> dict[str, str]:
    """The commit of a folder's code; asked once a process, which has loaded the code by then."""
    try:
        top = next((p for p in (folder, *folder.parents) if (p / ".git").exists()), None)
        commit = "" if top is None else _commit(_git_folder(top))
    except OSError:
        return {}
    if top is None or not _COMMIT.fullmatch(commit):
        return {}
    changed = _has_changes(top)
    return {"commit": commit} | ({} if changed is None else {"uncommitted changes": changed})


def _git_folder(top: Path) -> Path:
    """A repository's folder of git's; a worktree and a submodule have a file that names it."""
    named = top / ".git"
    return named if named.is_dir() else top / _text(named).partition("gitdir:")[2].strip()


def _commit(git: Path) -> str:
    """What HEAD stands for, read from git's files: in many containers there is no git."""
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    places = [git, git / _text(shared).strip()] if shared.exists() else [git]
    for place in places:
        if (place / name).is_file():
            return _text(place / name).strip()
    for place in places:
        packed = place / "packed-refs"
        lines = _text(packed).splitlines() if packed.is_file() else []
        commit = next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
        if commit:
            return commit
    return ""


def _has_changes(top: Path) -> str | None:
    """Whether the code differs from its commit, yes or no; None if git cannot tell.

    Files that git does not know do not count.
    """
    command = ("git", "-c", "core.fsmonitor=false", "status", "--porcelain", "-uno")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        asked = subprocess.Popen(
            command, cwd=top, env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    try:
        told, _ = asked.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        asked.kill()
        _let_go(asked)
        return None
    if asked.returncode:
        return None
    return "yes" if told.strip() else "no"


def _let_go(asked: subprocess.Popen[bytes]) -> None:
    """Let go of a git that was killed: it may hang on a disk that never answers."""
    if asked.stdout is not None:
        asked.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked.wait(timeout=_PATIENCE_S)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
