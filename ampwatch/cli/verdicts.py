"""Verdicts of finished runs, cached in the user's state folder for the list of runs.

A cached verdict is valid while all files of the run and of the diagnosis are unchanged, by size and
time. A damaged or unwritable cache is ignored.
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
    """A run's verdict and figures, as the list of runs shows them."""

    verdict: str
    steps: int
    skipped: int
    final_scale: float | None
    source: str
    damage: str = ""  # what is unreadable in the run's files


def standing_of(diagnosis: Diagnosis, notes: Sequence[str] = ()) -> Standing:
    """The figures of a diagnosis for a list, and damage if the run's notes mention any."""
    from ampwatch.diagnosis.findings import verdict_text

    facts = diagnosis.run
    damage = next((note for note in notes if "damaged" in note or "missing" in note), "")
    return Standing(
        verdict_text(diagnosis), facts.steps, facts.skipped, facts.final_scale, facts.source, damage
    )


class KeptVerdicts:
    """The cached verdicts; `save` writes new ones."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._kept = _read(self._path)
        self._has_grown = False

    def of(self, run: Path) -> Standing | None:
        """The cached verdict of this run, if nothing changed since."""
        kept = self._kept.get(str(run.absolute()))
        if not isinstance(kept, dict) or kept.get("of") != _stamp(run):
            return None
        return _standing(kept.get("standing"))

    def add(self, run: Path, standing: Standing) -> None:
        """Cache the verdict of a finished run."""
        self._kept[str(run.absolute())] = {"of": _stamp(run), "standing": asdict(standing)}
        self._has_grown = True

    def save(self) -> None:
        """Write the cache if it has changed; errors are ignored."""
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
    """The cached entry, if its form is valid."""
    kinds = {"verdict": str, "steps": int, "skipped": int, "source": str, "damage": str}
    scale = (int, float, type(None))
    if not isinstance(kept, dict) or kept.keys() != {*kinds, "final_scale"}:
        return None
    fine = all(isinstance(kept[name], kind) for name, kind in kinds.items())
    return Standing(**kept) if fine and isinstance(kept["final_scale"], scale) else None


def _stamp(run: Path) -> str:
    """A hash that identifies the run's files and the code that judges them."""
    marks = (_marks(run, "*"), _code_marks())
    return hashlib.sha256(repr(marks).encode()).hexdigest()


@functools.cache
def _code_marks() -> list[tuple[str, int, int]]:
    import ampwatch.diagnosis

    return _marks(Path(ampwatch.diagnosis.__file__).parent, "*.py")


def _marks(folder: Path, pattern: str) -> list[tuple[str, int, int]]:
    """The files' names, sizes and times, without the ranks' locks."""
    files = sorted(f for f in folder.rglob(pattern) if f.is_file() and f.name != "lock")
    stats = [(str(file.relative_to(folder)), file.stat()) for file in files]
    return [(name, found.st_size, found.st_mtime_ns) for name, found in stats]
