"""A run and its diagnosis as text for the terminal, as JSON, or as one HTML file.

Names of runs and layers are data: they are shown, never interpreted.

- what is told of a run: facts, settings, scaler_settings, step_notes, timeline
- the letter: letter, letter_facts, happenings, letter_to_do, restart_place
- the report: terminal_report, html_file, notebook_html, tensorboard_event_files, plotly_figure
- for CI and tests: health_check, sarif_file, junit_file
- charts: overview_chart, thinning, painter
- layers: last_layer_values, format_losses, scale_windows, fp16_fit, layer_views
- several runs: compared_run, comparison, comparison_text, divergence, sweep
"""

from __future__ import annotations

from ampwatch.report.comparison import Asked, compare
from ampwatch.report.comparison_text import print_comparison, print_sweep
from ampwatch.report.facts import last_values
from ampwatch.report.html_file import html_comparison, html_report
from ampwatch.report.tensorboard_event_files import EventStream, write_event_files
from ampwatch.report.terminal_report import (
    STYLES,
    print_fact,
    print_report,
    print_reports,
    report_text,
    to_json,
)

__all__ = [
    "STYLES",
    "Asked",
    "EventStream",
    "compare",
    "html_comparison",
    "html_report",
    "last_values",
    "print_comparison",
    "print_fact",
    "print_report",
    "print_reports",
    "print_sweep",
    "report_text",
    "to_json",
    "write_event_files",
]
