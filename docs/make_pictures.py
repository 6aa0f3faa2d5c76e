"""Make docs/pictures/*.svg, from trainings that run here: what loss scaling is, and a report.

python docs/make_pictures.py (some two minutes on a CPU)
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "demo")]

import charmodel  # noqa: E402

import ampwatch  # noqa: E402
from ampwatch.cli.demo import SCENARIOS, free_path, train  # noqa: E402

PICTURES = Path(__file__).parent / "pictures"
QUICKSTART = Path(__file__).parent / "quickstart.md"
WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 40, 40
INK, PALE, LINE, BAD = "#444444", "#dddddd", "#2a6fbb", "#c62828"
FORMATS = {  # the smallest number above zero, the smallest with all its digits, the largest
    "fp16": (-24, -14, 15.999),
    "bf16": (-133, -126, 127.99),
    "fp32": (-149, -126, 128),
}
# A report fits a phone if its lines are no longer than this.
REPORT_COLUMNS, REPORT_LETTER, REPORT_LINE = 50, 9.2, 21
# What begins a part of a report, in order: docs/reading_a_report.md explains the parts by number.
REPORT_PARTS = ("FAILING", "Learning rate", "What to do", "What happened", "How sure", "Also")


def main() -> None:
    """Train, draw, write."""
    PICTURES.mkdir(exist_ok=True)
    octaves = gradient_octaves()
    (PICTURES / "number_range.svg").write_text(number_range(octaves), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        collapse = train(SCENARIOS[0], free_path(SCENARIOS[0], Path(folder)), seed=1)
        curves = {
            "search": scales_of(watched(Path(folder) / "search", 2.0**30, 2000, 60)),
            "healthy": scales_of(watched(Path(folder) / "healthy", 2.0**16, 100, 1000)),
            "collapse": scales_of(collapse),
        }
    titles = {
        "search": "At the start: the first steps are skipped until the scale fits",
        "healthy": "Healthy: the scale grows, is once too high, and is halved",
        "collapse": "Collapse: steps overflow whatever the scale",
    }
    for name, curve in curves.items():
        (PICTURES / f"scale_{name}.svg").write_text(scale_chart(titles[name], curve), "utf-8")
    (PICTURES / "report_numbered.svg").write_text(numbered_report(quickstart_report()), "utf-8")


@dataclass(frozen=True)
class Curve:
    """A run's loss scale by step, and the steps that were skipped."""

    scales: Sequence[float]
    skipped: Sequence[int]


def watched(folder: Path, init_scale: float, growth_interval: int, steps: int) -> Path:
    """Train the demo's model with a learning rate that suits it, under a watch."""
    torch.manual_seed(0)
    device = charmodel.device()
    model = charmodel.CharacterModel().to(device)
    batches = charmodel.Batches(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=init_scale, growth_interval=growth_interval)
    with ampwatch.attach(scaler, model, log_dir=folder, endpoint=None, run="run"):
        for _ in range(steps):
            x, y = batches.next(device)
            with torch.autocast(device, torch.float16):
                loss = charmodel.loss_of(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return folder / "run"


def scales_of(path: Path) -> Curve:
    """The loss scale of each step, as the run has it."""
    steps = ampwatch.open_run(path).steps.to_pydict()
    skipped = [step for step, was in zip(steps["step"], steps["skipped"], strict=True) if was]
    return Curve(steps["scale"], skipped)


def gradient_octaves() -> dict[int, float]:
    """Which share of the gradients that reach a small model's layers lies in each octave.

    In float32, after 100 steps; these are the numbers that autocast computes in fp16.
    """
    torch.manual_seed(0)
    model, batches = charmodel.CharacterModel(), charmodel.Batches(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arrived: list[torch.Tensor] = []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_full_backward_hook(lambda _, __, out: arrived.append(out[0].flatten()))
    for _ in range(100):
        arrived.clear()
        x, y = batches.next("cpu")
        optimizer.zero_grad()
        charmodel.loss_of(model(x), y).backward()
        optimizer.step()
    values = torch.cat(arrived)
    octave = values[values != 0].abs().log2().floor().to(torch.int64)
    numbers, counts = octave.unique(return_counts=True)
    return dict(zip(numbers.tolist(), (counts / len(octave)).tolist(), strict=True))


def number_range(octaves: dict[int, float], scale: int = 14) -> str:
    """Where gradients lie on the axis of numbers, before and after scaling, and where fp16 ends."""
    low, high = -48, 24

    def x(octave: float) -> float:
        return LEFT + (octave - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts, base, tall = [], HEIGHT - BOTTOM - 46, 96
    most = max(octaves.values())
    for shift, colour, words in ((0, BAD, "gradients"), (scale, LINE, f"times {2**scale:,}")):
        points = [(x(o + shift + 0.5), base - tall * s / most) for o, s in sorted(octaves.items())]
        inside = [point for point in points if LEFT <= point[0] <= WIDTH - RIGHT]
        parts.append(_polyline(inside, colour))
        top = min(inside, key=lambda point: point[1])
        parts.append(_text(top[0], top[1] - 6, words, colour, "middle"))
    for row, (name, (tiny, normal, largest)) in enumerate(list(FORMATS.items())[:2]):
        y = HEIGHT - BOTTOM - 34 + 18 * row
        first, last = max(x(tiny), LEFT), min(x(largest), WIDTH - RIGHT)
        parts.append(_bar(first, y, last - first, 12, PALE))
        parts.append(_bar(max(x(normal), LEFT), y, last - max(x(normal), LEFT), 12, "#b0c8e4"))
        parts.append(_text(LEFT - 8, y + 10, name, INK, "end"))
    parts += [
        _text(x(octave), HEIGHT - BOTTOM + 18, power(octave), INK, "middle")
        for octave in range(-40, high, 8)
    ]
    title = "A loss scale moves gradients into the range of fp16"
    return _svg(title, parts)


def scale_chart(title: str, curve: Curve) -> str:
    """The loss scale by step, on a logarithmic axis, with the skipped steps below."""
    octaves = [math.log2(scale) for scale in curve.scales if scale and scale > 0]
    low, high = math.floor(min(octaves)) - 1, math.ceil(max(octaves)) + 1
    step = next(size for size in (1, 2, 4, 8, 16, 32) if (high - low) / size <= 6)

    def x(at: float) -> float:
        return LEFT + at / max(1, len(curve.scales) - 1) * (WIDTH - LEFT - RIGHT)

    def y(octave: float) -> float:
        return TOP + (high - octave) / (high - low) * (HEIGHT - TOP - BOTTOM - 14)

    parts = []
    for octave in range(math.ceil(low / step) * step, high + 1, step):
        parts.append(_bar(LEFT, y(octave), WIDTH - LEFT - RIGHT, 1, PALE))
        if y(octave) < HEIGHT - BOTTOM - 20:
            parts.append(_text(LEFT - 8, y(octave) + 4, power(octave), INK, "end"))
    points = [(x(at), y(octave)) for at, octave in enumerate(octaves)]
    steps = [(b[0], a[1]) for a, b in pairwise(points)]
    stairs = [point for pair in zip(points, [*steps, points[-1]], strict=True) for point in pair]
    parts.append(_polyline(stairs, LINE))
    parts += [_bar(x(at), HEIGHT - BOTTOM - 8, 1.5, 8, BAD) for at in curve.skipped]
    parts.append(_text(LEFT - 8, HEIGHT - BOTTOM, "skipped", BAD, "end"))
    last = len(curve.scales) - 1
    apart = next(size for size in (10, 20, 50, 100, 200, 500) if last / size <= 6)
    parts += [
        _text(x(at), HEIGHT - BOTTOM + 18, f"{at}", INK, "middle")
        for at in range(0, last + 1, apart)
    ]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 6, "step", INK, "end"))
    return _svg(title, parts)


def quickstart_report() -> str:
    """What `ampwatch report` prints of the quickstart's training, in narrow lines."""
    program = re.search(
        r"<!-- file: .*? -->\n```python\n(.*?)```", QUICKSTART.read_text(), re.DOTALL
    )
    assert program is not None
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(REPORT_COLUMNS)}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program[1])  # the advice names this script
        for command in (["train.py"], ["-m", "ampwatch", "report", "first"]):
            done = subprocess.run(
                [sys.executable, *command],
                cwd=folder, env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
    return done.stdout


def numbered_report(report: str) -> str:
    """The lines of a report; a number in the margin marks where each part begins."""
    left, parts, awaited = 40, [], list(REPORT_PARTS)
    lines = report.rstrip().splitlines()
    for row, line in enumerate(lines):
        y = (row + 1.4) * REPORT_LINE
        begins = awaited and line.startswith(awaited[0])
        if begins:
            number = len(REPORT_PARTS) - len(awaited) + 1
            parts.append(f'<circle cx="19" cy="{y - 5:.1f}" r="12" fill="{INK}"/>')
            parts.append(_text(19, y, f"{number}", "white", "middle", 'font-weight="bold"'))
            awaited.pop(0)
        words = line.lstrip(" ")
        x = left + REPORT_LETTER * (len(line) - len(words))
        more = 'xml:space="preserve"' + (' font-weight="bold"' if begins else "")
        parts.append(_text(x, y, words, INK, "start", more))
    assert not awaited, f"the report has no part {awaited[0]!r}"
    size = left + REPORT_LETTER * (REPORT_COLUMNS + 1.5), (len(lines) + 1) * REPORT_LINE
    style = f'font-family="monospace" font-size="{REPORT_LETTER / 0.602:.1f}"'
    return _drawing(
        "The report on the quickstart's training, its parts numbered", parts, size, style
    )


def power(octave: int) -> str:
    """A power of two as a person reads it."""
    number = 2.0**octave
    return f"{number:,.0f}" if 1 <= number < 1e6 else f"{number:.0e}"


def _svg(title: str, parts: Sequence[str]) -> str:
    words = _text(LEFT, 22, title, INK, "start", 'font-size="14" font-weight="bold"')
    style = 'font-family="sans-serif" font-size="12"'
    return _drawing(title, [words, *parts], (WIDTH, HEIGHT), style)


def _drawing(title: str, parts: Sequence[str], size: tuple[float, float], style: str) -> str:
    width, height = (f"{length:.0f}" for length in size)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f"{style}><title>{escape(title)}</title>"
        f'<rect width="{width}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, colour: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" {more}'
    return f"<text {place.strip()}>{escape(text)}</text>"


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>'


def _polyline(points: Sequence[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


if __name__ == "__main__":
    main()
