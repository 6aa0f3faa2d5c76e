"""A run's numbers by step, held in memory and grown by what is new."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ampwatch.report.thinning import Floats, Steps
from ampwatch.rows import Table
from ampwatch.store import Run

LINES = ("loss", "grad_norm", "grad_norm_applied", "lr", "step_time_ms")
SCALE = "log2_scale"
_QUICK = ("step", "optimizer", "scale", "skipped")  # which compress well: read in no time
_TOLD_AFTER = "scale_after"  # all that some foreign logs tell
_READ = (*_QUICK, "time_ns", "autocast_dtype", *LINES)
_PORTION = 1_000_000  # rows read at once
_LOOK_BACK = 4096  # rows searched at once, from the end
_CLIP_SHARE = 1e-3  # a norm that clipping changed by less looks the same


@dataclass(frozen=True, slots=True)
class Course:
    """A run's numbers by step, as they stood at one moment; nan where absent or not finite."""

    epoch: int  # another one where rows seen before no longer hold
    step: Steps
    columns: dict[str, Floats]
    skips: Steps  # the steps that any optimizer skipped
    present: frozenset[str]  # the columns that hold any number
    starts: tuple[int, ...]  # rows where steps begin anew, after a restart
    clips: bool = False  # whether any gradient was changed between its norm and its use
    autocast_dtype: str | None = None
    last_step_ns: int = 0  # when the newest step ended
    hole: float = 0.0  # so many steps without a row are usual
    stepped: frozenset[str] = frozenset({SCALE})  # the columns drawn as stairs

    def __len__(self) -> int:
        return len(self.step)

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest step; 0 and 0 of nothing."""
        if not len(self.step):
            return 0, 0
        edges = [0, *self.starts, len(self.step)]
        firsts = [int(self.step[at]) for at in edges[:-1]]
        lasts = [int(self.step[at - 1]) for at in edges[1:]]
        return min(firsts), max(lasts)

    def rows_within(self, first: int, last: int, start: int = 0) -> NDArray[np.intp] | slice:
        """The rows, from `start` on, whose step lies there, and one more at each side of them."""
        edges = [0, *self.starts, len(self.step)]
        slices = []
        for low, high in pairwise(edges):
            steps = self.step[low:high]
            left = low + max(0, int(np.searchsorted(steps, first)) - 1)
            right = low + min(high - low, int(np.searchsorted(steps, last, side="right")) + 1)
            slices.append(slice(max(left, start), max(right, start)))
        if len(slices) == 1:
            return slices[0]
        return np.concatenate([np.arange(part.start, part.stop) for part in slices])

    def latest(self, column: str) -> tuple[float | None, int]:
        """The last number there is of a column, and for how many rows there has been none."""
        values = self.columns[column]
        for end in range(len(values), 0, -_LOOK_BACK):
            start = max(0, end - _LOOK_BACK)
            known = np.flatnonzero(np.isfinite(values[start:end]))
            if len(known):
                at = start + int(known[-1])
                return float(values[at]), len(values) - 1 - at
        return None, len(values)

    def skips_within(self, first: int, last: int) -> Steps:
        """The skipped steps that lie there."""
        skips = self.skips if self.starts == () else np.unique(self.skips)
        return skips[np.searchsorted(skips, first) : np.searchsorted(skips, last, side="right")]


class Numbers:
    """One run's growing numbers: `take` what is new, `course` as it stands."""

    waits = False  # no row is held back

    def __init__(self, *, rank: int | None = None, epoch: int = 0, quick: bool = False) -> None:
        """Of the lowest rank, if no other is named; `epoch` is that of the first rows.

        `quick` takes the scale and the skips alone: of a long run they are there at once.
        """
        self._rank = rank
        self._lines = () if quick else LINES
        self._names = _QUICK if quick else _READ
        self._epoch = epoch - (2 if quick else 1)
        self._is_in_order = True
        self._begin()

    @property
    def course(self) -> Course:
        """What was taken so far; later rows do not change it."""
        return self._course

    def take(self, run: Run) -> Course:
        """Take in the rows that are new; those that changed make it begin anew."""
        rank = min(run.ranks, default=0) if self._rank is None else self._rank
        before = self._taken
        while self._take_portion(run, rank):
            pass
        if self._taken != before:
            self._course = self._snapshot()
        return self._course

    # --- within ----------------------------------------------------------------------------------

    def _take_portion(self, run: Run, rank: int) -> bool:
        """Take in some rows; whether there may be more."""
        start = max(0, self._taken - 1)  # the last row that was taken, to see whether it stands
        rows = self._rows(run, rank, start)
        if self._taken and (not rows.num_rows or rows.column("step")[0].as_py() != self._last_step):
            self._begin()
            return True
        if start + rows.num_rows <= self._taken:
            return False
        self._add(rows.slice(self._taken - start))
        self._taken = start + rows.num_rows
        self._last_step = rows.column("step")[-1].as_py()
        return True

    def _rows(self, run: Run, rank: int, start: int) -> pa.Table:
        """Rows from `start` on, as they were logged, of which nothing stays in memory. A run that
        was resumed, or filed as its batches arrived, may not be in order: it is sorted, and held.
        """
        names = self._names if run.info.source == "ampwatch" else (*self._names, _TOLD_AFTER)
        if self._is_in_order:
            rows = run.logged(Table.STEPS, names, rank, start, _PORTION)
            if np.all(np.diff(rows.column("step").fill_null(-1).to_numpy()) >= 0):
                return rows
            self._is_in_order = False
        return run.read(Table.STEPS, columns=names, rank=rank).slice(start)

    def _begin(self) -> None:
        self._epoch += 1
        self._taken = 0
        self._last_step: int | None = None
        self._optimizer: int | None = None
        self._step, self._skips = Growing(np.int64), Growing(np.int64)
        self._columns = {name: Growing(np.float32) for name in (SCALE, *LINES)}
        self._present: frozenset[str] = frozenset()
        self._starts: tuple[int, ...] = ()
        self._clips, self._autocast_dtype = False, None
        self._last_step_ns = 0
        self._course = self._snapshot()

    def _add(self, rows: Any) -> None:
        step = rows.column("step").fill_null(-1).to_numpy()
        skipped = rows.column("skipped").fill_null(False).to_numpy()  # noqa: FBT003
        skips, before = np.unique(step[skipped]), self._skips.values
        if len(before) and len(skips) and skips[0] == before[-1]:
            skips = skips[1:]  # another optimizer's, of a step that is counted already
        self._skips.extend(skips)
        mine = self._of_first_optimizer(rows)
        step = step[mine]
        self._note_restarts(step)
        self._step.extend(step)
        if self._lines:
            self._autocast_dtype = rows.column("autocast_dtype")[-1].as_py()
            self._last_step_ns = rows.column("time_ns")[-1].as_py() or 0
        for name, values in _numbers(rows, mine, self._lines).items():
            self._columns[name].extend(values)
            if name not in self._present and np.isfinite(values).any():
                self._present |= {name}
        self._clips = self._clips or self._did_clip(len(step))

    def _did_clip(self, newest: int) -> bool:
        before, after = (self._columns[name].values for name in ("grad_norm", "grad_norm_applied"))
        start = max(0, len(before) - newest)
        moved = np.abs(after[start:] - before[start:]) > _CLIP_SHARE * before[start:]
        return bool(moved.any())

    def _of_first_optimizer(self, rows: Any) -> NDArray[np.bool_] | slice:
        """One row a step: with several optimizers (a GAN) losses of different kinds would mix."""
        optimizer = rows.column("optimizer")
        if self._optimizer is None:
            known = optimizer.drop_null()
            if not len(known):
                return slice(None)
            self._optimizer = known[0].as_py()
        mine = np.asarray(optimizer.fill_null(self._optimizer).to_numpy() == self._optimizer)
        return slice(None) if mine.all() else mine

    def _note_restarts(self, step: Steps) -> None:
        before = self._step.values
        if not len(step):
            return
        ahead = np.diff(step, prepend=before[-1] if len(before) else step[0])
        self._starts += tuple(int(at) + len(before) for at in np.flatnonzero(ahead < 0))

    def _snapshot(self) -> Course:
        return Course(
            epoch=self._epoch,
            step=self._step.values,
            columns={name: column.values for name, column in self._columns.items()},
            skips=self._skips.values,
            present=self._present,
            starts=self._starts,
            clips=self._clips,
            autocast_dtype=self._autocast_dtype,
            last_step_ns=self._last_step_ns,
        )


def _numbers(
    rows: Any, mine: NDArray[np.bool_] | slice, lines: tuple[str, ...]
) -> dict[str, Floats]:
    """The columns as they are drawn: the scale as its power of two, nan for what is not finite."""
    found = {name: _single(rows, name)[mine] for name in lines}
    scale = _scales(rows)[mine]
    with np.errstate(divide="ignore", invalid="ignore"):
        found[SCALE] = np.log2(scale).astype(np.float32)
    for values in found.values():
        values[~np.isfinite(values)] = np.nan
    return found


def _scales(rows: Any) -> NDArray[np.float64]:
    """What each step was scaled with; where a foreign log tells only what it became, that."""
    scale = np.asarray(rows.column("scale").to_numpy(), np.float64)
    if _TOLD_AFTER not in rows.column_names:
        return scale
    after = np.asarray(rows.column(_TOLD_AFTER).to_numpy(), np.float64)
    return np.where(np.isnan(scale), after, scale)


def _single(rows: Any, name: str) -> Floats:
    with np.errstate(over="ignore"):
        return np.array(rows.column(name).to_numpy(), np.float32)


class Growing:
    """An array with room at its end; a view taken of it never changes."""

    def __init__(self, kind: type[np.generic]) -> None:
        self._room = np.zeros(1024, kind)
        self._length = 0

    @property
    def values(self) -> NDArray[Any]:
        """What it holds by now."""
        return self._room[: self._length]

    def extend(self, values: NDArray[Any]) -> None:
        """Add these at the end."""
        length = self._length + len(values)
        if length > len(self._room):
            room = np.zeros(max(length, self._length + self._length // 2), self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : length] = values
        self._length = length
