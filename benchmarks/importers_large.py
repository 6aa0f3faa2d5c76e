"""How long the largest and the oddest text logs take to import, beside reading their bytes alone.

    python benchmarks/importers_large.py [--megabytes 2000] [--kind plain ...]

Writes a log of each kind, reads it, imports it in a process of its own, and prints the processor
seconds of both, their ratio, and the peak of resident memory of the import.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from importers import megatron

_BLOCK_LINES = 10_000
MEGABYTE = 1 << 20


def plain(step: int) -> str:
    return f"step {step} | loss {2 + 1 / (1 + step / 1e5):.4f} | lr 1.00e-04 | 12.3 ms\n"


def chatter(line: int) -> str:
    return f"loading shard {line % 977} of the data, {line} rows so far, {line % 13} workers\n"


def blocks(line: Callable[[int], str], begin: int = 1) -> Iterator[bytes]:
    for first in count(begin, _BLOCK_LINES):
        yield "".join(map(line, range(first, first + _BLOCK_LINES))).encode()


def of_size(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    written = 0
    while written < size:
        part = next(parts)
        written += len(part)
        yield part


def of_lines(size: int, line: Callable[[int], str]) -> Iterator[bytes]:
    return of_size(blocks(line), size)


def long_line(size: int) -> Iterator[bytes]:
    """A training with a line of a quarter of the size within it, without any digit."""
    yield from of_size(blocks(plain), MEGABYTE)
    yield from of_size((b"x" * MEGABYTE for _ in count()), size // 4)
    yield b"\n"
    yield from of_size(blocks(plain, 30_001), MEGABYTE)


def no_line_end(size: int) -> Iterator[bytes]:
    """Numbers and names without any line end."""
    for part in of_size(blocks(plain), size // 4):
        yield part.replace(b"\n", b" ")


def late(size: int) -> Iterator[bytes]:
    """A twentieth of something else, and then the training."""
    yield from of_size(blocks(chatter), size // 20)
    yield from of_size(blocks(plain), size // 20)


def nothing(size: int) -> Iterator[bytes]:
    return of_size(blocks(chatter), size // 20)


KINDS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "plain": lambda size: of_lines(size, plain),
    "megatron": lambda size: of_lines(size, megatron),
    "a long line": long_line,
    "no line end": no_line_end,
    "begins late": late,
    "no training": nothing,
}


def one(path: str) -> None:
    """In a process of its own: import, and say what it took."""
    from ampwatch import open_run
    from ampwatch.errors import LogError
    from ampwatch.importers import import_log
    from ampwatch.rows import Table

    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        begin, told = time.process_time(), "no training"
        try:
            run = import_log(path, Path(folder))
        except LogError:
            run = None
        seconds = time.process_time() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if run is not None:
            told = f"{open_run(run).rows_logged(Table.STEPS, 0):,} steps"
    print(json.dumps({"seconds": seconds, "peak": peak, "told": told}))


def seconds_to_read(path: Path) -> float:
    begin = time.process_time()
    lines = 0
    with path.open("rb") as file:
        while data := file.read(4 * MEGABYTE):
            lines += data.count(b"\n")
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--one", metavar="PATH")
    wanted = parser.parse_args()
    if wanted.one:
        one(wanted.one)
        return
    print("| log | size | read | imported | ratio | peak memory | found |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for kind in wanted.kind:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.log"
            with path.open("wb") as file:
                file.writelines(KINDS[kind](wanted.megabytes * MEGABYTE))
            size = path.stat().st_size / MEGABYTE
            read = seconds_to_read(path)
            command = [sys.executable, __file__, "--one", str(path)]
            told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        ratio = told["seconds"] / read
        print(
            f"| {kind} | {size:,.0f} MB | {read:.2f} s | {told['seconds']:.1f} s | {ratio:.0f} | "
            f"{told['peak']:.0f} MB | {told['told']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
