"""What a metric's name says."""

from __future__ import annotations

import pytest

from ampwatch.metric_names import Metric, metric_of


@pytest.mark.parametrize(("names", "kind"), [
    ("val_loss eval_loss val_dice_loss test/l2 eval_wer valid_ppl valLoss", Metric.VALIDATION),
    ("errG loss_G g_loss mse_train policy_loss nll total_loss", Metric.LOSS),
    ("errD D_loss loss_disc", Metric.ADVERSARY),
    ("loss_per_token nll_per_step", Metric.PER_UNIT),
    ("acc val_acc Prec@1 mAP50-95 ep_rew_mean rollout/ep_rew_mean eval_bleu dice", Metric.GOAL),
    ("seq_len num_frames horizon rollout_len imgsz", Metric.SIZE),
    ("lr grad_norm loss_scale amp_scale reward_std objective/kl ep_len_mean tokens epoch", None),
])  # fmt: skip
def test_a_name_says_what_it_measures(names, kind):
    assert {name: metric_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)
