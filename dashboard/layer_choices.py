"""What is shown of the layers: the views, quantities and roles, chosen or fitting the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import address
import streamlit as st
from open_runs import RunSnapshot

from ampwatch.diagnosis.rules.cast_losses import CUT_SHARE, FLUSHED_SHARE, most_flushed
from ampwatch.report.format_losses import FORMAT_NAMES, ROLES, STALENESS, WHAT_IF_COLUMNS
from ampwatch.report.layer_views import (
    FP8,
    FP16,
    NAMES,
    WHAT_IF,
    WORST,
    Wanted,
    chosen_view,
    view_message,
)
from ampwatch.report.scale_windows import telling_step
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


# --- quantities -----------------------------------------------------------------------------------


_FORMAT, _QUANTITY, _ROLE = "format", "quantity", "role"


@dataclass(frozen=True, slots=True)
class ShownQuantity:
    """The view, quantity and role of the layers that are shown."""

    view: str | None
    quantity: Quantity
    role: str | None  # the worst of them

    @property
    def label(self) -> str:
        """The name of the shown quantity of layers, with its role."""
        if not self.quantity.by_role:
            return self.quantity.label
        return f"{self.quantity.label}, {ROLES[self.role] if self.role else 'the worst role'}"


def shown_quantity(views: Sequence[str], where: address.Address) -> ShownQuantity:
    """The view, quantity and role that the address names, else those that fit the run."""
    view = chosen_view(views, where.format)
    offered = quantities_of(view)
    quantity = next((one for one in offered if one.column == where.quantity), offered[0])
    return ShownQuantity(view, quantity, where.role if where.role in ROLES else None)


def draw_choices(views: Sequence[str], where: address.Address) -> None:
    """Draw the buttons for the view, quantity and role of the layers, where there is a choice."""
    now = shown_quantity(views, where)
    with st.container(horizontal=True):
        if len(views) > 1:
            told = {NAMES[one]: one for one in NAMES if one in views}
            _button_row("View of the layers", _FORMAT, told, now.view, _format_chosen)
        if now.quantity.by_role:
            roles = {"worst role": WORST, **{word: role for role, word in ROLES.items()}}
            _button_row("Role", _ROLE, roles, now.role or WORST, _role_chosen)
    columns = {one.label: one.column for one in quantities_of(now.view)}
    _button_row("Quantity", _QUANTITY, columns, now.quantity.column, _quantity_chosen, many=True)


def _button_row(
    label: str,
    key: str,
    told: dict[str, str],
    chosen: str | None,
    act: Callable[..., None],
    *,
    many: bool = False,
) -> None:
    """Draw buttons of which one stays pressed; with `many` they take several rows."""
    st.session_state[key] = next((word for word, one in told.items() if one == chosen), None)
    buttons = st.pills if many else st.segmented_control
    buttons(label, list(told), key=key, label_visibility="collapsed", on_change=act, args=(told,))


def _format_chosen(told: dict[str, str]) -> None:
    view = told.get(st.session_state[_FORMAT])
    if view:
        address.change(format=view, quantity=None)


def _quantity_chosen(told: dict[str, str]) -> None:
    first, chosen = next(iter(told.values())), told.get(st.session_state[_QUANTITY])
    address.change(quantity=None if chosen == first else chosen)


def _role_chosen(told: dict[str, str]) -> None:
    role = told.get(st.session_state[_ROLE])
    address.change(role=None if role == WORST else role)


# --- the rows of layers ---------------------------------------------------------------------------


def step_to_show(run: RunSnapshot, picked: int | None) -> int | None:
    """The step at which to show the layers: the one picked, else where the trouble begins."""
    return telling_step(run.diagnosis) if picked is None else picked


def layer_views(run: RunSnapshot) -> tuple[str, ...]:
    """The views of layers that the run offers, the one that fits best first."""
    return run.once("views", lambda: run.layers.views(run, is_live=run.is_live))


def layer_view_message(
    run: RunSnapshot, where: address.Address, *, switch: bool = True
) -> bytes | None:
    """The message that draws the view of layers in the address; None where nothing is known."""
    role = where.role if where.role in ROLES else None
    wanted = Wanted(where.format, role, where.step, where.layer)
    told = run.diagnosis, run.established_scale
    return run.once(
        (wanted, switch),
        lambda: view_message(run, layer_views(run), wanted, *told, switch=switch),
    )


def keep_view(view: object) -> None:
    """Keep in the address the view of layers that the reader chose."""
    address.change(format=str(view), quantity=None)


def keep_role(role: object) -> None:
    """Keep in the address the role (input, weight, gradient) that the reader chose."""
    address.change(role=None if role == WORST else str(role))
