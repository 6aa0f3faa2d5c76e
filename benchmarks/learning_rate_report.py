"""The benchmark's table, of what has been done so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import TYPE_CHECKING

from learning_rate_trainings import NEW, SEEN
from learning_rate_truth import SEEDS, Outcome, Truth

if TYPE_CHECKING:
    from learning_rate import Book


_GROUPS: dict[str, Callable[[Book, Truth], bool]] = {
    "All never fitted": lambda b, t: t.is_learnt and not b.configuration.is_tuned_on,
    "Of these, made last; their misses were looked at too, later": lambda b, t: (
        t.is_learnt and b.configuration.group == NEW
    ),
    "Of these, never fitted, but their misses were looked at": lambda b, t: (
        t.is_learnt and b.configuration.group == SEEN
    ),
    "Fitted": lambda b, t: t.is_learnt and b.configuration.is_tuned_on,
    "Hardly learnt at any rate, so that the limit stands on noise": lambda _, t: not t.is_learnt,
}

_MISSES = """## The misses

- *Told to keep, though over the limit.* Two never fitted (tied-adamw-cosine, batchnorm-sgd-accum)
  and the fitted ones are half an octave over it: the loss falls, only less far than it could, and
  loss, noise, weights and updates each lie where stable trainings have theirs, the alignment of the
  updates too (medians of 0.85 to 0.92 with momentum or Adam on either side of the limit, of -0.24
  to 0 without), so that no line tells all of them from healthy runs.
- *The stable one told to lower.* groupnorm-momentum-warmup at its highest stable rate, four times
  its best: its loss stays high while the weights grow, which a norm behind them makes harmless.
- *The limit above the interval.* Where a batch or group norm follows the matrix product at once
  (batchnorm, groupnorm), the weights' size means nothing to the function: an update as large as
  they are only makes the next ones smaller, and such networks bear four to eight times more than
  their first updates foretell. No fitted configuration has one. The same holds, less, where
  the weights begin very small (tied), or the steps shrink (deepset-adagrad).
- *The restart.* One of 84: attention-pool-adamw, half an octave over its limit, restarted at step
  49 when its warm-up had reached the peak, and gave back its progress once more.
- *mixer-...* The mean over patches takes away what its labels depend on, so that no rate learns
  the task, and the norm in front of it bounds the outputs, so that hardly any rate breaks it: the
  limit is that of its last layer, not of the network whose updates are measured.
  (mixer-adam-groups was ten times off because this benchmark took the first group's rate for the
  nominal one; it is no more.)
- *What changed after a look.* The misses of "seen" configurations led to four mended mechanisms:
  groups of several rates, the first steps of RMSprop, a plain optimizer that broke at once, the
  restart before a harmful update. The first look at the "new" ones (limit inside the interval:
  0.61) led to a wider interval, its width from the fitted trainings alone. A second look, at five
  told to keep half an octave to 2.5 over the limit, led to the warning of little learnt; its signs
  and numbers are those of the fitted trainings, of which 10 had been told to keep too (of two
  seeds), and 4 are now.
"""

_NOTES = """## How to read it

- Small trainings of 160 steps on the CPU, in real fp16, watched with the default sampling.
- A rerun counts for `ampwatch` whatever the advice was: told to keep, it is trained again at the
  same rate.
- "Stable" is: finite to the end, few skips, no more than half of its progress lost, and above the
  best rate at least half of the possible decrease. The gap is the missed share of that decrease;
  in so few steps a low rate costs much of it.
- A rate is over the limit if it or a lower one failed with either seed. Where the run that was
  looked at trained all the same there was nothing to see: such runs are counted apart.
- Where no rate brought the loss below three quarters of its start there is no limit to speak of;
  those trainings stand apart, after a first look that counted them in.
- A restart goes on from a checkpoint (model, optimizer, scaler, state of the data) of the advised
  step, at the advised rate; "step 0" is the beginning.
- All that was never fitted was trained for this table without a cache. The fitted ones' sweeps are
  kept from earlier: of the others' 872 kept lines every one came out the same to the last digit.
- Runs that fail for other reasons: `learning_rate_attribution.md`. Not measured: late trouble.
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
    parts += [_NOTES, _MISSES]
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
        tried = [(b, t, x) for b, t in pairs for x in _lines(b, kind) if _failed(b, t, x["origin"])]
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


def _failed(book: Book, truth: Truth, rate: float) -> bool:
    """Whether the run that is looked at failed itself, at a rate over the limit."""
    here = [x for x in _lines(book, "look") if math.isclose(x["rate"], rate)]
    return any(not truth.is_stable(_outcome(x), rate) for x in here)


def _facts(limited: Sequence[tuple[Book, Truth]], done: Sequence[tuple[Book, Truth]]) -> str:
    over = [
        (b, t, line)
        for b, t in limited
        for line in _lines(b, "look")
        if line["rate"] in t.unstable(b.configuration.rates)
    ]
    unstable = [(b, t, x) for b, t, x in over if _failed(b, t, x["rate"])]
    lucky = [x for b, t, x in over if not _failed(b, t, x["rate"])]
    stable = [
        line
        for b, t in done
        for line in _lines(b, "look")
        if t.highest_stable is not None and line["rate"] <= t.highest_stable
    ]
    lower = [(b, t, x) for b, t, x in unstable if _is_lower(x)]
    facts = {
        "unstable runs told to lower": f"{len(lower)} of {len(unstable)}",
        "unstable runs told `not-the-cause`": f"{_told(unstable, 'not-the-cause')}",
        "stable runs told to lower": f"{sum(map(_is_lower, stable))} of {len(stable)}",
        "runs over the limit that trained all the same": f"{len(lucky)}, "
        f"{sum(map(_is_lower, lucky))} of them told to lower",
    }
    if lower:
        facts |= _of_lowered(lower)
    return "\n".join(f"- {name}: {value}" for name, value in facts.items()) + "\n"


def _told(unstable: Sequence[tuple[Book, Truth, dict]], action: str) -> str:
    told = [x for _, _, x in unstable if x["advice"]["action"] == action]
    return f"{len(told)} of {len(unstable)}"


def _is_lower(look: dict) -> bool:
    return look["advice"]["action"] == "lower"


def _of_lowered(lower: Sequence[tuple[Book, Truth, dict]]) -> dict[str, str]:
    advice = [(_limit(t, x), x["advice"]) for _, t, x in lower]
    # After a leap of the rate, or late in a run, there is none.
    bound = [(limit, a) for limit, a in advice if a["low"] and a["high"]]
    inside = [a["low"] <= limit <= a["high"] for limit, a in bound]
    widths = [math.log2(a["high"] / a["low"]) for _, a in bound]
    regret = [abs(math.log2(a["recommended"] / limit)) for limit, a in advice]
    again = [_trained(b, t, "first", x) for b, t, x in lower]
    restarts = [(_trained(b, t, "restart", x), x) for b, t, x in lower]
    later = [good for good, x in restarts if x["advice"]["restart_from_step"]]
    return {
        "reruns at a lowered rate, stable at the first try": _share(again),
        "restarts from `restart_from_step` that trained": _share([good for good, _ in restarts]),
        "those of them not from step 0": _share(later),
        "true limit inside the interval": _share(inside),
        "the interval's median width": f"{median(widths):.1f} octaves",
        "between advised rate and limit": f"median {median(regret):.2f} octaves, "
        f"largest {max(regret):.2f}",
    }


def _trained(book: Book, truth: Truth, kind: str, look: dict) -> bool:
    """Whether the training of this kind, made after this look, was stable."""
    tries = [x for x in _lines(book, kind) if x["origin"] == look["rate"]]
    return any(truth.is_stable(_outcome(x), x["rate"]) for x in tries)


def _limit(truth: Truth, look: dict) -> float:
    """The limit in terms of the group that the advice speaks of."""
    return truth.limit * look["advice"]["current"] / look["rate"]


def _limits(done: Sequence[tuple[Book, Truth]]) -> str:
    rows = ["| configuration | best rate | highest stable | lowest unstable |", "|---|---|---|---|"]
    for book, truth in done:
        group = book.configuration.group
        rows.append(
            f"| {book.configuration.name} ({group}) | {truth.best_rate:.3g} | "
            f"{_rate(truth.highest_stable)} | {_rate(truth.lowest_unstable)} |"
        )
    return "\n".join(rows) + f"\n\nSeeds {SEEDS}."


def _rate(value: float | None) -> str:
    return "beyond the sweep" if value is None else f"{value:.3g}"


def _share(values: Sequence[bool]) -> str:
    return f"{mean(values):.2f} ({sum(values)} of {len(values)})" if values else "none"


def _outcome(line: dict) -> Outcome:
    return Outcome(**{name: line[name] for name in Outcome.__annotations__})
