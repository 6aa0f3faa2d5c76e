"""What runs in the recorder's process: a port, and what arrives there filed as copies.

It ends when its starter does, or asks it to. The starter holds the other end of stdin, which closes
when that process ends, however it ends. It writes nothing there but instructions for trainers, a
line each. Messages go to stdout from a thread of their own, so that a starter that is stopped, or
slow to draw, never keeps rows waiting.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path

from ampwatch import feed, store
from ampwatch.codec import Batch
from ampwatch.errors import AmpwatchError, EndpointTakenError, RunError, RunInUseError
from ampwatch.recorder.rank_copies import Compactor, OpenFiles, RankCopy, allow_more_files, copy_in
from ampwatch.recorder.recorder import (
    ALIVE_S,
    Asked,
    Failed,
    Listening,
    Message,
    NewRows,
    Noted,
    RankRecord,
    RankReport,
    RecorderOrders,
    RecorderStats,
    to_line,
)
from ampwatch.retry import retry
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
                    self._handle_arrival(arrival)
                if time.monotonic() - self._tended_s >= _TEND_EVERY_S:
                    self._tend_copies()
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

    def _handle_arrival(self, arrival: feed.Arrival) -> None:
        """File what has arrived, or act on it."""
        match arrival:
            case feed.RowsArrived(peer, sequence, batch):
                self._file_batch(peer, sequence, batch)
            case feed.HelloArrived():
                self._handle_hello(arrival)
            case feed.GapArrived(peer, first, after):
                self._handle_loss(peer, first, after)
            case feed.EndArrived(peer):
                self._handle_end(peer)
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

    def _handle_hello(self, arrival: feed.HelloArrived) -> None:
        """Find or make the folder of a rank that has introduced itself, and ask for its rows."""
        key = arrival.peer
        try:
            copy = self._copy_of(key, arrival)
        except AmpwatchError as error:
            self._refuse_rank(key, error)
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
            self._open_copy(key, copy)
        else:
            self._watch_log(key, copy)

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
            self._refuse_rank(key, error)
        else:
            self._begin(key, fresh)

    def _open_copy(self, key: feed.PeerKey, copy: RankCopy) -> None:
        self._changed.add(key)
        try:
            copy.open()
        except RunInUseError as error:
            if copy.blocked_until_s is None:  # a compaction may be swapping files
                self._block_copy(key, copy, error)
            else:
                self._watch_log(key, copy)
        except AmpwatchError as error:
            self._block_copy(key, copy, error)
        else:
            self._open_files.used(key, copy)
            self._receiver.resume(key, copy.filed)

    def _watch_log(self, key: feed.PeerKey, copy: RankCopy) -> None:
        """Follow a rank that somebody else writes here, usually the trainer itself."""
        copy.is_copy, copy.blocked_until_s = False, None
        copy.filed = self._receiver.peers[key].head
        self._receiver.resume(key, copy.filed)

    def _file_batch(self, key: feed.PeerKey, sequence: int, batch: Batch) -> None:
        copy = self._copies[key]
        if copy.is_gone():
            self._begin_again(key, copy)
            return
        try:
            copy.file(sequence, batch)
        except AmpwatchError as error:
            self._block_copy(key, copy, error)
            return
        self._open_files.used(key, copy)
        self._receiver.filed(key, copy.filed)
        self._with_new_rows.add(copy.folder)

    def _block_copy(self, key: feed.PeerKey, copy: RankCopy, error: AmpwatchError) -> None:
        """Take no rows of a rank until they can be filed; the trainer keeps them."""
        self._note(f"{key} cannot be filed for now; this is tried again: {error}")
        self._changed.add(key)
        copy.close()
        copy.blocked_until_s = time.monotonic() + _RETRY_S
        self._receiver.resume(key, copy.filed, paused=True)

    def _refuse_rank(self, key: feed.PeerKey, error: AmpwatchError) -> None:
        self._note(f"{key} is not recorded: {error}")
        self._receiver.refuse(key, str(error))

    def _handle_loss(self, key: feed.PeerKey, first: int, after: int) -> None:
        copy = self._copies[key]
        try:
            if copy.lose(first, after):
                self._note(
                    f"{key}: batches {first} to {after - 1} are lost; the trainer no longer has "
                    "them either."
                )
        except AmpwatchError as error:
            self._refuse_rank(key, error)
        else:
            self._receiver.filed(key, copy.filed)

    def _handle_end(self, key: feed.PeerKey) -> None:
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

    def _tend_copies(self) -> None:
        """Try again what was blocked, and close the copies of ranks that are silent."""
        self._tended_s = time.monotonic()
        for key, copy in list(self._copies.items()):
            if (peer := self._receiver.peers.get(key)) is None:
                self._forget_rank(key, copy)
                continue
            if _silent_s(peer) < ALIVE_S + 2 * _TEND_EVERY_S:  # or has just fallen silent
                self._changed.add(key)
            self._tend_copy(key, copy, peer)

    def _tend_copy(self, key: feed.PeerKey, copy: RankCopy, peer: feed.Peer) -> None:
        silent_s = _silent_s(peer)
        if not copy.has_ended and silent_s < ALIVE_S and copy.is_gone():
            self._begin_again(key, copy)
        elif copy.blocked_until_s is not None and time.monotonic() > copy.blocked_until_s:
            self._open_copy(key, copy)
        elif silent_s > _CLOSE_S:
            copy.close()  # its readers now see that it gets no more rows
            if silent_s > _FORGET_S:
                self._receiver.forget(key)
        elif not copy.is_copy and copy.is_stale(peer.head):
            self._note(
                f"{copy.folder} already holds rank {key.rank} of this run and does not grow, and "
                "it is not a recorder's copy: nothing is filed. Move it away to get a copy."
            )

    def _forget_rank(self, key: feed.PeerKey, copy: RankCopy) -> None:
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


# --- the process ----------------------------------------------------------------------------------

_LAST_PATIENCE_S = 15.0  # for a recording that hangs, perhaps on a disk that is away
_REPORT_PATIENCE_S = 2.0
_MOST_WAITING = 100_000
_MOST_ASKED = 100  # instructions that wait to be passed on
_BIND_EVERY_S = 0.05


def main(orders_text: str) -> None:
    """What the recorder's process does: record as ordered, until its starter ends or asks it to."""
    orders = RecorderOrders.from_text(orders_text)
    is_over = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    allow_more_files()
    reporter = Reporter(_own_stdout())
    asked: deque[Asked] = deque(maxlen=_MOST_ASKED)
    threading.Thread(target=_heed_the_starter, args=(is_over, asked), daemon=True).start()
    starter = os.getppid()

    def is_to_end() -> bool:
        return is_over.is_set() or os.getppid() != starter

    try:
        recording = _listening(orders, reporter, is_to_end)
        reporter.report(Listening(recording.endpoint, recording.fell_back))
        recording.run(is_to_end, asked)
    except AmpwatchError as error:
        reporter.report(Failed(type(error).__name__, str(error)))
    finally:
        reporter.close()


def _listening(
    orders: RecorderOrders, reporter: Reporter, is_over: Callable[[], bool]
) -> Recording:
    """A recording that has its port; if the port is taken, wait for it a little."""
    insecure = feed.Security(own=None)  # the starter has warned of what that means
    keys = insecure if orders.insecure else feed.find_security(orders.endpoint)
    at = partial(
        Recording, orders.endpoint, orders.directory, reporter.report, keys=keys,
        beside=orders.beside,
    )  # fmt: skip
    try_port = partial(_unless_taken, at)
    recording = retry(try_port, orders.port_wait_s, every_s=_BIND_EVERY_S, stop=is_over)
    return recording or at(fallback=orders.fallback)


def _unless_taken(at: Callable[[], Recording]) -> Recording | None:
    try:
        return at()
    except EndpointTakenError:
        return None


def _own_stdout() -> int:
    """Where the process sends messages; what a library prints goes to stderr from now on."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def _heed_the_starter(is_over: threading.Event, asked: deque[Asked]) -> None:
    # Until the pipe's end. Not by sys.stdin: its lock, held while this waits, aborts the process
    # when the main thread ends it.
    for line in FileIO(0, closefd=False):
        if line.endswith(b"\n"):  # a starter that is killed may leave half a line
            asked.append(Asked.from_line(line))
    is_over.set()
    time.sleep(_LAST_PATIENCE_S)
    os._exit(1)


class Reporter:
    """Sends messages to the starter; of those it has not read yet, only the newest of a kind."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Message] = {}
        self._has_news = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._send_messages, name="ampwatch-report", daemon=True
        )
        self._thread.start()

    def report(self, message: Message) -> None:
        """Have a message sent; never waits."""
        with self._lock:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting[_slot(message)] = message
        self._has_news.set()

    def close(self) -> None:
        """Send what is left, if anybody still reads."""
        self._is_closing = True
        self._has_news.set()
        self._thread.join(_REPORT_PATIENCE_S)

    def _send_messages(self) -> None:
        is_last = False
        while not is_last:
            self._has_news.wait()
            self._has_news.clear()
            is_last = self._is_closing
            with self._lock:
                messages, self._waiting = self._waiting, {}
            try:
                for message in messages.values():
                    _write(self._out, to_line(message))
            except OSError:
                return  # the starter is gone, and stdin says so too


def _write(out: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(out, rest) :]


def _slot(message: Message) -> Hashable:
    """The slot of a message: those of one slot replace each other until they are sent."""
    if isinstance(message, RankReport):
        return (message.run_id, message.record.rank)
    return RecorderStats if isinstance(message, RecorderStats) else message
