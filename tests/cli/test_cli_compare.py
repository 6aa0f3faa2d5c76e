"""`ampwatch compare` on real runs and on logs: settings, figures, and the rate that runs imply."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_cli_together import train
from written_runs import step_columns, write_run

from ampwatch import cli, codec, store
from ampwatch.diagnosis.value_text import two_digits
from ampwatch.report.comparison_text import letter
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
    assert "learning rate 16 4 0.1" in out.split("Settings that differ")[1]
    body = json.loads(compare(capsys, *runs, "--json")[1])
    advice = body["learning_rate"]
    assert 0.1 <= advice["low"] < advice["high"] < 4.0  # of the limit, which is below what failed
    assert 0.1 <= advice["recommended"] <= advice["high"]  # to be safe it may lie below all of it
    assert (
        f"{two_digits(advice['low'])} to {two_digits(advice['high'])}, estimated, not tested" in out
    )
    assert body["figures"]["verdict"] == ["failing", "failing", "healthy"]


def test_compare_names_the_step_at_which_the_report_says_that_training_broke_down(capsys, tmp_path):
    runs = [train(tmp_path, rate) for rate in (16.0, 0.1)]
    _, out, _ = compare(capsys, *runs)
    cli.run(["report", str(runs[0])])
    report = " ".join(capsys.readouterr().out.split())
    step = re.search(r"Training broke down at step (\d+)", report)[1]
    assert f"since step {step}" in out
    assert "weighs that run and earlier ones like it" in out


def test_explain_with_a_run_prints_what_each_sign_adds_for_the_rate(capsys, tmp_path):
    run = train(tmp_path, 16.0)
    assert cli.run(["explain", "AMP301", str(run)]) == 0
    page, _, told = capsys.readouterr().out.partition("What each sign adds for the learning rate")
    rows = [line for line in told.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(rows) > 2
    assert any(": +" in line for line in rows)
    assert f"{len(rows)} signals were weighed" in " ".join(page.split())


def test_explain_of_one_finding_on_the_rate_shows_what_another_weighed(capsys, tmp_path):
    run = train(tmp_path, 16.0)
    assert cli.run(["explain", "AMP302", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"In {Path(run).name}, where it is AMP301" in out
    assert "What each sign adds for the learning rate" in out


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
    assert "The same in all: config.seed" in out
    assert "config.seed" not in out.partition("The same in all")[0]
    assert "100 steps in common, the last 99" in out


@pytest.mark.parametrize("rates", [(1.0, 0.1), (0.1, 0.1)])
def test_runs_of_two_optimizers_are_not_held_together_whatever_their_rates(capsys, tmp_path, rates):
    for name, lr in zip(("SGD", "Adam"), rates, strict=True):
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


def test_one_run_alone_is_refused(capsys, tmp_path):
    code, out, err = compare(capsys, write_run(tmp_path))
    assert (code, out) == (2, "")
    assert "compare takes two runs or more" in err


@pytest.mark.parametrize("count", [6, 30])
def test_of_many_runs_each_is_shown_with_its_letters_and_its_setting(capsys, tmp_path, count):
    runs = [
        write_run(tmp_path, f"run-{n}", accepted=5, config={"at": 7000 + n}) for n in range(count)
    ]
    code, out, _ = compare(capsys, *runs)
    assert code == 0
    heads = out.partition("Where they part")[0]
    for number in range(count):
        assert f"{letter(number)} run-{number} " in heads
        assert f" {7000 + number} " in out
    others = ", ".join(letter(number) for number in range(1, count))
    assert f"{others}: identical to the bit." in out


def test_letters_go_on_after_z():
    numbers = (0, 25, 26, 51, 52, 701, 702)
    assert [letter(n) for n in numbers] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_the_others_are_compared_with_the_baseline(capsys, tmp_path):
    runs = [write_run(tmp_path, name, accepted=n) for name, n in (("one", 10), ("two", 20))]
    _, out, _ = compare(capsys, *runs, "--baseline", "two")
    assert "A two B one" in out
    code, _, err = compare(capsys, *runs, "--baseline", "three")
    assert code == 2
    assert "--baseline three is none of the runs" in err


def test_best_and_last_values_are_told_with_their_step_and_the_difference(capsys, tmp_path):
    for name, scores in (("one", (0.2, 0.8, 0.6)), ("two", (0.2, 0.4, 0.3))):
        path = write_run(tmp_path, name)
        writer = store.RankWriter(path, 0)
        rows = {"step": [10, 20, 30], "name": ["val/acc"] * 3, "value": list(scores)}
        odd = {"step": [10, 20], "name": ["spread"] * 2, "value": [3.0, float("nan")]}
        writer.append(codec.encode(Table.EXTRAS, rows))
        writer.append(codec.encode(Table.EXTRAS, odd))
        writer.close()
    out = compare(capsys, tmp_path / "one", tmp_path / "two")[1]
    assert "val/acc, best 0.8 at step 20 0.4 at step 20 (-50 %)" in out
    assert "val/acc, last 0.6 0.3 (-50 %)" in out
    assert "spread, lowest 3 at step 10" in out
    assert "spread, last not finite not finite" in out
    best = json.loads(compare(capsys, tmp_path / "one", tmp_path / "two", "--json")[1])["values"]
    assert best["val/acc"][0]["highest"] == {"value": 0.8, "step": 20}
    assert best["val/acc"][1]["last"] == 0.3


def test_the_file_draws_the_sweep_of_three_runs_and_escapes_their_names(capsys, tmp_path):
    runs = [
        write_run(tmp_path, f"<i>{n}</i>", config={"depth": n, "width": n // 4}) for n in (2, 4, 8)
    ]
    out = tmp_path / "out.html"
    assert compare(capsys, *runs, "--html", out)[0] == 0
    page = out.read_text("utf-8")
    assert page.count('class="aw-sweep-mark') == 3
    assert page.count('class="aw-parallel-line"') == 3
    assert "None of 3 runs failed: they show no upper limit." in page
    assert "&lt;i&gt;4&lt;/i&gt;: config.depth 4" in page
    assert "<i>4</i>:" not in page


def test_values_beyond_the_most_that_are_shown_are_counted(capsys, tmp_path):
    path = write_run(tmp_path, "one")
    names = [f"v{n}" for n in range(40)]
    writer = store.RankWriter(path, 0)
    writer.append(
        codec.encode(Table.EXTRAS, {"step": [0] * 40, "name": names, "value": [1.0] * 40})
    )
    writer.close()
    out = compare(capsys, path, write_run(tmp_path, "two"))[1]
    assert "v11, last 1" in out
    assert "v12, last" not in out
    assert "28 values more that were logged are in --json." in out
