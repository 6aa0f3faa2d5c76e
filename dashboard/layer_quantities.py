"""The quantities of layers that the heatmap can show, by view, and the columns that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampwatch.diagnosis.rules.precision import CUT_SHARE, FLUSHED_SHARE, most_flushed
from ampwatch.report.format_losses import FORMAT_NAMES, ROLES, STALENESS, WHAT_IF_COLUMNS
from ampwatch.report.layer_views import FP8, FP16, WHAT_IF
from ampwatch.rows import Table, column


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of each layer for the heatmap; some have a column for each role."""

    column: str  # or, where there is one a role, what the address calls it
    aside: str = ""  # said after the label
    is_log: bool = False
    worst_is_low: bool = False
    name: str = ""
    least: float | None = None  # the largest value that is still no more than in health
    by_role: Mapping[str, str] = field(default_factory=dict)  # the columns

    @property
    def label(self) -> str:
        """The quantity's name on the page."""
        return self.name or column(Table.LAYERS, self.column).label

    def columns(self, role: str | None) -> tuple[str, ...]:
        """The columns of which the heatmap shows the worst: those of a role, or of all roles."""
        if not self.by_role:
            return (self.column,)
        one = self.by_role.get(role or "")
        return (one,) if one else tuple(self.by_role.values())


def _of_roles(key: str, name: str, ending: str, aside: str, least: float | None = None) -> Quantity:
    columns = {role: f"{role}_{ending}" for role in ROLES}
    return Quantity(key, aside, name=name, least=least, by_role=columns)


_UNDERFLOW = Quantity("underflow_share", "share of the gradient's values")
QUANTITIES = (
    Quantity("grad_norm", is_log=True),
    Quantity("log2_headroom", "octaves below the format's maximum", worst_is_low=True),
    _UNDERFLOW,
    Quantity("act_amax", is_log=True),
    Quantity("update_ratio", "update / weights", is_log=True),
    Quantity("moment_ratio", "gradient / root of Adam's v", is_log=True),
)
_SPREAD = _of_roles("spread", "spread in blocks", "spread", "octaves from mean to maximum")
_CASTS = (
    _of_roles("flushed", "flushed to zero", "flushed_share", "share of values", FLUSHED_SHARE),
    _of_roles("cut", "cut off", "saturated_share", "share of values", CUT_SHARE),
    Quantity(STALENESS, "newest maximum over what the delayed scale can hold"),
    _SPREAD,
)
_WHAT_IF = (
    *(
        Quantity(
            name.lower(), "share that would be flushed to zero", name=name,
            least=most_flushed(form),
            by_role={role: WHAT_IF_COLUMNS[role, name] for role in ROLES},
        )
        for name, form in FORMAT_NAMES.items()
    ),
    _SPREAD,
)  # fmt: skip
_OWN = {FP8: _CASTS, WHAT_IF: _WHAT_IF}


def quantities_of(view: str | None) -> tuple[Quantity, ...]:
    """The quantities of layers that a view offers, its default first."""
    if view in (None, FP16):
        return QUANTITIES
    return (*_OWN[view], *(one for one in QUANTITIES if one is not _UNDERFLOW))


def columns_with(quantity: Quantity) -> dict[str, bool]:
    """The columns read together with a quantity's; for each whether low values are the worst."""
    family = next((own for own in _OWN.values() if quantity in own), QUANTITIES)
    return {name: one.worst_is_low for one in family for name in one.columns(None)}
