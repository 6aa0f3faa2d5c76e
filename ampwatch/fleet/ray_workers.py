"""Workers on the machines of a Ray cluster; the only file that imports ray.

A share whose worker or machine is lost is done again by another: Ray does that for as many times as
a share is allowed. The nodes read the place themselves, so they need ampwatch with its extra
`fleet`, of the same version, and credentials of their own: none goes through the cluster, whose
pages show what is sent.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ampwatch.errors import AmpwatchError
from ampwatch.fleet.workers import LOSSES
from ampwatch.printable_text import printable

J = TypeVar("J")
S = TypeVar("S")
R = TypeVar("R")

_AHEAD = 2  # shares a worker has waiting
_LOCAL_OBJECTS_BYTES = 128 << 20  # what passes through a cluster of this machine is short


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers of a Ray cluster: at an address, at that of RAY_ADDRESS, or of this machine alone.

    `most` is how many shares are worked on at a time; None for as many as the cluster has CPUs.
    """

    address: str | None = None
    most: int | None = None

    @property
    def count(self) -> int:
        """How many shares the cluster works on at a time; before it is asked, it may have many."""
        return self.most or os.cpu_count() or 1

    def as_done(
        self, work: Callable[[J, S], R], job: J, shares: Sequence[S]
    ) -> Iterator[tuple[S, R]]:
        """Each share with what `work` returns for it on the cluster, in the order they are done."""
        if not shares:
            return
        with _connected(self.address, self.most) as ray:
            task = ray.remote(num_cpus=1, max_retries=LOSSES)(work)
            handle = ray.put(job)
            at_once = self.most or _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            coming = deque(shares)
            waiting: dict[Any, S] = {}
            try:
                while coming or waiting:
                    while coming and len(waiting) < at_once:
                        share = coming.popleft()
                        waiting[task.remote(handle, share)] = share
                    (ready,), _ = ray.wait(list(waiting), num_returns=1)
                    yield waiting.pop(ready), _result(ray, ready)
            finally:
                for left in waiting:
                    ray.cancel(left, force=True)


@contextmanager
def _connected(address: str | None, most: int | None) -> Iterator[Any]:
    """Ray, connected to the cluster; afterwards it is as it was found."""
    try:
        import ray
    except ImportError as problem:
        raise AmpwatchError(
            "The engine ray needs Ray, which is not installed: pip install -e '.[fleet-ray]'."
        ) from problem
    if ray.is_initialized():
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that it is used
    told: dict[str, Any] = {"address": where}
    if where is None:
        cpus = most or os.cpu_count() or 1
        told = {
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": _LOCAL_OBJECTS_BYTES,
        }
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **told)
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as problem:
        raise AmpwatchError(
            f"Ray's cluster at {where or 'this machine'} cannot be used: {_said(problem)}"
        ) from problem
    try:
        yield ray
    finally:
        ray.shutdown()


def _result(ray: Any, ready: Any) -> Any:
    try:
        return ray.get(ready)
    except ray.exceptions.RayTaskError as problem:
        if isinstance(problem.cause, ImportError):
            raise AmpwatchError(
                f"A node of the cluster lacks what it takes ({_said(problem.cause)}): install "
                "'ampwatch[fleet]' on each, of the version that this machine has."
            ) from problem
        raise
    except ray.exceptions.RayError as problem:
        raise AmpwatchError(
            f"The cluster lost what it was judging {LOSSES + 1} times ({_said(problem)}); what was "
            "judged before is stored. Look at its nodes, and run the same command again."
        ) from problem


def _said(problem: BaseException) -> str:
    """The first line of Ray's error message."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return printable(lines[0] if lines else type(problem).__name__)[:300]
