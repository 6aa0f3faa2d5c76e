"""What a rank keeps beside its rows only if that is asked for, by AMPWATCH_KEEP=console,diff.

RUN/rank-N/console.txt has the last lines of the files into which the program's output goes; of a
terminal or a pipe nothing can be copied. RUN/rank-N/uncommitted.diff has what the code holds beyond
its commit. Secrets are replaced before anything is written, and neither file is sent or published.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ampwatch.files import open_regular, read_at_most, replace_file
from ampwatch.store.run_info import masked_lines

CONSOLE_FILE, DIFF_FILE = "console.txt", "uncommitted.diff"
CONSOLE_BYTES, DIFF_BYTES = 32 << 10, 1 << 20
_PATIENCE_S = 10.0  # for git
_OUTPUTS = tuple(Path("/proc/self/fd", number) for number in "12")  # only Linux has them
_GIT_DIFF = (
    "git", "-c", "core.fsmonitor=false", "diff", "HEAD",
    "--no-color", "--no-ext-diff", "--no-textconv",
)  # fmt: skip


def copy_console(
    rank_folder: Path, environment: Mapping[str, str], outputs: Sequence[Path] = _OUTPUTS
) -> None:
    """Copy the last lines of this program's output, as far as it goes into files.

    Where they cannot be read or written, the copy stays as it was.
    """
    files = {(about.st_dev, about.st_ino): path for path, about in _regular(outputs)}
    with contextlib.suppress(OSError):
        texts = [_last_lines(path, CONSOLE_BYTES // len(files)) for path in files.values()]
        _keep(rank_folder / CONSOLE_FILE, "\n".join(filter(None, texts)), environment)


def _keep(path: Path, text: str, environment: Mapping[str, str]) -> None:
    if text.strip():
        replace_file(path, masked_lines(text, environment).encode("utf-8", "replace"))


def _regular(paths: Sequence[Path]) -> list[tuple[Path, os.stat_result]]:
    known = []
    for path in paths:
        try:
            about = path.stat()
        except OSError:  # that output is closed
            continue
        if stat.S_ISREG(about.st_mode):
            known.append((path, about))
    return known


def _last_lines(path: Path, most_bytes: int) -> str:
    """The last whole lines of a file; of a line that was redrawn, as it was last."""
    with open_regular(path) as file:
        start = max(0, os.fstat(file.fileno()).st_size - most_bytes)
        file.seek(start)
        text = file.read(most_bytes).decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").split("\n")[1 if start else 0 :]
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines).strip("\n")


def keep_diff(rank_folder: Path, code_folder: Path, environment: Mapping[str, str]) -> None:
    """Write what the code in a folder holds beyond its commit; nothing where git cannot tell.

    It waits for git, which may hang on a slow disk: call it on a thread that nobody waits for.
    """
    without = {name: text for name, text in environment.items() if not name.startswith("GIT_")}
    try:
        asked = subprocess.Popen(
            _GIT_DIFF, cwd=code_folder, env=without | {"GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return
    impatience = threading.Timer(_PATIENCE_S, asked.kill)
    impatience.daemon = True
    impatience.start()
    with asked:
        assert asked.stdout is not None
        told = asked.stdout.read(DIFF_BYTES)
        asked.kill()  # of a longer one the beginning is enough
    impatience.cancel()
    with contextlib.suppress(OSError):
        _keep(rank_folder / DIFF_FILE, told.decode("utf-8", "replace"), environment)


def read_console(rank_folder: Path) -> str:
    """The last lines of a rank's output; empty where none were kept."""
    return _text(rank_folder / CONSOLE_FILE)


def read_diff(rank_folder: Path) -> str:
    """What a rank's code held beyond its commit; empty where that was not kept."""
    return _text(rank_folder / DIFF_FILE)


def _text(path: Path) -> str:
    try:
        return read_at_most(path, 4 * DIFF_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
