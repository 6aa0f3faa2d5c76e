"""What the charts are: a panel a quantity, and what is drawn across it."""

from __future__ import annotations

from dataclasses import dataclass

from ampwatch.report.page.curves import SCALE


@dataclass(frozen=True, slots=True)
class Guide:
    """A value drawn across a panel, with an interval around it; `fits` makes room for it."""

    value: float
    low: float
    high: float
    color: str
    said: str
    fits: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: what it draws, and a title whose words bear the colours they speak of."""

    column: str
    name: str
    title: tuple[tuple[str, str], ...]
    color: str
    height: int = 120
    kind: str = "number"
    unit: str = ""


PANELS = (
    Panel(
        SCALE, "loss scale",
        (("Loss scale", "scale"),),
        "scale", 170, "power",
    ),
    Panel("loss", "loss", (("Loss", "ink"),), "ink"),
    Panel(
        "grad_norm", "gradient norm", (("Gradient norm", "norm"), (", unscaled", "muted")), "norm"
    ),
    Panel("lr", "learning rate", (("Learning rate", "rate"),), "rate", 100, "rate"),
    Panel(
        "step_time_ms", "step time", (("Step time", "time"), (", ms", "muted")), "time", 80,
        unit=" ms",
    ),
)  # fmt: skip
