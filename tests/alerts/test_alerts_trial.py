"""A test message: really sent, and its result in plain words, whatever the server does."""

from __future__ import annotations

import logging
import socket
import time

import pytest
from alert_parts import web_hook

from ampwatch.alerts import Trial, new_setting, read_outcomes

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
