"""What is expected of the wrappers of several ranks; `ranks_wrappers` trains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


RANK_WRAPPERS = (
    RankWrapper("DistributedDataParallel"),
    RankWrapper("attach, then DistributedDataParallel"),
    RankWrapper("no_sync accumulation"),
    RankWrapper("torch.compile of DistributedDataParallel", {"(root)": "float32", "first": None},
                "(root)", compiled=True),
    RankWrapper("fully_shard", sharded=True),
    RankWrapper("attach, then fully_shard", sharded=True),
    RankWrapper("FullyShardedDataParallel", sharded=True),
    RankWrapper("FullyShardedDataParallel(use_orig_params)", sharded=True),
)  # fmt: skip
