"""Alerts by the user's settings: a real server receives them, whoever sends and restarts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from alert_parts import wait_for, web_hook
from written_runs import more, write_run

from ampwatch.alerts import (
    AlertSender,
    add_setting,
    change_setting,
    new_setting,
    read_outcomes,
    remove_setting,
    settings_path,
)
from ampwatch.alerts.sent_alerts import RunClaim, alerts_folder
from ampwatch.diagnosis import Severity
from ampwatch.store import open_run

pytest.importorskip("apprise", reason="the extra `notify` is not installed")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Rounds are short, and runs that are written by hand are not given up between two strokes."""
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 600.0)
    monkeypatch.setattr("ampwatch.alerts.alert_sender.LOOK_EVERY_S", 0.02)
    monkeypatch.setattr("ampwatch.alerts.alert_sender.SETTINGS_EVERY_S", 0.05)


@pytest.fixture
def hook():
    with web_hook() as made:
        yield made


@pytest.fixture
def start():
    """Starts a sender for these runs; all are closed at the end."""
    started = []

    def begin(*runs):
        notes = []
        sender = AlertSender(lambda: runs, on_note=notes.append)
        sender.notes = notes
        started.append(sender)
        return sender

    yield begin
    for sender in started:
        sender.close()


def titles(hook):
    return [told["title"] for told in hook.taken]


def is_over(run):
    """Whether nothing of a run is left to be sent."""
    record = alerts_folder() / "runs" / open_run(run).info.id / "sent.json"
    return record.is_file() and json.loads(record.read_text())["over"]


def test_a_setting_that_is_added_hears_of_live_runs_and_one_that_is_off_does_not(
    tmp_path, hook, start
):
    sender = start(write_run(tmp_path, skipped=30, ended=False))
    add_setting(new_setting(hook.address, name="off", is_on=False))
    one = new_setting(hook.address)
    add_setting(one)
    wait_for(lambda: one.id in read_outcomes())
    assert [title.split(":")[1] for title in titles(hook)] == [" one is failing"]
    assert read_outcomes()[one.id].title == titles(hook)[0]
    assert sender.notes == ["Alerts go to json://…."]


def test_nothing_is_sent_twice_after_a_restart_and_what_gets_worse_is(tmp_path, hook, start):
    run = write_run(tmp_path, skipped=30, ended=False)
    one = new_setting(hook.address)
    add_setting(one)
    first = start(run)
    wait_for(lambda: hook.taken)
    first.close()
    second = start(run)
    other = new_setting(hook.address, name="new")
    add_setting(other)  # hears of all; so the run was looked at again
    wait_for(lambda: other.id in read_outcomes())
    assert titles(hook)[0] == titles(hook)[1]
    more(run, accepted=1, first=130)  # the scale is what it was at first: that is a finding
    second.close()
    assert all("(AMP108 " in told["message"] for told in hook.taken[2:])
    assert len(hook.taken) == 4


CLAIMING = """
import sys
from pathlib import Path
from ampwatch.alerts.sent_alerts import RunClaim
claim = RunClaim.take(sys.argv[1], Path(sys.argv[2]))
print(claim is not None, flush=True)
sys.stdin.readline()
"""


def test_of_two_processes_one_sends_and_once_it_is_killed_the_other_does(tmp_path, hook, start):
    run = write_run(tmp_path, skipped=30, ended=False)
    words = [sys.executable, "-c", CLAIMING, open_run(run).info.id, str(run)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "True\n"
        add_setting(new_setting(hook.address))
        sender = start(run)
        wait_for(lambda: sender.notes)
        assert RunClaim.take(open_run(run).info.id, run) is None
        assert hook.asked == 0
        first.kill()
        wait_for(lambda: hook.taken)


def test_only_what_is_asked_for_is_sent(tmp_path, hook, start):
    runs = [write_run(tmp_path, name, skipped=30, ended=False) for name in ("train-1", "other")]
    named = new_setting(hook.address, runs=("train-*",))
    nothing = new_setting(hook.address, what=("out-of-memory",))
    remarks = new_setting(hook.address, least=Severity.INFO, what=("AMP1*",), runs=("other",))
    for one in (named, nothing, remarks):
        add_setting(one)
    start(*runs)
    wait_for(lambda: len(read_outcomes()) == 2)
    assert sorted(title.split()[1] for title in titles(hook)) == ["other", "train-1"]
    assert nothing.id not in read_outcomes()
    [told] = [told["message"] for told in hook.taken if "other" in told["title"]]
    assert "AMP103" in told
    assert "AMP2" not in told.replace("because of AMP2", "")


def test_who_is_turned_off_or_removed_hears_no_more_and_what_is_changed_counts(
    tmp_path, hook, start
):
    run = write_run(tmp_path, ended=False)
    one, gone = new_setting(hook.address, name="changed"), new_setting(hook.address, name="gone")
    for setting in (one, gone):
        add_setting(setting)
    sender = start(run)
    wait_for(lambda: len(sender.notes) == 2)
    remove_setting(gone.id)
    change_setting(one.id, name="anew")
    wait_for(lambda: len(sender.notes) == 3)
    more(run, skipped=30)
    wait_for(lambda: hook.taken)
    sender.close()
    assert list(read_outcomes()) == [one.id]


def test_what_a_service_refused_is_sent_after_a_restart_even_of_a_run_that_is_over(
    tmp_path, hook, start
):
    hook.refuses = True
    run = write_run(tmp_path, skipped=30, age_s=60.0)
    one = new_setting(hook.address)
    add_setting(one)
    first = start(run)
    wait_for(lambda: one.id in read_outcomes())
    assert read_outcomes()[one.id].failure == "it failed by itself (status 500); it is tried again"
    assert not is_over(run)
    first.close()
    hook.refuses = False
    start()  # nobody names the run any more
    wait_for(lambda: hook.taken)
    wait_for(lambda: is_over(run))
    assert read_outcomes()[one.id].sent_ns > read_outcomes()[one.id].failed_ns > 0


def test_a_run_that_was_over_long_ago_is_no_news(tmp_path, hook, start):
    old = write_run(tmp_path, "old", skipped=30, age_s=3 * 86400.0)
    young = write_run(tmp_path, "young", skipped=30, age_s=60.0)
    add_setting(new_setting(hook.address))
    start(old, young)
    wait_for(lambda: is_over(old) and is_over(young))
    assert [title.split()[1] for title in titles(hook)] == ["young"]


def test_a_service_that_hangs_keeps_nobody_else_from_theirs(tmp_path, hook, start):
    add_setting(new_setting(hook.address))
    with web_hook() as slow:
        slow.hangs = True
        add_setting(new_setting(slow.address))
        start(write_run(tmp_path, skipped=30, ended=False))
        wait_for(lambda: slow.asked and hook.taken)


def test_a_damaged_file_is_said_once_and_what_was_set_up_before_still_counts(tmp_path, hook, start):
    run = write_run(tmp_path, ended=False)
    add_setting(new_setting(hook.address))
    sender = start(run)
    wait_for(lambda: sender.notes)
    settings_path().write_text("{")
    wait_for(lambda: len(sender.notes) == 2)
    more(run, skipped=30)
    wait_for(lambda: hook.taken)
    assert "damaged" in sender.notes[1]
    assert settings_path().read_text() == "{"


def test_a_deleted_run_and_an_address_that_nobody_understands_stop_nothing(tmp_path, hook, start):
    run = write_run(tmp_path, ended=False)
    bad = new_setting("nowhere://s3cret")
    for setting in (bad, new_setting(hook.address)):
        add_setting(setting)
    sender = start(tmp_path / "never", run)
    more(run, skipped=30)
    wait_for(lambda: hook.taken)
    assert "apprise" in read_outcomes()[bad.id].failure
    assert "s3cret" not in str(sender.notes) + str(read_outcomes())


def test_without_settings_no_run_is_opened_and_no_library_loaded(tmp_path):
    code = (
        "import sys, time; from ampwatch.alerts import AlertSender, alert_sender\n"
        "alert_sender.SETTINGS_EVERY_S = 0.01\n"
        "sender = AlertSender(lambda: 1 / 0, on_note=print); time.sleep(0.2)\n"
        "sender.close(); print('apprise' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"
