"""The list of mechanisms: what each may be combined with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from examples.gallery.variety.story import Story
from examples.gallery.variety.truth import Truth
from examples.gallery.variety.unfolding import Columns

FP16, NO_SCALER = ("fp16",), ("bf16", "bf16-weights", "fp32")
ANY_PRECISION = (*FP16, *NO_SCALER)
ATTACHED, SCALARS, TABLE, TEXT = "attached", "scalars", "table", "text"
EVERY_WAY = (ATTACHED, SCALARS, TABLE, TEXT)

# What is true may hang on how the story went: a mechanism may answer once its columns are there.
Told = Truth | Callable[[Columns], Truth]
Change = Callable[[Story, int], Told]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One way for a training to go wrong, or only to look like it."""

    name: str  # kind/variant
    change: Change
    is_benign: bool
    precisions: tuple[str, ...]
    seen: tuple[str, ...]
    least_steps: int
    most_steps: int
    onsets: tuple[str, ...]
    is_lasting: bool  # a log of each tenth or hundredth step shows it as well

    @property
    def kind(self) -> str:
        """The fault, whichever way it comes about."""
        return self.name.partition("/")[0]


MECHANISMS: dict[str, Mechanism] = {}


def mechanism(
    name: str,
    *,
    precisions: tuple[str, ...] = ANY_PRECISION,
    seen: tuple[str, ...] = EVERY_WAY,
    steps: tuple[int, int] = (100, 1_000_000),
    onsets: tuple[str, ...] = ("early", "late"),
    benign: bool = False,
    lasting: bool = False,
) -> Callable[[Change], Change]:
    """Register a function `(story, onset)` that changes the story and tells what is true of it."""

    def add(change: Change) -> Change:
        MECHANISMS[name] = Mechanism(
            name, change, benign, precisions, seen, *steps, onsets, lasting or benign
        )
        return change

    return add


def all_mechanisms() -> dict[str, Mechanism]:
    """Every one, in the order of the files."""
    from examples.gallery.variety.mechanisms import (  # noqa: F401 - they register themselves
        benign,
        numbers,
        ranks,
        rate,
        recipes,
        restarts,
        scale,
        slow,
        spikes,
    )

    return MECHANISMS
