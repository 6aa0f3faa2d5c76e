"""A growing series in a fixed number of windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ampwatch.diagnosis.column_arrays import Integers


@dataclass(frozen=True, slots=True)
class DoublingWindows:
    """A growing series kept in a fixed number of windows of equal width.

    Entry n of the series is always in window n // width. Once all windows are in use, pairs are
    merged and the width doubles.
    """

    values: npt.NDArray[Any]  # a row for each window, an even number of them
    operation: np.ufunc  # add, fmin or fmax: of two windows, or of a window and an entry
    width: int = 1
    count: int = 0  # entries, up to the last that is known

    @classmethod
    def empty(
        cls, operation: np.ufunc, most: int, *columns: int, width: int = 1
    ) -> DoublingWindows:
        """Windows that hold no entry yet."""
        return cls(np.full((most, *columns), _nothing(operation)), operation, width)

    def with_entries(
        self, at: Integers, entries: npt.NDArray[Any], column: Any = 0
    ) -> DoublingWindows:
        """The windows with these entries at these positions, in this column of their windows.

        An entry is added before the windows become too wide for it, so that sums are made in the
        same order in whatever batches the entries came.
        """
        if not len(at):
            return self
        values, width, count = self.values.copy(), self.width, max(self.count, int(at.max()) + 1)
        if entries.ndim > 1:  # a value for each column
            at, column = at[:, None], np.arange(entries.shape[1])
        # `at` is many times as fast with numbers in a row.
        at, column, entries = (np.ravel(one) for one in np.broadcast_arrays(at, column, entries))
        columns = values[:1].size
        while True:
            fits = at < len(values) * width
            where = at[fits] // width * columns + column[fits]
            self.operation.at(values.reshape(-1), where, entries[fits])
            if fits.all():
                return replace(self, values=values, width=width, count=count)
            at, column, entries = at[~fits], column[~fits], entries[~fits]
            pairs = self.operation(values[::2], values[1::2])
            values = np.concatenate([pairs, np.full_like(pairs, _nothing(self.operation))])
            width *= 2

    def with_next(self, entries: npt.NDArray[Any]) -> DoublingWindows:
        """The windows with these entries appended after all others."""
        return self.with_entries(self.count + np.arange(len(entries)), entries)

    def with_columns(self, count: int) -> DoublingWindows:
        """The windows with so many more columns, still empty."""
        new = np.full((len(self.values), count), _nothing(self.operation))
        return replace(self, values=np.concatenate([self.values, new], axis=1))

    @property
    def whole(self) -> npt.NDArray[Any]:
        """The windows that are full; the open one may still change."""
        return self.values[: self.count // self.width]


def _nothing(operation: np.ufunc) -> float:
    """The value of an empty window, which its operation ignores: 0 for sums, else nan."""
    return float("nan") if operation.identity is None else float(operation.identity)
