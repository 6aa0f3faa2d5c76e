"""What a metric's name says."""

from __future__ import annotations

import pytest

from ampwatch.metric_names import Metric, is_error_share, metric_of


@pytest.mark.parametrize(("names", "kind"), [
    ("val_loss eval_loss val_dice_loss test/l2 eval_wer valid_ppl valLoss", Metric.VALIDATION),
    ("errG loss_G g_loss mse_train policy_loss nll total_loss g_A cycle_B l_pix", Metric.LOSS),
    ("errD D_loss loss_disc D_A D_fake l_d_real", Metric.ADVERSARY),
    ("loss_per_token nll_per_step", Metric.PER_UNIT),
    ("acc val_acc Prec@1 mAP50-95 ep_rew_mean rollout/ep_rew_mean eval_bleu g_acc", Metric.GOAL),
    ("seq_len num_frames horizon rollout_len imgsz", Metric.SIZE),
    ("approx_kl kl train/approx_kl", Metric.POLICY_STEP),
    ("l_rate g_norm kl_coef target_kl", None),
    ("lr grad_norm loss_scale amp_scale reward_std objective/kl ep_len_mean tokens epoch", None),
])  # fmt: skip
def test_a_name_says_what_it_measures(names, kind):
    assert {name: metric_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(("name", "expected"), [("eval_wer", True), ("val_loss_per_token", False)])
def test_a_loss_per_token_is_no_share_of_errors(name, expected):
    assert is_error_share(name) is expected
