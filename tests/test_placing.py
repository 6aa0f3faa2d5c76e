"""benchmarks/placing.py asks without giving the answer away, and counts what is right."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "placing.py"


@pytest.fixture(scope="module")
def placing():
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("placing", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["placing"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["placing"]
    sys.path.remove(str(SCRIPT.parent))


def test_the_same_seed_draws_the_same_functions_and_another_seed_others(placing):
    assert placing.drawn(7, 20) == placing.drawn(7, 20)
    assert placing.drawn(7, 20) != placing.drawn(8, 20)


def test_every_drawn_function_is_in_the_file_that_the_key_names(placing, tmp_path):
    assert placing.main(["--seed", "3", "--count", "50", "--out", str(tmp_path)]) == 0
    for one in json.loads((tmp_path / "key.json").read_text()):
        source = (SCRIPT.parents[1] / one["path"]).read_text()
        owner, _, name = one["name"].rpartition(".")
        assert f"def {name}(" in source
        assert not owner or f"class {owner}" in source


def test_the_questions_list_all_files_and_show_no_function_with_its_file(placing):
    functions = placing.drawn(5, 20)
    files, asked = placing.questions(functions).split("Functions\n---------\n")
    assert all(str(path.relative_to(placing.ROOT)) in files for path in placing.source_files())
    assert len(asked.splitlines()) >= 40
    assert not any(one.path in asked for one in functions)


def test_first_and_second_guesses_are_counted_by_file_and_by_package(placing):
    key = ["a/x.py", "a/y.py", "b/z.py", "b/w.py"]
    answers = "1 a/x.py\n2. a/x.py, a/y.py\n3 a/x.py b/w.py\nI do not know the last one"
    assert placing.score(key, placing.guesses(answers)) == {
        "file, first": 1,
        "file, either": 2,
        "package, first": 2,
        "package, either": 3,
    }


@pytest.mark.parametrize(("right", "code"), [(17, 0), (16, 1)])
def test_scoring_fails_below_seventeen_of_twenty(placing, tmp_path, right, code):
    assert placing.main(["--out", str(tmp_path)]) == 0
    key = [one["path"] for one in json.loads((tmp_path / "key.json").read_text())]
    guessed = [path if n < right else "nowhere.py" for n, path in enumerate(key)]
    answers = tmp_path / "answers.txt"
    answers.write_text("".join(f"{n} {path}\n" for n, path in enumerate(guessed, 1)))
    assert placing.main(["--out", str(tmp_path), "--score", str(answers)]) == code


def test_the_help_says_how_to_ask_and_how_to_answer(placing, capsys):
    with pytest.raises(SystemExit):
        placing.main(["--help"])
    page = capsys.readouterr().out
    assert "questions.txt" in page
    assert "--score" in page
    assert "1 ampwatch/probe/watched_scaler.py" in page
