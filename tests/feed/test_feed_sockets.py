"""How either end notices a host that has vanished: the kernel's account of it."""

import sys
from pathlib import Path

import pytest
from feed_parts import MemoryLog, MemoryRecorder, eventually, hello_of

from ampwatch import feed

KEEPALIVE_TIMER = "02"  # the `tr` of /proc/net/tcp


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's table of connections")
def test_the_kernel_watches_both_ends_of_a_connection():
    with MemoryRecorder() as recorder:
        sender = feed.Sender(recorder.endpoint, hello_of(), MemoryLog())
        eventually(lambda: sender.stats.connected, sender.poll)
        port = f"{int(recorder.endpoint.rpartition(':')[2]):04X}"
        eventually(lambda: timers_of(port) == [KEEPALIVE_TIMER] * 2)
        sender.close(timeout_s=0.0)


def timers_of(port):
    """The running timer of each connection with this port at either end."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = [row for row in rows if row[3] == "01"]
    return [row[5][:2] for row in established if port in (row[1][-4:], row[2][-4:])]


def test_neither_end_asks_for_zeromqs_heartbeats():
    receiver = feed.Receiver("tcp://127.0.0.1:*")
    sender = feed.Sender(receiver.endpoint, hello_of(), MemoryLog())
    assert receiver._socket._router.heartbeat_ivl == sender._socket._dealer.heartbeat_ivl == 0
    sender.close(timeout_s=0.0)
    receiver.close()
