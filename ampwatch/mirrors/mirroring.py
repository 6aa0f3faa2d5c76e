"""`mirror`: show a run in other tools while it goes on."""

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
    """Show a run's scalars and findings in other tools, from a thread of its own.

    `run` is what `attach` returned, or a run's folder. `to` is one place or a list of places:

        "active" or None: the run of W&B, MLflow or trackio that is active in this process
        "wandb", "mlflow", "trackio": the active run of that tool
        "wandb:PROJECT", "mlflow:EXPERIMENT", "trackio:PROJECT": a new run there
        "tensorboard:DIR", "prometheus://:9464", "otlp://HOST:4318"
        "prometheus", "otlp": the registry or the meter provider of this process

    `thin=10` keeps every tenth step, and every skipped one.

    A thread reads the run's log every `every_s` seconds; the training does nothing for it. A
    client's error is reported once as a warning and the update is tried again. Closing the watch
    sends the rest, for at most `wait_s`. A run whose training was killed is over, too: `every_s`
    and 3 seconds after its last process is gone or, on a disk without locks, after a minute without
    rows. Raises MirrorError if a place is unknown or its client is missing. With AMPWATCH=0 it does
    nothing.
    """
    if thin < 1:
        raise MirrorError(f"thin is {thin!r}: pass a whole number, 1 or larger.")
    if isinstance(run, (str, Path)):
        workers = _workers(_places(to), thin, every_s)
        for worker in workers:
            worker.follow(Path(run))
        return Mirroring(workers, wait_s)
    if run.run_folder is None:
        return Mirroring((), wait_s)
    places = _places(to)
    known = _SHOWN.setdefault(run, {}).get(places)
    if known is not None and not known.closed:  # a notebook cell was run again
        _warn(f"this run is already mirrored to {', '.join(places)}.")
        return known
    workers = _workers(places, thin, every_s)
    for worker in workers:
        worker.follow(run.run_folder, run.rank, run.began_ns)
    mirroring = _SHOWN[run][places] = Mirroring(workers, wait_s)
    _end_with(run, mirroring)
    return mirroring


class Mirroring:
    """A run that is being mirrored; `close`, or closing the watch, sends the rest and ends it."""

    def __init__(self, workers: Sequence[MirrorWorker], wait_s: float) -> None:
        self.closed = False
        self._workers = tuple(workers)
        self._wait_s = wait_s

    @property
    def is_over(self) -> bool:
        """Whether mirroring has ended: the run is over, or this was closed."""
        return not any(worker.thread.is_at_work for worker in self._workers)

    @property
    def failures(self) -> int:
        """How many errors clients have raised."""
        return sum(worker.failures for worker in self._workers)

    @property
    def lost_rows(self) -> int:
        """How many rows did not arrive; known after `close`."""
        return sum(worker.lost_rows for worker in self._workers)

    def close(self) -> None:
        """Send the rest and end; a second call does nothing."""
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
    """Send the rest when the watch ends, before the clients end at process exit.

    A client registers its own exit handler when its run begins. Ours is registered now, so it runs
    first.
    """
    from ampwatch.probe import fatal_exceptions

    reference = weakref.ref(watch)

    def at_end() -> None:
        if (still := reference()) is not None:
            still.close_at_exit()
        mirroring.close()

    cancel = fatal_exceptions.at_end(at_end)
    watch.after_close(mirroring.close)
    watch.after_close(cancel)


def _warn(sentence: str) -> None:
    warn(sentence, RuntimeWarning)
