"""The Findings page as HTML: nothing told twice, each other finding a line, tones by severity."""

from __future__ import annotations

import dataclasses
import re

import pytest
from findings_page import finding_html, findings_html
from open_runs import OpenRuns
from structured_runs import write_structured

from ampwatch.diagnosis import Finding, Severity


@pytest.fixture(scope="module")
def look(tmp_path_factory):
    """A run that failed by its learning rate."""
    path = write_structured(tmp_path_factory.mktemp("runs"), "one", rate=0.1, fails=True)
    return OpenRuns().snapshot_of(str(path))


def finding(code, severity, **more):
    words = {"summary": f"{code} in words.", "cause": "It is so.", "action": f"Mend {code}."}
    return Finding(code, code.lower(), severity, 3, 9, (0,), None, **{**words, **more})


@pytest.fixture
def several(look):
    """Its diagnosis with an error, a warning and a remark."""
    found = (
        finding("AMP302", Severity.ERROR),
        finding("AMP411", Severity.INFO),
        finding("AMP304", Severity.WARNING),
    )
    return dataclasses.replace(look.diagnosis, findings=found)


def test_the_headline_begins_at_the_step_that_the_band_names(look):
    told = look.diagnosis_as_told()
    (step,) = re.findall(r"broke down at step (\d+)", str(look.letter().opening[0]))
    assert f"from step {step} on" in findings_html(look, told)


def test_of_a_rate_that_is_too_high_the_page_names_no_other_rate_than_the_band(look):
    told = look.diagnosis_as_told()
    assert look.letter().blames_rate
    assert told.headline.summary not in findings_html(look, told)


def test_what_to_do_about_the_headline_stands_in_the_band_alone(look, several):
    page = findings_html(look, several)
    assert "Mend AMP302." not in page
    assert "Mend AMP304." in page


def test_the_others_are_lines_that_open_and_remarks_come_last(look, several):
    page = findings_html(look, several)
    folds = re.findall(r'<details class="aw-fold" data-key="finding (AMP\d+)', page)
    assert folds == ["AMP304", "AMP411"]
    assert page.index("AMP304 in words.") < page.index("Also noticed") < page.index("AMP411 in")


def test_a_remark_is_not_drawn_in_the_colour_of_an_error(look, several):
    page = findings_html(look, several)
    tones = re.findall(r'class="aw-fold"[^>]*--aw-tone:var\(--aw-(\w+)\)', page)
    assert tones == ["advice", "muted"]


def test_longer_code_is_folded_with_its_number_of_lines_and_copied(look):
    code = "\n".join(f"line_{n}()" for n in range(13))
    page = finding_html(
        finding("AMP302", Severity.ERROR, action=f"Paste this:\n{code}"), has_ranks=False
    )
    assert "<summary>Code (13 lines)</summary>" in page
    assert f'data-copy="{code}"' in page


def test_single_steps_are_links_and_the_sketch_shades_them_alone(look):
    page = finding_html(finding("AMP206", Severity.WARNING, steps=(1600, 2500)), has_ranks=False)
    assert re.findall(r'data-go="(\d+)"', page) == ["1600", "2500"]
    assert "step=1600" in page
