"""What the Layers page shows of the layers: which view, which of its quantities, of which role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import address
import streamlit as st
from layer_quantities import Quantity, quantities_of
from open_runs import Look

from ampwatch.report.format_losses import ROLES
from ampwatch.report.layer_views import NAMES, WORST, Wanted, chosen_view, view_message
from ampwatch.report.scale_windows import telling_step

_FORMAT, _QUANTITY, _ROLE = "format", "quantity", "role"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the address says, or what fits the run where it says nothing of use."""

    view: str | None
    quantity: Quantity
    role: str | None  # the worst of them

    @property
    def label(self) -> str:
        """The quantity's name, with the role."""
        if not self.quantity.by_role:
            return self.quantity.label
        return f"{self.quantity.label}, {ROLES[self.role] if self.role else 'the worst role'}"


def shown(views: Sequence[str], where: address.Address) -> Shown:
    """What is shown of a run that offers these views."""
    view = chosen_view(views, where.format)
    offered = quantities_of(view)
    quantity = next((one for one in offered if one.column == where.quantity), offered[0])
    return Shown(view, quantity, where.role if where.role in ROLES else None)


def choices(views: Sequence[str], where: address.Address) -> None:
    """The buttons for it; where there is no choice, there are none."""
    now = shown(views, where)
    with st.container(horizontal=True):
        if len(views) > 1:
            told = {NAMES[one]: one for one in NAMES if one in views}
            _choice("View of the layers", _FORMAT, told, now.view, _format_chosen)
        if now.quantity.by_role:
            roles = {"worst role": WORST, **{word: role for role, word in ROLES.items()}}
            _choice("Role", _ROLE, roles, now.role or WORST, _role_chosen)
    columns = {one.label: one.column for one in quantities_of(now.view)}
    _choice("Quantity", _QUANTITY, columns, now.quantity.column, _quantity_chosen, many=True)


def _choice(
    label: str,
    key: str,
    told: dict[str, str],
    chosen: str | None,
    act: Callable[..., None],
    *,
    many: bool = False,
) -> None:
    """Buttons of which one is pressed; pressed again it stays. Many take several rows."""
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


def moment(look: Look, picked: int | None) -> int | None:
    """The step whose layers explain most: the one picked, else where the trouble begins."""
    return telling_step(look.diagnosis) if picked is None else picked


def views(look: Look) -> tuple[str, ...]:
    """The views of layers that the run offers, the one that fits best first."""
    return look.once("views", lambda: look.layers.views(look, is_live=look.is_live))


def layer_view(look: Look, where: address.Address, *, switch: bool = True) -> bytes | None:
    """The layers as the address says, or as fits the run; None where it tells nothing of them."""
    role = where.role if where.role in ROLES else None
    wanted = Wanted(where.format, role, where.step, where.layer)
    told = look.diagnosis, look.established_scale
    return look.once(
        (wanted, switch), lambda: view_message(look, views(look), wanted, *told, switch=switch)
    )


def keep_view(key: str) -> None:
    """Keep in the address the view of layers that was chosen."""
    view = st.session_state[key].view
    if view:
        address.change(format=str(view), quantity=None)


def keep_role(key: str) -> None:
    """Keep in the address the role that was chosen."""
    role = st.session_state[key].role
    if role:
        address.change(role=None if role == WORST else str(role))
