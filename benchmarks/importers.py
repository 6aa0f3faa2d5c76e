"""How long does a large foreign log take to import, and how much memory?

    python benchmarks/importers.py [--megabytes 1000] [--kind KIND ...] [--quick]
    python benchmarks/importers.py --odd [--megabytes 2000]

Writes a log of each kind, imports it in a process of its own, and prints processor seconds, seconds
for 1 GB at that speed, and the peak of resident memory. `--odd` takes the largest and the oddest
text logs, and says what reading their bytes alone takes.
Results: results/importers.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

from parts.children import told_by
from parts.options import command_line
from parts.tables import table
from parts.timing import peak_mb, seconds

BLOCK_LINES = 10_000
MEGABYTE = 1 << 20


def megatron(step: int) -> str:
    return (
        f" [2024-05-01 10:00:{step % 60:02d}] iteration {step:8d}/ 5000000 | consumed samples: "
        f"{step * 512:12d} | elapsed time per iteration (ms): {500 + step % 37}.3 | learning rate: "
        f"{1e-9 * (step % 100000):.6E} | global batch size:   512 | lm loss: "
        f"{2 + 1 / (1 + step / 1e5):.6E} | loss scale: 65536.0 | grad norm: 0.{step % 1000:03d} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def fairseq(step: int) -> str:
    return (
        "[2021-06-01 10:00:00,000][train_inner][INFO] - "
        f'{{"epoch": 1, "update": 0.145, "loss": "{2 + 1 / (1 + step / 1e5):.3f}", "ppl": "30.1", '
        f'"wps": "28000", "num_updates": "{step}", "lr": "{1e-9 * (step % 100000):.6g}", "gnorm": '
        f'"0.{step % 1000:03d}", "loss_scale": "128", "train_wall": "99", "wall": "100"}}\n'
    )


def deepspeed(step: int) -> str:
    """Chatter, an overflow now and then, the counter each hundred steps."""
    if step % 997 == 0:
        return (
            "[2023-03-01 10:00:00,123] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] "
            "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
        )
    if step % 100 == 0:
        return (
            "[2023-03-01 10:00:00,000] [INFO] [logging.py:68:log_dist] [Rank 0] "
            f"step={step}, skipped={step // 997}, lr=[0.0001], mom=[[0.9, 0.999]]\n"
        )
    return (
        f"[2023-03-01 10:00:00,000] [INFO] [data.py:12:load] batch {step} loaded in 12 ms, 8 left\n"
    )


def plain(step: int) -> str:
    return f"step {step} | loss {2 + 1 / (1 + step / 1e5):.4f} | lr 1.00e-04 | 12.3 ms\n"


def chatter(line: int) -> str:
    return f"loading shard {line % 977} of the data, {line} rows so far, {line % 13} workers\n"


# --- logs of a size -------------------------------------------------------------------------------


def blocks(line: Callable[[int], str], begin: int = 1) -> Iterator[bytes]:
    for first in count(begin, BLOCK_LINES):
        yield "".join(map(line, range(first, first + BLOCK_LINES))).encode()


def of_size(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    written = 0
    while written < size:
        part = next(parts)
        written += len(part)
        yield part


def lines(line: Callable[[int], str], size: int) -> Iterator[bytes]:
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


Kinds = dict[str, Callable[[int], Iterator[bytes]]]
USUAL: Kinds = {line.__name__: partial(lines, line) for line in (megatron, fairseq, deepspeed)}
ODD: Kinds = {
    "plain": partial(lines, plain), "megatron": USUAL["megatron"], "a long line": long_line,
    "no line end": no_line_end, "begins late": late, "no training": nothing,
}  # fmt: skip


# --- measuring ------------------------------------------------------------------------------------


def import_one(path: str) -> dict[str, float | int | None]:
    """In a process of its own: import and judge; what it took, and how many steps there were."""
    from ampwatch import diagnose, open_run
    from ampwatch.errors import LogError
    from ampwatch.importers import import_log
    from ampwatch.rows import Table

    with tempfile.TemporaryDirectory(dir=Path(path).parent) as out:
        began_s, steps = time.process_time(), None
        try:
            folder = import_log(path, Path(out))
        except LogError:
            folder = None
        imported_s, peak = time.process_time() - began_s, peak_mb()
        judged_s = 0.0
        if folder is not None:
            run = open_run(folder)
            steps = run.rows_logged(Table.STEPS, 0)
            judged_s = seconds(lambda: diagnose(run), time.process_time)
    return {"seconds": imported_s, "peak_mb": peak, "judging": judged_s, "steps": steps}


def read_bytes(path: Path) -> None:
    with path.open("rb") as file:
        while data := file.read(4 * MEGABYTE):
            data.count(b"\n")


def text_rows(kinds: Kinds, size: int) -> Iterator[tuple[str, ...]]:
    for kind, make in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.log"
            with path.open("wb") as file:
                file.writelines(make(size))
            held, read_s = path.stat().st_size, seconds(partial(read_bytes, path))
            told = told_by(__file__, "--one", path)
        steps = "no training" if told["steps"] is None else f"{told['steps']:,} steps"
        yield (
            kind, f"{held / 1e6:,.0f} MB", f"{read_s:.2f} s", f"{told['seconds']:.1f} s",
            f"{told['seconds'] / held * 1e9:.1f} s", f"{told['peak_mb']:.0f} MB", steps,
        )  # fmt: skip


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--kind", choices=[*USUAL, *ODD], action="append")
    parser.add_argument("--odd", action="store_true", help="the largest and the oddest text logs")
    parser.add_argument("--quick", action="store_true", help="a megabyte")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return print(json.dumps(import_one(options.one)))
    size = 1 if options.quick else options.megabytes
    kinds = ODD if options.odd else USUAL
    kinds = {kind: make for kind, make in kinds.items() if kind in (options.kind or kinds)}
    head = "log | size | read | imported | for 1 GB | peak memory | found"
    return print(table(head, text_rows(kinds, size * MEGABYTE)))


if __name__ == "__main__":
    main()
