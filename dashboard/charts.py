"""Data to plotly figures: pure, one meaning one colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots
from tsdownsample import MinMaxLTTBDownsampler

SCALE, SKIP, NORM = "#2456C8", "#C8401E", "#0E8A6D"
RATE, INK, MUTED, GRID = "#7A4FB5", "#1B1F24", "#6B7280", "#E7E9E5"

MAX_POINTS = 2000
MIN_POINTS = 8  # of each stretch of a broken line
HOLE_SHARE = 0.01  # of the axis: steps missing for longer break a line
RUG_COLUMNS = 1200  # about one a pixel: ticks closer than that merge into one that tells its count

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Course:
    """A run's numbers by step; nan where absent."""

    step: Steps
    scale: Floats
    loss: Floats
    grad_norm: Floats
    lr: Floats
    skipped: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Span:
    """The steps of a finding, drawn pale through all charts."""

    first: int
    last: int
    label: str


def overview(course: Course, spans: Iterable[Span] = ()) -> go.Figure:
    """Scale with its skips, loss, gradient norm and learning rate over one step axis."""
    figure = make_subplots(
        rows=5, shared_xaxes=True, vertical_spacing=0.028, row_heights=[5, 0.55, 3.4, 3.4, 2.6]
    )
    _draw_scale(figure, course)
    _draw_rug(figure, course)
    _draw_line(figure, 3, "loss", course.step, course.loss, INK)
    _draw_line(figure, 4, "gradient norm", course.step, course.grad_norm, NORM)
    _draw_line(figure, 5, "learning rate", course.step, course.lr, RATE)
    for span in spans:
        if len(course.step) and span.first <= course.step[0]:
            continue  # all of the run: the shade would tell nothing apart
        figure.add_vrect(
            x0=span.first - 0.5, x1=span.last + 0.5, fillcolor=SKIP, opacity=0.06, line_width=0
        )
    if len(course.step):
        figure.update_xaxes(range=[int(course.step.min()), int(course.step.max()) + 1])
    return _styled(figure)


def power_text(exponent: float) -> str:
    """2^16 as the axis shows it."""
    return f"2<sup>{exponent:.4g}</sup>"


def _draw_scale(figure: go.Figure, course: Course) -> None:
    with np.errstate(divide="ignore"):
        exponent = np.log2(course.scale)
    step, shown = _jumps(course.step, exponent)
    hover = ["" if np.isnan(value) else power_text(value) for value in shown]
    figure.add_scatter(
        x=step, y=shown, line={"color": SCALE, "width": 2, "shape": "hv"}, mode="lines",
        name="loss scale", text=hover, hovertemplate="%{text}", row=1, col=1,
    )  # fmt: skip
    ticks = _exponent_ticks(shown[np.isfinite(shown)])
    figure.update_yaxes(
        tickvals=ticks, ticktext=[power_text(t) for t in ticks], title="loss scale", row=1, col=1
    )


def _draw_rug(figure: go.Figure, course: Course) -> None:
    at, counts = merged_ticks(course.step[course.skipped], course.step, RUG_COLUMNS)
    texts = [f"{count} skipped" for count in counts]
    figure.add_scatter(
        x=at, y=np.zeros(len(at)), mode="markers", name="skipped", text=texts,
        marker={"symbol": "line-ns-open", "size": 11, "color": SKIP, "line": {"width": 1.5}},
        hovertemplate="%{text}", row=2, col=1,
    )  # fmt: skip
    figure.update_yaxes(visible=False, range=[-1, 1], fixedrange=True, row=2, col=1)


def _draw_line(
    figure: go.Figure, row: int, name: str, step: Steps, values: Floats, color: str
) -> None:
    x, y, alone = broken_line(step, values)
    figure.add_scatter(
        x=x, y=y, mode="lines+markers", line={"color": color, "width": 1.6}, name=name,
        marker={"color": color, "size": np.where(alone, 4, 0)},
        hovertemplate="%{y:.4g}", connectgaps=False, row=row, col=1,
    )  # fmt: skip
    y = y[np.isfinite(y)]
    constant = len(y) > 0 and y.min() == y.max()
    figure.update_yaxes(
        title=name, type=_axis(y), exponentformat="SI", nticks=5, row=row, col=1,
        rangemode="tozero" if constant else "normal",
    )  # fmt: skip
    if _axis(y) == "log":
        decades = np.log10(y.max() / y.min()) if len(y) else 1
        figure.update_yaxes(
            dtick=max(1, round(decades / 4)) if decades > 2 else None, row=row, col=1
        )


def _axis(values: Floats) -> str:
    """Logarithmic where a linear axis would hide the smaller values."""
    positive = len(values) > 0 and values.min() > 0
    return "log" if positive and values.max() > 30 * values.min() else "linear"


def broken_line(step: Steps, values: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The points of a line that is broken where values are absent for long, and who is alone.

    A line across steps that nobody logged, or whose values are not finite, would show what was not.
    """
    known = np.isfinite(values)
    parts = _parts(step[known], values[known])
    room = max(0, MAX_POINTS - MIN_POINTS * len(parts))
    pieces = [
        thinned(x, y, MIN_POINTS - 1 + room * len(x) // max(1, int(known.sum()))) for x, y in parts
    ]
    gap = np.array([np.nan])
    xs = [np.concatenate((x, x[-1:])) for x, _ in pieces]
    ys = [np.concatenate((y, gap)) for _, y in pieces]
    alone = [np.append(np.full(len(x), len(x) == 1), False) for x, _ in pieces]
    if not pieces:
        return np.zeros(0), np.zeros(0), np.zeros(0, bool)
    return np.concatenate(xs)[:-1], np.concatenate(ys)[:-1], np.concatenate(alone)[:-1]


def _parts(step: Steps, values: Floats) -> list[tuple[Steps, Floats]]:
    """The stretches between holes: steps missing that the eye would see, or a step back."""
    if not len(step):
        return []
    ahead = np.diff(step)
    hole = max(2.0, (int(step.max()) - int(step.min())) * HOLE_SHARE)
    cuts = np.flatnonzero((ahead > hole) | (ahead < 0)) + 1
    return list(zip(np.split(step, cuts), np.split(values, cuts), strict=True))


def thinned(step: Steps, values: Floats, most: int = MAX_POINTS) -> tuple[Steps, Floats]:
    """At most so many of the points, that keep every extreme's look."""
    if len(step) <= most:
        return step, values
    keep = MinMaxLTTBDownsampler().downsample(np.ascontiguousarray(values), n_out=most)
    return step[keep], values[keep]


def merged_ticks(at: Steps, within: Steps, columns: int) -> tuple[Steps, Steps]:
    """One tick for each column of the axis that holds any, and how many it stands for."""
    if not len(at):
        return at, at
    low, width = int(within.min()), max(1.0, (int(within.max()) - int(within.min()) + 1) / columns)
    column = ((at - low) / width).astype(np.int64)
    _, first, counts = np.unique(column, return_index=True, return_counts=True)
    return at[first], counts


def _jumps(step: Steps, values: Floats) -> tuple[Floats, Floats]:
    """Where a step curve changes, and the two ends of each stretch; thinned if it changes often."""
    known = np.isfinite(values)
    xs, ys = [np.zeros(0)], [np.zeros(0)]
    for x, y in _parts(step[known], values[known]):
        keep = np.concatenate(([True], np.diff(y) != 0))
        keep[-1] = True
        some_x, some_y = thinned(x[keep], y[keep])
        xs += [some_x, x[-1:]]
        ys += [some_y, np.array([np.nan])]
    return np.concatenate(xs)[:-1], np.concatenate(ys)[:-1]


def _exponent_ticks(values: Floats) -> Sequence[int]:
    if not len(values):
        return []
    low, high = int(np.floor(values.min())), int(np.ceil(values.max()))
    stride = next((s for s in (1, 2, 4, 8, 16) if s * 6 >= high - low), 32)
    return list(range(low - low % stride, high + stride, stride))


def _styled(figure: go.Figure) -> go.Figure:
    figure.update_layout(
        height=640, margin={"l": 64, "r": 12, "t": 8, "b": 44}, showlegend=False,
        plot_bgcolor="rgba(0,0,0,0)", paper_bgcolor="rgba(0,0,0,0)",
        font={"color": MUTED, "size": 12}, hovermode="x unified", hoversubplots="axis",
        uirevision="keep",
    )  # fmt: skip
    figure.update_xaxes(showgrid=False, zeroline=False, showline=False, matches="x")
    figure.update_xaxes(title="step", showline=True, linecolor=GRID, row=5, col=1)
    figure.update_yaxes(gridcolor=GRID, zeroline=False, title_font={"size": 12})
    return figure
