"""A tiny training with overflows, and the same in a forked child that may be killed or hindered.

Its end is told by a digest of all that a training leaves: weights, optimizer, scaler and random
state. What the log has acknowledged is told through a pipe, batch by batch, past all buffers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chaos_trials import Hung, Lost, die_with_parent, lost_if_raised
from torch import nn

import ampwatch
from ampwatch.errors import AmpwatchError
from ampwatch.rows import Table
from ampwatch.store import RankWriter

torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer loads for seconds: not in a fork

STEPS = 120
SEEDS = 4  # a training of each is done without us, to compare with
_PATIENCE_S = 90.0


class Training:
    """A loop whose loss scale is too large at first, and whose weights depend on every step."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=30)
        self.losses: list[float] = []

    def step(self) -> None:
        with torch.autocast("cpu", torch.float16):
            loss = self.model(torch.randn(8, 8)).float().square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.item())

    def digest(self) -> str:
        state = self.optimizer.state_dict()["state"]
        tensors = [*self.model.parameters(), *(s[k] for s in state.values() for k in sorted(s))]
        parts = [tensor.detach().numpy().tobytes() for tensor in tensors]
        parts += [repr(self.scaler.state_dict()).encode(), torch.get_rng_state().numpy().tobytes()]
        return hashlib.sha256(b"".join(parts)).hexdigest()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a child trains: where, from which seed, and what happens to it at which step."""

    log_dir: Path
    seed: int = 0
    steps: int = STEPS
    pause_s: float = 0.003
    at: int = -1
    happens: Callable[[Training, Any], None] = lambda training, watch: None
    before: Callable[[], None] = lambda: None
    attach: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Child:
    """A forked training, and what it has said so far."""

    pid: int
    pipe: int
    errors: Path
    heard: bytes = b""
    code: int | None = None

    def until_said(self, word: str) -> None:
        """Read on until it says the word; Hung if it neither does nor ends."""
        deadline = time.monotonic() + _PATIENCE_S
        while f"{word}\n".encode() not in self.heard:
            left_s = deadline - time.monotonic()
            if not select.select([self.pipe], [], [], max(0.0, left_s))[0]:
                raise Hung(f"a training did not come to {word!r} in {_PATIENCE_S:g} s")
            data = os.read(self.pipe, 1 << 16)
            if not data:
                return
            self.heard += data

    def kill(self) -> bool:
        """Kill it now; whether that ended it, and not it itself."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        return self.code == -signal.SIGKILL

    def wait(self) -> None:
        """Hear all it says until it ends, and bury it."""
        self.until_said("\0 never said")
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pipe)

    @property
    def lines(self) -> list[list[str]]:
        whole = self.heard[: self.heard.rfind(b"\n") + 1].decode()
        return [line.split(" ", 1) for line in whole.splitlines()]

    @property
    def acknowledged(self) -> Counter[str]:
        """The rows by table that the log has acknowledged."""
        rows: Counter[str] = Counter()
        for word, *rest in self.lines:
            if word == "filed":
                table, count = rest[0].split()
                rows[table] += int(count)
        return rows

    @property
    def said_at_end(self) -> dict[str, Any]:
        """Its digest and the rows its watch counts as lost."""
        found = [rest[0] for word, *rest in self.lines if word == "end"]
        if not found:
            words = self.errors.read_text(errors="replace").strip().splitlines()[-1:]
            raise Hung(f"a training ended with {self.code} and said no result; {words}")
        return json.loads(found[0])


def start(plan: Plan, errors: Path) -> Child:
    """Fork a training under watch."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.close(reading)
            die_with_parent()
            said = os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(said, 2)
            sys.stderr = os.fdopen(2, "w", 1, closefd=False)
            warnings.resetwarnings()
            _train(plan, writing)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            raise
        finally:
            os._exit(code)
    os.close(writing)
    return Child(pid, reading, errors)


def _train(plan: Plan, pipe: int) -> None:
    def say(words: str) -> None:
        os.write(pipe, f"{words}\n".encode())

    _say_what_is_filed(say)
    torch.set_num_threads(1)
    training = Training(plan.seed)
    plan.before()
    say("attaching")
    options = {"run": "run", "endpoint": "off", "layer_every": 10, **plan.attach}
    watch = ampwatch.attach(training.scaler, training.model, log_dir=plan.log_dir, **options)
    say("training")
    for step in range(plan.steps):
        if step == plan.at:
            plan.happens(training, watch)
        training.step()
        time.sleep(plan.pause_s)
    digest = training.digest()
    say("closing")
    watch.close()
    say(f"end {json.dumps({'digest': digest, 'lost_rows': watch.lost_rows})}")


def _say_what_is_filed(say: Callable[[str], None]) -> None:
    append = RankWriter.append

    def saying(self: RankWriter, batch: Any, sequence: int | None = None) -> int:
        number = append(self, batch, sequence)
        say(f"filed {batch.table.value} {batch.row_count}")
        return number

    RankWriter.append = saying  # type: ignore[method-assign]


def train_without_us(material: Path) -> None:
    """What each seed's training ends with, for `truth_of`."""
    for seed in range(SEEDS):
        training = Training(seed)
        for _ in range(STEPS):
            training.step()
        facts = {"digest": training.digest(), "losses": training.losses}
        (material / f"truth-{seed}.json").write_text(json.dumps(facts))


def truth_of(material: Path, seed: int) -> dict[str, Any]:
    """A training's digest and losses without us."""
    facts: dict[str, Any] = json.loads((material / f"truth-{seed}.json").read_text())
    return facts


def check_rows(run: ampwatch.Run, losses: list[float]) -> int:
    """Every step that is there is there once, in order, with its own loss; how many there are."""
    with lost_if_raised("rows cannot be read", AmpwatchError):
        rows = run.read(Table.STEPS, ["step", "loss"])
    steps = rows.column("step").to_pylist()
    if steps != list(range(len(steps))):
        raise Lost(f"steps are missing or doubled in {_short(steps)}")
    told = np.array(rows.column("loss").to_pylist(), np.float32)
    true = np.array(losses[: len(steps)], np.float32)
    if not np.array_equal(told, true, equal_nan=True):
        wrong = int(np.flatnonzero(~((told == true) | (np.isnan(told) & np.isnan(true))))[0])
        raise Lost(f"step {wrong} has the loss {told[wrong]}, truly {true[wrong]}")
    return len(steps)


def _short(steps: list[int]) -> str:
    with contextlib.suppress(StopIteration):
        wrong = next(n for n, step in enumerate(steps) if n != step)
        return f"{len(steps)} rows: row {wrong} has step {steps[wrong]}"
    return f"{len(steps)} rows"
