"""One switch for `attach` and `ampwatch run`, one folder for what belongs to the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ampwatch
from ampwatch.environment import quiet, state_folder, switched_off

# Prepares as `ampwatch run` does and says what that has loaded or left in wait.
PREPARED = """
import sys
from ampwatch.integrations.script_watch import prepare
prepare()
print("torch" in sys.modules, any("ampwatch" in type(f).__module__ for f in sys.meta_path))
"""


@pytest.mark.parametrize("word", ["1", "on", "TRUE", " yes "])
def test_each_word_for_yes_makes_ampwatch_quiet(word):
    assert quiet({"AMPWATCH_QUIET": word})


@pytest.mark.parametrize("word", ["", "0", "off", "no"])
def test_any_other_word_does_not(word):
    assert not quiet({"AMPWATCH_QUIET": word})
    assert not quiet({})


@pytest.mark.parametrize("word", ["0", "off", "OFF", " false ", "no"])
def test_each_word_for_no_turns_attach_off(word, monkeypatch):
    assert switched_off({"AMPWATCH": word})
    monkeypatch.setenv("AMPWATCH", word)
    assert ampwatch.attach(None, None).closed


@pytest.mark.parametrize("environment", [{"AMPWATCH": "1"}, {"AMPWATCH": ""}, {}])
def test_only_a_plain_no_turns_it_off(environment):
    assert not switched_off(environment)


def test_a_script_is_left_alone_by_the_same_words_and_torch_is_its_own_to_load(monkeypatch):
    said = {}
    for word in ("1", "off", "False"):
        monkeypatch.setenv("AMPWATCH", word)
        child = [sys.executable, "-c", PREPARED]
        said[word] = subprocess.run(child, capture_output=True, text=True, check=True).stdout
    assert said == {"1": "False True\n", "off": "False False\n", "False": "False False\n"}


@pytest.mark.skipif(os.name == "nt", reason="the folder of POSIX systems")
def test_the_users_folder_is_where_the_system_keeps_state(tmp_path):
    assert state_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "ampwatch"
    assert state_folder({}) == Path.home() / ".local" / "state" / "ampwatch"
