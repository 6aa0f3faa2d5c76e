"""Other projects' clients: loaded when somebody asks for a mirror, never before."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from ampwatch.errors import MirrorError
from ampwatch.text import printable

_LONGEST_REASON = 200  # letters


def client(module: str, package: str) -> Any:
    """A client's module; MirrorError names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MirrorError(
            f"Mirroring there takes the package {package}, which cannot be loaded "
            f"({reason(error)}): pip install {package}."
        ) from error


def reason(error: Exception) -> str:
    """What a client said, without the password that an address in it may hold."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    text = re.sub(r"://[^/@\s]+@", "://…@", text)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
