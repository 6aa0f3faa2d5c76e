"""One switch for `attach` and `ampwatch run`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ampwatch
from ampwatch.switch import switched_off

# Prepares as `ampwatch run` does and says what that has loaded or left in wait.
PREPARED = """
import sys
from ampwatch.integrations.script import prepare
prepare()
print("torch" in sys.modules, any("ampwatch" in type(f).__module__ for f in sys.meta_path))
"""


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
