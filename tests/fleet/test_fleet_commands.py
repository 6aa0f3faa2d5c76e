"""`ampwatch publish`, and the commands that read a place as they read a folder."""

from __future__ import annotations

import json

import pytest
from written_runs import write_run

from ampwatch import cli
from ampwatch.fleet import publish


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "runs", "healthy", accepted=100)
    write_run(tmp_path / "runs", "broken", accepted=60, skipped=40, age_s=7200.0)
    return tmp_path / "runs"


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_publish_says_how_many_were_published_and_how_many_were_there(place, folder, capsys):
    assert cli.run(["publish", str(folder), place]) == 0
    assert "2 runs published" in capsys.readouterr().out
    assert cli.run(["publish", str(folder), place]) == 0
    assert "0 runs published, 2 already there" in capsys.readouterr().out


def test_publish_names_what_it_could_not_publish_and_publishes_the_rest(folder, tmp_path, capsys):
    (folder / "broken" / "run.json").write_text("{")
    place = str(tmp_path / "place")
    assert cli.run(["publish", str(folder), place]) == 5
    shown = capsys.readouterr()
    assert "1 run published" in shown.out
    assert "Not published: broken:" in shown.err
    assert "Not published: 1 run;" in shown.err


def test_runs_lists_a_place_newest_first(place, folder, capsys):
    publish(folder, place)
    assert cli.run(["list", place]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line[:3] for line in lines if line[0] in ("healthy", "broken")] == [
        ["healthy", "ended", "100"],
        ["broken", "ended", "100"],
    ]


def test_an_imported_run_has_ended_and_one_that_was_killed_was_cut_off(tmp_path, capsys):
    write_run(tmp_path / "runs", "killed", accepted=20, age_s=7200.0, ended=False)
    log = tmp_path / "train.csv"
    log.write_text("step,loss,lr\n" + "".join(f"{n},{3 / (n + 1)},0.1\n" for n in range(40)))
    assert cli.run(["import", str(log), "-o", str(tmp_path / "runs")]) == 0
    place = str(tmp_path / "place")
    publish(tmp_path / "runs", place)
    capsys.readouterr()
    assert cli.run(["list", place]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert " cut off " in rows["killed"]
    assert " ended " in rows["train"]


def test_report_on_a_published_run_is_that_of_the_run(place, folder, capsys):
    publish(folder, place)
    for name in ("healthy", "broken"):
        assert cli.run(["report", str(folder / name), "--json"]) == 0
        local = capsys.readouterr().out
        assert cli.run(["report", f"{place}#{name}", "--json"]) == 0
        assert capsys.readouterr().out == local
        assert json.loads(local)["verdict"]


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_compare_takes_published_runs(place, folder, capsys):
    publish(folder, place)
    assert cli.run(["compare", str(folder / "healthy"), str(folder / "broken")]) == 0
    local = capsys.readouterr().out
    assert cli.run(["compare", f"{place}#healthy", f"{place}#broken"]) == 0
    assert capsys.readouterr().out == local


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_a_name_that_is_not_there_is_said(place, folder, capsys):
    publish(folder, place)
    assert cli.run(["report", f"{place}#nobody"]) == 2
    assert "has no run 'nobody'" in capsys.readouterr().err


def test_a_place_where_nothing_is_says_how_to_publish(tmp_path, capsys):
    assert cli.run(["report", f"{tmp_path}/nothing#x"]) == 2
    assert "nothing was published there" in capsys.readouterr().err


def test_a_kind_of_address_that_is_not_known_is_said(folder, capsys):
    assert cli.run(["publish", str(folder), "ftp://somewhere/runs"]) == 2
    assert "use s3://, gs://, az:// or a folder's path" in capsys.readouterr().err
