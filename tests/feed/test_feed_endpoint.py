import json
import os
import subprocess
import sys

import pytest

from ampwatch import feed
from ampwatch.errors import FeedError

ELSEWHERE = "tcp://127.0.0.1:45454"


def test_a_trainer_goes_where_it_is_told_else_to_the_default(monkeypatch):
    assert feed.resolve_endpoint() == feed.DEFAULT_ENDPOINT
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "tcp://head:6000")
    assert feed.resolve_endpoint() == "tcp://head:6000"
    assert feed.resolve_endpoint("tcp://other:1") == "tcp://other:1"


def test_off_is_off(monkeypatch):
    assert feed.resolve_endpoint("off") is None
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    assert feed.resolve_endpoint() is None


def test_what_is_no_endpoint_is_refused_with_the_form():
    with pytest.raises(FeedError, match="tcp://HOST:PORT"):
        feed.resolve_endpoint("http://localhost:80")


def test_a_recorder_that_took_another_port_is_found_while_it_lives():
    assert feed.announce(ELSEWHERE)
    assert feed.resolve_endpoint() == ELSEWHERE
    feed.withdraw()
    assert feed.resolve_endpoint() == feed.DEFAULT_ENDPOINT


@pytest.mark.skipif(os.name == "nt", reason="whether a process lives is not asked there")
def test_the_note_of_a_recorder_that_was_killed_counts_no_more():
    script = f"from ampwatch import feed; import os; feed.announce({ELSEWHERE!r}); os._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert feed.resolve_endpoint() == feed.DEFAULT_ENDPOINT


def test_another_recorders_note_is_not_withdrawn(own_folders):
    feed.announce(ELSEWHERE)
    (note,) = (own_folders / "state" / "ampwatch").iterdir()
    note.write_text(json.dumps({"endpoint": ELSEWHERE, "pid": os.getppid()}))
    feed.withdraw()
    assert note.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"endpoint": 3}', '{"endpoint": "x", "pid": 1}', "\0"])
def test_a_damaged_note_counts_for_nothing(own_folders, text):
    feed.announce(ELSEWHERE)
    (note,) = (own_folders / "state" / "ampwatch").iterdir()
    note.write_text(text)
    assert feed.resolve_endpoint() == feed.DEFAULT_ENDPOINT
    feed.withdraw()


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///tmp/x", True),
        ("tcp://10.0.0.1:1", False),
        ("tcp://*:1", False),
    ],
)
def test_what_only_this_machine_reaches_is_local(endpoint, local):
    assert feed.is_local(endpoint) is local


def test_an_endpoint_on_every_address_is_reached_by_loopback():
    assert feed.reachable_form("tcp://0.0.0.0:5797") == feed.DEFAULT_ENDPOINT
    assert feed.reachable_form("tcp://[::]:1") == "tcp://[::1]:1"
