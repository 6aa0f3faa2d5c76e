"""The page's address: run, rank, span, step and layer, so that it can be shared as a link."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlencode

import streamlit as st

_NAMES = ("run", "rank", "span", "step", "layer")


@dataclass(frozen=True, slots=True)
class Address:
    """What the address says; parts that are missing or malformed are None."""

    run: str | None = None
    rank: int | None = None  # all of them
    span: tuple[int, int] | None = None
    step: int | None = None
    layer: str | None = None

    def of_run(self, run: str) -> Address:
        """The address for a run; the other parts are kept only if it is the same run."""
        return self if run == self.run else Address(run=run)

    def parameters(self) -> dict[str, str]:
        """As the query of a link."""
        texts = {
            "run": self.run,
            "rank": None if self.rank is None else str(self.rank),
            "span": None if self.span is None else f"{self.span[0]}-{self.span[1]}",
            "step": None if self.step is None else str(self.step),
            "layer": self.layer,
        }
        return {name: text for name, text in texts.items() if text is not None}


def link(page: str, address: Address) -> str:
    """A link to a page, relative to any other; the overview's path is empty."""
    return f"./{page}?{urlencode(address.parameters())}"


def read() -> Address:
    """What the address says now."""
    query = st.query_params
    return Address(
        run=query.get("run"),
        rank=_number(query.get("rank", "")),
        span=_span(query.get("span", "")),
        step=_number(query.get("step", "")),
        layer=query.get("layer"),
    )


def write(address: Address) -> None:
    """Change the address in place, without loading anything."""
    wanted = address.parameters()
    current = {name: st.query_params[name] for name in _NAMES if name in st.query_params}
    if wanted != current:
        st.query_params.from_dict(wanted)


def change(**parts: object) -> None:
    """Change some parts of the address and keep the others."""
    write(replace(read(), **parts))


def _span(text: str) -> tuple[int, int] | None:
    first, _, last = text.partition("-")
    low, high = _number(first), _number(last)
    return (low, high) if low is not None and high is not None and low < high else None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 16 else None
