"""Alerts reach services, a failing one is tried again and says why, and so does a test message."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time

import pytest
from alert_parts import wait_for, web_hook

from ampwatch.alerts import Delivery, Trial, new_setting, open_services, read_outcomes
from ampwatch.alerts.alert_text import Alert
from ampwatch.alerts.delivery import Service
from ampwatch.diagnosis import Severity
from ampwatch.errors import AlertError


def alert(title):
    return Alert(title, "body", Severity.ERROR)


class Target:
    """A service that takes what it is sent, unless told to refuse."""

    def __init__(self, label="test://…"):
        self.titles, self.asked, self.trouble = [], 0, None
        self.service = Service(label, self.send)

    def send(self, sent):
        self.asked += 1
        if isinstance(self.trouble, Exception):
            raise self.trouble
        if not self.trouble:
            self.titles.append(sent.title)
        return not self.trouble


def test_the_first_alert_goes_at_once_and_those_of_the_next_minute_as_one():
    target = Target()
    with Delivery([target.service], every_s=0.5) as delivery:
        delivery.put(alert("one"))
        wait_for(lambda: target.titles)
        delivery.put(alert("two"))
        delivery.put(alert("three"))
        wait_for(lambda: len(target.titles) > 1)
        assert target.titles == ["one", "ampwatch: 2 alerts"]


def test_closing_sends_what_waits():
    target = Target()
    with Delivery([target.service], every_s=3600.0) as delivery:
        delivery.put(alert("one"))
        wait_for(lambda: target.titles)
        delivery.put(alert("two"))
    assert target.titles == ["one", "two"]


@pytest.mark.parametrize("trouble", [True, ValueError("a bug that names s3cret")])
def test_a_service_that_fails_is_tried_again_and_told_of_once(trouble):
    target, notes = Target(), []
    target.trouble = trouble
    with Delivery([target.service], every_s=0.0, retry_s=0.01, on_note=notes.append) as delivery:
        delivery.put(alert("one"))
        wait_for(lambda: target.asked >= 3)
        target.trouble = None
        wait_for(lambda: target.titles)
        target.trouble = trouble
        delivery.put(alert("two"))
        wait_for(lambda: target.asked >= 6)
        target.trouble = None
    assert target.titles == ["one", "two"]
    assert len(notes) == 1
    assert "tried again" in notes[0]
    assert "s3cret" not in notes[0]


def test_a_service_that_never_answers_does_not_keep_the_others_from_theirs():
    dead, alive, notes = Target("dead://…"), Target(), []
    dead.trouble = True
    with Delivery([dead.service, alive.service], every_s=0.0, on_note=notes.append) as delivery:
        delivery.put(alert("one"))
        wait_for(lambda: alive.titles)
        delivery.put(alert("two"))
        wait_for(lambda: len(alive.titles) == 2)
        assert dead.asked == 1  # not before its time
    assert notes[-1] == "2 alerts could not be sent to dead://…."


def test_a_service_that_hangs_is_left_behind():
    hanging = threading.Event()
    notes = []
    delivery = Delivery([Service("slow://…", lambda _: hanging.wait(30))], on_note=notes.append)
    delivery.put(alert("one"))
    delivery.close(wait_s=0.05)
    assert notes == ["1 alert could not be sent to slow://…."]
    hanging.set()
    delivery.close()


def test_putting_an_alert_never_waits_for_a_service():
    hanging, begun = threading.Event(), []
    delivery = Delivery([Service("slow://…", lambda text: begun.append(text) or hanging.wait(30))])
    for n in range(1000):
        delivery.put(alert(str(n)))
    assert len(begun) <= 1  # the service has not returned once, and all alerts are put
    hanging.set()
    delivery.close()


# --- what a service says --------------------------------------------------------------------------

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
    with pytest.raises(AlertError, match=r"pip install -e '.\[notify\]'"):
        open_services(["json://localhost", "slack://a/b/c"])


def test_a_web_hook_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    notes = []
    with web_hook() as hook:
        hook.refuses = True
        services = open_services([hook.address])
        with Delivery(services, retry_s=0.05, on_note=notes.append) as delivery:
            delivery.put(ALERT)
            wait_for(lambda: hook.asked >= 2)
            hook.refuses = False
            wait_for(lambda: hook.taken)
    assert (hook.taken[0]["title"], hook.taken[0]["message"]) == (ALERT.title, ALERT.body)
    assert hook.taken[0]["type"] == "failure"
    assert "s3cret" not in notes[0]
    assert "t0ken" not in notes[0]


# --- a test message -------------------------------------------------------------------------------

pytest.importorskip("apprise", reason="the extra `notify` is not installed")


@pytest.fixture
def logged():
    """Everything that this process logs, at any level."""

    class Ear(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    lines, ear, root = [], Ear(level=0), logging.getLogger()
    level = root.level
    root.setLevel(0)
    root.addHandler(ear)
    yield lines
    root.removeHandler(ear)
    root.setLevel(level)


def test_it_arrives_and_says_by_whom_it_was_accepted(logged):
    with web_hook() as hook:
        setting = new_setting(hook.address, name="mine")
        told = Trial(setting).wait()
    assert told.is_accepted
    assert told.sentence.startswith("Accepted by JSON after ")
    assert hook.taken[0]["title"] == "ampwatch: a test message"
    assert "training" in hook.taken[0]["message"]
    outcome = read_outcomes()[setting.id]
    assert (outcome.title, outcome.failed_ns) == ("ampwatch: a test message", 0)
    assert not any("s3cret" in line for line in logged)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "it does not accept the password or token"),
        (404, "it knows nothing at this address (status 404)"),
        (429, "it has had too many messages lately (status 429)"),
        (418, "it refused the message (status 418)"),
        (500, "it failed by itself (status 500)"),
    ],
)
def test_a_server_that_refuses_is_said_with_the_reason(status, reason):
    with web_hook() as hook:
        hook.refuses, hook.status = True, status
        setting = new_setting(hook.address)
        told = Trial(setting).wait()
    assert not told.is_accepted
    assert told.sentence == f"Not accepted: {reason}."
    assert read_outcomes()[setting.id].failure == reason


def test_a_server_that_hangs_is_not_waited_for_longer_than_the_limit():
    with web_hook() as hook:
        hook.hangs = True
        trial = Trial(new_setting(hook.address), limit_s=0.3)
        assert trial.result is None  # nobody waits here
        began_s = time.monotonic()
        told = trial.wait()
        assert time.monotonic() - began_s < 3.0
        assert told.sentence == "Not accepted: it did not answer within 0.3 seconds."
        assert trial.result is told


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("json://me:s3cret@127.0.0.1:{}/t0ken", "nothing listens at that host and port"),
        ("json://me:s3cret@no-such-host.invalid/t0ken", "there is no host of that name"),
        ("mailto://me:s3cret@127.0.0.1:{}?to=a@b.example&from=c@d.example",
         "nothing listens at that host and port"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_said_without_showing_it(address, reason, logged):
    told = Trial(new_setting(address.format(free_port()))).wait()
    assert told.sentence.endswith(f"Not accepted: {reason}.")
    assert not any("s3cret" in line for line in logged)


def test_an_address_that_is_none_says_what_addresses_look_like():
    told = Trial(new_setting("https://s3cret.example/hook")).wait()
    assert not told.is_accepted
    assert "jsons:// for https" in told.sentence
    assert "s3cret" not in told.sentence
