import contextlib
import json
import secrets
from dataclasses import asdict

import pytest
import zmq
from feed_parts import RUN, MemoryLog, MemoryRecorder, batch_of, eventually, hello_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch import feed
from ampwatch.errors import FeedError, FrameError
from ampwatch.feed.frames import VERSION, Frame, Hello, Kind, pack, unpack
from ampwatch.rows import Table


class Stranger:
    """A raw socket; with keys if it is given some."""

    def __init__(self, endpoint, server=None, pair=None):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = 20_000  # a refused socket has nobody to send to, and would wait
        if pair is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = pair.public, pair.secret
            self.socket.curve_serverkey = server
        self.socket.connect(endpoint)

    def send(self, *parts):
        self.socket.send_multipart(list(parts))

    def speak(self, kind, rank=0, **fields):
        self.send(*pack(Frame(kind, RUN, rank, **fields)))

    def hear(self):
        assert self.socket.poll(20_000)
        return unpack(self.socket.recv_multipart())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close(0)
        self.context.term()


@pytest.fixture
def recorder():
    with MemoryRecorder() as recorder:
        yield recorder


@pytest.fixture
def insider(recorder):
    """Somebody hostile who holds the user's own keys."""
    own = feed.own_keys()
    with Stranger(recorder.endpoint, own.public, own) as stranger:
        yield stranger


def introduced(stranger):
    """Say hello and return the recorder's request."""
    stranger.speak(Kind.HELLO, payload=hello_of().to_bytes())
    want = stranger.hear()
    assert want.kind is Kind.WANT
    return want


def other_user(tmp_path):
    return feed.own_keys(tmp_path / "other")


def test_without_keys_nothing_gets_through(recorder):
    with Stranger(recorder.endpoint) as stranger:
        with contextlib.suppress(zmq.Again):  # the handshake may be refused before this line
            stranger.socket.sndtimeo = 200
            stranger.speak(Kind.HELLO, payload=hello_of().to_bytes())
        log = MemoryLog([batch_of(0)])
        sender = feed.Sender(recorder.endpoint, hello_of(rank=1), log)
        eventually(lambda: recorder.batches(rank=1), sender.poll)
        assert sender.close()
    assert set(recorder.rows) == {feed.PeerKey(RUN, 1)}
    assert recorder.others == []


def test_another_users_key_is_denied_and_named_until_it_is_on_the_list(recorder, tmp_path):
    other, own = other_user(tmp_path), feed.own_keys()
    with Stranger(recorder.endpoint, own.public, other) as stranger:
        eventually(lambda: recorder.others)
        assert recorder.others == [feed.KeyDenied(other.public.hex())]
        assert recorder.receiver.counts.frames == 0
    feed.allow_key(other.public.hex(), "the other machine")
    with Stranger(recorder.endpoint, own.public, other) as stranger:
        introduced(stranger)


def test_a_damaged_list_of_keys_denies_with_a_sentence_and_lets_those_in_that_it_names(
    recorder, tmp_path
):
    other, third, own = other_user(tmp_path), feed.own_keys(tmp_path / "third"), feed.own_keys()
    path = feed.allow_key(other.public.hex())
    path.write_bytes(path.read_bytes() + b"\xff\xfe" + b"0" * 60)
    with Stranger(recorder.endpoint, own.public, third):
        eventually(lambda: recorder.others)
        [denied] = recorder.others
        assert denied.public == third.public.hex()
        assert str(path) in denied.trouble
    with Stranger(recorder.endpoint, own.public, other) as stranger:
        introduced(stranger)


def test_a_trainer_tells_nothing_to_a_recorder_of_another_key(tmp_path):
    impostor = feed.Security(other_user(tmp_path))
    receiver = feed.Receiver("tcp://127.0.0.1:*", keys=impostor)
    sender = feed.Sender(receiver.endpoint, hello_of(), MemoryLog([batch_of(0)]))
    for _ in range(50):
        sender.poll()
        assert list(receiver.receive(0.01)) == []
    assert receiver.counts.frames == 0
    assert not sender.stats.connected
    assert sender.close() is False
    receiver.close()


def test_a_trainer_finds_a_recorder_of_another_key_that_it_was_told_of(tmp_path, monkeypatch):
    other = other_user(tmp_path)
    feed.allow_key(feed.own_keys().public.hex(), folder=tmp_path / "other")
    monkeypatch.setenv("AMPWATCH_RECORDER_KEY", other.public.hex())
    keys = feed.Security(other, folder=tmp_path / "other")
    receiver = feed.Receiver("tcp://127.0.0.1:*", keys=keys)
    sender = feed.Sender(receiver.endpoint, hello_of(), MemoryLog())
    arrived = []
    eventually(lambda: arrived, lambda: (sender.poll(), arrived.extend(receiver.receive(0.01))))
    assert arrived == [feed.HelloArrived(feed.PeerKey(RUN, 0), hello_of(), 0)]
    sender.close(timeout_s=0.0)
    receiver.close()


HEADER = pack(Frame(Kind.BEAT, RUN, 0))[0]
BAD = {
    "no frame at all": ([b"GET / HTTP/1.1"], "not a frame of ampwatch"),
    "nothing": ([b""], "not a frame of ampwatch"),
    "too many parts": ([HEADER, b"", b""], "3 parts"),
    "a cut header": ([HEADER[:-1]], "A header has"),
    "a frame that only a recorder sends": (pack(Frame(Kind.ACK, RUN, 0)), "Only a recorder"),
    "an unknown kind": ([HEADER[:3] + b"\x63" + HEADER[4:]], "unknown kind 99"),
    "a payload that is not due": ([HEADER, b"x"], "too large"),
    "a number beyond all bounds": (pack(Frame(Kind.BEAT, RUN, 0, sequence=1 << 63)), "bounds"),
    "a rank beyond all bounds": (pack(Frame(Kind.BEAT, RUN, 1 << 30)), "bounds"),
    "a hello that is no JSON": (pack(Frame(Kind.HELLO, RUN, 0, payload=b"\x80")), "hello"),
    "a hello of wrong types": (
        pack(Frame(Kind.HELLO, RUN, 0, payload=Hello(1, "0", None, "", 3).to_bytes())),
        "wrong type",
    ),
    "a hello of another rank": (
        pack(Frame(Kind.HELLO, RUN, 0, payload=hello_of(rank=7).to_bytes())),
        "another run or rank",
    ),
    "a pickle": (pack(Frame(Kind.HELLO, RUN, 0, payload=b"cos\nsystem\n(S'false'\ntR.")), "hello"),
}


@pytest.mark.parametrize(("parts", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_frame_is_dropped_and_its_sender_named(parts, reason, recorder, insider):
    insider.send(*parts)
    eventually(lambda: recorder.others)
    (bad,) = recorder.others
    assert reason in bad.reason
    assert bad.address == "127.0.0.1"
    assert recorder.receiver.counts.bad == 1
    introduced(insider)  # it goes on serving


def test_another_wire_version_is_refused_with_a_sentence(recorder, insider):
    insider.send(HEADER[:2] + bytes([VERSION + 1]) + b"whatever comes then")
    answer = insider.hear()
    assert answer.kind is Kind.NO
    assert b"install the same ampwatch on both sides" in answer.payload


def test_damaged_rows_are_dropped_counted_and_noted_as_a_gap(recorder, insider):
    token = introduced(insider).token
    good = batch_of(0)
    damaged = good.payload[:-8] + b"\xff" * 8
    for sequence, payload in enumerate(
        [good.payload, b"\xff" * 64, good.payload[:-9], good.payload]
    ):
        insider.speak(
            Kind.ROWS, sequence=sequence, token=token, table=Table.EVENTS, payload=payload
        )
    insider.speak(Kind.ROWS, sequence=4, token=token, table=Table.STEPS, payload=damaged)
    insider.speak(Kind.END, sequence=5, token=token)
    eventually(lambda: recorder.ended)
    assert recorder.gaps == [(1, 2), (2, 3), (4, 5)]
    assert [bad.peer for bad in recorder.others] == [feed.PeerKey(RUN, 0)] * 3
    assert recorder.receiver.peers[feed.PeerKey(RUN, 0)].bad == 3
    assert list(recorder.rows[feed.PeerKey(RUN, 0)]) == [0, 3]


def test_an_oversize_frame_ends_its_connection_and_nothing_else(recorder, insider):
    introduced(insider)
    frames = recorder.receiver.counts.frames
    insider.send(HEADER, secrets.token_bytes(17 << 20))
    log = MemoryLog([batch_of(0)])
    sender = feed.Sender(recorder.endpoint, hello_of(rank=1), log)
    eventually(lambda: recorder.batches(rank=1), sender.poll)
    assert sender.close()
    heard_from_us = recorder.receiver.counts.frames - frames
    assert recorder.others == []
    assert heard_from_us <= sender.stats.sent + 5


def test_a_flood_of_hellos_is_passed_over_and_a_hello_after_a_beat_is_heard(recorder, insider):
    want = introduced(insider)
    for _ in range(200):
        insider.speak(Kind.HELLO, payload=hello_of().to_bytes())
    eventually(lambda: recorder.receiver.counts.frames > 200)
    assert recorder.receiver.counts.ignored > 150  # all, unless this machine stood still for long

    def is_heard():
        insider.speak(Kind.HELLO, payload=hello_of().to_bytes())
        if not insider.socket.poll(100):
            return False
        answer = insider.hear()
        return answer.kind is Kind.WANT and answer.token != want.token

    eventually(is_heard)


def test_a_trainer_that_begins_anew_is_heard_at_once(recorder, insider):
    introduced(insider)
    own = feed.own_keys()
    with Stranger(recorder.endpoint, own.public, own) as same_rank:
        assert introduced(same_rank).token


def test_nobody_speaks_for_another_users_rank(recorder, insider, tmp_path):
    introduced(insider)
    other = other_user(tmp_path)
    feed.allow_key(other.public.hex())
    with Stranger(recorder.endpoint, feed.own_keys().public, other) as stranger:
        stranger.speak(Kind.HELLO, payload=hello_of().to_bytes())
        eventually(lambda: recorder.others)
    assert "Another user's key" in recorder.others[0].reason


def test_rows_of_an_unknown_rank_are_answered_by_the_question_who_it_is(recorder, insider):
    payload = batch_of(0).payload
    insider.speak(Kind.ROWS, token=5, table=Table.EVENTS, payload=payload)
    assert insider.hear().kind is Kind.WHO
    assert recorder.rows == {}


def test_rows_from_before_the_last_request_are_ignored(recorder, insider):
    token = introduced(insider).token
    payload = batch_of(0).payload
    insider.speak(Kind.ROWS, token=token + 1, table=Table.EVENTS, payload=payload)
    insider.speak(Kind.BEAT, token=token + 1)
    assert insider.hear().kind is Kind.WANT
    assert recorder.receiver.counts.ignored == 2
    assert recorder.batches() == []


def test_rows_lost_under_way_are_asked_for_again(recorder, insider):
    token = introduced(insider).token
    insider.speak(Kind.BEAT, token=token, sequence=3, value=3)
    again = insider.hear()
    assert (again.kind, again.sequence) == (Kind.WANT, 0)
    assert again.token != token


def test_a_rank_that_sends_beyond_all_measure_is_refused_with_a_sentence():
    log = MemoryLog(batch_of(step) for step in range(20))
    with MemoryRecorder(limits=feed.Limits(rank_rows=10)) as recorder:
        sender = feed.Sender(recorder.endpoint, hello_of(), log)
        eventually(lambda: sender.stats.refused, sender.poll)
        assert "takes 10 rows" in sender.stats.refused
        assert sender.close() is False
        assert len(recorder.batches()) == 10


def test_more_ranks_than_the_limit_are_not_met():
    with MemoryRecorder(limits=feed.Limits(peers=1)) as recorder:
        first = feed.Sender(recorder.endpoint, hello_of(), MemoryLog([batch_of(0)]))
        eventually(lambda: recorder.batches(), first.poll)
        second = feed.Sender(recorder.endpoint, hello_of(rank=1), MemoryLog([batch_of(0)]))
        eventually(lambda: second.stats.connected, second.poll)
        assert second.close(timeout_s=0.1) is False
        assert first.close()
        assert set(recorder.rows) == {feed.PeerKey(RUN, 0)}


def test_a_taken_port_is_said_and_a_free_one_taken_where_that_is_wanted(recorder):
    with pytest.raises(FeedError, match="is taken by another program"):
        feed.Receiver(recorder.endpoint)
    other = feed.Receiver(recorder.endpoint, fallback=True)
    assert other.fell_back
    assert other.endpoint.startswith("tcp://127.0.0.1:")
    assert other.endpoint != recorder.endpoint
    other.close()


def test_an_address_of_another_machine_cannot_be_listened_on():
    with pytest.raises(FeedError, match="cannot be listened on"):
        feed.Receiver("tcp://192.0.2.1:5797")


@given(st.lists(st.binary(max_size=100), max_size=4), st.integers(0, len(HEADER)))
def test_no_bytes_make_reading_a_frame_fail_otherwise_than_by_a_frame_error(parts, kept):
    for message in (parts, [HEADER[:kept] + b"".join(parts)]):
        with contextlib.suppress(FrameError):
            assert isinstance(unpack(message), Frame)


@given(
    st.sampled_from([Kind.BEAT, Kind.LOST, Kind.END, Kind.ACK, Kind.WANT, Kind.WHO]),
    st.integers(0, (1 << 20) - 1),
    st.integers(0, (1 << 32) - 1),
    st.lists(st.integers(0, (1 << 62) - 1), min_size=4, max_size=4),
    st.integers(0, 255),
)
def test_a_frame_survives_the_wire(kind, rank, token, numbers, flags):
    sequence, value, count, time_ns = numbers
    frame = Frame(kind, RUN, rank, token, sequence, value, count, time_ns, flags)
    assert unpack(pack(frame)) == frame


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=settings().max_examples // 2)
@given(st.binary() | JSON.map(json.dumps).map(str.encode))
def test_a_hello_from_outside_is_read_or_refused(payload):
    with pytest.raises(FrameError):
        Hello.from_bytes(payload)


@settings(max_examples=settings().max_examples // 2)
@given(st.sampled_from(list(asdict(hello_of()))), JSON)
def test_a_hello_with_one_strange_field_is_read_or_refused(name, value):
    fields = asdict(hello_of()) | {name: value}
    with contextlib.suppress(FrameError):
        assert asdict(Hello.from_bytes(json.dumps(fields).encode())) == fields


def test_an_instruction_reaches_the_trainer_with_its_number_its_age_and_its_authenticity():
    log, taken = MemoryLog([batch_of(0)]), []
    with MemoryRecorder() as recorder:
        sender = feed.Sender(recorder.endpoint, hello_of(), log, on_instruction=taken.append)
        key = feed.PeerKey(RUN, 0)
        eventually(lambda: recorder.batches() == log.batches, sender.poll)
        asked = feed.Instruction(feed.Key.RATE, 0.125)
        assert recorder.instruct(key, asked, 7)
        eventually(lambda: taken, sender.poll)
        assert (taken[0].instruction, taken[0].number, taken[0].is_authentic) == (asked, 7, True)
        assert 0 <= taken[0].age_s < 60
        assert not recorder.instruct(feed.PeerKey(RUN, 1), asked, 8)
        assert sender.close()
        assert not recorder.instruct(key, asked, 9)  # it has ended


def test_a_trainer_that_allows_nothing_ignores_instructions():
    log = MemoryLog([batch_of(0)])
    with MemoryRecorder() as recorder:
        sender = feed.Sender(recorder.endpoint, hello_of(), log)
        eventually(lambda: recorder.batches() == log.batches, sender.poll)
        recorder.instruct(feed.PeerKey(RUN, 0), feed.Instruction(feed.Key.STOP), 1)
        batch = batch_of(1)
        sender.send(log.append(batch), batch)
        eventually(lambda: recorder.batches() == log.batches, sender.poll)
        assert sender.stats.errors == 0
        assert sender.close()


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"null", b'{"key": "rm"}', b'{"key": "stop"}', b'{"key": "stop", "value": 1}',
     b'{"key": "learning-rate", "value": null}', b'{"key": "learning-rate", "value": "NaN"}',
     b'{"key": "learning-rate", "value": 1e9}', b'{"key": "learning-rate", "value": NaN}'],
)  # fmt: skip
def test_what_is_no_instruction_is_an_error_of_the_frame(payload):
    with pytest.raises(FrameError):
        feed.Instruction.from_bytes(payload)


def test_an_instruction_is_read_as_it_was_written():
    for one in (feed.Instruction(feed.Key.STOP), feed.Instruction(feed.Key.RATE, 0.3)):
        assert feed.Instruction.from_bytes(one.to_bytes()) == one
