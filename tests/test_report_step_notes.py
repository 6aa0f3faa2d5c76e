"""The steps that a chart marks: where attempts begin, and what a page's reader had done."""

from __future__ import annotations

from written_runs import event_columns, fresh_id, step_columns

from ampwatch import codec, diagnose, open_run, store
from ampwatch.report.overview_chart import curves_of, overview_of
from ampwatch.report.painter.message import StepNote
from ampwatch.report.step_notes import step_notes_of
from ampwatch.rows import Table

ANSWERS = [
    (40, "control", {"offers": ["learning-rate", "save", "stop"]}),
    (60, "control", {"asked": "learning-rate", "outcome": "refused", "told": "no"}),
    (70, "control", {"asked": "learning-rate", "outcome": "done", "told": "lowered"}),
    (90, "control", {"asked": "save", "outcome": "done", "told": "saved"}),
]
NOTES = [
    StepNote(70, "learning rate set", "advice"),
    StepNote(80, "attempt 2"),
    StepNote(90, "checkpoint saved", "advice"),
]


def resumed(folder):
    """Killed at step 99, resumed at step 80, steered."""
    path = store.create_run(folder, store.RunInfo(id=fresh_id("resumed"), name="resumed"))
    for rank in (0, 1):
        for first, events in ((0, ANSWERS[:3]), (80, ANSWERS[3:])):
            writer = store.RankWriter(path, rank)
            columns = event_columns([(first, "started", {}), *events], 10**18 + first)
            writer.append(codec.encode(Table.EVENTS, columns))
            writer.append(codec.encode(Table.STEPS, step_columns(100, 0, 10**18, first=first)))
            writer.close()
    return open_run(path)


def test_a_chart_marks_each_later_attempt_and_what_was_steered_once_for_all_ranks(tmp_path):
    run = resumed(tmp_path)
    assert step_notes_of(run) == NOTES
    picture, _ = overview_of(curves_of(run), diagnose(run), None, "resumed", step_notes_of(run))
    header = picture.header("", 2.0, whole=True)
    assert [note["step"] for note in header["notes"]] == [70, 80, 90]


def test_they_are_upright_lines_in_plotly(tmp_path):
    figure = resumed(tmp_path).figure()
    lines = {(shape.x0, shape.x1) for shape in figure.layout.shapes if shape.type == "line"}
    assert {(70, 70), (80, 80), (90, 90)} <= lines
    words = {note.text for note in figure.layout.annotations}
    assert {"attempt 2", "learning rate set"} <= words


def test_the_page_marks_them_too(tmp_path):
    from open_runs import OpenRuns
    from run_chart import notes_of

    assert notes_of(OpenRuns().snapshot_of(str(resumed(tmp_path).path))) == NOTES
