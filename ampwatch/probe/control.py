"""What a page may have the training do, where `attach(control=True)` allows it.

An instruction arrives on the courier's thread and is done on the training thread, between two
steps. Each gets an answer, a `control` event in the run's own rows: done, or why not. What is
late, comes twice, is not on the list or came unencrypted is refused.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.probe.current_step import CurrentStep
from ampwatch.probe.optimizer_turns import Turns
from ampwatch.probe.optimizers import OptimizerView, groups_of, number_of
from ampwatch.probe.rank_agreement import RankAgreement
from ampwatch.probe.records import EventRecord
from ampwatch.rows import EventKind

if TYPE_CHECKING:
    from ampwatch.feed import InstructionArrived

FRESH_S = 15.0  # since the sign of life that its sender had heard; there is one a second
_MOST_WAITING = 16
RATE, SAVE, STOP = "learning-rate", "save", "stop"  # `feed.Key`, which would load zmq
_NAMES = {RATE: "A change of the learning rate", SAVE: "A checkpoint", STOP: "Stopping"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing to do."""

    key: str
    value: float | None
    number: int


class Control:
    """Holds what was asked until the step in progress has ended."""

    def __init__(self, ranks: RankAgreement | None = None) -> None:
        self._ranks = ranks  # where there are several
        self._waiting: deque[Asked] = deque()
        self._last_number = 0
        self._lowered: tuple[int, list[float], list[float]] | None = None
        self._step_s, self._stepped_at = 0.0, time.perf_counter()
        self._save: Callable[[], object] | None = None
        self._stop: Callable[[], object] | None = None
        self._loop: tuple[Turns, CurrentStep, Callable[[EventRecord], None]] | None = None

    def follow(
        self, turns: Turns, step: CurrentStep, deliver: Callable[[EventRecord], None]
    ) -> None:
        """Act on this loop when a page asks; tell in its rows what may be asked for."""
        self._loop = turns, step, deliver
        self._offer()

    def on_save(self, save: Callable[[], object]) -> None:
        """Offer to write a checkpoint, by this function of the user's."""
        self._save = save
        self._offer()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """End by this function of the user's, not as Ctrl-C does."""
        self._stop = stop

    def take(self, arrived: InstructionArrived) -> None:
        """An instruction has come: it waits for the step's end, or is refused."""
        told = arrived.instruction
        asked = Asked(told.key.value, told.value, arrived.number)
        why = self._refusal(asked, arrived)
        if not why:
            self._last_number = arrived.number
            why = self._propose(asked)
        if why:
            self._refuse(asked, why)

    def look(self) -> None:
        """On the courier's thread, often: see what the other ranks say of an instruction."""
        if self._ranks is not None and self._loop is not None:
            self._ranks.look(self._loop[1])

    def step_over(self) -> None:
        """A step has ended, on the training thread: do what was asked."""
        if self._lowered is not None:
            self._look_after_the_rate()
        if self._ranks is not None:
            self._take_what_is_due(self._ranks)
        while self._waiting:
            asked = self._waiting.popleft()
            if asked.key == RATE:
                self._change_rate(asked)
            elif asked.key == SAVE:
                self._write_checkpoint(asked)
            else:
                self._end(asked)

    # --- several ranks ---------------------------------------------------------------------------

    def _propose(self, asked: Asked) -> str:
        """Have it done after this step, or by all ranks after one that all can see coming."""
        if self._ranks is None or self._loop is None:
            self._waiting.append(asked)
            return ""
        return self._ranks.propose(asdict(asked), self._loop[1].number, self._step_s)

    def _take_what_is_due(self, ranks: RankAgreement) -> None:
        now = time.perf_counter()
        took_s, self._stepped_at = now - self._stepped_at, now
        self._step_s = min(took_s, 2 * self._step_s) if self._step_s else took_s
        due = None if self._loop is None else ranks.due(self._loop[1].number)
        if due is None:
            return
        asked = Asked(**due[0])
        if due[1]:
            self._waiting.append(asked)
        else:
            self._refuse(asked, "not every rank saw it in time, so none did it")

    # --- what is refused -------------------------------------------------------------------------

    def _refuse(self, asked: Asked, why: str) -> None:
        self._answer(asked, "refused", f"{_NAMES[asked.key]} was refused: {why}.")

    def _refusal(self, asked: Asked, arrived: InstructionArrived) -> str:
        if not arrived.is_authentic:
            return "the feed is not encrypted (AMPWATCH_INSECURE), so anybody may have sent it"
        if arrived.number <= self._last_number:
            return "it came a second time"
        if not -1.0 <= arrived.age_s <= FRESH_S:  # the clock may have been set back a little
            return f"it came late (after {arrived.age_s:.0f} s)"
        if asked.key not in self._offers():
            return "the training gave no function that saves: call watch.on_save(function)"
        if len(self._waiting) >= _MOST_WAITING:
            return "too many instructions wait for the step in progress to end"
        return ""

    def _offers(self) -> list[str]:
        return [RATE, STOP] if self._save is None else [RATE, SAVE, STOP]

    # --- what is done ----------------------------------------------------------------------------

    def _change_rate(self, asked: Asked) -> None:
        factor = asked.value
        assert factor is not None
        before, views = self._rates(), self._views()
        for view in views:
            view.multiply_rates(factor)
        after = self._rates()
        if not views:
            self._answer(asked, "refused", "The learning rate stays: no optimizer was seen yet.")
            return
        self._lowered = asked.number, before, after
        detail = {"factor": factor, "from": before, "to": after}
        told = f"The learning rate was changed{_from_to(before, after)}, on the page's request."
        self._answer(asked, "done", told, **detail)

    def _look_after_the_rate(self) -> None:
        """A step later: did the program set its rate back?"""
        assert self._lowered is not None
        (number, before, after), self._lowered = self._lowered, None
        now = self._rates()
        if now and len(now) == len(after) and _is_nearer(now, before, after):
            told = (
                f"The program set its learning rate back, to {now[0]:.4g}: it keeps the rate "
                "itself, so change it in the script."
            )
            self._say({"outcome": "undone", "number": number, "told": told})

    def _views(self) -> list[OptimizerView]:
        return [] if self._loop is None else list(self._loop[0].views.values())

    def _rates(self) -> list[float]:
        """Each group's rate, of all optimizers; without those that only a device knows."""
        found = [number_of(group.get("lr")) for group in groups_of(self._views())]
        return [rate for rate in found if math.isfinite(rate)]

    def _write_checkpoint(self, asked: Asked) -> None:
        if self._save is None:
            return  # another rank of this training saves
        began = time.perf_counter()
        if self._call(self._save, asked, "on_save"):
            took_s = time.perf_counter() - began
            told = f"A checkpoint was written in {took_s:.1f} s, on the page's request."
            self._answer(asked, "done", told)

    def _end(self, asked: Asked) -> None:
        told = "The training is ended after this step, on the page's request."
        self._answer(asked, "done", told)
        if self._stop is not None:
            self._call(self._stop, asked, "on_stop")
        else:
            interrupt()

    def _call(self, function: Callable[[], object], asked: Asked, given_to: str) -> bool:
        """Call the user's function; its exception is reported, and training continues."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - theirs may raise anything
            said = f"{type(error).__name__}: {str(error)[:200]}"
            told = f"The function given to {given_to} raised {said}. Training goes on."
            self._answer(asked, "failed", told)
            return False
        return True

    # --- reports ---------------------------------------------------------------------------------

    def _answer(self, asked: Asked, outcome: str, told: str, **detail: Any) -> None:
        about = {"asked": asked.key, "number": asked.number, "outcome": outcome, "told": told}
        self._say({**about, **detail})

    def _offer(self) -> None:
        self._say({"offers": self._offers()})

    def _say(self, detail: dict[str, Any]) -> None:
        if self._loop is not None:
            _, step, deliver = self._loop
            deliver(EventRecord(step.number, time.time_ns(), EventKind.CONTROL, detail))


def interrupt() -> None:
    """End the training as Ctrl-C does: what the loop does then, it does now."""
    if threading.current_thread() is threading.main_thread():
        signal.raise_signal(signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)


def _is_nearer(now: list[float], before: list[float], after: list[float]) -> bool:
    """Whether each rate is nearer to the first than to the second, in octaves."""
    moved = [three for three in zip(now, before, after, strict=True) if min(three) > 0]
    return bool(moved) and all(n * n > b * a if b > a else n * n < b * a for n, b, a in moved)


def _from_to(before: list[float], after: list[float]) -> str:
    pairs = dict.fromkeys(zip(before, after, strict=True))
    told = ", ".join(f"from {one:.4g} to {other:.4g}" for one, other in list(pairs)[:3])
    return f" {told}" if told else ""
