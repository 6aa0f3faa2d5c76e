"""How much one key, one rank and one process may take up, over real sockets."""

import contextlib
import sys
from pathlib import Path

import pytest
from recorder_parts import ANY_PORT, Here, Peer, child, eventually, heard, index_records, tell

from ampwatch import feed, store


def run_ids(count):
    return [f"{number:032x}" for number in range(1, count + 1)]


def chunks(runs, size=16):
    """As many as a receiver's answers to one socket may wait."""
    return [runs[start : start + size] for start in range(0, len(runs), size)]


@pytest.fixture
def peer_of():
    """Makes peers, and closes them after the test."""
    with contextlib.ExitStack() as peers:

        def make(endpoint):
            peer = Peer(endpoint)
            peers.callback(peer.close)
            return peer

        yield make


def test_a_key_has_so_many_ranks_at_once_and_the_next_is_told_why_it_waits(copies, peer_of):
    runs = run_ids(5)
    with Here(copies, limits=feed.Limits(key_peers=3)) as recorder:
        peer = peer_of(recorder.endpoint)
        for run_id in runs:
            peer.hello(run_id)
        eventually(lambda: len(peer.tokens) == 3 and len(peer.refused) == 2, peer.hear)
        assert "follows at most 3 ranks with one key" in peer.refused[runs[4]]
        assert feed.own_keys().public.hex() in peer.refused[runs[4]]
        eventually(lambda: recorder.notes)
        assert recorder.notes[0].startswith(f"run {runs[3]}, rank 0 is not recorded: This recorder")
        assert len(recorder.notes) == 1
    assert sorted(path.name for path in copies.iterdir()) == ["r-1", "r-2", "r-3"]


def test_ranks_that_have_ended_make_room_for_others_of_their_key(copies, peer_of):
    first, second, third = run_ids(3)
    with Here(copies, limits=feed.Limits(key_peers=2)) as recorder:
        peer = peer_of(recorder.endpoint)
        for run_id in (first, second):
            peer.hello(run_id)
        eventually(lambda: len(peer.tokens) == 2, peer.hear)
        peer.row(first, 0)
        peer.end(first, 1)
        eventually(lambda: recorder.runs.get(first) and recorder.runs[first].has_ended, peer.hear)
        peer.hello(third)
        eventually(lambda: third in peer.tokens, peer.hear)
        peer.row(second, 0)
        eventually(lambda: peer.filed[second] == 1, peer.hear)
        assert peer.refused == {}
        assert recorder.notes == ()
        assert recorder.runs[first].has_ended  # it is still told of


def test_no_more_ranks_than_all_keys_may_have_are_followed(copies, peer_of):
    with Here(copies, limits=feed.Limits(peers=2)) as recorder:
        peer = peer_of(recorder.endpoint)
        for run_id in run_ids(3):
            peer.hello(run_id)
        eventually(lambda: len(peer.tokens) == 2 and len(peer.refused) == 1, peer.hear)
        assert "follows at most 2 ranks, and that many are sending" in peer.refused[run_ids(3)[2]]


def test_rows_beyond_too_many_holes_wait_for_those_below_them(copies, peer_of, monkeypatch):
    monkeypatch.setattr("ampwatch.recorder.rank_copies._MOST_RANGES", 5)
    [run_id] = run_ids(1)
    with Here(copies) as recorder:
        peer = peer_of(recorder.endpoint)
        peer.hello(run_id)
        eventually(lambda: run_id in peer.tokens, peer.hear)
        for number in range(7, 47, 2):
            peer.row(run_id, number)
        eventually(lambda: recorder.stats.rows == 20, peer.hear)
        assert index_records(copies / "r-1") == 5
        asked = peer.tokens[run_id]
        peer.beat(run_id, 47)  # all below was sent, it says: what did not come is asked for
        eventually(lambda: peer.tokens[run_id] != asked, peer.hear)
        assert peer.filed[run_id] == 0
        for number in range(47):
            peer.row(run_id, number)
        eventually(lambda: peer.filed[run_id] == 47, peer.hear)
    copy = store.open_run(copies / "r-1")
    assert sorted(copy.steps["step"].to_pylist()) == list(range(47))


RECORDER_WITH_FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from ampwatch.recorder import Recorder
with Recorder(sys.argv[1], sys.argv[2]) as recorder:
    print(recorder.endpoint, recorder.process_id, flush=True)
    sys.stdin.readline()
    print(*recorder.notes, sep="\\n", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts a process's open files in /proc")
def test_two_hundred_runs_are_filed_with_128_files_open_at_most(copies, peer_of):
    runs = run_ids(200)
    with child(RECORDER_WITH_FEW_FILES, ANY_PORT, copies) as recorder:
        endpoint, process_id = heard(recorder).split()
        peer = peer_of(endpoint)
        for some in chunks(runs):
            for run_id in some:
                peer.hello(run_id)
            eventually(lambda some=some: set(some) <= set(peer.tokens), peer.hear)
        for some in chunks(runs):
            for run_id in some:
                peer.row(run_id, 0)
            eventually(lambda some=some: all(peer.filed[run] == 1 for run in some), peer.hear)
        assert len(list(Path(f"/proc/{process_id}/fd").iterdir())) < 128
        tell(recorder)
        said = recorder.stdout.read()
    assert peer.refused == {}
    assert said.startswith("More ranks send than may have files open here (48 files)")
    assert said.count("\n") == 1
    assert all(index_records(copies / f"r-{number}") == 1 for number in range(1, 201))
    assert store.open_run(copies / "r-1").steps["step"].to_pylist() == [0]
