"""What the name of a logged metric says: whether it should fall or rise, and of what it is.

Importers keep the metrics whose names say something; the diagnosis looks at them beside the loss.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise


class Metric(enum.Enum):
    """What a metric's name says that it is."""

    VALIDATION = "a loss or an error on data that is not trained on"
    LOSS = "another loss or error of training"
    VALUE_LOSS = "the loss of a critic, which grows with what it values"
    ADVERSARY = "the loss of a discriminator"
    PER_UNIT = "a loss per token, frame or step"
    GOAL = "a figure that should rise"
    SIZE = "how long or large what is trained on is"
    POLICY_STEP = "how far an update moved a policy"
    ROLLOUT_GAP = "how far what samples is from what trains"


@dataclass(frozen=True, slots=True)
class KnownMetric:
    """A figure that frameworks log under several names: its title, its unit, and what it is.

    A figure in `%` is logged as a share, 0 to 1.
    """

    title: str
    unit: str = ""
    kind: Metric | None = None


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_VALIDATION = _listed("val valid validation eval evaluation evaluate test testing dev heldout")
_LOSSES = _listed(
    "loss losses err error errors nll bce ce mse rmse mae mape smape ppl perplexity wer cer xent "
    "crossentropy objective cost elbo bpc bpb bpd fid l1 l2 crps brier logloss mpjpe perceptual "
    "recon reconstruction"
)
_GOALS = _listed(
    "acc accuracy reward rewards rew return returns score auc auroc auprc f1 map miou iou dice "
    "bleu rouge meteor psnr ssim success sdr recall precision r2 ndcg mrr winrate top1 top5 acc1 "
    "acc5 prec1 ap ap50 ap75 hit hits rank1 knn pck kappa mcc pearson spearman nmi ari cider pesq "
    "stoi exactmatch solverate passrate hitrate elo"
)
# Names that a loss has alone, and that say something else within a longer one.
_WHOLE_NAMES = {
    "train": Metric.LOSS, "training": Metric.LOSS, "total": Metric.LOSS,
    "gen": Metric.LOSS, "generator": Metric.LOSS,
    "disc": Metric.ADVERSARY, "discriminator": Metric.ADVERSARY,
}  # fmt: skip
_ADVERSARIES = frozenset({"d", "disc", "discriminator", "dis"})
_SIZES = _listed(
    "len length seqlen frames horizon resolution res imgsz rollout unroll context ctx window "
    "curriculum difficulty crop nodes agents"
)
_NO_SIZES = frozenset(["ep", "episode", "mean", "avg", "time", "ms", "sec"])

# What training frameworks log beside the loss, by the words of its name; the first row counts.
_ROWS = (
    # What samples against what trains: they should be the same.
    ("rollout_probs_diff_valid", "whether rollout and training were compared"),
    ("rollout_probs_diff|inf_train_prob_abs_diff",
     "difference of rollout and training probabilities", "", Metric.ROLLOUT_GAP),
    ("rollout_actor_probs_pearson_corr", "correlation of rollout and training probabilities"),
    (r"sampling_logp_difference|rollout_logprob_(?:abs_)?diff|local_logprob_diff",
     "difference of rollout and training log-probabilities", "nats", Metric.ROLLOUT_GAP),
    (r"rollout_corr_(?:k3_)?kl|vllm_kl|mismatch_k(?:l|[123])|behave_approx_kl",
     "KL divergence of rollout and training", "nats", Metric.ROLLOUT_GAP),
    (r"rollout_corr_(?:log_)?ppl\w*|rollout_corr_chi2\w*",
     "difference of rollout and training perplexity"),
    (r"rollout_corr_(?:training|rollout)_(?:log_)?ppl", "perplexity of the responses"),
    ("rollout_is_eff_sample_size", "effective sample size of the importance weights", "%"),
    (r"tis_clipfrac|rollout_rs|rs_filtered_fraction|rollout_is\w*_fraction_(?:high|low)",
     "share of responses whose importance weight is cut off", "%"),
    ("rollout_is|importance_sampling_ratio|behave_imp_weight|tis|ois|piold_to_inf_prob",
     "importance weight of the rollout"),
    (r"val_ratio(?:_var)?|loss_ratio_mean|policy_ratio|pi_over_pi_old|importance_weight",
     "probability ratio of the new and the old policy"),
    # The critic. TRL writes `val` of its values.
    ("val_clip_?frac|vf_clip_?frac", "share of value predictions that were clipped", "%"),
    ("val_error|vf_loss|value_loss|critic_loss|loss_value", "value loss", "", Metric.VALUE_LOSS),
    (r"vf_explained_var|explained_variance|(?:val_)?var_explained",
     "explained variance of the critic"),
    ("vpred|critic_values", "value that the critic predicts"),
    ("critic_returns|ppo_returns", "return that the critic learns"),
    ("advantages?", "advantage"),
    # The policy.
    (r"(?:response|prompt|completions?)\w*_clip(?:ped)?_ratio|truncated_ratio|no_eos_ratios",
     "share of responses that were cut off", "%"),
    (r"clip_?frac\w*|clip_ratio|ratio_clipped_frac|truncated_from_(?:above|below)",
     "share of the policy's updates that were clipped", "%"),
    ("(?<!cross_)entropy", "entropy", "nats"),
    ("objective_kl|ref_kl|kl_term|reward_kl_penalty|kl_rewards|opd_reverse_kl",
     "KL divergence from the reference policy", "nats"),
    ("kl_loss", "KL divergence in the loss", "nats"),
    ("(?:ppo|approx|policy)_?kl", "KL divergence of an update", "nats", Metric.POLICY_STEP),
    # TRL and OpenRLHF call the distance from the reference so, which grows as a policy learns.
    ("kl", "KL divergence", "nats"),
    ("(?:policy|policy_gradient|pg|actor|act)_loss|loss_policy", "policy loss", "", Metric.LOSS),
    # Rewards.
    ("frac_reward_zero_std|group_zero_std_frac|flat_group_fraction",
     "share of prompts whose responses have the same reward", "%"),
    ("non_score_reward", "penalty for the distance from the reference policy"),
    ("rewards_chosen", "reward of the chosen response"),
    ("rewards_rejected", "reward of the rejected response"),
    ("rewards_margins", "reward of the chosen above the rejected response", "", Metric.GOAL),
    ("rewards_accuracies", "share of pairs that are ranked rightly", "%", Metric.GOAL),
    (r"logps_(?:chosen|rejected)", "log-probability of the responses", "nats"),
    ("(?:critic|objective)_scores?", "reward", "", Metric.GOAL),
    (r"rewards?(?!\w*loss)(?=(?:_\w+)?_(?:mean|avg|max|min|std)$|$)", "reward", "", Metric.GOAL),
    # Lengths: what a policy answers, and no setting of the task.
    (r"(?:completions?|responses?)(?=\w*_len(?:gth)?(?:_|$))|gen_len",
     "length of responses", "tokens"),
    (r"(?:prompts?|queries)_len(?:gth)?", "length of prompts", "tokens"),
    (r"tot(?:al)?_len(?:gth)?", "length of prompts and responses", "tokens"),
    ("global_seqlen", "tokens of a batch", "tokens"),
    ("num_turns", "turns of a conversation"),
    ("aborted_ratio", "share of responses that were aborted", "%"),
    ("num_tokens|global_tokens|total_num_tokens", "tokens trained on", "tokens"),
    # Other parts of the loss, the model and the machine.
    (r"(?:aux|z|indexer|(?:seq_|global_)?load_balancing|mtp\w*)_loss", "auxiliary loss"),
    ("num_zeros", "gradients that are zero"),
    ("params?_norm", "norm of the weights"),
    ("max_attention_logit", "largest attention logit"),
    ("throughput_tps", "throughput", "tokens/s"),
    ("tflops", "throughput", "TFLOP/s"),
    (r"memory(?=_max_\w+_gib$)|memory(?=_(?:allocated|reserved)_gb$)", "memory", "GiB"),
)  # fmt: skip
_KNOWN = tuple(
    (re.compile(rf"(?:^|_)(?:{form})(?:_|$)"), KnownMetric(*told)) for form, *told in _ROWS
)
_SETTINGS = _listed("coef coeff coefficient beta target weight threshold")
_STATISTICS = {
    "mean": "", "avg": "", "max": "largest", "min": "smallest", "std": "standard deviation",
}  # fmt: skip


@cache
def known_metric(name: str) -> KnownMetric | None:
    """The figure that a name means in a training framework; None for a name that is not known."""
    plain = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    found = next(((known, hit) for form, known in _KNOWN if (hit := form.search(plain))), None)
    if found is None:
        return None
    known, hit = found
    rest = f"{plain[: hit.start()]}_{plain[hit.end() :]}".split("_")
    if _SETTINGS.intersection(rest):
        return None
    statistic = next((_STATISTICS[word] for word in rest if word in _STATISTICS), "")
    # How far a few values lie from the others says little of how they all are.
    return KnownMetric(f"{known.title}, {statistic}", known.unit) if statistic else known


def is_metric(name: str) -> bool:
    """Whether a metric's name says what it measures."""
    return metric_of(name) is not None or known_metric(name) is not None


def is_of_validation(name: str) -> bool:
    """Whether a metric's name says that it is of data that is not trained on."""
    return any(word.lower() in _VALIDATION for word in _WORDS.findall(name))


def is_score(name: str) -> bool:
    """Whether a metric that should rise is an accuracy or the like, and no reward."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return not words & {"reward", "rewards", "rew", "return", "returns", "score", "success"}


def is_roc_area(name: str) -> bool:
    """Whether a metric is the area under a ROC curve."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words & {"auc", "auroc"}) and not words & {"pr", "prc", "precision"}


_NO_LOSSES = frozenset(["reader", "scale", "kl", "entropy", "norm", "grad", "gradient"])
# As CycleGAN, pix2pix and their descendants print their losses.
_OF_GENERATOR = re.compile(
    r"(?i)g_(?!norm|grad|lr|step|iter)\w+|(?:cycle|idt)_[ab]|l_(?!d_|r_|rate)[a-z]\w+"
)
_OF_DISCRIMINATOR = re.compile(r"(?i)d_(?:[ab]|real|fake)|l_d_\w+")


def is_error_share(name: str) -> bool:
    """Whether a metric is a share of errors, such as of words."""
    return bool({word.lower() for word in _WORDS.findall(name)} & {"wer", "cer"})


@cache
def metric_of(name: str) -> Metric | None:
    """What a metric is by its name; None for a name that says nothing of the sort."""
    known = known_metric(name)
    if known is None or (known.kind not in {None, Metric.GOAL} and is_of_validation(name)):
        return _by_words(name)
    return known.kind


def _by_words(name: str) -> Metric | None:
    words = [word.lower() for word in _WORDS.findall(name)]
    said, joined = set(words), "".join(words)
    glued = {a + b for a, b in pairwise(words)}
    if (said & _GOALS or glued & _GOALS) and "loss" not in said:
        return None if said & {"scale", "model", "std", "var"} else Metric.GOAL
    if _OF_GENERATOR.fullmatch(name) or _OF_DISCRIMINATOR.fullmatch(name):
        return Metric.LOSS if _OF_GENERATOR.fullmatch(name) else Metric.ADVERSARY
    is_loss = bool(said & _LOSSES or glued & _LOSSES or joined.startswith(("err", "loss")))
    if is_loss and said & _VALIDATION:
        return Metric.VALIDATION
    if is_loss and (not said & _NO_LOSSES or "crossentropy" in glued):
        return _training_loss(said, joined)
    if joined in _WHOLE_NAMES:
        return _WHOLE_NAMES[joined]
    return Metric.SIZE if (said | glued) & _SIZES and not said & _NO_SIZES else None


def _training_loss(said: set[str], joined: str) -> Metric:
    if "per" in said:
        return Metric.PER_UNIT
    return Metric.ADVERSARY if said & _ADVERSARIES or joined == "errd" else Metric.LOSS
