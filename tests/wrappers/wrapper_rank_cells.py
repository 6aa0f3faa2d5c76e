"""What is expected of the wrappers of several ranks; `ranks_wrappers` trains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

# torch 2.4 asks a build for CUDA for its streams even where the model stands on the CPU.
_FSDP2_RUNS = not torch.version.cuda or torch.cuda.is_available() or torch.__version__ >= "2.5"
EAGER = {"first": "float16", "gain": "float16", "head": "float32"}


@dataclass(frozen=True, eq=False)
class RankWrapper:
    """One row of the matrix, of several ranks."""

    name: str
    dtypes: Mapping[str, str | None] = field(default_factory=lambda: EAGER)
    culprit: str | None = "gain"
    sharded: bool = False
    compiled: bool = False
    too_high: float = 200.0  # times the learning rate that it trains well with
    runs: bool = True  # with this torch, on this machine


RANK_WRAPPERS = (
    RankWrapper("DistributedDataParallel"),
    RankWrapper("attach, then DistributedDataParallel"),
    RankWrapper("no_sync accumulation"),
    RankWrapper("torch.compile of DistributedDataParallel", {"(root)": "float32", "first": None},
                "(root)", compiled=True),
    RankWrapper("fully_shard", sharded=True, runs=_FSDP2_RUNS),
    RankWrapper("attach, then fully_shard", sharded=True, runs=_FSDP2_RUNS),
    RankWrapper("FullyShardedDataParallel", sharded=True),
    RankWrapper("FullyShardedDataParallel(use_orig_params)", sharded=True),
)  # fmt: skip
