"""Leaves our hooks out of pickles and copies of a module.

A module's hooks stand in ordered dicts, which every pickler and `copy` ask `copyreg` about. While
such a dict holds hooks of ours, our answer is the dict without them. Our hooks have numbers below
0; torch counts from 0 up, so a user's hooks have the numbers they would have without us.
"""

from __future__ import annotations

import copyreg
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

Place = OrderedDict[int, Any]

numbers = itertools.count(-1, -1)  # of our hooks


class _Bearer:
    """A dict, and how many hooks of ours it holds."""

    __slots__ = ("count", "reference")

    def __init__(self, place: Place) -> None:
        self.count = 0
        self.reference = weakref.ref(place, partial(_is_gone, id(place)))


# By the dict's id. A pickler asks for every ordered dict, so only this is looked up.
_bearers: dict[int, _Bearer] = {}
_before: Callable[[Any], Any] | None = None  # what the picklers called before us
_asked = False  # whether our function is in copyreg's table, or called by a later one there


def bears(place: Place) -> None:
    """One more hook of ours is about to stand in this dict."""
    bearer = _bearer(place)
    if bearer is None:
        bearer = _bearers[id(place)] = _Bearer(place)
        _answer()
    bearer.count += 1


def bears_no_more(place: Place) -> None:
    """One of our hooks in this dict is gone."""
    bearer = _bearer(place)
    if bearer is None:
        return
    bearer.count -= 1
    if not bearer.count:
        _is_gone(id(place))


def _bearer(place: Place) -> _Bearer | None:
    bearer = _bearers.get(id(place))
    return bearer if bearer is not None and bearer.reference() is place else None


def _is_gone(number: int, _reference: object = None) -> None:
    _bearers.pop(number, None)
    if not _bearers:
        _answer_no_more()


def _answer() -> None:
    global _before, _asked
    now = copyreg.dispatch_table.get(OrderedDict)
    if now is _reduce or (_asked and now is not None):
        return  # a function put there after ours calls ours
    _before, _asked = now, True
    copyreg.dispatch_table[OrderedDict] = _reduce


def _answer_no_more() -> None:
    """Restore the table, unless another function was put there after ours."""
    global _before, _asked
    if copyreg.dispatch_table.get(OrderedDict) is not _reduce:
        return
    if _before is None:
        del copyreg.dispatch_table[OrderedDict]
    else:
        copyreg.dispatch_table[OrderedDict] = _before
    _before, _asked = None, False


def _reduce(place: Any) -> Any:
    if _bearer(place) is not None:
        place = _without_ours(place)
    return place.__reduce_ex__(4) if _before is None else _before(place)


def _without_ours(place: Place) -> Place:
    # Copied at once: another thread may add and remove hooks meanwhile.
    kept = [(number, value) for number, value in list(place.items()) if number >= 0]
    plain: Place = OrderedDict(kept)
    vars(plain).update(vars(place))
    return plain
