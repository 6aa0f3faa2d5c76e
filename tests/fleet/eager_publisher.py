"""The command line, whose recorder publishes, and tries again, without pauses."""

from __future__ import annotations

import sys

from ampwatch import cli
from ampwatch.fleet import background_publisher

if __name__ == "__main__":
    background_publisher._LOOK_EVERY_S = background_publisher._FIRST_RETRY_S = 0.05
    cli.main(sys.argv[1:])
