"""Loops that nobody wrote a format for: what a number is called tells its column.

Each line is worded as some program words it, around a course of our own.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ampwatch import diagnose, open_run
from ampwatch.errors import LogError
from ampwatch.importers import import_log
from ampwatch.importers.formats.plain import read
from ampwatch.rows import Table

STEPS = range(10, 130, 10)
# The line, and which columns it prints; `s`, `l`, `r` and `g` are step, loss, rate and norm.
LINES = {
    "bars": ("step {s:05d}/21400 (1%) | loss: {l:.4f} | grad norm: {g:.4f} | lrm: 1.00\n", "lg"),
    "dashes": ("step:{s} - actor/pg_loss:{l:.4f} - actor/grad_norm:{g:.4f} - actor/lr:{r:.4e}\n",
               "lgr"),
    "words": ("12:00:01 - INFO - main - Step {s}: loss = {l:.4f}, lr = {r:.4e}\n", "lr"),
    "German": ("Schritt {s:5d}   Verlust {l:.4f}   Trefferquote 9,9 %   Lernrate {r:.4e}\n", "lr"),
    "Spanish": ("paso {s}: perdida = {l:.4f}, tasa de aprendizaje = {r:.4e}\n", "lr"),
    "French": ("étape {s} | perte {l:.4f} | norme du gradient {g:.4f}\n", "lg"),
    "Italian": ("passo {s} perdita: {l:.4f} tasso di apprendimento: {r:.4e}\n", "lr"),
    "colour": ("\x1b[31mstep: {s:2}  \x1b[32mloss: {l:.4f}  \x1b[33mgnorm: {g:.4f}\x1b[0m\n", "lg"),
    "a bar's end": ("\rsteps:   5%|5    | {s}/3000 [00:30<09:30, 2.3it/s, avr_loss={l:.4f}]", "l"),
    "before a bar": ("\r1|{s}|Loss: {l:.4f}:   2%|2   | {s}/500 [00:10<08:01,  1.01it/s]", "l"),
    "a bar of its own": ("Progress on:train {s}it/10.0kit rate:2it/s postfix:loss={l:.4f}\n", "l"),
    "numbers first": ("{s:3d}  12 ms, {l:7.4f} loss, {r:.6f} LR, 3.21 GB used\n", "lr"),
    "a number alone": ("{s} | loss {l:.4f} | lr {r:e} | 123.45ms\n", "lr"),
    "scores behind": ("step {s}/900 | loss {l:.4f} (+1z)| norm {g:.4f} (-2z)| lr {r:.4e}\n", "lgr"),
    "several losses": ("iter: {s}  total_loss: {l:.4f}  loss_cls: 0.5  lr: {r:.6f}\n", "lr"),
    "validation beside": ("Epoch 1 | iter 4 step {s} | loss train: {l:.4f}, val: 2.3\n", "l"),
    "cross entropy": ("Step {s}/100000; acc: 2.15; ppl: 99.1; xent: {l:.4f}; lr: {r:.6f};\n", "lr"),
    "float step": ("Epoch 0: 5%|5 | 7/9 [00:10<17:00, loss={l:.4f}, global_step={s}.000]\n", "l"),
    "blocks": (("[batch={s}/900]:\n\t Train time/batch: 3\n\t Train l2_norm/grad/global: {g:.4f}\n"
               "\t Train loss/train/total: {l:.4f}\n"), "lg"),
    "indented": (("12:00:01 INFO\t[step={s}/7393,epoch=0]\n    optim/total_grad_norm={g:.4f}\n"
                 "    train/CrossEntropyLoss={l:.4f}\n    train/Perplexity=12,345\n"), "lg"),
    "scientific": ("it={s} train_loss={l:.4e} learning_rate={r:.4e} gnorm={g:.4e}\n", "lgr"),
    "ranks": ("[rank0]: step {s} loss {l:.4f}\n[rank1]: step {s} loss 3.3\n", "l"),
    "brackets": ("I0501 12:00:01.1 train.py:210] [{s}] loss={l:.4f}, lr={r:.6f}, speed=2\n", "lr"),
    "a table's row": ("|Epoch|1|Batch|{s}|Lr|{r:.6f}|Loss|{l:.4f}|\n", "lr"),
    "a tensor": ("step {s}: loss=tensor({l:.4f}, device='cuda:0') lr={r:.4e}\n", "lr"),
    "a unit before": ("step {s}, 62.5/s/gpu LR: {r:.6f} Logit Scale: 14.2 Loss: {l:.4f}\n", "lr"),
    "lines of their own": ("Completed Step: {s}\n12:00:01: train_loss {l:.4f}\n", "l"),
    "labelled": ("3: 2024-01-01 12:00:01.123 INFO step {s} loss {l:.4f} lr {r:.4e}\n", "lr"),
}  # fmt: skip
COLUMNS = {"l": "loss", "r": "lr", "g": "grad_norm"}


def imported(text: str, folder: Path):
    path = folder / "train.log"
    path.write_bytes(text.encode())
    return open_run(import_log(path, folder / "runs"))


def column(run, name: str) -> list[float]:
    values = run.read(Table.STEPS, columns=(name,)).column(0).to_pylist()
    return [value for value in values if value is not None]


def course(step: int) -> dict[str, float]:
    return {"s": step, "l": 2 + 8 * math.exp(-step / 40), "r": 1e-5 * step, "g": 1 + step % 7 / 9}


@pytest.mark.parametrize(("line", "told"), LINES.values(), ids=LINES)
def test_every_number_of_a_loop_is_read_by_its_name(line, told, tmp_path):
    run = imported("".join(line.format(**course(step)) for step in STEPS), tmp_path)
    rows = run.read(Table.STEPS, columns=("step", "loss", "grad_norm")).to_pylist()
    assert [row["step"] for row in rows] == list(STEPS)
    for letter, name in COLUMNS.items():
        expected = [course(step)[letter] for step in STEPS] if letter in told else []
        assert column(run, name) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    "line",
    [
        "Epoch [{e}/2], Step [{b}/60], Loss: {l:.4f}\n",
        "Epoch: [{e}][ {b}/60]\tTime  0.5 ( 0.6)\tLoss {l:.4e} (9.9e+00)\tAcc@1   0.39\n",
        "mm - INFO - Epoch(train)  [{e}][{b}/60]  base_lr: 1.0e-02  loss: {l:.4f}\n",
        "\rEpoch {e}:  1%|1  | {b}/60 [00:01<00:09,  9.87it/s, v_num=0, train_loss={l:.4f}]",
    ],
)
def test_a_counter_of_the_epoch_is_one_through_all_epochs(line, tmp_path):
    places = [(1 + at // 60, 10 + at % 60) for at in range(0, 120, 10)]
    text = "".join(line.format(e=e, b=b, l=2 + 1 / (e * 60 + b)) for e, b in places)
    run = imported(text, tmp_path)
    assert column(run, "step") == list(range(10, 130, 10))
    assert len(run.read(Table.EVENTS).column("kind").to_pylist()) == 1


def test_an_epoch_told_above_a_bar_counts_for_it(tmp_path):
    bar = "1000/1000 [====] - 12s 12ms/step - loss: {:.4f} - val_loss: 9.0000 - lr: 1.0000e-03\n"
    text = "".join(f"Epoch {n}/8\n" + bar.format(3 - n / 8) for n in range(1, 9))
    run = imported(text, tmp_path)
    assert column(run, "step") == [1000 * n for n in range(1, 9)]
    assert column(run, "loss") == pytest.approx([3 - n / 8 for n in range(1, 9)], rel=1e-3)


def test_a_counter_of_all_epochs_stays_as_it_is(tmp_path):
    text = "".join(f"Epoch: {n // 40} | step: {n} | loss: 2.{n}\n" for n in STEPS)
    assert column(imported(text, tmp_path), "step") == list(STEPS)


def test_a_decimal_comma_is_known_by_the_numbers_that_can_be_nothing_else(tmp_path):
    line = "step: {s} | loss: {l:.4f} | lr: {r:.2e} | grad_norm: {g:.3f}\n"
    lines = [line.format(**course(step)).replace(".", ",") for step in STEPS]
    run = imported("".join(lines), tmp_path)
    norms = [course(step)["g"] for step in STEPS]
    assert column(run, "grad_norm") == pytest.approx(norms, rel=1e-3)


def test_a_loop_that_leaves_out_a_step_says_so_of_the_step_it_told_last(tmp_path):
    losses = [2.0, 1.9, math.nan, 1.8, math.nan, 1.7]
    text = "".join(
        f"step {at} loss {loss:.4f}\n" + "loss is nan, skipping step\n" * math.isnan(loss)
        for at, loss in enumerate(losses)
    )
    run = imported(text, tmp_path)
    skipped = run.read(Table.STEPS, columns=("skipped",)).column(0).to_pylist()
    assert [bool(value) for value in skipped] == [math.isnan(loss) for loss in losses]


def test_the_scale_beside_a_skip_is_the_one_before_and_its_fall_is_no_second_skip(tmp_path):
    text = "".join(
        f"step {at} | loss 2.5 | scale {2.0 ** (16 - at // 4)} | grad_norm "
        + ("inf | overflow! skipping\n" if at % 4 == 3 else "1.25\n")
        for at in range(12)
    )
    found = diagnose(imported(text, tmp_path)).run
    assert (found.skipped, found.overflows, found.final_scale) == (3, 3, 2.0**14)


def test_a_loop_that_ends_at_inf_by_its_own_words_has_no_row_beyond_it(tmp_path):
    lines = [f"Iteration {n}, loss={2.0 * n:.4f}\n" for n in range(9)]
    end = "Iteration 9, loss=inf\nLoss diverged (inf). Stopping training.\n"
    run = imported("".join(lines) + end, tmp_path)
    assert column(run, "loss") == [*(2.0 * n for n in range(9)), math.inf]
    assert diagnose(run).verdict.value == "failing"


@pytest.mark.parametrize(
    "line",
    [
        "Validation | step 100 | loss 2.3", "[eval] step 100 loss 2.3", "best loss 2.1 at step 40",
        "Test: [ 10/98] Loss 6.1e+00", "Saving checkpoint at step 100, loss 2.0",
        "step:125/1770 val_loss:4.5 step_avg:100.00ms", "warmup steps: 100, loss_scale: 128",
        "config: step=3 loss=l1", "loss weight 0.5, step size 3", "kl loss: 0.5 at step 3",
        "NOTE: gradient overflow in param loss", "step 3 | aux loss: 0.1",
    ],
)  # fmt: skip
def test_a_line_of_something_else_says_nothing_of_a_step(line):
    assert not [said for said in read(line) if getattr(said, "values", None)]


def test_one_line_alone_is_no_training(tmp_path):
    with pytest.raises(LogError):
        imported("all done\nstep 3: loss 2.0\n" * 3, tmp_path)


def test_a_frameworks_own_losses_are_not_mixed_with_those_of_a_script(tmp_path):
    pair = "iter {s}: loss {l:.4f}, time 12.00ms, mfu 3.1%\nstep {s} my loss: 77.0 loss 99.0\n"
    run = imported("".join(pair.format(**course(step)) for step in STEPS), tmp_path)
    assert max(column(run, "loss")) < 20
