"""`ampwatch explain [CODE]`: the page of a finding, made from its rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import answer
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.diagnosis import Rule

NAME = "explain"
HELP = """What a finding means, what it is confused with, and what to do.

Without a code, lists all findings that this version knows.

Example: ampwatch explain AMP103
"""


def command(
    code: str = typer.Argument(
        None, metavar="CODE", help="Such as AMP103, or scale-collapse.", show_default=False
    ),
) -> None:
    """Print a page, or the list."""
    from ampwatch.diagnosis import RULES
    from ampwatch.diagnosis.pages import plain_page

    if code is None:
        width = max(len(rule.name) for rule in RULES)
        text = "\n".join(f"{rule.code}  {rule.name:{width}}  {rule.usual.value}" for rule in RULES)
    else:
        text = plain_page(_find(RULES, code))
    answer(text)


def _find(rules: tuple[Rule, ...], code: str) -> Rule:
    wanted = code.strip().casefold()
    for rule in rules:
        if wanted in {rule.code.casefold(), rule.name}:
            return rule
    raise AmpwatchError(f"{code!r} is no finding of this version: `ampwatch explain` lists them.")
