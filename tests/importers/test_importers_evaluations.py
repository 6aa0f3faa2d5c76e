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
