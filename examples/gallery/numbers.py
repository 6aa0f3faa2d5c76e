"""A number leaves fp16: forward, backward, in the loss, in the data, in the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from examples.gallery.parts import (
    BATCH,
    Attention,
    Batch,
    Language,
    Loop,
    SquaredReLU,
    Tower,
    classes,
    entropy,
    regression,
    scaler,
    squared,
    tokens,
)
from examples.gallery.vocabulary import Family, Label, Stage

FAMILY = Family("numbers")
NOT_THE_RATE = "not-the-cause"
FALL = ("AMP101", "AMP104", "AMP105")  # what else a scale does that falls from the first step on


def _from_the_start(layer: str | None, code: str = "AMP203") -> Label:
    """Nothing is ever accepted, and no scale can help."""
    return Label((code, "AMP103"), may=FALL, layer=layer, advice=NOT_THE_RATE, onset=0)


@FAMILY.fault(
    _from_the_start("blocks.1.act"),
    issue="google-research/text-to-text-transfer-transformer#539",
)
def bf16_born_weights(stage: Stage, fault: bool) -> None:
    """Weights at home in bf16: a squared ReLU leaves fp16 at every step."""
    model = Tower(act=SquaredReLU)
    with torch.no_grad():
        model.blocks[1].up.weight.mul_(600 if fault else 1)
    Loop(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3)).run(stage)


@FAMILY.fault(_from_the_start("blocks.1.down"), issue="huggingface/transformers#5651")
def ffn_output_overflows(stage: Stage, fault: bool) -> None:
    """The feed-forward's second matrix gives values just beyond 65504, as in T5."""
    model = Tower()
    with torch.no_grad():
        model.blocks[1].down.weight.mul_(2e6 if fault else 1)
    Loop(model, loss_of=_small, optimizer=_adam(model)).run(stage)


def _small(output: Tensor, target: Tensor) -> Tensor:
    return squared(output / 1024, target)


def _adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


class _HandSoftmax(nn.Module):
    """exp(x) / sum(exp(x)), with or without taking the largest away first."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.safe = safe

    def forward(self, x: Tensor) -> Tensor:
        largest = x.amax(-1, keepdim=True) if self.safe else 0
        powers = torch.exp((x - largest).half())
        return powers / powers.sum(-1, keepdim=True)


@FAMILY.fault(_from_the_start("1"))
def softmax_without_max(stage: Stage, fault: bool) -> None:
    """A softmax by hand: exp of a logit above 11 is inf in fp16."""
    model = nn.Sequential(nn.Linear(16, 16), _HandSoftmax(not fault), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].weight.mul_(20)
    Loop(model).run(stage)


def _padded(step: int) -> Batch:
    text, following = tokens(step)
    return text, following


class _PaddedLanguage(Language):
    """Marks the first sentence as padding from end to end."""

    def forward(self, text: Tensor) -> Tensor:
        x = self.embed(text)
        padding = torch.zeros(text.shape, dtype=torch.bool)
        padding[0] = True
        return self.head(self.block(x + self.attend(x, padding)))


@FAMILY.fault(_from_the_start("attend"), issue="NVIDIA/apex#93")
def mask_beyond_half(stage: Stage, fault: bool) -> None:
    """A mask of -1e15 is -inf in fp16, and a row of only -inf has no softmax."""
    model = _PaddedLanguage(Attention(-1e15 if fault else -1e4))
    Loop(model, _padded, entropy, _adam(model)).run(stage)


class _Norm(nn.Module):
    """A root-mean-square norm in the input's own format."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.gain = eps, nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        x = x.half()
        variance = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + torch.tensor(self.eps).half()) * self.gain


def _with_padding(step: int) -> Batch:
    x, y = regression(step)
    x[: BATCH // 8] = 0
    return x, y


@FAMILY.fault(_from_the_start("1"), issue="deepspeedai/DeepSpeed#581")
def norm_eps_vanishes(stage: Stage, fault: bool) -> None:
    """A norm's eps of 1e-12 is zero in fp16, and padded rows have no variance."""
    eps = 1e-12 if fault else 1e-3
    model = nn.Sequential(nn.Linear(16, 16, bias=False), _Norm(eps), nn.Linear(16, 4))
    Loop(model, _with_padding).run(stage)


class _SumPool(nn.Module):
    """Adds all positions up in fp16."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        x = x.half() * 64
        return x.mean(1) if self.mean else x.sum(1)


def _long(step: int) -> Batch:
    x, y = regression(step)
    return (1 + x[:, None, :].abs()).expand(-1, 4096, -1) + 0, y


@FAMILY.fault(_from_the_start("1"), issue="qubvel-org/segmentation_models.pytorch#463")
def sum_over_positions(stage: Stage, fault: bool) -> None:
    """A sum over 4096 positions passes 65504 though each value is small."""
    model = nn.Sequential(nn.Identity(), _SumPool(mean=not fault), nn.Linear(16, 4))
    Loop(model, _long, _small, steps=40).run(stage)


@FAMILY.fault(
    Label(("AMP203",), may=(*FALL, "AMP103"), layer="1", advice=NOT_THE_RATE, onset=44),
    issue="huggingface/transformers#9295",
)
def activation_grows_until_overflow(stage: Stage, fault: bool) -> None:
    """A gain that is raised step by step carries one activation past 65504."""
    model = nn.Sequential(nn.Linear(16, 16), _Gain(), nn.LayerNorm(16), nn.Linear(16, 4))

    def grow(step: int) -> None:
        model[1].gain.fill_(math.exp(0.24 * step) if fault else 1.0)

    Loop(model, before=grow).run(stage)


class _Gain(nn.Module):
    """Multiplies by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain.to(x.dtype)


@FAMILY.fault(_from_the_start(None, "AMP204"), issue="pytorch/pytorch#40497")
def log_of_half_probability(stage: Stage, fault: bool) -> None:
    """The loss takes the logarithm of an fp16 probability, and small ones are zero."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        sharp = 40 * output.float()
        logs = torch.log(torch.softmax(sharp, -1).half()) if fault else torch.log_softmax(sharp, -1)
        return -logs.float().gather(-1, target[:, None]).mean()

    Loop(Tower(8), classes, loss_of).run(stage)


class _Root(nn.Module):
    """The square root of a square: no slope at zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.float() ** 2 + self.eps)


@FAMILY.fault(
    Label(("AMP202", "AMP103"), may=FALL, layer="1", advice=NOT_THE_RATE, onset=0),
    issue="NVIDIA/apex#654",
)
def root_of_zero(stage: Stage, fault: bool) -> None:
    """sqrt has an infinite slope at zero: padded rows make the backward pass NaN every time."""
    model = nn.Sequential(
        nn.Linear(16, 16, bias=False), _Root(0.0 if fault else 1e-4), nn.Linear(16, 4)
    )
    Loop(model, _with_padding).run(stage)


@FAMILY.fault(
    Label(("AMP202",), may=("AMP103", "AMP105", "AMP206"), layer="1", advice=NOT_THE_RATE, onset=9),
    issue="implus/PytorchInsight#32",
)
def root_of_zero_now_and_then(stage: Stage, fault: bool) -> None:
    """The same in every tenth batch only: the forward pass is finite throughout."""
    eps = 0.0 if fault else 1e-4
    model = nn.Sequential(nn.Linear(16, 16, bias=False), _Root(eps), nn.Linear(16, 4))

    def batch(step: int) -> Batch:
        return _with_padding(step) if step % 10 == 9 else regression(step)

    Loop(model, batch, steps=120).run(stage)


class _Probability(nn.Module):
    """log(1 - p) with a limit on p that fp16 cannot tell from 1."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        sure = torch.sigmoid(x.half() * 16).clamp(max=self.limit)
        return torch.exp(torch.log1p(-sure))


@FAMILY.fault(
    Label(("AMP202", "AMP103"), may=FALL, layer="1", advice=NOT_THE_RATE, onset=0),
    issue="fastino-ai/GLiNER2#155",
)
def survival_of_a_sure_thing(stage: Stage, fault: bool) -> None:
    """1 - 1e-6 is 1 in fp16: log1p(-p) is -inf, exp hides it, the backward pass does not."""
    model = nn.Sequential(
        nn.Linear(16, 16), _Probability(1 - (1e-6 if fault else 1e-2)), nn.Linear(16, 4)
    )
    Loop(model).run(stage)


@FAMILY.fault(Label(("AMP201",), may=("AMP107",), advice=NOT_THE_RATE, onset=0))
def scale_too_small(stage: Stage, fault: bool) -> None:
    """A fixed scale of 1 and a loss divided by a million: most gradients are lost."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return squared(output, target) * 1e-6

    start = 1.0 if fault else 2.0**24
    optimizer_rate = 2e4
    model = Tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=optimizer_rate)
    Loop(model, loss_of=loss_of, optimizer=optimizer, scaler=scaler(start), steps=200).run(stage)


@FAMILY.fault(Label(("AMP205",), layer="1", advice=NOT_THE_RATE, onset=0))
def close_to_the_end(stage: Stage, fault: bool) -> None:
    """An activation lives at half of 65504, and nothing has overflowed yet."""
    model = nn.Sequential(nn.Linear(16, 16), _Gain(), nn.LayerNorm(16), nn.Linear(16, 4))

    def hold(_: int) -> None:
        model[1].gain.fill_(14_000.0 if fault else 1.0)

    Loop(model, before=hold, steps=200).run(stage, layer_every=10)


@FAMILY.fault(
    Label(("AMP210",), may=("AMP205",), layer="attend.query", advice=NOT_THE_RATE, onset=0)
)
def attention_scores_drift(stage: Stage, fault: bool) -> None:
    """Query and key grow a little every step, for thousands of steps: nothing holds the scores."""
    model, few = Language(), tuple(part[:4] for part in tokens(0))
    growth = 2.0 ** (5 / 2100) if fault else 1.0  # the product rises by ten octaves

    def grow(_: int) -> None:
        with torch.no_grad():
            model.attend.query.weight.mul_(growth)
            model.attend.key.weight.mul_(growth)

    Loop(model, lambda _: few, entropy, steps=2100, before=grow).run(stage)


@FAMILY.fault(
    Label(("AMP206",), may=("AMP303",), advice=NOT_THE_RATE, onset=70),
    issue="Lightning-AI/pytorch-lightning#4956",
)
def bad_batch(stage: Stage, fault: bool) -> None:
    """One batch in mid-run is thousands of times too large; before and after all is well."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def batch(step: int) -> Batch:
        x, y = regression(step)
        return (x * 3e3 if fault and step == 70 else x), y

    Loop(model, batch, steps=140, clip=1.0).run(stage)


@FAMILY.fault(
    Label(("AMP207", "AMP103"), may=("AMP104", "AMP105", "AMP203"), advice=NOT_THE_RATE, onset=40),
    issue="NVIDIA/apex#240",
)
def weights_become_nan(stage: Stage, fault: bool) -> None:
    """One weight is set to NaN from outside: every step after it is skipped, at any scale."""
    model = Tower()

    def damage(step: int) -> None:
        if step == 40 and fault:
            with torch.no_grad():
                model.blocks[0].up.weight[3, 3] = math.nan

    Loop(model, before=damage, steps=120).run(stage)


@FAMILY.fault(
    Label(("AMP209",), may=("AMP103", "AMP105", "AMP206"), advice=NOT_THE_RATE, onset=10),
    issue="Lightning-AI/pytorch-lightning#4956",
)
def nan_in_the_data(stage: Stage, fault: bool) -> None:
    """Every tenth batch holds a NaN."""

    def batch(step: int) -> Batch:
        x, y = regression(step)
        if fault and step % 10 == 9:
            x[3, 3] = math.nan
        return x, y

    Loop(Tower(), batch, steps=120).run(stage)


class _TwoScales(nn.Module):
    """Two branches whose gradients lie further apart than fp16 is wide."""

    def __init__(self, apart: float) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(16, 4), nn.Linear(16, 4)
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        large, small = self.large(x).float(), self.small(x).float()
        return torch.cat((large * self.apart, small / self.apart), -1)


def _both(output: Tensor, target: Tensor) -> Tensor:
    return (output[:, :4] - target).abs().mean() + output[:, 4:].sum(-1).abs().mean()


@FAMILY.fault(Label(("AMP208",), may=("AMP107", "AMP201"), advice=NOT_THE_RATE, onset=0))
def no_scale_fits(stage: Stage, fault: bool) -> None:
    """One branch caps the scale where the other's gradients are long gone."""
    model = _TwoScales(2.0**18 if fault else 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    Loop(model, loss_of=_both, optimizer=optimizer, steps=200).run(stage)
