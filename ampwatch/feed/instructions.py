"""What a page may ask of a trainer that allows it: a closed list, checked at both ends.

An instruction has a number that is higher than that of any before it, so one that comes twice is
told from a new one. It repeats the time of the trainer's last sign of life, by the trainer's own
clock, so one that comes late is told from a fresh one though the two clocks differ.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

from ampwatch.errors import FrameError

MAX_INSTRUCTION_BYTES = 200
LEAST_FACTOR, MOST_FACTOR = 1e-4, 4.0  # of the learning rate: what advice can ask for, and some


class Key(str, enum.Enum):
    """All that can be asked for."""

    RATE = "learning-rate"  # multiply every group's rate by the value
    SAVE = "save"  # write a checkpoint, by the function that the training gave
    STOP = "stop"  # end after the step in progress


@dataclass(frozen=True, slots=True)
class Instruction:
    """One thing that a page asks for."""

    key: Key
    value: float | None = None  # the factor of a rate; of the others None

    def __post_init__(self) -> None:
        if (self.key is Key.RATE) != (self.value is not None):
            raise FrameError(f"The instruction {self.key.value!r} has the value {self.value}.")
        if self.value is not None and not LEAST_FACTOR <= self.value <= MOST_FACTOR:
            raise FrameError(
                f"A learning rate is multiplied by {LEAST_FACTOR:g} to {MOST_FACTOR:g}, "
                f"not by {self.value:.4g}."
            )

    def to_bytes(self) -> bytes:
        """The payload of its frame."""
        return json.dumps({"key": self.key.value, "value": self.value}).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Instruction:
        """The instruction in a payload from outside."""
        try:
            told = json.loads(payload)
            key, value = Key(told["key"]), told["value"]
            number = None if value is None else float(value)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FrameError(f"An instruction cannot be read ({type(error).__name__}).") from None
        return cls(key, number)
