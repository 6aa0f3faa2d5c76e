"""`ampwatch compare` on real runs and on logs: settings, figures, and the rate that runs imply."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli_together import train
from written_runs import step_columns, write_run

from ampwatch import cli, codec, store
from ampwatch.rows import Table

SAMPLES = Path(__file__).parents[1] / "importers" / "samples"


def compare(capsys, *words):
    code = cli.run(["compare", *map(str, words)])
    shown = capsys.readouterr()
    return code, " ".join(shown.out.split()), shown.err


def test_runs_that_differ_in_their_rate_imply_where_it_must_end(capsys, tmp_path):
    runs = [train(tmp_path, rate) for rate in (16.0, 4.0, 0.1)]
    code, out, err = compare(capsys, *runs)
    assert (code, err) == (0, "")
    assert "optimizer.lr 16 4 0.1" in out
    body = json.loads(compare(capsys, *runs, "--json")[1])
    advice = body["learning_rate"]
    assert 0.1 <= advice["low"] < advice["high"] < 4.0  # of the limit, which is below what failed
    assert 0.1 <= advice["recommended"] <= advice["high"]  # to be safe it may lie below all of it
    assert f"between {advice['low']:.2g} and {advice['high']:.2g}" in out
    assert body["figures"]["verdict"] == ["failing", "failing", "healthy"]


def test_explain_with_a_run_prints_what_each_sign_adds_for_the_rate(capsys, tmp_path):
    run = train(tmp_path, 16.0)
    assert cli.run(["explain", "AMP301", str(run)]) == 0
    page, _, told = capsys.readouterr().out.partition("What each sign adds for the rate")
    rows = [line for line in told.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(rows) > 2
    assert any(": +" in line for line in rows)
    assert f"{len(rows)} signs were weighed" in " ".join(page.split())


def test_explain_of_one_finding_on_the_rate_shows_what_another_weighed(capsys, tmp_path):
    run = train(tmp_path, 16.0)
    assert cli.run(["explain", "AMP302", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"In {Path(run).name}, where it is AMP301" in out
    assert "What each sign adds for the rate" in out


def test_runs_of_one_setting_have_nothing_to_tell(capsys, tmp_path):
    one, other = write_run(tmp_path, "one"), write_run(tmp_path, "other")
    code, out, _ = compare(capsys, one, other)
    assert code == 0
    assert "Loss: the same to the last bit. Scale: the same. Skips: the same." in out
    assert "None in the records." in out
    assert "Learning rate" not in out


def test_settings_that_differ_are_named_with_both_values(capsys, tmp_path):
    one = write_run(tmp_path, "one", config={"model": {"depth": 4}, "seed": 1})
    other = write_run(tmp_path, "other", config={"model": {"depth": 8}, "seed": 1}, skipped=12)
    _, out, _ = compare(capsys, one, other)
    assert "config.model.depth 4 8" in out
    assert "config.seed" not in out
    assert "100 steps in common, the last 99" in out


def test_rates_of_two_optimizers_are_not_held_together(capsys, tmp_path):
    for name, lr in (("SGD", 1.0), ("Adam", 0.1)):
        path = write_run(tmp_path, name, skipped=30)
        writer = store.RankWriter(path, 0)
        detail = json.dumps({"optimizer": 0, "class": name, "groups": [{"lr": lr}]})
        event = {"step": [0], "time_ns": [0], "kind": ["optimizer"], "detail": [detail]}
        writer.append(codec.encode(Table.EVENTS, event))
        rows = {**step_columns(5, 0, 0, first=130), "lr": np.full(5, lr)}
        writer.append(codec.encode(Table.STEPS, rows))
        writer.close()
    _, out, _ = compare(capsys, tmp_path / "SGD", tmp_path / "Adam")
    assert "Their optimizers differ" in out
    assert cli.run(["report", str(tmp_path / "SGD"), str(tmp_path / "Adam")]) == 2
    assert "their optimizers differ (Adam and SGD)" in " ".join(capsys.readouterr().err.split())


def test_rates_that_only_the_logs_lines_tell_are_a_setting_that_differs(capsys, tmp_path):
    for rate in ("0.1", "0.3"):
        rows = "".join(f"{step},{5 - step / 50},{rate}\n" for step in range(60))
        (tmp_path / f"rate-{rate}.csv").write_text("step,loss,lr\n" + rows)
    _, out, _ = compare(capsys, tmp_path / "rate-0.1.csv", tmp_path / "rate-0.3.csv")
    assert "A rate-0.1 B rate-0.3" in out
    assert "learning rate 0.1 0.3" in out.split("Settings that differ")[1]


def test_logs_of_other_trainers_are_compared_where_both_tell_it(capsys):
    collapse, sawtooth = (SAMPLES / f"apex_{name}.txt" for name in ("collapse", "sawtooth"))
    code, out, _ = compare(capsys, collapse, sawtooth)
    assert code == 0
    assert "A apex_collapse B apex_sawtooth" in out
    assert "The steps of apex_collapse, apex_sawtooth are counted" in out
    assert "Loss: not recorded by both. Scale: the same. Skips: the same." in out


@pytest.mark.parametrize("count", [1, 27])
def test_one_run_and_too_many_are_refused(capsys, tmp_path, count):
    path = write_run(tmp_path)
    code, out, err = compare(capsys, *[path] * count)
    assert (code, out) == (2, "")
    assert "compare takes 2 to 26 runs" in err
