"""`ampwatch dashboard` as a server: its port is its own."""

from __future__ import annotations

import urllib.request

import pytest

from ampwatch.cli.dashboard import Server
from ampwatch.errors import AmpwatchError


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No feed, and no runs but this test's."""
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def is_there(url):
    with urllib.request.urlopen(f"{url}/_stcore/health", timeout=10) as answer:
        return answer.status == 200


@pytest.mark.slow_browser
def test_two_dashboards_that_chose_the_same_port_are_both_served(tmp_path):
    one, other = Server([tmp_path / "one"]), Server([tmp_path / "other"])
    with one:
        with other:
            assert other.port != one.port
            assert is_there(one.url)
            assert is_there(other.url)
        assert is_there(one.url)


@pytest.mark.slow_browser
def test_a_port_that_was_asked_for_and_is_taken_is_refused_in_words(tmp_path):
    with Server([tmp_path]) as server:
        with pytest.raises(AmpwatchError, match=f"port {server.port} is taken"):
            Server([tmp_path], server.port)
