"""What the name of a logged metric says: whether it should fall or rise, and of what it is.

Importers keep the metrics whose names say something; the diagnosis looks at them beside the loss.
"""

from __future__ import annotations

import enum
import re
from functools import cache
from itertools import pairwise


class Metric(enum.Enum):
    """What a metric's name says that it is."""

    VALIDATION = "a loss or an error on data that is not trained on"
    LOSS = "another loss or error of training"
    ADVERSARY = "the loss of a discriminator"
    PER_UNIT = "a loss per token, frame or step"
    GOAL = "a figure that should rise"
    SIZE = "how long or large what is trained on is"
    POLICY_STEP = "how far an update moved a policy"


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_VALIDATION = frozenset(
    [
        "val",
        "valid",
        "validation",
        "eval",
        "evaluation",
        "evaluate",
        "test",
        "testing",
        "dev",
        "heldout",
    ]
)
_LOSSES = frozenset(
    [
        "loss",
        "losses",
        "err",
        "error",
        "errors",
        "nll",
        "bce",
        "ce",
        "mse",
        "rmse",
        "mae",
        "mape",
        "smape",
        "ppl",
        "perplexity",
        "wer",
        "cer",
        "xent",
        "crossentropy",
        "objective",
        "cost",
        "elbo",
        "bpc",
        "bpb",
        "bpd",
        "fid",
        "l1",
        "l2",
        "crps",
        "brier",
        "logloss",
        "mpjpe",
    ]
)
_GOALS = frozenset(
    [
        "acc",
        "accuracy",
        "reward",
        "rewards",
        "rew",
        "return",
        "returns",
        "score",
        "auc",
        "auroc",
        "auprc",
        "f1",
        "map",
        "miou",
        "iou",
        "dice",
        "bleu",
        "rouge",
        "meteor",
        "psnr",
        "ssim",
        "success",
        "sdr",
        "recall",
        "precision",
        "r2",
        "ndcg",
        "mrr",
        "winrate",
        "top1",
        "top5",
        "acc1",
        "acc5",
        "prec1",
    ]
)
# Names that a loss has alone, and that say something else within a longer one.
_WHOLE_NAMES = {
    "train": Metric.LOSS, "training": Metric.LOSS, "gen": Metric.LOSS, "generator": Metric.LOSS,
    "disc": Metric.ADVERSARY, "discriminator": Metric.ADVERSARY,
}  # fmt: skip
_ADVERSARIES = frozenset({"d", "disc", "discriminator", "dis"})
_SIZES = frozenset(
    [
        "len",
        "length",
        "seqlen",
        "frames",
        "horizon",
        "resolution",
        "res",
        "imgsz",
        "rollout",
        "unroll",
        "context",
        "ctx",
        "window",
        "curriculum",
        "difficulty",
        "crop",
        "nodes",
        "agents",
    ]
)
_NO_SIZES = frozenset(["ep", "episode", "mean", "avg", "time", "ms", "sec"])


def is_of_validation(name: str) -> bool:
    """Whether a metric's name says that it is of data that is not trained on."""
    return any(word.lower() in _VALIDATION for word in _WORDS.findall(name))


def is_score(name: str) -> bool:
    """Whether a metric that should rise is an accuracy or the like, and no reward."""
    words = {word.lower() for word in _WORDS.findall(name)}
    return not words & {"reward", "rewards", "rew", "return", "returns", "score", "success"}


# Of a penalty's weight, its target, a variational model's part of the loss.
_NO_POLICY_STEP = frozenset(
    ["coef", "coeff", "beta", "target", "loss", "weight", "penalty", "scale", "latent", "objective"]
)
_NO_LOSSES = frozenset(["scale", "kl", "entropy", "norm", "grad", "gradient"])
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
    if "kl" in said or "approxkl" in said:
        return Metric.POLICY_STEP if not said & _NO_POLICY_STEP else None
    return Metric.SIZE if (said | glued) & _SIZES and not said & _NO_SIZES else None


def _training_loss(said: set[str], joined: str) -> Metric:
    if "per" in said:
        return Metric.PER_UNIT
    return Metric.ADVERSARY if said & _ADVERSARIES or joined == "errd" else Metric.LOSS
