"""Reads bytes of a place that lie near each other in one request.

A file holds the rows of many runs, one after the other. Whoever reads them all asks for stretches
of some megabytes, and not once for each run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from ampwatch.fleet.place import Place

_MOST_BYTES = 8 << 20  # fetched at once; as many of each table are held
_GAP_BYTES = 64 << 10  # not wanted, and yet fetched: another request takes as long


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes in an object of the place."""

    path: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self.offset + self.length


class NearbyBytes:
    """Reads bytes of a place; expected ranges that lie near each other are read in one request.

    Of each object the last stretch is held, so that whoever goes on in the order of the objects
    fetches each byte once.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.address = place.address
        self._stretches: dict[Extent, Extent] = {}  # of each that is expected
        self._held: dict[str, tuple[Extent, bytes]] = {}  # by path

    def expect(self, wanted: Iterable[Extent]) -> None:
        """Say which ranges of bytes will be read; those expected before are forgotten."""
        self._stretches = {}
        order = sorted(set(wanted), key=lambda one: (one.path, one.offset))
        for _, group in groupby(order, key=lambda one: one.path):
            for members in _together(list(group)):
                first, end = members[0], max(one.end for one in members)
                stretch = Extent(first.path, first.offset, end - first.offset)
                self._stretches |= dict.fromkeys(members, stretch)

    def get(self, path: str, start: int, length: int) -> bytes:
        """Read a range of an object, together with the expected ranges near it."""
        stretch = self._stretches.get(Extent(path, start, length))
        if stretch is None:
            return self._place.get(path, start, length)
        held, data = self._held.get(path, (None, b""))
        if held != stretch:
            data = self._place.get(path, stretch.offset, stretch.length)
            self._held[path] = stretch, data
        return data[start - stretch.offset : start - stretch.offset + length]


def _together(extents: list[Extent]) -> Iterable[list[Extent]]:
    """The ranges of one object in groups, each to be read in one request."""
    found: list[list[Extent]] = []
    for one in extents:
        near = found and one.offset <= found[-1][-1].end + _GAP_BYTES
        if near and one.end - found[-1][0].offset <= _MOST_BYTES:
            found[-1].append(one)
        else:
            found.append([one])
    return found
