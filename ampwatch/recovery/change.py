"""How a rerun differs from the run, as passed to the process that trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CHANGE = "AMPWATCH_RERUN"  # the environment variable that holds it
RATE = "lr"
NOTHING = "nothing"  # the run as it was: does its trouble come back?
FLOAT32, LAYERS_BY = "float32", ", "  # of layers, whose names stand in one value
ROOT = "(root)"
_DONE = "changed-{}.txt"

Value = float | str | bool | None
Cure = tuple[str, Value]  # the name of a change other than of the rate, and its value

# What can be changed besides the rate, in words: first as PyTorch's own troubleshooting tries it.
WORDS = {
    "autocast-off": "autocast off",
    "scaler-off": "loss scaler off",
    FLOAT32: "{} in float32",
    "bfloat16": "autocast to bfloat16",
    "plain-optimizer": "foreach and fused off",
    "deterministic": "deterministic algorithms",
    "compile-off": "torch.compile off",
    "tf32-off": "TF32 off",
    "init_scale": "a loss scale that begins at {}",
    "growth_interval": "a growth interval of {}",
    "clip": "the gradient norm clipped at {}",
}


def switch_text(name: str, value: Value) -> str:
    """A change in words; of a name that another version wrote, the name."""
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return WORDS.get(name, name).format(shown)


@dataclass(frozen=True, slots=True)
class Change:
    """One thing, and where the rerun's files go instead of over the user's.

    The value of a change of the rate is a factor.
    """

    name: str
    value: Value
    outputs: str

    def note_done(self) -> None:
        """In the process that trains: the change has met what it changes."""
        self._done.touch()

    @property
    def was_done(self) -> bool:
        """Whether the training had what the change is about: a scaler, an autocast, the layer."""
        return self._done.exists()

    @property
    def _done(self) -> Path:
        return Path(self.outputs).with_name(_DONE.format(self.name))


def changes_text(changes: Sequence[Change]) -> str:
    """All changes of a rerun, as text for the environment variable."""
    return json.dumps([asdict(one) for one in changes])


def changes_from_text(text: str) -> list[Change]:
    """What `changes_text` wrote."""
    return [Change(**told) for told in json.loads(text)]
