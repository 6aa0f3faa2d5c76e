"""What the letter says happened, held against logs written by hand."""

import io

from rich.console import Console

from ampwatch.diagnosis import diagnose
from ampwatch.importers import import_log
from ampwatch.report.letter import letter_of
from ampwatch.report.terminal_report import LetterView
from ampwatch.store import open_run


def letter_on(tmp_path, rows, name="log.csv"):
    """The letter on a log of these rows, as one line of words."""
    log = tmp_path / name
    log.write_text("\n".join(rows) + "\n", encoding="utf-8")
    run = open_run(import_log(log, tmp_path / "out"))
    console = Console(file=io.StringIO(), width=200)
    console.print(LetterView(letter_of("one", run, diagnose(run))), highlight=False)
    return " ".join(console.file.getvalue().split())


def noisy(level, at):
    return level * (1 + 0.02 * ((7 * at) % 5 - 2))


def test_a_loss_that_rose_for_long_is_dated_by_when_it_was_lowest(tmp_path):
    rising = [(at, 0.5 * 1.02 ** max(0, at - 400)) for at in range(800)]
    losses = [(at, noisy(3 * 0.99 ** min(at, 180), at)) for at in range(400)] + rising[400:]
    told = letter_on(tmp_path, ["step,loss,lr", *(f"{a},{v},0.001" for a, v in losses)])
    # It is a thousand times as high before the trend of a log without gradients is beyond doubt.
    assert "step 420 the loss rises from 0.49 to 1,400 at step 799" in told


def test_where_a_loss_stands_after_its_peak_is_told(tmp_path):
    losses = (
        [noisy(2.0, at) for at in range(300)] + [20.0] * 8 + [noisy(6.9, at) for at in range(300)]
    )
    told = letter_on(tmp_path, ["step,loss,lr", *(f"{a},{v},0.001" for a, v in enumerate(losses))])
    assert "step 300 the loss rises from 2.0 to 20; at the end it is 6.9" in told


def test_a_burst_of_skips_is_told_apart_from_a_single_one_before(tmp_path):
    skipped = {100, *range(600, 640)}
    rows = [f"{a},{noisy(1.0, a)},1,{int(a in skipped)}" for a in range(800)]
    told = letter_on(tmp_path, ["step,loss,scale,skipped", *rows])
    assert "step 600 from here to step 639, all 40 steps are skipped (in the whole log 41)" in told


def test_the_step_of_the_best_validation_loss_is_told(tmp_path):
    rows = [f"{a},{0.97**a},{1 + abs(a - 30) / 20}" for a in range(100)]
    told = letter_on(tmp_path, ["epoch,loss,val_loss", *rows])
    assert "val_loss was 1.0 at its lowest, at step 30, and 4.5 at the end." in told


def test_a_loss_ran_away_and_came_back(tmp_path):
    """As in a warm-up that was too high at its top, before any band of losses was known."""
    high = [10.0 ** (3 + at % 9) for at in range(30)]
    losses = [4.0, 3.0, 2.0, 1.0, 0.5, *high, *(noisy(0.4, at) for at in range(200))]
    told = letter_on(tmp_path, ["step,loss,lr", *(f"{a},{v},0.08" for a, v in enumerate(losses))])
    assert told.startswith("WARNING")
    assert "The loss spiked and recovered" in told


LOST = ["{'loss': 2.0, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.1}"] * 12 + [
    "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}"
] * 12


def test_a_nan_that_a_log_shows_as_zero_is_said_to_be_one(tmp_path):
    told = letter_on(tmp_path, LOST, "log.txt")
    assert told.startswith("FAILING")
    assert "the loss is NaN to the end; this log shows zero for it" in told
    assert "restart from your last checkpoint before entry 12" in told  # it numbers no steps


def test_gradients_after_which_the_loss_is_lost_are_not_over(tmp_path):
    begun = [LOST[0]] * 12 + [LOST[0].replace("1.5", "nan")]
    told = letter_on(tmp_path, [*begun, *LOST[12:]], "log.txt")
    assert "The gradient norm is inf or NaN in steps without a recorded skip (AMP211)" in told
    assert "no longer" not in told


def test_a_loss_of_zero_is_put_down_to_what_it_is_computed_from(tmp_path):
    told = letter_on(tmp_path, ["step,loss", *(f"{at},0.0" for at in range(150))])
    assert "labels that are all ignored or masked" in told
    assert "ten times" not in told


def test_an_accuracy_that_is_lost_gets_no_advice_on_policies(tmp_path):
    lost = [0.9 * min(1, at / 60) if at < 120 else 0.1 for at in range(300)]
    rows = [f"{at},{noisy(1.0, at)},{value}" for at, value in enumerate(lost)]
    told = letter_on(tmp_path, ["step,loss,val_acc", *rows])
    assert "AMP311" in told
    assert "Check what changed at that step" in told
    assert "policy" not in told


def test_the_first_doubling_of_a_warm_up_is_no_jump(tmp_path):
    rows = [
        f"{at},{'nan' if at > 58 else noisy(2.0, at)},{3e-5 * (at - 49)}" for at in range(50, 70)
    ]
    assert "jumps" not in letter_on(tmp_path, ["step,loss,lr", *rows])


def test_when_a_calm_run_spiked_is_told(tmp_path):
    losses = [noisy(2.0 * 0.995**at, at) for at in range(900)]
    losses[500:520] = [9.0] * 20
    told = letter_on(tmp_path, ["step,loss,lr", *(f"{a},{v},0.001" for a, v in enumerate(losses))])
    assert "step 500 recoverable spike (AMP303): the loss reaches 9.0" in told
