"""Lines of an evaluation are metrics of the last step, and no steps."""

from __future__ import annotations

import pytest

from ampwatch import open_run
from ampwatch.importers import import_log
from ampwatch.rows import Table

LINES = [
    ("{'eval_loss': 1.25, 'eval_wer': 0.5, 'epoch': 2.0}", {"eval_loss": 1.25, "eval_wer": 0.5}),
    (" validation loss at iteration 1000 | lm loss value: 1.25E+00 | lm loss PPL: 3.5 |",
     {"val_lm_loss_value": 1.25, "val_lm_loss_ppl": 3.5}),
    ("2022-01-01 10:00:00 | INFO | valid | epoch 001 | loss 1.25 | ppl 3.5",
     {"val_loss": 1.25, "val_ppl": 3.5}),
    ("   >> val loss 1.25  acc 0.5   (31s)", {"val_loss": 1.25, "val_acc": 0.5}),
    ("Epoch 3 | Validation loss: 1.25 | accuracy: 0.5", {"validation_loss": 1.25}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "told"), LINES)
def test_what_an_evaluation_measured_stands_at_the_last_step(line, told, tmp_path):
    path = tmp_path / "train.log"
    rows = [f"step {n}: loss {3 - n / 100:.2f}, lr 0.001" for n in range(1, 21)]
    path.write_text("\n".join([*rows, line, "step 21: loss 2.79, lr 0.001"]) + "\n")
    run = open_run(import_log(path, tmp_path / "runs"))
    assert run.steps["step"].to_pylist() == list(range(1, 22))
    metrics = run.read(Table.EXTRAS, columns=("step", "name", "value")).to_pylist()
    assert {one["name"]: one["value"] for one in metrics} | told == {
        one["name"]: one["value"] for one in metrics
    }
    assert {one["step"] for one in metrics} == {20}


def test_an_evaluation_before_the_first_step_holds_no_line_of_the_training_back(tmp_path):
    """A framework's lines pass at once: a loop's own lines held back came after them."""
    lines = ["***** Evaluating perplexity, Epoch 0/2 *****", "ppl: 5274.2, loss: 8.57"]
    scale, skipped = 2.0**32, 0
    for step in range(10, 110, 10):
        for _ in range(10 if step == 10 else 4 if step == 20 else 0):
            lines.append(
                "[2023-06-14 09:12:32,274] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] "
                f"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale:.0f}, reducing to "
                f"{scale / 2:.0f}"
            )
            scale, skipped = scale / 2, skipped + 1
        counts = f"step={step}, skipped={skipped}, lr=[9.65e-06, 9.65e-06], mom=[(0.9, 0.95)]"
        lines += [
            f"[2023-06-14 09:12:43,072] [INFO] [logging.py:96:log_dist] [Rank 0] {counts}",
            f"Epoch: 0, Step: {step}, Rank: 0, loss = {9 - step / 20}",
        ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    steps = open_run(import_log(path, tmp_path / "runs")).steps
    rows = {row["step"]: row for row in steps.to_pylist()}
    assert sum(bool(row["skipped"]) for row in rows.values()) == skipped == 14
    assert {n: row["loss"] for n, row in rows.items() if row["loss"] is not None} == {
        step: 9 - step / 20 for step in range(10, 110, 10)
    }
    assert steps["step"].to_pylist() == sorted(rows)
