"""What is shown of the layers: the views, quantities and roles, chosen or fitting the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import address
import streamlit as st
from open_runs import RunSnapshot

from ampwatch.diagnosis.rules.precision import CUT_SHARE, FLUSHED_SHARE, STALE_FACTOR, most_flushed
from ampwatch.diagnosis.thresholds import UNDERFLOW_SHARE
from ampwatch.report.facts import telling_step
from ampwatch.report.format_losses import FORMAT_NAMES, ROLES, STALENESS, WHAT_IF_COLUMNS
from ampwatch.report.layer_views import (
    NAMES,
    OF_FP16,
    VIEW_COLUMNS,
    WHAT_IF,
    WORST,
    Wanted,
    chosen_view,
    speaks_of,
    view_header,
    views_with,
)
from ampwatch.report.painter.message import pack
from ampwatch.rows import Table, column


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of each layer for the heatmap; some have a column for each role."""

    column: str  # or, where there is one a role, what the address calls it
    aside: str = ""  # said after the label
    is_log: bool = False
    worst_is_low: bool = False
    name: str = ""
    limit: float | None = None  # the largest value that is still no more than in health
    by_role: Mapping[str, str] = field(default_factory=dict)  # the columns
    button: str = ""  # its word where it has a button of its own; the others are under "more"

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


def _of_roles(key: str, name: str, ending: str, aside: str, limit: float | None = None) -> Quantity:
    columns = {role: f"{role}_{ending}" for role in ROLES}
    return Quantity(key, aside, name=name, limit=limit, by_role=columns)


QUANTITIES = (
    Quantity("act_amax", is_log=True, button="activations"),
    Quantity("grad_norm", is_log=True, button="gradients"),
    Quantity("update_ratio", "update / weights", is_log=True, button="updates"),
    Quantity("log2_headroom", "octaves below the format's maximum", worst_is_low=True),
    Quantity("underflow_share", "share of the gradient's values", limit=UNDERFLOW_SHARE),
    Quantity("moment_ratio", "gradient / root of Adam's v", is_log=True),
)
_EXPERTS = (
    Quantity("experts_idle", "of a router, as sampled"),
    Quantity("expert_most", "tokens of a router's busiest expert / mean", is_log=True),
    Quantity("expert_entropy", "of a router, 1 if even", worst_is_low=True),
)
_CASTS = (
    _of_roles("flushed", "flushed to zero", "flushed_share", "share of values", FLUSHED_SHARE),
    _of_roles("cut", "cut off", "saturated_share", "share of values", CUT_SHARE),
    Quantity(STALENESS, "newest maximum over what the delayed scale can hold", limit=STALE_FACTOR),
    _of_roles("spread", "spread in blocks", "spread", "octaves from mean to maximum"),
)
_WHAT_IF = tuple(
    Quantity(
        name.lower(), "share that would be flushed to zero", name=name,
        limit=most_flushed(form), by_role={role: WHAT_IF_COLUMNS[role, name] for role in ROLES},
    )
    for name, form in FORMAT_NAMES.items()
)  # fmt: skip
_ALL_LAYERS = 1 << 20
_FAMILIES = (QUANTITIES, _EXPERTS, _CASTS, _WHAT_IF)
ALL_QUANTITIES = tuple(quantity for family in _FAMILIES for quantity in family)
_COLUMNS = (
    *VIEW_COLUMNS,
    *(name for quantity in ALL_QUANTITIES for name in quantity.columns(None)),
)

# What each finding is about, as a quantity of layers; the others are about the loop, the cards, the
# data.
QUANTITY_OF_FINDING = {
    **dict.fromkeys(("AMP203", "AMP204", "AMP207", "AMP209", "AMP210"), "act_amax"),
    **dict.fromkeys(("AMP201", "AMP208", "AMP408"), "underflow_share"),
    "AMP205": "log2_headroom",
    **dict.fromkeys(
        ("AMP103", "AMP104", "AMP105", "AMP106", "AMP202", "AMP211", "AMP301", "AMP302", "AMP304",
         "AMP306", "AMP307", "AMP309", "AMP310", "AMP311", "AMP312", "AMP313", "AMP410", "AMP602"),
        "grad_norm",
    ),
    **dict.fromkeys(("AMP308", "AMP414", "AMP418"), "update_ratio"),
    "AMP314": "experts_idle",
    "AMP701": "cut",
    **dict.fromkeys(("AMP702", "AMP704"), "flushed"),
    **dict.fromkeys(("AMP703", "AMP706"), STALENESS),
}  # fmt: skip


def columns_with(quantity: Quantity) -> dict[str, bool]:
    """The columns read together with a quantity's; for each whether low values are the worst."""
    family = next(own for own in _FAMILIES if quantity in own)
    return {name: one.worst_is_low for one in family for name in one.columns(None)}


# --- quantities -----------------------------------------------------------------------------------

_FORMAT, _QUANTITY, _MORE, _ROLE = "format", "quantity", "more quantities", "role"


@dataclass(frozen=True, slots=True)
class ShownQuantity:
    """The quantity and the role of the layers that are shown."""

    quantity: Quantity
    role: str | None  # the worst of them

    @property
    def label(self) -> str:
        """The name of the shown quantity of layers, with its role."""
        if not self.quantity.by_role:
            return self.quantity.label
        return f"{self.quantity.label}, {ROLES[self.role] if self.role else 'the worst role'}"


def shown_quantity(run: RunSnapshot, where: address.Address) -> ShownQuantity:
    """The quantity and role that the address names, else what the headline's finding is about."""
    offered = offered_quantities(run)
    asked = next((one for one in offered if one.column == where.quantity), None)
    role = where.role if where.role in ROLES else None
    return ShownQuantity(asked or _telling_quantity(run, offered), role)


def offered_quantities(run: RunSnapshot) -> tuple[Quantity, ...]:
    """The quantities that the run's layers have; gradients where they have none."""
    filled = _filled_columns(run)
    have = tuple(one for one in ALL_QUANTITIES if not filled.isdisjoint(one.columns(None)))
    return have or QUANTITIES[1:2]


def _telling_quantity(run: RunSnapshot, offered: Sequence[Quantity]) -> Quantity:
    """The quantity that the headline is about, else what it explains; gradients in a calm run."""
    findings = run.diagnosis.findings if run.diagnosis else ()
    effects = run.diagnosis.effects if run.diagnosis else ()
    explained = (f for f in findings if f is findings[0] or f.code in effects)
    wanted = [QUANTITY_OF_FINDING.get(f.code) for f in explained if f.severity.weight]
    by_column = {one.column: one for one in offered}
    found = (by_column[column] for column in (*wanted, "grad_norm") if column in by_column)
    return next(found, offered[0])


def draw_choices(run: RunSnapshot, where: address.Address) -> None:
    """Draw the buttons for quantity, role and view of the layers, where there is a choice."""
    now, offered = shown_quantity(run, where), offered_quantities(run)
    with st.container(horizontal=True, vertical_alignment="center"):
        first = {one.button: one.column for one in offered if one.button}
        _button_row("Quantity", _QUANTITY, first, now.quantity.column, _quantity_chosen)
        more = {one.label: one.column for one in offered if not one.button}
        if more:
            _list("more", _MORE, more, now.quantity.column, _quantity_chosen)
        if now.quantity.by_role:
            roles = {"worst role": WORST, **{word: role for role, word in ROLES.items()}}
            _list("Role", _ROLE, roles, now.role or WORST, _role_chosen)
        views, view = layer_views(run), _shown_view(run, where)
        if len(views) > 1 or view is None:
            names = {NAMES[one]: one for one in NAMES if one in views}
            _button_row("View of the layers", _FORMAT, names, view, _format_chosen)


def _button_row(
    label: str, key: str, values: dict[str, str], chosen: str | None, act: Callable[..., None]
) -> None:
    """Draw buttons of which one at most is pressed."""
    st.session_state[key] = next((word for word, one in values.items() if one == chosen), None)
    st.segmented_control(
        label, list(values), key=key, label_visibility="collapsed", on_change=act,
        args=(key, values),
    )  # fmt: skip


def _list(
    label: str, key: str, values: dict[str, str], chosen: str, act: Callable[..., None]
) -> None:
    """Draw a list that opens; `label` stands in it while nothing of it is chosen."""
    st.session_state[key] = next((word for word, one in values.items() if one == chosen), None)
    is_empty = 0 if WORST in values.values() else None
    st.selectbox(
        label, list(values), key=key, label_visibility="collapsed", placeholder=label, width=170,
        index=is_empty, on_change=act, args=(key, values),
    )  # fmt: skip


def _format_chosen(key: str, values: dict[str, str]) -> None:
    address.change(format=values.get(st.session_state[key]))


def _quantity_chosen(key: str, values: dict[str, str]) -> None:
    chosen = values.get(st.session_state[key])
    if chosen or key == _MORE:  # what the list held was cleared: as at first
        address.change(quantity=chosen)


def _role_chosen(key: str, values: dict[str, str]) -> None:
    role = values.get(st.session_state[key])
    address.change(role=None if role == WORST else role)


# --- the rows of layers ---------------------------------------------------------------------------


def step_to_show(run: RunSnapshot, picked: int | None) -> int | None:
    """The step at which to show the layers: the one picked, else where the trouble begins."""
    return telling_step(run.diagnosis) if picked is None else picked


def layer_views(run: RunSnapshot) -> tuple[str, ...]:
    """The views of layers that the run offers, the one that fits best first."""
    return views_with(_filled_columns(run))


def _filled_columns(run: RunSnapshot) -> frozenset[str]:
    """The columns in which the run's layers have a value."""
    return run.once(
        "columns of layers",
        lambda: run.layers.columns_with_values(run, _COLUMNS, is_live=run.is_live),
    )


def whole_view(run: RunSnapshot, where: address.Address) -> dict[str, Any] | None:
    """The view in the address, of all layers at one step; None where nothing is known."""
    role = where.role if where.role in ROLES else None
    view = _shown_view(run, where)
    if view is None:
        return None
    wanted = Wanted(view, role, where.step, most=_ALL_LAYERS)
    return run.once(wanted, lambda: view_header(run, (view,), wanted, run.diagnosis))


def _shown_view(run: RunSnapshot, where: address.Address) -> str | None:
    """The view that the address names, else the one that fits; what if of fp16 only if wanted."""
    view = chosen_view(layer_views(run), where.format)
    is_fp16 = OF_FP16 in _filled_columns(run)
    return None if view == WHAT_IF and where.format != view and is_fp16 else view


def telling_view_message(run: RunSnapshot) -> bytes | None:
    """The view of layers that shows what the headline is about, at its step; None without one."""
    view = None if run.diagnosis is None else speaks_of(run.diagnosis)
    if view is None or view not in layer_views(run):
        return None
    wanted = Wanted(view, step=telling_step(run.diagnosis))
    return run.once(wanted, lambda: _message_that_explains(run, view, wanted))


def _message_that_explains(run: RunSnapshot, view: str, wanted: Wanted) -> bytes | None:
    """A view of layers at one step; None for loss scales that do not explain the headline."""
    header = view_header(run, (view,), wanted, run.diagnosis)
    return pack(header, {}) if header and header.get("explains", True) else None
