"""Runs without a scaler: gradients that are not finite, and steps that the loop leaves out."""

from __future__ import annotations

import csv
import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hand_built import HandBuiltRun, Info, step_table
from pyarrow import parquet
from torch import nn

import ampwatch
from ampwatch.diagnosis import Engine, diagnose
from ampwatch.importers import import_log

NAN = math.nan


def plain_columns(count, seed=0):
    """A bf16 run in good health: what its steps show."""
    random = np.random.default_rng(seed)
    return {
        "loss": 1.9 + 1.5 * np.exp(-np.arange(count) / 50) + 0.05 * random.standard_normal(count),
        "grad_norm": 0.8 * np.exp(0.2 * random.standard_normal(count)),
        "update_norm": 0.05 * np.exp(0.05 * random.standard_normal(count)),
        "param_norm": np.full(count, 30.0),
        "lr": np.full(count, 3e-4),
    }


def attached(columns, **rest):
    count = len(columns["loss"])
    rows = step_table(
        **{name: np.asarray(values).tolist() for name, values in columns.items()},
        skipped=[False] * count, optimizer=[0] * count,
    )  # fmt: skip
    return HandBuiltRun(rows, info=Info(scaler={}), **rest)


def tabled(columns, folder, names=("loss", "lr", "grad_norm", "update_norm")):
    """The same as a CSV of these columns, imported."""
    path = folder / "log.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["step", *names])
        for at in range(len(columns["loss"])):
            lines.writerow([at, *(repr(float(columns[name][at])) for name in names)])
    return ampwatch.open_run(import_log(path, folder / "runs"))


def told(run):
    """{code: severity} of a run, without what only says what could not be judged."""
    return {f.code: f.severity.value for f in diagnose(run).findings if f.code != "AMP901"}


def finding(run, code):
    (one,) = [f for f in diagnose(run).findings if f.code == code]
    return one


def both(columns, folder):
    return [attached(columns), tabled(columns, folder)]


def test_a_healthy_run_without_a_scaler_says_nothing(tmp_path):
    for run in both(plain_columns(400), tmp_path):
        assert told(run) == {}


def test_one_norm_that_is_nan_is_a_warning_when_it_is_over(tmp_path):
    columns = plain_columns(400)
    columns["grad_norm"][200] = NAN
    for run in both(columns, tmp_path):
        assert told(run) == {"AMP211": "warning"}
        one = finding(run, "AMP211")
        assert (one.first_step, one.last_step) == (200, 200)
        assert "1 step without a recorded skip" in one.summary  # true whoever left it out
        assert "only the norm is wrong" in one.cause


def test_norms_that_are_nan_in_most_lines_are_an_error(tmp_path):
    columns = plain_columns(50)
    good = [3, 11, 25, 40]
    columns["grad_norm"] = [1.0 if at in good else NAN for at in range(50)]
    for run in both(columns, tmp_path):
        assert told(run) == {"AMP211": "error"}
        assert "46 steps" in finding(run, "AMP211").summary


def test_norms_before_the_first_finite_one_may_be_an_unseen_scalers_search(tmp_path):
    columns = plain_columns(400)
    columns["grad_norm"][:4] = math.inf
    assert told(tabled(columns, tmp_path)) == {}
    assert told(attached(columns)) == {"AMP211": "warning"}  # here it is known that there is none


def test_a_norm_of_inf_now_and_then_in_a_log_without_a_scale_is_an_unseen_scalers_skip(tmp_path):
    columns = plain_columns(2000)
    columns["grad_norm"][[0, 1, 2, 400, 801, 802, 1200, 1600, 1990]] = math.inf
    assert told(tabled(columns, tmp_path)) == {}
    assert told(attached(columns)) == {"AMP211": "error"}  # here it is known that there is none


def test_the_last_line_of_such_a_log_may_be_one_skip_more(tmp_path):
    columns = plain_columns(400)
    columns["grad_norm"][[100, 399]] = math.inf
    assert told(tabled(columns, tmp_path)) == {}


def test_norms_of_inf_that_no_finite_one_follows_are_an_error_in_a_log_too(tmp_path):
    columns = plain_columns(400)
    columns["grad_norm"][380:] = math.inf
    run = tabled(columns, tmp_path)
    assert told(run) == {"AMP211": "error"}
    one = finding(run, "AMP211")
    assert (one.first_step, one.evidence[0].value) == (380, "inf")


def test_norms_of_inf_in_most_lines_are_an_error_in_a_log_too(tmp_path):
    columns = plain_columns(50)
    columns["grad_norm"] = [1.0 if at in {3, 11, 25, 40} else math.inf for at in range(50)]
    assert told(tabled(columns, tmp_path)) == {"AMP211": "error"}


def test_a_nan_among_an_unseen_scalers_skips_is_told_alone(tmp_path):
    columns = plain_columns(1000)
    columns["grad_norm"][[100, 300, 700]] = math.inf
    columns["grad_norm"][500] = NAN
    one = finding(tabled(columns, tmp_path), "AMP211")
    assert (one.severity.value, one.first_step, one.last_step) == ("warning", 500, 500)
    assert one.evidence[0].value == "nan"


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_which_norms_of_inf_were_skipped_does_not_hang_on_how_the_rows_came(rows, tmp_path):
    columns = plain_columns(200)
    columns["grad_norm"][[0, 5, 63, 64, 120]] = math.inf
    columns["grad_norm"][150] = NAN
    columns["grad_norm"][190:] = math.inf
    run = tabled(columns, tmp_path)
    assert Engine(block_rows=rows).feed(run).diagnosis().findings == diagnose(run).findings


def test_gradients_beside_a_scaler_are_the_scalers_to_skip():
    columns = plain_columns(400) | {"scale": np.full(400, 1024.0)}
    columns["grad_norm"][200] = NAN
    assert "AMP211" not in told(attached(columns))
    constant = columns | {"scale": np.ones(400)}  # what logs of bf16 runs print
    assert told(attached(constant)) == {"AMP211": "warning"}


def test_a_loss_that_is_nan_itself_is_the_losses_finding():
    columns = plain_columns(400)
    columns["loss"][200] = columns["grad_norm"][200] = NAN
    assert "AMP211" not in told(attached(columns))


def test_the_first_in_time_is_the_cause():
    columns = plain_columns(100)
    columns["grad_norm"][60:] = columns["update_norm"][60:] = columns["param_norm"][61:] = NAN
    columns["loss"][61:] = NAN
    diagnosis = diagnose(attached(columns))
    causes = {f.code: f.because_of for f in diagnosis.findings}
    assert diagnosis.headline.code == "AMP211"
    assert causes["AMP207"] == "AMP211"
    assert finding(attached(columns), "AMP211").severity.value == "error"


def leaving_out(count, steps):
    columns = plain_columns(count)
    columns["update_norm"][steps] = 0.0
    columns["grad_norm"][steps] = NAN
    return columns


def test_a_loop_that_leaves_out_its_own_nan_steps_is_told_so(tmp_path):
    for run in both(leaving_out(1000, [200, 350, 351, 500]), tmp_path):
        assert told(run) == {"AMP212": "info"}
        assert "not finite in 4 of them" in finding(run, "AMP212").cause
    often = attached(leaving_out(1000, list(range(50, 1000, 70))))
    assert told(often) == {"AMP212": "warning"}


def test_a_loop_that_leaves_out_most_of_its_steps_to_the_end_does_not_train(tmp_path):
    most = [at for at in range(200, 400) if at % 5]
    for run in both(leaving_out(400, [*most, 398, 399]), tmp_path):
        diagnosis = diagnose(run)
        assert diagnosis.verdict.value == "failing"
        assert diagnosis.headline.code == "AMP211"
        assert "most of its steps are lost" in diagnosis.headline.summary
        assert finding(run, "AMP212").because_of == "AMP211"
    over = leaving_out(1000, most)  # and then it trained on
    assert told(attached(over)) == {"AMP212": "warning"}


def test_an_update_of_zero_says_nothing_where_no_rate_or_no_gradient_was_there():
    columns = plain_columns(400)
    columns["update_norm"][200:210] = columns["lr"][200:210] = 0.0
    assert told(attached(columns)) == {}
    columns = plain_columns(400)
    columns["update_norm"][200:210] = columns["grad_norm"][200:210] = 0.0
    assert told(attached(columns)) == {}


def test_every_second_step_without_an_update_is_accumulation():
    columns = plain_columns(400)
    columns["update_norm"][::2] = 0.0
    assert "AMP212" not in told(attached(columns))


@pytest.mark.parametrize("rows", [1, 37, 400])
def test_what_is_told_does_not_hang_on_how_the_rows_came(rows):
    columns = leaving_out(400, [7, 80, 81, 82, 200, 398, 399])
    columns["grad_norm"][150] = NAN
    run = attached(columns)
    engine = Engine(block_rows=rows)
    assert engine.feed(run).diagnosis().findings == diagnose(run).findings


def _trained(folder, on_bad):
    """Sixty real steps in bf16; in some of them one layer's backward makes nan."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=folder):
        for number in range(60):
            rows = torch.randn(16, 8)
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            if number in (20, 30):
                model[0].weight.grad.mul_(NAN)
            if on_bad == "forget" and not model[0].weight.grad.isfinite().all():
                optimizer.zero_grad()
            optimizer.step()
    return ampwatch.open_run(folder / "r")


def test_a_real_step_with_a_nan_gradient_is_the_cause_of_nan_weights(tmp_path):
    diagnosis = diagnose(_trained(tmp_path, "step"))
    found = {f.code: f for f in diagnosis.findings}
    assert found["AMP211"].first_step == 20
    assert diagnosis.headline.code == "AMP211"
    assert found["AMP207"].because_of == "AMP211"
    assert "AMP301" not in found  # the losses of its first steps had healed, or were noise


def test_a_real_loop_that_forgets_such_gradients_leaves_the_step_out(tmp_path):
    run = _trained(tmp_path, "forget")
    assert told(run)["AMP212"] == "warning"
    assert "AMP211" not in told(run)


class _NormOfNothing(nn.Module):
    """The norm of a row of zeros: finite, and its gradient is not."""

    def forward(self, rows):
        return (rows - rows.detach()).pow(2).sum(1, keepdim=True).sqrt() + rows


def test_the_layer_whose_backward_made_them_is_named_where_it_was_sampled(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), _NormOfNothing(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"optimizer": optimizer, "run": "r", "log_dir": tmp_path, "layer_every": 1}
    with ampwatch.attach(None, model, **options):
        model(torch.randn(16, 8)).pow(2).mean().backward()
        optimizer.step()
    one = finding(ampwatch.open_run(tmp_path / "r"), "AMP211")
    assert (one.severity.value, one.layer, one.first_step) == ("error", "1", 0)


def test_a_tables_column_of_skips_without_a_scale_tells_of_the_loops_own(tmp_path):
    columns = plain_columns(1000)
    for name, steps, severity in (("few", [200, 350, 500], "info"), ("many", range(50, 1000, 40),
                                                                     "warning")):  # fmt: skip
        columns["skipped"] = np.isin(np.arange(1000), list(steps)).astype(float)
        folder = tmp_path / name
        folder.mkdir()
        run = tabled(columns, folder, names=("loss", "lr", "grad_norm", "skipped"))
        assert told(run) == {"AMP212": severity}
        assert "has no loss scale" in finding(run, "AMP212").cause


@pytest.mark.parametrize(
    ("lines", "verdict"), [(1, "incomplete"), (3, "incomplete"), (4, "failing")]
)
def test_norms_that_are_nan_in_the_first_lines_of_a_log_may_be_a_scalers_search(lines, verdict):
    columns = {"loss": [1.8 - n / 10 for n in range(lines)], "grad_norm": [NAN] * lines}
    run = HandBuiltRun(step_table(**columns), info=Info(source="hf-trainer", scaler={}))
    assert diagnose(run).verdict.value == verdict
    blind = HandBuiltRun(step_table(grad_norm=[NAN] * lines), info=run.info)
    assert diagnose(blind).verdict.value == "failing"


def test_steps_left_out_for_their_gradients_are_told_however_many_they_are_and_to_the_end():
    columns = plain_columns(400)
    columns["grad_norm"][100::2] = columns["grad_norm"][390:] = math.inf
    columns["update_norm"][100::2] = columns["update_norm"][390:] = 0.0
    found = {one.code: one for one in diagnose(attached(columns)).findings}
    assert found["AMP212"].severity.value == "warning"
    assert (found["AMP212"].first_step, found["AMP212"].last_step) == (100, 399)


def test_a_table_of_parquet_is_judged_as_the_same_table_of_text(tmp_path):
    columns = {
        "step": list(range(300)),
        "loss": plain_columns(300)["loss"].tolist(),
        "skipped": [int(step % 17 == 5) for step in range(300)],
    }
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    with (tmp_path / "log.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerows([list(columns), *zip(*columns.values(), strict=True)])
    one, other = (
        diagnose(ampwatch.open_run(import_log(tmp_path / f"log.{kind}", tmp_path / kind)))
        for kind in ("parquet", "csv")
    )
    assert ("AMP212", "warning") in {(f.code, f.severity.value) for f in one.findings}
    assert [f.code for f in one.findings] == [f.code for f in other.findings]
