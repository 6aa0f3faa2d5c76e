"""A run against its baseline: what is new, what is worse, and losses whose truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from written_runs import step_columns, write_run

from ampwatch import cli, codec, store
from ampwatch.diagnosis import Severity
from ampwatch.errors import NotARunError
from ampwatch.follow import diagnose
from ampwatch.report.health_check import health_check, open_baseline
from ampwatch.rows import Table
from ampwatch.store import edit_tags, open_run

NOISE = 0.05
STEPS = 300


def noisy_run(folder, name, *, above=0.0, seed=0, steps=STEPS, noise=NOISE):
    """A run whose loss falls along one curve, so much above it at its end, with normal noise."""
    path = write_run(folder, name, accepted=0, ended=False)
    at = np.arange(steps)
    loss = 1 + 2 * np.exp(-at / 60) + above * at / STEPS
    loss += np.random.default_rng(seed).normal(0, noise, steps)
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, step_columns(steps, 0, 10**18) | {"loss": loss}))
    writer.append(codec.encode(Table.EVENTS, {"step": [steps], "time_ns": [2 * 10**18],
                                              "kind": ["ended"], "detail": ["{}"]}))  # fmt: skip
    writer.close()
    return open_run(path)


def held_against(baseline, run):
    return health_check(run, diagnose(run), baseline)


@pytest.mark.parametrize("seed", range(1, 21))
def test_another_seed_is_as_good(tmp_path, seed):
    baseline, run = noisy_run(tmp_path, "good"), noisy_run(tmp_path, "other", seed=seed)
    check = held_against(baseline, run)
    assert check.is_healthy, check.baseline_text
    assert check.baseline_text.startswith("As good as good. The loss at step 299 is ")


@pytest.mark.parametrize("seed", range(1, 21))
def test_a_loss_six_times_its_noise_higher_at_the_end_is_not_as_good(tmp_path, seed):
    run = noisy_run(tmp_path, "worse", above=6 * NOISE, seed=seed)
    check = held_against(noisy_run(tmp_path, "good"), run)
    assert not check.is_healthy
    assert "higher by more than noise" in check.baseline_text
    assert held_against(run, noisy_run(tmp_path, "better", seed=seed + 1)).is_healthy


def test_the_losses_are_compared_where_both_runs_have_steps(tmp_path):
    baseline = noisy_run(tmp_path, "good", noise=0.001)
    check = held_against(baseline, noisy_run(tmp_path, "short", steps=100, noise=0.001))
    assert check.is_healthy, check.baseline_text
    usual = 1 + 2 * np.exp(-np.arange(90, 100) / 60)
    assert f"at step 99 is {np.median(usual):.2f}"[:-1] in check.baseline_text


def test_a_finding_of_the_baseline_is_known_and_a_new_one_is_not(tmp_path):
    healthy = open_run(write_run(tmp_path, "healthy"))
    failing = open_run(write_run(tmp_path, "failing", skipped=30))
    again = open_run(write_run(tmp_path, "again", skipped=30))
    assert held_against(failing, again).findings == ()
    new = held_against(healthy, failing)
    grave = {one.code for one in diagnose(failing).findings if one.severity is Severity.ERROR}
    assert grave
    assert grave <= {one.code for one in new.findings}
    assert all(code in new.baseline_text for code in grave)


def test_a_baseline_is_found_by_name_by_folder_and_the_newest_one_by_its_tag(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    monkeypatch.setenv("AMPWATCH_DIR", str(runs))
    old = write_run(runs, "old", age_s=7200)
    new = write_run(runs, "new", age_s=3600)
    run = open_run(write_run(runs, "run", age_s=60))
    for path in (old, new, run.path):
        edit_tags(path, add=["good"])
    assert open_baseline("good", apart_from=run).path.name == "new"
    assert open_baseline("old", apart_from=run).path.name == "old"
    assert open_baseline(old, apart_from=run).path == old
    with pytest.raises(NotARunError, match=r"No other run has the tag best: `ampwatch tag RUN"):
        open_baseline("best", apart_from=run)


def test_the_command_compares_by_tag_and_fails_only_on_what_is_worse(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPWATCH_DIR", str(tmp_path))
    good, worse = noisy_run(tmp_path, "good"), noisy_run(tmp_path, "worse", above=0.5, seed=1)
    edit_tags(good.path, add=["best"])
    words = ["report", "worse", "--baseline", "best"]
    assert cli.run(words) == 0
    assert "Not as good as good." in " ".join(capsys.readouterr().out.split())
    assert cli.run([*words, "--fail-on", "error"]) == 1
    assert cli.run(["report", "good", "--baseline", "worse", "--fail-on", "warning"]) == 0
    capsys.readouterr()
    assert cli.run([*words, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["baseline"]["as_good"] is False
    assert body["run"]["id"] == worse.info.id
    write_run(tmp_path, "failing", skipped=30)
    write_run(tmp_path, "again", skipped=30)
    assert cli.run(["report", "again", "--baseline", "failing", "--fail-on", "error"]) == 0
    assert cli.run(["report", "again", "--fail-on", "error"]) == 1


def test_a_log_is_a_baseline_too(tmp_path, capsys):
    for name, end in (("good", 1.0), ("bad", 2.0)):
        rng = np.random.default_rng(1)
        lines = [f"step {s} loss {end + 2 * np.exp(-s / 40) + rng.normal(0, 0.02):.4f} lr 0.001"
                 for s in range(200)]  # fmt: skip
        (tmp_path / f"{name}.log").write_text("\n".join(lines))
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    assert cli.run(["report", str(bad), "--baseline", str(good), "--fail-on", "error"]) == 1
    assert cli.run(["report", str(good), "--baseline", str(bad), "--fail-on", "error"]) == 0
