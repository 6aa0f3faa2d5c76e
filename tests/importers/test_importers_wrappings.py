"""A log is read whatever it arrived in; the same log without its wrapping is the truth."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from ampwatch import open_run
from ampwatch.importers import import_log
from ampwatch.importers.log_file import unwrapped
from ampwatch.rows import Table

LINES = [
    "loading the data",
    *(
        line
        for n in range(1, 9)
        for line in (f"Epoch {n}/8", f"  loss: {2 + math.exp(-n):.4f}  lr: {1e-4 * n:.2e}")
    ),
    "done, the best is saved",
]
TEXT = "\n".join(LINES) + "\n"


def columns_of(content: bytes, folder, name: str):
    path = folder / name
    path.write_bytes(content)
    run = open_run(import_log(path, folder / f"runs-{name}"))
    return run.read(Table.STEPS, columns=("step", "loss", "lr")).to_pydict()


def notebook(text: str, kind: str) -> str:
    outputs = {
        "stream": {"output_type": "stream", "name": "stdout", "text": text.splitlines(True)},
        "result": {"output_type": "display_data", "data": {"text/plain": [text]}},
    }
    cell = {"cell_type": "code", "source": ["train()"], "outputs": [outputs[kind]]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}, indent=1)


RANKS = {
    "mpirun": "[1,{rank}]<stdout>:",
    "srun": "{rank:2d}: ",
    "torchrun": "[default{rank}]:",
    "torch": "[rank{rank}]: ",
    "hosts": "gpu-node-{rank}: ",
    "pdsh": "192.168.50.{rank}: ",
    "Ray": "(RayTrainWorker pid={rank}77, ip=10.0.0.1) ",
    "Ray's short form": "(pid={rank}77) ",
    "kubectl": "[pod/train-worker-{rank}/pytorch] ",
    "compose": "worker_{rank}  | ",
}


def of_ranks(mark: str, count: int) -> str:
    """The log as several ranks print it, each with losses of its own, in no certain order."""
    chance = random.Random(7)
    text = []
    for line in LINES:
        told = [
            mark.format(rank=rank)
            + re.sub(r"loss: ([\d.]+)", lambda m, r=rank: f"loss: {float(m[1]) + r / 9:.4f}", line)
            for rank in range(count)
        ]
        text += chance.sample(told, count)
    return "\n".join(text) + "\n"


WRAPPED = {
    **{f"{name}, four ranks": of_ranks(mark, 4) for name, mark in RANKS.items()},
    **{f"{name}, one rank": of_ranks(RANKS[name], 1) for name in ("mpirun", "torch", "Ray")},
    "mail": "".join(f"> {line}\n" for line in LINES),
    "mail in a mail": "".join(f"> > {line}\n" for line in LINES),
    "line numbers": "".join(f"{at:4d}  {line}\n" for at, line in enumerate(LINES, 1)),
    "numbers from the middle": "".join(f"{at}: {line}\n" for at, line in enumerate(LINES, 207)),
    "notebook": notebook(TEXT, "stream"),
    "notebook's result": notebook(TEXT, "result"),
    "a notebook's lines": "".join(f"    {json.dumps(line + chr(10))},\n" for line in LINES),
    "markdown": f"```\n{TEXT}```\n",
    "windows": TEXT.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapped_log_is_the_log(text, tmp_path):
    plain = columns_of(TEXT.encode(), tmp_path, "plain.log")
    assert plain["step"] == list(range(1, 9))
    assert columns_of(text.encode(), tmp_path, "wrapped.log") == plain


def test_a_notebooks_table_is_read_by_its_header(tmp_path):
    rows = "".join(f"<tr><td>{100 * n}</td><td>{2.5 - n / 8}</td></tr>\n" for n in range(1, 6))
    head = "<thead><tr><th>Step</th><th>Training Loss</th></tr></thead>"
    data = {"text/html": [f"<table>{head}<tbody>{rows}</tbody></table>"], "text/plain": ["<HTML>"]}
    cell = {"cell_type": "code", "outputs": [{"output_type": "display_data", "data": data}]}
    text = json.dumps({"cells": [cell], "nbformat": 4})
    found = columns_of(text.encode(), tmp_path, "train.ipynb")
    assert found["step"] == [100, 200, 300, 400, 500]
    assert found["loss"] == pytest.approx([2.5 - n / 8 for n in range(1, 6)])


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "".join(f"{n} {2.5 - n / 99:.3f}\n" for n in range(1, 30)),  # its own numbers count
        "".join(f"{n}: loss {2.5 - n / 99:.3f}, lr 0.1\n" for n in range(1, 30)),
        '{"step": 1, "loss": 2.5}\n' * 9,
        "a > b\nstep 1 loss 2.0\n> quoted once\nstep 2 loss 1.9\n",
    ],
)
def test_a_log_without_a_wrapping_stays_as_it_is(text):
    assert unwrapped(text) is None


def test_what_only_one_rank_prints_is_kept_whichever_it_is(tmp_path):
    """Megatron's last rank prints the loss, DeepSpeed's first one the overflows."""
    line = (
        "[default7]: iteration {n:8d}/ 50000 | consumed samples: 512 | learning rate: 1.0E-04 | "
        "lm loss: {loss:.6E} | loss scale: 65536.0 | grad norm: 0.500 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
    text = "".join(
        "".join(f"[default{rank}]:step {n} done, {n / 7:.2f} GB\n" for rank in range(8))
        + line.format(n=n, loss=2 + 1 / n)
        for n in range(1, 20)
    )
    found = columns_of(text.encode(), tmp_path, "ranks.log")
    assert found["step"] == list(range(1, 20))
    assert found["loss"] == pytest.approx([2 + 1 / n for n in range(1, 20)], rel=1e-5)


@pytest.mark.parametrize("mark", ["{n}: ", "Epoch {n}: ", "[Epoch {n}]: ", "epoch-{n}: "])
def test_a_counter_before_a_line_is_no_rank(mark, tmp_path):
    """Three trainings of four epochs look like four ranks."""
    text = "".join(f"{mark.format(n=n)}train loss {3 - n / 10:.4f} acc 0.5\n" for n in range(4))
    assert unwrapped(text * 3) is None
