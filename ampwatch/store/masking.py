"""Secrets in what is written of a run: arguments, settings and variables, by their names.

The last word of a name decides: `wandb_api_key` hides its value, `key_dim` does not. User names and
passwords in addresses, and tokens of well-known services, are hidden wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

MASK = "***"
_SECRET_WORDS = frozenset({
    "token", "password", "passwd", "pwd", "passphrase", "secret",
    "credential", "credentials", "key", "apikey", "auth",
})  # fmt: skip
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[\w-]{8,}"
)


def masked_arguments(argv: Iterable[str]) -> tuple[str, ...]:
    """The arguments, with the values of flags that name a secret replaced by three stars."""
    return tuple(_masked(argv))


def masked_values(value: Any, name: str = "") -> Any:
    """A value in JSON's types, with all replaced that stands under a name of a secret.

    Whether there is one still shows: nothing and truth values stay.
    """
    if isinstance(value, dict):
        is_secret = _names_secret(name)
        return {
            inner: masked_values(item, name if is_secret else inner)
            for inner, item in value.items()
        }
    if isinstance(value, list):
        return [masked_values(item, name) for item in value]
    if value in (None, "") or isinstance(value, bool):
        return value
    if _names_secret(name):
        return MASK
    return _masked_text(value) if isinstance(value, str) else value


def _masked(argv: Iterable[str]) -> Iterator[str]:
    secret_follows = False
    for argument in argv:
        flag, equals, value = argument.partition("=")
        if secret_follows and not argument.startswith("--"):
            yield MASK
            secret_follows = False
        elif equals and value and _names_secret(flag):
            yield f"{flag}={MASK}"
            secret_follows = False
        else:
            yield _masked_text(argument)
            secret_follows = not equals and argument.startswith("-") and _names_secret(flag)


def _masked_text(text: str) -> str:
    return _KNOWN_TOKENS.sub(MASK, _USER_INFO.sub(MASK, text))


def _names_secret(name: str) -> bool:
    words = _WORDS.findall(name)
    return bool(words) and words[-1].lower() in _SECRET_WORDS
