"""`ampwatch compact RUN`: rewrite a finished run so that it opens fast."""

from __future__ import annotations

from ampwatch.cli.run_argument import RUN_ARGUMENT, find_run
from ampwatch.cli.terminal import answer, asides

NAME = "compact"
HELP = """Rewrite a finished run so that it opens fast.

Many small batches become a few large compressed files. Nothing is lost, and it is never necessary:
a run that is not compacted can be read as well. The new files are written beside the old ones and
then renamed. A run that is still being written is refused.

Example: ampwatch compact ampwatch-runs/train-1204
"""


def command(run: str = RUN_ARGUMENT) -> None:
    """Compact a finished run."""
    from rich.progress import Progress

    from ampwatch.diagnosis.value_text import bytes_text
    from ampwatch.store import compact

    folder = find_run(run)
    with Progress(console=asides(), transient=True) as bar:
        task = bar.add_task("compacting")

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        result = compact(folder, progress=show)
    before, after = bytes_text(result.bytes_before), bytes_text(result.bytes_after)
    answer(f"{folder}: {result.rows:,} rows, {before} before, {after} after")
