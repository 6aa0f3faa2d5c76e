import os

import psutil
import pytest
from feed_parts import RUN, MemoryLog, MemoryRecorder, batch_of, eventually, hello_of
from hypothesis import given
from hypothesis import strategies as st

from ampwatch import feed
from ampwatch.errors import AmpwatchError, FeedError
from ampwatch.feed.sender import WINDOW_BYTES, Request, SendWindow


@pytest.fixture
def log():
    return MemoryLog()


def sender_to(endpoint, log, **identity):
    return feed.Sender(endpoint, hello_of(**identity), log)


def test_a_sender_to_nobody_keeps_nothing_and_returns_from_every_call(log):
    sender = sender_to("tcp://127.0.0.1:9", log)
    batch = batch_of(0, text_bytes=5000)
    before = psutil.Process().memory_info().rss
    for _ in range(20_000):  # more than 100 MB, if anything were kept
        sender.send(log.append(batch), batch)
        sender.poll()
    assert psutil.Process().memory_info().rss - before < 30 << 20
    assert sender.stats.bytes_outstanding == 0
    assert sender.stats.skipped == 20_000
    assert not sender.stats.connected
    assert sender.close() is False


def test_rows_arrive_while_they_are_made(log):
    with MemoryRecorder() as recorder:
        sender = sender_to(recorder.endpoint, log)
        eventually(lambda: sender.stats.connected and recorder.rows, sender.poll)
        eventually(lambda: sender._request.live is not None, sender.poll)
        for step in range(50):
            batch = batch_of(step)
            sender.send(log.append(batch), batch)
        assert sender.close()
        assert recorder.batches() == log.batches
        assert sender.stats.replayed == 0


def test_a_recorder_that_comes_late_gets_everything_from_the_first(log):
    with MemoryRecorder() as recorder:
        endpoint = recorder.endpoint
    sender = sender_to(endpoint, log)
    for step in range(500):
        batch = batch_of(step)
        sender.send(log.append(batch), batch)
        sender.poll()
    with MemoryRecorder(endpoint) as recorder:
        eventually(lambda: len(recorder.batches()) == 500, sender.poll)
        assert sender.close()
        assert recorder.batches() == log.batches
        assert sender.stats.acknowledged == 500


def test_live_rows_go_ahead_of_what_is_served_from_the_log():
    old = MemoryLog(batch_of(step, text_bytes=100_000) for step in range(100))
    with MemoryRecorder() as recorder:
        sender = sender_to(recorder.endpoint, old)
        eventually(lambda: recorder.order, sender.poll)
        batch = batch_of(100)
        sender.send(old.append(batch), batch)
        assert sender.close()
        assert recorder.order.index(100) < recorder.order.index(99)
        assert recorder.batches() == old.batches


def test_a_recorder_that_comes_back_goes_on_from_what_it_holds(log):
    with MemoryRecorder() as first:
        sender = sender_to(first.endpoint, log)
        for step in range(100):
            batch = batch_of(step)
            sender.send(log.append(batch), batch)
        eventually(lambda: len(first.batches()) == 100, sender.poll)
    for step in range(100, 200):
        batch = batch_of(step)
        sender.send(log.append(batch), batch)
        sender.poll()
    with MemoryRecorder(first.endpoint, held=first.rows) as second:
        eventually(lambda: len(second.batches()) == 200, sender.poll)
        assert sender.close()
        assert second.batches() == log.batches
        assert min(second.order) == 100


def test_what_the_log_has_lost_is_said_and_the_rest_comes():
    log = MemoryLog((batch_of(step) for step in range(20)), lacking={0, 7, 8, 19})
    with MemoryRecorder() as recorder:
        sender = sender_to(recorder.endpoint, log)
        eventually(lambda: len(recorder.batches()) == 16, sender.poll)
        assert sender.close()
        assert recorder.gaps == [(0, 1), (7, 9), (19, 20)]
        assert sender.stats.lost == 4


def test_a_log_that_cannot_be_read_is_given_up_after_some_tries(log):
    class Unreadable(MemoryLog):
        def read_from(self, sequence, max_bytes):
            raise AmpwatchError("the disk is gone")

    log = Unreadable([batch_of(0)])
    with MemoryRecorder() as recorder:
        sender = sender_to(recorder.endpoint, log)
        eventually(lambda: recorder.gaps, sender.poll)
        batch = batch_of(1)
        sender.send(log.append(batch), batch)
        assert sender.close()
        assert recorder.gaps == [(0, 1)]
        assert recorder.batches() == [batch]


def test_no_more_is_under_way_than_the_recorder_has_credit_for():
    log = MemoryLog(batch_of(step, text_bytes=50_000) for step in range(100))
    limits = feed.Limits(credit_bytes=1 << 18)
    receiver = feed.Receiver("tcp://127.0.0.1:*", limits=limits)
    sender = sender_to(receiver.endpoint, log)
    peers = []

    def introduce():
        sender.poll()
        peers.extend(a.peer for a in receiver.receive(0.0) if isinstance(a, feed.HelloArrived))

    eventually(lambda: peers, introduce)
    receiver.resume(peers[0], 0)
    eventually(lambda: sender.stats.sent, sender.poll)
    for _ in range(100):  # the receiver reads nothing, so no more may go
        sender.poll()
        batch = batch_of(0, text_bytes=50_000)
        sender.send(log.append(batch), batch)
    assert 0 < sender.stats.bytes_outstanding <= 1 << 18
    receiver.close()
    sender.close(timeout_s=0.0)


def test_each_rank_of_each_run_is_its_own():
    logs = {
        (run_id, rank): MemoryLog(batch_of(rank * 100 + step) for step in range(10 + rank))
        for run_id in (RUN, "cd" * 16)
        for rank in (0, 1)
    }
    with MemoryRecorder() as recorder:
        senders = [
            sender_to(recorder.endpoint, log, run_id=run_id, rank=rank)
            for (run_id, rank), log in logs.items()
        ]
        for sender in senders:
            eventually(lambda sender=sender: sender.stats.sent >= 10, sender.poll)
        assert all(sender.close() for sender in senders)
        for (run_id, rank), log in logs.items():
            assert recorder.batches(rank, run_id) == log.batches
        assert len(recorder.ended) == 4


def test_closing_without_a_recorder_confirms_nothing(log):
    sender = sender_to("tcp://127.0.0.1:9", log)
    assert sender.close() is False
    assert sender.close() is False
    sender.send(0, batch_of(0))
    sender.poll()


def test_closing_at_once_still_delivers_everything_to_a_recorder_that_is_there():
    log = MemoryLog(batch_of(step, text_bytes=1000) for step in range(1000))
    with MemoryRecorder() as recorder:
        sender = sender_to(recorder.endpoint, log)
        eventually(lambda: sender.stats.connected, sender.poll)
        assert sender.close(timeout_s=60)
        assert recorder.batches() == log.batches


def test_a_recorder_that_vanished_does_not_hold_up_the_close(log):
    now_s, each_look_s = 0.0, 0.0

    def clock():
        nonlocal now_s
        now_s += each_look_s
        return now_s

    with MemoryRecorder() as recorder:
        sender = feed.Sender(recorder.endpoint, hello_of(), log, clock=clock)
        eventually(lambda: sender.stats.connected, sender.poll)
    each_look_s = 1.0  # what the recorder had sent before may still arrive, and then it was heard
    assert sender.close(timeout_s=1e9) is False


def test_a_run_that_no_hello_can_describe_is_refused_when_it_starts(log):
    hello = feed.Hello(RUN, 0, "x" * (2 << 20), 1, "0")
    with pytest.raises(FeedError, match="smaller config"):
        feed.Sender("tcp://127.0.0.1:9", hello, log)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:5797", "tcp://", "udp://a:1", "tcp://a b:1", ""])
def test_an_endpoint_of_another_form_is_refused_with_the_form(endpoint, log):
    with pytest.raises(FeedError, match="tcp://HOST:PORT"):
        feed.Sender(endpoint, hello_of(), log)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_fork_ends_without_touching_the_parents_connection(log):
    with MemoryRecorder() as recorder:
        sender = sender_to(recorder.endpoint, log)
        eventually(lambda: sender.stats.connected, sender.poll)
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        batch = batch_of(0)
        sender.send(log.append(batch), batch)
        assert sender.close()
        assert recorder.batches() == [batch]


def test_nothing_may_be_sent_before_the_recorder_gives_credit():
    assert not SendWindow().fits(1)


def test_credit_narrows_our_own_limit_and_never_widens_it():
    window = SendWindow()
    window.allow(1 << 40)
    window.add(WINDOW_BYTES)
    assert not window.fits(1)


def test_one_frame_larger_than_the_credit_may_go_alone():
    window = SendWindow()
    window.allow(10)
    assert window.fits(100)
    window.add(100)
    assert not window.fits(1)
    window.acknowledge(1)
    assert window.fits(100)


def test_live_rows_have_room_when_the_log_has_filled_its_share():
    window = SendWindow()
    window.allow(1000)
    window.add(800)
    assert window.room_bytes == 0
    assert window.fits(200)


@given(st.lists(st.integers(1, 100)), st.lists(st.integers(0, 50)))
def test_what_is_held_is_what_was_sent_and_not_yet_counted_by_the_peer(sizes, counts):
    window = SendWindow()
    window.allow(WINDOW_BYTES)
    for size in sizes:
        window.add(size)
    for count in counts:
        window.acknowledge(count)
    assert window.held_bytes == sum(sizes[max(counts, default=0) :])
    window.acknowledge(None)
    assert window.held_bytes == 0


def test_what_is_owed_stays_few_ranges_however_ragged_the_loss():
    request = Request()
    for number in range(0, 100_000, 2):
        request.owe(number, number + 1)
        request.owe(number, number)
    assert len(request.owed) <= 1000
    assert (request.owed.start, request.owed.end) == (0, 99_999)
