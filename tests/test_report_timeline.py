"""What happened in a run, in words: nothing is left out, whatever is joined."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from written_runs import event_columns, fresh_id, step_columns

from ampwatch import codec, diagnose, store
from ampwatch.diagnosis import Finding, Severity
from ampwatch.report.thinning import merged
from ampwatch.report.timeline import MOST_ENTRIES, Kind, attempts_of, condition_of, timeline_of
from ampwatch.rows import EventKind, Table

NOBODY = np.zeros(0, np.int64)


def table(events):
    columns = event_columns(events, 0)
    rank = pa.array([0] * len(events), pa.int32())
    return pa.table({**{name: columns[name] for name in columns}, "rank": rank})


def told(events=(), skips=NOBODY, attempts=(), diagnosis=None, ends=(0, 999)):
    rug = merged(np.asarray(skips, np.int64), *ends)
    return timeline_of(table(list(events)), rug, attempts, diagnosis, ends)


def test_of_ten_thousand_events_each_is_counted_and_few_lines_are_left():
    random = np.random.default_rng(0)
    skips = np.sort(random.choice(100_000, 5000, replace=False))
    events = [(int(s), "overflow", {"layer": "a", "scale": 4.0}) for s in skips]
    events += [(int(s), "lr-changed", {"from": 1, "to": 2}) for s in range(0, 100_000, 50)]
    events += [(int(s), "state-saved", {}) for s in range(0, 100_000, 50)]
    events += [(int(s), "of-tomorrow", {"x": 1}) for s in range(0, 100_000, 100)]
    line = told(sorted(events, key=lambda e: e[0]), skips, ends=(0, 99_999))
    counts = {kind: sum(e.count for e in line.entries if e.kind is kind) for kind in Kind}
    assert counts[Kind.SKIP] == 5000
    assert counts[Kind.CHECKPOINT] == 2000
    assert counts[Kind.CHANGE] == 3000
    assert len(line.entries) <= 4 * MOST_ENTRIES
    assert line.ticks[Kind.SKIP].count.sum() == 5000


# --- events in words ------------------------------------------------------------------------------

WORDS = {
    "optimizer": ({"class": "AdamW", "groups": [{"lr": 0.1}, {"lr": 0.2}]},
                  "AdamW with 2 groups, learning rate 0.1, 0.2"),
    "optimizer-replaced": ({"class": "SGD", "groups": [{}]}, "SGD with 1 group"),
    "scaler-replaced": ({"class": "GradScaler", "init_scale": 65536.0},
                        "the loop goes on with another GradScaler, initial scale 65,536"),
    "state-loaded": ({"of": "scaler", "scale": 8.0},
                     "a saved state was loaded into the scaler with scale 8"),
    "state-saved": ({}, "it is not judged yet"),
    "lr-changed": ({"optimizer": 0, "group": 1, "from": 0.1, "to": 0.3},
                   "the learning rate of group 1 rose from 0.1 to 0.3"),
    "batch-size-changed": ({"from": 32, "to": 64}, "the batch went from 32 to 64 samples"),
    "scale-set": ({}, "the program itself set the loss scale"),
    "overflow": ({"layer": "head"}, "values overflowed in 1 step, traced to layer head"),
    "misuse": ({"code": "AMP408"},
               "The model runs in fp16 and nothing scales the loss: small gradients become zero."),
    "exception": ({"type": "RuntimeError", "message": "out of luck", "fatal": False},
                  "RuntimeError: out of luck (training went on)"),
    "gap": ({"lost_rows": 7, "reason": "the disk was full"},
            "7 rows of the log are missing: the disk was full"),
    "control": ({"told": "A checkpoint was written."}, "A checkpoint was written."),
    "guard": ({"action": "leave-out", "done": True, "told": "Left out."}, "Left out."),
    "of-tomorrow": ({"x": 1, "y": "z"}, "x 1, y z"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_every_kind_of_event_is_said_in_words(kind):
    detail, words = WORDS[kind]
    (entry,) = told([(5, kind, detail)]).entries
    assert (entry.first, entry.last, entry.words) == (5, 5, words)
    assert entry.title


def test_no_kind_of_event_is_without_words():
    attempts = {EventKind.STARTED.value, EventKind.ENDED.value}
    assert {kind.value for kind in EventKind} - attempts == set(WORDS) - {"of-tomorrow"}


def test_a_misuse_is_called_by_its_code_and_name():
    (entry,) = told([(5, "misuse", {"code": "AMP401"})]).entries
    assert entry.title == "AMP401 clip-before-unscale"


@pytest.mark.parametrize("detail", ["{", "[1]", "null", '{"from": "a", "groups": 3}'])
@pytest.mark.parametrize("kind", WORDS)
def test_a_detail_may_be_anything(kind, detail):
    rows = table([(5, kind, {})])
    rows = rows.set_column(rows.column_names.index("detail"), "detail", pa.array([detail]))
    assert timeline_of(rows, merged(NOBODY, 0, 9), (), None, (0, 9)).entries


def test_skips_in_a_row_are_one_line_with_the_scales_and_the_layer():
    events = [
        (s, "overflow", {"layer": "a.b", "scale": 2.0 ** (16 - s + 10)}) for s in (10, 11, 12)
    ]
    one, other = told(events, skips=[10, 11, 12, 50]).entries
    assert (one.first, one.last, one.count) == (10, 12, 3)
    assert one.words == (
        "3 steps in a row were skipped, at a loss scale of 65,536 down to 16,384, "
        "traced to layer a.b"
    )
    assert (other.first, other.words) == (50, "the step was skipped")


# --- checkpoints ----------------------------------------------------------------------------------


def finding(code, first, last, severity=Severity.ERROR):
    return Finding(code, "its-name", severity, first, last, (0,), None, "", "", "")


@pytest.fixture
def calm(tmp_path):
    """The diagnosis of a healthy run."""
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("x"), name="x"))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, step_columns(400, 0, 10**18)))
    events = [(0, "started", {}), (400, "ended", {})]
    writer.append(codec.encode(Table.EVENTS, event_columns(events, 10**18)))
    writer.close()
    return diagnose(store.open_run(path))


@pytest.mark.parametrize(
    ("findings", "step", "mark"),
    [
        ([], 200, "clean"),
        ([("AMP301", 200, 399)], 200, "clean"),  # saved before step 200 began
        ([("AMP301", 200, 399)], 201, "suspect"),
        ([("AMP303", 100, 120)], 200, "clean"),  # over by then
        ([("AMP301", 100, None)], 200, "suspect"),
        ([("AMP201", 0, 399, Severity.WARNING)], 200, "clean"),
        ([("AMP506", 0, 399)], 200, "clean"),  # of memory
        ([("AMP301", 100, 399), ("AMP207", 150, 399)], 140, "suspect"),
        ([("AMP301", 100, 399), ("AMP207", 150, 399)], 160, "poisoned"),
        ([("AMP902", None, None)], 160, "clean"),
    ],
)
def test_a_checkpoint_is_marked_by_what_is_known_of_the_steps_before(calm, findings, step, mark):
    from dataclasses import replace

    diagnosis = replace(calm, findings=tuple(finding(*one) for one in findings))
    assert condition_of(step, diagnosis)[0] == mark


def test_the_checkpoint_to_restart_from_is_named_and_later_ones_are_suspect(calm):
    from dataclasses import replace

    from ampwatch.diagnosis import Action

    advice = replace(
        calm.learning_rate, action=Action.LOWER, recommended=0.01, restart_from_step=250,
        restart_checkpoint_step=200,
    )  # fmt: skip
    diagnosis = replace(calm, findings=(), learning_rate=advice)
    saved = told([(s, "state-saved", {}) for s in (100, 200, 300)], diagnosis=diagnosis).entries
    assert [(one.first, one.mark) for one in saved] == [
        (100, "clean"), (200, "clean"), (300, "suspect")
    ]  # fmt: skip
    assert saved[1].words.endswith("step 200 is the one to restart from")
    assert saved[2].words == "later than step 250, the last good one"


def test_the_same_checkpoint_of_many_ranks_is_one():
    rows = table([(7, "state-saved", {})] * 3)
    rows = rows.set_column(rows.column_names.index("rank"), "rank", pa.array([0, 1, 2], pa.int32()))
    (entry,) = timeline_of(rows, merged(NOBODY, 0, 9), (), None, (0, 9)).entries
    assert entry.count == 1


def test_a_checkpoint_that_tells_where_it_was_written_is_one_with_the_scalers():
    events = [(7, "state-saved", {"of": "scaler"}), (7, "state-saved", {"path": "runs/seven.pt"})]
    (entry,) = told(events).entries
    assert entry.count == 1
    assert entry.words.endswith("; written to runs/seven.pt")


# --- attempts -------------------------------------------------------------------------------------


@pytest.fixture
def resumed(tmp_path):
    """Three attempts: killed at step 99, failed at 149, resumed at 120 and ended at 199."""
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("r"), name="r"))
    parts = [
        (0, 100, []),
        (100, 50, [(150, "exception", {"exception": "OSError", "message": "gone", "fatal": True}),
                   (150, "ended", {})]),
        (120, 80, [(200, "ended", {})]),
    ]  # fmt: skip
    for number, (first, count, events) in enumerate(parts):
        began = 10**18 + number * 10**13
        writer = store.RankWriter(path, 0)
        started = [(first, "started", {"host": "here", "pid": number})]
        writer.append(codec.encode(Table.EVENTS, event_columns(started, began)))
        for at in range(first, first + count, 25):
            few = min(25, first + count - at)
            rows = step_columns(few, 0, began, first=at)
            writer.append(codec.encode(Table.STEPS, rows))
        if events:
            writer.append(codec.encode(Table.EVENTS, event_columns(events, began)))
        writer.close()
    return path


@pytest.mark.parametrize("is_compacted", [False, True])
def test_each_attempt_tells_its_steps_and_how_it_ended(resumed, is_compacted):
    if is_compacted:
        store.compact(resumed)
    found = attempts_of(store.open_run(resumed), 0, goes_on=False)
    assert [(one.first_step, one.last_step, one.ending) for one in found] == [
        (0, 99, "cut off: it has no end mark"),
        (100, 149, "ended by OSError: gone"),
        (120, 199, "ended with its end mark"),
    ]
    line = told(attempts=found, ends=(0, 199))
    assert [one.title for one in line.entries] == ["attempt 1", "attempt 2", "attempt 3"]
    assert line.entries[1].words.startswith("on here, process 1, ")


def test_only_the_last_attempt_of_a_live_run_goes_on(resumed):
    endings = [one.ending for one in attempts_of(store.open_run(resumed), 0, goes_on=True)]
    assert endings == ["cut off: it has no end mark", "ended by OSError: gone", "goes on"]


def test_an_attempt_that_was_stopped_by_hand_says_so(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("h"), name="h"))
    writer = store.RankWriter(path, 0)
    stopped = {"exception": "KeyboardInterrupt", "message": "", "fatal": False}
    events = [(9, "exception", stopped), (9, "ended", {})]
    writer.append(codec.encode(Table.STEPS, step_columns(10, 0, 10**18)))
    writer.append(codec.encode(Table.EVENTS, event_columns(events, 10**18)))
    writer.close()
    endings = [one.ending for one in attempts_of(store.open_run(path), 0, goes_on=False)]
    assert endings == ["stopped by Ctrl-C"]


def test_a_run_without_a_step_or_an_event_has_one_attempt_without_a_step(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("e"), name="e"))
    store.RankWriter(path, 0).close()
    (one,) = attempts_of(store.open_run(path), 0, goes_on=True)
    assert (one.first_step, one.ending) == (None, "goes on")
    assert attempts_of(store.open_run(path), 7, goes_on=True) == ()
