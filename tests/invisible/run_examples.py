"""A child of test_invisible_examples: run every example in one process and print a digest of each.

run_examples.py FOLDER STEPS, watched unless AMPWATCH=0. What an example makes is kept by wrapping
the constructors of optimizers and scalers, in both alike.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.util
import io
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from invisible_trainings import flatten

EXAMPLES = Path(__file__).parents[2] / "examples"
_TIMES = re.compile(r"[\d.]+ s\b")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keep_what_is_made(kind: type, made: list[Any]) -> None:
    original = kind.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    kind.__init__ = __init__


def digest(path: Path, folder: Path, steps: int, made: list[Any]) -> dict[str, str]:
    """What the example leaves behind, as one hash for each place."""
    made.clear()
    np.random.seed(1)
    random.seed(1)
    arguments = [f"--steps={steps}", f"--log-dir={folder}", "--seed=5"]
    if path.stem == "save_and_resume":
        arguments.append(f"--checkpoint={folder / 'checkpoint.pt'}")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        load(path).main(arguments)
    gc.collect()
    groups = [group for one in made for group in getattr(one, "param_groups", ())]
    left = {
        "made": [one.state_dict() for one in made],
        "weights": [group["params"] for group in groups],
        "random": [torch.get_rng_state(), np.random.get_state(), random.getstate()],
        "printed": _TIMES.sub("", output.getvalue()).splitlines(),
    }
    return {
        place: hashlib.sha256(repr(value).encode()).hexdigest()
        for place, value in flatten(left).items()
    }


def can_run(path: Path) -> bool:
    """Whether the framework that an example is named after is installed."""
    framework = path.stem.split("_")[0]
    named = framework in {"lightning", "transformers", "accelerate"}
    return not named or importlib.util.find_spec(framework) is not None


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    made: list[Any] = []
    keep_what_is_made(torch.optim.Optimizer, made)
    keep_what_is_made(torch.amp.GradScaler, made)
    digests = {
        path.stem: digest(path, folder, steps, made)
        for path in sorted(EXAMPLES.glob("*.py"))
        if can_run(path)
    }
    print(json.dumps(digests))


if __name__ == "__main__":
    main()
