"""Real messages through the real library to a real server."""

from __future__ import annotations

import sys

import pytest
from alert_parts import wait_for, web_hook

from ampwatch.alerts import Delivery, open_services
from ampwatch.alerts.alert_text import Alert
from ampwatch.diagnosis import Severity
from ampwatch.errors import AlertError

ALERT = Alert("ampwatch: a is failing", "What to do\n\nMore", Severity.ERROR)


@pytest.fixture
def _apprise():
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")


@pytest.mark.usefixtures("_apprise")
def test_an_alert_arrives_whole():
    with web_hook() as hook, Delivery(open_services([hook.address])) as delivery:
        delivery.put(ALERT)
        wait_for(lambda: hook.taken)
    assert hook.taken[0]["title"] == ALERT.title
    assert hook.taken[0]["message"] == ALERT.body
    assert hook.taken[0]["type"] == "failure"


@pytest.mark.usefixtures("_apprise")
def test_a_service_that_answers_with_an_error_gets_it_later():
    notes = []
    with web_hook() as hook:
        hook.refuses = True
        with Delivery(
            open_services([hook.address]), retry_s=0.05, on_note=notes.append
        ) as delivery:
            delivery.put(ALERT)
            wait_for(lambda: hook.asked >= 2)
            hook.refuses = False
            wait_for(lambda: hook.taken)
    assert len(hook.taken) == 1
    assert len(notes) == 1
    assert "s3cret" not in notes[0]
    assert "t0ken" not in notes[0]


@pytest.mark.usefixtures("_apprise")
def test_of_an_address_only_its_scheme_is_shown():
    labels = [s.label for s in open_services(["json://u:s3cret@h/t0ken", "xml://h/t0ken"])]
    assert labels == ["json://…", "xml://…"]
    twice = open_services(["json://h/one", "json://h/two"])
    assert [s.label for s in twice] == ["json://… (number 1)", "json://… (number 2)"]


@pytest.mark.usefixtures("_apprise")
@pytest.mark.parametrize("address", ["s3cret", "nowhere://s3cret", "slack://s3cret", ""])
def test_an_address_that_nobody_understands_is_refused_and_not_shown(address):
    with pytest.raises(AlertError, match="number 2") as refused:
        open_services(["json://localhost", address])
    assert "s3cret" not in str(refused.value)
    assert "slack://" in str(refused.value)


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(AlertError, match=r"pip install 'ampwatch\[notify\]'"):
        open_services(["json://localhost"])
