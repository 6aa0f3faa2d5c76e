"""Something is tried again until it works, the time is over, or nobody wants it any more."""

from __future__ import annotations

from ampwatch.retry import retry


def test_the_first_true_result_ends_it():
    found = iter([None, 0, "", "there", "too late"])
    assert retry(lambda: next(found), 60.0, every_s=0.0) == "there"


def test_it_is_tried_once_however_little_time_there_is():
    tries = []
    assert retry(lambda: tries.append(1), 0.0) is None
    assert len(tries) == 1


def test_it_stops_when_told_to():
    tries = []
    retry(lambda: tries.append(1), 60.0, every_s=0.0, stop=lambda: len(tries) == 3)
    assert len(tries) == 3
