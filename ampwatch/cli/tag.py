"""`ampwatch tag RUN [TAG...]`: changes a run's tags and its note."""

from __future__ import annotations

import typer

from ampwatch.cli.run_argument import RUN_ARGUMENT, find_run
from ampwatch.cli.terminal import answer
from ampwatch.printable_text import printable

NAME = "tag"
HELP = """Put tags and a note on a run, or print them.

They are kept in the run's folder, and shown by `ampwatch runs` and the dashboard. Who tags a run at
the same time as you loses nothing.

\b
Examples:
  ampwatch tag my-run good sweep-3
  ampwatch tag my-run --remove good --note "diverged after the restart"
  ampwatch tag my-run                           print its tags and its note
"""


def command(
    run: str = RUN_ARGUMENT,
    tags: list[str] = typer.Argument(
        None, metavar="TAG", show_default=False, help="Tags to add; a + before a tag is ignored."
    ),
    remove: list[str] = typer.Option(
        [], "--remove", metavar="TAG", show_default=False, help="A tag to remove; may be repeated."
    ),
    note: str = typer.Option(
        None, "--note", metavar="TEXT", show_default=False, help="A line to add to the note."
    ),
    clear_note: bool = typer.Option(False, "--clear-note", help="Remove the note so far."),
) -> None:
    """Change a run's tags and print what they are now."""
    from ampwatch.store import edit_tags, read_tags

    path = find_run(run)
    now = read_tags(path)
    added = [tag.removeprefix("+") for tag in tags or ()]
    if added or remove or note is not None or clear_note:
        seen = now.note
        text = None
        if note is not None or clear_note:
            text = "\n".join(part for part in ("" if clear_note else seen, note or "") if part)
        now = edit_tags(path, add=added, remove=remove, note=text, note_seen=seen)
    tagged = " ".join(now.tags) or "no tags"
    lines = [f"{path.name}: {tagged}", *now.note.splitlines()]
    answer("\n".join(printable(line) for line in lines))
