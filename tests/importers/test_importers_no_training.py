"""Texts that are no training: a sentence that says what to do, and never an invented run."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pytest

from ampwatch import open_run
from ampwatch.errors import LogError
from ampwatch.importers import ImportOptions, import_log
from ampwatch.importers.tables import csv_file
from ampwatch.rows import Table

CHANCE = random.Random(7)
LOG = "".join(f"step {n} loss {3 - n / 10}\n" for n in range(20))


def lines(line: Callable[[int], str], count: int = 30) -> str:
    return "".join(line(n) + "\n" for n in range(count))


def png() -> bytes:
    pixels = zlib.compress(b"".join(b"\0" + CHANCE.randbytes(300) for _ in range(100)))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(pixels)) + b"IDAT" + pixels


def pdf() -> bytes:
    page = zlib.compress(b"BT (step 1 loss 2.3) Tj ET" * 200)
    return b"%PDF-1.4\n1 0 obj << /FlateDecode >> stream\n" + page + b"\nendstream\n%%EOF\n"


def zipped() -> bytes:
    with io.BytesIO() as whole:
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train.log", LOG)
        return whole.getvalue()


def tarred() -> bytes:
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            entry = tarfile.TarInfo("train.log")
            entry.size = len(LOG)
            archive.addfile(entry, io.BytesIO(LOG.encode()))
        return whole.getvalue()


FILES = {
    "core dump": lambda: b"\x7fELF\x02\x01\x01" + bytes(300) + CHANCE.randbytes(4000) + bytes(9000),
    "picture": png, "document": pdf, "zip": zipped, "tar": tarred,
}  # fmt: skip
CHAT = """Anna 10:01: did the run survive the night?
Ben 10:02: no, loss went to nan at step 4000 or so
Anna 10:02: what lr?
Ben 10:03: lr 1e-4 then I tried 3e-5, loss 2.3 at step 2000
Anna 10:05: mine was 2.1 at step 2000 with lr 2e-4
Ben 10:08: ok. I will lower it by 2 and restart from step 3500
Anna 10:09: good. my loss 1.9 now at step 5000
"""
TEXTS = {
    "access log": lines(lambda n: f'10.0.0.{n} - - [10/Oct/2023] "GET /epoch/{n}?lr=0.1" 200 {n}'),
    "chat": CHAT,
    "chinese chat": "小红 10:02: 损失在第4000步变成了nan\n小明 10:02: 学习率是多少?\n" * 3,
    "source": "lr = 1e-4\nfor step in range(1000):\n    loss = model(x).loss / 4\nbest = 1e9\n",
    "prices": "id,price,bedrooms\n" + lines(lambda n: f"{n},{200000 + 7 * n},{n % 5}"),
    "claims": "claim_id,loss,region\n" + lines(lambda n: f"{1000 + n},{97 * n % 89}.5,NW"),
    "claims in words": lines(lambda n: f"Claim {1000 + n}: loss {97 * n % 89} EUR"),
    "trades": "trade,symbol,profit,loss\n" + lines(lambda n: f"{n},EURUSD,{n % 7},{n % 5}"),
    "cables": lines(lambda n: f"Fiber {n}: loss 0.2{n} dB, length 12.{n} km"),
    "games": lines(lambda n: f"Round {n}: win {n % 9} draw {n % 5} loss {n % 7}"),
    "diet": lines(lambda n: f"Week {n}: weight {90 - n / 2} kg, loss {n / 2} kg"),
    "gpu": lines(lambda n: f"| N/A   {30 + n}C    P0    {52 + n}W / 400W |   {n}0MiB / 40960MiB |"),
    "pip": lines(lambda n: f"     ━━━━━━━━━ {n * 20}.2/670.2 MB 2.3 MB/s eta 0:00:{30 - n:02d}"),
    "commits": lines(lambda n: f"{n * 7919:07x} Lower lr to 1e-{n % 5}"),
    "models": "| Model | Loss | Accuracy |\n|---|---|---|\n"
    + lines(lambda n: f"| resnet{n} | {2 - n / 50:.2f} | {50 + n} |"),
    "sizes": "| Layers | Loss |\n|---|---|\n" + lines(lambda n: f"| {2 * n} | {4 - n / 20:.3f} |"),
    "seeds": "| seed | lr | loss |\n|---|---|---|\n"
    + lines(lambda n: f"| {n} | 0.00{1 + n % 3} | {2 + n % 5 / 9:.3f} |"),
    "trials": "| trial | lr | final loss |\n|---|---|---|\n"
    + lines(lambda n: f"| {n} | 0.00{1 + n % 3} | {2 + n % 5 / 9:.3f} |"),
    "evaluation": lines(lambda n: f"Evaluating checkpoint {n}000: test loss {3 - n / 10:.2f}"),
    "settings": "lr: 1e-4\nloss_scale: 65536\nsteps: 1000\nepoch: 10\ngrad_norm: 1.0\n",
    "requirements": "torch==2.1.0\nloss-landscapes==3.0.6\nlr-schedule==1.2\n",
    "other json": '{"name": "x", "version": "1.2", "list": [1, 2, 3]}\n',
    "Dockerfile": 'FROM nvidia/cuda:12.1\nENV LR=1e-4 STEPS=1000\nCMD ["train.py", "--lr", "1"]\n',
    "kernel": lines(lambda n: f"[{n * 1.23:12.6f}] CPU{n % 8}: temperature above threshold ({n})"),
    "ping": lines(lambda n: f"64 bytes from 8.8.8.8: icmp_seq={n} ttl=115 time={10 + n % 3}.1 ms")
    + "30 packets transmitted, 30 received, 0% packet loss, time 29043ms\n",
}


def refused(data: bytes, tmp_path, name: str = "file.txt") -> str:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(LogError) as problem:
        import_log(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())
    return str(problem.value)


@pytest.mark.parametrize("made", FILES.values(), ids=FILES)
def test_a_file_that_is_no_text_is_refused_and_told_what_to_pass(made, tmp_path):
    assert "pass the log" in refused(made(), tmp_path)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_of_something_else_is_no_training(text, tmp_path):
    said = refused(text.encode(), tmp_path)
    assert "No training log found" in said or "no column of a loss" in said
    assert "--map loss=" in said


@pytest.mark.parametrize("name", ["claims", "cables", "sizes"])
def test_whoever_names_the_loss_may_read_it_as_one(name, tmp_path):
    path = tmp_path / "file.txt"
    path.write_text(TEXTS[name])
    run = open_run(import_log(path, tmp_path / "runs", ImportOptions(columns={"loss": "loss"})))
    assert run.steps.num_rows == 30


@pytest.mark.parametrize(
    "header", ["loss", ",loss", "i,loss", "index,loss", "time,loss", "mse,loss"]
)
def test_a_table_of_nothing_but_losses_is_one_of_a_training(header, tmp_path):
    assert csv_file.looks_delimited(header) or "," not in header
    cells = header.count(",")
    path = tmp_path / "loss.csv"
    path.write_text(header + "\n" + lines(lambda n: f"{n}," * cells + f"{3 - n / 20}"))
    run = open_run(import_log(path, tmp_path / "runs"))
    found = run.read(Table.STEPS, columns=("loss",)).column(0).to_pylist()
    assert found == [3 - n / 20 for n in range(30)]
