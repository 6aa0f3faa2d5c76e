"""A log and a recorder in memory, to test the feed without the store."""

import queue
import secrets
import threading
import time

from ampwatch import feed
from ampwatch.codec import Batch, encode
from ampwatch.rows import Table

RUN = "ab" * 16


def batch_of(step, text_bytes=0):
    detail = secrets.token_hex(text_bytes // 2)  # random, so that it stays as long
    return encode(
        Table.EVENTS, {"step": [step], "time_ns": [step], "kind": ["misuse"], "detail": [detail]}
    )


def hello_of(run_id=RUN, rank=0):
    return feed.Hello(run_id=run_id, rank=rank, info_json="{}", format=1, version="0")


class MemoryLog:
    """A BatchSource."""

    def __init__(self, batches=(), lacking=()):
        self.batches = list(batches)
        self.lacking = set(lacking)

    @property
    def next_sequence(self):
        return len(self.batches)

    def append(self, batch):
        self.batches.append(batch)
        return len(self.batches) - 1

    def read_from(self, sequence, max_bytes):
        found, taken = [], 0
        for number in range(sequence, len(self.batches)):
            if number in self.lacking:
                continue
            batch = self.batches[number]
            if found and taken + len(batch.payload) > max_bytes:
                break
            found.append((number, batch))
            taken += len(batch.payload)
        return found


class MemoryRecorder:
    """A Receiver whose rows are kept in dictionaries, in a thread of its own."""

    def __init__(self, endpoint="tcp://127.0.0.1:*", limits=None, held=None):
        self.receiver = feed.Receiver(endpoint, limits=limits)
        self.endpoint = self.receiver.endpoint
        self.rows: dict[feed.PeerKey, dict[int, Batch]] = held if held is not None else {}
        self.order: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.others: list[feed.Arrival] = []
        self.ended: set[feed.PeerKey] = set()
        self._asked = queue.Queue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()
        self.receiver.close()

    def _work(self):
        while not self._stopping.is_set():
            while not self._asked.empty():
                instruction, answered = self._asked.get()
                answered.put(self.receiver.instruct(*instruction))
            for arrival in self.receiver.receive(0.05):
                self._take(arrival)

    def _take(self, arrival):
        match arrival:
            case feed.HelloArrived(peer):
                self.rows.setdefault(peer, {})
                self.receiver.resume(peer, self._contiguous(peer))
            case feed.RowsArrived(peer, sequence, batch):
                self.rows[peer][sequence] = batch
                self.order.append(sequence)
                self.receiver.filed(peer, self._contiguous(peer))
            case feed.GapArrived(peer, first, after):
                self.gaps.append((first, after))
                self.receiver.filed(peer, self._contiguous(peer))
            case feed.EndArrived(peer):
                self.ended.add(peer)
                self.receiver.confirm_end(peer)
            case _:
                self.others.append(arrival)

    def instruct(self, *instruction):
        """What the receiver says to it, in its own thread."""
        answered = queue.Queue()
        self._asked.put((instruction, answered))
        return answered.get()

    def _contiguous(self, peer):
        lost = {number for first, after in self.gaps for number in range(first, after)}
        number = 0
        while number in self.rows[peer] or number in lost:
            number += 1
        return number

    def batches(self, rank=0, run_id=RUN):
        rows = self.rows.get(feed.PeerKey(run_id, rank), {})
        return [rows[number] for number in sorted(rows)]


def eventually(condition, poll=lambda: None):
    """Wait until a condition holds; the test's own time-out ends a wait in vain."""
    while not condition():
        poll()
        time.sleep(0.005)
