"""Settings of alerts: kept private, changed by two at once, and never lost to a damaged file."""

from __future__ import annotations

import json
import os
import stat
import sys
from fnmatch import fnmatch
from subprocess import PIPE, Popen

import pytest

from ampwatch.alerts import (
    KINDS,
    add_setting,
    change_setting,
    new_setting,
    read_settings,
    remove_setting,
    settings_path,
)
from ampwatch.diagnosis import RULES, Severity
from ampwatch.errors import AlertError

ADDRESS = "json://me:s3cret@127.0.0.1:1/t0ken"


def test_what_is_kept_is_read_again():
    one = new_setting(
        ADDRESS, name=" my \n hook ", least=Severity.ERROR, what=("AMP1*", "bad-batch"),
        runs=(" train-* ", "", "train-*"), is_on=False,
    )  # fmt: skip
    add_setting(one)
    [kept] = read_settings()
    assert kept == one
    assert (kept.name, kept.runs) == ("my hook", ("train-*",))
    assert kept.label == "my hook (json://…)"
    assert "s3cret" not in repr(kept)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_nobody_else_may_read_the_addresses():
    settings_path().parent.mkdir(parents=True, mode=0o777)
    settings_path().parent.chmod(0o777)
    before = os.umask(0)
    try:
        add_setting(new_setting(ADDRESS))
    finally:
        os.umask(before)
    assert stat.S_IMODE(settings_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(settings_path().parent.stat().st_mode) == 0o700


ADDING = """
import sys
from ampwatch.alerts import add_setting, new_setting
sys.stdin.readline()
for number in range(10):
    add_setting(new_setting("json://h/x", name=f"{sys.argv[1]} {number}"))
"""


def test_two_who_change_them_at_once_lose_nothing():
    children = [Popen([sys.executable, "-c", ADDING, name], stdin=PIPE, text=True) for name in "ab"]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    assert {one.name for one in read_settings()} == {f"{a} {n}" for a in "ab" for n in range(10)}


def test_a_part_is_changed_and_the_others_stay_and_what_is_removed_is_gone():
    kept, gone = new_setting(ADDRESS, name="kept"), new_setting(ADDRESS, name="gone")
    add_setting(kept)
    add_setting(gone)
    change_setting(kept.id, is_on=False)
    remove_setting(gone.id)
    [one] = read_settings()
    assert (one.name, one.address, one.is_on) == ("kept", ADDRESS, False)
    with pytest.raises(AlertError, match="removed meanwhile"):
        change_setting(gone.id, is_on=False)
    remove_setting(gone.id)  # another page was first
    assert "gone" not in settings_path().read_text()


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", '{"version": 1}', '{"version": "x", "alerts": []}', "[" * 100_000,
        '{"version": 1, "alerts": [{"address": "json://me:s3cret@h"}]}',
        '{"version": 2, "alerts": []}',
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_said_and_not_overwritten(text):
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text(text)
    for act in (read_settings, lambda: add_setting(new_setting(ADDRESS))):
        with pytest.raises(AlertError, match=r"settings\.json") as said:
            act()
        assert "s3cret" not in str(said.value)
    assert settings_path().read_text() == text


def test_a_pipe_in_place_of_the_file_blocks_nobody():
    settings_path().parent.mkdir(parents=True)
    os.mkfifo(settings_path())
    with pytest.raises(AlertError, match="cannot be read"):
        read_settings()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"what": ("AMP999",)}, "explain"),
        ({"what": ("",)}, "explain"),
        ({"name": ADDRESS}, "name is shown"),
    ],
)
def test_what_makes_no_sense_is_refused(parts, said):
    with pytest.raises(AlertError, match=said):
        new_setting(ADDRESS, **parts)
    with pytest.raises(AlertError, match="slack://"):
        new_setting("  ")


def test_patterns_are_of_codes_names_and_runs():
    one = new_setting(ADDRESS, what=("amp1*", "bad-batch"), runs=("train-[1]", "big*"))
    assert one.names("AMP103", "scale-collapse")
    assert one.names("AMP206", "bad-batch")
    assert not one.names("AMP203", "forward-overflow")
    assert [one.wants_run(name) for name in ("train-1", "train-[1]", "Bigger", "small")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert new_setting(ADDRESS, what=("scale-at-floor",)).what  # a name that a finding once had
    everything = new_setting(ADDRESS)
    assert everything.names("AMP902", "x")
    assert everything.wants_run("any")


def test_every_finding_is_of_one_kind_and_every_kind_has_some():
    of = [[kind for kind in KINDS if fnmatch(rule.code, kind)] for rule in RULES]
    assert all(len(kinds) == 1 for kinds in of)
    assert {kinds[0] for kinds in of} == set(KINDS)


def test_the_address_stands_in_no_other_file():
    add_setting(new_setting(ADDRESS))
    assert json.loads(settings_path().read_text())["alerts"][0]["address"] == ADDRESS
    with_it = [
        p for p in settings_path().parent.rglob("*") if p.is_file() and "s3cret" in p.read_text()
    ]
    assert with_it == [settings_path()]
