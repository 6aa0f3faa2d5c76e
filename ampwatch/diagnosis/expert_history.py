"""How many tokens each expert of a mixture received, folded from the samples of its router.

Samples are added up, those of all ranks, until a window of them is enough to judge each expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Integers

# An expert that may expect a tenth of an equal share receives less than a hundredth of it by chance
# once in 20 million times, where an equal share is so many tokens.
FAIR_TOKENS, IDLE_PART = 200, 0.01
# The data of a few steps may have no use for an expert.
WINDOW_SAMPLES, WINDOW_STEPS = 5, 200
FIRST_STEP = 50  # a router that is new has not settled, and its first steps are sampled densely


@dataclass(frozen=True, slots=True)
class ExpertWindow:
    """The tokens that one router sent to each of its experts, over some samples."""

    first_step: int
    last_step: int
    samples: int  # steps
    tokens: Integers

    def with_tokens(self, step: int, tokens: Integers) -> ExpertWindow:
        """The window with the tokens of one more step, or of one more rank in its last."""
        samples = self.samples + (step != self.last_step)
        return ExpertWindow(self.first_step, step, samples, self.tokens + tokens)

    @property
    def is_full(self) -> bool:
        """Whether it is enough to judge each expert."""
        is_long = self.last_step - self.first_step >= WINDOW_STEPS
        return is_long and self.samples >= WINDOW_SAMPLES and self.tokens.mean() >= FAIR_TOKENS

    @property
    def idle(self) -> Integers:
        """The numbers of the experts with next to no tokens."""
        return np.flatnonzero(self.tokens < IDLE_PART * self.tokens.mean())


@dataclass(frozen=True, slots=True)
class ExpertHistory:
    """By router its last full window and the window that fills now; `fold` makes a new one."""

    full: Mapping[str, ExpertWindow] = field(default_factory=dict)
    filling: Mapping[str, ExpertWindow] = field(default_factory=dict)

    def fold(self, block: Block) -> ExpertHistory:
        """The history of experts with one more block."""
        rows = block.layers
        history = ExpertHistory() if block.restart else self
        # The weights of a frozen router come from another training, and so does its choice.
        counted = (rows.numbers("experts_idle") >= 0) & (rows.flags("trainable") != 0)
        counted &= rows.flags("act_finite") >= 0  # a sample: what it saw holds until the next one
        at = np.flatnonzero(counted & (rows.layer >= 0) & (rows.step >= FIRST_STEP))
        if not len(at):
            return history
        full, filling = dict(history.full), dict(history.filling)
        for row in at[np.argsort(rows.step[at], kind="stable")].tolist():
            name, step = rows.names[rows.layer[row]], int(rows.step[row])
            tokens = np.array(rows.value("expert_tokens", row))
            window = filling.get(name)
            if window is not None and step != window.last_step and window.is_full:
                full[name], window = window, None
            if window is None or len(window.tokens) != len(tokens):
                filling[name] = ExpertWindow(step, step, 1, tokens)
            else:
                filling[name] = window.with_tokens(step, tokens)
        return ExpertHistory(full, filling)
