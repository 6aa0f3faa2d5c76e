"""Tables as they come: no traceback, and nothing told that their columns do not say."""

from __future__ import annotations

import contextlib
import json
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ampwatch import diagnose, open_run
from ampwatch.errors import LogError
from ampwatch.importers import ImportOptions, import_log
from ampwatch.rows import Table

COUNT = 200
CHANCE = random.Random(0)
LOSS = [round(2 + 3 * math.exp(-n / 60) + 0.05 * CHANCE.gauss(0, 1), 4) for n in range(COUNT)]
NORM = [round(1 + 0.1 * CHANCE.gauss(0, 1), 4) for _ in range(COUNT)]
SHUFFLED = CHANCE.sample(range(COUNT), COUNT)
SWAPPED = [n + (1 if n % 2 == 0 else -1) for n in range(COUNT)]


def csv(steps, loss=LOSS, norm=NORM) -> str:
    rows = (",".join(map(str, row)) for row in zip(steps, loss, norm, strict=False))
    return "step,loss,grad_norm\n" + "\n".join(rows) + "\n"


def imported(content: str | bytes, tmp_path, name="a.csv"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_run(import_log(path, tmp_path / "runs"))


def attempts(run) -> int:
    return run.read(Table.EVENTS).column("kind").to_pylist().count("started")


def is_whole(run, losses=None) -> bool:
    """Whether the run is the ordinary one: all losses in order, nothing found, one attempt."""
    told = run.steps["loss"].to_pylist() == (LOSS if losses is None else losses)
    return told and attempts(run) == 1 and diagnose(run).verdict.value == "healthy"


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [range(COUNT), [""] * COUNT, ["nan"] * COUNT, ["x"] * COUNT, [0] * COUNT, [7] * COUNT,
     ["inf"] * COUNT, [n / 50 for n in range(COUNT)], [17 * 10**17 + n for n in range(COUNT)],
     range(-100, 100), range(10**9, 10**9 + COUNT), range(0, 100 * COUNT, 100),
     [f"{n}.0" for n in range(COUNT)], [f'"{n:,}"' for n in range(900, 900 + COUNT)]],
    ids=["plain", "empty", "nan", "text", "zero", "constant", "inf", "fractions", "times",
         "negative", "huge", "sub-sampled", "floats", "thousands"],
)  # fmt: skip
def test_whatever_the_steps_hold_the_rows_are_a_run(steps, tmp_path):
    assert is_whole(imported(csv(steps), tmp_path))


def test_a_table_without_steps_keeps_its_order(tmp_path):
    text = "\n".join(line.partition(",")[2] for line in csv(range(COUNT)).splitlines())
    assert is_whole(imported(text, tmp_path))


@pytest.mark.parametrize("steps", [range(COUNT)[::-1], SHUFFLED, SWAPPED],
                         ids=["newest first", "shuffled", "neighbours"])  # fmt: skip
def test_rows_out_of_order_are_read_in_the_order_of_their_steps(steps, tmp_path):
    text = csv(steps, [LOSS[n] for n in steps], [NORM[n] for n in steps])
    run = imported(text, tmp_path)
    assert run.steps["step"].to_pylist() == list(range(COUNT))
    assert is_whole(run)
    assert any("order of their steps" in note for note in run.notes)


def test_a_resumed_runs_later_attempt_counts_and_the_earlier_one_stays(tmp_path):
    steps = [*range(120), *range(80, COUNT)]
    run = imported(csv(steps, [LOSS[n] for n in steps], [NORM[n] for n in steps]), tmp_path)
    assert attempts(run) == 2
    assert run.steps.num_rows == len(steps)
    assert not run.notes
    assert diagnose(run).verdict.value == "healthy"


def test_a_counter_of_each_epochs_batches_is_counted_on(tmp_path):
    run = imported(csv([n % 20 for n in range(COUNT)]), tmp_path)
    assert run.steps["step"].to_pylist() == list(range(COUNT))
    assert is_whole(run)
    assert any("restarts after 20" in note for note in run.notes)


@pytest.mark.parametrize("lag", [0, 1])
def test_lines_that_each_tell_one_value_of_a_step_are_one_row(lag, tmp_path):
    rows = [{"step": n, "loss": LOSS[n]} for n in range(COUNT)]
    rates = [{"step": max(0, n - lag), "lr": 0.1} for n in range(COUNT)]
    lines = [json.dumps(row) for pair in zip(rows, rates, strict=True) for row in pair]
    run = imported("\n".join(lines), tmp_path, "a.jsonl")
    assert run.steps.num_rows == COUNT
    assert run.steps["lr"].to_pylist()[: COUNT - lag] == [0.1] * (COUNT - lag)
    assert is_whole(run)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [(["nan"] * COUNT, "failing"), ([-value for value in LOSS], "healthy"),
     ([2.5] * COUNT, "failing"), ([f"{100 * value:.2f}%" for value in LOSS], "healthy"),
     ([f'"{1e4 * value:,.1f}"' for value in LOSS], "healthy"),
     ([value if n % 10 == 0 else "" for n, value in enumerate(LOSS)], "healthy"),
     (["-nan(ind)"] * COUNT, "failing")],
    ids=["nan", "other sign", "constant", "percent", "thousands", "sub-sampled", "C's nan"],
)  # fmt: skip
def test_losses_of_any_kind_are_judged_for_what_they_say(loss, verdict, tmp_path):
    assert diagnose(imported(csv(range(COUNT), loss), tmp_path)).verdict.value == verdict


def test_percent_is_a_hundredth_and_a_thousand_is_grouped(tmp_path):
    run = imported('step;loss;lr\n1;50%;0,001\n2;"1,5";0,001\n3;2;0,001\n', tmp_path)
    assert run.steps["loss"].to_pylist() == [0.5, 1.5, 2.0]
    assert run.steps["lr"].to_pylist() == [0.001] * 3


def test_a_number_that_a_column_cannot_hold_is_absent(tmp_path):
    text = "step,loss,micro_batches,time_ns\n1,2.5,1e300,inf\n2,2.5,4,nan\n"
    rows = imported(text, tmp_path).steps
    assert rows["micro_batches"].to_pylist() == [None, 4]
    assert rows["loss"].to_pylist() == [2.5, 2.5]


def table_of_skips(name: str, values, more=()) -> str:
    rows = zip(range(COUNT), LOSS, values, *more, strict=False)
    head = f"step,loss,{name}" + (",loss_scale" if more else "")
    return head + "\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n"


@pytest.mark.parametrize(
    ("name", "values", "skipped"),
    [("skipped", [n % 50 == 49 for n in range(COUNT)], 4),
     ("skipped", [n // 50 for n in range(COUNT)], 3),
     ("skipped_steps", [n // 50 for n in range(COUNT)], 3),
     ("overflow_count", [2 * (n == 90) for n in range(COUNT)], 1)],
    ids=["flag", "a count under the flag's name", "count", "count of each row"],
)  # fmt: skip
def test_a_count_of_skips_is_never_a_skip_of_each_row(name, values, skipped, tmp_path):
    assert diagnose(imported(table_of_skips(name, values), tmp_path)).run.skipped == skipped


def test_a_flag_that_stays_up_while_the_scale_stands_counts_one_skip(tmp_path):
    values = [int(n > 100) for n in range(COUNT)]
    text = table_of_skips("skipped", values, [[65536.0] * COUNT])
    assert diagnose(imported(text, tmp_path)).run.skipped == 1
    falling = [65536.0 / 2 ** max(0, n - 100) for n in range(COUNT)]
    text = table_of_skips("skipped", values, [falling])
    assert diagnose(imported(text, tmp_path)).run.skipped == 99


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pack",
    [lambda text: "\ufeff" + text, lambda text: text.encode("utf-16"),
     lambda text: text.encode("utf-16-be"), lambda text: text.replace("\n", "\r\n"),
     lambda text: text.replace("\n", "\r"), lambda text: text.replace(",", "\t"),
     lambda text: "sep=;\n" + text.replace(",", ";"),
     lambda text: text.replace(",", ";").replace(".", ","), lambda text: "\n\n" + text,
     lambda text: text.replace("\n", ",\xfc\n").encode("latin-1"), lambda text: text.rstrip(),
     lambda text: text + text.partition("\n")[0] + "\n",
     lambda text: text.replace("\n", ',"a\nb"\n').replace("grad_norm,", "grad_norm,note,", 1)],
    ids=["mark", "utf-16", "utf-16-be", "crlf", "cr", "tabs", "sep", "decimal commas", "blank",
         "latin-1", "no last end", "the header again", "quoted ends of line"],
)  # fmt: skip
def test_the_same_table_reads_the_same_however_it_is_written(pack, tmp_path):
    assert is_whole(imported(pack(csv(range(COUNT))), tmp_path))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_objects_is_read(indent, tmp_path):
    rows = [{"step": n, "train": {"loss": LOSS[n]}} for n in range(COUNT)]
    run = imported(json.dumps(rows, indent=indent), tmp_path, "a.json")
    assert run.info.source == "json"
    assert is_whole(run)


def test_names_are_known_by_their_end_where_that_is_one(tmp_path):
    head = "step,Train/Samples/train_loss,Train/Samples/lr,val/loss"
    text = head + "\n" + "\n".join(f"{n},{LOSS[n]},0.1,9" for n in range(COUNT))
    run = imported(text, tmp_path)
    assert is_whole(run)
    assert run.steps["lr"].to_pylist() == [0.1] * COUNT
    with pytest.raises(LogError, match="No training log found"):
        imported("step,val/loss,D/value\n1,2,3\n", tmp_path)


def test_a_loss_by_other_words_is_read_where_none_is_named_so_and_what_else_is_measured(tmp_path):
    head = "step,errD,errG,lr,val_acc,note"
    run = imported(head + "\n1,0.7,2,0.1,0.5,a\n2,0.6,2.5,0.1,,b\n", tmp_path)
    assert run.steps["loss"].to_pylist() == [2.0, 2.5]
    told = run.read(Table.EXTRAS, columns=("step", "name", "value")).to_pylist()
    assert {(one["step"], one["name"], one["value"]) for one in told} == {
        (1, "errD", 0.7), (2, "errD", 0.6), (1, "val_acc", 0.5),
    }  # fmt: skip


def test_a_row_of_an_evaluation_alone_is_no_step(tmp_path):
    run = imported("step,loss,val_loss\n1,2.0,\n2,1.9,\n2,,2.2\n3,1.8,\n9,,2.1\n", tmp_path)
    assert run.steps["step"].to_pylist() == [1, 2, 3]
    told = run.read(Table.EXTRAS, columns=("step", "value")).to_pylist()
    assert [(one["step"], one["value"]) for one in told] == [(2, 2.2), (9, 2.1)]


def test_a_name_that_comes_late_is_read_from_there_on(tmp_path):
    rows = [{"step": n, "loss": 2.0} for n in range(5000)]
    rows += [{"step": n, "loss": 2.0, "grad_norm": 1.5} for n in range(5000, 6000)]
    run = imported("\n".join(map(json.dumps, rows)), tmp_path, "a.jsonl")
    assert run.steps["grad_norm"].to_pylist() == [None] * 5000 + [1.5] * 1000


# --- Parquet -------------------------------------------------------------------------------------


def written(table: pa.Table, tmp_path, **options):
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, **options)
    return path


def test_parquet_is_read_whatever_types_it_has(tmp_path):
    table = pa.table({
        "global_step": pa.array(range(COUNT), pa.int32()),
        "train": pa.array([{"loss": value} for value in LOSS]),
        "lr": pa.array(["1e-3"] * COUNT).dictionary_encode(),
        "skipped": pa.array([n == 90 for n in range(COUNT)]),
        "note": pa.array([[n] for n in range(COUNT)]),
    })  # fmt: skip
    run = open_run(import_log(written(table, tmp_path, row_group_size=64), tmp_path / "runs"))
    assert run.info.source == "parquet"
    assert run.steps["loss"].to_pylist() == LOSS
    assert run.steps["lr"].to_pylist() == [1e-3] * COUNT
    assert diagnose(run).run.skipped == 1


@pytest.mark.parametrize("at", [-1, -6, -40, 200])
def test_a_damaged_parquet_file_is_refused_or_read_as_far_as_it_goes(at, tmp_path):
    path = written(pa.table({"step": range(COUNT), "loss": LOSS}), tmp_path, use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    with contextlib.suppress(LogError):
        run = open_run(import_log(path, tmp_path / "runs"))
        assert run.notes or run.steps["loss"].to_pylist() == LOSS
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(LogError, match="damaged Parquet"):
        import_log(path, tmp_path / "runs")


def test_a_mapping_names_parquets_columns(tmp_path):
    path = written(pa.table({"n": range(COUNT), "objective": LOSS}), tmp_path)
    wanted = ImportOptions(columns={"step": "n", "loss": "objective"})
    assert is_whole(open_run(import_log(path, tmp_path / "runs", wanted)))


def test_memory_is_that_of_a_block(tmp_path):
    """A table of many blocks gives the rows of one."""
    many = 150_000
    steps = np.arange(many)
    text = "step,loss\n" + "\n".join(f"{n},{2 + n % 7}" for n in steps.tolist())
    run = imported(text, tmp_path)
    assert run.steps["step"].to_pylist() == steps.tolist()
    assert run.steps["loss"].to_pylist() == [2.0 + n % 7 for n in range(many)]
