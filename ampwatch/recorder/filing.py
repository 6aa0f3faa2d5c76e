"""What arrives, filed: each rank's copy, what is asked for again, and what the user should hear."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ampwatch import feed, store
from ampwatch.codec import Batch
from ampwatch.errors import AmpwatchError, RunError, RunInUseError
from ampwatch.recorder.compactor import Compactor
from ampwatch.recorder.copies import RankCopy, place
from ampwatch.recorder.messages import RankTold
from ampwatch.recorder.open_files import OpenFiles
from ampwatch.recorder.records import RankRecord
from ampwatch.rows import FORMAT

ALIVE_S = 5.0
_RETRY_S = 5.0
_TEND_EVERY_S = 1.0
# A trainer gives a sign of life each second; one silent for so long is dead or out of reach.
_LET_GO_S = 30.0
_FORGET_S = 600.0
_BAD_FRAMES_SAID = 100


class Filing:
    """Files what one receiver yields under one directory; used by the recorder's thread.

    `note` is called with each sentence that the user should see.
    """

    def __init__(
        self,
        receiver: feed.Receiver,
        directory: Path,
        compactor: Compactor,
        note: Callable[[str], None],
    ) -> None:
        self._feed = receiver
        self._directory = directory
        self._compactor = compactor
        self._note = note
        self._copies: dict[feed.PeerKey, RankCopy] = {}
        self._open_files = OpenFiles(note)
        self._woken: set[Path] = set()
        self._changed: set[feed.PeerKey] = set()
        self._tended_s = 0.0

    # -- each round

    def take(self, arrival: feed.Arrival) -> None:
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
                self._count_bad(peer, address, reason)
            case feed.KeyDenied(public, trouble):
                self._deny(public, trouble)
                return
            case feed.RankTurnedAway(peer, reason):
                self._note(f"{peer} is not recorded: {reason}")
                return
        if arrival.peer is not None:
            self._changed.add(arrival.peer)

    def woken(self) -> set[Path]:
        """The folders that rows have come for since the last call."""
        woken, self._woken = self._woken, set()
        return woken

    def news(self) -> list[RankTold]:
        """How the ranks stand of which something has changed since the last call."""
        changed, self._changed = self._changed, set()
        return [self._told(key, self._copies[key]) for key in changed if key in self._copies]

    def tend(self) -> None:
        """Once a second: try again what was blocked, and let go of ranks that are long silent."""
        now_s = time.monotonic()
        if now_s - self._tended_s < _TEND_EVERY_S:
            return
        self._tended_s = now_s
        for key, copy in list(self._copies.items()):
            if (peer := self._feed.peers.get(key)) is None:
                self._forget(key, copy)
                continue
            if _silent_s(peer) < ALIVE_S + 2 * _TEND_EVERY_S:  # or has just fallen silent
                self._changed.add(key)
            self._tend_one(key, copy, peer)

    def close(self) -> None:
        """Let go of all files; what they hold stays acknowledged."""
        for copy in self._copies.values():
            copy.close()

    # -- what arrives

    def _deny(self, public: str, trouble: str) -> None:
        remedy = f"`ampwatch keys --allow {public}` lets it in, if it is yours."
        if trouble:
            remedy = f"the list of keys cannot be read in full, so it may stand there. {trouble}"
        self._note(f"A trainer with the key {public} asked to connect and was denied: {remedy}")

    def _count_bad(self, peer: feed.PeerKey | None, address: str, reason: str) -> None:
        """Name the sender of a bad frame; who sends many is only counted."""
        if self._feed.counts.bad <= _BAD_FRAMES_SAID:
            sender = f"{peer} at {address}" if peer else address or "an unknown sender"
            self._note(f"A frame from {sender} was dropped: {reason}")

    def _meet(self, arrival: feed.HelloArrived) -> None:
        """Find or make the folder of a rank that has introduced itself, and ask for its rows."""
        key = arrival.peer
        try:
            copy = self._placed(key, arrival)
        except AmpwatchError as error:
            self._refuse(key, error)
            return
        self._take_up(key, copy)
        if copy.filed > arrival.head:
            self._note(
                f"{key}: the trainer's log was cut to {arrival.head} batches and the copy in "
                f"{copy.folder} holds {copy.filed}: what it writes anew below that is not filed."
            )

    def _placed(self, key: feed.PeerKey, arrival: feed.HelloArrived) -> RankCopy:
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

    def _take_up(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Go on with a copy, or only watch what the trainer writes here itself."""
        if key in self._copies:
            self._copies[key].close()
        self._copies[key] = copy
        self._woken.add(copy.folder)
        if copy.is_copy:
            self._open(key, copy)
        else:
            self._watch(key, copy)

    def _refuse(self, key: feed.PeerKey, error: AmpwatchError) -> None:
        self._note(f"{key} is not recorded: {error}")
        self._feed.refuse(key, str(error))

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
            self._feed.resume(key, copy.filed)

    def _watch(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Follow a rank that somebody else writes here, the trainer itself as a rule."""
        copy.is_copy, copy.blocked_until_s = False, None
        copy.filed = self._feed.peers[key].head
        self._feed.resume(key, copy.filed)

    def _file(self, key: feed.PeerKey, sequence: int, batch: Batch) -> None:
        copy = self._copies[key]
        if copy.is_gone():
            self._start_anew(key, copy)
            return
        try:
            copy.file(sequence, batch)
        except AmpwatchError as error:
            self._block(key, copy, error)
            return
        self._open_files.used(key, copy)
        self._feed.filed(key, copy.filed)
        self._woken.add(copy.folder)

    def _start_anew(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Somebody took a copy's files away: what went into them is asked for again."""
        self._note(
            f"{copy.folder} was deleted or moved while it was recorded: the copy of rank "
            f"{key.rank} is made anew from the trainer's log."
        )
        copy.close()
        try:
            fresh = place(self._directory, copy.info, key.rank, self._feed.peers[key].head)
        except AmpwatchError as error:
            self._refuse(key, error)
        else:
            self._take_up(key, fresh)

    def _block(self, key: feed.PeerKey, copy: RankCopy, error: AmpwatchError) -> None:
        """Stop taking a rank's rows until they can be filed; the trainer keeps them."""
        self._note(f"{key} cannot be filed for now and is tried again: {error}")
        self._changed.add(key)
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
        if copy.is_gone():
            self._start_anew(key, copy)
            return
        try:
            copy.end()
        except AmpwatchError as error:
            self._note(str(error))
        self._feed.confirm_end(key)
        self._woken.add(copy.folder)
        self._compact_if_complete(key.run_id)

    # -- after each round

    def _tend_one(self, key: feed.PeerKey, copy: RankCopy, peer: feed.Peer) -> None:
        silent_s = _silent_s(peer)
        if not copy.has_ended and silent_s < ALIVE_S and copy.is_gone():
            self._start_anew(key, copy)
        elif copy.blocked_until_s is not None and time.monotonic() > copy.blocked_until_s:
            self._open(key, copy)
        elif silent_s > _LET_GO_S:
            copy.close()  # whoever reads it now hears that nobody writes it any more
            if silent_s > _FORGET_S:
                self._feed.forget(key)
        elif not copy.is_copy and copy.is_stale(peer.head):
            self._note(
                f"{copy.folder} holds rank {key.rank} of this run already and does not grow, "
                "and it is no copy of a recorder's: nothing is filed. Move it away to have one."
            )

    def _forget(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Let go of a rank that the receiver follows no more; it may introduce itself again."""
        copy.close()
        self._open_files.forget(key)
        del self._copies[key]

    def _compact_if_complete(self, run_id: str) -> None:
        """Compact a copy whose ranks have all ended, those before a restart included."""
        copies = [copy for key, copy in self._copies.items() if key.run_id == run_id]
        if not all(copy.has_ended and copy.is_copy for copy in copies):
            return
        folder, world_size = copies[0].folder, copies[0].info.world_size
        notes = store.read_copies(folder).values()
        if sum(note.ended_at is not None for note in notes) >= world_size:
            self._compactor.compact(folder)

    def _told(self, key: feed.PeerKey, copy: RankCopy) -> RankTold:
        peer = self._feed.peers.get(key)
        record = RankRecord(
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
        return RankTold(key.run_id, copy.info.name, copy.folder, record)


def _silent_s(peer: feed.Peer) -> float:
    return time.monotonic() - peer.heard_s
