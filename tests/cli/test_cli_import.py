"""`import`, and `report` on another trainer's log, as their users meet them."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from ampwatch import cli

LINE = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPWATCH_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(LINE.format(2.0 ** (15 - n)) for n in range(31)))
    return path


def ampwatch(capsys, *words: object):
    code = cli.run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_log_is_reported_and_leaves_nothing_behind(capsys, log, tmp_path):
    code, out, err = ampwatch(capsys, "report", log)
    assert (code, err) == (0, "")
    assert "FAILING" in out
    assert "from 32,768 (its highest in this log) to 3.1e-5" in out
    assert "it may be the cause; this log cannot tell" in " ".join(out.split())
    assert [entry.name for entry in tmp_path.iterdir()] == ["train.log"]


def test_the_commands_that_a_report_on_a_log_names_can_be_typed(capsys, log):
    _, out, _ = ampwatch(capsys, "report", log.name)
    named = re.findall(r"ampwatch (explain AMP\d+ \S+|report \S+ --all)", out)
    assert len(named) == 2
    for words in named:
        assert ampwatch(capsys, *words.split())[0] == 0


def test_a_folder_with_a_log_of_each_rank_is_reported_as_one_run(capsys, tmp_path):
    place = tmp_path / "nvdlfw_inspect_statistics_logs"
    place.mkdir()
    line = "2026-03-01 10:00:00,000 - INFO - fc_weight_underflows% \t iteration={} \t value={}\n"
    for rank, share in ((0, "0.1000"), (1, "45.0000")):
        text = "".join(line.format(step, share) for step in range(6))
        (place / f"nvdlfw_inspect_globalrank-{rank}.log").write_text(text)
    code, out, _ = ampwatch(capsys, "report", place, "--json")
    told = json.loads(out)
    assert (code, told["run"]["source"], told["run"]["ranks"]) == (0, "nvidia-inspector", [0, 1])
    assert "AMP702" in [finding["code"] for finding in told["findings"]]
    (tmp_path / "other").mkdir()
    assert ampwatch(capsys, "report", tmp_path / "other")[0] != 0


def test_fail_on_and_json_work_on_a_log(capsys, log):
    code, out, _ = ampwatch(capsys, "report", log, "--json", "--fail-on", "error")
    assert code == 1
    assert json.loads(out)["run"]["source"] == "apex"


def test_an_imported_log_is_an_ordinary_run(capsys, log, tmp_path):
    code, out, _ = ampwatch(capsys, "import", log)
    assert code == 0
    assert "ampwatch report" in out
    assert "3.1e-5" in ampwatch(capsys, "report", "train")[1]
    assert "train" in ampwatch(capsys, "list")[1]
    code, _, _ = ampwatch(capsys, "export", "train", "--format", "csv", "-o", tmp_path / "tables")
    assert code == 0


def test_a_table_is_mapped(capsys, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n,objective\n1,2.5\n2,2.25\n")
    words = ("import", path, "--map", "loss=objective", "--map", "step=n", "-o", tmp_path / "o")
    assert ampwatch(capsys, *words)[0] == 0
    assert (tmp_path / "o" / "a" / "run.json").is_file()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty", b"", ()),
        ("binary", bytes(range(256)) * 500, ()),
        ("prose", b"Hello.\n" * 50, ()),
        ("cut.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b", ()),
        ("text", b"Hello.\n", ("--format", "nothing")),
        ("text", b"Hello.\n", ("--format", "wandb")),
    ],
)
@pytest.mark.parametrize("command", ["report", "import"])
def test_what_is_no_log_is_one_sentence_and_exit_2(capsys, tmp_path, command, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = ampwatch(capsys, command, path, *words)
    assert (code, out) == (2, "")
    assert err.startswith("ampwatch: ")
    assert err.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read all")
def test_a_log_without_permission_is_refused(capsys, log):
    log.chmod(0)
    assert ampwatch(capsys, "report", log)[0] == 2


@pytest.mark.parametrize("mapping", ["loss", "=x", "loss="])
def test_a_mapping_is_column_equals_name(capsys, log, mapping):
    code, _, err = ampwatch(capsys, "import", log, "--map", mapping)
    assert code == 2
    assert "COLUMN=NAME" in err


def test_a_run_and_a_log_are_not_watched_at_once(capsys, log):
    code, _, err = ampwatch(capsys, "watch", "some-run", "--text", log)
    assert code == 2
    assert "not both" in err
