"""What a case is, what its label says, and where it is performed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Label:
    """What is true of a run, whoever looks at it. Codes are ampwatch's (`ampwatch explain`)."""

    must: tuple[str, ...] = ()  # to be found, as a warning or an error
    tells: tuple[str, ...] = ()  # to be told, at any severity
    may: tuple[str, ...] = ()  # right if found, no miss if not
    layer: str | None = None  # the culprit, as in model.named_modules()
    advice: str | None = None  # what to do with the learning rate; None: not judged
    onset: int | None = None  # the first step that the fault acts in

    @property
    def is_healthy(self) -> bool:
        """Whether any warning or error at all is a false alarm."""
        return not self.must and not self.may

    def to_json(self) -> dict[str, Any]:
        """The label as JSON knows it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a case is performed. Override `watch` to let another tool see the same training."""

    name: str
    log_dir: Path

    def watch(self, scaler: Any, model: Any, **options: Any) -> Any:
        """A context that watches one training."""
        import ampwatch

        return ampwatch.attach(
            scaler, model, run=self.name, log_dir=self.log_dir, endpoint="off", **options
        )


Train = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One training and the truth about it."""

    name: str
    what: str
    family: str
    label: Label
    train: Train
    source: Path  # the file that makes it
    issue: str | None = None  # the public thread whose mechanism it re-creates
    twin_of: str | None = None  # the fault that this one lacks
    held_out: bool = False  # made last, and no rule was ever tuned on it

    def to_json(self) -> dict[str, Any]:
        """The case without its code."""
        return {
            "name": self.name,
            "what": self.what,
            "family": self.family,
            "issue": self.issue,
            "twin_of": self.twin_of,
            "held_out": self.held_out,
            **self.label.to_json(),
        }


@dataclass(slots=True)
class Family:
    """The cases of one file, in its order."""

    name: str
    held_out: bool
    cases: list[Case]

    def __init__(self, name: str, *, held_out: bool = False) -> None:
        self.name, self.held_out, self.cases = name, held_out, []

    def fault(
        self, label: Label, issue: str | None = None
    ) -> Callable[[Callable[[Stage, bool], None]], Callable[[Stage, bool], None]]:
        """Register a function `(stage, fault)`: the fault, and its healthy twin."""

        def add(function: Callable[[Stage, bool], None]) -> Callable[[Stage, bool], None]:
            name, what = _named(function)
            healthy = Label(advice="keep")
            source = _source(function)
            ill = Case(
                name,
                what,
                self.name,
                label,
                lambda stage: function(stage, True),
                source,
                issue,
                held_out=self.held_out,
            )
            twin = Case(
                f"{name}.twin",
                "The same without the fault.",
                self.name,
                healthy,
                lambda stage: function(stage, False),
                source,
                twin_of=name,
                held_out=self.held_out,
            )
            self.cases += [ill, twin]
            return function

        return add

    def benign(
        self, tells: Sequence[str] = (), issue: str | None = None
    ) -> Callable[[Train], Train]:
        """Register a function `(stage)`: healthy, or harmless though it looks ill."""

        def add(function: Train) -> Train:
            name, what = _named(function)
            label, source = Label(tells=tuple(tells), advice="keep"), _source(function)
            self.cases.append(
                Case(name, what, self.name, label, function, source, issue, held_out=self.held_out)
            )
            return function

        return add


def _named(function: Callable[..., None]) -> tuple[str, str]:
    """A case's name and sentence, from its function."""
    what = " ".join((function.__doc__ or "").split())
    return function.__name__.strip("_").replace("_", "-"), what


def _source(function: Callable[..., None]) -> Path:
    """The file that a case is written in."""
    return Path(function.__code__.co_filename)
