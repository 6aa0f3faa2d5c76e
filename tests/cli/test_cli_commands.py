"""The command line as its users meet it: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from written_runs import write_run

from ampwatch import cli, diagnose, open_run, store


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    for name in ("AMPWATCH_DIR", "XDG_STATE_HOME", "AMPWATCH_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def ampwatch(capsys, *words: object):
    """Run a command in this process: exit code, stdout, stderr."""
    code = cli.run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_version_is_the_packages(capsys):
    from ampwatch import __version__

    assert ampwatch(capsys, "--version") == (0, f"ampwatch {__version__}\n", "")


def test_a_healthy_run_is_called_healthy(capsys, tmp_path):
    code, out, err = ampwatch(capsys, "report", write_run(tmp_path))
    assert (code, err) == (0, "")
    assert "HEALTHY" in out
    assert "No problems found" in out


def test_a_collapse_is_the_headline_with_its_numbers(capsys, tmp_path):
    path = write_run(tmp_path, accepted=100, skipped=30)
    _, out, _ = ampwatch(capsys, "report", path)
    assert "FAILING" in out
    assert "scale collapse AMP103" in out
    assert "from 65,536 (its highest) to 6.1e-5" in out
    assert "step 100" in out
    assert "from here to the end, all 30 steps are skipped" in out


def test_a_run_is_found_by_its_name_in_the_usual_folder(capsys, tmp_path):
    write_run(tmp_path / "ampwatch_dir", "by-name")
    assert ampwatch(capsys, "report", "by-name")[0] == 0


def test_report_without_a_run_takes_the_newest_and_says_so_on_stderr(capsys, tmp_path):
    write_run(tmp_path / "ampwatch_dir", "older", age_s=7200.0)
    newest = write_run(tmp_path / "ampwatch_dir", "newer", accepted=77)
    said = "Reporting on newer, the newest run.\n"
    named = ampwatch(capsys, "report", newest)[1]
    assert ampwatch(capsys, "report") == (0, named, said)
    code, out, err = ampwatch(capsys, "report", "--json")
    assert (code, json.loads(out)["run"]["steps"], err) == (0, 77, said)
    code, out, err = ampwatch(capsys, "report", "-o", tmp_path / "out.html")
    assert (code, err) == (0, said)
    assert out.startswith(f"{tmp_path / 'out.html'}: ")
    assert "newer" in (tmp_path / "out.html").read_text("utf-8")


def test_report_without_a_run_sets_the_exit_code(capsys, tmp_path):
    write_run(tmp_path / "ampwatch_dir", "failed", skipped=30)
    assert ampwatch(capsys, "report", "--fail-on", "error")[0] == 1


def test_report_without_any_run_says_how_to_make_one(capsys):
    code, out, err = ampwatch(capsys, "report")
    assert (code, out) == (2, "")
    assert err == (
        "ampwatch: There is no run in ./ampwatch_dir yet. Add `ampwatch.attach(scaler, model)` "
        "to a training loop, or run `ampwatch demo`.\n"
    )


@pytest.mark.parametrize("words", [("--format", "apex"), ("--map", "loss=x")])
def test_how_to_read_a_log_needs_the_log(capsys, tmp_path, words):
    write_run(tmp_path / "ampwatch_dir", "one")
    code, _, err = ampwatch(capsys, "report", *words)
    assert code == 2
    assert "name it, too" in err


@pytest.mark.parametrize(
    "words",
    [
        ("report", "demo-lr"),
        ("watch", "demo-lr"),
        ("plan", "demo-lr"),
        ("prove", "demo-lr"),
        ("tag", "demo-lr", "good"),
        ("compact", "demo-lr"),
        ("explain", "AMP103", "demo-lr"),
        ("compare", "demo-lr", "demo-lr"),
        ("export", "demo-lr", "--format", "csv", "-o", "out"),
        ("publish", "demo-lr", "place"),
    ],
)
def test_every_command_suggests_the_run_that_was_meant(capsys, tmp_path, words):
    write_run(tmp_path / "ampwatch_dir", "demo-lr-too-high")
    said = "ampwatch: No run named demo-lr in ./ampwatch_dir. Did you mean demo-lr-too-high?\n"
    assert ampwatch(capsys, *words) == (2, "", said)


def test_a_folder_of_runs_is_told_with_the_command_to_type(capsys, tmp_path):
    write_run(tmp_path / "ampwatch_dir", "one")
    code, out, err = ampwatch(capsys, "report", "ampwatch_dir")
    assert (code, out) == (2, "")
    command = err.rstrip().rpartition(": ")[2]
    assert command == "ampwatch report one"
    assert ampwatch(capsys, *command.split()[1:])[0] == 0


def test_a_file_without_a_training_is_told_what_was_looked_for(capsys, tmp_path):
    (tmp_path / "notlog.txt").write_text("hello\n")
    code, out, err = ampwatch(capsys, "report", "notlog.txt")
    assert (code, out) == (2, "")
    assert err.startswith(
        "ampwatch: No training log found in notlog.txt (no line tells of a training step: its "
        "loss, its learning rate or its loss scale). If it is one, say what it calls the loss: "
        "--map loss=NAME. Known formats: apex, "
    )


def test_a_misspelled_command_gets_one_guess(capsys):
    code, _, err = ampwatch(capsys, "reprot")
    assert (code, "?." in err, "'export'" in err) == (2, False, False)
    assert "Did you mean 'report'? See `ampwatch --help`." in err


def test_a_wrong_choice_is_told_without_the_parsers_own_words(capsys):
    code, _, err = ampwatch(capsys, "export", "x", "--format", "xml", "-o", "y")
    assert (code, "Value error" in err) == (2, False)
    assert "'xml' is not one of 'parquet', 'csv', 'tensorboard'" in err


def test_json_is_the_diagnosis_and_nothing_else(capsys, tmp_path):
    path = write_run(tmp_path, skipped=30)
    code, out, err = ampwatch(capsys, "report", path, "--json")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert body["verdict"] == "failing"
    assert body["run"]["skipped"] == 30
    assert body["run"]["final_scale"] == 2.0**-14


@pytest.mark.parametrize(
    ("skipped", "fail_on", "expected"),
    [(30, "error", 1), (30, "warning", 1), (0, "error", 0), (0, "warning", 0)],
)
def test_fail_on_sets_the_exit_code(capsys, tmp_path, skipped, fail_on, expected):
    path = write_run(tmp_path, skipped=skipped)
    assert ampwatch(capsys, "report", path, "--fail-on", fail_on)[0] == expected


@pytest.mark.parametrize(
    "words",
    [
        ("report",),
        ("report", "no-such-run"),
        ("report", "no-such-run", "--fail-on", "sometimes"),
        ("report", "x", "--htlm"),
        ("reprot", "x"),
        ("list", "no-such-folder"),
        ("export", "no-such-run", "--format", "parquet", "-o", "out"),
        ("explain", "AMP999"),
        ("demo", "--scenario", "no-such-scenario"),
        ("keys", "--allow", "abc"),
        ("record", "--bind", "nowhere"),
        ("compact", "no-such-run"),
        ("watch", "no-such-run"),
    ],
)
def test_wrong_use_is_one_line_on_stderr_and_exit_code_two(capsys, words):
    code, out, err = ampwatch(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("ampwatch: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_damaged_run_is_refused_with_a_sentence(capsys, tmp_path):
    path = write_run(tmp_path)
    (path / "run.json").write_text("{")
    code, _, err = ampwatch(capsys, "report", path)
    assert code == 2
    assert err.count("\n") == 1


def test_of_many_runs_elsewhere_only_the_newest_are_listed(capsys, tmp_path):
    from ampwatch.store import register_run

    write_run(tmp_path / "ampwatch_dir", "mine")
    for number in range(25):
        register_run(write_run(tmp_path / "elsewhere", f"run-{number}"))
    _, out, _ = ampwatch(capsys, "list")
    assert "mine" in out
    assert "5 older runs in other folders: ampwatch list --all." in out
    assert "older runs" not in ampwatch(capsys, "list", "--all")[1]


def test_a_damaged_run_is_one_bad_line_in_the_list(capsys, tmp_path):
    folder = tmp_path / "runs"
    for name in ("whole", "tail", "words", "gone"):
        write_run(folder, name=name)
    steps = folder / "tail" / "rank-0" / "steps.arrows"
    data = steps.read_bytes()
    steps.write_bytes(data[:-4096] + bytes(4096))
    (folder / "words" / "run.json").write_text("[]")
    (folder / "gone" / "run.json").unlink()
    code, out, err = ampwatch(capsys, "list", folder)
    assert code == 0
    assert "Traceback" not in err
    words = " ".join(out.split())
    assert words.count("unreadable") == 2
    assert "whole" in words
    assert "tail" in words
    assert "damaged" in words


def test_runs_are_listed_with_their_verdicts(capsys, tmp_path):
    write_run(tmp_path / "all", "good", accepted=120)
    write_run(tmp_path / "all", "bad", skipped=30)
    broken = write_run(tmp_path / "all", "broken")
    (broken / "run.json").write_text("{")
    code, out, _ = ampwatch(capsys, "list", tmp_path / "all")
    lines = {line.split()[0]: line for line in out.splitlines() if line.split()}
    assert code == 0
    assert "healthy" in lines["good"]
    assert "120" in lines["good"]
    assert "failing" in lines["bad"]
    assert "6.1e-5" in lines["bad"]
    assert "unreadable" in lines["broken"]


def ageless(table):
    """The table's words without its last column, which moves on by itself."""
    return [
        re.sub(r"\d+ (s|min|h)$", "", line.strip()).split()
        for line in table.splitlines()
        if "─" not in line
    ]


def test_a_finished_run_is_judged_once_and_again_when_its_files_change(
    capsys, tmp_path, monkeypatch
):
    from ampwatch import diagnosis

    judged = []
    judge = diagnosis.diagnose
    monkeypatch.setattr(diagnosis, "diagnose", lambda run: judged.append(run) or judge(run))
    path = write_run(tmp_path / "all", "one", skipped=30)
    write_run(tmp_path / "all", "going-on", ended=False)
    first = ageless(ampwatch(capsys, "list", tmp_path / "all")[1])
    assert [run.info.name for run in judged] == ["going-on", "one"]
    assert ageless(ampwatch(capsys, "list", tmp_path / "all")[1]) == first
    assert [run.info.name for run in judged[2:]] == ["going-on"]
    with (path / "rank-0" / "index").open("ab") as index:
        index.write(b"torn")
    ampwatch(capsys, "list", tmp_path / "all")
    assert [run.info.name for run in judged[3:]] == ["going-on", "one"]


@pytest.mark.parametrize("kept", [b"", b"[]", b"{nonsense", b'["one", 3]', b'["one", "x", [1]]'])
def test_damaged_kept_entries_are_done_without(capsys, tmp_path, kept):
    write_run(tmp_path / "all", "one", skipped=30)
    ampwatch(capsys, "list", tmp_path / "all")
    for file in (tmp_path / "xdg_state_home" / "ampwatch" / "kept").iterdir():
        stamp = json.loads(file.read_bytes().splitlines()[1])[1]
        file.write_bytes(kept.replace(b"x", stamp.encode()))
    for _ in range(2):
        code, out, _ = ampwatch(capsys, "list", tmp_path / "all")
        assert code == 0
        assert "failing" in out


def test_a_run_is_tagged_and_listed_with_its_tags_and_its_note(capsys, tmp_path):
    path = write_run(tmp_path / "all", "one", skipped=30)
    write_run(tmp_path / "all", "plain")
    assert "tags" not in ampwatch(capsys, "list", tmp_path / "all")[1]
    _, out, _ = ampwatch(capsys, "tag", path, "+good", "sweep-3", "--note", "try \x1b[31m0.1")
    assert out.splitlines() == ["one: good sweep-3", "try \ufffd[31m0.1"]
    _, out, _ = ampwatch(capsys, "tag", path, "--remove", "good", "--note", "again")
    assert out.splitlines()[0] == "one: sweep-3"
    assert out.splitlines()[-1] == "again"
    listed = ampwatch(capsys, "list", tmp_path / "all")[1]
    assert "sweep-3" in listed
    assert "again" in listed
    assert "\x1b" not in listed
    assert ampwatch(capsys, "tag", path, "--clear-note")[1].splitlines() == ["one: sweep-3"]
    code, _, err = ampwatch(capsys, "tag", path, "a,b")
    assert code == 2
    assert "is no tag" in err


def test_a_finding_is_muted_with_a_reason_and_counts_again(capsys, tmp_path):
    path = write_run(tmp_path, "one", skipped=30)
    head = diagnose(open_run(path)).headline.code
    out = ampwatch(capsys, "tag", path, "--mute", f"{head.lower()}=known since May")[1]
    assert out.splitlines()[-1] == f"muted: {head} (known since May)"
    assert f"({head}): known since May" in ampwatch(capsys, "report", path)[1]
    assert "muted" not in ampwatch(capsys, "tag", path, "--unmute", head)[1]
    for words, said in ((f"{head}=", "Say why"), ("AMP999=x", "No finding has the code AMP999")):
        code, _, err = ampwatch(capsys, "tag", path, "--mute", words)
        assert code == 2
        assert said in err


def test_an_empty_folder_offers_the_demo(capsys):
    assert "ampwatch demo" in ampwatch(capsys, "list")[1]


def test_names_are_data_and_never_obeyed(capsys, tmp_path):
    path = write_run(tmp_path, "[bold red]x[/] \x1b[31mred\x07")
    for words in (("report", path), ("list", tmp_path), ("watch", path)):
        _, out, _ = ampwatch(capsys, *words)
        assert "\x1b" not in out
        assert "\x07" not in out
    assert "[bold red]" in ampwatch(capsys, "report", path)[1]


def test_a_compacted_run_reads_the_same(capsys, tmp_path):
    path = write_run(tmp_path, accepted=50, skipped=3)
    before = str(open_run(path).steps.to_pydict())  # as text: nan equals itself
    code, out, _ = ampwatch(capsys, "compact", path)
    assert code == 0
    assert re.search(r"[\d.]+ (kB|MB) before, [\d.]+ (kB|MB|bytes) after", out)
    assert str(open_run(path).steps.to_pydict()) == before


def test_keys_show_the_public_key_and_never_the_secret_one(capsys):
    from ampwatch import feed

    _, out, _ = ampwatch(capsys, "keys")
    assert feed.own_keys().public.hex() in out
    assert feed.own_keys().secret.hex() not in out


def test_an_allowed_key_is_listed_until_it_is_forgotten(capsys):
    key = "ab" * 32
    assert key in ampwatch(capsys, "keys", "--allow", key, "--comment", "node7")[1]
    assert key not in ampwatch(capsys, "keys", "--forget", key)[1]


def test_explain_prints_the_page_made_from_the_rule(capsys):
    by_code = ampwatch(capsys, "explain", "amp103")[1]
    assert by_code == ampwatch(capsys, "explain", "scale-collapse")[1]
    assert "What to do" in by_code
    assert "AMP103" in ampwatch(capsys, "explain")[1]


def test_watch_prints_plain_lines_where_there_is_no_terminal_and_ends_with_the_run(
    capsys, tmp_path
):
    code, out, _ = ampwatch(capsys, "watch", write_run(tmp_path, skipped=30))
    assert code == 0
    assert "scale 6.1e-5" in out
    assert "AMP103" in out


def test_watching_a_run_that_was_killed_ends_and_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("ampwatch.follow.liveness.QUIET_S", 0.1)
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.1)
    monkeypatch.setattr("ampwatch.cli.watch.PLAIN_EVERY_S", 0.1)
    code, out, err = ampwatch(capsys, "watch", write_run(tmp_path, ended=False), "--every", "0.1")
    assert code == 0
    assert "step 100" in out
    assert "stopped without closing the run" in err


def test_watch_without_a_run_takes_the_newest(capsys, tmp_path):
    write_run(tmp_path / "ampwatch_dir", "older", age_s=7200.0)
    write_run(tmp_path / "ampwatch_dir", "newer", accepted=77)
    code, out, err = ampwatch(capsys, "watch")
    assert code == 0
    assert "step 77" in out
    assert "Watching newer, the newest run." in err


def test_watch_prefers_a_run_that_is_written_and_names_the_others(tmp_path, monkeypatch):
    from ampwatch.cli.run_argument import find_newest

    monkeypatch.setenv("AMPWATCH_DIR", str(tmp_path))
    paths = [write_run(tmp_path, n, age_s=a, ended=False) for n, a in (("a", 9.0), ("b", 5.0))]
    write_run(tmp_path, "finished", age_s=1.0)
    writers = [store.RankWriter(path, 0) for path in paths]
    said = []
    try:
        assert find_newest(said.append, "Watching").name == "b"
    finally:
        for writer in writers:
            writer.close()
    assert said == ["Watching b, the newest live run. Also live: a."]


def test_watch_without_any_run_says_how_to_make_one(capsys):
    code, _, err = ampwatch(capsys, "watch")
    assert code == 2
    assert "ampwatch.attach(scaler, model)" in err


def test_while_a_run_goes_on_its_missing_end_mark_is_no_finding(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("ampwatch.follow.liveness.QUIET_S", 0.0)
    monkeypatch.setattr("ampwatch.follow.liveness.GRACE_S", 0.3)
    monkeypatch.setattr("ampwatch.cli.watch.PLAIN_EVERY_S", 0.1)
    path = write_run(tmp_path, ended=False)
    seen = []
    monkeypatch.setattr("ampwatch.cli.watch.line_of", lambda _, diagnosis: seen.append(
        [finding.code for finding in diagnosis.findings]) or "a line")  # fmt: skip
    _, out, _ = ampwatch(capsys, "watch", path, "--every", "0.1")
    assert "AMP902" not in seen[0]
    assert out.index("a line") < out.index("AMP902")  # once nobody writes it


def test_a_reader_that_leaves_early_causes_no_traceback(tmp_path):
    write_run(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-m", "ampwatch", "explain"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": cwd()},
    )  # fmt: skip
    child.stdout.close()
    err = child.stderr.read()
    child.wait()
    child.stderr.close()
    assert b"Traceback" not in err
    assert b"Exception" not in err


def test_help_loads_no_heavy_library():
    code = (
        "import sys, ampwatch.cli as c; assert c.run(['--help']) == 0; "
        "bad = {'torch', 'pyarrow', 'numpy', 'zmq', 'streamlit', 'plotly'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": cwd()},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr


def test_no_view_of_a_run_waits_for_pandas(tmp_path):
    one, other = write_run(tmp_path, "one"), write_run(tmp_path, "other", skipped=30)
    code = (
        "import sys, ampwatch.cli as c\n"
        "one, other = sys.argv[1:]\n"
        "for words in ['report', one], ['report', one, '--json'], ['plan', other], "
        "['compare', one, other]:\n"
        "    c.run(words)\n"
        "sys.exit('it was loaded' if 'pandas' in sys.modules else 0)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, one, other], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": cwd()},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr


def cwd() -> str:
    """Where this checkout is: children must import it."""
    from pathlib import Path

    return str(Path(cli.__file__).parents[2])
