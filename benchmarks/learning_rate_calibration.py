"""Draws how well the rate's probability and the interval hold on families left out: an SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

RESULT = Path(__file__).parent / "results" / "learning_rate_calibration.svg"
BINS = np.array([0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0])
SIDE, LEFT, TOP, ROW = 260, 60, 40, 14
INTERVAL_LEFT, BAR = 520, 180
COLOURS = {"whole": "#1f5fa8", "no layers": "#d08020", "scalars": "#a03050"}


def draw(
    chances: dict[str, tuple[np.ndarray, np.ndarray]],
    inside: Sequence[tuple[str, int, float]],
) -> None:
    """`chances`: of each kind of record the probabilities, and whether it was the rate.

    `inside`: each family left out, its number of runs and the share of limits in the interval.
    """
    height = max(SIDE + 2 * TOP + 60, TOP + ROW * len(inside) + 40)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{INTERVAL_LEFT + BAR + 80}" '
        f'height="{height}" font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="white"/>'
    )
    RESULT.write_text("\n".join([head, *_chances(chances), *_inside(inside), "</svg>", ""]))


def _chances(chances: dict[str, tuple[np.ndarray, np.ndarray]]) -> Iterator[str]:
    yield _text(LEFT, 20, "Chance that it is the rate, families left out")
    bottom = TOP + SIDE
    yield (
        f'<path d="M{LEFT} {TOP}V{bottom}H{LEFT + SIDE}M{LEFT} {bottom}L{LEFT + SIDE} {TOP}" '
        'fill="none" stroke="#999"/>'
    )
    for share in (0.0, 0.5, 1.0):
        yield _text(LEFT + share * SIDE - 8, bottom + 15, f"{share:g}")
        yield _text(LEFT - 25, bottom - share * SIDE + 4, f"{share:g}")
    yield _text(LEFT + 60, bottom + 32, "said; a dot's area is the number of runs")
    yield f'<g transform="rotate(-90 18 {TOP + 170})">{_text(18, TOP + 170, "it was the rate")}</g>'
    for place, (name, (said, was)) in enumerate(chances.items()):
        colour = COLOURS[name]
        yield _text(LEFT + place * 90, bottom + 52, name, colour)
        points = list(_binned(said, was))
        line = " ".join(f"{LEFT + x * SIDE:.1f},{bottom - y * SIDE:.1f}" for x, y, _ in points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}"/>'
        for x, y, count in points:
            yield (
                f'<circle cx="{LEFT + x * SIDE:.1f}" cy="{bottom - y * SIDE:.1f}" '
                f'r="{1.5 + count**0.5 / 2:.1f}" fill="{colour}" fill-opacity="0.5"/>'
            )


def _binned(said: np.ndarray, was: np.ndarray) -> Iterator[tuple[float, float, int]]:
    at = np.clip(np.digitize(said, BINS) - 1, 0, len(BINS) - 2)
    for one in np.unique(at):
        there = at == one
        yield float(said[there].mean()), float(was[there].mean()), int(there.sum())


def _inside(inside: Sequence[tuple[str, int, float]]) -> Iterator[str]:
    yield _text(INTERVAL_LEFT, 20, "True limit inside the 90 % interval")
    yield _text(INTERVAL_LEFT, 34, "by family left out (runs)", "#666")
    for number, (name, runs, share) in enumerate(sorted(inside, key=lambda row: -row[2])):
        y = TOP + 8 + ROW * number
        colour = "#1f5fa8" if share >= 0.85 else "#a03050"
        yield (
            f'<rect x="{INTERVAL_LEFT}" y="{y}" width="{share * BAR:.1f}" height="{ROW - 4}" '
            f'fill="{colour}"/>'
        )
        label = f"{name} ({runs})"
        yield f'<text x="{INTERVAL_LEFT - 6}" y="{y + 9}" text-anchor="end">{label}</text>'
        yield _text(INTERVAL_LEFT + BAR + 6, y + 9, f"{share:.2f}")
    at = INTERVAL_LEFT + 0.9 * BAR
    yield (
        f'<path d="M{at} {TOP + 4}V{TOP + 8 + ROW * len(inside)}" stroke="#333" '
        'stroke-dasharray="3 3"/>'
    )


def _text(x: float, y: float, text: str, colour: str = "#222") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{text}</text>'
