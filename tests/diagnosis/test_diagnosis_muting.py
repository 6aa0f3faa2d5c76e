"""A finding that somebody muted no longer weighs, and is still told, with its reason."""

import pytest
from structured_runs import write_structured

import ampwatch
from ampwatch.cli import run as command
from ampwatch.errors import RunError
from ampwatch.follow import follow
from ampwatch.store import RunTags, edit_tags, read_tags


@pytest.fixture
def run(tmp_path):
    """A run that failed by its learning rate."""
    return write_structured(tmp_path, "one", rate=0.1, fails=True)


def errors(diagnosis):
    return [one.code for one in diagnosis.findings if one.severity.value == "error"]


def test_a_muted_error_makes_no_headline_and_is_told_with_its_reason(run, capsys):
    head, *others = errors(ampwatch.diagnose(run))
    edit_tags(run, mute=dict.fromkeys([head, *others], "known: a test of the limit"))
    muted = ampwatch.diagnose(run)
    assert errors(muted) == []
    assert muted.verdict.value in {"healthy", "warning"}
    assert muted.findings[-1].muted is not None
    for way in ((), ("--html", str(run.parent / "report.html"))):
        command(["report", str(run), *way])
    out = " ".join(capsys.readouterr().out.split())
    page = (run.parent / "report.html").read_text("utf-8")
    for text in (out, page):
        assert head in text
        assert "known: a test of the limit" in text


def test_what_follows_from_a_muted_finding_is_muted_with_it(run):
    diagnosis = ampwatch.diagnose(run)
    head = diagnosis.headline.code
    effects = [one.code for one in diagnosis.findings if one.because_of == head]
    edit_tags(run, mute={head: "known"})
    reasons = {one.code: one.muted for one in ampwatch.diagnose(run).findings}
    assert reasons[head] == "known"
    assert all(reasons[code] == f"follows from {head}: known" for code in effects)


def test_a_live_follower_hears_of_it_and_of_its_end(run):
    follower = follow(run)
    head = follower.update().diagnosis.headline.code
    edit_tags(run, mute={head: "known"})
    assert head not in errors(follower.update().diagnosis)
    edit_tags(run, mute={head: None})
    assert follower.update().diagnosis.headline.code == head


def test_it_is_kept_beside_tags_and_note(run):
    edit_tags(run, add=["good"], note="a note")
    edit_tags(run, mute={"AMP201": "known"}, title="My run", pin=True)
    assert read_tags(run) == RunTags(("good",), "a note", "My run", True, (("AMP201", "known"),))
    (run / "tags.json").write_text('{"tags": [], "note": "", "muted": 3}')
    assert read_tags(run) == RunTags()
    with pytest.raises(RunError, match="damaged"):
        edit_tags(run, mute={"AMP201": "known"})
