"""`ampwatch fleet`: judges what is new, stores it, and says of each run what its report says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from subprocess import PIPE, STDOUT

import children
import pytest
from pyarrow import parquet
from stuck_run import StuckRun
from written_runs import more, write_run

import ampwatch
from ampwatch import cli
from ampwatch.fleet import judging, publish
from ampwatch.fleet.chosen_runs import choice_of
from ampwatch.fleet.judging import judge_place, shares_of
from ampwatch.fleet.place import Place
from ampwatch.fleet.runs_delta_table import list_published
from ampwatch.fleet.verdicts import read_verdicts, rules_version, store_verdicts, tables_of
from ampwatch.fleet.workers import LocalWorkers
from ampwatch.store.tags import edit_tags

ROOT = Path(ampwatch.__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    """Six runs that differ."""
    for number in range(6):
        write_run(
            tmp_path / "runs",
            f"run-{number}",
            accepted=150 + 20 * number,
            skipped=30 * (number % 2),
            age_s=7200.0 + number,
            config={"model": f"net-{number % 2}", "user": "ada", "lr": 0.1 * number},
        )
    return tmp_path / "runs"


def said(capsys, *arguments):
    """What the command prints as JSON."""
    assert cli.run(["fleet", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def report_of(path, capsys):
    assert cli.run(["report", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_findings_that_were_muted_do_not_count_in_the_fleet_and_a_copy_keeps_them_so(
    place, tmp_path
):
    path = write_run(tmp_path / "runs", "known", accepted=150, skipped=30)
    shutil.copytree(path, tmp_path / "copies" / "known")
    publish(path, place)
    [before] = judge_place(place, choice_of(), LocalWorkers(1)).runs
    assert before.verdict == "failing"
    edit_tags(path, mute=dict.fromkeys(before.codes, "known"))
    assert publish(path, place).published == ["known"]
    assert publish(tmp_path / "copies" / "known", place).unchanged == ["known"]
    [now] = judge_place(place, choice_of(), LocalWorkers(1)).runs
    assert (now.verdict, now.codes) == ("healthy", ())
    assert ampwatch.diagnose(ampwatch.open_run(f"{place}#known")).verdict.value == "healthy"
    edit_tags(path, mute={before.codes[0]: None})
    assert publish(path, place).published == ["known"]
    assert before.codes[0] in judge_place(place, choice_of(), LocalWorkers(1)).runs[0].codes


def test_it_says_of_each_run_what_its_report_says(place, folder, capsys):
    assert_said_as_reported(place, folder, capsys, workers=1)


@pytest.mark.slow_starts
def test_processes_say_of_each_run_what_its_report_says(s3_place, folder, capsys, monkeypatch):
    monkeypatch.setattr(judging, "_LEAST_RUNS", 1)
    assert_said_as_reported(s3_place, folder, capsys, workers=2)


def assert_said_as_reported(place, folder, capsys, workers):
    publish(folder, place)
    found = said(capsys, place, "--workers", workers)
    assert [run["name"] for run in found["runs"]] == [f"run-{number}" for number in range(6)]
    for run in found["runs"]:
        told = report_of(folder / run["name"], capsys)
        assert run["findings"] == told["findings"]
        assert run["learning_rate"] == told["learning_rate"]
        assert (run["verdict"], run["steps"]) == (told["verdict"], told["run"]["steps"])
        assert (run["id"], run["started"]) == (told["run"]["id"], told["run"]["started"])
        grave = [one["code"] for one in told["findings"] if one["severity"] != "info"]
        assert run["codes"] == list(dict.fromkeys(grave))


def test_the_summary_counts_what_its_runs_say(tmp_path, folder, capsys):
    publish(folder, tmp_path / "place")
    found = said(capsys, tmp_path / "place")
    runs, sums = found["runs"], found["summary"]
    assert sums["runs"] == 6
    for verdict in ("failing", "healthy"):
        assert sums[verdict] == sum(run["verdict"] == verdict for run in runs) == 3
    for name in ("lost_steps", "lost_hours"):
        assert sums[name] == pytest.approx(sum(run[name] for run in runs))
    for code, counts in sums["by_code"].items():
        assert counts["runs"] == sum(code in run["codes"] for run in runs) > 0


def test_only_what_is_new_is_judged(tmp_path, folder, monkeypatch):
    place = str(tmp_path / "place")
    publish([folder / "run-0", folder / "run-1"], place)
    assert ampwatch.fleet(place, workers=1).judged == 2
    assert ampwatch.fleet(place, workers=1).judged == 0
    publish(folder, place)
    assert ampwatch.fleet(place, workers=1).judged == 4
    more(folder / "run-0", 50, first=150, ended=True)
    publish(folder, place)
    found = ampwatch.fleet(place, workers=1)
    assert found.judged == 1
    assert {one.name: one.steps for one in found.runs}["run-0"] == 200


def test_what_other_rules_judged_is_judged_again(tmp_path, folder):
    from dataclasses import replace

    place = str(tmp_path / "place")
    publish(folder, place)
    first = ampwatch.fleet(place, workers=1)
    other = str(tmp_path / "other")
    publish(folder, other)
    theirs = [replace(one, rules="9.9+somebody", headline="Theirs.") for one in first.runs]
    rows = {row.id: row.stamp for row in list_published(other)}
    theirs = [replace(one, stamp=rows[one.run_id]) for one in theirs]
    store_verdicts(tables_of(Place(other)), theirs)
    found = ampwatch.fleet(other, workers=1)
    assert found.judged == 6
    assert {one.rules for one in found.runs} == {rules_version()}
    assert "Theirs." not in {one.headline for one in found.runs}


def test_from_python_it_gives_the_tables(tmp_path, folder):
    place = str(tmp_path / "place")
    publish(folder, place)
    found = ampwatch.fleet(place, workers=1, where="finding:amp103")
    assert found.verdicts.column("name").to_pylist() == ["run-1", "run-3", "run-5"]
    assert set(found.findings.column("name").to_pylist()) == {"run-1", "run-3", "run-5"}
    counts = {one.run_id: len(one.findings) for one in found.runs}
    assert found.findings.num_rows == sum(counts.values())


def test_parquet_holds_the_same_tables(tmp_path, folder, capsys):
    publish(folder, tmp_path / "place")
    out = tmp_path / "out"
    assert cli.run(["fleet", str(tmp_path / "place"), "-o", str(out)]) == 0
    assert "6 rows" in capsys.readouterr().out
    verdicts = parquet.read_table(out / "verdicts.parquet").to_pylist()
    told = read_verdicts(str(tmp_path / "place"), findings=True)
    assert [row["findings_json"] for row in verdicts] == [one.findings_json for one in told]
    findings = parquet.read_table(out / "findings.parquet")
    assert findings.num_rows == sum(len(one.findings) for one in told)


def test_the_terminal_shows_findings_weeks_models_people_and_the_worst_runs(
    tmp_path, folder, capsys
):
    publish(folder, tmp_path / "place")
    assert cli.run(["fleet", str(tmp_path / "place")]) == 0
    shown = capsys.readouterr().out
    assert "6 runs, 6 of them judged now: 3 failing, 3 healthy." in " ".join(shown.split())
    rows = [line.split() for line in shown.splitlines() if line.strip()]
    heads = [row[0] for row in rows]
    for head in ("finding", "week", "model", "person", "worst"):
        assert head in heads
    (net,) = [row for row in rows if row[0] == "net-1"]
    assert net[1:3] == ["3", "3"]
    worst = [row[0] for row in rows[heads.index("worst") :] if row[0].startswith("run-")]
    assert set(worst) == {"run-1", "run-3", "run-5"}


def test_a_damaged_run_is_one_line_and_the_others_are_judged(tmp_path, folder, capsys):
    place = tmp_path / "place"
    publish(folder, place)
    hit = next(row for row in list_published(str(place)) if row.name == "run-2")
    path = place / hit.detail_path
    data = bytearray(path.read_bytes())
    data[hit.detail_offset + 10] ^= 0xFF
    path.write_bytes(data)
    assert cli.run(["fleet", str(place)]) == 4
    shown = capsys.readouterr()
    assert "5 of them judged now" in " ".join(shown.out.split())
    said = " ".join(shown.err.split())
    assert "Not judged: run-2: What was published of run-2 is damaged" in said
    assert "Not judged: 1 run; see the reasons above." in said
    assert len(read_verdicts(str(place))) == 5


def test_a_run_with_impossible_settings_is_one_line(tmp_path, folder, capsys):
    """Somebody else's publisher may write anything."""
    import deltalake

    place = str(tmp_path / "place")
    publish(folder, place)
    table = deltalake.DeltaTable(f"{place}/runs")
    table.update(updates={"config": "'[1, 2'"}, predicate="name = 'run-3'")
    table.update(updates={"started": "NULL"}, predicate="name = 'run-4'")
    assert cli.run(["fleet", place]) == 4
    shown = capsys.readouterr()
    assert "Not judged: run-3: The settings of run-3 are not those" in " ".join(shown.err.split())
    assert "5 of them judged now" in " ".join(shown.out.split())


def test_what_nobody_can_have_said_of_a_run_is_refused_with_the_remedy(tmp_path, folder, capsys):
    import deltalake

    place = str(tmp_path / "place")
    publish(folder, place)
    ampwatch.fleet(place, workers=1)
    for column, value in (("verdict", "'splendid'"), ("learning_rate", "'[]]'")):
        table = deltalake.DeltaTable(f"{place}/verdicts")
        table.update(updates={column: value}, predicate="name = 'run-3'")
        assert cli.run(["fleet", place]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "says of the run run-3 what ampwatch never says: delete verdicts" in said


def test_runs_that_lie_together_are_a_share(tmp_path, folder, monkeypatch):
    place = str(tmp_path / "place")
    publish([folder / f"run-{number}" for number in (0, 2, 4)], place)
    publish([folder / f"run-{number}" for number in (1, 3, 5)], place)
    rows = list_published(place)
    assert sorted(len(share) for share in shares_of(rows, 1)) == [3, 3]
    monkeypatch.setattr(judging, "_LEAST_RUNS", 2)
    assert len(shares_of(rows, 3)) == 4
    for share in shares_of(rows, 3):
        assert len({row.detail_path for row in share}) == 1
    monkeypatch.setattr(judging, "_STEPS", 400)
    shares = shares_of(rows, 1)
    assert sorted(row.id for share in shares for row in share) == sorted(row.id for row in rows)
    assert all(sum(row.steps for row in share) <= 400 for share in shares)


def test_the_rows_of_a_share_take_one_request_for_each_table(s3, s3_place, tmp_path):
    for number in range(20):
        write_run(tmp_path / "runs", f"run-{number:02}", accepted=200)
    publish(tmp_path / "runs", s3_place)
    before = len(s3.requests())
    assert judge_place(s3_place, choice_of(), LocalWorkers(1)).judged == 20
    made = [line for line in s3.requests()[before:] if ".parquet" in line and "/steps/" in line]
    assert len(made) <= 2


def test_verdicts_are_stored_while_others_are_judged(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(judging, "_RUNS", 1)
    monkeypatch.setattr(judging, "_STORED_RUNS", 2)
    place, stored = str(tmp_path / "place"), []
    publish(folder, place)
    judge_place(
        place, choice_of(), LocalWorkers(1),
        progress=lambda done, total: stored.append(len(read_verdicts(place))),
    )  # fmt: skip
    assert stored == [0, 2, 2, 4, 4, 6]


def test_two_who_judge_at_once_store_each_run_once(place, folder):
    from concurrent.futures import ThreadPoolExecutor

    import deltalake

    publish(folder, place)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: judge_place(place, choice_of(), LocalWorkers(1)), range(2)))
    assert deltalake.DeltaTable(f"{place}/verdicts").to_pyarrow_table().num_rows == 6


@pytest.mark.slow_kills
def test_ctrl_c_keeps_what_was_judged(tmp_path, folder):
    place = str(tmp_path / "place")
    publish(folder, place)
    publish(write_run(tmp_path / "runs", "stuck"), place)
    stuck = StuckRun(place, "stuck")
    command = (
        "import sys; from ampwatch.fleet import judging; judging._STORED_RUNS = 1;"
        "judging._RUNS = judging._LEAST_RUNS = 1; from ampwatch import cli;"
        "cli.main(sys.argv[1:])"
    )
    child = children.start(
        "-c", command, "fleet", place, "--workers", "2",
        stdout=PIPE, stderr=STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not read_verdicts(place) and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    shown, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in shown
    kept = len(read_verdicts(place))
    assert f"Stopped when {kept} of 7 runs were judged; the same command goes on." in shown
    stuck.come_loose()
    assert judge_place(place, choice_of(), LocalWorkers(1)).judged == 7 - kept
