"""What a recipe of benchmarks/programs.py is: a public program, its edits, its data, its faults.

The recipes are in programs_recipes.toml, which says what each field means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import programs_data

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

HEALTHY = ("healthy", "incomplete")  # nothing found; of few steps that is no proof of health


class RecipeError(Exception):
    """A program is not what its recipe was written for."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text in a file of the program, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Broken:
    """One fault, and the first finding that would be right: any of the codes."""

    how: str
    right: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    arguments: tuple[str, ...] = ()  # go behind the program's own
    layer: str = ""  # what the finding's layer has to contain


@dataclass(frozen=True, slots=True)
class Program:
    """One program: where it is had, how it runs here, and how it is broken."""

    name: str
    repository: str
    commit: str
    trains: str
    folder: str  # where it runs, within the repository
    command: tuple[str, ...]  # what follows `ampwatch run`, or `python`
    make_data: Callable[[Path], None]  # called in the folder
    edits: tuple[Edit, ...] = ()
    broken: tuple[Broken, ...] = ()
    right: tuple[str, ...] = HEALTHY  # what is right of it as it is: a verdict, or codes
    script: str = ""
    saved: tuple[str, ...] = ()  # files whose bytes must be the same too
    times: str = r"(?!)"  # what of a printed line is a time, beyond the usual forms
    launcher: bool = False  # the command is one, not a script


def _fields(told: dict[str, Any]) -> dict[str, Any]:
    """Tables of TOML as the fields of a `Program` or a `Broken`."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in told.items()}
    if "edits" in fields:
        fields["edits"] = tuple(Edit(*edit) for edit in fields["edits"])
    if "broken" in fields:
        fields["broken"] = tuple(Broken(**_fields(broken)) for broken in fields["broken"])
    if "data" in fields:
        fields["make_data"] = getattr(programs_data, fields.pop("data"))
    return fields


_TEXT = Path(__file__).with_suffix(".toml").read_text("utf-8")
PROGRAMS = tuple(Program(**_fields(told)) for told in tomllib.loads(_TEXT)["program"])
