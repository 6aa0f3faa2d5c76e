"""All ranks decide alike, without a wait that could last: the rank that comes first decides.

The ranks meet in the store of the training's process group. A decision is a key that is written
once: the store itself sees to it that all who ask read the same. Before anything is decided each
rank lays down its settings and the gradient norms of a few steps. Where the norms agree, as after
DDP's reduction, a rank asks only in a step that looks suspicious to it, as it then does to all.
Where they differ (shards, a pipeline) nobody knows what the others see, so each step has a vote:
an `all_reduce` of one number, with a time limit. Whatever fails, the guard does nothing from then
on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch

from ampwatch.probe.run_identity import Ranks, Store

CARD_STEPS = 5  # whose norms are compared
MOST_STEPS = 500  # to wait for the other ranks' cards
VOTE_S = 20.0
_SAME_NORM = 1e-3
_AHEAD = 2  # steps: ranks that reduce gradients together are never further apart than one
_NEVER = -1


class Word(IntEnum):
    """What may be done with a step; of several ranks' words the highest counts in a vote."""

    TAKE = 0
    LEAVE_OUT = 1
    LEAVE_OUT_NOT_FINITE = 2
    STOP = 3  # leave it out, and end the training


class Alone:
    """The only rank, or a dry run, which does nothing that others would have to do too."""

    votes = False
    failure = ""

    def __init__(self, *, sees_all: bool) -> None:
        self.sees_all = sees_all  # whether this rank's loss and inputs are the whole batch's

    def step(self, _step: int, _norm: float) -> None:
        """Nothing to prepare."""

    def agreed(self, _key: str, mine: Word) -> Word:
        """My own word."""
        return mine

    def told(self, _key: str) -> Any:
        """There is nobody else."""

    def tell(self, _key: str, _what: Any) -> None:
        """There is nobody to hear it."""


class Together:
    """One rank of several."""

    def __init__(self, ranks: Ranks, name: str, settings: str) -> None:
        self.votes = False  # in each step
        self.failure = ""  # why nothing is done
        self._is_begun = False
        self._ranks, self._name, self._settings = ranks, name, settings
        self._norms: list[float] = []
        self._from: int | None = None
        self._waited = 0

    @property
    def sees_all(self) -> bool:
        """Whether this rank's loss and inputs may count: all ranks hear of them."""
        return self.votes and self._is_begun

    def step(self, step: int, norm: float) -> None:
        """A step is about to be judged: get ready."""
        if self._is_begun or self.failure:
            return
        try:
            self._prepare(step, norm)
        except Exception as error:  # noqa: BLE001 - of any store; nothing is done then
            self._fail(error)

    def agreed(self, key: str, mine: Word) -> Word:
        """What all ranks do; they take the step where that cannot be known."""
        if self.failure or not self._is_begun:
            return Word.TAKE
        try:
            if self.votes:
                return Word(self._vote(mine))
            return Word(int(self._write_once(key, str(int(mine)))))
        except Exception as error:  # noqa: BLE001 - of any store or backend
            self._fail(error)
            return Word.TAKE

    def told(self, key: str) -> Any:
        """What a rank has laid down under this key; None while nothing is there."""
        store = self._met()
        return json.loads(store.get(self._key(key))) if store.check([self._key(key)]) else None

    def tell(self, key: str, what: Any) -> None:
        """Lay something down for the others."""
        self._met().set(self._key(key), json.dumps(what))

    # --- getting ready --------------------------------------------------------------------------

    def _prepare(self, step: int, norm: float) -> None:
        if self._from is not None:
            self._is_begun = step >= self._from
            return
        self._waited += 1
        if len(self._norms) < CARD_STEPS:
            self._norms.append(norm)
            if len(self._norms) < CARD_STEPS:
                return
            card = [self._settings, [str(one) for one in self._norms]]
            self.tell(f"card/{self._ranks.rank}", card)
        self._look_at_cards(step)

    def _look_at_cards(self, step: int) -> None:
        store = self._met()
        keys = [f"card/{rank}" for rank in range(self._ranks.world_size)]
        all_there = store.check([self._key(key) for key in keys])
        if not all_there and self._waited < MOST_STEPS:
            return
        mine = {"from": _NEVER, "votes": False}
        if all_there:
            cards = [self.told(key) for key in keys]
            if all(card[0] == cards[0][0] for card in cards):
                norms = [[float(one) for one in card[1]] for card in cards]
                mine = {"from": step + _AHEAD, "votes": not _agree(norms)}
        begin = json.loads(self._write_once("begin", json.dumps(mine)))
        if begin["from"] == _NEVER:
            self.failure = "not every rank has a guard with the same settings"
        elif begin["from"] < step:
            self.failure = "the ranks are not in the same step"
        else:
            self._from, self.votes = begin["from"], begin["votes"]

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {str(error)[:160]}"

    # --- deciding -------------------------------------------------------------------------------

    def _vote(self, mine: Word) -> int:
        import torch.distributed as dist

        said = torch.tensor([float(mine)], device=_device(str(dist.get_backend())))
        work = dist.all_reduce(said, op=dist.ReduceOp.MAX, async_op=True)
        work.wait(timedelta(seconds=VOTE_S))
        return int(said.item())

    def _write_once(self, key: str, value: str) -> str:
        return self._met().compare_set(self._key(key), "", value).decode()

    def _key(self, key: str) -> str:
        return f"{self._name}/{key}"

    def _met(self) -> Store:
        store = self._ranks.store()
        if store is None:
            raise RuntimeError("there is no process group to agree in")
        return store


def _device(backend: str) -> str:
    """Where a tensor must be for this backend."""
    return "cpu" if "gloo" in backend or "mpi" in backend else "cuda"


def _agree(norms: Sequence[Sequence[float]]) -> bool:
    """Whether all ranks saw the same gradients."""
    return all(all(map(_same, norms[0], other)) for other in norms[1:])


def _same(one: float, other: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return abs(one - other) <= _SAME_NORM * max(one, other)
