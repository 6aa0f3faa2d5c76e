"""The results of reruns, saved in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ampwatch.errors import AmpwatchError
from ampwatch.files import read_at_most, replace_file
from ampwatch.recovery.change import NOTHING, RATE, Value, switch_text

PROOF_FILE = "proved.json"
_MOST_BYTES = 1 << 20
SCHEMA = 1
TIME_WAS_UP = "time was up"
_LEAST_TO_COMPARE = 40  # steps: enough to have learnt
_LEARNT = 0.5  # of the progress of a lower rate: less, and it is above the limit though it lives
_CONTRACT = ("change", "value", "steps", "verdict", "loss_at", "run")  # of a try, as printed


@dataclass(frozen=True, slots=True)
class Try:
    """One rerun: what was changed, and how many steps it trained."""

    change: str
    value: Value
    steps: int
    verdict: str
    is_stable: bool  # it came as far as asked, and the run's trouble was not found
    told: str  # its headline, or why it ended
    loss_at: dict[str, float]  # by step
    run: str  # its folder


@dataclass(frozen=True, slots=True)
class Proof:
    """All reruns of one run, and their conclusion."""

    run: str
    base: float | None  # the rate that the run was started with, and that failed
    steps: int  # that a rerun was to survive
    tries: tuple[Try, ...]
    notes: tuple[str, ...] = ()  # sentences on how far to trust it

    @property
    def proved(self) -> Try | None:
        """Of the rates that held the one whose loss is lowest; else the first other cure."""
        others = (one for one in self.cures if one.is_stable)
        at = _common_step(self._held)
        if at is None:
            return max(self._held, key=_value, default=None) or next(others, None)
        return min(self._held, key=lambda one: (one.loss_at[at], -_value(one)))

    @property
    def cures(self) -> list[Try]:
        """The reruns in which something else than the rate was changed."""
        return [one for one in self.tries if one.change not in (RATE, NOTHING)]

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The highest rate that held, and the lowest above it that did not; None if none."""
        low = max(map(_value, self._held), default=None)
        failed = {self.base, *self._failed} if self._rates else set()
        above = (one for one in failed if one is not None and (low is None or one > low))
        return low, min(above, default=None)

    @property
    def _rates(self) -> list[Try]:
        return [one for one in self.tries if one.change == RATE]

    @property
    def _held(self) -> list[Try]:
        """The reruns whose rate held in each of its tries."""
        return [one for one in self._rates if one.is_stable and one.value not in self._failed]

    @property
    def _failed(self) -> set[float]:
        """Rates of which one rerun did not hold, or learnt far less than a lower rate."""
        stable = [one for one in self._rates if one.is_stable]
        slow = {_value(one) for one in stable if _learns_less(one, stable)}
        return slow | {_value(one) for one in self._rates if not one.is_stable}

    def to_json(self) -> dict[str, Any]:
        """As `ampwatch prove --json` prints it."""
        best = self.proved
        held = None
        if best is not None:
            held = {name: getattr(best, name) for name in ("change", "value", "steps", "verdict")}
        tries = [{name: getattr(one, name) for name in _CONTRACT} for one in self.tries]
        return {"schema": SCHEMA, "proved": held, "interval": list(self.interval), "tries": tries}

    def keep(self, run_folder: Path) -> None:
        """Write it beside the run; readers see the old one or the new one, whole."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False)
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
        notes = tuple(str(one) for one in told.get("notes", ()))
        return Proof(str(told["run"]), told["base"], int(told["steps"]), tries, notes)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _value(one: Try) -> float:
    return one.value if isinstance(one.value, float) else 0.0


def _learns_less(one: Try, stable: Sequence[Try]) -> bool:
    """Whether a lower rate made more than twice of the progress by the same step."""
    for other in stable:
        shared = sorted(map(int, set(one.loss_at) & set(other.loss_at)))
        if _value(other) >= _value(one) or not shared or shared[-1] < shared[0] + _LEAST_TO_COMPARE:
            continue
        first, last = str(shared[0]), str(shared[-1])
        progress = other.loss_at[first] - other.loss_at[last]
        if one.loss_at[first] - one.loss_at[last] < _LEARNT * progress:
            return True
    return False


# --- in words -------------------------------------------------------------------------------------


def sentence_of(proof: Proof) -> str:
    """What the reruns have shown, in words."""
    return " ".join([_shown(proof), *proof.notes])


def _shown(proof: Proof) -> str:
    best, (low, high) = proof.proved, proof.interval
    if best is None:
        return f"{_failed_text(proof)}: nothing is proved."
    if best.change != RATE:
        helped = [words_of(one) for one in proof.cures if one.is_stable]
        each = "each of " if len(helped) > 1 else ""
        found = "; ".join(helped)
        return f"Proved: the trouble is gone for {best.steps:,} steps with {each}{found}."
    held = f"Proved: a learning rate of {best.value:.3g} held for {best.steps:,} steps"
    if best.value != low:
        held += ", with the lowest loss of those that held"
    if high is None or low is None:
        return f"{held}."
    return f"{held}; the limit lies between {low:.3g} and {high:.3g}."


def _failed_text(proof: Proof) -> str:
    rates = [_value(one) for one in proof.tries if one.change == RATE]
    if rates:
        return f"No rate down to {min(rates):.3g} held"
    tried = ", ".join(words_of(one) for one in proof.cures)
    if tried:
        return f"The trouble comes back with {tried}"
    is_gone = any(one.change == NOTHING and one.is_stable for one in proof.tries)
    return "The trouble did not come back" if is_gone else "No rerun came to an end"


def words_of(one: Try) -> str:
    """What a rerun changed, in words."""
    if one.change == RATE:
        return f"rate {_value(one):.3g}"
    if one.change == NOTHING:
        return "nothing changed"
    return switch_text(one.change, one.value)


def table_of(tries: Sequence[Try]) -> list[tuple[str, ...]]:
    """The reruns as cells: what was changed, steps, verdict, loss, what was told."""
    at = _common_step(tries)
    head = ("changed", "steps", "held", "verdict", f"loss at step {at}" if at else "loss", "")
    return [head, *(_cells(one, at) for one in sorted(tries, key=_value))]


def _common_step(tries: Sequence[Try]) -> str | None:
    """The last step at which all reruns have a loss, to compare them at equal steps."""
    shared = set.intersection(*(set(one.loss_at) for one in tries)) if tries else set()
    return max(shared, key=int, default=None)


def _cells(one: Try, at: str | None) -> tuple[str, ...]:
    loss = one.loss_at.get(at) if at else None
    return (
        words_of(one), f"{one.steps:,}", "yes" if one.is_stable else "no", one.verdict,
        "" if loss is None else f"{loss:.4g}", one.told,
    )  # fmt: skip
