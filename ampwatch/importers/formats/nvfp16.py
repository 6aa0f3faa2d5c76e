"""NVIDIA's FP16_Optimizer as copied into early Megatron-LM, Tacotron 2 and others."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.importers.format import Format, pattern
from ampwatch.importers.formats.deepspeed import attempted
from ampwatch.importers.sayings import Saying, Skip

_BARE = pattern("OVERFLOW! Skipping step. Attempted loss scale: {}")


def read(line: str) -> Iterator[Saying]:
    """What a line of FP16_Optimizer says."""
    if "OVERFLOW!" not in line or "[deep" in line:
        return
    found = list(attempted(line))
    if not found and (bare := _BARE.search(line)):
        found = [Skip(scale=float(bare[1]))]
    yield from found


FORMAT = Format(
    source="nvfp16",
    anchors=("OVERFLOW! Skipping step",),
    read=read,
    scaler={"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000.0,
            "init_scale": 2.0**32},
)  # fmt: skip
