"""The results of reruns, saved in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ampwatch.errors import AmpwatchError
from ampwatch.files import read_at_most, replace_file

PROOF_FILE = "proved.json"
_MOST_BYTES = 1 << 20
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Try:
    """One rerun: what was changed, and how many steps it trained."""

    change: str
    value: float
    steps: int
    verdict: str
    is_stable: (
        bool  # it came as far as asked, and trouble with the rate is not among what was found
    )
    told: str  # its headline, or why it ended
    loss_at: dict[str, float]  # by step
    run: str  # its folder


@dataclass(frozen=True, slots=True)
class Proof:
    """All reruns of one run, and their conclusion."""

    run: str
    base: float  # the rate that the run was started with, and that failed
    steps: int  # that a rerun was to survive
    tries: tuple[Try, ...]

    @property
    def proved(self) -> Try | None:
        """The rerun with the highest stable rate."""
        return max((one for one in self.tries if one.is_stable), key=_value, default=None)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The highest stable rate, and the lowest failing rate above it; None if there is none."""
        best = self.proved
        low = None if best is None else best.value
        failed = [self.base, *(one.value for one in self.tries if not one.is_stable)]
        return low, min((value for value in failed if low is None or value > low), default=None)

    def to_json(self) -> dict[str, Any]:
        """As `ampwatch prove --json` prints it."""
        best = self.proved
        held = None
        if best is not None:
            held = {name: getattr(best, name) for name in ("change", "value", "steps", "verdict")}
        tries = [asdict(one) for one in self.tries]
        return {
            "schema": SCHEMA, "run": self.run, "base": self.base, "steps": self.steps,
            "proved": held, "interval": list(self.interval), "tries": tries,
        }  # fmt: skip

    def keep(self, run_folder: Path) -> None:
        """Save it in the run's folder; readers see the old file or the new one, never a part."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False)
        try:
            replace_file(run_folder / PROOF_FILE, text.encode())
        except OSError as problem:
            reason = f"cannot be written to {run_folder} ({problem.strerror or problem})"
            raise AmpwatchError(f"What was proved {reason}.") from None


def kept_proof(run_folder: Path) -> Proof | None:
    """The saved proof of a run; None if there is none, or it cannot be read."""
    try:
        told = json.loads(read_at_most(run_folder / PROOF_FILE, _MOST_BYTES))
        tries = tuple(Try(**one) for one in told["tries"])
        return Proof(str(told["run"]), told["base"], int(told["steps"]), tries)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _value(one: Try) -> float:
    return one.value


def sentence_of(proof: Proof) -> str:
    """The conclusion as a sentence."""
    best, (low, high) = proof.proved, proof.interval
    if best is None:
        lowest = min((one.value for one in proof.tries), default=None)
        tried = (
            "No rerun came to an end" if lowest is None else f"No rate down to {lowest:.3g} held"
        )
        return f"{tried}: nothing is proved."
    held = f"Proved: a learning rate of {best.value:.3g} held for {best.steps:,} steps"
    if high is None or low is None:
        return f"{held}."
    return f"{held}; the limit lies between {low:.3g} and {high:.3g}."


def table_of(tries: Sequence[Try]) -> list[tuple[str, ...]]:
    """The reruns as cells of a table: rate, steps, verdict, loss, headline."""
    at = _common_step(tries)
    head = ("rate", "steps", "held", "verdict", f"loss at step {at}" if at else "loss", "")
    return [head, *(_cells(one, at) for one in sorted(tries, key=_value))]


def _common_step(tries: Sequence[Try]) -> str | None:
    """The last step at which all reruns have a loss, to compare them at equal steps."""
    shared = set.intersection(*(set(one.loss_at) for one in tries)) if tries else set()
    return max(shared, key=int, default=None)


def _cells(one: Try, at: str | None) -> tuple[str, ...]:
    loss = one.loss_at.get(at) if at else None
    return (
        f"{one.value:.3g}", f"{one.steps:,}", "yes" if one.is_stable else "no", one.verdict,
        "" if loss is None else f"{loss:.4g}", one.told,
    )  # fmt: skip
