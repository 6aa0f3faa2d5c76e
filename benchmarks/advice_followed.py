"""Does a failing run train when its advice is followed to the letter?

    python benchmarks/advice_followed.py [--seed N] [--out FILE]

Trains faults of the gallery, takes the headline's action out of the report's JSON, does literally
what it says, trains again, and sets both side by side. The gallery's own cure, the healthy twin, is
never looked at while following; its loss stands beside for comparison.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ampwatch  # noqa: E402 - the checkout's own, found above
from examples.gallery.performing import perform  # noqa: E402
from examples.gallery.registry import all_cases  # noqa: E402
from examples.gallery.vocabulary import Case, Stage  # noqa: E402

CASES = (
    "sgd-too-fast", "adam-too-fast",  # the rate
    "mask-beyond-half", "activation-grows-until-overflow", "ffn-output-overflows",  # AMP203
    "clip-before-unscale", "eps-underflow",  # misuse
)  # fmt: skip
_FINAL_STEPS = 10
_MOST_LETTERS = 3


# -- following -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Followed:
    """A stage on which an action is done, word by word, while the same training runs."""

    stage: Stage
    actions: Sequence[str]
    optimizers: list[Any] = field(default_factory=list)

    def watch(self, scaler: Any, model: Any, **options: Any) -> Any:
        """The watch, once the actions are done: the model and the optimizer are made."""
        names = {"torch": torch, "ampwatch": ampwatch, "model": model, "scaler": scaler}
        names["optimizer"] = self.optimizers[-1] if self.optimizers else None
        for action in self.actions:
            for sentence, do in SENTENCES.items():
                if (said := re.search(sentence, action)) is not None:
                    do(said[1], names)
        return self.stage.watch(scaler, model, **options)

    @property
    def name(self) -> str:
        """The run's."""
        return self.stage.name


def _set_peak(peak: str, names: Mapping[str, Any]) -> None:
    ampwatch.set_learning_rate(names["optimizer"], float(peak))  # these make schedulers later


def _call(call: str, names: Mapping[str, Any]) -> None:
    exec(call, dict(names))


def _set_eps(value: str, names: Mapping[str, Any]) -> None:
    for group in names["optimizer"].param_groups:
        group["eps"] = float(value)


def _call_before_clipping(call: str, names: Mapping[str, Any]) -> None:
    clip = torch.nn.utils.clip_grad_norm_

    def called_first(*inputs: Any, **options: Any) -> Any:
        exec(call, dict(names))
        return clip(*inputs, **options)

    torch.nn.utils.clip_grad_norm_ = called_first


# What actions say, and doing it.
SENTENCES: Mapping[str, Callable[[str, Mapping[str, Any]], None]] = {
    r"Set the peak learning rate to ([\d.e-]+\d)": _set_peak,
    r"`(ampwatch\.run_in_float32\([^`]+\))`": _call,
    r"Call (\S+\(\w+\)) before clip": _call_before_clipping,
    r"set (?:the optimizer's )?eps to ([\d.e-]+\d)": _set_eps,
}


@contextmanager
def _hands_on(optimizers: list[Any]) -> Iterator[None]:
    """Note the optimizers that are made; put back what a sentence has changed in torch."""
    begin, clip = torch.optim.Optimizer.__init__, torch.nn.utils.clip_grad_norm_

    def noted(self: Any, *inputs: Any, **options: Any) -> None:
        begin(self, *inputs, **options)
        optimizers.append(self)

    torch.optim.Optimizer.__init__ = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.optim.Optimizer.__init__ = begin  # type: ignore[method-assign]
        torch.nn.utils.clip_grad_norm_ = clip


def perform_following(case: Case, actions: Sequence[str], out: Path, seed: int) -> Path:
    """Train the fault again with these actions done."""
    optimizers: list[Any] = []

    def train(stage: Stage) -> None:
        with _hands_on(optimizers):
            case.train(Followed(stage, actions, optimizers))  # type: ignore[arg-type]

    again = Case(
        f"{case.name}.followed", case.what, case.family, case.label, train, case.source
    )  # fmt: skip
    return perform(again, out, seed)


# -- before and after ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training went."""

    verdict: str
    headline: str
    skipped: str
    first_loss: float
    final_loss: float
    action: str

    @property
    def learns(self) -> bool:
        """Whether it ends at a loss that is finite and below its first."""
        return bool(self.final_loss < self.first_loss)


def outcome_of(folder: Path) -> Outcome:
    """Read off the report's JSON and the run's losses."""
    run = ampwatch.open_run(folder)
    said = ampwatch.diagnose(run).to_json()
    loss = np.array(run.steps["loss"].to_pylist(), dtype=float)
    head = next((f for f in said["findings"] if f["severity"] != "info"), None)
    finite = loss[np.isfinite(loss)]
    return Outcome(
        said["verdict"],
        "" if head is None else f"{head['code']} {head['name']}",
        f"{said['run']['skipped']}/{said['run']['steps']}",
        float(finite[0]) if len(finite) else float("nan"),
        float(np.median(loss[-_FINAL_STEPS:])),
        "" if head is None else head["action"],
    )


@dataclass(frozen=True, slots=True)
class Story:
    """A fault, the letters' actions done one after the other, and the healthy twin."""

    name: str
    before: Outcome
    after: Outcome
    twin: Outcome
    actions: tuple[str, ...]


def follow(case: Case, twin: Case, out: Path, seed: int) -> Story:
    """Do what the letter says; while the rerun still fails, do what its letter says, too."""
    before = after = outcome_of(perform(case, out, seed))
    actions: list[str] = []
    while after.verdict == "failing" and after.action and len(actions) < _MOST_LETTERS:
        actions.append(after.action)
        after = outcome_of(perform_following(case, actions, out, seed))
    return Story(case.name, before, after, outcome_of(perform(twin, out, seed)), tuple(actions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    cases = {case.name: case for case in all_cases()}
    with tempfile.TemporaryDirectory() as folder:
        stories = [
            follow(cases[name], cases[f"{name}.twin"], Path(folder), options.seed) for name in CASES
        ]
    text = "\n".join([_HEAD, *map(_row, stories), "\nWhat was followed, as the JSON has it:\n"])
    text += "\n" + "\n".join(map(_followed, stories))
    print(text)
    if options.out:
        options.out.write_text(text, "utf-8")


_HEAD = """# Advice followed to the letter

`python benchmarks/advice_followed.py`: each fault is trained, the headline's action is taken from
`report --json` and done as it stands, and the same training, same seed, runs again. Where the rerun
fails too, its own letter is followed on top. The last column is the gallery's healthy twin, which
nothing is taken from.

| fault | verdict, headline | skipped | final loss | letters | followed: verdict | skipped | final loss (first) | twin's |
|---|---|---|---|---|---|---|---|---|"""  # noqa: E501 - a table's head is one line


def _row(story: Story) -> str:
    before, after = story.before, story.after
    return (
        f"| {story.name} | {before.verdict}, {before.headline} | {before.skipped} | "
        f"{before.final_loss:.3g} | {len(story.actions)} | {after.verdict} {after.headline} | "
        f"{after.skipped} | {after.final_loss:.3g} ({after.first_loss:.3g}) | "
        f"{story.twin.final_loss:.3g} |"
    )


def _followed(story: Story) -> str:
    actions = "\n\n".join(textwrap.indent(action, "    ") for action in story.actions)
    return f"*{story.name}*\n\n{actions}\n"


if __name__ == "__main__":
    main()
