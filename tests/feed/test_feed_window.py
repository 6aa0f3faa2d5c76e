from hypothesis import given
from hypothesis import strategies as st

from ampwatch.feed.sender import WINDOW_BYTES, Request, Window


def test_nothing_may_be_sent_before_the_recorder_gives_credit():
    assert not Window().fits(1)


def test_credit_narrows_our_own_limit_and_never_widens_it():
    window = Window()
    window.allow(1 << 40)
    window.add(WINDOW_BYTES)
    assert not window.fits(1)


def test_one_frame_larger_than_the_credit_may_go_alone():
    window = Window()
    window.allow(10)
    assert window.fits(100)
    window.add(100)
    assert not window.fits(1)
    window.acknowledge(1)
    assert window.fits(100)


def test_live_rows_have_room_when_the_log_has_filled_its_share():
    window = Window()
    window.allow(1000)
    window.add(800)
    assert window.room_bytes == 0
    assert window.fits(200)


@given(st.lists(st.integers(1, 100)), st.lists(st.integers(0, 50)))
def test_what_is_held_is_what_was_sent_and_not_yet_counted_by_the_peer(sizes, counts):
    window = Window()
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
