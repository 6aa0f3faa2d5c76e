"""The recorder itself: one thread that takes what arrives and has it filed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ampwatch import feed
from ampwatch.errors import RunError
from ampwatch.recorder.compactor import Compactor
from ampwatch.recorder.filing import Filing
from ampwatch.recorder.records import RecordedRun, RecorderStats

_IDLE_S = 0.25
_NOTES_KEPT = 200

T = TypeVar("T")


class Recorder:
    """Receives the feed at `endpoint` and files it under `directory`, in a thread of its own.

    `on_rows` is called in that thread with a run's folder when rows have come for it, `on_note`
    with each sentence that the user should see; should either raise, that is noted, and recording
    goes on. With `fallback`, a port that is taken is replaced by a free one, which trainers started
    later find by themselves.
    """

    def __init__(
        self,
        endpoint: str = feed.DEFAULT_ENDPOINT,
        directory: Path | str = "ampwatch-runs",
        *,
        insecure: bool = False,
        fallback: bool = False,
        on_rows: Callable[[Path], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self._wanted_endpoint = feed.check_endpoint(endpoint)
        self._directory = Path(directory)
        self._insecure, self._fallback = insecure, fallback
        self._on_rows, self._on_note = on_rows, on_note
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._said: set[str] = set()
        self._receiver: feed.Receiver | None = None
        self._filing: Filing | None = None
        self._thread: threading.Thread | None = None
        self._compactor = Compactor(self._note)
        self._stopping = threading.Event()

    # -- what others may ask at any time

    @property
    def endpoint(self) -> str:
        """Where it listens; before the start, where it was told to."""
        return self._receiver.endpoint if self._receiver else self._wanted_endpoint

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def notes(self) -> tuple[str, ...]:
        """The last sentences that the user should see, oldest first."""
        return tuple(self._notes)

    @property
    def runs(self) -> dict[str, RecordedRun]:
        """The runs heard of since the start, by id."""
        return self._filing.runs if self._filing else {}

    @property
    def stats(self) -> RecorderStats:
        """The counts since the start."""
        counts = self._receiver.counts if self._receiver else feed.Counts()
        return RecorderStats(
            frames=counts.frames,
            rows=counts.rows,
            bytes=counts.bytes,
            bad_frames=counts.bad,
            ignored_frames=counts.ignored,
            requests=counts.requests,
            gaps=self._filing.lost if self._filing else 0,
            denied_keys=tuple(counts.denied.copy()),
        )

    # -- its life

    def start(self) -> Recorder:
        """Take the port and begin; FeedError or RunError says why that is impossible."""
        if self._receiver is not None:
            return self
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"{self._directory} cannot be made ({error.strerror}): record into a folder that "
                "you can write.",
                path=self._directory,
            ) from error
        keys = feed.find_security(self._wanted_endpoint, insecure=self._insecure)
        receiver = feed.Receiver(self._wanted_endpoint, keys=keys, fallback=self._fallback)
        filing = Filing(receiver, self._directory, self._compactor, self._note)
        self._receiver, self._filing = receiver, filing
        self._announce(receiver)
        self._thread = threading.Thread(
            target=self._work, args=(receiver, filing), name="ampwatch-recorder", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop; everything acknowledged is in the folder, and trainers keep the rest in theirs."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            feed.withdraw()
        self._compactor.finish()

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _announce(self, receiver: feed.Receiver) -> None:
        reachable = feed.reachable_form(receiver.endpoint)
        if reachable == feed.DEFAULT_ENDPOINT:
            return
        known = feed.announce(reachable)
        if receiver.fell_back:
            how = (
                "your trainers on this machine find it if they start from now on"
                if known
                else f"start trainers with AMPWATCH_ENDPOINT={reachable}"
            )
            self._note(f"{self._wanted_endpoint} is taken, so this listens on {reachable}; {how}.")

    def _work(self, receiver: feed.Receiver, filing: Filing) -> None:
        try:
            while not self._stopping.is_set():
                for arrival in receiver.receive(_IDLE_S):
                    filing.take(arrival)
                for folder in filing.woken():
                    self._wake(folder)
                filing.tend()
        finally:
            receiver.close()
            filing.close()

    # -- what is said

    def _wake(self, folder: Path) -> None:
        trouble = _trouble_in(self._on_rows, folder)
        if trouble:
            self._note(f"on_rows raised {trouble}; recording goes on.")

    def _note(self, sentence: str) -> None:
        """Say a sentence once, however often its cause comes back."""
        if sentence in self._said:
            return
        if len(self._said) < _NOTES_KEPT:
            self._said.add(sentence)
        self._notes.append(sentence)
        trouble = _trouble_in(self._on_note, sentence)
        if trouble:
            self._notes.append(f"on_note raised {trouble}; recording goes on.")


def _trouble_in(callback: Callable[[T], None] | None, value: T) -> str | None:
    """What a caller's own function raised, if anything."""
    if callback is None:
        return None
    try:
        callback(value)
    except Exception as error:  # noqa: BLE001  theirs may raise anything; rows must go on coming
        return f"{type(error).__name__}: {error}"
    return None
