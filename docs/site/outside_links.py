"""Links that leave the docs: to the repository if the site names one, else their words alone."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]*)\)")


def on_config(config: Any) -> Any:
    """MkDocs calls this first. A page has no edit link if the repository's address is unknown."""
    if not config.repo_url:
        config.edit_uri = None
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """MkDocs calls this with the text of each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        words, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/"):
            return link.group()
        return (
            f"[{words}]({config.repo_url.rstrip('/')}/blob/main/{path})"
            if config.repo_url
            else words
        )

    return _LINK.sub(replaced, markdown)
