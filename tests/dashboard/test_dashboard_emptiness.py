"""Whatever a run lacks, each page says what it is and what to do, and never fails."""

from __future__ import annotations

import json
import os
import time

import pytest
import streamlit as st
from page_driver import needs_components
from streamlit.testing.v1 import AppTest
from written_runs import event_columns, fresh_id, step_columns, write_run

from ampwatch import codec, store
from ampwatch.diagnosis.value_text import bytes_text
from ampwatch.rows import Table

PAGES = (
    "overview_page",
    "layers_page",
    "findings_page",
    "memory_page",
    "settings_page",
    "timeline_page",
)


def write_rows(folder, name, tables, **info):
    path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name, **info))
    writer = store.RankWriter(path, 0)
    for table, columns in tables:
        writer.append(codec.encode(table, columns))
    writer.close()
    return path


def nothing_at_all(folder):
    return write_rows(folder, "nothing", [])


def only_started(folder):
    events = event_columns([(0, "started", {})], time.time_ns())
    return write_rows(folder, "started", [(Table.EVENTS, events)])


def without_scale_or_norm(folder):
    return write_rows(folder, "bare", [(Table.STEPS, {"step": [0, 1, 2], "loss": [3.0, 2.0, 1.0]})])


def without_loss(folder):
    columns = {key: value for key, value in step_columns(50, 5, 10**18).items() if key != "loss"}
    return write_rows(folder, "no-loss", [(Table.STEPS, columns)])


def of_one_step(folder):
    return write_rows(folder, "one", [(Table.STEPS, {"step": [7], "loss": [1.0], "scale": [4.0]})])


def never_finite(folder):
    bad = [float("nan")] * 30
    return write_rows(folder, "nan", [(Table.STEPS, {"step": list(range(30)), "loss": bad})])


def torn(folder):
    path = write_run(folder, "torn", skipped=20)
    for name in ("index", "steps.arrows"):
        file = path / "rank-0" / name
        file.write_bytes(file.read_bytes()[:-37])
    return path


def with_odd_layers(folder):
    layers = {
        "step": [0, 0, 5], "layer": [0, 1, 0], "grad_norm": [1.0, float("inf"), 0.0],
        "scale_low": [None, 8.0, 16.0], "scale_high": [1024.0, 2.0, 4.0],
    }  # fmt: skip
    facts = {"step": [0, 0], "layer": [0, 1], "name": ["", "<b>x</b>.y"], "order": [0, None]}
    steps = step_columns(6, 0, 10**18)
    tables = [(Table.LAYER_INFO, facts), (Table.STEPS, steps), (Table.LAYERS, layers)]
    return write_rows(folder, "odd", tables)


def with_odd_events(folder):
    columns = {
        "step": [0, None, 5], "time_ns": [1, 2, 3], "kind": ["overflow", "overflow", "unheard-of"],
        "detail": ["{", json.dumps({"layer": "<script>", "direction": "backward"}), None],
    }  # fmt: skip
    tables = [(Table.STEPS, step_columns(5, 20, 10**18)), (Table.EVENTS, columns)]
    return write_rows(folder, "events", tables)


CASES = (
    nothing_at_all, only_started, without_scale_or_norm, without_loss, of_one_step, never_finite,
    torn, with_odd_layers, with_odd_events,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", str(tmp_path))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    st.cache_resource.clear()
    return tmp_path


def opened(page: str, path) -> AppTest:
    def script(page, path):
        import importlib

        importlib.import_module(page).show(path)

    return AppTest.from_function(
        script, default_timeout=60, kwargs={"page": page, "path": str(path)}
    ).run()


@needs_components
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("made", CASES, ids=[case.__name__ for case in CASES])
def test_no_page_fails_on_any_run(folder, made, page):
    app = opened(page, made(folder))
    assert not app.exception
    said = " ".join(element.proto.body for element in app.get("html"))
    assert "This part of the page failed" not in said
    assert "<script>" not in said
    assert "<b>x</b>" not in said


def test_a_run_without_layers_says_how_to_have_them(folder):
    app = opened("layers_page", write_run(folder, "plain"))
    assert "ampwatch.attach(scaler, model)" in app.get("html")[-1].proto.body


def test_an_imported_log_is_told_that_it_holds_no_layers_and_why(folder):
    app = opened("layers_page", write_run(folder, "apex", source="apex"))
    said = app.get("html")[-1].proto.body
    assert "imported from another trainer&#x27;s log (apex)" in said
    assert "sampled step" not in said
    assert not app.get("button_group")


def test_a_run_whose_devices_were_not_sampled_says_so(folder):
    app = opened("memory_page", write_run(folder, "plain"))
    assert "No device was sampled yet" in app.get("html")[-1].proto.body


def test_a_folder_that_may_not_be_read_is_said(folder):
    import run_list

    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    folder.chmod(0)
    try:
        assert "cannot be read" in run_list.current_list().problems[0]
    finally:
        folder.chmod(0o755)


def test_a_run_that_is_deleted_while_it_is_shown_is_said(folder):
    import shutil

    from open_runs import OpenRuns

    from ampwatch.errors import AmpwatchError

    path = write_run(folder, "gone")
    now = iter(range(0, 1000, 10))
    opened = OpenRuns(clock=lambda: next(now))
    opened.snapshot_of(str(path))
    shutil.rmtree(path)
    with pytest.raises(AmpwatchError, match="is gone"):
        opened.snapshot_of(str(path))


@needs_components
def test_each_rank_has_its_devices(folder):
    path = store.create_run(folder, store.RunInfo(id=fresh_id("two"), name="two", world_size=2))
    for rank in (0, 1):
        writer = store.RankWriter(path, rank)
        writer.append(codec.encode(Table.STEPS, step_columns(30, 0, 10**18)))
        writer.append(
            codec.encode(Table.DEVICES, {
                "time_ns": [10**18, 2 * 10**18], "device": ["cuda:0"] * 2, "name": ["Card"] * 2,
                "peak_bytes": [2**30, (rank + 2) * 2**30], "total_bytes": [16 * 2**30] * 2,
            })
        )  # fmt: skip
        writer.close()
    said = " ".join(element.proto.body for element in opened("memory_page", path).get("html"))
    assert "rank 0 · Card (cuda:0)" in said
    assert "tensors held at most 3.2 GB of 17.2 GB, 19 %." in said
    assert not opened("overview_page", path).exception


@needs_components
@pytest.mark.parametrize(
    ("used", "said"),
    [(394_264_576, "Memory, MB"), (3 * 10**9, "Memory, GB"), (640_000, "Memory, kB")],
)
def test_memory_is_drawn_in_the_unit_in_which_it_is_written(folder, used, said):
    """The peak above the chart, its axis and the report of the run: one number, one unit."""
    import memory_page
    import open_runs

    path = store.create_run(folder, store.RunInfo(id=fresh_id(str(used)), name=f"of {used}"))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, step_columns(30, 0, 10**18)))
    writer.append(
        codec.encode(Table.DEVICES, {
            "time_ns": [10**18, 2 * 10**18], "device": ["cuda:0"] * 2, "name": ["Card"] * 2,
            "used_bytes": [used // 2, used],
        })
    )  # fmt: skip
    writer.close()
    look = open_runs.snapshot(str(path))
    (device,) = memory_page.sampled_devices(look)
    written = bytes_text(used)
    assert f"all programs held at most {written}." in memory_page.figures_html(look, device)
    panel = next(memory_page._device_panels(look, device, 0, several=False))
    assert panel.title[0][0] == said == f"Memory, {panel.unit}"
    drawn = float(device.curves.columns["used_bytes"].max())
    assert written == f"{drawn:.{0 if drawn >= 100 else 1}f} {panel.unit}"
