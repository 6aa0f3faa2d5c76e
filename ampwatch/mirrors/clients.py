"""Other projects' clients: loaded when somebody asks for a mirror, never before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ampwatch.errors import MirrorError


def client(module: str, package: str) -> Any:
    """A client's module; MirrorError names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MirrorError(
            f"Mirroring there takes the package {package}, which is not installed: "
            f"pip install {package}."
        ) from error
