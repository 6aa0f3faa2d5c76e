"""`python -m examples.gallery list | labels | run | streams | score`: see README.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from examples.gallery.courses import Stream, write_stream
from examples.gallery.held_out.streams import unseen_streams
from examples.gallery.performing import chosen, perform_missing
from examples.gallery.registry import all_cases
from examples.gallery.scoring import Score, Tally, read_answers, score
from examples.gallery.streams import all_streams


def main(arguments: list[str] | None = None) -> int:
    """Do what the first argument says."""
    options = _parser().parse_args(arguments)
    return int(options.do(options) or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.gallery", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    only: dict[str, Any] = {"default": None, "metavar": "PATTERN", "help": "name or family"}
    for name, do, about in (
        ("list", _list, "name every case"),
        ("labels", _labels, "print every label as JSON"),
        ("run", _run, "train cases and write their runs to a folder"),
        ("streams", _streams, "write the long generated runs to a folder"),
        ("score", _score, "score findings, given as JSON lines"),
    ):
        verb = verbs.add_parser(name, help=about)
        verb.set_defaults(do=do)
        verb.add_argument("--only", **only)
        if name in ("run", "streams"):
            verb.add_argument("--out", type=Path, required=True)
            verb.add_argument("--seed", type=int, default=0)
        if name == "score":
            verb.add_argument("findings", type=argparse.FileType("r"))
    return parser


def _everything(pattern: str | None) -> list[Any]:
    return [*chosen(all_cases(), pattern), *_chosen_streams(pattern)]


def _chosen_streams(pattern: str | None) -> list[Stream]:
    """The held-out ones, some gigabytes of them, only where they are asked for."""
    return chosen([*all_streams(), *unseen_streams()], pattern or "streams")


def _list(options: argparse.Namespace) -> None:
    for case in _everything(options.only):
        issue = f"  [{case.issue}]" if case.issue else ""
        print(f"{case.family:9} {case.name:45} {case.what}{issue}")


def _labels(options: argparse.Namespace) -> None:
    labels = [case.to_json() for case in _everything(options.only)]
    json.dump({"schema": 1, "cases": labels}, sys.stdout, indent=1)
    print()


def _run(options: argparse.Namespace) -> None:
    cases = chosen(all_cases(), options.only)
    for case in perform_missing(cases, options.out, options.seed):
        print(options.out / case.name)


def _streams(options: argparse.Namespace) -> None:
    for stream in _chosen_streams(options.only):
        print(write_stream(stream, options.out, options.seed))


def _score(options: argparse.Namespace) -> None:
    labels = {case.name: case.label for case in _everything(options.only)}
    print(as_text(score(labels, read_answers(options.findings))))


def as_text(result: Score) -> str:
    """A score for a terminal."""
    total = result.total
    lines = [
        f"precision {_percent(total.precision)}, recall {_percent(total.recall)}",
        f"healthy runs: {result.healthy}",
        f"with a warning: {len(result.healthy_with_warning)}",
        f"with an error: {len(result.healthy_with_error)}",
        f"culprit right: {_of(result.culprits)}",
        f"advice right, where there is a fault: {_of(result.advice)}",
        f"advice right, where there is none: {_of(result.healthy_advice)}",
        *sorted(result.wrong),
    ]
    return "\n".join(lines)


def _of(tally: Tally) -> str:
    return f"{tally.hits} of {tally.hits + tally.misses}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main())
