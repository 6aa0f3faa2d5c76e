"""Damage to good logs, and anything at all: no exception but ours, no time that explodes."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest
from drawn_examples import IS_THOROUGH
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ampwatch import diagnose, open_run
from ampwatch.diagnosis.findings import Verdict
from ampwatch.errors import AmpwatchError
from ampwatch.importers import FORMATS, import_log
from ampwatch.importers.format import Format
from ampwatch.importers.formats import formats_learned
from ampwatch.importers.line_templates import TIME, learn
from ampwatch.importers.named_numbers import numbers_in, values_of
from ampwatch.importers.statements import Skip, Stats

FOLDER = Path(__file__).parent / "samples"
SAMPLES = sorted(p for p in FOLDER.rglob("*") if p.is_file() and p.suffix != ".json")
SEEDS = range(2 if IS_THOROUGH else 1)


@cache
def content_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def survives(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.csv"
        path.write_bytes(data)
        try:
            run = open_run(import_log(path, Path(folder) / "runs"))
        except AmpwatchError as problem:
            refused: str | None = str(problem)
        else:
            refused, printed = None, json.dumps(diagnose(run).to_json(), allow_nan=False)
    if refused is not None:
        assert refused.endswith((".", "'"))  # a sentence, not a library's message
    else:
        assert json.loads(printed)["verdict"] in list(Verdict)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A good log of which parts are lost, doubled, swapped or overwritten."""
    part = bytearray(data[:40_000])
    for _ in range(chance.randrange(1, 12)):
        at = chance.randrange(max(1, len(part)))
        size = chance.randrange(1, 200)
        kind = chance.randrange(5)
        if kind == 0:
            del part[at : at + size]
        elif kind == 1:
            part[at:at] = part[at : at + size]
        elif kind == 2:
            part[at : at + 3] = chance.randbytes(3)
        elif kind == 3:
            part[at : at + 1] = chance.choice(
                [b"9" * 30, b"nan", b"-", b"e999", b"\n", b"\r", b"{"]
            )
        else:
            part = part[: at + 1]
    return bytes(part)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_damaged_log_is_read_or_refused_and_never_trips(path):
    data = content_of(path)
    for seed in SEEDS:
        survives(damaged(data, random.Random(f"{path.name} {seed}")))


def test_lines_of_all_formats_mixed_are_read():
    chance = random.Random(0)
    texts = [p for p in SAMPLES if p.suffix in (".txt", ".gz")]
    lines = [line for p in texts for line in content_of(p).splitlines()[:20]]
    chance.shuffle(lines)
    survives(b"\n".join(lines))


WORDS = [
    *(anchor for form in FORMATS for anchor in form.anchors), "step", "loss", ":", "=", "|", "[",
    "]", "{", "}", "'", '"', "nan", "inf", "1e-320", "9" * 25, "-1", "0", "65536", "\n", " ", ",",
    "reducing to", "skipped", "Rank 3",
]  # fmt: skip


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(WORDS), max_size=60))
def test_words_of_logs_in_any_order_do_no_harm(words):
    survives(" ".join(words).encode())


@settings(max_examples=settings().max_examples // 2)
@given(st.binary(max_size=3000))
@example(b"PAR1")
def test_any_bytes_do_no_harm(data):
    survives(data)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.source)
@pytest.mark.parametrize("filler", [" ", "0", "a", "[", "1.", "\\", "{'", "e-"])
def test_a_reader_takes_a_long_line_in_its_stride(form, filler):
    """A pattern that backtracks would not come back from 20 kB of this within the suite's limit."""
    for anchor in form.anchors:
        line = anchor + filler * (18_000 // len(filler))
        assert len(list(form.read(line))) < 3
        assert len(list(form.read(filler * 2000 + line))) < 3


def test_a_number_after_its_name_is_looked_for_behind_many_blanks_in_no_time():
    began_s = time.process_time()
    assert not numbers_in("loss" + 18_000 * " ")
    assert time.process_time() - began_s < 1.0
    assert values_of(numbers_in("'loss'  =  '0.5'")) == {"loss": 0.5}


@cache
def readable_lines(path: Path) -> list[tuple[Format, list[bytes]]]:
    """What each format can read of the first lines of a log, of those that can read any."""
    lines = content_of(path).splitlines()[:400]
    read = (
        (form, [line for line in lines if list(form.read(line.decode("utf-8", "replace")))])
        for form in formats_learned(FORMATS, content_of(path), path.name, {})
    )
    return [(form, readable) for form, readable in read if readable]


@settings(max_examples=settings().max_examples // 2)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_learned_shape_reads_what_its_format_reads(path, data):
    """The quick way and the slow way say the same of every line of a log."""
    for form, readable in readable_lines(path):
        first = data.draw(st.sampled_from(readable))
        shape = learn(first, form.read)
        if shape is None:
            continue
        for line in readable:
            if shape.takes(line):
                quick = shape.rows().stats(0)
                (slow,) = form.read(line.decode())
                assert isinstance(slow, Stats)
                assert quick.step == slow.step
                assert quick.window_skips == slow.window_skips
                assert quick.total_skips == slow.total_skips
                for name, value in slow.values.items():
                    assert quick.values[name] == value or (value != value)
                assert quick.values.keys() - {TIME} == slow.values.keys() - {TIME}


WIDE = """(TaskRunner pid=3165) step:{step} - actor/entropy:np.float64({a}) - actor/pg_loss:{b} - \
actor/grad_norm:np.float64({c}) - critic/rewards/mean:{b} - training/global_step:{step}.000 - \
response_length/mean:np.float64({d}) - actor/lr:0.000\n"""


def test_a_wide_line_of_numpy_numbers_is_read_one_by_one_only_until_its_shape_is_learned():
    """The 64 of `float64` is no number of the line, and a count may be printed with a point."""
    chance, read_lines = random.Random(0), []
    texts = [
        WIDE.format(step=step, a=chance.random(), b=round(chance.random(), 3), c=chance.random(),
                    d=float(chance.randrange(99)))
        for step in range(400)
    ]  # fmt: skip
    (own,) = formats_learned([form for form in FORMATS if form.is_last_resort],
                             "".join(texts).encode(), "out.log", {})  # fmt: skip

    def read(text):
        read_lines.append(text)
        return own.read(text)

    shape = learn(texts[0].rstrip("\n").encode(), read)
    assert shape is not None
    assert len(read_lines) < 100
    for step, text in enumerate(texts):
        assert shape.takes(text.rstrip("\n").encode()), step
    rows = shape.rows()
    for step, text in enumerate(texts):
        (slow,) = own.read(text)
        assert (rows.stats(step).step, rows.stats(step).values) == (slow.step, slow.values)


def test_the_same_events_are_told_whoever_prints_them():
    """One skip as each format prints it: nothing but a skip comes out."""
    lines = {
        "apex": "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1024.0",
        "mindyolo": "overflow, drop step, loss scale adjust to 1024.0",
        "parlai": "[ Overflow: setting loss scale to 1024.0 ]",
        "fairseq": "NOTE: overflow detected, setting loss scale to: 1024.0",
        "deepspeed": "[deepspeed] OVERFLOW! Skipping step. Attempted loss scale: 2048.0, reducing "
        "to 1024.0",
        "nvfp16": "OVERFLOW! Skipping step. Attempted loss scale: 2048.0, reducing to 1024.0",
    }
    for form in FORMATS:
        if form.source in lines:
            (said,) = form.read(lines[form.source])
            assert isinstance(said, Skip)
            assert said.scale_after == 1024.0
