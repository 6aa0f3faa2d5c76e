"""The text formats, one small file for each framework, in the order in which they are tried.

The first format that understands a line gets it. A new format is a file in this folder and its name
in `FORMATS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ampwatch.errors import LogError
from ampwatch.importers.format import Format
from ampwatch.importers.formats import (
    apex,
    colossalai,
    deepspeed,
    dllogger,
    espnet,
    evaluations,
    fairseq,
    fairseq2,
    giving_up,
    gpt_neox,
    hf_trainer,
    icefall,
    insightface,
    low_precision_options,
    megatron,
    metaseq,
    meters,
    mindformers,
    nanogpt,
    nemo,
    nvfp16,
    nvidia_inspector,
    paddle,
    parlai,
    plain,
    stable_baselines3,
    torchtitan,
    ultralytics,
)
from ampwatch.importers.line_splitter import plain_lines
from ampwatch.importers.statements import Stats

_MOST_LEARNED_LINES = 4000

FORMATS: tuple[Format, ...] = (
    nvidia_inspector.FORMAT,  # the only one with a line for each figure: most lines by far
    apex.FORMAT,
    deepspeed.FORMAT,
    nvfp16.FORMAT,
    gpt_neox.FORMAT,
    megatron.FORMAT,
    fairseq2.FORMAT,
    metaseq.FORMAT,
    fairseq.FORMAT,
    ultralytics.FORMAT,  # before those that take its bars for steps
    hf_trainer.FORMAT,
    meters.SWIN,
    meters.TIMM,
    meters.BEIT,
    meters.MAE,
    icefall.FORMAT,
    espnet.FORMAT,
    parlai.FORMAT,
    paddle.FORMAT,
    colossalai.FORMAT,
    mindformers.FORMAT,
    insightface.FORMAT,
    dllogger.FORMAT,
    nanogpt.FORMAT,
    nemo.FORMAT,
    torchtitan.FORMAT,
    stable_baselines3.FORMAT,
    low_precision_options.FORMAT,
    giving_up.FORMAT,
    evaluations.FORMAT,
    plain.FORMAT,
)
BY_SOURCE = {form.source: form for form in FORMATS if not form.is_shared}


def formats_for(source: str | None) -> Sequence[Format]:
    """All text formats, or the one with this name; raises LogError if there is none."""
    if source is None:
        return FORMATS
    if source not in BY_SOURCE:
        raise LogError(
            f"There is no format {source!r}. Known formats: {', '.join(sorted(BY_SOURCE))}."
        )
    return (BY_SOURCE[source],)


def formats_learned(
    formats: Sequence[Format], data: bytes, name: str, columns: Mapping[str, str]
) -> Sequence[Format]:
    """The formats for a log that has this text and name: the last resort knows its own kinds."""
    last = next((form for form in formats if form.is_last_resort), None)
    if last is None:
        return formats
    lines = plain_lines(data)[:_MOST_LEARNED_LINES]
    known = [form for form in formats if not form.is_shared]
    if columns:
        formats = [form for form in formats if form.is_shared]
    elif any(_tells_loss(known, line) for line in lines):
        return formats
    learned = plain.learned(lines, name, columns)
    guesses = plain.guesses(learned, lines)
    own = dataclasses.replace(
        last,
        anchors=(*"0123456789", *last.anchors),
        read=learned.read,
        notes=() if guesses is None else (guesses,),
    )
    return [own if form is last else form for form in formats]


def _tells_loss(formats: Sequence[Format], line: str) -> bool:
    """Whether a framework's format reads a loss in a line."""
    return any(
        isinstance(told, Stats) and "loss" in told.values
        for form in formats
        if any(anchor in line for anchor in form.anchors)
        for told in form.read(line)
    )
