"""Runs found by path and by name, and the sentences where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from written_runs import write_run

import ampwatch
from ampwatch.errors import NotARunError
from ampwatch.store import HOW_TO_BEGIN, find_run, how_to_see, open_run
from ampwatch.store.catalogue import report_command, run_names, shown_folder


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(*names: str, folder: str = "ampwatch-runs") -> list[Path]:
    """Runs of these names, each made a second after the one before."""
    paths = [write_run(Path(folder), name, accepted=5) for name in names]
    for second, path in enumerate(paths):
        os.utime(path / "run.json", (second, second))
    return paths


def sentence(named: str | Path) -> str:
    with pytest.raises(NotARunError) as caught:
        find_run(named)
    assert caught.value.path == named
    return str(caught.value)


def test_a_run_is_found_by_its_path_and_by_its_name() -> None:
    [path] = written("one")
    assert find_run("one") == find_run(path) == path
    assert open_run("one").info.name == "one"


def test_a_folder_here_precedes_a_name_in_the_default_folder() -> None:
    written("one")
    [here] = written("one", folder=".")
    assert find_run("one") == here


def test_a_name_with_a_number_sign_is_no_published_run_where_there_is_such_a_run() -> None:
    [path] = written("a#b")
    assert open_run("a#b").path == path


@pytest.mark.parametrize(
    "typed", ["demo-lr", "demo-lr-too-hihg", "DEMO-LR-TOO-HIGH", "too-high", "demo_lr_too_high"]
)
def test_a_near_name_is_suggested(typed: str) -> None:
    written("demo-lr-too-high", "night-3")
    said = f"No run named {typed} in ./ampwatch-runs. Did you mean demo-lr-too-high?"
    assert sentence(typed) == said


def test_of_many_near_names_the_three_newest_are_suggested() -> None:
    written(*(f"train-{number}" for number in range(6)))
    assert sentence("train").endswith("Did you mean train-5, train-4 or train-3?")


def test_without_a_near_name_the_list_is_named() -> None:
    written("night-3")
    said = sentence("xyz")
    assert said == "No run named xyz in ./ampwatch-runs. `ampwatch list` lists all runs."


def test_runs_of_the_working_folder_are_suggested_too(monkeypatch: pytest.MonkeyPatch) -> None:
    written("demo-lr-too-high")
    monkeypatch.chdir("ampwatch-runs")
    assert sentence("demo-lr").endswith("Did you mean demo-lr-too-high?")


def test_a_near_path_is_suggested_as_a_path() -> None:
    written("one-run", folder="else where")
    said = sentence("else where/one-rum")
    assert said == ("No run named one-rum in ./else where. Did you mean 'else where/one-run'?")


def test_a_missing_folder_is_named() -> None:
    assert sentence("gone/one") == "No run named one in ./gone: there is no such folder."


def test_where_no_run_is_at_all_what_to_type_next_is_said() -> None:
    said = sentence("one")
    assert said == f"No run named one in ./ampwatch-runs, which has no run yet. {HOW_TO_BEGIN}"


def test_a_folder_of_one_run_is_told_with_the_command_that_reports_on_it() -> None:
    written("one")
    assert sentence("ampwatch-runs") == (
        "ampwatch-runs is a folder of 1 run. Report on it with: ampwatch report one"
    )


def test_of_a_folder_of_runs_the_newest_three_and_their_number_are_told() -> None:
    written("a", "b", "c", folder="few")
    written("a", "b", "c", "d", folder="many")
    assert sentence("few") == (
        "few is a folder of 3 runs: c, b and a. Report on one with: ampwatch report few/c"
    )
    assert sentence("many") == (
        "many is a folder of 4 runs, the newest d, c and b. "
        "Report on one with: ampwatch report many/d"
    )


def test_an_empty_folder_is_told_so() -> None:
    Path("empty").mkdir()
    assert sentence("empty") == 'The folder "empty" has no run in it.'


def test_a_file_and_a_place_are_told_apart_from_a_run() -> None:
    Path("my log.txt").write_text("x")
    assert "`ampwatch import 'my log.txt'` makes a run of it" in sentence("my log.txt")
    assert "as in s3://team/runs#NAME" in sentence("s3://team/runs")


@pytest.mark.parametrize("odd", ["", ".", "..", "/", "x" * 5000, "a\0b", "\udcff", "-", "~"])
def test_odd_names_are_refused_with_a_sentence(odd: str) -> None:
    assert sentence(odd)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_told_so() -> None:
    Path("closed").mkdir(0)
    assert "cannot be read" in sentence("closed")


def test_what_is_left_of_an_unfinished_run_is_no_run() -> None:
    written("one")
    Path("ampwatch-runs/one").rename("ampwatch-runs/.0123456789abcdef.new")
    assert run_names(Path("ampwatch-runs")) == []


def test_the_command_that_reports_on_a_run_works_as_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert report_command(tmp_path / "ampwatch-runs" / "a b") == "ampwatch report 'a b'"
    assert report_command(tmp_path / "other" / "one") == "ampwatch report other/one"
    outside = tmp_path.parent / "one"
    assert report_command(outside) == f"ampwatch report {outside}"
    monkeypatch.setenv("AMPWATCH_DIR", str(tmp_path / "other"))
    assert report_command(tmp_path / "other" / "one") == "ampwatch report one"


def test_a_folder_is_shown_from_the_working_folder_if_it_is_below_it(tmp_path: Path) -> None:
    assert shown_folder(tmp_path / "a" / "b") == "./a/b"
    assert shown_folder(tmp_path.parent) == str(tmp_path.parent)
    assert shown_folder(Path()) == "."


def test_how_to_see_a_run_is_told_for_the_shell_that_started_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual, other = tmp_path / "ampwatch-runs" / "one", tmp_path / "other" / "one"
    monkeypatch.setenv("PWD", str(tmp_path))
    assert how_to_see(usual) == "`ampwatch report one` (in ./ampwatch-runs)"
    assert how_to_see(other) == "`ampwatch report other/one`"
    monkeypatch.setenv("PWD", str(tmp_path.parent))  # the program went elsewhere, as Hydra's do
    assert how_to_see(usual) == f"`ampwatch report {usual}`"
    monkeypatch.delenv("PWD")
    assert how_to_see(usual) == "`ampwatch report one` (in ./ampwatch-runs)"


def test_a_run_is_diagnosed_and_planned_by_its_name() -> None:
    [path] = written("one")
    assert ampwatch.diagnose("one") == ampwatch.diagnose(path) == ampwatch.diagnose(open_run(path))
    assert ampwatch.plan("one") == ampwatch.plan(path)
    with pytest.raises(NotARunError, match=r"No run named on in .*\. Did you mean one\?"):
        ampwatch.diagnose("on")
