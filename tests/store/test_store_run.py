"""Run: public tables of all ranks, live or finished, in canonical order."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pyarrow as pa
import pytest
from store_samples import event, extras, info, layer_info, layers, steps, write_run

from ampwatch.codec import encode
from ampwatch.errors import RunError
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, compact, create_run, open_run
from ampwatch.store.public_rows import PUBLIC_NAMES, View


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return create_run(tmp_path, info())


def test_steps_have_their_public_columns_with_rank_and_names(run: Path) -> None:
    writer = RankWriter(run, 3)
    writer.append(layer_info(["a", "b"]))
    numbers = {"max_update_layer": [1, None], "autocast_dtype": [1, 2], "loss": [0.5, None]}
    writer.append(steps(4, 2, **numbers))
    found = open_run(run).steps
    assert found.schema.names[:5] == ["step", "time_ns", "rank", "scale", "growth_tracker"]
    assert found.column("rank").type == pa.int32()
    first, second = found.to_pylist()
    assert (first["rank"], first["max_update_layer"], first["autocast_dtype"]) == (
        3,
        "b",
        "float16",
    )
    assert (second["max_update_layer"], second["loss"], second["scale"]) == (None, None, None)
    writer.close()


def test_a_layers_facts_hold_from_their_step_on(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(layer_info(["a", "b"], step=2, trainable=[True, True], param_dtype=[0, 1]))
    for step in (0, 2, 5, 9):
        writer.append(layers(step, 2))
    writer.append(layer_info(["a"], step=5, trainable=[False], weight_shape=[[3, 4]]))
    rows = open_run(run).layers.to_pylist()
    writer.close()
    of_a = [
        (row["step"], row["trainable"], row["weight_shape"]) for row in rows if row["layer"] == "a"
    ]
    assert of_a == [(0, True, None), (2, True, None), (5, False, [3, 4]), (9, False, [3, 4])]
    assert {row["param_dtype"] for row in rows if row["layer"] == "b"} == {"float16"}
    assert rows[0].keys() == set(PUBLIC_NAMES[Table.LAYERS])


def test_layer_numbers_mean_each_ranks_own_layers(run: Path) -> None:
    for rank, names in enumerate((["a", "b"], ["b", "c"])):
        writer = RankWriter(run, rank)
        writer.append(layer_info(names))
        writer.append(layers(0, 2))
        writer.close()
    found = open_run(run).read("layers", ["rank", "layer"]).to_pylist()
    assert [(row["rank"], row["layer"]) for row in found] == [
        (0, "a"),
        (0, "b"),
        (1, "b"),
        (1, "c"),
    ]


def test_a_layer_without_facts_has_no_name_and_is_not_lost(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(layer_info(["a"]))
    writer.append(encode(Table.LAYERS, {"step": [0, 0, 0], "layer": [0, 7, -2]}))
    writer.close()
    assert open_run(run).layers.column("layer").to_pylist() == ["a", None, None]


def test_the_users_scalars_are_columns_and_a_clash_gets_a_suffix(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(steps(0, 4))
    writer.append(extras(1, accuracy=0.5, loss=9.0))
    writer.append(extras(3, accuracy=0.75))
    writer.append(extras(3, accuracy=0.875))  # logged twice in a step: the last counts
    writer.append(extras(8, accuracy=1.0))  # of a step that is not closed yet
    found = open_run(run)
    assert found.column_names("steps")[-2:] == ("accuracy", "loss_logged")
    assert found.steps.column("accuracy").to_pylist() == [None, 0.5, None, 0.875]
    assert found.steps.column("loss").to_pylist() == [0, 0.125, 0.25, 0.375]
    narrow = found.read("steps", ["loss_logged", "step"])
    assert narrow.to_pydict() == {"loss_logged": [None, 9.0, None, None], "step": [0, 1, 2, 3]}
    writer.close()


def test_rows_come_by_step_then_rank_however_they_were_written(run: Path) -> None:
    writers = [RankWriter(run, rank) for rank in range(3)]
    for first in (0, 4, 8):
        for writer in writers:
            writer.append(steps(first, 4))
    writers[1].append(layers(9))
    writers[1].append(layers(2))  # a ring written late
    found = open_run(run)
    expected = [(step, rank) for step in range(12) for rank in range(3)]
    rows = found.read("steps", ["step", "rank"]).to_pylist()
    assert [(row["step"], row["rank"]) for row in rows] == expected
    assert found.read("layers", ["step"]).column(0).to_pylist() == [2, 2, 2, 9, 9, 9]
    assert found.read("steps", ["step"], rank=2).column(0).to_pylist() == list(range(12))
    assert found.read("steps", ["step"], rank=7).num_rows == 0
    assert found.ranks == (0, 1, 2)
    for writer in writers:
        writer.close()


def test_a_refreshed_run_equals_one_opened_anew_at_every_moment(run: Path) -> None:
    live = open_run(run)
    assert not live.refresh()
    writers: dict[int, RankWriter] = {}
    script = [
        (0, event("started")), (0, layer_info(["a", "b", "c"])), (0, steps(0, 5)), (1, steps(0, 3)),
        (0, layers(4)), (0, extras(2, x=1.0)), (1, steps(3, 40)), (0, layers(2)), (0, steps(5, 1)),
        (2, steps(1, 2)), (0, extras(5, y=2.0)), (0, event("ended", None)),
        (0, event("started", 3)), (0, steps(3, 4)), (1, event("overflow", 20)),
    ]  # fmt: skip
    for rank, batch in script:
        if rank not in writers:
            writers[rank] = RankWriter(run, rank)
        writers[rank].append(batch)
        assert live.refresh()
        assert not live.refresh()
        anew = open_run(run)
        for table in ("steps", "layers", "events"):
            assert live.read(table).to_pylist() == anew.read(table).to_pylist()
        assert live.ended == anew.ended
        assert live.last_time_ns == anew.last_time_ns
    for writer in writers.values():
        writer.close()


def test_attempts_follow_each_other_even_where_their_steps_overlap(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(event("started"))
    writer.append(layer_info(["old"]))
    writer.append(steps(0, 6))
    writer.append(layers(5, 1))
    writer.close()
    writer = RankWriter(run, 0)
    writer.append(event("started", 3))
    writer.append(layer_info(["new"], step=3))
    writer.append(steps(3, 4))
    writer.append(layers(5, 1))
    writer.close()
    found = open_run(run)
    assert found.steps.column("step").to_pylist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]
    assert found.layers.column("layer").to_pylist() == ["old", "new"]


def test_the_end_is_clean_when_every_rank_has_ended_its_newest_attempt(run: Path) -> None:
    zero, one = RankWriter(run, 0), RankWriter(run, 1)
    for writer in (zero, one):
        writer.append(event("started"))
    zero.append(event("ended", 5))
    live = open_run(run)
    assert (live.ended, live.clean_end) == ({0: True, 1: False}, False)
    one.append(event("ended", 5))
    live.refresh()
    assert live.clean_end
    zero.append(event("started", 6))
    live.refresh()
    assert live.ended == {0: False, 1: True}
    zero.close()
    one.close()


def test_events_without_a_step_stand_where_they_were_logged(run: Path) -> None:
    writer = RankWriter(run, 0)
    for kind, step in [("started", 0), ("overflow", 7), ("exception", None), ("ended", 8)]:
        writer.append(event(kind, step))
    writer.close()
    kinds = open_run(run).events.column("kind").to_pylist()
    assert kinds == ["started", "overflow", "exception", "ended"]


def test_devices_come_by_time(run: Path) -> None:
    for rank, times in enumerate([[5, 7], [4, 6]]):
        writer = RankWriter(run, rank)
        writer.append(encode(Table.DEVICES, {"time_ns": times, "device": ["cuda:0"] * 2}))
        writer.close()
    assert open_run(run).devices.column("time_ns").to_pylist() == [4, 5, 6, 7]
    assert open_run(run).last_time_ns == info().started_ns


def test_an_unknown_column_or_table_is_a_sentence(tmp_path: Path) -> None:
    found = open_run(write_run(tmp_path))
    with pytest.raises(RunError, match="no column 'colour'; it has step, time_ns, rank"):
        found.read("steps", ["colour"])
    with pytest.raises(RunError, match="no table 'stepz'"):
        found.read("stepz")


def test_a_run_without_rows_has_empty_tables_with_every_column(run: Path) -> None:
    found = open_run(run)
    for table in Table:
        assert tuple(found.read(table).schema.names) == PUBLIC_NAMES[table]
    assert (found.ranks, found.clean_end, found.notes) == ((), False, ())


def test_public_types_do_not_depend_on_how_much_was_logged(tmp_path: Path, run: Path) -> None:
    full = open_run(write_run(tmp_path / "full", 3))
    for table in (Table.LAYERS, Table.DEVICES, Table.EVENTS):
        assert open_run(run).read(table).schema.equals(full.read(table).schema)


def test_a_reader_that_goes_rank_by_rank_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create_run(tmp_path, info())
    writers = [RankWriter(folder, rank) for rank in range(40)]
    made: list[object] = []

    class Counted(View):
        def __init__(self, *arguments: object) -> None:
            made.append(arguments)
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("ampwatch.store.run.View", Counted)
    run = open_run(folder)
    for first in (0, 5):
        for writer in writers:
            writer.append(steps(first, 5))
        run.refresh()
        for rank in run.ranks:
            assert run.read(Table.STEPS, ("step",), rank).num_rows == first + 5
            assert run.read(Table.DEVICES, ("device",), rank).num_rows == 0
    for writer in writers:
        writer.close()
    stored = [arguments for arguments in made if arguments[0] is not Table.LAYER_INFO]
    assert len(stored) == 2 * len(writers)


def test_columns_read_with_others_are_not_decoded_again_and_never_stale(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(steps(0, 3, loss=[1.0, 2.0, None]))
    opened = open_run(run)
    wide = opened.read(Table.STEPS, ("step", "loss", "scale"), 0)
    narrow = opened.read(Table.STEPS, ("loss", "step"), 0)
    assert narrow.equals(wide.select(["loss", "step"]))
    assert _address(narrow) == _address(wide)
    assert _address(opened.read(Table.STEPS, ("loss",))) != _address(wide)  # of every rank
    writer.append(steps(3, 1, loss=[4.0]))
    assert opened.refresh()
    found = opened.read(Table.STEPS, ("loss", "step"), 0).to_pydict()
    assert found == {"loss": [1.0, 2.0, None, 4.0], "step": [0, 1, 2, 3]}
    writer.close()


def test_what_is_read_uncached_is_not_kept(run: Path) -> None:
    writer = RankWriter(run, 0)
    writer.append(steps(0, 3, loss=[1.0, 2.0, None]))
    opened = open_run(run)
    used = weakref.ref(opened.uncached().read(Table.STEPS, ("loss",)))
    kept = weakref.ref(opened.read(Table.STEPS, ("loss",)))
    gc.collect()
    assert used() is None
    assert kept() is not None
    writer.append(steps(3, 1, loss=[4.0]))
    assert opened.refresh()
    now = opened.read(Table.STEPS, ("loss",))
    assert opened.uncached().read(Table.STEPS, ("loss",)).equals(now)
    writer.close()


def _address(rows: pa.Table) -> int:
    return int(rows.column("loss").chunk(0).buffers()[1].address)


def test_a_log_of_many_batches_is_read_in_few_pieces(run: Path) -> None:
    writer = RankWriter(run, 0)
    for step in range(40):
        writer.append(steps(step, 1, loss=[step / 2 if step % 3 else None]))
    found = open_run(run).read(Table.STEPS, ("loss", "autocast_dtype", "step"))
    writer.close()
    assert found.column("loss").num_chunks == 1
    assert found.column("step").to_pylist() == list(range(40))
    assert found.column("loss").to_pylist() == [n / 2 if n % 3 else None for n in range(40)]
    assert found.column("autocast_dtype").null_count == 40


@pytest.mark.parametrize("compacted", [False, True])
def test_last_rows_and_rows_between_are_those_of_the_whole_table(tmp_path, compacted):
    path = create_run(tmp_path, RunInfo(id="ab" * 16, name="two", world_size=2))
    for rank in range(2):
        writer = RankWriter(path, rank)
        for first in range(0, 3000, 100):
            steps = list(range(first, first + 100))
            losses = [step + rank / 2 for step in steps]
            writer.append(encode(Table.STEPS, {"step": steps, "time_ns": steps, "loss": losses}))
        writer.close()
    if compacted:
        compact(path)
    run = open_run(path)
    whole = run.read(Table.STEPS, ("step", "rank", "loss")).to_pylist()
    columns = ("step", "rank", "loss")
    assert run.last_rows(Table.STEPS, columns, 10).to_pylist() == whole[-10:]
    assert run.last_rows(Table.STEPS, columns, 7, step=1234).to_pylist() == whole[:2470][-7:]
    assert run.last_rows(Table.STEPS, columns, 9, step=-1).num_rows == 0
    mine = run.last_rows(Table.STEPS, columns, 3, step=50, rank=1).to_pylist()
    assert [(row["step"], row["rank"]) for row in mine] == [(48, 1), (49, 1), (50, 1)]
    parts = run.rows_between(Table.STEPS, columns, 700, 1300)
    found = [row for part in parts for row in part.to_pylist()]
    assert sorted(found, key=lambda row: (row["step"], row["rank"])) == [
        row for row in whole if 700 <= row["step"] <= 1300
    ]
    views = run._views.keys()
    assert views <= {(Table.STEPS, ("step", "loss"), None)}  # of the whole table, read above
