"""The recorder itself: one thread that takes what arrives and files it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ampwatch import feed, store
from ampwatch.codec import Batch
from ampwatch.errors import AmpwatchError, RunError, RunInUseError
from ampwatch.recorder.compactor import Compactor
from ampwatch.recorder.copies import RankCopy, place
from ampwatch.recorder.records import RankRecord, RecordedRun, RecorderStats
from ampwatch.rows import FORMAT

ALIVE_S = 5.0
_IDLE_S = 0.25
_RETRY_S = 5.0
_FORGET_S = 600.0
_NOTES_KEPT = 200
_BAD_FRAMES_SAID = 100


class Recorder:
    """Receives the feed at `endpoint` and files it under `directory`, in a thread of its own.

    `on_rows` is called in that thread with a run's folder when rows have come for it, `on_note`
    with each sentence that the user should see. With `fallback`, a port that is taken is replaced
    by a free one, which trainers started later find by themselves.
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
        self._copies: dict[feed.PeerKey, RankCopy] = {}
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._said: set[str] = set()
        self._woken: set[Path] = set()
        self._receiver: feed.Receiver | None = None
        self._thread: threading.Thread | None = None
        self._compactor = Compactor(self._note)
        self._stopping = threading.Event()
        self._tended_s = 0.0

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
        found: dict[str, RecordedRun] = {}
        for key, copy in sorted(self._copies.copy().items(), key=lambda item: item[0].rank):
            before = found[key.run_id].ranks if key.run_id in found else ()
            records = (*before, self._record(key, copy))
            found[key.run_id] = RecordedRun(key.run_id, copy.info.name, copy.folder, records)
        return found

    @property
    def stats(self) -> RecorderStats:
        """The counts since the start."""
        counts = self._receiver.counts if self._receiver else feed.Counts()
        gaps = [gap for copy in self._copies.copy().values() for gap in copy.gaps]
        return RecorderStats(
            frames=counts.frames,
            rows=counts.rows,
            bytes=counts.bytes,
            bad_frames=counts.bad,
            ignored_frames=counts.ignored,
            requests=counts.requests,
            gaps=sum(after - first for first, after in gaps),
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
        self._receiver = feed.Receiver(self._wanted_endpoint, keys=keys, fallback=self._fallback)
        self._announce()
        self._thread = threading.Thread(target=self._work, name="ampwatch-recorder", daemon=True)
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

    def _announce(self) -> None:
        reachable = feed.reachable_form(self.endpoint)
        if reachable == feed.DEFAULT_ENDPOINT:
            return
        known = feed.announce(reachable)
        if self._receiver is not None and self._receiver.fell_back:
            how = (
                "your trainers on this machine find it if they start from now on"
                if known
                else f"start trainers with AMPWATCH_ENDPOINT={reachable}"
            )
            self._note(f"{self._wanted_endpoint} is taken, so this listens on {reachable}; {how}.")

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                for arrival in self._feed.receive(_IDLE_S):
                    self._take(arrival)
                self._wake()
                self._tend()
        finally:
            self._feed.close()
            for copy in self._copies.values():
                copy.close()

    # -- what arrives

    def _take(self, arrival: feed.Arrival) -> None:
        match arrival:
            case feed.RowsArrived(peer, sequence, batch):
                self._file(peer, sequence, batch)
            case feed.HelloArrived():
                self._meet(arrival)
            case feed.GapArrived(peer, first, after):
                self._lose(peer, first, after)
            case feed.EndArrived(peer):
                self._end(peer)
            case feed.BadArrived(peer, address, reason):
                self._count_bad(peer, address, reason)
            case feed.KeyDenied(public):
                self._note(
                    f"A trainer with the key {public} asked to connect and was denied: "
                    f"`ampwatch keys allow {public}` lets it in, if it is yours."
                )

    def _count_bad(self, peer: feed.PeerKey | None, address: str, reason: str) -> None:
        """Name the sender of a bad frame; who sends many is only counted."""
        if self._feed.counts.bad <= _BAD_FRAMES_SAID:
            sender = f"{peer} at {address}" if peer else address or "an unknown sender"
            self._note(f"A frame from {sender} was dropped: {reason}")

    def _meet(self, arrival: feed.HelloArrived) -> None:
        """Find or make the folder of a rank that has introduced itself, and ask for its rows."""
        key = arrival.peer
        try:
            copy = self._place(key, arrival)
        except AmpwatchError as error:
            self._refuse(key, error)
            return
        if key in self._copies:
            self._copies[key].close()
        self._copies[key] = copy
        self._woken.add(copy.folder)
        if copy.is_copy:
            self._open(key, copy)
        else:
            self._watch(key, copy)
        if copy.filed > arrival.head:
            self._note(
                f"{key}: the trainer's log was cut to {arrival.head} batches and the copy in "
                f"{copy.folder} holds {copy.filed}: what it writes anew below that is not filed."
            )

    def _place(self, key: feed.PeerKey, arrival: feed.HelloArrived) -> RankCopy:
        """Where a rank's rows belong; an AmpwatchError says why nowhere."""
        hello = arrival.hello
        info = store.RunInfo.from_json(hello.info_json)
        if hello.format > FORMAT:
            raise RunError(
                f"the trainer writes run format {hello.format} and this recorder reads up to "
                f"{FORMAT}; update ampwatch here."
            )
        if info.id != key.run_id:
            raise RunError("the description it sent is of another run.")
        return place(self._directory, info, key.rank, arrival.head)

    def _refuse(self, key: feed.PeerKey, error: AmpwatchError) -> None:
        self._note(f"{key} is not recorded: {error}")
        self._feed.refuse(key, str(error))

    def _open(self, key: feed.PeerKey, copy: RankCopy) -> None:
        try:
            copy.open()
        except RunInUseError as error:
            if copy.blocked_until_s is None:  # a compaction may be swapping files
                self._block(key, copy, error)
            else:
                self._watch(key, copy)
        except AmpwatchError as error:
            self._block(key, copy, error)
        else:
            self._feed.resume(key, copy.filed)

    def _watch(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Follow a rank that somebody else writes here, the trainer itself as a rule."""
        copy.is_copy, copy.blocked_until_s = False, None
        copy.filed = self._feed.peers[key].head
        self._feed.resume(key, copy.filed)

    def _file(self, key: feed.PeerKey, sequence: int, batch: Batch) -> None:
        copy = self._copies[key]
        try:
            copy.file(sequence, batch)
        except AmpwatchError as error:
            self._block(key, copy, error)
            return
        self._feed.filed(key, copy.filed)
        self._woken.add(copy.folder)

    def _block(self, key: feed.PeerKey, copy: RankCopy, error: AmpwatchError) -> None:
        """Stop taking a rank's rows until they can be filed; the trainer keeps them."""
        self._note(f"{key} cannot be filed for now and is tried again: {error}")
        copy.close()
        copy.blocked_until_s = time.monotonic() + _RETRY_S
        self._feed.resume(key, copy.filed, paused=True)

    def _lose(self, key: feed.PeerKey, first: int, after: int) -> None:
        copy = self._copies[key]
        try:
            if copy.lose(first, after):
                self._note(f"{key}: batches {first} to {after - 1} are lost, also to the trainer.")
        except AmpwatchError as error:
            self._refuse(key, error)
        else:
            self._feed.filed(key, copy.filed)

    def _end(self, key: feed.PeerKey) -> None:
        copy = self._copies[key]
        try:
            copy.end()
        except AmpwatchError as error:
            self._note(str(error))
        self._feed.confirm_end(key)
        self._woken.add(copy.folder)
        self._compact_if_complete(key.run_id)

    # -- after each round

    def _wake(self) -> None:
        while self._woken:
            folder = self._woken.pop()
            if self._on_rows is not None:
                self._on_rows(folder)

    def _tend(self) -> None:
        """Once a second: try again what was blocked, and let go of ranks that are long silent."""
        now_s = time.monotonic()
        if now_s - self._tended_s < 1.0:
            return
        self._tended_s = now_s
        for key, copy in self._copies.items():
            peer = self._feed.peers.get(key)
            if peer is None:
                continue
            if copy.blocked_until_s is not None and now_s > copy.blocked_until_s:
                self._open(key, copy)
            elif _silent_s(peer) > _FORGET_S:
                copy.close()
                self._feed.forget(key)
            elif not copy.is_copy and copy.is_stale(peer.head):
                self._note(
                    f"{copy.folder} holds rank {key.rank} of this run already and does not grow, "
                    "and it is no copy of a recorder's: nothing is filed. Move it away to have one."
                )

    def _compact_if_complete(self, run_id: str) -> None:
        """Compact a copy whose ranks have all ended."""
        copies = [copy for key, copy in self._copies.items() if key.run_id == run_id]
        complete = all(copy.has_ended and copy.is_copy for copy in copies)
        if complete and len(copies) >= copies[0].info.world_size:
            self._compactor.compact(copies[0].folder)

    # -- what is said

    @property
    def _feed(self) -> feed.Receiver:
        assert self._receiver is not None
        return self._receiver

    def _record(self, key: feed.PeerKey, copy: RankCopy) -> RankRecord:
        peer = self._feed.peers.get(key)
        return RankRecord(
            rank=key.rank,
            filed=copy.filed,
            head=max(copy.filed, peer.head if peer else 0),
            gaps=tuple(copy.gaps),
            bad_frames=peer.bad if peer else 0,
            is_copy=copy.is_copy,
            is_blocked=copy.blocked_until_s is not None,
            is_alive=peer is not None and not copy.has_ended and _silent_s(peer) < ALIVE_S,
            has_ended=copy.has_ended,
            heard_ns=peer.heard_ns if peer else 0,
        )

    def _note(self, sentence: str) -> None:
        """Say a sentence once, however often its cause comes back."""
        if sentence in self._said:
            return
        if len(self._said) < _NOTES_KEPT:
            self._said.add(sentence)
        self._notes.append(sentence)
        if self._on_note is not None:
            self._on_note(sentence)


def _silent_s(peer: feed.Peer) -> float:
    return time.monotonic() - peer.heard_s
