"""A run's settings as names and texts, and what changed since the script's run before it."""

from __future__ import annotations

import pytest
from written_runs import event_columns, fresh_id, step_columns

from ampwatch import codec, store
from ampwatch.report.settings import (
    Change,
    changes,
    name_stem,
    run_before,
    settings_of,
    whole_settings,
)
from ampwatch.rows import Table

GROUP = {"parameters": 2, "lr": 0.1, "betas": [0.9, 0.95]}
OPTIMIZER = {"optimizer": 0, "class": "AdamW", "parameters": 4, "groups": [GROUP, GROUP]}


@pytest.fixture
def run(tmp_path):
    """A run of two ranks, each with two cards' samples; the second ends in another precision."""
    info = store.RunInfo(
        id=fresh_id("x"), name="x", world_size=2, config={"vocab": "v" * 1000, "model": {"dim": 8}},
        origin={"folder": "/here", "commit": "abc"}, environment={"CUDA_VISIBLE_DEVICES": "0"},
    )  # fmt: skip
    path = store.create_run(tmp_path, info)
    for rank in (0, 1):
        writer = store.RankWriter(path, rank)
        dtypes = [0] * 30 + [1] * 30
        steps = step_columns(60, 0, 10**18) | {"autocast_dtype": dtypes}
        writer.append(codec.encode(Table.STEPS, steps))
        events = [(0, "started", {}), (0, "optimizer", OPTIMIZER), (5, "lr-changed", {})]
        writer.append(codec.encode(Table.EVENTS, event_columns(events, 10**18)))
        cards = {
            "time_ns": [1, 2, 3], "device": ["cuda:0", "cuda:1", "cuda:0"], "name": ["H200"] * 3,
            "capability": ["9.0"] * 3, "total_bytes": [150 * 10**9] * 3,
        }  # fmt: skip
        writer.append(codec.encode(Table.DEVICES, cards))
        layers = {
            "step": [0, 0, 9], "layer": [0, 1, 1], "name": ["a", "b", "b"],
            "param_dtype": [0, 1, 0], "output_dtype": [1, 1, 1],
        }  # fmt: skip
        writer.append(codec.encode(Table.LAYER_INFO, layers))
        writer.close()
    return store.open_run(path)


def test_settings_have_dotted_names_by_section(run):
    told = whole_settings(run)
    assert told["config.model.dim"] == "8"
    assert told["code.commit"] == "abc"
    assert told["environment.CUDA_VISIBLE_DEVICES"] == "0"
    assert told["optimizer.class"] == "AdamW"
    assert told["optimizer.group.1.betas"] == "[0.9, 0.95]"
    assert told["devices"] == "4 x H200, 150 GB, compute capability 9.0"
    assert told["precision.weights"] == "float32 (2 layers)"  # as last described
    assert told["precision.outputs"] == "float16 (2 layers)"
    assert told["processes"] == "2"


def test_the_quick_form_has_the_newest_precision_and_whole_texts_else_the_same(run):
    whole, cut = whole_settings(run), settings_of(run)
    assert (whole.pop("autocast"), cut.pop("autocast")) == ("float16", "float32, float16")
    assert len(whole.pop("config.vocab")) == 1000
    assert len(cut.pop("config.vocab")) == 300
    assert whole == cut


def test_what_was_added_removed_and_changed_is_told_and_nothing_else():
    before = {"lr": "0.1", "seed": "1", "schedule": "cosine"}
    found = changes(before, {"warmup": "10", "lr": "0.3", "seed": "1"})
    assert found == (
        Change("warmup", None, "10"), Change("lr", "0.1", "0.3"), Change("schedule", "cosine", None)
    )  # fmt: skip
    assert [change.kind for change in found] == ["added", "changed", "removed"]
    assert changes(before, before) == ()


def info(name, started_ns, script="", source="ampwatch"):
    told = {"script": script} if script else {}
    return store.RunInfo(
        id=fresh_id(f"{name}{started_ns}"), name=name, started_ns=started_ns, origin=told,
        source=source,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([info("a", 10, "/t.py"), info("b", 30, "/t.py"), info("c", 50, "/t.py")], "b"),
        ([info("a", 10, "/t.py"), info("train-2", 30, "/other.py")], "a"),  # of another script
        ([info("train-20260314-150926", 10), info("eval-20260314-150926", 30)],
         "train-20260314-150926"),  # an older ampwatch told no script
        ([info("train-9", 0)], None),  # a log without times
        ([info("train-9", 10, source="apex")], None),
        ([info("train-20260315-000000", 40, "/t.py")], None),  # itself
        ([], None),
    ],
)  # fmt: skip
def test_the_last_run_of_the_same_script_is_the_one_before(others, expected):
    mine = info("train-20260315-000000", 40, "/t.py")
    assert run_before(mine, [(other.name, other) for other in others]) == expected


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("train-20260314-150926", "train"), ("train-1204", "train"), ("train-0a1b2c3d", "train"),
        ("train-20260314-150926-2", "train"), ("gpt2", "gpt2"), ("2026", "2026"), ("-7", "-7"),
        ("rate-0.03", "rate"),
    ],
)  # fmt: skip
def test_the_stem_of_a_name_is_what_its_runs_share(name, stem):
    assert name_stem(name) == stem


def test_the_report_says_what_changed_since_the_last_run_beside_it(tmp_path, capsys):
    from written_runs import write_run

    from ampwatch import cli

    long = {f"k{number}": number for number in range(9)}
    write_run(tmp_path, "train-1", age_s=9000, config={"lr": 0.1, "vocab": "v" * 99})
    write_run(tmp_path, "other-1", age_s=5000, config={"lr": 7})
    second = write_run(tmp_path, "train-2", age_s=3000, config={"lr": 0.3, **long})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert cli.run(["report", str(second), "--all"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "changed since train-1: config.lr 0.1 to 0.3, config.k0 0 added, " in said
    assert "and 6 more" in said
    third = write_run(tmp_path, "train-3", age_s=1000, config={"lr": 0.3, **long})
    assert cli.run(["report", str(third), "--all"]) == 0
    assert "changed since train-2: nothing in the settings" in " ".join(
        capsys.readouterr().out.split()
    )
    assert cli.run(["report", str(tmp_path / "train-1")]) == 0
    assert "changed" not in capsys.readouterr().out
