"""Delivering alerts: how often it sends, and what it does when a service does not take it."""

from __future__ import annotations

import threading

import pytest
from alert_parts import wait_for

from ampwatch.alerts import Delivery
from ampwatch.alerts.alert_text import Alert
from ampwatch.alerts.services import Service
from ampwatch.diagnosis import Severity


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
