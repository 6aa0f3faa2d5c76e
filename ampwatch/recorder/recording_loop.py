"""The recording itself, apart from its process: a port, and what arrives there filed as copies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ampwatch import feed, store
from ampwatch.codec import Batch
from ampwatch.errors import AmpwatchError, RunError, RunInUseError
from ampwatch.recorder.rank_copies import Compactor, OpenFiles, RankCopy, copy_in
from ampwatch.recorder.recorder_messages import (
    ALIVE_S,
    Asked,
    Message,
    NewRows,
    Noted,
    RankRecord,
    RankReport,
    RecorderStats,
)
from ampwatch.rows import FORMAT

_IDLE_S = 0.25
_REPORT_EVERY_S = 0.5  # the state of the ranks, and the counts
_TEND_EVERY_S = 1.0
_RETRY_S = 5.0
# A trainer gives a sign of life each second; one silent for so long is dead or out of reach.
_CLOSE_S = 30.0
_FORGET_S = 600.0
_BAD_FRAMES_NOTED = 100


class Recording:
    """Receives the feed at `endpoint` and files it under `directory`, in the thread that runs it.

    `report` is called with what the views should know. It must not wait: rows would wait too.
    """

    def __init__(
        self,
        endpoint: str,
        directory: Path,
        report: Callable[[Message], None],
        *,
        keys: feed.Security,
        fallback: bool = False,
        limits: feed.Limits | None = None,
        beside: Sequence[Path] = (),
    ) -> None:
        self._report = report
        self._directory, self._beside = directory, beside
        self._receiver = feed.Receiver(endpoint, keys=keys, limits=limits, fallback=fallback)
        self.endpoint, self.fell_back = self._receiver.endpoint, self._receiver.fell_back
        self._copies: dict[feed.PeerKey, RankCopy] = {}
        self._open_files = OpenFiles(self._note)
        self._compactor = Compactor(self._note)
        self._with_new_rows: set[Path] = set()
        self._changed: set[feed.PeerKey] = set()
        self._stats = RecorderStats()
        self._reported_s = self._tended_s = 0.0

    def run(self, is_over: Callable[[], bool], asked: deque[Asked] | None = None) -> None:
        """Take what arrives until it is over; what was acknowledged by then is in the folder.

        What is `asked` of trainers meanwhile is passed on to them.
        """
        try:
            while not is_over():
                while asked:
                    self._pass_on(asked.popleft())
                for arrival in self._receiver.receive(_IDLE_S):
                    self._take(arrival)
                if time.monotonic() - self._tended_s >= _TEND_EVERY_S:
                    self._tend()
                folders, self._with_new_rows = self._with_new_rows, set()
                for folder in folders:
                    self._report(NewRows(folder))
                if time.monotonic() - self._reported_s > _REPORT_EVERY_S:
                    self._report_state()
        finally:
            self._receiver.close()
            for copy in self._copies.values():
                copy.close()
            self._report_state()
            self._compactor.finish()

    def _pass_on(self, asked: Asked) -> None:
        key = feed.PeerKey(asked.run_id, asked.rank)
        if not self._receiver.instruct(key, asked.instruction, asked.number):
            name = asked.instruction.key.value
            self._note(f"{key} cannot be reached: the instruction {name!r} was not sent.")

    # --- what arrives ----------------------------------------------------------------------------

    def _take(self, arrival: feed.Arrival) -> None:
        """File what has arrived, or act on it."""
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
                self._note_bad(peer, address, reason)
            case feed.KeyDenied(public, trouble):
                self._note_denied(public, trouble)
                return
            case feed.RankTurnedAway(peer, reason):
                self._note(f"{peer} is not recorded: {reason}")
                return
        if arrival.peer is not None:
            self._changed.add(arrival.peer)

    def _meet(self, arrival: feed.HelloArrived) -> None:
        """Find or make the folder of a rank that has introduced itself, and ask for its rows."""
        key = arrival.peer
        try:
            copy = self._copy_of(key, arrival)
        except AmpwatchError as error:
            self._refuse(key, error)
            return
        self._begin(key, copy)
        if copy.filed > arrival.head:
            self._note(
                f"{key}: the trainer's log was cut to {arrival.head} batches and the copy in "
                f"{copy.folder} holds {copy.filed}: new batches with numbers below that are not "
                "filed."
            )

    def _copy_of(self, key: feed.PeerKey, arrival: feed.HelloArrived) -> RankCopy:
        """Where a rank's rows belong; an AmpwatchError says why nowhere."""
        hello = arrival.hello
        info = store.RunInfo.from_json(hello.info_json)
        if hello.format > FORMAT:
            raise RunError(
                f"the trainer writes run format {hello.format} and this recorder reads up to "
                f"{FORMAT}; update ampwatch here."
            )
        if info.id != key.run_id:
            raise RunError("it sent the description of another run.")
        return copy_in(self._directory, info, key.rank, arrival.head, beside=self._beside)

    def _begin(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Continue a copy, or only watch what the trainer writes here itself."""
        if key in self._copies:
            self._copies[key].close()
        self._copies[key] = copy
        self._with_new_rows.add(copy.folder)
        if copy.is_copy:
            self._open(key, copy)
        else:
            self._watch(key, copy)

    def _begin_again(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """A copy's files were deleted or moved: ask again for what went into them."""
        self._note(
            f"{copy.folder} was deleted or moved while it was recorded: rank {key.rank} is copied "
            "again from the trainer's log."
        )
        copy.close()
        try:
            head = self._receiver.peers[key].head
            fresh = copy_in(self._directory, copy.info, key.rank, head, beside=self._beside)
        except AmpwatchError as error:
            self._refuse(key, error)
        else:
            self._begin(key, fresh)

    def _open(self, key: feed.PeerKey, copy: RankCopy) -> None:
        self._changed.add(key)
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
            self._open_files.used(key, copy)
            self._receiver.resume(key, copy.filed)

    def _watch(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Follow a rank that somebody else writes here, usually the trainer itself."""
        copy.is_copy, copy.blocked_until_s = False, None
        copy.filed = self._receiver.peers[key].head
        self._receiver.resume(key, copy.filed)

    def _file(self, key: feed.PeerKey, sequence: int, batch: Batch) -> None:
        copy = self._copies[key]
        if copy.is_gone():
            self._begin_again(key, copy)
            return
        try:
            copy.file(sequence, batch)
        except AmpwatchError as error:
            self._block(key, copy, error)
            return
        self._open_files.used(key, copy)
        self._receiver.filed(key, copy.filed)
        self._with_new_rows.add(copy.folder)

    def _block(self, key: feed.PeerKey, copy: RankCopy, error: AmpwatchError) -> None:
        """Take no rows of a rank until they can be filed; the trainer keeps them."""
        self._note(f"{key} cannot be filed for now; this is tried again: {error}")
        self._changed.add(key)
        copy.close()
        copy.blocked_until_s = time.monotonic() + _RETRY_S
        self._receiver.resume(key, copy.filed, paused=True)

    def _refuse(self, key: feed.PeerKey, error: AmpwatchError) -> None:
        self._note(f"{key} is not recorded: {error}")
        self._receiver.refuse(key, str(error))

    def _lose(self, key: feed.PeerKey, first: int, after: int) -> None:
        copy = self._copies[key]
        try:
            if copy.lose(first, after):
                self._note(
                    f"{key}: batches {first} to {after - 1} are lost; the trainer no longer has "
                    "them either."
                )
        except AmpwatchError as error:
            self._refuse(key, error)
        else:
            self._receiver.filed(key, copy.filed)

    def _end(self, key: feed.PeerKey) -> None:
        copy = self._copies[key]
        if copy.is_gone():
            self._begin_again(key, copy)
            return
        try:
            copy.end()
        except AmpwatchError as error:
            self._note(str(error))
        self._receiver.confirm_end(key)
        self._with_new_rows.add(copy.folder)
        self._compact_if_complete(key.run_id)

    def _compact_if_complete(self, run_id: str) -> None:
        """Compact a copy whose ranks have all ended, those before a restart included."""
        copies = [copy for key, copy in self._copies.items() if key.run_id == run_id]
        if not all(copy.has_ended and copy.is_copy for copy in copies):
            return
        folder, world_size = copies[0].folder, copies[0].info.world_size
        notes = store.read_copies(folder).values()
        if sum(note.ended_at is not None for note in notes) >= world_size:
            self._compactor.compact(folder)

    # --- each second -----------------------------------------------------------------------------

    def _tend(self) -> None:
        """Try again what was blocked, and close the copies of ranks that are silent."""
        self._tended_s = time.monotonic()
        for key, copy in list(self._copies.items()):
            if (peer := self._receiver.peers.get(key)) is None:
                self._forget(key, copy)
                continue
            if _silent_s(peer) < ALIVE_S + 2 * _TEND_EVERY_S:  # or has just fallen silent
                self._changed.add(key)
            self._tend_one(key, copy, peer)

    def _tend_one(self, key: feed.PeerKey, copy: RankCopy, peer: feed.Peer) -> None:
        silent_s = _silent_s(peer)
        if not copy.has_ended and silent_s < ALIVE_S and copy.is_gone():
            self._begin_again(key, copy)
        elif copy.blocked_until_s is not None and time.monotonic() > copy.blocked_until_s:
            self._open(key, copy)
        elif silent_s > _CLOSE_S:
            copy.close()  # whoever reads it now sees that nobody writes it any more
            if silent_s > _FORGET_S:
                self._receiver.forget(key)
        elif not copy.is_copy and copy.is_stale(peer.head):
            self._note(
                f"{copy.folder} already holds rank {key.rank} of this run and does not grow, and "
                "it is not a recorder's copy: nothing is filed. Move it away to get a copy."
            )

    def _forget(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Forget a rank that the receiver no longer follows; it may introduce itself again."""
        copy.close()
        self._open_files.forget(key)
        del self._copies[key]

    # --- what is reported ------------------------------------------------------------------------

    def _note(self, sentence: str) -> None:
        self._report(Noted(sentence))

    def _note_denied(self, public: str, trouble: str) -> None:
        remedy = f"`ampwatch keys --allow {public}` lets it in, if it is yours."
        if trouble:
            remedy = f"it may be on the list of keys, which cannot be read in full. {trouble}"
        self._note(f"A trainer with the key {public} asked to connect and was denied: {remedy}")

    def _note_bad(self, peer: feed.PeerKey | None, address: str, reason: str) -> None:
        """Name the sender of a bad frame; if there are many, they are only counted."""
        if self._receiver.counts.bad <= _BAD_FRAMES_NOTED:
            sender = f"{peer} at {address}" if peer else address or "an unknown sender"
            self._note(f"A frame from {sender} was dropped: {reason}")

    def _report_state(self) -> None:
        """Report the ranks that have changed, and the counts."""
        self._reported_s = time.monotonic()
        changed, self._changed = self._changed, set()
        for key in changed & self._copies.keys():
            self._report(self._report_of(key, self._copies[key]))
        counts = self._receiver.counts
        stats = RecorderStats(
            frames=counts.frames, rows=counts.rows, bytes=counts.bytes, bad_frames=counts.bad,
            ignored_frames=counts.ignored, requests=counts.requests,
            denied_keys=tuple(counts.denied),
        )  # fmt: skip
        if stats != self._stats:
            self._stats = stats
            self._report(stats)

    def _report_of(self, key: feed.PeerKey, copy: RankCopy) -> RankReport:
        peer = self._receiver.peers.get(key)
        record = RankRecord(
            rank=key.rank,
            filed=copy.filed,
            head=max(copy.filed, peer.head if peer else 0),
            gaps=tuple(copy.lost),
            bad_frames=peer.bad if peer else 0,
            is_copy=copy.is_copy,
            is_blocked=copy.blocked_until_s is not None,
            is_alive=peer is not None and not copy.has_ended and _silent_s(peer) < ALIVE_S,
            has_ended=copy.has_ended,
        )
        return RankReport(key.run_id, copy.info.name, copy.folder, record)


def _silent_s(peer: feed.Peer) -> float:
    return time.monotonic() - peer.heard_s
