"""A stranger's script, run as it stands, with each loss that goes backward written down.

    python benchmarks/agents_training.py LOSSES SCRIPT

The losses are read where torch gets them, not from ampwatch: they are the truth of `agents.py`.
"""

from __future__ import annotations

import atexit
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    book, script = sys.argv[1:]
    losses: list[float] = []
    scaled: set[int] = set()
    atexit.register(lambda: Path(book).write_text(json.dumps(losses)))
    scale, backward = torch.amp.GradScaler.scale, torch.Tensor.backward

    def scale_noted(self: Any, outputs: Any) -> Any:
        made = scale(self, outputs)
        if isinstance(outputs, torch.Tensor):
            losses.append(float(outputs.detach()))
            scaled.add(id(made))
        return made

    def backward_noted(self: torch.Tensor, *given: Any, **named: Any) -> None:
        if id(self) in scaled:
            scaled.discard(id(self))
        elif self.numel() == 1:
            losses.append(float(self.detach()))
        backward(self, *given, **named)

    torch.amp.GradScaler.scale = scale_noted  # type: ignore[method-assign]
    torch.Tensor.backward = backward_noted  # type: ignore[method-assign]
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
