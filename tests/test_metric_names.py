"""What a metric's name says."""

from __future__ import annotations

import pytest

from ampwatch.metric_names import KnownMetric, Metric, is_error_share, known_metric, metric_of


@pytest.mark.parametrize(("names", "kind"), [
    ("val_loss eval_loss val_dice_loss test/l2 eval_wer valid_ppl valLoss", Metric.VALIDATION),
    ("errG loss_G g_loss mse_train policy_loss nll total_loss g_A cycle_B l_pix", Metric.LOSS),
    ("errD D_loss loss_disc D_A D_fake l_d_real", Metric.ADVERSARY),
    ("loss_per_token nll_per_step", Metric.PER_UNIT),
    ("acc val_acc Prec@1 mAP50-95 ep_rew_mean rollout/ep_rew_mean eval_bleu g_acc", Metric.GOAL),
    ("seq_len num_frames horizon rollout_len imgsz", Metric.SIZE),
    ("approx_kl ppo_kl train/approx_kl", Metric.POLICY_STEP),
    # A distance from the reference grows as a policy learns: it is no step.
    ("l_rate g_norm kl_coef target_kl kl latent_kl", None),
    ("lr grad_norm loss_scale amp_scale reward_std objective/kl ep_len_mean tokens epoch", None),
])  # fmt: skip
def test_a_name_says_what_it_measures(names, kind):
    assert {name: metric_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(("name", "expected"), [("eval_wer", True), ("val_loss_per_token", False)])
def test_a_loss_per_token_is_no_share_of_errors(name, expected):
    assert is_error_share(name) is expected


@pytest.mark.parametrize(("names", "title", "unit", "kind"), [
    # verl b178a3cd5: trainer/ppo/metric_utils.py, rollout_corr_helper.py, utils/debug/metrics.py
    ("critic/score/mean critic/rewards/mean", "reward", "", Metric.GOAL),
    ("critic/rewards/max", "reward, largest", "", None),
    ("critic/returns/mean", "return that the critic learns", "", None),
    ("critic/vf_loss", "value loss", "", Metric.VALUE_LOSS),
    ("critic/vf_explained_var", "explained variance of the critic", "", None),
    ("actor/entropy actor/entropy_loss", "entropy", "nats", None),
    ("actor/pg_loss", "policy loss", "", Metric.LOSS),
    ("actor/ppo_kl", "KL divergence of an update", "nats", Metric.POLICY_STEP),
    ("actor/pg_clipfrac actor/pg_clipfrac_lower",
     "share of the policy's updates that were clipped", "%", None),
    ("response_length/clip_ratio", "share of responses that were cut off", "%", None),
    ("response_length/mean", "length of responses", "tokens", None),
    ("response_length/max", "length of responses, largest", "tokens", None),
    ("rollout_corr/kl rollout_corr/k3_kl", "KL divergence of rollout and training", "nats",
     Metric.ROLLOUT_GAP),
    ("rollout_corr/rollout_is_mean", "importance weight of the rollout", "", None),
    ("rollout_corr/rollout_is_eff_sample_size",
     "effective sample size of the importance weights", "%", None),
    ("training/rollout_probs_diff_mean", "difference of rollout and training probabilities", "",
     Metric.ROLLOUT_GAP),
    ("training/rollout_probs_diff_std",
     "difference of rollout and training probabilities, standard deviation", "", None),
    # TRL f2cd57710: grpo_trainer.py, experimental/ppo; DPO
    ("sampling/sampling_logp_difference/mean",
     "difference of rollout and training log-probabilities", "nats", Metric.ROLLOUT_GAP),
    ("sampling/importance_sampling_ratio/min", "importance weight of the rollout, smallest", "",
     None),
    ("clip_ratio/region_mean", "share of the policy's updates that were clipped", "%", None),
    ("completions/clipped_ratio", "share of responses that were cut off", "%", None),
    ("completions/mean_length completions/mean_terminated_length completion_length",
     "length of responses", "tokens", None),
    ("reward_std", "reward, standard deviation", "", None),
    ("frac_reward_zero_std", "share of prompts whose responses have the same reward", "%", None),
    ("policy/approxkl_avg", "KL divergence of an update", "nats", Metric.POLICY_STEP),
    ("objective/kl", "KL divergence from the reference policy", "nats", None),
    ("val/ratio val/ratio_var", "probability ratio of the new and the old policy", "", None),
    ("kl", "KL divergence", "nats", None),
    ("rewards/rejected", "reward of the rejected response", "", None),
    ("rewards/accuracies", "share of pairs that are ranked rightly", "%", Metric.GOAL),
    # OpenRLHF 3c3be623, slime 624b824a8, AReaL 4aef98d8d
    ("vllm_kl", "KL divergence of rollout and training", "nats", Metric.ROLLOUT_GAP),
    ("train/train_rollout_logprob_abs_diff",
     "difference of rollout and training log-probabilities", "nats", Metric.ROLLOUT_GAP),
    ("train/tis", "importance weight of the rollout", "", None),
    ("train/tis_clipfrac", "share of responses whose importance weight is cut off", "%", None),
    ("ppo_actor/task_reward/avg", "reward", "", Metric.GOAL),
    ("ppo_actor/update/approx_kl/avg", "KL divergence of an update", "nats", Metric.POLICY_STEP),
    ("ppo_actor/update/behave_approx_kl/avg", "KL divergence of rollout and training", "nats",
     Metric.ROLLOUT_GAP),
    ("ppo_actor/update/importance_weight/avg",
     "probability ratio of the new and the old policy", "", None),
    # torchtitan b5bcd76c6, Megatron-LM d98e8a64dd
    ("loss/ratio_clipped_frac", "share of the policy's updates that were clipped", "%", None),
    ("throughput(tps)", "throughput", "tokens/s", None),
    ("memory/max_reserved(GiB)", "memory, largest", "GiB", None),
    ("mean_inf_train_prob_abs_diff", "difference of rollout and training probabilities", "",
     Metric.ROLLOUT_GAP),
    ("rl/truncated_from_above", "share of the policy's updates that were clipped", "%", None),
    ("num-zeros", "gradients that are zero", "", None),
    ("max_attention_logit", "largest attention logit", "", None),
    ("load_balancing_loss z_loss", "auxiliary loss", "", None),
])  # fmt: skip
def test_a_figure_of_a_framework_has_its_title_and_unit(names, title, unit, kind):
    for name in names.split():
        assert known_metric(name) == KnownMetric(title, unit, kind), name
        assert metric_of(name) is kind, name


@pytest.mark.parametrize("name", [
    "train_cross_entropy", "entropy_coef", "kl_coef", "actor/kl_coef", "clip_ratio_target",
    "timing_s/step", "perf/mfu/actor", "training/epoch", "loss_scale", "lr", "temperature",
])  # fmt: skip
def test_a_setting_or_a_time_is_no_figure_of_a_framework(name):
    assert known_metric(name) is None
