"""The addresses of places: which are accepted, and that none holds a password.

Libraries write addresses into their logs, so credentials come from the environment alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ampwatch.errors import PlaceError

if TYPE_CHECKING:
    pass

_SCHEMES = {"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file"}
_ENDPOINTS = re.compile(r"(AWS|AZURE|GOOGLE)_\w*(ENDPOINT|URL)\w*", re.IGNORECASE)


def checked_address(text: str) -> tuple[str, str]:
    """A place's address for people and for libraries; PlaceError if it holds credentials."""
    text = re.sub(r"^([a-z][a-z0-9]+):/(?=[^/])", r"\1://", text)  # a Path makes one slash of two
    if "://" not in text:
        return text, str(Path(text).expanduser().absolute())
    parts = urlsplit(text)
    is_account = parts.scheme in {"abfs", "abfss"}  # CONTAINER@ACCOUNT
    if (parts.username and not is_account) or parts.password or parts.query:
        raise PlaceError(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path} was given with credentials in "
            "it: take them out, change them where they were seen, and set them in the environment."
        )
    if parts.scheme not in _SCHEMES:
        raise PlaceError(
            f"{parts.scheme}:// is no address that runs can be published to: use s3://, gs://, "
            "az:// or a folder's path.",
            place=text,
        )
    if parts.scheme == "file":
        return text, parts.path.rstrip("/")
    _refuse_telling_endpoints()
    return text.rstrip("/"), text.rstrip("/")


def _refuse_telling_endpoints() -> None:
    """Refuse a service's address in the environment that holds a password."""
    for name, value in os.environ.items():
        parts = urlsplit(value) if _ENDPOINTS.fullmatch(name) else None
        if parts is not None and (parts.username or parts.password or parts.query):
            raise PlaceError(
                f"{name} was given with credentials in it: take them out, change them where they "
                "were seen, and set them in variables of their own."
            )


def is_place(text: str) -> bool:
    """Whether this text is the address of a place: a URL, or a folder that holds one."""
    return "://" in text or (Path(text) / "runs" / "_delta_log").is_dir()
