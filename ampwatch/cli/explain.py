"""`ampwatch explain [CODE]`: prints the page of a finding, generated from its rule."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.diagnosis import Rule

HELP = """Explain a finding: its meaning, look-alikes, and what to do.

With a run, its evidence in that run as well. Without a code, the list of
all findings.

Example: ampwatch explain AMP103
"""


def command(
    code: str = typer.Argument(
        None, metavar="CODE", help="Such as AMP103, or scale-collapse.", show_default=False
    ),
    run: str = typer.Argument(
        None, metavar="RUN", help="Also print the evidence in this run.", show_default=False
    ),
) -> None:
    """Explain a finding, or list all findings."""
    from ampwatch.diagnosis import RULES
    from ampwatch.diagnosis.rule_pages import plain_page

    if code is None:
        width = max(len(rule.name) for rule in RULES)
        text = "\n".join(f"{rule.code}  {rule.name:{width}}  {rule.usual.value}" for rule in RULES)
    else:
        rule = _find(RULES, code)
        text = plain_page(rule) + ("" if run is None else _in_run(rule, run))
    answer(text)


def _in_run(rule: Rule, text: str) -> str:
    """What the explained rule found in this run, with its evidence."""
    from ampwatch.cli.run_argument import opened_run_or_log
    from ampwatch.diagnosis import Engine, conclude, rate_evidence_lines
    from ampwatch.diagnosis.causes import RATE

    with opened_run_or_log(text) as run:
        case, name = Engine().feed(run).case(), run.info.name
    every = conclude(case).findings
    found = [finding for finding in every if finding.code == rule.code]
    if not found and rule.code in RATE:  # they weigh the same evidence
        found = [finding for finding in every if finding.code in RATE and rate_evidence_lines(case)]
    if not found:
        return f"\n\nIn {name}\n  {rule.code} was not found."
    told = [fill(f.cause, 76, initial_indent="  ", subsequent_indent="  ") for f in found]
    if rule.code in RATE:
        told += ["", "  What each sign adds for the rate"]
        told += [
            fill(line, 76, initial_indent="  ", subsequent_indent="    ")
            for line in rate_evidence_lines(case)
        ]
    instead = sorted({finding.code for finding in found} - {rule.code})
    where = f"In {name}" + (f", where it is {', '.join(instead)}" if instead else "")
    return "\n".join(["", "", where, *told])


def _find(rules: tuple[Rule, ...], code: str) -> Rule:
    wanted = code.strip().casefold()
    for rule in rules:
        if wanted in {rule.code.casefold(), rule.name}:
            return rule
    raise AmpwatchError(
        f"{code!r} is not a finding of this version; `ampwatch explain` lists them."
    )
