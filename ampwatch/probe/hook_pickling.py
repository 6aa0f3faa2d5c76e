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


class _Holder:
    """A dict, and how many hooks of ours it holds."""

    __slots__ = ("count", "reference")

    def __init__(self, place: Place) -> None:
        self.count = 0
        self.reference = weakref.ref(place, partial(_is_gone, id(place)))


# By the dict's id. A pickler asks for every ordered dict, so only this is looked up.
_holders: dict[int, _Holder] = {}
_before: Callable[[Any], Any] | None = None  # what the picklers called before us
_asked = False  # whether our function is in copyreg's table, or called by a later one there


def note_hook(place: Place) -> None:
    """One more hook of ours is about to be put into this dict."""
    holder = _holder(place)
    if holder is None:
        holder = _holders[id(place)] = _Holder(place)
        _answer()
    holder.count += 1


def forget_hook(place: Place) -> None:
    """One of our hooks was removed from this dict."""
    holder = _holder(place)
    if holder is None:
        return
    holder.count -= 1
    if not holder.count:
        _is_gone(id(place))


def _holder(place: Place) -> _Holder | None:
    holder = _holders.get(id(place))
    return holder if holder is not None and holder.reference() is place else None


def _is_gone(number: int, _reference: object = None) -> None:
    _holders.pop(number, None)
    if not _holders:
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
    if _holder(place) is not None:
        place = _without_ours(place)
    return place.__reduce_ex__(4) if _before is None else _before(place)


def _without_ours(place: Place) -> Place:
    # Copied at once: another thread may add and remove hooks meanwhile.
    kept = [(number, value) for number, value in list(place.items()) if number >= 0]
    plain: Place = OrderedDict(kept)
    vars(plain).update(vars(place))
    return plain
