"""What a page may have the training do, where `attach(control=True)` allows it.

An instruction arrives on the courier's thread and is done on the training thread, between two
steps. Each gets an answer, a `control` event in the run's own rows: done, or why not. What is
late, comes twice, is not on the list or came unencrypted is refused.

All ranks do it in the same step, or none does. No collective is added to the training's. The ranks
meet in the store of its process group, on their courier threads. Rank 0 proposes a step some
seconds ahead. A rank that sees the proposal before that step agrees to it. The rank that comes to
the step first decides for all: for it if all have agreed by then, else against it. The decision is
a key that is written once, so that all read the same, and no training thread waits for another.
"""

from __future__ import annotations

import json
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
from ampwatch.probe.learning_rates import number_of
from ampwatch.probe.optimizer_turns import Turns
from ampwatch.probe.optimizers import OptimizerView, groups_of
from ampwatch.probe.run_identity import Ranks
from ampwatch.rows import EventKind

if TYPE_CHECKING:
    from ampwatch.feed import InstructionArrived

FRESH_S = 15.0  # since the sign of life that its sender had heard; there is one a second
_MOST_WAITING = 16
LOOK_S = 1.0  # between two looks at the ranks' store; longer where many of them ask one store
_RANKS_A_SECOND = 1000
_SPARE_S = 2.0
_LEAST_STEPS = 2
_DO, _DROP = "do", "drop"
RATE, SAVE, STOP = "learning-rate", "save", "stop"  # `feed.Key`, which would load zmq
_NAMES = {RATE: "A change of the learning rate", SAVE: "A checkpoint", STOP: "Stopping"}


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to do."""

    key: str
    value: float | None
    number: int


class Control:
    """Holds what was asked until the step in progress has ended."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = RankAgreement(ranks) if ranks.world_size > 1 else None
        self._waiting: deque[Request] = deque()
        self._last_number = 0
        self._lowered: tuple[int, list[float], list[float]] | None = None
        self._step_s, self._stepped_at = 0.0, time.perf_counter()
        self._save: Callable[[], object] | None = None
        self._stop: Callable[[], object] | None = None
        self._turns: Turns | None = None  # of the loop, as the next one
        self._step: CurrentStep | None = None

    def follow(self, turns: Turns, step: CurrentStep) -> None:
        """Act on this loop when a page asks; tell in its rows what may be asked for."""
        self._turns, self._step = turns, step
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
        order = arrived.instruction
        asked = Request(order.key.value, order.value, arrived.number)
        why = self._refusal(asked, arrived)
        if not why:
            self._last_number = arrived.number
            why = self._propose(asked)
        if why:
            self._refuse(asked, why)

    def look(self) -> None:
        """On the courier's thread, often: see what the other ranks say of an instruction."""
        if self._ranks is not None and self._step is not None:
            self._ranks.look(self._step)

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

    def _propose(self, asked: Request) -> str:
        """Have it done after this step, or by all ranks after one that all can see coming."""
        if self._ranks is None or self._step is None:
            self._waiting.append(asked)
            return ""
        return self._ranks.propose(asdict(asked), self._step.number, self._step_s)

    def _take_what_is_due(self, ranks: RankAgreement) -> None:
        now = time.perf_counter()
        took_s, self._stepped_at = now - self._stepped_at, now
        self._step_s = min(took_s, 2 * self._step_s) if self._step_s else took_s
        due = None if self._step is None else ranks.due(self._step.number)
        if due is None:
            return
        asked = Request(**due[0])
        if due[1]:
            self._waiting.append(asked)
        else:
            self._refuse(asked, "not every rank saw it in time, so none did it")

    # --- what is refused -------------------------------------------------------------------------

    def _refuse(self, asked: Request, why: str) -> None:
        self._answer(asked, "refused", f"{_NAMES[asked.key]} was refused: {why}.")

    def _refusal(self, asked: Request, arrived: InstructionArrived) -> str:
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

    def _change_rate(self, asked: Request) -> None:
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
        text = f"The learning rate was changed{_from_to(before, after)}, on the page's request."
        self._answer(asked, "done", text, **detail)

    def _look_after_the_rate(self) -> None:
        """A step later: did the program set its rate back?"""
        assert self._lowered is not None
        (number, before, after), self._lowered = self._lowered, None
        now = self._rates()
        if now and len(now) == len(after) and _is_nearer(now, before, after):
            text = (
                f"The program set its learning rate back, to {now[0]:.4g}: it keeps the learning "
                "rate itself, so change it in the script."
            )
            self._say({"outcome": "undone", "number": number, "told": text})

    def _views(self) -> list[OptimizerView]:
        return [] if self._turns is None else list(self._turns.views.values())

    def _rates(self) -> list[float]:
        """Each group's rate, of all optimizers; without those that only a device knows."""
        rates = [number_of(group.get("lr")) for group in groups_of(self._views())]
        return [rate for rate in rates if math.isfinite(rate)]

    def _write_checkpoint(self, asked: Request) -> None:
        if self._save is None:
            return  # another rank of this training saves
        began = time.perf_counter()
        if self._call(self._save, asked, "on_save"):
            took_s = time.perf_counter() - began
            text = f"A checkpoint was written in {took_s:.1f} s, on the page's request."
            self._answer(asked, "done", text)

    def _end(self, asked: Request) -> None:
        text = "The training is ended after this step, on the page's request."
        self._answer(asked, "done", text)
        if self._stop is not None:
            self._call(self._stop, asked, "on_stop")
        else:
            interrupt()

    def _call(self, function: Callable[[], object], asked: Request, given_to: str) -> bool:
        """Call the user's function; its exception is reported, and training continues."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - theirs may raise anything
            error_text = f"{type(error).__name__}: {str(error)[:200]}"
            text = f"The function given to {given_to} raised {error_text}. Training goes on."
            self._answer(asked, "failed", text)
            return False
        return True

    # --- reports ---------------------------------------------------------------------------------

    def _answer(self, asked: Request, outcome: str, told: str, **detail: Any) -> None:
        about = {"asked": asked.key, "number": asked.number, "outcome": outcome, "told": told}
        self._say({**about, **detail})

    def _offer(self) -> None:
        self._say({"offers": self._offers()})

    def _say(self, detail: dict[str, Any]) -> None:
        if self._step is not None:
            self._step.event(EventKind.CONTROL, detail)


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
    changes = ", ".join(f"from {one:.4g} to {other:.4g}" for one, other in list(pairs)[:3])
    return f" {changes}" if changes else ""


# -- all ranks in the same step, or none -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposal:
    """What all ranks are to do once so many steps are over."""

    number: int
    at_step: int
    what: Any  # as JSON can hold it


class RankAgreement:
    """One rank's part."""

    def __init__(self, ranks: Ranks) -> None:
        self.look_s = max(LOOK_S, ranks.world_size / _RANKS_A_SECOND)
        self._ranks, self._others = ranks, ranks.world_size - 1
        self._agreed: Proposal | None = None
        self._last_number = 0
        self._looked_at = -math.inf

    def propose(self, what: Any, step: int, step_s: float) -> str:
        """On rank 0: propose it for a step that all can still see coming; else why not."""
        if self._agreed is not None:
            return "another instruction is on its way to all ranks"
        store = self._ranks.store()
        if store is None:
            return "the ranks have no process group to agree in"
        ahead = max(_LEAST_STEPS, math.ceil((2 * self.look_s + _SPARE_S) / max(step_s, 1e-3)))
        self._last_number += 1
        self._agreed = mine = Proposal(self._last_number, step + ahead, what)
        store.set(f"proposal/{mine.number}", json.dumps({"at_step": mine.at_step, "what": what}))
        return ""

    def look(self, step: CurrentStep) -> None:
        """On the courier's thread of the other ranks, often: agree to what rank 0 proposes."""
        now = time.monotonic()
        if self._ranks.rank == 0 or now - self._looked_at < self.look_s:
            return
        self._looked_at = now
        store, number = self._ranks.store(), self._last_number + 1
        if store is None or self._agreed is not None or not store.check([f"proposal/{number}"]):
            return
        proposal = json.loads(store.get(f"proposal/{number}"))
        self._last_number = number
        self._agreed = Proposal(number, proposal["at_step"], proposal["what"])
        # Asked after it is set: from here on the training thread comes to that step knowing of it.
        if step.number < proposal["at_step"]:
            store.add(f"agreed/{number}", 1)
        else:
            self._agreed = None

    def due(self, step: int) -> tuple[Any, bool] | None:
        """After each step: what was to be done now, and whether it is; None if nothing was."""
        agreed = self._agreed
        if agreed is None or step < agreed.at_step or (store := self._ranks.store()) is None:
            return None
        have_all_agreed = store.add(f"agreed/{agreed.number}", 0) >= self._others
        mine = _DO if have_all_agreed else _DROP
        decision = store.compare_set(f"decision/{agreed.number}", "", mine).decode()
        self._agreed = None
        return agreed.what, decision == _DO
