"""The band says of a run what its report says first."""

from __future__ import annotations

import types

import pytest
from written_runs import write_run

from ampwatch import diagnose, open_run
from ampwatch.cli import run as ampwatch
from ampwatch.follow import State


@pytest.mark.parametrize(
    ("accepted", "verdict", "first"),
    [(100, "HEALTHY", "Nothing is wrong with this run."),
     (18, "INCOMPLETE", "Nothing is wrong in 18 steps, too few to judge the learning rate."),
     (0, "INCOMPLETE", "The record ends before anything could be judged.")],
)  # fmt: skip
def test_report_page_and_band_begin_with_the_same_sentence(
    accepted, verdict, first, tmp_path, capsys
):
    from verdict_band import band

    path = write_run(tmp_path, accepted=accepted)
    assert ampwatch(["report", str(path), "--fail-on", "warning"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(verdict)
    assert lines[1].strip() == first
    assert ampwatch(["report", str(path), "--html", str(tmp_path / "page.html")]) == 0
    assert first in (tmp_path / "page.html").read_text(encoding="utf-8")
    run = open_run(path)
    look = types.SimpleNamespace(
        diagnosis=diagnose(run), is_live=False, state=State.ENDED, info=run.info,
        last_time_ns=run.last_time_ns,
    )  # fmt: skip
    shown = band(look)
    assert verdict in shown
    assert first in shown
