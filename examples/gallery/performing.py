"""Perform cases: each writes its run, and is not performed again while its source is the same."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from examples.gallery.vocabulary import Case, Stage

_HERE = Path(__file__).parent
# How torch refuses a wrong loop; a case may well end by one of these.
_REFUSALS = (RuntimeError, ValueError, AssertionError)


def chosen(cases: Iterable[Case], pattern: str | None) -> list[Case]:
    """The cases whose name or family the pattern fits; all, without one."""
    return [
        case
        for case in cases
        if pattern is None or fnmatch(case.name, pattern) or fnmatch(case.family, pattern)
    ]


def perform(case: Case, out: Path, seed: int = 0) -> Path:
    """Train a case from scratch; returns its run's folder, `out`/name."""
    import torch

    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    np.random.seed(seed)
    with warnings.catch_warnings(), contextlib.suppress(*_REFUSALS):
        warnings.simplefilter("ignore")
        case.train(Stage(case.name, out))
    return folder


def perform_missing(cases: Iterable[Case], out: Path, seed: int = 0) -> Iterator[Case]:
    """Train those cases that have no run yet, or whose source or seed changed; yields each."""
    notes = out / ".performed"
    notes.mkdir(parents=True, exist_ok=True)
    for case in cases:
        note, source = notes / f"{case.name}.json", f"{_source(case)}-{seed}"
        if not note.exists() or json.loads(note.read_text("utf-8"))["source"] != source:
            began = time.perf_counter()
            perform(case, out, seed)
            seconds = round(time.perf_counter() - began, 2)
            note.write_text(json.dumps({"source": source, "seconds": seconds}), "utf-8")
        yield case


def seconds_trained(cases: Iterable[Case], out: Path) -> float:
    """How long these cases took, whenever that was."""
    notes = (out / ".performed" / f"{case.name}.json" for case in cases)
    return float(sum(json.loads(note.read_text("utf-8"))["seconds"] for note in notes))


def _source(case: Case) -> str:
    """A digest of the code that makes this case."""
    files = (_HERE / "parts.py", case.source)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
