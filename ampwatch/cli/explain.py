"""`ampwatch explain [CODE]`: prints the page of a finding, generated from its rule."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.diagnosis import Rule

HELP = """Explain a finding, or a message: its meaning, and what to do.

With a run, its evidence in that run as well. Without a code, the list of
all findings.

Examples:
  ampwatch explain AMP103
  ampwatch explain scale-collapse RUN
  ampwatch explain "Attempting to unscale FP16 gradients."
"""


def command(
    code: str = typer.Argument(
        None,
        metavar="CODE|MESSAGE",
        help="Such as AMP103, scale-collapse, or what a training printed.",
        show_default=False,
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
        answer("\n".join(f"{r.code}  {r.name:{width}}  {r.usual.value}" for r in RULES))
        return
    rules = _rules_meant(code)
    if len(rules) == 1:
        answer(plain_page(rules[0]) + ("" if run is None else _in_run(rules[0], run)))
        return
    answer("This message belongs to:\n")
    for rule in rules:
        answer(f"{rule.code} {rule.name}\n{_indented(rule.page.meaning)}\n")
    answer(
        f"More of one: ampwatch explain {rules[0].code}. Which it is, `ampwatch report LOG` says."
    )


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
    told = [_indented(f.cause) for f in found]
    if rule.code in RATE:
        told += ["", "  What each sign adds for the rate"]
        told += [
            fill(line, 76, initial_indent="  ", subsequent_indent="    ")
            for line in rate_evidence_lines(case)
        ]
    instead = sorted({finding.code for finding in found} - {rule.code})
    where = f"In {name}" + (f", where it is {', '.join(instead)}" if instead else "")
    return "\n".join(["", "", where, *told])


def _rules_meant(text: str) -> list[Rule]:
    from ampwatch.diagnosis.rule_pages import rules_for, rules_like

    if rules := rules_for(text):
        return rules
    like = "".join(f"\n  {rule.code} {rule.name}" for rule in rules_like(text))
    hint = f" Did you mean:{like}" if like else " `ampwatch explain` lists them."
    raise AmpwatchError(
        f"{text!r} is no finding of this version, and no message that is known.{hint}"
    )


def _indented(text: str) -> str:
    return fill(text, 76, initial_indent="  ", subsequent_indent="  ")
