"""The addresses of the docs and the repository in a wheel's metadata; a clone does not know them.

The build reads the variables that the build of the docs reads: AMPWATCH_SITE_URL and
AMPWATCH_REPOSITORY_URL.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_VARIABLES = {"Documentation": "AMPWATCH_SITE_URL", "Repository": "AMPWATCH_REPOSITORY_URL"}


class ProjectUrls(MetadataHookInterface):
    """Hatchling calls `update` for each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the addresses that the environment names."""
        addresses = {name: os.environ.get(variable) for name, variable in _VARIABLES.items()}
        metadata["urls"] = {name: address for name, address in addresses.items() if address}
