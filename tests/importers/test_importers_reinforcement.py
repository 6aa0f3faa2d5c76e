"""Trainings by reinforcement: which of many figures is the loss, the norm, the learning rate."""

from __future__ import annotations

import pytest

from ampwatch import open_run
from ampwatch.importers import import_log
from ampwatch.importers.tables.column_names import recognised
from ampwatch.rows import Table


def named(names: str) -> dict[str, str]:
    """Which columns of ours a table's names are, without the metrics that keep their own."""
    found = recognised(names.split("|"), {}, "table.csv")
    return {ours: theirs for ours, theirs in found.items() if ours != theirs}


@pytest.mark.parametrize(("names", "expected"), [
    # verl's tags; the critic's stand first (trainer/ppo/ray_trainer.py, b178a3cd5)
    (("step|critic/vf_loss|critic/grad_norm|critic/lr|actor/kl_loss|actor/pg_loss|actor/grad_norm|"
     "actor/lr|training/global_step|critic/rewards/mean"),
     {"loss": "actor/pg_loss", "grad_norm": "actor/grad_norm", "lr": "actor/lr"}),
    ("training/global_step|actor/entropy|actor/pg_loss|actor/loss|actor/lr|val/loss",
     {"step": "training/global_step", "loss": "actor/loss", "lr": "actor/lr"}),
    # OpenRLHF's (utils/logging_utils.py, 3c3be623)
    (("train/global_step|train/critic_loss|train/critic_lr|train/policy_loss|train/actor_lr|"
     "train/actor_grad_norm|train/reward"),
     {"step": "train/global_step", "loss": "train/policy_loss", "lr": "train/actor_lr",
      "grad_norm": "train/actor_grad_norm"}),
    # slime's (backends/megatron_utils/model.py, 624b824a8)
    (("train/step|train/loss|train/pg_loss|train/grad_norm|train/lr-pg_0|train/lr-pg_1|"
     "train/critic-value_loss|train/critic-grad_norm|train/critic-lr-pg_0"),
     {"step": "train/step", "loss": "train/loss", "grad_norm": "train/grad_norm",
      "lr": "train/lr-pg_0"}),
    # TRL's PPO (experimental/ppo at f2cd57710; trainer/ppo_trainer.py until 2024)
    ("step|objective/kl|objective/scores|loss/policy_avg|loss/value_avg|val/ratio|lr",
     {"loss": "loss/policy_avg"}),
    ("step|ppo/loss/value|ppo/loss/policy|ppo/val/error|ppo/learning_rate|env/reward_mean",
     {"loss": "ppo/loss/policy", "lr": "ppo/learning_rate"}),
    # torchtitan's, with and without reinforcement (b5bcd76c6)
    ("step|loss/mean|loss/ratio_mean|trainer/grad_norm/mean|trainer/lr|validation/reward/_mean",
     {"loss": "loss/mean", "grad_norm": "trainer/grad_norm/mean", "lr": "trainer/lr"}),
    (("step|loss_metrics/global_avg_loss|loss_metrics/global_max_loss|grad_norm|lr|"
     "validation_metrics/loss|throughput(tps)"), {"loss": "loss_metrics/global_avg_loss"}),
    # Megatron's (training/training.py, d98e8a64dd)
    (("step|learning-rate|lm loss|lm loss vs samples|loss-scale|loss-scale vs samples|grad-norm|"
     "lm loss validation|rl/kl_term"),
     {"lr": "learning-rate", "loss": "lm loss", "scale_after": "loss-scale",
      "grad_norm": "grad-norm"}),
    # a critic alone
    ("step|critic_loss|critic_lr", {"loss": "critic_loss"}),
])  # fmt: skip
def test_the_policys_figures_are_the_runs_and_a_critics_are_not(names, expected):
    assert named(names) == expected


def test_what_is_written_against_the_samples_is_no_value_of_a_step():
    names = recognised(["step", "lm loss", "num-zeros", "num-zeros vs samples"], {}, "t.csv")
    assert set(names) == {"step", "loss", "num-zeros"}


def test_figures_that_rules_read_are_kept_before_those_that_are_only_drawn():
    many = [f"rewards/{n}/std" for n in range(200)]
    names = recognised(["step", "loss", *many, "critic/rewards/mean"], {}, "t.csv")
    assert "critic/rewards/mean" in names
    assert len(names) < len(many)


@pytest.mark.parametrize(("printed", "rate"), [
    ("0.000", None), ("0.000000", None), ("0.0", 0.0), ("0", 0.0), ("0.000e+00", 0.0),
    ("0.001", 0.001), ("1e-06", 1e-06),
])  # fmt: skip
def test_a_learning_rate_that_was_rounded_to_zero_is_not_known(printed, rate, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"step:{n} - loss:{1 / n:.4f} - lr:{printed}\n" for n in range(1, 9)))
    run = open_run(import_log(log, tmp_path / "runs"))
    assert run.read(Table.STEPS, columns=("lr",)).column("lr").to_pylist() == [rate] * 8


def test_a_number_is_read_out_of_its_type_and_a_name_with_its_count(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(
        f"step:{n} - actor/pg_loss:np.float64({1 / n:.4f}) - num_turns/max:np.int32(3) - "
        f"val-core/gsm8k/acc/mean@1:0.{n}\n" for n in range(1, 9)
    ))  # fmt: skip
    run = open_run(import_log(log, tmp_path / "runs"))
    row = run.steps.to_pylist()[3]
    assert (row["loss"], row["num_turns/max"], row["val-core/gsm8k/acc/mean@1"]) == (0.25, 3, 0.4)


def test_what_stands_at_the_end_of_a_long_line_is_read_as_well(tmp_path):
    """verl with `rollout_corr` prints some 150 figures; TRL two for each function of a reward."""
    many = {f"rollout_corr/rollout_rs_{n}_seq_masked_fraction": 0.0123456789 for n in range(120)}
    told = {**many, "critic/rewards/mean": 0.5}
    verl, trl = tmp_path / "verl.log", tmp_path / "trl.log"
    verl.write_text("".join(
        f"step:{n} - actor/pg_loss:0.1 - {' - '.join(f'{k}:{v}' for k, v in told.items())}\n"
        for n in range(1, 5)
    ))  # fmt: skip
    grpo = {f"rewards/judge_of_style_number_{n}/mean": 0.25 for n in range(60)} | {"reward": 0.5}
    trl.write_text("".join(
        f"{({'loss': 0.1 / n, 'learning_rate': 1e-6} | grpo | {'epoch': n / 9})}\n"
        for n in range(1, 5)
    ))  # fmt: skip
    for log, name in ((verl, "critic/rewards/mean"), (trl, "reward")):
        run = open_run(import_log(log, tmp_path / "runs"))
        assert run.steps.column(name).to_pylist() == [0.5] * 4
