"""A run and its diagnosis as a letter for the terminal, as JSON, or as one HTML file.

Names of runs and layers are data: they are shown, never interpreted.
"""

from __future__ import annotations

from ampwatch.report.comparison import Comparison, compare
from ampwatch.report.event_file import EventStream
from ampwatch.report.facts import (
    Fact,
    course_text,
    facts_of,
    last_values,
    latest_text,
    powers,
    rows_of_first_optimizer,
    ruled_out,
    sparkline,
)
from ampwatch.report.letter import STYLES, letter, print_letter, to_json
from ampwatch.report.page import html_report
from ampwatch.report.page.compared import html_comparison
from ampwatch.report.side_by_side import MOST_RUNS, print_comparison
from ampwatch.report.tensorboard import write_event_files
from ampwatch.report.together import print_together

__all__ = [
    "MOST_RUNS",
    "STYLES",
    "Comparison",
    "EventStream",
    "Fact",
    "compare",
    "course_text",
    "facts_of",
    "html_comparison",
    "html_report",
    "last_values",
    "latest_text",
    "letter",
    "powers",
    "print_comparison",
    "print_letter",
    "print_together",
    "rows_of_first_optimizer",
    "ruled_out",
    "sparkline",
    "to_json",
    "write_event_files",
]
