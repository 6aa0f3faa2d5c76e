"""Which of our columns a table's column name means: our own names, usual names, or a mapping."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from ampwatch.errors import LogError
from ampwatch.importers.row_writer import STEP_COLUMNS
from ampwatch.metric_names import Metric, is_metric, metric_of

# The usual names, the most certain first; compared without case, and with `/` and `-` as `_`.
USUAL: Mapping[str, tuple[str, ...]] = {
    "step": (
        "step", "train_global_step", "trainer_global_step", "global_step", "_step", "iteration",
        "iter", "num_updates", "train_step", "current_steps", "current_step", "training_step",
        "steps", "it", "update", "iterations", "iters", "time_total_timesteps", "total_timesteps",
        "num_timesteps", "timesteps", "progress_kimg", "kimg", "updates", "training_global_step",
    ),
    "loss": (
        "loss", "train_loss", "training_loss", "train_loss_step", "loss_step", "train_batch_loss",
        "batch_loss", "lm_loss", "train_lm_loss", "train_train_loss", "total_loss",
        "train_total_loss", "reduced_train_loss", "loss_train_total", "loss_train", "step_loss",
        "current_loss", "global_avg_loss", "avg_loss", "average_loss", "avr_loss", "mean_loss",
        "running_loss", "train_loss_epoch", "epoch_loss", "cross_entropy_loss",
        "train_crossentropyloss", "train_cross_entropy", "xent", "loss_total", "loss_all",
        "loss_sum", "avr_total_loss", "mini_batch_loss", "minibatch_loss",
    ),
    "lr": (
        "lr", "learning_rate", "train_learning_rate", "train_lr", "lr_0", "lr_group_0",
        "batch_learning_rate", "epoch_learning_rate", "optim_lr", "learningrate", "current_lr",
        "cur_lr", "lr_group0", "learning_rate_group0", "optim_learning_rate_group0", "optim0_lr0",
        "actor_lr", "act_lr", "lr_pg_0", "current_lr_0", "base_learning_rate", "base_lr",
    ),
    "grad_norm": (
        "grad_norm", "train_grad_norm", "gradient_norm", "gnorm", "global_norm",
        "train_global_grad_norm", "global_grad_norm", "grad_2_0_norm_total", "grad_2_norm_total",
        "total_grad_norm", "optim_total_grad_norm", "l2_norm_grad_global", "gradnorm",
        "total_norm", "actor_grad_norm",
    ),
    "(skips)": (
        "skipped_steps", "skipped_iterations", "num_skipped_steps", "total_skipped_steps",
        "num_skipped", "total_skipped", "number_of_skipped_iterations", "skip_count",
        "overflow_count", "num_overflows", "overflows",
    ),
    "scale_after": (
        "loss_scale", "train_loss_scale", "grad_scale", "train_grad_scale", "scaler_scale",
        "amp_scale", "amp_scaler", "amp_loss_scale", "train_scale", "scaler", "batch_loss_scale",
        "epoch_loss_scale", "fp16_grad_scale",
    ),
}  # fmt: skip
EPOCHS = ("epoch", "epochs", "trainer_epoch", "train_epoch")
_RATE_OF = re.compile(
    r"lr_(?:decoupled)?(?:adam[a-z0-9]*|sgd[a-z0-9]*|lion[a-z0-9]*|rmsprop|adafactor|lamb)"
    r"(?:_pg1|_1|_group0)?"
)
_RUN_PREFIX = re.compile(r"^.{1,200}? - ")  # of W&B's exported panels
# Of data that is not trained on, or of a network that learns to judge what the policy does.
_OF_OTHERS = re.compile(
    r"(?i)(?:^|[/_. -])(?:val|valid|validation|eval|evaluation|test|dev|critic)(?:[/_. -]|$)"
)
_SECOND_AXIS = " vs samples"  # Megatron writes each value again, with the samples as its step
_SPREAD = ("__MIN", "__MAX")  # W&B exports it beside each value
SKIP_FLAGS = ("skipped", "found_inf")
SKIP_COUNT = "(skips)"  # not a column of the steps table: rows are made from it
_MOST_METRICS, _MOST_OTHERS = 96, 24
_MIRRORED = "ampwatch/"  # our own run as `mirrors` logged it; its skips are a counter, not a flag


def recognised(names: Iterable[str], mapped: Mapping[str, str], path: str) -> dict[str, str]:
    """For each of our columns, the table's name of it; a metric beside them keeps its own.

    Raises LogError for an impossible mapping.
    """
    there = list(dict.fromkeys(names))
    for column, name in mapped.items():
        if column not in STEP_COLUMNS:
            raise LogError(
                f"--map {column}={name}: the steps table has no column {column!r}; it has "
                f"{', '.join(sorted(STEP_COLUMNS))}.",
                path=path,
            )
        if name not in there:
            shown = ", ".join(there[:20])
            raise LogError(f"--map {column}={name}: {path} has no {name!r}; it has {shown}.")
    mapping = {**_named_by_us(there), **mapped}
    plain = {_plain(name): name for name in reversed(there)}
    for column, usual in USUAL.items():
        if column in mapping or (column == "scale_after" and "scale" in mapping):
            continue
        first = next((plain[one] for one in usual if one in plain), None)
        if first is None and column == "lr":
            first = next((name for one, name in plain.items() if _RATE_OF.fullmatch(one)), None)
        if first is None and column != "step":
            first = _by_its_end(there, usual)
        if first is not None:
            mapping[column] = first
    mapping = {**_by_their_words(there, plain, mapping), **mapping}
    return {**_metrics(there, mapping), **mapping}


def _by_their_words(
    names: Iterable[str], plain: Mapping[str, str], found: Mapping[str, str]
) -> dict[str, str]:
    """An epoch as the step, and a loss by its words such as `mse_train`, where none is named so."""
    epochs = next((plain[name] for name in EPOCHS if name in plain), None)
    more = {} if epochs is None else {"step": epochs}  # if each row has another one
    if "loss" not in found and {*found, *more} & {"step", "lr", "grad_norm"}:
        first = next(losses_among([name for name in names if name not in found.values()]), None)
        more.update({} if first is None else {"loss": first})
    return more


def losses_among(names: Sequence[str]) -> Iterator[str]:
    """The names that are losses of a training by their words; a critic's loss comes last."""
    for kinds in ({Metric.LOSS, Metric.PER_UNIT}, {Metric.VALUE_LOSS}):
        yield from (name for name in names if metric_of(name) in kinds)
    if any(map(_ADVERSARY.fullmatch, names)):
        yield from (name for name in names if name.lower() == "g")


_ADVERSARY = re.compile(r"(?i)d(?:_?(?:r|f|real|fake))?")  # `D` or `DR`, beside `G`


# What is no figure of a training, whatever else its name says: times, amounts of work, settings.
_NOISE = re.compile(
    r"(?i)(?<![a-z0-9])(?:[a-z]*time|eta|elapsed|remain\w*|sec\w*|s|ms|hrs?|hours?|min(?:ute)s?|fps|"
    r"mem\w*|data|speed|seed|version|v_num|epochs?|rank|size|[gc]pu\w*|[kmg]i?b|it|iter\w*|"
    r"tok\w*|samples?|bsz|wp[bs]|ups|ips|oom|throughput|thrpt|t?flop\w*|mfu|util\w*|reader|over|"
    r"progress|percent\w*|pct|date|clock|number|duration|lr|steps?|mom|momentum|betas?|wd|decay)"
    r"(?![a-z0-9])|/s(?![a-z0-9])"
)


def is_noise(name: str) -> bool:
    """Whether a name is that of a time, an amount of work or a setting."""
    return _NOISE.search(name) is not None


def _metrics(names: Iterable[str], found: Mapping[str, str]) -> dict[str, str]:
    """The other columns, those whose names say what they measure before a few others."""
    others = [n for n in names if n not in found.values() and n not in STEP_COLUMNS]
    others = [n for n in others if not n.endswith(_SECOND_AXIS)]
    metrics = sorted(filter(is_metric, others), key=lambda name: metric_of(name) is None)
    rest = [n for n in others if n not in metrics and not n.endswith(_SPREAD)]
    more = [name for name in rest if not is_noise(name)]
    return {name: name for name in (*metrics[:_MOST_METRICS], *more[:_MOST_OTHERS])}


def _by_its_end(names: Iterable[str], usual: Iterable[str]) -> str | None:
    """The only column name that ends with a usual one, such as `Train/Samples/train_loss`."""
    ends: dict[str, list[str]] = {}
    for name in names:
        if "/" in name and not _OF_OTHERS.search(name):
            end = name.removesuffix("/mean").rpartition("/")[2]
            ends.setdefault(_plain(end), []).append(name)
    return next((ends[one][0] for one in usual if len(ends.get(one, ())) == 1), None)


def _named_by_us(names: Iterable[str]) -> dict[str, str]:
    """The names that are our own column names; those that a mirror wrote come first."""
    columns = {}
    for name in sorted(names, key=lambda name: name.startswith(_MIRRORED)):
        column = name.removeprefix(_MIRRORED)
        is_count = column != name and column in SKIP_FLAGS
        if not is_count and (column in STEP_COLUMNS or (column != name and column == "step")):
            columns[column] = name
    return columns


def tells_training(names: Mapping[str, str]) -> bool:
    """Whether columns with these names are of a training."""
    return bool(names.keys() & {"loss", "grad_norm", "scale", "scale_after", *SKIP_FLAGS})


# Words of a training beside its loss; without any of them a loss may be an insurer's or a cable's.
_OF_TRAINING = re.compile(
    r"(?i)(?<![a-z])(?:train|step|iter|epoch|ep(?![a-z])|batch|episode|learning|lr(?![a-z])|"
    r"grad(?![eu])|gnorm|optimi[sz]er|entropy|xent|nll|bce|r?mse|mae|elbo|ppl|perplex|psnr|reward|acc(?![eo])|"
    r"val(?![au])|cuda|gpu|it/s|s/it|checkpoint|gan(?![a-z])|loss_?[dg](?![a-z])|[dg]loss|"
    r"score at)|[a-z0-9][_-]loss(?![a-z])|updates?(?![a-z])"
)
_QUIET = frozenset({"", "index", "idx", "time", "timestamp", "date", "wall_time", "elapsed"})


def speaks_of_training(texts: Iterable[str]) -> bool:
    """Whether one of some names or lines has a word of a training beside the loss."""
    return any(map(_OF_TRAINING.search, texts))


def says_nothing(name: str) -> bool:
    """Whether a name tells no more than a loss does: it is one, a letter or two, or a time."""
    plain = _plain(name)
    return len(plain) <= 2 or plain in _QUIET or plain.endswith("loss")


def _plain(name: str) -> str:
    name = _RUN_PREFIX.sub("", name).strip().removesuffix("/mean")
    return re.sub(r"[/\-. ]", "_", name).lower()


# Shorter names in lines of text.
_IN_TEXT: Mapping[str, tuple[str, ...]] = {
    "step": (
        "it", "itr", "update", "batch", "batch_idx", "steps", "minibatch", "batches", "episode",
        "episodes", "rollout",
    ),
    "grad_norm": ("norm", "grad"),
    "lr": ("l_r_",),
    "scale_after": ("scale",),
}  # fmt: skip


@cache
def column_in_text(name: str) -> tuple[str, int] | None:
    """The column that a name in a line of text means, and how sure that is: 0 is the surest."""
    if _OF_OTHERS.search(name):
        return None
    whole = name.removesuffix("/mean")
    for plain in dict.fromkeys((_plain(whole), _plain(whole.rpartition("/")[2]))):
        for column, usual in USUAL.items():
            words = (*usual, *_IN_TEXT.get(column, ()))
            if plain in words:
                return column, words.index(plain)
        if _RATE_OF.fullmatch(plain):
            return "lr", len(USUAL["lr"])
    return None
