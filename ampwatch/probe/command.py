"""The command line as it may be stored: what was run, without the secrets it was run with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MASK = "***"

# The last word of a flag decides: `--wandb-api-key` hides its value, `--key-dim` does not.
_SECRET_WORDS = frozenset({
    "token", "password", "passwd", "pwd", "passphrase", "secret",
    "credential", "credentials", "key", "apikey", "auth",
})  # fmt: skip
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[\w-]{8,}"
)


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments, with the values of flags that name a secret replaced by three stars.

    So are user names and passwords in addresses, and tokens of well-known services anywhere.
    """
    return tuple(_masked(argv))


def _masked(argv: Sequence[str]) -> Iterator[str]:
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
            yield _KNOWN_TOKENS.sub(MASK, _USER_INFO.sub(MASK, argument))
            secret_follows = not equals and argument.startswith("-") and _names_secret(flag)


def _names_secret(flag: str) -> bool:
    words = _WORDS.findall(flag)
    return bool(words) and words[-1].lower() in _SECRET_WORDS
