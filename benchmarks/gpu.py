"""Ten minutes on one card: does ampwatch work there, and what does it cost?

python benchmarks/gpu.py                       writes results/gpu.md; needs a CUDA device
python benchmarks/gpu.py --rehearse FOLDER     the same on the CPU, small; writes FOLDER/gpu.md

In this order, each part within its minutes, and a part that fails leaves the others:

- the tests marked `gpu`; Transformer Engine is in them
- what NVML says, beside nvidia-smi
- a 12-layer transformer (100 M parameters on a card) in fp32, under autocast, and with a scaler
- what the default settings add to its step, and how often they make it wait for the card
- fp16, bf16 and fp8 layers, sampled at every step; beside what the watch says that fp8 flushed, a
  cast by torch of the same tensor

Exits 1 if something is not as it should be. A rehearsal emulates fp8 and judges no time.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import logging
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree as ET

import torch
from overhead import Bare, Watched, prepare
from overhead_training import Training, transformer
from parts.machine import ROOT, commit, machine
from parts.options import command_line
from parts.tables import table
from torch import Tensor, nn

import ampwatch
from ampwatch.probe.devices import DeviceSampler, NvmlReader

MOST_ADDED = 0.01  # of a step
TESTS_S, OVERHEAD_S = 240, 150
QUERY = "memory.total,memory.used,utilization.gpu,power.draw,temperature.gpu"
PASSED = ("passed", "")
E4M3 = torch.float8_e4m3fn


class Here:
    """Where it is measured, how large, and what was not as it should be."""

    def __init__(self, *, card: bool) -> None:
        self.card = card
        self.device = "cuda" if card else "cpu"
        self.steps, self.rounds = (50, 20) if card else (10, 2)
        self.width, self.rows, self.layers = (1024, 4096, 12) if card else (64, 32, 2)
        self.wrong: list[str] = []

    def check(self, holds: bool, what: str) -> str:
        """The verdict, which is remembered if it is a bad one."""
        if not holds:
            self.wrong.append(what)
        return "as it should be" if holds else f"**wrong**: {what}"

    def finish(self) -> None:
        """The device's queue is empty."""
        if self.card:
            torch.cuda.synchronize()

    def transformer(self, *, half: bool = True, scaled: bool = True) -> Training:
        torch.manual_seed(0)
        return transformer(self.device, self.steps, half=half, scaled=scaled)


def steps_ms(here: Here, step: Callable[[], None], steps: int) -> float:
    """Milliseconds a step, warmed up, the device's queue empty before and after."""
    for _ in range(max(2, steps // 2)):
        step()
    here.finish()
    began_s = time.perf_counter()
    for _ in range(steps):
        step()
    here.finish()
    return (time.perf_counter() - began_s) * 1e3 / steps


# --- the parts ------------------------------------------------------------------------------------


def gpu_tests(here: Here) -> str:
    """The tests marked `gpu`, in a process of their own."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(path) for path in paths if "mark.gpu" in path.read_text(encoding="utf-8")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider",
                   f"--junitxml={report}", *files[: None if here.card else 2]]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if name != "AMPWATCH_DIR"}
        subprocess.run(command, cwd=ROOT, env=environment, timeout=TESTS_S, check=False,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        cases = list(ET.parse(report).iter("testcase"))
    fates = collections.Counter(map(fate_of, cases))
    failed = sum(count for (fate, _), count in fates.items() if fate in ("failure", "error"))
    good = fates[PASSED] > 0 or not here.card
    verdict = here.check(good and not failed, f"{failed} of {len(cases)} gpu tests failed")
    rows = ((count, *fate) for fate, count in fates.items() if fate != PASSED)
    return f"{len(cases)} tests, {fates[PASSED]} passed, {failed} failed: {verdict}.\n\n" + table(
        "tests | not passed | why", rows
    )


def fate_of(case: ET.Element) -> tuple[str, str]:
    """Whether a test passed; of one that failed its name, too."""
    for part in case:
        if part.tag in ("skipped", "failure", "error"):
            why = (part.get("message") or "").splitlines()[0][:160].replace("|", "/")
            return part.tag, why if part.tag == "skipped" else f"`{case.get('name')}`: {why}"
    return PASSED


def nvml(here: Here) -> str:
    """What a row of `devices` says, beside nvidia-smi."""
    reader = NvmlReader(wait_s=5.0)
    held = torch.zeros(64 << 20, dtype=torch.uint8, device=here.device)
    row = DeviceSampler([held.device], reader).rows(time.time_ns())[0]
    reader.close()
    shown = {name: value for name, value in dataclasses.asdict(row).items() if value is not None}
    if here.card:
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-i", "0"]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        truth = dict(zip(QUERY.split(","), words.strip().split(", "), strict=True))
        close = abs((row.total_bytes or 0) / 2**20 / float(truth["memory.total"]) - 1) < 0.02
        said = f"nvidia-smi says {truth}: " + here.check(close, "NVML's memory is not nvidia-smi's")
    else:
        said = "No card to ask."
    return table("column | value", shown.items()) + f"\n\n{said}"


def three_ways(here: Here) -> str:
    """Speed and memory in fp32, under autocast alone, and under autocast with a scaler."""
    rows = []
    for name, half, scaled in (
        ("fp32", False, False), ("autocast alone", True, False), ("autocast, scaler", True, True),
    ):  # fmt: skip
        training = here.transformer(half=half, scaled=scaled)
        ms = steps_ms(here, training.step, here.steps)
        rows.append((name, f"{ms:.2f}", f"{len(training.inputs) * 1e3 / ms:.1f}",
                     f"{memory_mb(here, training.step):.1f}"))  # fmt: skip
        del training
        gc.collect()
    return table("transformer | ms a step | samples/s | MB at the peak of a step", rows)


def memory_mb(here: Here, step: Callable[[], None]) -> float:
    """The allocator's peak; a CPU's counts none."""
    if here.card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() / 1e6
    return math.nan


def overhead(here: Here) -> str:
    """What the default settings add to a step, in turns with the bare loop; who waits."""
    training = here.transformer()
    parameters = sum(p.numel() for p in training.model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        bare, watch = Bare(), Watched("default", Path(folder))
        pairs: list[list[float]] = []
        began_s = time.monotonic()
        while len(pairs) < here.rounds and time.monotonic() - began_s < OVERHEAD_S:
            pairs.append([])
            for who in (bare, watch):
                who.begin(training)
                pairs[-1].append(steps_ms(here, training.step, here.steps))
                who.end()
        waits = [count_waits(here, training, who) for who in (bare, watch)]
    ms = median(pair[0] for pair in pairs)
    shares = sorted(with_us / alone - 1 for alone, with_us in pairs)
    added = here.check(
        not here.card or median(shares) <= MOST_ADDED, f"more than {MOST_ADDED:.0%} of a step"
    )
    waited = here.check(waits[0][0] == waits[1][0], "the watch makes the training wait")
    return (
        f"{parameters:,} parameters, {len(pairs)} rounds of {here.steps} steps each way. "
        f"A bare step takes {ms:.2f} ms.\n\n- Added, median of the rounds: {median(shares):.2%} "
        f"(from {shares[0]:.2%} to {shares[-1]:.2%}){f': {added}' if here.card else ''}.\n"
        f"- Synchronisations in {here.steps} steps, on the training thread: bare {waits[0][0]} "
        f"(torch's scaler makes one a step), watched {waits[1][0]}: {waited}. "
        f"On ours: {waits[1][1]}."
    )


def count_waits(here: Here, training: Training, who: Bare) -> tuple[int, int]:
    """Waits for the device on the training thread, by torch's own count, and on others."""
    threads: list[bool] = []
    who.begin(training)
    steps_ms(here, training.step, 6)  # kernels are loaded, which may wait
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: (
            threads.append(threading.current_thread() is threading.main_thread())
            if "synchroniz" in str(message)
            else None
        )
        if here.card:
            torch.cuda.set_sync_debug_mode("warn")
        for _ in range(here.steps):
            training.step()
        if here.card:
            torch.cuda.set_sync_debug_mode("default")
    who.end()
    return sum(threads), len(threads) - sum(threads)


# --- below sixteen bits ---------------------------------------------------------------------------


class Plain(nn.Module):
    """Linear layers with something between them, as in a transformer's feed-forward part."""

    def __init__(self, here: Here) -> None:
        super().__init__()
        layers = [nn.Linear(here.width, here.width, bias=False) for _ in range(here.layers)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def low_precision(here: Here) -> str:
    """The kernel itself, and trainings whose layers the watch looks at in every step."""
    rows = [training_row(here, form) for form in ("fp16", "bf16", "fp8")]
    costs = table("layers | formats recorded | ms a step | sampled at every step, added µs a layer "
                  "| inputs flushed by fp8: recorded, by torch", rows)  # fmt: skip
    return "\n\n".join([scaled_mm(here), costs])


def scaled_mm(here: Here) -> str:
    """torch's fp8 product beside the bf16 one."""
    capability = torch.cuda.get_device_capability() if here.card else None
    if capability is not None and capability < (8, 9):
        return f"`torch._scaled_mm` needs capability 8.9; this card has {capability}."
    a, b = (torch.randn(here.width, here.width, device=here.device) for _ in range(2))
    one = torch.ones((), device=here.device)
    narrow, columns, truth = a.to(E4M3), b.to(E4M3).t(), a @ b.t()
    wide = a.bfloat16(), b.bfloat16().t()

    def product() -> Tensor:
        return torch._scaled_mm(narrow, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    error = ((product().float() - truth).norm() / truth.norm()).item()
    us = [1e3 * steps_ms(here, work, here.steps) for work in (product, lambda: wide[0] @ wide[1])]
    good = here.check(0.001 < error < 0.1, "the fp8 product's error")
    return (
        f"`torch._scaled_mm`, {here.width}³: {us[0]:.0f} µs, in bf16 {us[1]:.0f} µs; "
        f"relative error {error:.3f} ({good})."
    )


def training_row(here: Here, form: str) -> tuple[str, ...]:
    """One way to train: the formats that the watch records, its price, and whether it is right."""
    torch.manual_seed(0)
    model: nn.Module = Plain(here).to(here.device)
    if form != "fp16":
        model = model.bfloat16()
    if form == "fp8":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name("tensorwise")
        config = dataclasses.replace(config, emulate=not here.card)
        model = convert_to_float8_training(model, config=config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(here.rows, here.width, device=here.device)
    x[:, 0] *= 3e4  # a channel for which fp8 with one scale flushes the others
    x = x if form == "fp16" else x.bfloat16()

    def step() -> None:
        with torch.autocast(here.device, torch.float16, enabled=form == "fp16"):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    bare_ms = steps_ms(here, step, here.steps)
    with tempfile.TemporaryDirectory() as folder:
        with ampwatch.attach(
            None, model, optimizer=optimizer, log_dir=folder, endpoint="off", layer_every=1
        ) as watch:
            watched_ms = steps_ms(here, step, here.steps)
        layers = ampwatch.open_run(watch.run_folder).layers.to_pylist()
    first = [row for row in layers if row["layer"] == "layers.0" and row["act_amax"] is not None]
    formats = "/".join(first[-1][f"{role}_format"] or "" for role in ("input", "weight", "grad"))
    shares = flushed_shares(here, x, first[-1]) if form == "fp8" else ""
    us = 1e3 * (watched_ms - bare_ms) / here.layers
    return form, formats.strip("/") or form, f"{bare_ms:.2f}", f"{us:.0f}", shares


def flushed_shares(here: Here, x: Tensor, row: dict[str, Any]) -> str:
    """What the watch recorded of the first layer's input, and a cast of all of it by torch."""
    amax = x.abs().amax().double()
    cast = (x.float() * (torch.finfo(E4M3).max / amax).float()).to(E4M3).float()
    truth = ((cast == 0) & (x != 0)).sum().item() / (x != 0).sum().item()
    told = row["input_flushed_share"]
    # The watch looks at 65,536 values at most, so its share has an error of chance.
    close = told is not None and abs(told - truth) < (0.001 if x.numel() <= 65_536 else 0.02)
    told_words = "nothing" if told is None else f"{told:.4f}"
    return f"{told_words}, {truth:.4f}: {here.check(close, 'the flushed share')}"


# --- the page -------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Here], str]] = {
    "The tests that need a card": gpu_tests,
    "NVML": nvml,
    "fp32, autocast, scaler": three_ways,
    "What the watch adds": overhead,
    "Below sixteen bits": low_precision,
}


def ran_on(here: Here) -> str:
    """The card, its driver and the versions."""
    words = machine("torch", "torchao", "transformer-engine", "nvidia-ml-py")
    if not here.card:
        return f"**A rehearsal on a CPU: no figure here is of a card.** {words}"
    facts = torch.cuda.get_device_properties(0)
    return (
        f"{facts.name}, capability {facts.major}.{facts.minor}, {facts.total_memory / 2**30:.0f} "
        f"GiB, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}. {words}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    rehearsed: Path | None = options.rehearse
    if rehearsed is None and not torch.cuda.is_available():
        print(
            "no CUDA device is here; --rehearse FOLDER does the same on the CPU.", file=sys.stderr
        )
        return 2
    here = Here(card=rehearsed is None)
    if not here.card:
        torch.set_num_threads(1)
    out = (rehearsed or ROOT / "benchmarks" / "results") / "gpu.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    os.environ["AMPWATCH_QUIET"] = "1"
    began_s, sections = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        for title, part in PARTS.items():
            print(f"{title} ...", flush=True)
            try:
                text = part(here)
            except Exception as error:  # the other parts are worth the card's minutes
                text = here.check(False, f"{title}: {type(error).__name__}: {error}")
            sections.append(f"## {title}\n\n{text}")
            out.write_text("\n\n".join([head(here, began_s), *sections]) + "\n", encoding="utf-8")
    print(out.read_text(encoding="utf-8"))
    return 1 if here.wrong else 0


def head(here: Here, began_s: float) -> str:
    """What was measured, on what, and whether all is as it should be."""
    verdict = "; ".join(here.wrong) or "nothing"
    return (
        f"# On a card\n\nMade by `python benchmarks/gpu.py` at commit `{commit()}` in "
        f"{time.monotonic() - began_s:.0f} s. {ran_on(here)}\n\nNot as it should be: {verdict}."
    )


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--rehearse", type=Path, metavar="FOLDER", help="on the CPU, small")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
