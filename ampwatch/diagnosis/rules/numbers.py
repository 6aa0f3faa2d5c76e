"""AMP201 to AMP209: where a number left its format, and which layer it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case, overflows
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.signals import Event, Signals
from ampwatch.diagnosis.words import count_text, steps_text

FP16_MAX = 65504.0


@rule(
    "AMP201",
    "gradient-underflow",
    Severity.WARNING,
    Page(
        meaning="Most of a layer's gradients are too small for half precision: they become zero "
        "or lose their digits, and the layer learns slowly or not at all.",
        looks="At accepted steps, most of the non-zero values in the gradient at a layer's output "
        "are below the smallest normal fp16 number, 2^-14.",
        not_to_confuse="Zeros after a collapse: there the scale is the consequence. A few lost "
        "values in the tail are normal.",
        do="Use a GradScaler; with one, raise its initial scale or find what keeps it low.",
        example="autocast without a GradScaler: 98 % lost in the first layers, the loss is flat.",
    ),
)
def gradient_underflow(case: Case) -> Iterator[Seen]:
    """A layer loses its small gradients, in most of its samples."""
    samples = _judged_samples(case)
    layers = case.signals.layers
    worst, lost_layers = None, 0
    for layer in np.unique(layers.layer[samples]):
        shares = layers.underflow_share[samples & (layers.layer == layer)]
        middle = float(np.median(shares))
        if len(shares) >= policy.UNDERFLOW_SAMPLES and middle >= policy.UNDERFLOW_SHARE:
            lost_layers += 1
            worst = max(worst or (0.0, 0), (middle, int(layer)))
    if worst is None:
        return
    share, layer = worst
    steps = layers.step[samples & (layers.layer == layer)]
    total = len(np.unique(layers.layer[samples]))
    yield Seen(
        severity=Severity.WARNING,
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        layer=layers.names[layer],
        summary=f"{lost_layers} of {count_text(total, 'layer')} lose most of their gradients to "
        f"underflow; {layers.names[layer]} loses {share:.0%}.".replace("%", " %"),
        cause="Their gradients are smaller than the smallest normal fp16 number, 2^-14."
        if case.signals.has_scaler
        else "Nothing scales the loss, so small gradients fall below fp16's smallest normal "
        "number, 2^-14.",
        action="Find what keeps the loss scale low; a higher scale brings these gradients back."
        if case.signals.has_scaler
        else "Scale the loss: torch.amp.GradScaler, or bf16, whose range is wide enough.",
        evidence=(Evidence("underflow_share", int(steps[-1]), share, policy.UNDERFLOW_SHARE),),
    )


def _judged_samples(case: Case) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Samples of accepted steps, before any collapse."""
    signals, layers = case.signals, case.signals.layers
    known = ~np.isnan(layers.underflow_share) & (layers.layer >= 0)
    good = ~signals.skipped
    falls = np.flatnonzero(case.is_collapse)
    if len(falls):
        good[case.episodes.first[falls[0]] :] = False
    return np.asarray(known & np.isin(layers.step, signals.step[good]))


@rule(
    "AMP202",
    "backward-overflow",
    Severity.WARNING,
    Page(
        meaning="The loss is finite and a layer's backward pass is not: its gradients, times the "
        "loss scale, leave fp16.",
        looks="At least three overflows that name the same layer, with a finite forward pass.",
        not_to_confuse="Overflows just after the scale grew (AMP102): any layer may cap a scale.",
        do="Look at that layer: a missing normalisation, a very large fan-in, an operation whose "
        "gradient explodes (sqrt, division, log near 0). Run it in float32.",
        example="encoder.11.output.dense named in 14 of 15 overflows.",
    ),
)
def backward_overflow(case: Case) -> Iterator[Seen]:
    """The same layer overflows again and again in the backward pass."""
    explained = case.explained_steps
    culprits = [e for e in _culprits(case.signals, "backward") if e.step not in explained]
    counts = Counter(str(e.detail["layer"]) for e in culprits)
    if not counts or counts.most_common(1)[0][1] < policy.BACKWARD_OVERFLOWS:
        return
    layer, times = counts.most_common(1)[0]
    at = [e for e in culprits if e.detail["layer"] == layer]
    recent = _stands(case.signals, at[-1].step)
    yield Seen(
        severity=Severity.WARNING if recent else Severity.INFO,
        first_step=at[0].step,
        last_step=at[-1].step,
        layer=layer,
        ranks=tuple(sorted({e.rank for e in at})),
        summary=f"{layer} is {_where(at)} to overflow in the backward pass, {times} times"
        + ("." if recent else ", and no longer at the end."),
        cause="The loss is finite; the gradient is not once it has passed this layer.",
        action="Look at this layer's gradient; run it in float32, or normalise what enters it.",
        evidence=(Evidence("overflows", at[-1].step, float(times), float(len(culprits))),),
    )


@rule(
    "AMP203",
    "forward-overflow",
    Severity.ERROR,
    Page(
        meaning="A layer's output is inf or nan though its inputs and weights are finite. fp16 "
        "ends at 65504; the loss scale has no part in the forward pass and cannot help.",
        looks="The first layer, innermost and in forward order, whose output is not finite.",
        not_to_confuse="A non-finite loss above finite activations (AMP204); weights that were "
        "not finite before (AMP207).",
        do="Run that layer in float32 (torch.autocast(enabled=False) around it), scale its "
        "activations down, or use bf16.",
        example="a feed-forward output of 66,246 in a model that was trained in bf16.",
    ),
)
def forward_overflow(case: Case) -> Iterator[Seen]:
    """A layer's activations leave fp16."""
    excused = case.bad_input_steps
    named = [e for e in _culprits(case.signals, "forward") if e.step not in excused]
    if not named:
        return
    first, layer = named[0], str(named[0].detail["layer"])
    last = max((e.step for e in named if e.step is not None), default=None)
    standing = _stands(case.signals, last)
    yield Seen(
        severity=Severity.ERROR if standing else Severity.INFO,
        first_step=first.step,
        last_step=last,
        layer=layer,
        ranks=tuple(sorted({e.rank for e in named})),
        summary=f"{layer} is {_where(named[:1])} whose output leaves half precision in the "
        f"forward pass{'' if standing else '; the run recovered'}.",
        cause=f"Its inputs and weights are finite, its output is not: fp16 ends at {FP16_MAX:.0f}, "
        "and the loss scale cannot help in the forward pass.",
        action=_forward_action(case, first, layer)
        if standing
        else "Nothing to do unless it returns.",
        evidence=(
            Evidence("act_finite", first.step, "false", FP16_MAX),
            Evidence("overflows", last, float(len(named))),
        ),
    )


@rule(
    "AMP204",
    "loss-not-finite",
    Severity.ERROR,
    Page(
        meaning="The loss is inf or nan though every layer's output is finite: the loss function "
        "itself, or a mask constant in it, leaves half precision.",
        looks="A non-finite loss at a step whose activations are all finite; in a text log, "
        "where nobody saw the activations, any non-finite loss.",
        not_to_confuse="AMP203: there a layer comes first. AMP209: there the input does.",
        do="Compute the loss in float32; use the forms that take logits; mask with the format's "
        "own minimum instead of -1e9.",
        example="log(softmax(x)) in fp16, exp() of a score above 11, a mask of -1e9.",
    ),
)
def loss_not_finite(case: Case) -> Iterator[Seen]:
    """A non-finite loss above finite activations."""
    signals = case.signals
    bad = signals.loss_known & ~np.isfinite(signals.loss)
    bad &= ~np.isin(signals.step, list(case.bad_input_steps))
    if case.sees_forward:
        bad &= case.forward_finite == 1
    at = signals.step[np.flatnonzero(bad)]
    if not len(at):
        return
    standing = _stands(signals, int(at[-1]))
    value = str(float(signals.loss[np.flatnonzero(bad)[0]]))
    seen = "every layer's output was finite" if case.sees_forward else "the layers were not seen"
    yield Seen(
        severity=Severity.ERROR if standing else Severity.INFO,
        first_step=int(at[0]),
        last_step=int(at[-1]),
        summary=f"The loss is {value} {steps_text(int(at[0]), int(at[-1]))}"
        + ("." if standing else ", and finite again at the end."),
        cause=f"In {count_text(len(at), 'step')} the loss was not finite while {seen}.",
        action="Compute the loss in float32, from logits, and look for constants such as -1e9."
        if standing
        else "Nothing to do unless it returns.",
        evidence=(Evidence("loss", int(at[0]), value),),
    )


@rule(
    "AMP207",
    "weights-not-finite",
    Severity.ERROR,
    Page(
        meaning="A weight is inf or nan before the forward pass. Nothing recovers from there: "
        "every later loss and gradient is its consequence.",
        looks="A layer whose weights are not finite, then skips at any scale.",
        not_to_confuse="A forward overflow (AMP203), where the weights are finite.",
        do="Restart from the last checkpoint with finite weights. Find what wrote them: a step at "
        "a scale below 2^-126, an optimizer whose eps vanishes in fp16, a step past the scaler.",
        example="Adam in fp16 with eps 1e-8: nan after the first step.",
    ),
)
def weights_not_finite(case: Case) -> Iterator[Seen]:
    """A weight is not finite before the forward."""
    signals, layers = case.signals, case.signals.layers
    rows = np.flatnonzero((layers.weight_finite == 0) & (layers.layer >= 0))
    first = case.first_bad_weight_step
    if first is None:
        return
    told = [str(e.detail["layer"]) for e in _culprits(signals, "weights")]
    names = told[:1] or _innermost([layers.names[i] for i in np.unique(layers.layer[rows])])
    where = names[0] if len(names) == 1 else None
    yield Seen(
        severity=Severity.ERROR,
        first_step=first,
        last_step=int(signals.step[-1]),
        layer=where,
        summary="Weights are not finite" + (f" in {where}." if where else "."),
        cause=f"At step {first} inf or nan stood in the weights before the forward pass"
        + (f", in {count_text(len(names), 'layer')}." if names else "."),
        action="Restart from the last checkpoint whose weights are finite; nothing recovers here.",
        evidence=(Evidence("weight_finite", first, "false"),),
    )


@rule(
    "AMP209",
    "non-finite-input",
    Severity.ERROR,
    Page(
        meaning="A tensor that enters the model holds inf or nan. No format and no scale helps.",
        looks="The input itself is not finite; what follows is its consequence.",
        not_to_confuse="AMP203: there the inputs are finite.",
        do="Check the data: division by zero in a normalisation, missing values, a broken file.",
        example="a column of constants, standardised: 0 / 0.",
    ),
)
def non_finite_input(case: Case) -> Iterator[Seen]:
    """A tensor entering the model is not finite."""
    signals = case.signals
    at = sorted(case.bad_input_steps)
    if not at:
        return
    standing = _stands(signals, int(at[-1]))
    yield Seen(
        severity=Severity.ERROR if standing else Severity.INFO,
        first_step=int(at[0]),
        last_step=int(at[-1]),
        summary=f"The model's input is not finite in {count_text(len(at), 'step')}"
        + ("." if standing else ", none of them recent."),
        cause="inf or nan stood in a tensor that enters the model.",
        action=f"Look at the batch of step {at[0]}: missing values, or a division by zero.",
        evidence=(Evidence("input_finite", int(at[0]), "false"),),
    )


def _forward_action(case: Case, first: Event, layer: str) -> str:
    """What to do depends on whether the run had worked before."""
    start = case.first_accepted
    worked = start is not None and (first.step or 0) > int(case.signals.step[start])
    if not worked:
        return f"Run {layer} in float32, scale its activations down, or use bf16."
    return (
        f"The run had worked until then: look at what made the activations grow (a rate too high, "
        f"a batch, a resume). If nothing did, run {layer} in float32 or use bf16."
    )


def _culprits(signals: Signals, direction: str) -> list[Event]:
    """The overflow events that name a layer in this direction."""
    return [event for event in overflows(signals, direction) if event.detail.get("layer")]


def _where(events: Sequence[Event]) -> str:
    """`the first`, or what the record can say when the layer is only a bound."""
    bound = all(event.detail.get("exact") is False for event in events)
    return "the first (as far as the record can tell)" if bound else "the first"


def _stands(signals: Signals, last_step: int | None) -> bool:
    """Whether what was seen last at this step still stands at the end of the record."""
    recent = signals.recent_step
    return recent is None or last_step is None or last_step >= recent


def _innermost(names: Sequence[str]) -> list[str]:
    """Without the containers of others in the list."""
    return [n for n in names if not any(m.startswith(f"{n}.") or n == "(root)" != m for m in names)]
