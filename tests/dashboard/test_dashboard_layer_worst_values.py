"""The layers of a long run: bounded, and the worst sample of a stretch is never lost."""

from __future__ import annotations

from types import SimpleNamespace

import bounded_history
import layer_chart_data
import layer_worst_values
import numpy as np
import pytest
from layer_chart_data import QUANTITIES, heatmap_grid, layer_curves, layer_names
from layer_choices import ALL_QUANTITIES, QUANTITY_OF_FINDING
from layer_worst_values import RunLayers, WorstValues
from run_chart import thinned_lines
from written_runs import fresh_id

from ampwatch import codec, store
from ampwatch.diagnosis import RULES
from ampwatch.follow import follow
from ampwatch.report.layer_views import VIEW_COLUMNS, views_with
from ampwatch.rows import Table

NAMES = ("head", "body", "tail")
ORDER = (2, 0, 1)
NORM = next(q for q in QUANTITIES if q.column == "grad_norm")
HEADROOM = next(q for q in QUANTITIES if q.column == "log2_headroom")


def begin(folder, ranks=1):
    path = store.create_run(folder, store.RunInfo(id=fresh_id("x"), name="x", world_size=ranks))
    writers = [store.RankWriter(path, rank) for rank in range(ranks)]
    for writer in writers:
        info = {"step": [0] * 3, "layer": [0, 1, 2], "name": list(NAMES), "order": list(ORDER)}
        writer.append(codec.encode(Table.LAYER_INFO, info))
    return path, writers


def values(step, layer, rank=0):
    """A layer's gradient norm and headroom at a step; nan where it is not finite."""
    norm = 1 + ((step * 7919 + layer * 104_729 + rank * 31) % 1000) / 1000
    return np.where(step % 970 == 30, np.nan, norm), 10 - norm


def write(writer, steps, rank=0):
    step = np.repeat(np.asarray(steps), 3)
    layer = np.tile([0, 1, 2], len(steps))
    norm, room = values(step, layer, rank)
    writer.append(codec.encode(Table.LAYERS, {
        "step": step, "layer": layer, "grad_norm": norm, "log2_headroom": room,
    }))  # fmt: skip


def looked(path, ranks=(0,)):
    follower = follow(path)
    kept = RunLayers(follower, None)

    def look(is_live=False):
        follower.refresh()
        info = SimpleNamespace(layer_every=10)
        return SimpleNamespace(layers=kept, is_live=is_live, info=info, ranks=ranks, rank=None)

    return look


def test_few_samples_are_a_cell_each(tmp_path):
    path, (writer,) = begin(tmp_path)
    steps = np.arange(0, 2000, 10)
    write(writer, steps)
    writer.close()
    found = heatmap_grid(looked(path)(), NORM, None)
    assert found.layers == ("body", "tail", "head")
    for row, layer in enumerate((1, 2, 0)):
        norm, _ = values(steps, layer)
        norm = np.where(np.isnan(norm), np.inf, norm)
        assert np.array_equal(found.values[row], norm.astype(np.float32))
    assert len(found.edges) == 201
    assert np.array_equal(found.steps, steps)
    assert not found.is_merged


@pytest.mark.parametrize("quantity", [NORM, HEADROOM])
def test_the_worst_of_a_long_live_run_is_that_of_all_its_rows(tmp_path, quantity):
    path, (writer,) = begin(tmp_path)
    look, every = looked(path), np.arange(0, 60_000, 10)
    for at in range(0, len(every), 450):
        write(writer, every[at : at + 450])
        layer_names(look(is_live=True))
    writer.close()
    grown, anew = heatmap_grid(look(), quantity, None), heatmap_grid(looked(path)(), quantity, None)
    assert np.array_equal(grown.values, anew.values, equal_nan=True)
    assert np.array_equal(grown.edges, anew.edges)
    assert len(grown.edges) <= layer_chart_data.COLUMNS + 1
    for row, layer in enumerate((1, 2, 0)):
        norm, room = values(every, layer)
        norm = np.where(np.isnan(norm), np.inf, norm)
        room = np.where(np.isnan(room), -np.inf, room)
        truth = (norm if quantity is NORM else room).astype(np.float32)
        bad = ~np.isfinite(truth)
        cells = np.searchsorted(grown.edges, every[bad], side="right") - 1
        near = np.stack([np.maximum(0, cells - 1), np.minimum(239, cells)])  # a quarter cell off
        assert (~np.isfinite(grown.values[row][near])).any(axis=0).all()
        assert np.isfinite(truth[~bad]).all()


def test_a_span_of_a_long_run_is_a_cell_a_sample_again(tmp_path):
    path, (writer,) = begin(tmp_path)
    every = np.arange(0, 60_000, 10)
    write(writer, every)
    writer.close()
    found = heatmap_grid(looked(path)(), NORM, (30_000, 30_990))
    steps = every[(every >= 30_000) & (every <= 30_990)]
    for row, layer in enumerate((1, 2, 0)):
        norm, _ = values(steps, layer)
        norm = np.where(np.isnan(norm), np.inf, norm)
        assert np.array_equal(found.values[row], norm.astype(np.float32))


def test_what_is_kept_is_bounded():
    worst = WorstValues({"grad_norm": False})
    import pyarrow as pa

    for at in range(0, 100_000, 500):
        step = np.arange(at, at + 500)
        worst.add(pa.table({
            "step": step, "layer": ["a"] * 500, "order": [0] * 500, "grad_norm": step * 1.0,
        }))  # fmt: skip
        assert len(worst.cells) <= layer_worst_values.MOST_CELLS
    _, values_kept = worst.of_columns("grad_norm")
    ends = np.append(worst.first[1:], 100_000) - 1
    assert np.array_equal(values_kept[0], ends.astype(np.float32))


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_layers_line_is_the_worst_of_the_ranks_at_each_step(tmp_path, ranks, monkeypatch):
    monkeypatch.setattr(bounded_history, "HELD_ROWS", 1000)
    path, writers = begin(tmp_path, ranks)
    look, every = looked(path, tuple(range(ranks))), np.arange(0, 6000, 10)
    for at in range(0, len(every), 45):
        for rank, writer in enumerate(writers):
            write(writer, every[at : at + 45], rank)
            layer_curves(look(is_live=True), "tail")
    for writer in writers:
        writer.close()
    curves = layer_curves(look(), "tail")
    norms = np.array([values(every, 2, rank)[0] for rank in range(ranks)])
    truth = np.where(np.isnan(norms), np.inf, norms).max(axis=0)  # what is not finite is the worst
    step, norm = curves.points("grad_norm")
    assert np.array_equal(step, every)
    assert np.array_equal(norm, truth.astype(np.float32))
    assert curves.present == {"grad_norm", "log2_headroom"}


def test_a_layers_line_breaks_where_it_was_not_finite_and_spans_what_was_not_sampled(tmp_path):
    """Ten steps of a hundred are not finite; each third one holds no headroom."""
    path, (writer,) = begin(tmp_path)
    steps = np.arange(100)
    norm = np.where((steps >= 40) & (steps < 50), np.nan, 1.0)
    room = [5.0 if step % 3 else None for step in steps.tolist()]
    rows = {"step": steps, "layer": [0] * 100, "grad_norm": norm, "log2_headroom": room}
    writer.append(codec.encode(Table.LAYERS, rows))
    writer.close()
    lines = thinned_lines(layer_curves(looked(path)(), "head"))
    assert lines["base.grad_norm.x"][np.isnan(lines["base.grad_norm.y"])].tolist() == [39]
    assert not np.isnan(lines["base.log2_headroom.y"]).any()


def test_a_sample_without_underflow_breaks_its_line_and_a_row_of_norms_alone_does_not(tmp_path):
    """Samples each fifth step, between them norms; from 50 on gradients overflow for a while."""
    path, (writer,) = begin(tmp_path)
    steps = list(range(100))
    amax = [1.0 if step % 5 == 0 else None for step in steps]
    share = [0.1 if step % 5 == 0 and not 50 <= step < 60 else None for step in steps]
    finite = [None if value is None else not 50 <= step < 60 for step, value in enumerate(amax)]
    rows = {"step": steps, "layer": [0] * 100, "grad_norm": [1.0] * 100}
    rows["out_grad_finite"] = finite
    writer.append(codec.encode(Table.LAYERS, {**rows, "act_amax": amax, "underflow_share": share}))
    writer.close()
    lines = thinned_lines(layer_curves(looked(path)(), "head"))
    broken = np.isnan(lines["base.underflow_share.y"])
    assert lines["base.underflow_share.x"][broken].tolist() == [45]
    assert not np.isnan(lines["base.act_amax.y"]).any()


def test_every_layer_of_thousands_has_its_row_and_the_worst_of_its_steps(tmp_path):
    """Fewer columns, so that the message stays small; no layer and no high value is lost."""
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("x"), name="x"))
    names = [f"blocks.{at}" for at in range(3000)]
    writer = store.RankWriter(path, 0)
    info = {"step": [0] * 3000, "layer": np.arange(3000), "name": names, "order": np.arange(3000)}
    writer.append(codec.encode(Table.LAYER_INFO, info))
    for step in range(0, 3000, 10):
        norm = np.full(3000, 1.0)
        norm[step] = 100.0
        rows = {"step": [step] * 3000, "layer": np.arange(3000), "grad_norm": norm}
        writer.append(codec.encode(Table.LAYERS, rows))
    writer.close()
    found = heatmap_grid(looked(path)(), NORM, None)
    assert found.layers == tuple(names)
    assert found.values.size <= 500_000
    worst = found.values.max(axis=1)
    assert np.flatnonzero(worst == 100).tolist() == list(range(0, 3000, 10))
    for step in (0, 990, 2990):
        (column,) = np.flatnonzero(found.values[step] == 100)
        assert found.edges[column] <= step < found.edges[column + 1]
        assert found.edges[column] <= found.steps[column] <= step
    assert found.is_merged


def test_a_resumed_run_and_rows_out_of_order_say_the_same_as_all_rows(tmp_path):
    path, (writer,) = begin(tmp_path)
    look = looked(path)
    for steps in (range(0, 1000, 10), range(2000, 3000, 10), range(1000, 2000, 10)):
        write(writer, list(steps))
        layer_names(look(is_live=True))
        layer_curves(look(is_live=True), "head")
    writer.close()
    assert layer_curves(look(), "head").step.tolist() == list(range(0, 3000, 10))
    assert heatmap_grid(look(), NORM, None).values.shape[0] == 3


WHAT_IF = {
    "input_what_if": [[0.1, 0.0, 0.0, 0.3], [0.2, 0.0, None, 0.4], None],
    "weight_what_if": [[0.5, 0.0, 0.0, 0.1], [0.0, 0.0, None, 0.1], None],
}


def quantity(column):
    return next(one for one in ALL_QUANTITIES if one.column == column)


def test_a_format_that_might_be_used_is_mapped_by_its_worst_role_or_by_one(tmp_path):
    path, (writer,) = begin(tmp_path)
    rows = {"step": [0, 0, 0], "layer": [0, 1, 2], **WHAT_IF}
    writer.append(codec.encode(Table.LAYERS, rows))
    look = looked(path)()
    e4m3 = quantity("e4m3")
    found = heatmap_grid(look, e4m3, None)
    assert found.layers == ("body", "tail", "head")  # in forward order
    nothing = np.nan
    assert found.values.ravel().tolist() == pytest.approx([0.2, nothing, 0.5], nan_ok=True)
    inputs = heatmap_grid(look, e4m3, None, "input").values.ravel()
    assert inputs.tolist() == pytest.approx([0.2, nothing, 0.1], nan_ok=True)
    mxfp8 = heatmap_grid(look, quantity("mxfp8"), None).values.ravel()
    assert np.isnan(mxfp8).tolist() == [True, True, False]


def test_what_casts_lose_is_mapped_and_drawn_by_role(tmp_path):
    path, (writer,) = begin(tmp_path)
    shares = {"input_flushed_share": [0.1, 0.0, 0.2], "grad_flushed_share": [0.0, 0.3, 0.4]}
    writer.append(codec.encode(Table.LAYERS, {"step": [0, 5, 9], "layer": [0, 0, 0], **shares}))
    look = looked(path)()
    worst = heatmap_grid(look, quantity("flushed"), None)
    assert worst.values[0].tolist() == pytest.approx([0.1, 0.3, 0.4])
    assert {"input_flushed_share", "grad_flushed_share"} <= layer_curves(
        look, "head", casts=True
    ).present
    assert "input_flushed_share" not in layer_curves(look, "head").present


FORWARD = {"act_amax": np.nan, "act_finite": False, "log2_headroom": None}
BACKWARD = {"grad_norm": np.inf, "out_grad_finite": False, "underflow_share": None}


@pytest.mark.parametrize(
    ("column", "sample"),
    [("act_amax", FORWARD), ("log2_headroom", FORWARD), ("grad_norm", BACKWARD),
     ("underflow_share", BACKWARD)],
)  # fmt: skip
def test_what_is_not_finite_is_the_worst_in_each_quantity_also_where_the_value_is_missing(
    tmp_path, column, sample
):
    path, (writer,) = begin(tmp_path)
    good = {name: True if name.endswith("finite") else 1.0 for name in sample}
    rows = {name: [good[name], sample[name], good[name]] for name in sample}
    writer.append(codec.encode(Table.LAYERS, {"step": [0] * 3, "layer": [0, 1, 2], **rows}))
    found = heatmap_grid(looked(path)(), quantity(column), None)
    bad = -np.inf if column == "log2_headroom" else np.inf
    assert found.values[found.layers.index("body")].tolist() == [bad]
    assert found.values[found.layers.index("head")].tolist() == [1.0]


def test_each_finding_about_numbers_of_layers_has_a_quantity_that_there_is():
    columns = {one.column for one in ALL_QUANTITIES}
    assert set(QUANTITY_OF_FINDING.values()) <= columns
    assert set(QUANTITY_OF_FINDING) <= {rule.code for rule in RULES}
    grave = {rule.code for rule in RULES if rule.usual.weight}
    numbers = {code for code in grave if code[:4] in {"AMP2", "AMP3", "AMP7"}}
    of_the_data_or_the_setup = {"AMP206", "AMP705"}
    assert numbers - set(QUANTITY_OF_FINDING) == of_the_data_or_the_setup


def test_a_view_that_a_live_run_begins_to_tell_is_offered_and_stays(tmp_path):
    path, (writer,) = begin(tmp_path)
    write(writer, [0])
    at = looked(path)
    live = reads(at(is_live=True), path)
    assert views(live) == ()
    rows = {"step": [1], "layer": [0], "scale_high": [4.0]}
    writer.append(codec.encode(Table.LAYERS, rows))
    live = reads(at(is_live=True), path)
    assert views(live) == ("fp16",)
    write(writer, range(2, 9000))  # more rows than a quick look reads
    live = reads(at(is_live=True), path)
    assert views(live) == ("fp16",)


def views(live):
    filled = live.layers.columns_with_values(live, VIEW_COLUMNS, is_live=True)
    return views_with(filled)


def reads(look, path):
    """The look, with the rows of its log."""
    look.last_rows = store.open_run(path).last_rows
    return look
