"""A framework that gives up says so, in its own words; the run ended there, and by what."""

from __future__ import annotations

import math

import pytest
from importers.make_literal_samples import megatron_line

from ampwatch import diagnose, open_run
from ampwatch.errors import LogError
from ampwatch.importers import FORMATS, import_log
from ampwatch.importers.statements import GaveUp
from ampwatch.rows import Table

# Each as the framework's source words it, around names and numbers of our own.
OF_THE_LOSS = [
    "FloatingPointError: Loss became infinite or NaN at iteration=77!",
    "AssertionError: loss become infinite or NaN!",
    "RuntimeError: Train loss contains a NaN.",
    "ValueError: nan loss encountered",
    "ValueError: The loss returned in `training_step` is nan or inf.",
    "ValueError: The loss returned in `training_step` is tensor(nan, device='cuda:0').",
    "Monitored metric train_loss = nan is not finite. Previous best value was 2.100.",
    "Batch 12: Invalid loss, terminating training",
    "ERROR:tensorflow:Model diverged with loss = NaN.",
    "ValueError: Rank 3: found NaN in local forward loss calculation. Device: 3, node: n1",
    "Unexpected result nan (message='found NaN in local forward loss calculation')",
    "RuntimeError: Training failed: NaN persisted for 3 epochs",
    "ValueError: loss became NaN",
    "Exception: nan loss at iteration 77",
    "Loss is nan, stopping training",
    "Loss is inf, stopping training",
    "[rank0] ERROR loss is NaN at step 31! Aborting.",
    "Exiting: the loss is nan",
    "Stopping because of a NaN loss",
]
OF_THE_GRADIENT = [
    "FloatingPointError: gradients are Nan/Inf",
    "RuntimeError: The total norm of order 2.0 is non-finite, so it cannot be clipped. To disable",
    "RuntimeError: Function 'MmBackward0' returned nan values in its 0th output.",
    "AssertionError: Rank 1: found NaN in local grad norm in backward pass before collective.",
    "Gradient norm is nan, terminating",
]
OF_THE_SCALE = [
    "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
    "grad_scale is too small, exiting: 8.2718e-25",
    "loss scale fell to its minimum of 1.0, aborting the run",
]
NO_ENDS = [
    "training will stop if the loss is nan",
    "--stop-on-nan stopping training when loss is nan",
    "Loss is nan, skipping this batch and not stopping",
    "    raise ValueError('The loss returned in `training_step` is nan or inf.')",
    "loss 2.31, early stopping patience 3",
    "Namespace(terminating_on_nan_loss=True, loss='nan stopping')",
    "Exiting the loss scale search",
]


def lines(count: int, first: int = 1) -> str:
    return "".join(
        f"{{'loss': {3 - n / 100:.4f}, 'grad_norm': 1.{n % 9}, 'learning_rate': 1e-05, "
        f"'epoch': {n / 100}, 'step': {n}}}\n"
        for n in range(first, first + count)
    )


def imported(text: str, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(text)
    return open_run(import_log(path, tmp_path / "runs"))


def endings(run) -> list[str]:
    return run.read(Table.EVENTS).column("kind").to_pylist()


@pytest.mark.parametrize("line", OF_THE_LOSS)
def test_a_run_that_ended_for_its_loss_fails_by_it(line, tmp_path):
    run = imported(lines(40) + line + "\n", tmp_path)
    assert run.info.source == "hf-trainer"
    assert endings(run) == ["started", "exception"]
    rows = run.steps.to_pylist()
    assert math.isnan(rows[-1]["loss"])
    assert rows[-1]["step"] == (77 if "77" in line else 41)
    found = diagnose(run)
    assert (found.verdict.value, found.headline.code) == ("failing", "AMP204")


@pytest.mark.parametrize("line", OF_THE_GRADIENT)
def test_a_run_that_ended_for_its_gradient_has_a_norm_that_is_none(line, tmp_path):
    run = imported(lines(40) + line + "\n", tmp_path)
    assert endings(run) == ["started", "exception"]
    assert math.isnan(run.steps.to_pylist()[-1]["grad_norm"])
    assert "AMP902" in {finding.code for finding in diagnose(run).findings}


@pytest.mark.parametrize("line", OF_THE_SCALE)
def test_a_run_that_ended_for_its_scale_fails_by_it(line, tmp_path):
    run = imported(lines(40) + line + "\n", tmp_path)
    assert endings(run) == ["started", "exception"]
    found = diagnose(run)
    assert (found.verdict.value, found.headline.code) == ("failing", "AMP104")


@pytest.mark.parametrize("line", NO_ENDS)
def test_a_setting_or_a_condition_is_no_end(line, tmp_path):
    said = [saying for form in FORMATS for saying in form.read(line)]
    assert not any(isinstance(saying, GaveUp) for saying in said)
    run = imported(lines(10) + line + "\n" + lines(10, 11), tmp_path)
    assert endings(run) == ["started"]
    assert run.steps.num_rows == 20


def test_eight_ranks_give_up_once_and_the_late_lines_of_others_change_nothing(tmp_path):
    text = lines(40) + "Loss is nan, stopping training\n" * 4 + lines(1, 41)
    run = imported(text + "Loss is nan, stopping training\n" * 4, tmp_path)
    assert endings(run) == ["started", "exception"]
    assert sum(math.isnan(row["loss"]) for row in run.steps.to_pylist()) == 1


def test_a_run_that_goes_on_has_not_given_up(tmp_path):
    run = imported(lines(40) + "Loss is nan, stopping training\n" + lines(40, 41), tmp_path)
    assert endings(run) == ["started"]
    assert diagnose(run).verdict.value == "healthy"


def test_an_attempt_that_gave_up_has_ended_though_the_next_one_goes_on(tmp_path):
    run = imported(lines(40) + "Loss is nan, stopping training\n" + lines(60, 20), tmp_path)
    assert endings(run) == ["started", "exception", "started"]


# --- exceptions ----------------------------------------------------------------------------------

RAISED = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.", "AMP506"),
    ("[rank1]: ValueError: Attempting to unscale FP16 gradients.", "AMP406"),
    ("AssertionError: No inf checks were recorded for this optimizer.", "AMP410"),
    ("KeyError: 'label'", None),
    ("[Rank 2] Watchdog caught collective operation timeout: ran for 600049 ms", "AMP902"),
    ("  traceback : Signal 9 (SIGKILL) received by PID 140115", "AMP902"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code"), RAISED)
def test_the_exception_that_ends_a_log_ends_its_run(line, code, tmp_path):
    found = diagnose(imported(f"{lines(40)}Traceback (most recent call last):\n{line}\n", tmp_path))
    assert found.verdict.value == "failing"
    assert found.headline.code == (code or "AMP902")


def test_who_stops_a_run_by_a_signal_ends_it_without_trouble(tmp_path):
    line = "torch.distributed.SignalException: Process 12 got signal: 15"
    assert diagnose(imported(f"{lines(40)}{line}\n", tmp_path)).verdict.value == "healthy"


def test_an_exception_after_which_the_run_goes_on_was_caught(tmp_path):
    run = imported(f"{lines(40)}ConnectionError: wandb is away\n{lines(40, 41)}", tmp_path)
    assert endings(run) == ["started"]


@pytest.mark.parametrize("line", [line for line, code in RAISED if code in {"AMP506", "AMP406"}])
def test_an_exception_that_says_why_needs_no_row(line, tmp_path):
    found = diagnose(imported(f"Traceback (most recent call last):\n{line}\n", tmp_path))
    assert found.verdict.value == "failing"
    assert found.learning_rate.action.value == "not-the-cause"


def test_the_traceback_of_any_other_program_is_no_training(tmp_path):
    with pytest.raises(LogError, match="No training log found"):
        imported("Traceback (most recent call last):\nKeyError: 'a'\nKeyError: 'b'\n", tmp_path)


# --- counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        '  File "/home/me/finetune_lora.py", line 200, in <module>',
        '  File "/opt/transformers/trainer.py", line 1912, in train',
        "    loss.backward()",
    ],
)
def test_the_traceback_of_a_program_that_trains_is_a_run_without_steps(frame, tmp_path):
    error = "ValueError: The train_dataset has no length"
    run = imported(f"Traceback (most recent call last):\n{frame}\n{error}\n", tmp_path)
    assert diagnose(run).run.steps == 0
    (ended, *_) = diagnose(run).findings
    assert (ended.code, ended.cause) == ("AMP902", "The train_dataset has no length")
    assert ended.action.endswith("The program ended before its first recorded step.")


def test_an_exception_whose_message_is_a_rule_is_told_by_its_name(tmp_path):
    text = "File train.py\nsome.errors.ChildFailedError: ==========================\n"
    (ended, *_) = diagnose(imported(lines(9) + text, tmp_path)).findings
    assert ended.cause == "ChildFailedError, without a message."
    assert ended.action.endswith("the log up to there is complete.")


def counter(step: int, skipped: int) -> str:
    return (
        f"[2022-06-01 10:00:00,000] [INFO] [logging.py:68:log_dist] [Rank 0] step={step}, "
        f"skipped={skipped}, lr=[1e-04], mom=[[0.9, 0.999]]\n"
    )


def overflow(before: float) -> str:
    return (
        "[2022-06-01 10:00:00,100] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! "
        f"Rank 0 Skipping step. Attempted loss scale: {before}, reducing to {before / 2}\n"
    )


@pytest.mark.parametrize("is_late", [False, True])
def test_a_count_and_the_line_of_the_same_skip_are_one_event(is_late, tmp_path):
    pair = [overflow(65536.0), counter(30, 1)]
    text = counter(10, 0) + counter(20, 0) + "".join(reversed(pair) if is_late else pair)
    found = diagnose(imported(text + counter(40, 1) + counter(50, 1), tmp_path))
    assert found.run.skipped == 1
    assert found.run.final_scale == 32768.0


def test_a_skip_behind_a_count_that_began_at_the_counted_scale_is_a_second_one(tmp_path):
    text = "".join(megatron_line(n, 65536.0, 2.5, 0.8) for n in range(1, 20))
    text += megatron_line(20, 32768.0, 2.5, 0.8, 1) + overflow(32768.0)
    text += megatron_line(21, 16384.0, 2.5, 0.8, 1) + megatron_line(22, 16384.0, 2.5, 0.8)
    found = diagnose(imported(text, tmp_path))
    assert found.run.skipped == 2
    assert found.run.final_scale == 16384.0


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_count_that_several_ranks_print_is_told_once(ranks, tmp_path):
    text = "".join(counter(10 * n, n // 2) * ranks for n in range(1, 20))
    assert diagnose(imported(text, tmp_path)).run.skipped == 9


def test_the_scale_that_is_printed_last_is_the_final_one(tmp_path):
    text = "".join(megatron_line(n, 65536.0, 2.5, 0.8) for n in range(1, 20))
    later = text + overflow(65536.0) + overflow(32768.0)
    assert diagnose(imported(later, tmp_path)).run.final_scale == 16384.0
    grown = later + megatron_line(30, 32768.0, 2.5, 0.8)
    assert diagnose(imported(grown, tmp_path)).run.final_scale == 32768.0
