"""What --help prints, the words of a command line, -q and -v, and the names that have changed."""

from __future__ import annotations

import re
import shlex

import pytest
from written_runs import write_run

from ampwatch import cli
from ampwatch.cli.command_words import OLD_COMMANDS, OLD_OPTIONS
from ampwatch.cli.help_page import PANELS

COMMANDS = [name for names in PANELS.values() for name in names]
# Those with so many options that their help is a little longer than a screen.
LONG = {"prove", "record", "fleet"}


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    for name in ("AMPWATCH_DIR", "XDG_STATE_HOME", "AMPWATCH_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def ampwatch(capsys, *words: object):
    """Run a command in this process: exit code, stdout, stderr."""
    code = cli.run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_without_a_command_it_says_what_to_do_first(capsys):
    code, out, err = ampwatch(capsys)
    assert (code, err) == (0, "")
    for first in ("ampwatch report train.log", "ampwatch run train.py", "ampwatch demo",
                  "ampwatch.attach(scaler, model)", "ampwatch --help"):  # fmt: skip
        assert first in out
    assert len(out.splitlines()) < 15


def test_the_overview_has_every_command_in_a_panel_and_fits_a_screen(capsys):
    code, out, _ = ampwatch(capsys, "--help")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    listed = re.findall(r"^(\w*) +(\w+) +[A-Z].*[.]$", "\n".join(lines[2:]), re.MULTILINE)
    assert [name for _, name in listed] == COMMANDS
    assert [panel for panel, _ in listed if panel] == list(PANELS)


def test_only_what_is_never_necessary_is_not_in_a_panel():
    assert {name for name, _, _ in cli._COMMANDS} - set(COMMANDS) == {"compact"}


@pytest.mark.parametrize("command", [*COMMANDS, "compact"])
def test_the_help_of_a_command_begins_with_examples_and_fits_a_screen(capsys, command):
    code, out, _ = ampwatch(capsys, command, "--help")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith(f"ampwatch {command} [OPTIONS]")
    assert lines[4].startswith(f"  ampwatch {command}")
    assert max(map(len, lines)) < 80
    assert len(lines) <= 24 or command in LONG
    assert not re.search(
        r"<(?:str|int|path|list|error|local)|\{|[\[ ;]x>=", out
    )  # no types of Python, no ranges
    assert not re.search(r"\brates?\b", re.sub(r"learning\s+rates?", "", out))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_of_a_help_is_understood(capsys, command):
    """Each example's options exist: what fails is not the way in which it was typed."""
    _, out, _ = ampwatch(capsys, command, "--help")
    examples = re.findall(rf"^  (?:\S.*\| )?ampwatch ({command}\b.*)$", out, re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" {2,}| \|", example)[0])
        if command == "run":  # what stands behind the script is the script's
            words = words[: next(at for at, word in enumerate(words) if "." in word or at > 3)]
        own = words[: words.index("--")] if "--" in words else words
        at = 2 if command == "alerts" else 1
        _, help_, _ = ampwatch(capsys, *own[:at], "--help")
        options = [word.partition("=")[0] for word in own[at:] if re.match("--?[a-z]", word)]
        assert [name for name in options if not re.search(rf"{name}\b", help_)] == []


@pytest.mark.parametrize("old", OLD_COMMANDS)
def test_an_old_command_works_and_names_the_new_one(capsys, tmp_path, old):
    write_run(tmp_path / "runs", "one")
    new = OLD_COMMANDS[old]
    code, _, err = ampwatch(capsys, old, "--help")
    assert (code, err) == (
        0,
        f"`{old}` is called `{new}` now; the old name works until the next version.\n",
    )


def test_every_new_option_is_one_of_its_command(capsys):
    for command, renamed in OLD_OPTIONS.items():
        words = ["alerts", command] if command in {"add", "change"} else [command]
        _, out, _ = ampwatch(capsys, *words, "--help")
        for old, new in renamed.items():
            assert re.search(rf"{new}\b", out), (command, new)
            assert not re.search(rf"{old}\b", out), (command, old)


def test_old_options_do_what_they_did_and_are_mentioned(capsys, tmp_path):
    path = write_run(tmp_path, "one", skipped=30)
    mentioned = "`--html` is called `--output` now; the old name works until the next version.\n"
    code, _, err = ampwatch(capsys, "report", path, "--html", "old.html")
    assert (code, err) == (0, mentioned)
    assert ampwatch(capsys, "report", path, "-o", "new.html")[::2] == (0, "")
    pages = [(tmp_path / name).read_text("utf-8") for name in ("old.html", "new.html")]
    assert pages[0] == pages[1]
    assert ampwatch(capsys, "report", path, "--html=again.html")[::2] == (0, mentioned)
    code, _, err = ampwatch(capsys, "export", path, "old", "--to", "csv")
    assert code == 0
    assert err.count("\n") == 2
    assert ampwatch(capsys, "export", path, "-o", "new", "--format", "csv")[::2] == (0, "")
    written = [sorted(each.name for each in (tmp_path / name).iterdir()) for name in ("old", "new")]
    assert written[0] == written[1] == ["devices.csv", "events.csv", "layers.csv", "steps.csv"]


def test_the_name_of_the_file_says_what_is_written(capsys, tmp_path):
    path = write_run(tmp_path, "one", skipped=30)
    printed = ampwatch(capsys, "report", path)[1]
    as_json = ampwatch(capsys, "report", path, "--json")[1]
    for name, wanted in (("a.txt", printed), ("a.json", as_json)):
        code, out, err = ampwatch(capsys, "report", path, "-o", name)
        assert (code, err) == (0, "")
        assert out.startswith(f"{name}: ")
        assert (tmp_path / name).read_text("utf-8") == wanted
    plan = ampwatch(capsys, "plan", path, "--json")[1]
    ampwatch(capsys, "plan", path, "-o", "plan.json")
    assert (tmp_path / "plan.json").read_text("utf-8") == plan
    for words in (("-o", "a.pdf"), ("-o", "a.html", "--json"), ("-o", "no/a.txt"), ("-o", ".")):
        code, out, err = ampwatch(capsys, "report", path, *words)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_quiet_leaves_out_remarks_and_verbose_adds_where_an_error_arose(capsys, tmp_path):
    write_run(tmp_path / "ampwatch_dir", "one")
    said = "Reporting on one, the newest run.\n"
    assert ampwatch(capsys, "report")[2] == said
    for words in (("report", "-q"), ("-q", "report"), ("report", "--quiet")):
        code, out, err = ampwatch(capsys, *words)
        assert (code, err) == (0, "")
        assert "HEALTHY" in out
    assert ampwatch(capsys, "report")[2] == said  # it holds for one command line
    assert ampwatch(capsys, "report", "one", "-v")[1] == ampwatch(
        capsys, "report", "one", "--all"
    )[1]  # fmt: skip
    code, _, err = ampwatch(capsys, "-v", "report", "nothing")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("ampwatch: No run named nothing")


def test_a_value_that_looks_like_an_option_stays_a_value(capsys, tmp_path):
    path = write_run(tmp_path, "one")
    assert ampwatch(capsys, "tag", path, "--note", "-q")[1:] == ("one: no tags\n-q\n", "")


def test_a_short_version_is_asked_with_a_capital_v(capsys):
    assert ampwatch(capsys, "-V") == ampwatch(capsys, "--version")


def test_who_records_a_script_is_told_the_command(capsys):
    code, _, err = ampwatch(capsys, "record", "train.py")
    assert code == 2
    assert "`ampwatch run train.py`" in err
