"""Verdicts of finished runs, kept in the user's state folder so that a list of runs is quick.

A verdict counts only while every file of the run and of the diagnosis is as it was: sizes and times
are compared. What is damaged or cannot be written is done without.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.files import replace_file

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

_FILE = "verdicts.json"
_MOST_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands, as a list of runs shows it."""

    verdict: str
    steps: int
    skipped: int
    final_scale: float | None
    source: str
    damage: str = ""  # what of the run's files cannot be read


def standing_of(diagnosis: Diagnosis, notes: Sequence[str] = ()) -> Standing:
    """The few figures of a diagnosis that a list shows, and damage if the run's notes tell any."""
    facts = diagnosis.run
    damage = next((note for note in notes if "damaged" in note or "missing" in note), "")
    return Standing(
        diagnosis.verdict.value, facts.steps, facts.skipped, facts.final_scale, facts.source, damage
    )


class KeptVerdicts:
    """What was found of finished runs before; `save` keeps what was added."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._kept = _read(self._path)
        self._has_grown = False

    def of(self, run: Path) -> Standing | None:
        """What was found of this run, if nothing changed since."""
        kept = self._kept.get(str(run.absolute()))
        if not isinstance(kept, dict) or kept.get("of") != _stamp(run):
            return None
        return _standing(kept.get("standing"))

    def add(self, run: Path, standing: Standing) -> None:
        """Remember what was found of a finished run."""
        self._kept[str(run.absolute())] = {"of": _stamp(run), "standing": asdict(standing)}
        self._has_grown = True

    def save(self) -> None:
        """Write it down, if there is anything new; a folder that refuses is no harm."""
        if not self._has_grown:
            return
        newest = dict(list(self._kept.items())[-_MOST_KEPT:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(newest).encode())
        except OSError:
            return


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _standing(kept: Any) -> Standing | None:
    """What was kept, if it is what we keep."""
    kinds = {"verdict": str, "steps": int, "skipped": int, "source": str, "damage": str}
    scale = (int, float, type(None))
    if not isinstance(kept, dict) or kept.keys() != {*kinds, "final_scale"}:
        return None
    fine = all(isinstance(kept[name], kind) for name, kind in kinds.items())
    return Standing(**kept) if fine and isinstance(kept["final_scale"], scale) else None


def _stamp(run: Path) -> str:
    """What tells a run's files, and the code that judges them, from any others."""
    marks = (_marks(run, "*"), _code_marks())
    return hashlib.sha256(repr(marks).encode()).hexdigest()


@functools.cache
def _code_marks() -> list[tuple[str, int, int]]:
    import ampwatch.diagnosis

    return _marks(Path(ampwatch.diagnosis.__file__).parent, "*.py")


def _marks(folder: Path, pattern: str) -> list[tuple[str, int, int]]:
    """The files' names, sizes and times; a rank's lock says nothing."""
    files = sorted(f for f in folder.rglob(pattern) if f.is_file() and f.name != "lock")
    stats = [(str(file.relative_to(folder)), file.stat()) for file in files]
    return [(name, found.st_size, found.st_mtime_ns) for name, found in stats]
