import os
import stat
import subprocess
import sys
import warnings

import pytest
import zmq

from ampwatch import feed
from ampwatch.errors import FeedError
from ampwatch.feed.keys import legible_keys

posix = pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
MAKE_KEYS = "from ampwatch import feed; print(feed.own_keys().public.hex())"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "config"


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_keys_are_made_on_first_use_for_their_owner_alone(folder):
    pair = feed.own_keys()
    assert len(pair.public) == len(pair.secret) == 32
    assert mode_of(folder) == 0o700
    assert [mode_of(path) for path in folder.iterdir()] == [0o600]
    assert feed.own_keys() == pair


def test_the_secret_half_is_in_no_text():
    pair = feed.own_keys()
    assert pair.secret.hex() not in repr(pair)
    assert repr(pair.secret) not in repr(pair)


def test_many_ranks_that_start_at_once_get_the_same_keys(folder):
    children = [
        subprocess.Popen([sys.executable, "-c", MAKE_KEYS], stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    answers = {child.communicate()[0].strip() for child in children}
    assert answers == {feed.own_keys().public.hex()}
    assert len(list(folder.iterdir())) == 1


def test_keys_are_made_where_the_file_system_knows_no_hard_links(folder, monkeypatch):
    def no_link(*_):
        raise OSError("Operation not supported")

    monkeypatch.setattr(os, "link", no_link)
    assert feed.own_keys() == feed.own_keys()
    assert len(list(folder.iterdir())) == 1


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_file_open_to_others_is_refused_with_the_remedy(folder, mode):
    feed.own_keys()
    (path,) = folder.iterdir()
    path.chmod(mode)
    with pytest.raises(FeedError, match="chmod 600"):
        feed.own_keys()


@posix
def test_a_folder_that_others_may_write_is_refused_with_the_remedy(folder):
    feed.own_keys()
    folder.chmod(0o770)
    with pytest.raises(FeedError, match="chmod 700"):
        feed.own_keys()


@pytest.mark.parametrize("text", ["", "public 00\nsecret 00\n", "\xff", "public zz\nsecret zz"])
def test_a_damaged_key_file_is_refused_with_the_remedy(folder, text, monkeypatch):
    monkeypatch.setattr("ampwatch.feed.keys._PATIENCE_S", 0.0)
    feed.own_keys()
    (path,) = folder.iterdir()
    path.write_text(text, "utf-8")
    with pytest.raises(FeedError, match="delete it to have a new one made"):
        feed.own_keys()


def test_halves_of_two_pairs_are_no_pair(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("ampwatch.feed.keys._PATIENCE_S", 0.0)
    mine, other = feed.own_keys(), feed.own_keys(tmp_path / "other")
    (path,) = folder.iterdir()
    path.write_text(path.read_text().replace(mine.public.hex(), other.public.hex()))
    with pytest.raises(FeedError):
        feed.own_keys()


def test_a_folder_that_cannot_be_made_is_refused_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPWATCH_CONFIG_DIR", str(tmp_path / "file" / "config"))
    with pytest.raises(FeedError, match="AMPWATCH_ENDPOINT=off"):
        feed.own_keys()


def test_the_list_of_others_keeps_keys_and_comments(tmp_path):
    first, second = (feed.own_keys(tmp_path / name).public.hex() for name in "ab")
    feed.allow_key(first, "the head\nnode")
    path = feed.allow_key(second)
    feed.allow_key(first.upper(), "the head node")
    assert feed.allowed_keys() == {first: "the head node", second: ""}
    assert feed.forget_key(second) is True
    assert feed.forget_key(second) is False
    assert feed.allowed_keys() == {first: "the head node"}
    if os.name != "nt":
        assert mode_of(path) == 0o600


@pytest.mark.parametrize("text", ["", "12", "g" * 64, "0" * 63, "../" * 10])
def test_what_is_no_key_is_not_put_on_the_list(text):
    with pytest.raises(FeedError, match="64 hexadecimal digits"):
        feed.allow_key(text)
    assert feed.allowed_keys() == {}


def test_of_a_damaged_list_the_keys_that_can_be_read_still_count():
    path = feed.allow_key("0" * 64, "the head node")
    feed.allow_key("1" * 64)
    path.write_bytes(path.read_bytes().replace(b"1" * 64, b"1" * 30 + b"\xff\0" + b"1" * 32))
    keys, trouble = legible_keys()
    assert keys == {"0" * 64: "the head node"}
    assert trouble.endswith("as `ampwatch keys` prints them.")
    assert str(path) in trouble
    with pytest.raises(FeedError, match="64 hexadecimal digits"):  # to write it anew would lose one
        feed.allow_key("2" * 64)


def test_a_comment_in_another_encoding_leaves_its_key_readable():
    path = feed.allow_key("0" * 64, "node")
    path.write_bytes(path.read_bytes().replace(b"node", b"n\xf6de"))
    assert legible_keys() == ({"0" * 64: "n\ufffdde"}, "")


@posix
def test_a_list_that_others_may_write_is_refused():
    path = feed.allow_key("0" * 64)
    path.chmod(0o666)
    with pytest.raises(FeedError, match="chmod 600"):
        feed.allowed_keys()


@pytest.mark.parametrize(
    ("endpoint", "reach"),
    [("tcp://127.0.0.1:5797", "every user of this machine"), ("tcp://a.example:1", "network")],
)
def test_switching_security_off_says_what_is_given_up(endpoint, reach, monkeypatch):
    with pytest.warns(UserWarning, match=f"neither encrypted nor authenticated.*{reach}"):
        assert feed.find_security(endpoint, insecure=True).own is None
    monkeypatch.setenv("AMPWATCH_INSECURE", "1")
    with pytest.warns(UserWarning, match="neither encrypted nor authenticated"):
        assert feed.find_security(endpoint).own is None


def test_without_curve_the_feed_is_refused_unless_security_is_switched_off(monkeypatch):
    monkeypatch.setattr(zmq, "has", lambda _: False)
    with pytest.raises(FeedError, match="built without CURVE"):
        feed.find_security(feed.DEFAULT_ENDPOINT)


def test_without_security_rows_still_arrive(monkeypatch):
    from feed_parts import MemoryLog, MemoryRecorder, batch_of, hello_of

    monkeypatch.setenv("AMPWATCH_INSECURE", "1")
    log = MemoryLog([batch_of(0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with MemoryRecorder() as recorder:
            sender = feed.Sender(recorder.endpoint, hello_of(), log)
            while not recorder.batches():
                sender.poll()
            assert sender.close()
    assert recorder.batches() == log.batches
