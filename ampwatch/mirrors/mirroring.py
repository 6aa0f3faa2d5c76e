"""`mirror`: a run is shown, while it goes on, in what people already have."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.errors import MirrorError, warn
from ampwatch.mirrors.mirror_worker import EVERY_S, MirrorWorker, close_workers
from ampwatch.mirrors.places import active_places, open_mirrors

if TYPE_CHECKING:
    from ampwatch.probe import NoWatch, Watch

CLOSE_WAIT_S = 10.0

_SHOWN: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Mirroring]] = (
    weakref.WeakKeyDictionary()
)


def mirror(
    run: Watch | NoWatch | str | Path,
    to: str | Sequence[str] | None = None,
    *,
    thin: int = 1,
    every_s: float = EVERY_S,
    wait_s: float = CLOSE_WAIT_S,
) -> Mirroring:
    """Show a run's scalars and findings elsewhere as well, in a thread of its own.

    `run` is what `attach` returned, or a run's folder. `to` names one place or several:

    - "active", or None: whichever run of W&B, MLflow or trackio is active in this process
    - "wandb", "mlflow", "trackio": that one's active run
    - "wandb:PROJECT", "mlflow:EXPERIMENT", "trackio:PROJECT": a new run there
    - "tensorboard:DIR", "prometheus://:9464", "otlp://HOST:4318"
    - "prometheus", "otlp": the registry or the meter provider that this process has

    `thin=10` keeps each tenth step, and every skipped one.

    A thread reads the run's log every `every_s` seconds; the training is asked for nothing. What a
    client raises is warned of once and tried again, and closing the watch sends the rest, waiting
    `wait_s` at most. A run whose training was killed is over, too: `every_s` and 3 seconds after
    its last process is gone, or, on a disk without locks, after a minute without rows. MirrorError
    says here, and only here, what is missing. With AMPWATCH=0 nothing is done.
    """
    if thin < 1:
        raise MirrorError(f"thin is {thin!r}: pass a whole number of steps from 1 on.")
    if isinstance(run, (str, Path)):
        workers = _workers(_places(to), thin, every_s)
        for worker in workers:
            worker.follow(Path(run))
        return Mirroring(workers, wait_s)
    if run.run_folder is None:
        return Mirroring((), wait_s)
    places = _places(to)
    known = _SHOWN.setdefault(run, {}).get(places)
    if known is not None and not known.closed:  # a notebook's cell is run again
        _warn(f"this run is mirrored to {', '.join(places)} already, and that goes on.")
        return known
    workers = _workers(places, thin, every_s)
    for worker in workers:
        worker.follow(run.run_folder, run.rank, run.began_ns)
    mirroring = _SHOWN[run][places] = Mirroring(workers, wait_s)
    _end_with(run, mirroring)
    return mirroring


class Mirroring:
    """A run being mirrored; `close` sends what is left and ends it. Closing the watch does so."""

    def __init__(self, workers: Sequence[MirrorWorker], wait_s: float) -> None:
        self.closed = False
        self._workers = tuple(workers)
        self._wait_s = wait_s

    @property
    def is_over(self) -> bool:
        """Whether nothing is mirrored any more: the run is over, or this was closed."""
        return not any(worker.thread.is_at_work for worker in self._workers)

    @property
    def failures(self) -> int:
        """How often a client raised."""
        return sum(worker.failures for worker in self._workers)

    @property
    def lost_rows(self) -> int:
        """How many rows did not arrive; known once it is closed."""
        return sum(worker.lost_rows for worker in self._workers)

    def close(self) -> None:
        """Send what there is and end; again does nothing."""
        self.closed = True
        close_workers(self._workers, self._wait_s)

    def __enter__(self) -> Mirroring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _places(to: str | Sequence[str] | None) -> tuple[str, ...]:
    if to is None or to == "active":
        return tuple(active_places())
    return (to,) if isinstance(to, str) else tuple(to)


def _workers(places: Sequence[str], thin: int, every_s: float) -> list[MirrorWorker]:
    mirrors = open_mirrors(places, is_inside=True)
    return [MirrorWorker(one, _warn, every_s=every_s, thin=thin) for one in mirrors]


def _end_with(watch: Any, mirroring: Mirroring) -> None:
    """Send the rest when the watch ends, and end it before clients end what was begun before us.

    A client puts its own end in when its run begins. Ours, put in now, comes before that.
    """
    from ampwatch.probe import process_end

    reference = weakref.ref(watch)

    def at_end() -> None:
        if (still := reference()) is not None:
            still.close_at_exit()
        mirroring.close()

    cancel = process_end.at_end(at_end)
    watch.after_close(mirroring.close)
    watch.after_close(cancel)


def _warn(sentence: str) -> None:
    warn(sentence, RuntimeWarning)
