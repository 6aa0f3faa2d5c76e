"""The benchmark's table, of what has been done so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import TYPE_CHECKING

from learning_rate_truth import SEEDS, Outcome, Truth

if TYPE_CHECKING:
    from learning_rate import Book


_GROUPS: dict[str, Callable[[Book, Truth], bool]] = {
    "Made after the adviser was finished": lambda b, t: t.is_learnt and b.configuration.pristine,
    "Never fitted, looked at once": lambda b, t: t.is_learnt and b.configuration.held_out,
    "Used while thresholds were tuned": lambda b, t: t.is_learnt and b.configuration.is_tuned_on,
    "Hardly learnt at any rate, so that the limit stands on noise": lambda _, t: not t.is_learnt,
}


_NOTES = """## How to read it

- Small trainings of 160 steps on the CPU, in real fp16, watched with the default sampling.
- A rerun counts for `ampwatch` whatever the advice was: told to keep, it is trained again at the
  same rate. The misses at half an octave over the limit are of this kind.
- "Stable" is: finite to the end, few skips, no more than half of its progress lost, and above the
  best rate at least half of the possible decrease. The gap is the missed share of that decrease;
  in so few steps a low rate costs much of it.
- Where no rate brought the loss below three quarters of its start there is no limit to speak of;
  those trainings stand apart, after a first look that counted them in.
- Not measured here: a restart from the advised step, late trouble, and runs that fail for other
  reasons than their rate.
"""


def report(books: Sequence[Book], folklore: Sequence[float]) -> str:
    done = [(book, truth) for book in books if (truth := book.truth()) is not None]
    limited = [(book, truth) for book, truth in done if truth.limit is not None]
    head = (
        f"# Learning-rate advice, measured\n\n{len(done)} of {len(books)} configurations swept, "
        f"{len(limited)} with a limit inside the sweep. Adviser "
        f"{books[0].fingerprint if books else 'none'}.\n"
    )
    parts = [head]
    for title, belongs in _GROUPS.items():
        chosen = [pair for pair in limited if belongs(*pair)]
        everything = [pair for pair in done if belongs(*pair)]
        if not everything:
            continue
        parts.append(f"## {title}\n\n{_policies(chosen, folklore)}\n\n{_facts(chosen, everything)}")
    parts.append(_NOTES)
    parts.append("## Limits\n\n" + _limits(done))
    return "\n".join(parts)


def _lines(book: Book, kind: str) -> list[dict]:
    return [line for line in book.lines.values() if line["kind"] == kind]


def _policies(pairs: Sequence[tuple[Book, Truth]], folklore: Sequence[float]) -> str:
    rows = [
        "| policy | reruns | stable at the first try | after two | mean gap |",
        "|---|---|---|---|---|",
    ]
    for kind in [*(f"/{d:g}" for d in folklore), "first"]:
        tried = [(b, t, line) for b, t in pairs for line in _lines(b, kind)]
        if not tried:
            continue
        good = [t.is_stable(_outcome(line), line["rate"]) for _, t, line in tried]
        gaps = [t.gap(_outcome(line)) for _, t, line in tried]
        twice = (
            ""
            if kind != "first"
            else _share([g or _second(b, t, x) for g, (b, t, x) in zip(good, tried, strict=True)])
        )
        name = "ampwatch" if kind == "first" else f"divide by {kind[1:]}"
        rows.append(f"| {name} | {len(tried)} | {_share(good)} | {twice} | {mean(gaps):.3f} |")
    return "\n".join(rows)


def _second(book: Book, truth: Truth, first: dict) -> bool:
    tries = [x for x in _lines(book, "second") if x["origin"] == first["origin"]]
    return any(truth.is_stable(_outcome(x), x["rate"]) for x in tries)


def _facts(limited: Sequence[tuple[Book, Truth]], done: Sequence[tuple[Book, Truth]]) -> str:
    unstable = [
        (t, line)
        for b, t in limited
        for line in _lines(b, "look")
        if line["rate"] in t.unstable(b.configuration.rates)
    ]
    stable = [
        line
        for b, t in done
        for line in _lines(b, "look")
        if t.highest_stable is not None and line["rate"] <= t.highest_stable
    ]
    lower = [(t, line) for t, line in unstable if line["advice"]["action"] == "lower"]
    inside = [line["advice"]["low"] <= t.limit <= line["advice"]["high"] for t, line in lower]
    widths = [math.log2(x["advice"]["high"] / x["advice"]["low"]) for _, x in lower]
    regret = [abs(math.log2(x["advice"]["recommended"] / t.limit)) for t, x in lower]
    false = [line["advice"]["action"] == "lower" for line in stable]
    blamed = [line["advice"]["action"] == "not-the-cause" for _, line in unstable]
    facts = {
        "unstable runs told to lower": f"{len(lower)} of {len(unstable)}",
        "unstable runs told `not-the-cause`": f"{sum(blamed)} of {len(unstable)}",
        "stable runs told to lower": f"{sum(false)} of {len(false)}",
    }
    told = [x for b, t in limited for x in _told_to_lower(b, t)]
    if lower:
        facts |= {"reruns at a lowered rate, stable at the first try": _share(told)}
        facts |= {
            "true limit inside the interval": _share(inside),
            "the interval's median width": f"{median(widths):.1f} octaves",
            "between advised rate and limit": f"median {median(regret):.2f} octaves, "
            f"largest {max(regret):.2f}",
        }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n"


def _told_to_lower(book: Book, truth: Truth) -> list[bool]:
    """Whether the first rerun was stable, where the advice was to lower."""
    told = {x["rate"] for x in _lines(book, "look") if x["advice"]["action"] == "lower"}
    tries = [x for x in _lines(book, "first") if x["origin"] in told]
    return [truth.is_stable(_outcome(x), x["rate"]) for x in tries]


def _limits(done: Sequence[tuple[Book, Truth]]) -> str:
    rows = ["| configuration | best rate | highest stable | lowest unstable |", "|---|---|---|---|"]
    for book, truth in done:
        mark = "" if book.configuration.is_tuned_on else " (never fitted)"
        rows.append(
            f"| {book.configuration.name}{mark} | {truth.best_rate:.3g} | "
            f"{_rate(truth.highest_stable)} | {_rate(truth.lowest_unstable)} |"
        )
    return "\n".join(rows) + f"\n\nSeeds {SEEDS}."


def _rate(value: float | None) -> str:
    return "beyond the sweep" if value is None else f"{value:.3g}"


def _share(values: Sequence[bool]) -> str:
    return f"{mean(values):.2f} ({sum(values)} of {len(values)})" if values else "none"


def _outcome(line: dict) -> Outcome:
    return Outcome(**{name: line[name] for name in Outcome.__annotations__})
