"""Logs whose shape changes, that begin late or among other lines, and that come in any pieces."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampwatch import open_run
from ampwatch.importers import ImportOptions, TextImport, import_log
from ampwatch.importers.import_options import fresh_info
from ampwatch.rows import Table
from ampwatch.store import create_run

COUNT = 60
LOSSES = [round(2 + math.exp(-n / 20), 4) for n in range(COUNT)]
MEGATRON = (
    " iteration {n:8d}/ 50000 | consumed samples: 512 | elapsed time per iteration (ms): 500.3 | "
    "learning rate: 1.0E-04 | global batch size:   512 | lm loss: {l:.6E} | loss scale: 65536.0 | "
    "grad norm: 0.500 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
STEP = "step {n} | loss {l:.4f} | lr 1e-4\n"
UNKNOWN = "nupdates: {n} koleo-loss: {l:.4f}\n"
BLOCK = ">> step {n}\n   loss {l:.4f}\n   lr: 1e-4\n"
UNNUMBERED = "train-loss: {l:.4f}\n"
ROW = "| {n} | {l:.4f} |\n"
HEADER = "| step | loss |\n|------|------|\n"


def lines_of(line: str, begin: int = 0, end: int = COUNT) -> str:
    return "".join(line.format(n=n, l=LOSSES[n]) for n in range(begin, end))


def steps_of(run) -> list[tuple[int, float]]:
    found = run.read(Table.STEPS, columns=("step", "loss")).to_pydict()
    pairs = zip(found["step"], found["loss"], strict=True)
    return [(step, round(loss, 4)) for step, loss in pairs if loss is not None]


def imported(text: str, tmp_path) -> list[tuple[int, float]]:
    path = tmp_path / "train.log"
    path.write_text(text)
    return steps_of(open_run(import_log(path, tmp_path / "runs")))


WHOLE = list(enumerate(LOSSES))
CHANGES = {
    "a framework after a loop": (STEP, MEGATRON),
    "another framework": ("iter {n}: loss {l:.4f}, time 12.00ms, mfu 3.1%\n", MEGATRON),
    "a column more": (STEP, "step {n} | loss {l:.4f} | gnorm 1.5 | lr 1e-4\n"),
    "another name": ("step {n} loss {l:.4f}\n", "iter {n} loss {l:.4f}\n"),
    "another unknown name": (UNKNOWN, "ticks: {n} koleo-loss: {l:.4f}\n"),
}


@pytest.mark.parametrize(("first", "second"), CHANGES.values(), ids=CHANGES)
def test_a_log_that_changes_its_shape_is_read_on(first, second, tmp_path):
    text = lines_of(first, 0, 30) + lines_of(second, 30)
    assert imported(text, tmp_path) == WHOLE


def test_a_table_that_gets_wider_is_read_on(tmp_path):
    wider = "| step | loss | gnorm |\n|---|---|---|\n" + lines_of("| {n} | {l:.4f} | 1.5 |\n", 30)
    assert imported(HEADER + lines_of(ROW, 0, 30) + wider, tmp_path) == WHOLE


LATE = {"words": STEP, "no words": UNKNOWN, "blocks": BLOCK, "unnumbered": UNNUMBERED}


@pytest.mark.parametrize("line", LATE.values(), ids=LATE)
def test_a_training_is_found_however_much_else_comes_before_it(line, tmp_path):
    before = "".join(f"loading shard {n % 97} of {n} rows\n" for n in range(12_000))
    assert imported(before + lines_of(line), tmp_path) == WHOLE


def test_a_table_is_found_however_much_else_comes_before_it(tmp_path):
    before = "".join(f"loading shard {n % 97} of {n} rows\n" for n in range(5000))
    assert imported(before + HEADER + lines_of(ROW), tmp_path) == WHOLE


@pytest.mark.parametrize("line", [STEP, UNKNOWN, BLOCK, MEGATRON])
def test_a_training_is_read_among_two_hundred_other_kinds_of_line(line, tmp_path):
    chance = random.Random(3)
    words = ["".join(chance.choices("abcdefghijkmo", k=6)) for _ in range(200)]

    def other() -> str:
        at = chance.randrange(197)
        number = chance.randrange(10**5)
        return f"[{words[at]}] {words[at + 1]}={number % 17} {words[at + 2]}: {number / 3:.2f}\n"

    text = "".join(
        "".join(other() for _ in range(40)) + lines_of(line, at, at + 1) for at in range(COUNT)
    )
    assert imported(text, tmp_path) == WHOLE


def test_other_lines_cost_no_more_than_those_of_a_training(tmp_path):
    """A log of other things, as many bytes: once each of its lines was joined with the next."""
    sizes = {"train": STEP, "other": "loading shard {n} of the data, {l:.4f} rows, 12 workers\n"}
    took = {}
    for name, line in sizes.items():
        text = "".join(line.format(n=n, l=2 + 1 / (n + 1)) for n in range(12_000))
        begin = time.process_time()
        imported(text + lines_of(STEP), tmp_path)
        took[name] = time.process_time() - begin
    assert took["other"] < 10 * took["train"] + 1


SHAPES = {
    "words": lines_of(STEP), "no words": lines_of(UNKNOWN), "blocks": lines_of(BLOCK),
    "unnumbered": lines_of(UNNUMBERED), "a framework": lines_of(MEGATRON),
    "a table": HEADER + lines_of(ROW), "tabs": "Step\tLoss\n" + lines_of("{n}\t{l:.4f}\n"),
    "late": "".join(f"loading {n} files\n" for n in range(50)) + lines_of(STEP),
    "carriage returns": lines_of(STEP).replace("\n", "\r\n"),
}  # fmt: skip


@settings(
    max_examples=max(settings().max_examples // 4, 5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(sorted(SHAPES)), st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_a_log_in_pieces_is_the_log(tmp_path_factory, shape, sizes):
    """Whatever bytes a growing log is cut at, it becomes the run of the whole one."""
    data = SHAPES[shape].encode()
    folder = tmp_path_factory.mktemp("pieces")
    info = fresh_info("train.log", ImportOptions())
    run = create_run(folder, info)
    pieces = TextImport(run, info, ImportOptions())
    at = 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        pieces.feed(data[at : at + size])
        at += size
    pieces.finish()
    pieces.describe()
    pieces.close()
    assert steps_of(open_run(run)) == WHOLE


@pytest.mark.parametrize(("text", "are_epochs"), [
    ("".join(f"Epoch {n}: train loss {2 - n / 9:.4f}\n" for n in range(1, 8)), True),
    ("epoch,loss\n" + "".join(f"{n},{2 - n / 9:.4f}\n" for n in range(1, 8)), True),
    ("step,loss\n" + "".join(f"{n},{2 - n / 9:.4f}\n" for n in range(1, 8)), False),
    ("".join(f"step {n}: loss {2 - n / 9:.4f}\n" for n in range(1, 8)), False),
    ("Epoch 1: train loss 1.9\n" + "".join(f"step {n}: loss 1.{n}\n" for n in range(2, 8)), False),
    ("".join(f"Epoch {1 + n // 4} step {n}: loss {2 - n / 9:.4f}\n" for n in range(1, 8)), False),
])  # fmt: skip
def test_a_run_whose_steps_are_epochs_says_so(text, are_epochs, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(text)
    run = open_run(import_log(path, tmp_path / "runs"))
    assert run.read(Table.STEPS, ["step"]).column("step").to_pylist() == list(range(1, 8))
    assert ("epochs" in run.info.marks.get("step", ())) == are_epochs
