"""Where a run was started from: folder, script, and the commit of its code."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Asking git cost 40 to 110 ms in a repository of 1,000 files; on a slow disk it may cost anything.
_PATIENCE_S = 2.0
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_MOST_BYTES = 1 << 22  # of a file of git's
_NOT_SCRIPTS = ("-c", "-m", "ipykernel_launcher.py", "colab_kernel_launcher.py")


def origin(argv: Sequence[str], folder: Path) -> dict[str, str]:
    """The working folder, the script, and its commit with whether the code differs from it.

    What is not known is left out.
    """
    found = {"folder": str(folder)}
    script = _script(argv, folder)
    if script is not None:
        found["script"] = str(script)
    places = [script.parent] if script is not None else []
    known = (_code_of(place) for place in [*places, folder])
    return found | next((code for code in known if code), {})


def _script(argv: Sequence[str], folder: Path) -> Path | None:
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
    """Its folder of git's; a worktree and a submodule have a file that names it."""
    named = top / ".git"
    if named.is_dir():
        return named
    return top / _text(named).partition("gitdir:")[2].strip()


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
        found = next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
        if found:
            return found
    return ""


def _has_changes(top: Path) -> str | None:
    """Yes or no; None if git cannot tell. Files that git does not know do not count."""
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
    """Of one that was killed: it may hang on a disk that never answers."""
    if asked.stdout is not None:
        asked.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked.wait(timeout=_PATIENCE_S)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
