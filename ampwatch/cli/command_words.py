"""The words of a command line: names that have changed, -q and -v.

Old names of commands and options work for one more version.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ampwatch.cli.terminal import say, set_volume

OLD_COMMANDS = {"runs": "list", "sweep": "prune"}

_VOLUMES = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}

_OUTPUT = "--output"
_ALERTS = {"--least": "--min-severity", "--what": "--finding"}
OLD_OPTIONS: dict[str, dict[str, str]] = {
    "demo": {"--dir": _OUTPUT},
    "run": {"--run": "--name", "--log-dir": _OUTPUT},
    "watch": {"--as": "--format", "--thin": "--to-every"},
    "report": {"--as": "--format", "--html": _OUTPUT},
    "compare": {"--as": "--format", "--html": _OUTPUT},
    "prove": {
        "--dir": _OUTPUT,
        "--rate-argument": "--lr-flag",
        "--resume-argument": "--resume-flag",
    },
    "record": {"--dir": _OUTPUT, "--fallback": "--any-port", "--thin": "--to-every"},
    "import": {"--as": "--format", "--out": _OUTPUT},
    "export": {"--to": "--format"},
    "fleet": {"--like": "--similar-to", "--parquet": _OUTPUT},
    "add": _ALERTS,
    "change": _ALERTS,
}


def new_command(name: str) -> str:
    """The command's name of today; an old one is mentioned."""
    if name in OLD_COMMANDS:
        _mention(name, OLD_COMMANDS[name])
    return OLD_COMMANDS.get(name, name)


def option_words(
    command: str, words: Sequence[str], parameters: Iterable[Any], *, is_script: bool
) -> list[str]:
    """The words of a command line with the options' names of today, without -q and -v.

    Old names are mentioned; -q and -v are obeyed. What stands behind `--`, or behind the script of
    `ampwatch run`, is not ours.
    """
    renamed = OLD_OPTIONS.get(command, {})
    takes_value = {
        name
        for parameter in parameters
        if parameter.param_type_name == "option" and not parameter.is_flag
        for name in parameter.opts
    }
    return list(_read(iter(words), renamed, takes_value, is_script=is_script))


def _read(
    words: Iterator[str], renamed: dict[str, str], takes_value: set[str], *, is_script: bool
) -> Iterator[str]:
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--" or (is_script and not word.startswith("-")):
            yield word
            yield from words
            return
        if word in _VOLUMES:
            set_volume(_VOLUMES[word])
            continue
        if name in renamed:
            _mention(name, renamed[name])
            name = renamed[name]
        yield f"{name}{equals}{value}"
        if name in takes_value and not equals:
            yield from itertools.islice(words, 1)


def _mention(old: str, new: str) -> None:
    say(f"`{old}` is called `{new}` now; the old name works until the next version.")
