"""Ten failing trainings, and what is true of each: read off their code, not off the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A training and its right answers: any of these patterns must stand on the first screen."""

    name: str
    cause: str
    action: str
    layer: str | None = None  # None where no layer is to blame


# Of the demo's script, then of examples/gallery.
FAILURES = (
    Failure(
        "lr-too-high",
        cause=r"learning rate is too high|warm-up is too steep",
        action=r"(base lr =|base rate of|lower .{0,20}to)\s+0\.[01]\d+",
    ),
    Failure(
        "rate-jumps",
        cause=r"0\.05 to 50|from 0\.05",
        action=r"(undo|go back to|return to) .{0,40}(change|0\.05)",
    ),
    Failure(
        "ffn-output-overflows",
        cause=r"first whose output is (nan|inf)|overflow",
        action=r"bf16|in float32",
        layer=r"blocks\.1\.down",
    ),
    Failure(
        "softmax-without-max",
        cause=r"first whose output is (nan|inf)|overflow",
        action=r"bf16|in float32",
        layer=r"\b1\b",
    ),
    Failure(
        "weights-become-nan",
        cause=r"weights (are|were) not finite|weights held (inf|nan)",
        action=r"restart from the last checkpoint",
        layer=r"blocks\.0\.up",
    ),
    Failure(
        "gradients-not-cleared",
        cause=r"not cleared",
        action=r"zero_grad\(\)",
    ),
    Failure(
        "clip-before-unscale",
        cause=r"clipped before",
        action=r"unscale_\(optimizer\)",
    ),
    Failure(
        "resume-without-scaler-state",
        cause=r"scale was reset|scaler's state was lost",
        action=r"state_dict\(\)",
    ),
    Failure(
        "bad-batch",
        cause=r"batch stood out|largest input",
        action=r"check that batch",
    ),
    Failure(
        "loss-rebuilt-as-leaf",
        cause=r"no gradients",
        action=r"requires_grad|detach|torch\.tensor",
    ),
)

QUESTIONS = (
    "What went wrong, in one sentence?",
    "Since which step?",
    "Which layer or which part of the code is to blame, if any?",
    "What would you do next: which line would you change, which command would you give?",
    "How sure are you, from 0 to 100 %?",
)
