"""The command line of a benchmark: its help says what is measured and where the results are."""

from __future__ import annotations

import argparse


def command_line(docstring: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with the module's docstring as it stands."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )
