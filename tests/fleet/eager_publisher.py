"""The command line, whose recorder publishes, and tries again, without pauses."""

from __future__ import annotations

import sys

from ampwatch import cli
from ampwatch.fleet import background_publisher

_CHILD = "background_publisher_child"
PROGRAM = background_publisher._PROGRAM.replace(
    f"{_CHILD}.main", f"{_CHILD}._LOOK_EVERY_S = {_CHILD}._FIRST_RETRY_S = 0.05\n{_CHILD}.main"
)

if __name__ == "__main__":
    background_publisher._PROGRAM = PROGRAM
    background_publisher._TELL_EVERY_S = 0.05
    cli.main(sys.argv[1:])
