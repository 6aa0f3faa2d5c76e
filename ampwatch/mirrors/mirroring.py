"""`mirror`: show a run in other tools while it goes on, with one thread a place.

The name of a place becomes a `Mirror`; clients of other projects are loaded only when somebody asks
for a mirror there. Failures and hangs of a place affect nothing else.
"""

from __future__ import annotations

import re
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from ampwatch.diagnosis.value_text import count_text
from ampwatch.errors import AmpwatchError, MirrorError, warn
from ampwatch.follow import Follower, FollowThread
from ampwatch.mirrors.updates import Selection, Update, UpdateReader
from ampwatch.printable_text import cut, printable
from ampwatch.retry import Retry

if TYPE_CHECKING:
    from ampwatch.probe import NoWatch, Watch

EVERY_S = 5.0
LONGEST_RETRY_S = 60.0
LAST_TRY_S = 2.0  # time at the end for a client that failed before

EXAMPLES = (
    "tensorboard:DIR, prometheus://:9464, otlp://HOST:4318 (otlps:// with TLS), wandb:PROJECT, "
    "mlflow:EXPERIMENT, trackio:PROJECT"
)
KINDS = ("tensorboard", "prometheus", "otlp", "otlps", "wandb", "mlflow", "trackio")
_LONGEST_REASON = 200  # letters
_WITH_RUNS = ("wandb", "mlflow", "trackio")  # tools whose runs may be active in this process


class Mirror(Protocol):
    """A place that shows runs. Used by one thread; may be slow and may raise.

    An update at which it raised is passed again later. `close` is called after the last one.
    """

    @property
    def label(self) -> str:
        """Its name in sentences."""

    @property
    def shows_past(self) -> bool:
        """Whether it also wants what was logged before this process began."""

    def take(self, update: Update) -> None:
        """Show an update of a run in this tool."""

    def close(self) -> None:
        """Send what is still waiting, and end."""


def open_mirror(place: str, *, is_inside: bool) -> Mirror:
    """The mirror for the name of a place; MirrorError says what is missing.

    `is_inside`: this is the training process, in which runs of the user may be active.
    """
    kind, _, rest = place.partition(":")
    name = kind.strip().lower()
    if name not in KINDS:
        raise MirrorError(f"{place!r} is no tool to mirror to. Tools are {EXAMPLES}.")
    scheme = {"scheme": "https"} if name == "otlps" else {}
    try:
        mirror: Mirror = _file(name).open_mirror(rest.strip(), is_inside=is_inside, **scheme)
    except MirrorError:
        raise
    except Exception as error:
        raise MirrorError(f"Cannot mirror to {kind}: {reason(error)}.") from error
    return mirror


def open_mirrors(places: Sequence[str], *, is_inside: bool) -> list[Mirror]:
    """A mirror for each place; if one fails, none stays open."""
    opened: list[Mirror] = []
    try:
        for place in places:
            opened.append(open_mirror(place, is_inside=is_inside))  # noqa: PERF401  if one fails, those before it end
    except MirrorError:
        for mirror in opened:
            mirror.close()
        raise
    return opened


def active_places() -> list[str]:
    """The places where a run is active in this process; MirrorError if there is none."""
    active = [name for name in _WITH_RUNS if name in sys.modules and _file(name).is_active()]
    if not active:
        raise MirrorError(
            "No run of W&B, MLflow or trackio is active: start one before ampwatch.mirror(), or "
            f"name a tool: {EXAMPLES}."
        )
    return active


def _file(name: str) -> ModuleType:
    """Our module for a place to mirror to, loaded when somebody asks for it."""
    return import_module(f"ampwatch.mirrors.{'otlp' if name == 'otlps' else name}")


def client(module: str, package: str) -> Any:
    """The module of a place's client; MirrorError says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MirrorError(
            f"This mirror needs the package {package}, which cannot be loaded ({reason(error)}): "
            f"pip install {package}."
        ) from error


def reason(error: Exception) -> str:
    """A client's error message, without passwords that an address in it may contain."""
    text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    text = re.sub(r"://[^/@\s]+@", "://…@", text)
    return cut(text, _LONGEST_REASON)


# --- the thread of a place ------------------------------------------------------------------------


class MirrorWorker:
    """Passes updates of runs to a mirror until they are over or it is closed.

    An error of the mirror is counted, reported to `on_note` once, and the update is tried again
    later: the runs' logs keep what is waiting. `close` sends the rest and reports how many rows did
    not arrive.
    """

    def __init__(
        self,
        mirror: Mirror,
        on_note: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        thin: int = 1,
    ) -> None:
        self.lost_rows = 0  # known after `close`
        self._mirror, self._on_note = mirror, on_note
        self._every_s, self._thin = every_s, thin
        self._readers: dict[Path, UpdateReader] = {}
        self._retry = Retry(every_s, LONGEST_RETRY_S)
        self._was_closed = False
        self.thread = FollowThread(
            self._bring, self._say_unreadable, every_s=every_s, name="ampwatch-mirror",
            at_end=lambda: self._does(mirror.close),
        )  # fmt: skip

    @property
    def failures(self) -> int:
        """How many errors the client has raised."""
        return self._retry.failures

    def follow(self, folder: Path, rank: int | None = None, began_ns: int = 0) -> None:
        """Mirror a run until it is over; `began_ns` is when this process began to write it."""
        selection = Selection(self._thin, rank, began_ns, self._mirror.shows_past)
        self._readers[folder] = UpdateReader(folder, selection)
        self.thread.follow(folder, began_ns)

    def close(self, wait_s: float | None = None) -> None:
        """Send the rest and end; a mirror that hangs is abandoned after `wait_s`."""
        if wait_s is not None and self._retry.failures_in_a_row:
            wait_s = min(wait_s, LAST_TRY_S)
        if self._was_closed or not self.thread.close(wait_s):
            return
        self._was_closed = True
        readers = self._readers.values()
        self.lost_rows = sum(reader.waiting_rows for reader in readers)
        if self.thread.is_at_work or any(reader.is_behind for reader in readers):
            self._on_note(
                f"{self._mirror.label} did not receive everything: "
                f"{count_text(self.lost_rows, 'row')} did not arrive. They are in the run's "
                "own log."
            )

    # --- in the thread ---------------------------------------------------------------------------

    def _bring(self, folder: Path, follower: Follower) -> bool:
        """Send updates until none is left or the mirror fails; whether the run is done."""
        if self._retry.due_in_s and not self.thread.is_closing:
            return False
        reader = self._readers.get(folder)
        if reader is None:
            reader = self._readers[folder] = UpdateReader(folder, Selection(self._thin))
        reader.update(follower, 0.0 if self.thread.is_closing else self._every_s / 10)
        while (update := reader.next()) is not None:
            if not self._does(partial(self._mirror.take, update)):
                return False
            reader.taken()
        return reader.is_done

    def _say_unreadable(self, folder: Path, problem: AmpwatchError) -> None:
        self._on_note(f"{folder.name} cannot be mirrored: {problem}")

    def _does(self, act: Callable[[], None]) -> bool:
        """Whether the client accepted it."""
        trouble = ""
        try:
            act()
        except Exception as error:  # noqa: BLE001  clients of others; nobody else may suffer
            trouble = reason(error)
        if self._retry.note(failed=bool(trouble)):
            self._on_note(
                f"{self._mirror.label} did not accept an update ({trouble}). It is tried again; "
                "the training is not affected."
            )
        return not trouble


def close_workers(workers: Sequence[MirrorWorker], wait_s: float | None) -> None:
    """Close all workers of mirrors, within `wait_s` together."""
    for worker in workers:
        worker.thread.end()
    until_s = None if wait_s is None else time.monotonic() + wait_s
    for worker in workers:
        worker.close(None if until_s is None else max(0.0, until_s - time.monotonic()))


# --- mirror() -------------------------------------------------------------------------------------

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
    """Send a mirror's rest when the watch ends, before the clients end at process exit.

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
