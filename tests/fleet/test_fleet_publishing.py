"""Runs are published whole, once, and by several at a time; what cannot be is said."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from subprocess import PIPE

import children
import deltalake
import pytest
from written_runs import fresh_id, more, write_run

import ampwatch
from ampwatch import open_run, store
from ampwatch.errors import NotInPlaceError, PlaceError
from ampwatch.fleet import PublishedRun, list_published, publish, publishing
from ampwatch.store.tags import edit_tags

ROOT = Path(ampwatch.__file__).parents[1]


def several(folder: Path, count: int, steps: int = 60) -> Path:
    for number in range(count):
        days = number % 3
        write_run(folder, f"run-{number}", accepted=steps + number, age_s=3600.0 + 86400 * days)
    return folder


def rows_seen(place: str) -> dict[str, int]:
    """How many steps a reader of the tables sees of each run that `runs` names."""
    runs = deltalake.DeltaTable(f"{place}/runs").to_pyarrow_table()
    steps = deltalake.DeltaTable(f"{place}/steps").to_pyarrow_table()
    editions = dict(zip(runs["name"].to_pylist(), runs["editions"].to_pylist(), strict=True))
    of = steps.column("edition").to_pylist()
    return {name: sum(edition in held for edition in of) for name, held in editions.items()}


def test_published_twice_is_once(place, tmp_path):
    folder = several(tmp_path / "runs", 5)
    first = publish(folder, place)
    assert sorted(first.published) == [f"run-{n}" for n in range(5)]
    second = publish(folder, place)
    assert not second.published
    assert len(second.unchanged) == 5
    assert {run.name: run.steps for run in list_published(place)} == {
        f"run-{n}": 60 + n for n in range(5)
    }
    assert rows_seen(place) == {f"run-{n}": 60 + n for n in range(5)}


def test_a_run_with_more_steps_replaces_what_was_published(place, tmp_path):
    path = write_run(tmp_path / "runs", "grows", accepted=100)
    publish(path, place)
    more(path, 50, ended=True)
    assert publish(path, place).published == ["grows"]
    (run,) = list_published(place)
    assert run.steps == 150
    assert rows_seen(place) == {"grows": 150}
    assert ampwatch.open_run(f"{place}#grows").steps.num_rows == 150


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_a_copy_that_lacks_steps_replaces_nothing(place, tmp_path):
    path = write_run(tmp_path / "runs", "whole", accepted=100)
    shutil.copytree(path, tmp_path / "copies" / "whole")
    more(path, 50, ended=True)
    publish(path, place)
    assert publish(tmp_path / "copies" / "whole", place).unchanged == ["whole"]
    assert ampwatch.open_run(f"{place}#whole").steps.num_rows == 150


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_tags_that_came_later_are_published_and_a_copy_without_takes_none_away(place, tmp_path):
    path = write_run(tmp_path / "runs", "told", accepted=30)
    shutil.copytree(path, tmp_path / "copies" / "told")
    publish(path, place)
    edit_tags(path, add=("baseline",))
    assert publish(path, place).published == ["told"]
    assert publish(tmp_path / "copies" / "told", place).unchanged == ["told"]
    (run,) = list_published(place)
    assert (run.tags, run.steps) == (("baseline",), 30)
    assert ampwatch.open_run(f"{place}#told").steps.num_rows == 30


def test_a_compacted_run_is_the_run_that_was_published(tmp_path):
    path = write_run(tmp_path / "runs", "small", accepted=100)
    publish(path, tmp_path / "place")
    store.compact(path)
    assert publish(path, tmp_path / "place").unchanged == ["small"]


def test_recorders_of_two_nodes_publish_one_run_together(place, tmp_path):
    path = write_run(tmp_path / "one", "shared", accepted=40)
    other = tmp_path / "two" / "shared"
    shutil.copytree(path, other)
    shutil.rmtree(other / "rank-0")
    more(other, 40, first=0, rank=1, ended=True)
    publish(path, place)
    publish(other, place)
    run = ampwatch.open_run(f"{place}#shared")
    assert run.ranks == (0, 1)
    assert run.steps.num_rows == 80
    assert rows_seen(place) == {"shared": 80}
    assert publish(path, place).unchanged == ["shared"]


def test_a_run_that_goes_on_is_published_when_asked_for(tmp_path):
    path = write_run(tmp_path / "runs", "live", accepted=30, ended=False)
    writer = store.RankWriter(path, 0)
    place = str(tmp_path / "place")
    try:
        assert publish(path, place).live == ["live"]
        with pytest.raises(NotInPlaceError, match="no run 'live'"):
            open_run(f"{place}#live")
        assert publish(path, place, live=True).published == ["live"]
        more(path, 20, first=30, ended=True, writer=writer)
    finally:
        writer.close()
    assert publish(path, place).published == ["live"]
    (run,) = list_published(place)
    assert (run.steps, run.state) == (50, "ended")


def test_damaged_and_hostile_runs_are_left_out_with_a_sentence(tmp_path):
    folder = several(tmp_path / "runs", 4)
    (folder / "run-0" / "run.json").write_text("{")
    steps = folder / "run-1" / "rank-0" / "steps.arrows"
    data = bytearray(steps.read_bytes())
    data[len(data) // 2] ^= 0xFF
    steps.write_bytes(data)
    pipe = folder / "run-2" / "rank-0" / "steps.arrows"
    pipe.unlink()
    os.mkfifo(pipe)
    outcome = publish(folder, tmp_path / "place")
    assert outcome.published == ["run-3"]
    assert set(outcome.skipped) == {"run-0", "run-1", "run-2"}
    assert "damaged" in outcome.skipped["run-1"]
    assert [run.name for run in list_published(str(tmp_path / "place"))] == ["run-3"]


def test_a_place_that_holds_something_else_is_left_alone(place, s3, tmp_path):
    path = write_run(tmp_path / "runs")
    if "://" in place:
        key = place.partition("team-runs/")[2]
        s3.client().put_object(Bucket="team-runs", Key=f"{key}/models/weights.pt", Body=b"x")
    else:
        (Path(place) / "models").mkdir(parents=True)
    with pytest.raises(PlaceError, match=r"holds something else \(models\)"):
        publish(path, place)
    with pytest.raises(PlaceError, match="nothing was published there"):
        list_published(place)


def test_a_table_of_somebody_else_is_left_alone(tmp_path):
    import pyarrow as pa

    deltalake.write_deltalake(str(tmp_path / "place" / "runs"), pa.table({"id": [1]}))
    with pytest.raises(PlaceError, match="did not make"):
        publish(write_run(tmp_path / "runs"), tmp_path / "place")


def test_credentials_in_an_address_are_refused_and_not_repeated(tmp_path):
    with pytest.raises(PlaceError) as told:
        publish(write_run(tmp_path / "runs"), "s3://someone:secret-word@bucket/runs?token=xyz")
    assert "secret-word" not in str(told.value)
    assert "xyz" not in str(told.value)
    assert "environment" in str(told.value)


def test_two_runs_of_one_name_are_told_apart_by_their_ids(tmp_path):
    for number in (1, 2):
        path = write_run(tmp_path / str(number), f"x{number}", accepted=10 * number)
        path.rename(path.with_name("same"))
    for number in (1, 2):
        publish(tmp_path / str(number), tmp_path / "place")
    with pytest.raises(NotInPlaceError, match="2 runs named 'same'"):
        open_run(f"{tmp_path / 'place'}#same")
    found = open_run(f"{tmp_path / 'place'}#{fresh_id('x2')[:8]}")
    assert found.steps.num_rows == 20


# --- at once, and killed --------------------------------------------------------------------------

_CHILD = """
import sys
from ampwatch.fleet import publish
print("begun", flush=True)
publish(sys.argv[1], sys.argv[2])
"""


def child(folder: Path, place: str) -> children.Running:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return children.start("-c", _CHILD, folder, place, stdout=PIPE, stderr=PIPE, env=environment)


def test_publishers_at_once_lose_nothing(place, tmp_path):
    folders = [several(tmp_path / "both", 4)]
    for number in range(4):
        write_run(tmp_path / "other", f"other-{number}", accepted=20)
    # Two publish the same runs.
    publishers = [child(folder, place) for folder in (*folders, tmp_path / "other", *folders)]
    for one in publishers:
        _, said = one.communicate(timeout=60)
        assert one.returncode == 0, said
    published = list_published(place)
    assert len(published) == len({run.id for run in published}) == 8
    assert rows_seen(place) == {run.name: run.steps for run in published}


def written_to(place: str, s3) -> int:
    """How many objects were written by now."""
    if "://" in place:
        prefix = place.removeprefix("s3:/")
        return sum(line.startswith(f"PUT {prefix}/") for line in s3.requests())
    return sum(path.is_file() for path in Path(place).rglob("*"))


# Seven tables are made, then six files of rows and their commits come, then the runs' own.
@pytest.mark.slow_kills
@pytest.mark.parametrize("objects", [4, 10, 17, 22])
def test_a_killed_publisher_leaves_nothing_half_visible(place, s3, tmp_path, objects):
    folder = several(tmp_path / "runs", 9, steps=400)
    names = {f"run-{n}": 400 + n for n in range(9)}
    one = child(folder, place)
    while one.poll() is None and written_to(place, s3) < objects:
        time.sleep(0.002)
    one.send_signal(signal.SIGKILL)
    one.communicate()
    for run in seen_in(place):
        assert open_run(f"{place}#{run.name}").steps.num_rows == names[run.name]
    publish(folder, place)
    assert {run.name: run.steps for run in list_published(place)} == names
    assert rows_seen(place) == names


def seen_in(place: str) -> list[PublishedRun]:
    """The runs in a place, which may not have come into being yet."""
    try:
        return list_published(place)
    except PlaceError as problem:
        if "nothing was published" not in str(problem):
            raise
        return []


def test_a_run_longer_than_a_file_is_written_in_several_and_reads_as_before(
    place, tmp_path, monkeypatch
):
    monkeypatch.setattr(publishing, "_BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(publishing, "ROW_GROUP_ROWS", 1000)
    path = write_run(tmp_path / "runs", "long", accepted=20_000)
    publish(path, place)
    table = deltalake.DeltaTable(f"{place}/steps")
    assert len(table.file_uris()) >= 3
    run, own = ampwatch.open_run(f"{place}#long"), ampwatch.open_run(path)
    assert run.steps.equals(own.steps)
    assert rows_seen(place) == {"long": 20_000}
    more(path, 500, first=20_000, ended=True)
    assert publish(path, place).published == ["long"]
    assert ampwatch.open_run(f"{place}#long").steps.num_rows == 20_500
