"""`ampwatch explain [CODE]`: prints the page of a finding, generated from its rule."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer
from ampwatch.errors import AmpwatchError
from ampwatch.printable_text import cut, printable

if TYPE_CHECKING:
    from ampwatch.diagnosis import Rule

_LONGEST_NAME = 60  # of a run

HELP = """Explain a finding, or a message that a training printed.

  ampwatch explain AMP103
  ampwatch explain scale-collapse train-1204    with its evidence in that run
  ampwatch explain "Attempting to unscale FP16 gradients."
  ampwatch explain                              the list of all findings

A name that is nearly right is enough.
"""


def command(
    code: str = typer.Argument(
        None,
        metavar="CODE|MESSAGE",
        help="A code or a name of a finding, or a message in quotes.",
        show_default=False,
    ),
    run: str = typer.Argument(
        None, metavar="RUN", help="Also print the evidence in this run.", show_default=False
    ),
) -> None:
    """Explain a finding, or list all findings."""
    answer(page_of(code, run))


def page_of(code: str | None, run: str | None = None) -> str:
    """The page of a finding, with its evidence in a run; or the list of all findings."""
    from ampwatch.diagnosis import RULES
    from ampwatch.diagnosis.rule_pages import plain_page

    if code is None:
        width = max(len(rule.name) for rule in RULES)
        return "\n".join(f"{r.code}  {r.name:{width}}  {r.usual.value}" for r in RULES)
    rules = _rules_meant(code)
    if len(rules) == 1:
        return plain_page(rules[0]) + ("" if run is None else _in_run(rules[0], run))
    meanings = [f"{rule.code} {rule.name}\n{_indented(rule.page.meaning)}\n" for rule in rules]
    more = f"More: ampwatch explain {rules[0].code}. `ampwatch report LOG` says which one it is."
    return "\n".join(["This message belongs to:\n", *meanings, more])


def _in_run(rule: Rule, text: str) -> str:
    """What the explained rule found in this run, with its evidence."""
    from ampwatch.cli.run_argument import opened_run_or_log
    from ampwatch.diagnosis import Engine, conclude, rate_evidence_lines
    from ampwatch.diagnosis.causes import RATE

    with opened_run_or_log(text) as run:
        case, name = Engine().feed(run).case(), cut(printable(run.info.name), _LONGEST_NAME)
    every = conclude(case).findings
    found = [finding for finding in every if finding.code == rule.code]
    if not found and rule.code in RATE:  # they weigh the same evidence
        found = [finding for finding in every if finding.code in RATE and rate_evidence_lines(case)]
    if not found:
        return f"\n\nIn {name}\n  {rule.code} was not found."
    told = [_indented(f.cause) for f in found]
    if rule.code in RATE:
        told += ["", "  What each sign adds for the learning rate"]
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
        f"{text!r} is not a finding of this version, and not a message that ampwatch knows.{hint}"
    )


def _indented(text: str) -> str:
    return fill(text, 76, initial_indent="  ", subsequent_indent="  ")
