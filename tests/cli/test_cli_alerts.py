"""`ampwatch alerts`: the same list as the dashboard's, tried against a real server."""

from __future__ import annotations

import io

import pytest
from alert_parts import web_hook

from ampwatch import cli
from ampwatch.alerts import read_settings, settings_path
from ampwatch.diagnosis import Severity

pytest.importorskip("apprise", reason="the extra `notify` is not installed")

SECRETS = ("s3cret", "t0ken")


@pytest.fixture
def alerts(capsys):
    """Runs a command; its exit code, what it answered and what it complained of."""

    def run(*words):
        code = cli.run(["alerts", *words])
        told = capsys.readouterr()
        assert not any(secret in told.out + told.err for secret in SECRETS)
        return code, told.out, told.err

    return run


def test_one_is_added_listed_tried_changed_and_removed(alerts):
    assert "alerts add" in alerts()[1]
    with web_hook() as hook:
        code, out, _ = alerts(
            "add", hook.address, "--name", "team", "--min-severity", "error", "--finding", "AMP1*",
            "--finding", "bad-batch", "--run", "train-*",
        )  # fmt: skip
        assert code == 0
        assert "team (json://…) gets alerts from now on: errors only · AMP1* the loss scale" in out
        code, out, _ = alerts("test", "team")
    assert code == 0
    assert out.startswith("team (json://…): Accepted by JSON")
    assert [told["title"] for told in hook.taken] == ["ampwatch: a test message"]
    lines = alerts()[1].splitlines()
    scope = "errors only · AMP1* the loss scale, bad-batch · train-*"
    assert lines[0] == f"1  team (json://…)  {scope}"
    assert lines[1].startswith("   last message ")
    assert lines[2] == f"kept in {settings_path()}"
    code, out, _ = alerts("change", "1", "--off", "--finding", "*", "--min-severity", "info")
    assert out == "team (json://…): everything, remarks too · all findings · train-*, off.\n"
    [kept] = read_settings()
    assert (kept.least, kept.what, kept.is_on, kept.address) == (
        Severity.INFO, (), False, hook.address,
    )  # fmt: skip
    assert "  off  " in alerts()[1]
    assert alerts("remove", "team")[:2] == (0, "team (json://…) is removed.\n")
    assert read_settings() == ()


def test_of_several_each_is_tried_and_one_that_refuses_is_said(alerts):
    with web_hook() as good, web_hook() as bad:
        bad.refuses, bad.status = True, 404
        for hook, name in ((good, "good"), (bad, "bad")):
            assert alerts("add", hook.address, "--name", name)[0] == 0
        code, out, err = alerts("test")
    assert code == 5
    assert "good (json://…): Accepted by JSON" in out
    assert "bad (json://…): Not accepted: it knows nothing at this address" in err
    assert "last failure" in alerts()[1]


def test_an_address_is_read_from_a_pipe_so_that_no_history_keeps_it(alerts, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("json://me:s3cret@h/t0ken\n"))
    assert alerts("add")[0] == 0
    assert read_settings()[0].address == "json://me:s3cret@h/t0ken"
    monkeypatch.setattr("sys.stdin", io.StringIO("xml://me:s3cret@h/t0ken\n"))
    assert alerts("change", "1", "--address", "-")[0] == 0
    assert read_settings()[0].label == "xml://…"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "nowhere://s3cret"], "apprise understands"),
        (["add", "json://h", "--finding", "AMP999"], "ampwatch explain"),
        (["add", "json://h", "--min-severity", "loud"], "info, warning or error"),
        (["test"], "alerts add"),
        (["change", "7", "--on"], "nobody's name or number"),
        (["remove"], "ampwatch alerts remove --help"),
        (["mend"], "ampwatch alerts --help"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_a_remedy(alerts, words, said):
    code, out, err = alerts(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert read_settings() == ()


def test_two_of_one_name_are_told_apart_by_their_numbers(alerts):
    for address in ("json://h/1", "json://h/2"):
        alerts("add", address, "--name", "team")
    assert "several" in alerts("remove", "team")[2]
    assert alerts("remove", "2")[0] == 0
    assert read_settings()[0].address == "json://h/1"
