"""Writes samples of trainings by reinforcement, as their frameworks print them.

    python tests/importers/make_reinforcement_samples.py

The lines are made as the framework's own code makes them; each sample names the file and commit it
was read from. The numbers are those of a simulated training, and the truth comes from there.
"""

# ruff: noqa: E501  (the frameworks' lines are as long as they are)

from __future__ import annotations

import math
import pprint
import random
from collections.abc import Callable, Mapping

import numpy as np
from importers.make_literal_samples import truth, write

SAMPLES = {}
STEPS = 60


def sample(make):
    SAMPLES[make.__name__] = make
    return make


class Policy:
    """A policy that learns from its reward, or loses it again from a step on."""

    def __init__(self, seed: int, lost_from: int | None = None) -> None:
        self.noise = random.Random(seed)
        self.lost_from = lost_from

    def at(self, step: int) -> dict[str, float]:
        gauss = self.noise.gauss
        learnt = 1 / (1 + math.exp(-(step - 25) / 8))
        reward = 0.1 + 0.6 * learnt
        if self.lost_from is not None and step >= self.lost_from:
            reward *= math.exp(-(step - self.lost_from) / 3)
        return {
            "loss": gauss(0.005, 0.02),
            "value_loss": 0.02 + 0.3 * learnt + abs(gauss(0, 0.01)),
            "reward": min(max(reward + gauss(0, 0.02), 0.0), 1.0),
            "entropy": 0.6 - 0.4 * learnt + gauss(0, 0.01),
            "kl": abs(gauss(2e-4, 5e-5)),
            "reference_kl": 0.03 * learnt + abs(gauss(0, 1e-3)),
            "clipped": abs(gauss(1e-3, 2e-4)),
            "gap": abs(gauss(3e-3, 3e-4)),
            "grad_norm": abs(gauss(0.3, 0.03)),
            "lr": 1e-6 * min(1.0, step / 10),
            "length": 300 + 200 * learnt + gauss(0, 10),
        }


def course(seed: int, lost_from: int | None = None, steps: int = STEPS) -> list[dict[str, float]]:
    policy = Policy(seed, lost_from)
    return [policy.at(step) for step in range(1, steps + 1)]


def truths(
    rows: list[dict[str, float]], names: Mapping[str, str], form: Callable[[float], float] = float
) -> dict[str, list[float]]:
    """What must be read: for a column of ours or a metric's name, the numbers behind it."""
    return {ours: [form(row[theirs]) for row in rows] for ours, theirs in names.items()}


# --- verl ----------------------------------------------------------------------------------------


def verl_line(step: int, data: Mapping[str, float], form: Callable[[float], str]) -> str:
    """`concat_dict_to_str` of verl/utils/logger/aggregate_logger.py at b178a3cd5."""
    output = [f"step:{step}"]
    output += [f"{name}:{form(value)}" for name, value in data.items()]
    return f"(TaskRunner pid=3165) {' - '.join(output)}\n"


def verl_data(row: Mapping[str, float], step: int, of_critic: Mapping[str, float]) -> dict:
    """The order of `RayPPOTrainer.fit` (verl/trainer/ppo/ray_trainer.py): the critic comes first."""
    mean = np.float64  # `reduce_metrics` of verl/utils/metric gives means of numpy
    return {
        "global_seqlen/min": 69484, "global_seqlen/max": 69484, "global_seqlen/mean": 69484.0,
        "actor/entropy": row["entropy"],
        "training/rollout_probs_diff_valid": 1,
        "training/rollout_probs_diff_max": row["gap"] * 40,
        "training/rollout_probs_diff_mean": row["gap"],
        "training/rollout_actor_probs_pearson_corr": 0.999,
        **{name: mean(value) for name, value in of_critic.items()},
        "actor/pg_loss": mean(row["loss"]), "actor/pg_clipfrac": mean(row["clipped"]),
        "actor/ppo_kl": mean(row["kl"]), "actor/pg_clipfrac_lower": mean(0.0),
        "actor/grad_norm": mean(row["grad_norm"]), "perf/mfu/actor": mean(0.0),
        "perf/max_memory_allocated_gb": mean(20.76), "actor/lr": mean(row["lr"]),
        "training/global_step": step, "training/epoch": 0,
        "critic/score/mean": row["reward"], "critic/score/max": 1.0, "critic/score/min": 0.0,
        "critic/rewards/mean": row["reward"], "critic/rewards/max": 1.0, "critic/rewards/min": 0.0,
        "critic/advantages/mean": -1.7e-08, "critic/advantages/max": 2.2,
        "critic/returns/mean": row["reward"] * 0.9, "critic/returns/max": 1.0,
        "response_length/mean": row["length"], "response_length/max": 1024.0,
        "response_length/min": 53.0, "response_length/clip_ratio": 0.08,
        "prompt_length/mean": 104.15, "timing_s/gen": 4.22, "timing_s/step": 56.9,
        "timing_per_token_ms/gen": 0.098, "perf/total_num_tokens": 69484, "perf/throughput": 1220.4,
    }  # fmt: skip


_VERL = {
    "loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "actor/entropy": "entropy",
    "critic/rewards/mean": "reward", "actor/ppo_kl": "kl", "actor/pg_clipfrac": "clipped",
    "training/rollout_probs_diff_mean": "gap", "response_length/mean": "length",
}  # fmt: skip


@sample
def verl_ppo_with_its_critic():
    """numpy 2 prints its scalars as `np.float64(0.1)`; validation stands on the step's line."""
    rows = course(1)
    text = ""
    for step, row in enumerate(rows, 1):
        critic = {
            "critic/vf_loss": row["value_loss"], "critic/vf_clipfrac": 0.0,
            "critic/vpred_mean": 0.38, "critic/grad_norm": 40.0, "critic/lr": 1e-5,
        }  # fmt: skip
        data = verl_data(row, step, critic)
        if step % 20 == 0:
            data |= {"val-core/openai/gsm8k/acc/mean@1": row["reward"]}
        text += verl_line(step, data, pprint.pformat)
    checked = truths(rows, _VERL | {"critic/vf_loss": "value_loss"})
    return text, truth("text", "healthy", steps=STEPS, values=checked)


@sample
def verl_of_three_digits():
    """Until July 2025 it printed three digits, so that a learning rate of 1e-6 is printed as 0.000."""
    rows = course(2)
    text = "".join(
        verl_line(step, verl_data(row, step, {}), lambda value: f"{value:.3f}")
        for step, row in enumerate(rows, 1)
    )
    wanted = {"actor/entropy": "entropy", "critic/rewards/mean": "reward", "grad_norm": "grad_norm"}
    checked = truths(rows, wanted, lambda value: round(value, 3))
    return text, truth("text", "healthy", steps=STEPS, values=checked | {"lr": []})


@sample
def verl_loses_its_reward():
    rows = course(3, lost_from=42)
    text = "".join(
        verl_line(step, verl_data(row, step, {}), pprint.pformat)
        for step, row in enumerate(rows, 1)
    )
    checked = truths(rows, {"critic/score/mean": "reward"})
    return text, truth("text", "failing", steps=STEPS, values=checked)


# --- TRL -----------------------------------------------------------------------------------------


def trl_data(row: Mapping[str, float], step: int) -> dict[str, float]:
    """`GRPOTrainer` of trl/trainer/grpo_trainer.py at f2cd57710; the Trainer adds what it logs."""
    return {
        "loss": round(row["loss"], 4), "grad_norm": row["grad_norm"], "learning_rate": row["lr"],
        "num_tokens": 10222.0 * step, "completions/mean_length": row["length"],
        "completions/min_length": 53.0, "completions/max_length": 1024.0,
        "completions/clipped_ratio": 0.01, "completions/mean_terminated_length": row["length"],
        "completions/min_terminated_length": 53.0, "completions/max_terminated_length": 900.0,
        "rewards/accuracy_reward/mean": row["reward"], "rewards/accuracy_reward/std": 0.325,
        "reward": row["reward"], "reward_std": 0.325, "frac_reward_zero_std": 0.1,
        "sampling/sampling_logp_difference/mean": row["gap"],
        "sampling/sampling_logp_difference/max": row["gap"] * 40,
        "sampling/importance_sampling_ratio/min": 0.4,
        "sampling/importance_sampling_ratio/mean": 0.999,
        "sampling/importance_sampling_ratio/max": 2.0,
        "kl": row["reference_kl"], "entropy": row["entropy"], "clip_ratio/low_mean": 0.0,
        "clip_ratio/low_min": 0.0, "clip_ratio/high_mean": row["clipped"],
        "clip_ratio/high_max": 0.01, "clip_ratio/region_mean": row["clipped"],
        "step_time": 23.8, "epoch": round(step / 100, 2),
    }  # fmt: skip


_TRL = {
    "lr": "lr", "grad_norm": "grad_norm", "reward": "reward", "kl": "reference_kl",
    "entropy": "entropy", "clip_ratio/region_mean": "clipped",
    "sampling/sampling_logp_difference/mean": "gap", "completions/mean_length": "length",
}  # fmt: skip


@sample
def trl_grpo():
    rows = course(4)
    text = "".join(f"{trl_data(row, step)}\n" for step, row in enumerate(rows, 1))
    checked = truths(rows, _TRL) | {"loss": [round(row["loss"], 4) for row in rows]}
    return text, truth("hf-trainer", "healthy", values=checked)


@sample
def trl_ppo():
    """`PPOTrainer` of trl/experimental/ppo/ppo_trainer.py at f2cd57710: `val` means its values."""
    rows = course(5)
    text = ""
    for number, row in enumerate(rows, 1):
        text += str({
            "eps": 1, "objective/kl": row["reference_kl"], "objective/entropy": 114.4,
            "objective/non_score_reward": -0.05 * row["reference_kl"],
            "objective/rlhf_reward": row["reward"], "objective/scores": row["reward"],
            "policy/approxkl_avg": row["kl"], "policy/clipfrac_avg": row["clipped"],
            "loss/policy_avg": row["loss"], "loss/value_avg": row["value_loss"],
            "val/clipfrac_avg": 0.005, "policy/entropy_avg": row["entropy"], "val/ratio": 0.999,
            "val/ratio_var": 5e-05, "val/num_eos_tokens": 0, "lr": row["lr"],
            "episode": 16 * number, "epoch": round(number / 100, 2),
        }) + "\n"  # fmt: skip
    wanted = {
        "loss": "loss", "lr": "lr", "objective/scores": "reward", "policy/approxkl_avg": "kl",
        "policy/entropy_avg": "entropy", "loss/value_avg": "value_loss",
        "objective/kl": "reference_kl",
    }  # fmt: skip
    return text, truth("text", "healthy", values=truths(rows, wanted))


# --- OpenRLHF, slime, AReaL ----------------------------------------------------------------------


@sample
def openrlhf_grpo():
    """openrlhf/trainer/ppo_trainer.py and openrlhf/utils/logging_utils.py at 3c3be623."""
    rows = course(6)
    text = ""
    for step, row in enumerate(rows, 1):
        status = {
            "policy_loss": row["loss"], "actor_lr": row["lr"], "actor_grad_norm": row["grad_norm"],
            "ppo_clip_ratio": row["clipped"], "ppo_kl": row["kl"], "vllm_kl": row["gap"] / 10,
            "kl": row["reference_kl"], "logprobs_diff": 0.002, "reward": row["reward"],
            "return": row["reward"], "response_length": row["length"],
            "total_length": row["length"] + 104, "timing/make_experience": 12.0,
            "timing/ppo_train": 3.0, "timing/broadcast": 0.4,
        }  # fmt: skip
        text += f"INFO 08-14 10:{step % 60:02d}:30 ppo_trainer.py:547] ✨ Global step {step}: {status}\n"
    wanted = {
        "loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "reward": "reward", "ppo_kl": "kl",
        "kl": "reference_kl", "ppo_clip_ratio": "clipped", "response_length": "length",
    }  # fmt: skip
    return text, truth("text", "healthy", steps=STEPS, values=truths(rows, wanted))


@sample
def slime_grpo():
    """slime/backends/megatron_utils/model.py and slime/observability/train_metric_utils.py.

    At 624b824a8; until then `step N: {...}` was printed beside each optimizer step, as a paste in
    NVIDIA-NeMo/ProRL-Agent-Server#40 shows.
    """
    rows = course(7)
    text = ""
    for step, row in enumerate(rows):
        rollout = {
            "rollout/response_lengths": row["length"], "rollout/raw_reward": row["reward"],
            "rollout/truncated": 0.0, "rollout/rollout_log_probs": -row["entropy"],
            "rollout/log_probs": -row["entropy"], "rollout/advantages": -1e-8,
            "rollout/rewards": -1e-8, "rollout/returns": -1e-8,
        }  # fmt: skip
        train = {
            "train/loss": row["loss"], "train/pg_loss": row["loss"],
            "train/entropy_loss": row["entropy"], "train/pg_clipfrac": row["clipped"],
            "train/ppo_kl": row["kl"], "train/train_rollout_logprob_abs_diff": row["gap"],
            "train/kl_loss": row["reference_kl"], "train/ois": 1.0, "train/tis": 0.999,
            "train/tis_clipfrac": 6e-4, "train/tis_abs": 0.0257,
            "train/grad_norm": row["grad_norm"], "train/lr-pg_0": row["lr"],
            "train/lr-pg_1": row["lr"], "train/step": step,
        }  # fmt: skip
        stamp = f"[2026-06-10 10:{step:02d}:12]"
        text += (
            f"(MegatronTrainRayActor pid=4711) {stamp} data.py:215 - rollout {step}: {rollout}\n"
        )
        text += f"(MegatronTrainRayActor pid=4711) {stamp} model.py:712 - step {step}: {train}\n"
    wanted = {
        "loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "train/ppo_kl": "kl",
        "train/entropy_loss": "entropy", "train/train_rollout_logprob_abs_diff": "gap",
        "rollout/raw_reward": "reward",
    }  # fmt: skip
    return text, truth("text", "healthy", steps=STEPS, values=truths(rows, wanted))


# --- torchtitan, Megatron ------------------------------------------------------------------------


def shown(value: float) -> str:
    """`fmt_metric_value` of torchtitan/experiments/rl/observability/metrics/console.py, b5bcd76c6."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.1f}"
    frac = abs(value) - int(abs(value))
    if frac == 0:
        return f"{value:.1f}"
    n_decimals, n_nonzero, temp = 0, 0, frac
    while n_decimals < 5 and n_nonzero < 2:
        n_decimals += 1
        temp *= 10
        if int(temp) % 10 != 0 or n_nonzero > 0:
            n_nonzero += 1
    if n_nonzero == 0:
        return f"{value:.1e}"
    return f"{value:.{max(n_decimals, 2)}f}"


@sample
def torchtitan_grpo():
    """`log_to_console` of the same file: a rule, then the line."""
    rows = course(8)
    text = ""
    for step, row in enumerate(rows, 1):
        told = {
            "loss/mean": row["loss"], "rollout_reward/_mean": row["reward"],
            "trainer/entropy/mean": row["entropy"], "trainer/grad_norm/mean": row["grad_norm"],
            "trainer/lr": row["lr"],
        }  # fmt: skip
        parts = [
            f"Train | Step: {step:2}",
            *(f"{name}: {shown(v)}" for name, v in told.items()),
            "",
        ]
        text += f"[titan] 2026-08-20 11:{step % 60:02d}:00,001 - root - INFO - {'-' * 10}\n{'  '.join(parts)}\n"
    checked = truths(
        rows, {"lr": "lr", "grad_norm": "grad_norm", "trainer/entropy/mean": "entropy"},
        lambda value: float(shown(value)),
    )  # fmt: skip
    return text, truth("text", "healthy", steps=STEPS, values=checked)


@sample
def megatron_grpo():
    """`training_log` of megatron/training/training.py and train_rl.py at d98e8a64dd.

    It leaves out a value below zero, which the loss of a policy often is.
    """
    rows = course(9)
    text = ""
    for step, row in enumerate(rows, 1):
        losses = {
            "lm loss": row["loss"], "rl/kl_term": row["reference_kl"],
            "rl/pi_over_pi_old": 1.0 + row["kl"], "rl/entropy_term": row["entropy"],
            "rl/truncated_from_above": row["clipped"], "rl/truncated_from_below": row["clipped"],
        }  # fmt: skip
        text += f" [2026-08-20 10:{step % 60:02d}:12.123456] iteration {step:8d}/{100:8d} |"
        text += (
            f" consumed samples: {step * 64:12d} | elapsed time per iteration (ms): {12345.6:.1f} |"
        )
        text += f" learning rate: {row['lr']:.6E} | global batch size: {64:5d} |"
        text += "".join(f" {name}: {v:.6E} |" for name, v in losses.items() if v >= 0)
        text += f" loss scale: {1.0:.1f} | grad norm: {row['grad_norm']:.3f} |"
        text += f" number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |\n"
    checked = truths(rows, {
        "lr": "lr", "grad_norm": "grad_norm", "rl/entropy_term": "entropy",
        "rl/kl_term": "reference_kl", "rl/truncated_from_above": "clipped",
    })  # fmt: skip
    checked["loss"] = [row["loss"] for row in rows if row["loss"] >= 0]
    return text, truth("megatron", "*", steps=STEPS, values=checked)


if __name__ == "__main__":
    write(SAMPLES)
