"""RUN/recorder.json: which ranks of a run are a recorder's copies, and what each lacks.

A copy's own rows cannot say which batches will never come, nor whether the trainer ended where the
copy ends. A rank without a note was written by its trainer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ampwatch.errors import RunError
from ampwatch.files import BAD_VALUES, read_at_most, replace_file
from ampwatch.ranges import Range, Ranges

COPY_FILE = "recorder.json"
_MAX_BYTES = 16 << 20
MOST_GAPS = 1000  # that a recorder notes; if there are more, only their number is reported


@dataclass(frozen=True, slots=True)
class CopyNote:
    """What recorder.json says of a rank: what will never come, and where its end mark was."""

    gaps: tuple[Range, ...] = ()
    ended_at: int | None = None


def read_copies(run_folder: Path) -> dict[int, CopyNote]:
    """The notes of the ranks that a recorder has filed; none for a trainer's own run."""
    try:
        return load_copies(run_folder)
    except RunError:
        return {}


def load_copies(run_folder: Path) -> dict[int, CopyNote]:
    """The notes on copies for the recorder, which must not guess: RunError if unreadable.

    Without notes a copy looks like a trainer's own log, into which nothing is ever filed.
    """
    path = run_folder / COPY_FILE
    try:
        ranks = json.loads(read_at_most(path, _MAX_BYTES))["ranks"]
        return {int(rank): _note(facts) for rank, facts in ranks.items()}
    except FileNotFoundError:
        return {}
    except (OSError, *BAD_VALUES) as problem:
        raise RunError(
            f"{path} is damaged or cannot be read, so it is not known who wrote the rows beside "
            f"it: move {run_folder} away, and a new copy is made from the trainer's log.",
            path=path,
        ) from problem


def write_copies(run_folder: Path, notes: Mapping[int, CopyNote]) -> None:
    """Replace the notes on copies; an OSError leaves the old ones."""
    text = json.dumps({"ranks": {rank: asdict(note) for rank, note in notes.items()}})
    replace_file(run_folder / COPY_FILE, text.encode())


def what_lacks(held: Ranges, note: CopyNote | None, *, is_over: bool) -> Iterator[str]:
    """What a copy lacks: sentences, without subject and full stop, on its missing batches.

    `is_over`: nobody writes the files any more.
    """
    lost = note.gaps if note else ()
    missing = Ranges(held.gaps)
    if len(missing) > MOST_GAPS:
        yield f"{len(missing)} ranges of batches are not in this copy"
        return
    for first, after in missing.without(lost):
        yield f"{_numbers(first, after)} not in this copy"
    for first, after in lost:
        yield f"{_numbers(first, after)} lost for good: the trainer's own log no longer had them"
    if note is not None and note.ended_at is None and is_over:
        yield (
            f"this copy stops before batch {held.end}, without an end mark; what the trainer wrote "
            "after that is in the trainer's own log only"
        )


def _numbers(first: int, after: int) -> str:
    return f"batch {first} is" if after - first == 1 else f"batches {first} to {after - 1} are"


def _note(facts: dict[str, list[list[int]] | int | None]) -> CopyNote:
    gaps, ended_at = facts["gaps"], facts["ended_at"]
    if not isinstance(gaps, list) or not isinstance(ended_at, int | None):
        raise TypeError("not a note of ours")
    if len(gaps) > MOST_GAPS:
        raise ValueError("more gaps than a recorder notes")
    return CopyNote(tuple((int(first), int(after)) for first, after in gaps), ended_at)
