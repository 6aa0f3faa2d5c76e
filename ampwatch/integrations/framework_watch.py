"""The watch that the callbacks of all frameworks share; its failure never ends the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampwatch.errors import AttachError, GuardError, MirrorError
from ampwatch.guarding import NoGuard, StepGuard, guard
from ampwatch.probe import NoWatch, Watch, attach, warn


def attach_parts(
    scaler: Any, model: Any, optimizers: Any, options: Mapping[str, Any]
) -> Watch | NoWatch:
    """Attach to the parts that a framework wraps; without a scaler the optimizers show the steps.

    The option `guard` is not `attach`'s: True, or the arguments of `ampwatch.guard` as a dict.
    """
    several = optimizers if isinstance(optimizers, Sequence) else [optimizers]
    plain = [getattr(one, "optimizer", one) for one in several]
    attached = {name: value for name, value in options.items() if name != "guard"}
    watch = attach(scaler, model, optimizer=plain if scaler is None else None, **attached)
    if options.get("guard"):
        put_guard(watch, options["guard"])
    return watch


def put_guard(watch: Watch | NoWatch, asked: Any) -> StepGuard | NoGuard:
    """Put the guard on a framework's watch: `asked` is True or the guard's arguments."""
    if asked is not True and not isinstance(asked, Mapping):
        raise GuardError("guard is True, or a dict of ampwatch.guard's arguments.")
    return guard(watch, **({} if asked is True else asked))


class FrameworkWatch:
    """The watch of a framework's callback: begins and ends with the training, may begin again."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._mirror = self._options.pop("mirror", None)
        self._asked_guard = self._options.pop("guard", None)
        self.watch: Watch | NoWatch | None = None
        self.guard: StepGuard | NoGuard = NoGuard()  # the last training's, when it is over

    def begin(self, scaler: Any, model: Any, optimizers: Any, **options: Any) -> None:
        """Begin to watch a framework's training; the user's options go before the callback's.

        A framework's set-up that cannot be watched is reported in a sentence, and trains on
        unwatched: hours may have gone into loading it.
        """
        self.end()
        try:
            self.watch = attach_parts(scaler, model, optimizers, {**options, **self._options})
        except AttachError as error:
            warn(f"this training is not watched: {error}")
            return
        if self._asked_guard:
            self._put_guard(self.watch)
        if self._mirror is not None:
            self._start_mirror(self.watch)

    def _put_guard(self, watch: Watch | NoWatch) -> None:
        try:
            self.guard = put_guard(watch, self._asked_guard)
        except GuardError as error:
            warn(f"this training is not guarded: {error}")

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Have the guard end a framework's training by this function, not as Ctrl-C does."""
        self.guard.on_stop(stop)

    def _start_mirror(self, watch: Watch | NoWatch) -> None:
        """Mirror the watch of the first rank, whose process has the framework's loggers."""
        from ampwatch.mirrors import mirror

        if watch.rank:
            return
        try:
            mirror(watch, self._mirror)
        except MirrorError as error:
            warn(f"this training is not mirrored: {error}")

    @property
    def run_name(self) -> str | None:
        """The folder's name of the run that the framework's watch writes."""
        folder = getattr(self.watch, "run_folder", None)
        return None if folder is None else str(folder.name)

    def log(self, values: Mapping[str, Any] | None = None, /, **scalars: Any) -> None:
        """Log scalars to the step in progress of the framework's training."""
        if self.watch is not None:
            self.watch.log(values, **scalars)

    def fail(self, error: BaseException) -> None:
        """End the watch of a framework's training that ends by this exception."""
        if isinstance(self.watch, Watch):
            self.watch.record_exception(error)
        self.end()

    def end(self) -> None:
        """End the watch of a framework's training; a second call does nothing."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None
