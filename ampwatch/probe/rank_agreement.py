"""All ranks do what a page asked in the same step, or none does.

No collective is added to the training's. The ranks meet in the store of its process group, on
their courier threads. Rank 0 proposes a step some seconds ahead. A rank that sees the proposal
before that step agrees to it. Once all have agreed, rank 0 decides for it; otherwise, when it comes
to the step itself, against it. A rank that has agreed asks for the decision as it comes to the
step: the one moment when a training thread may wait, and only for rank 0.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ampwatch.probe.current_step import CurrentStep

LOOK_S = 1.0  # between two looks at the store; longer where many ranks ask one store
_RANKS_A_SECOND = 1000
_SPARE_S = 2.0
_LEAST_STEPS = 2
_PATIENCE_S = 60.0  # a rank 0 that is silent for longer is dead
_DO, _DROP = "do", "drop"


class Store(Protocol):
    """What is asked of `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Write."""

    def get(self, key: str) -> bytes:
        """Read what is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether they are there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and read it."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write if what is there is as expected, nothing if ""; read what is there then."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of one training, and where they meet."""

    rank: int
    world_size: int
    find_store: Callable[[], Store | None]  # None while the process group is not there


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
        self._rank, self._others = ranks.rank, ranks.world_size - 1
        self._find_store = ranks.find_store
        self._store: Store | None = None
        self._agreed: Proposal | None = None
        self._decided = False  # for it; rank 0 alone knows before the step
        self._deciding = threading.Lock()
        self._last_number = 0
        self._looked_at = -math.inf

    def propose(self, what: Any, step: int, step_s: float) -> str:
        """On rank 0: propose it for a step that all can still see coming; else why not."""
        if self._agreed is not None:
            return "another instruction is on its way to all ranks"
        store = self._met()
        if store is None:
            return "the ranks have no process group to agree in"
        ahead = max(_LEAST_STEPS, math.ceil((2 * self.look_s + _SPARE_S) / max(step_s, 1e-3)))
        self._last_number += 1
        made = Proposal(self._last_number, step + ahead, what)
        self._decided = False
        self._agreed = made
        text = json.dumps({"at_step": made.at_step, "what": what})
        store.set(f"proposal/{made.number}", text)
        return ""

    def look(self, step: CurrentStep) -> None:
        """On the courier's thread, often: agree, or see whether all have."""
        now = time.monotonic()
        if now - self._looked_at < self.look_s:
            return
        self._looked_at = now
        if self._rank != 0:
            self._look_for_proposal(step)
        elif (mine := self._agreed) is not None:
            self._decide_if_all_agree(mine)

    def due(self, step: int) -> tuple[Any, bool] | None:
        """After each step: what was to be done now, and whether it is; None if nothing was."""
        agreed = self._agreed
        if agreed is None or step < agreed.at_step:
            return None
        is_done = self._decide_now(agreed) if self._rank == 0 else self._await_decision(agreed)
        self._agreed = None
        return agreed.what, is_done

    # --- rank 0 ----------------------------------------------------------------------------------

    def _decide_if_all_agree(self, mine: Proposal) -> None:
        store = self._met()
        if store is None or store.add(f"agreed/{mine.number}", 0) < self._others:
            return
        with self._deciding:
            if self._agreed is mine and not self._decided:
                store.set(f"decision/{mine.number}", _DO)
                self._decided = True

    def _decide_now(self, mine: Proposal) -> bool:
        with self._deciding:
            if not self._decided and (store := self._met()) is not None:
                store.set(f"decision/{mine.number}", _DROP)
            return self._decided

    # --- the others ------------------------------------------------------------------------------

    def _look_for_proposal(self, step: CurrentStep) -> None:
        store, number = self._met(), self._last_number + 1
        if store is None or self._agreed is not None or not store.check([f"proposal/{number}"]):
            return
        told = json.loads(store.get(f"proposal/{number}"))
        self._last_number = number
        self._agreed = Proposal(number, told["at_step"], told["what"])
        # Asked after it is set: from here on the training thread comes to that step knowing of it.
        if step.number < told["at_step"]:
            store.add(f"agreed/{number}", 1)
        else:
            self._agreed = None

    def _await_decision(self, agreed: Proposal) -> bool:
        store, key = self._met(), f"decision/{agreed.number}"
        until = time.monotonic() + _PATIENCE_S
        while store is not None and time.monotonic() < until:
            if store.check([key]):
                return store.get(key).decode() == _DO
            time.sleep(0.001)
        return False

    def _met(self) -> Store | None:
        if self._store is None:
            self._store = self._find_store()
        return self._store


def store_of_process_group(name: str) -> Store | None:
    """The store in which the training's own ranks met, under a name of ours."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

    found: Store = PrefixStore(f"ampwatch/{name}", _get_default_store())
    return found
