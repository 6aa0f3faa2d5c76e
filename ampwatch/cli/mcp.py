"""`ampwatch mcp [FOLDER]...`: lets agents read reports and prove learning rates, over stdio."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ampwatch.errors import NotARunError

HELP = """Serve runs to an agent, by the Model Context Protocol.

  ampwatch mcp                      the runs in ./ampwatch-runs; read only
  ampwatch mcp /data/runs           those of another folder
  ampwatch mcp --allow-prove 15m    rerun a run's own command, 15 min in all
  ampwatch mcp --allow-control      act in runs attached with control=True
  ampwatch mcp --skill > SKILL.md   instructions for an agent, as a file

An agent's program starts it by itself; its settings name this command.
"""

DEFAULT_BYTES = 4000


def command(
    folders: list[Path] = typer.Argument(
        None, metavar="FOLDER", show_default=False, help="Folders with runs."
    ),
    allow_prove: str = typer.Option(
        None, metavar="TIME", show_default=False, help="Time for all reruns: 90s, 15m, 2h."
    ),
    allow_control: bool = typer.Option(
        False, "--allow-control", help="Let the agent act in live runs that allow it."
    ),
    max_bytes: int = typer.Option(
        DEFAULT_BYTES, metavar="N", min=500, help="Bytes of an answer, at most."
    ),
    skill: bool = typer.Option(False, "--skill", help="Print the instructions for an agent."),
) -> None:
    """Serve until the client leaves."""
    from ampwatch.cli.options import seconds
    from ampwatch.store import default_log_dir

    if skill:
        sys.stdout.write(Path(__file__).with_name("SKILL.md").read_text("utf-8"))
        return
    for folder in folders or ():
        if not folder.is_dir():
            raise NotARunError(f"{folder} is not a folder.", path=folder)
    from ampwatch.cli.mcp_server import AgentSettings, serve

    serve(
        AgentSettings(
            tuple(folders or [default_log_dir()]), max_bytes,
            seconds(allow_prove, "--allow-prove") if allow_prove else 0.0, allow_control,
        )
    )  # fmt: skip
