"""What a log's own lines teach: which number counts, what is a table, what belongs together.

Each log is worded as some program words it, around a course of our own, which is the truth.
"""

from __future__ import annotations

import json
import math

import pytest

from ampwatch import diagnose, open_run
from ampwatch.errors import LogError
from ampwatch.importers import ImportOptions, TextImport, import_log
from ampwatch.importers.formats.plain import PlainLines
from ampwatch.importers.import_options import fresh_info
from ampwatch.report.letter import letter_of
from ampwatch.rows import Table
from ampwatch.store import create_run

LOSSES = [2 + math.exp(-n / 4) for n in range(12)]


def imported(text: str, folder, name: str = "train.log"):
    path = folder / name
    path.write_text(text, "utf-8")
    return open_run(import_log(path, folder / "runs"))


def steps_of(run) -> dict[str, list[float]]:
    return run.read(Table.STEPS, columns=("step", "loss", "lr", "grad_norm")).to_pydict()


def lines_of(line: str, losses=LOSSES) -> str:
    return "".join(line.format(n=n, m=n + 1, l=loss, t=100 * n) for n, loss in enumerate(losses))


COUNTED = {
    "step stands still": ("iter {n} step 1: loss {l:.4f}\n", range(12)),
    "a word nobody knows": ("nupdates: {t} | lr: 0.1000 | train-loss: {l:.4f}\n", "hundreds"),
    "the number after the slash": ("TRAIN Batch 0/{t} loss {l:.4f} lr 0.001 rank 0\n", "hundreds"),
    "an ordinal": ("current step: {n}th step\nbatch loss:{l:.4f}\n", range(12)),
    "the epoch alone": ("Epoch: {m:03d}, Loss: {l:.4f}, Train: 0.8, Val: 0.7\n", range(1, 13)),
    "a place with other words": ((
        "--> STEP: {m}/50 -- GLOBAL_STEP: {t}\n     | > loss_a: 0.1  (0.2)\n"
        "     | > loss: {l:.4f}  (2.01)\n"), "hundreds"),
    "score": ("10:00:01 [main] Score at iteration {t} is {l:.4f}\n", "hundreds"),
    "darknet": ("Region 82 Avg IOU: 0.3\n {m}: {l:.4f}, 2.2 avg loss, 0.001 rate, 3 seconds\n",
                range(1, 13)),
    "chinese": ("步数：{n}，损失：{l:.4f}，学习率：0.001\n", range(12)),  # noqa: RUF001
    "a source before": (
        "I0821 09:21:09.345474  5405 solver.cpp:222] Iteration {t}, loss = {l:.4f}\n", "hundreds"),
    "a step by its index": ("batch i:{n}, episode_len:28\nkl:0.01,loss:{l:.4f}\n", range(12)),
    "names in brackets": (
        "[R0] | E5 iter[ 14/ 15] | [Loss] {l:.4f} | [exp] ./a | [step]    {n}\n", range(12)),
    "a nameless count before an episode": (
        " {t}/5000: episode: {m}, duration: 4.3s, episode steps: 120, loss: {l:.4f}\n",
        "hundreds"),
    "two handlers, one of them with a source": ((
        "INFO:tensorflow:[{t:5d}] | gnorm  1.0 lr  0.0001 | loss  {l:.4f}\n"
        "I1212 15:10:27.449019 1285 train.py:298] [{t:5d}] | gnorm  1.0 lr  0.0001 | "
        "loss  {l:.4f}\n"
        "INFO:tensorflow:Train batches[  100]                | loss  5.5\n"), "hundreds"),
    "passes within an iteration": ((
        "iteration {n}/50\nepoch 1/2\nepoch 2/2\nentropy=7.4, loss={l:.4f}\n"), range(12)),
    "thousands": ("[epoch: 19, iter: 120,{n:03d}, lr:(1.729e-04,)] l_pix: {l:.4f}\n", None),
}  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), COUNTED.values(), ids=COUNTED)
def test_the_number_that_climbs_is_the_step(line, expected, tmp_path):
    found = steps_of(imported(lines_of(line), tmp_path))
    if expected == "hundreds":
        expected = range(0, 1200, 100)
    if expected is not None:
        assert found["step"] == list(expected)
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


TABLES = {
    "fastai": ("epoch     train_loss  valid_loss  accuracy  time    \n",
               "{n}         {l:.6f}    0.98        0.6       00:12\n"),
    "chainer": ("epoch       iteration   main/loss   main/acc    elapsed_time\n",
                "1           {n}           {l:.6f}    0.9         12.5\n"),
    "markdown": ("| Step | Training Loss | Validation Loss |\n|---|---|---|\n",
                 "| {n} | {l:.6f} | 1.2 |\n"),
    "tabs": ("Step\tTraining Loss\n", "{n}\t{l:.6f}\n"),
    "lists": ("Step      Train loss              Test loss               Test metric\n",
              "{n}         [{l:.6f}, 0.00e+00]    [1.00e-02, 2.00e-02]    []\n"),
}  # fmt: skip


@pytest.mark.parametrize(("header", "row"), TABLES.values(), ids=TABLES)
def test_a_table_in_a_log_is_read_by_the_names_above_it(header, row, tmp_path):
    found = steps_of(imported("some words before\n\n" + header + lines_of(row), tmp_path))
    assert found["step"] == list(range(12))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_box_is_read_as_a_whole_wherever_its_step_stands(tmp_path):
    rule = "-" * 24 + "\n"
    rows = "| grad_norm | {t}.5     |\n| loss      | {l:.4f}     |\n| step      | {n}        |\n"
    found = steps_of(imported(lines_of(rule + rows + rule), tmp_path))
    assert found["step"] == list(range(12))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert found["grad_norm"] == [100 * n + 0.5 for n in range(12)]


def test_losses_without_any_number_of_a_step_are_steps_in_their_order(tmp_path):
    found = steps_of(imported(lines_of("Loss: {l:.6e}, l1: 0.9, l2: 1.0\n"), tmp_path))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_line_that_was_broken_within_its_losses_is_one_step(tmp_path):
    line = "Epoch [1][{t}/2500]  lr: 0.002, time: 1.8, loss_cls: 0.3, loss_box: 0.4$\n"
    found = steps_of(imported(lines_of(line + " loss_mask: 0.5, loss: {l:.4f}\n"), tmp_path))
    assert found["step"] == list(range(0, 1200, 100))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert found["lr"] == [0.002] * 12


def test_losses_on_lines_of_their_own_keep_their_names(tmp_path):
    names = ("adversarial", "spectral", "generator")
    line = "".join(f"(Step: {{t}}) train_{name}_loss = {{l:.4f}}{{n}}.\n" for name in names)
    run = imported(lines_of(line), tmp_path)
    more = run.read(Table.EXTRAS).to_pydict()["name"]
    assert steps_of(run)["step"] == list(range(0, 1200, 100))
    assert {name: more.count(name) for name in {*more}} == {
        "train_spectral_loss": 12, "train_generator_loss": 12,
    }  # fmt: skip


def test_an_epoch_is_summed_up_beside_a_counter_that_stands_still(tmp_path):
    steps = "\titers: 100, epoch: {m} | loss: 9.5\n\titers: 200, epoch: {m} | loss: {l:.4f}\n"
    epoch = "Epoch: {m}, Steps: 281 | Train Loss: 7.{n} Vali Loss: 0.6\n"
    rate = "Updating learning rate to 0.00{m}\n"
    run = imported("Updating learning rate to 0.001\n" + lines_of(steps + epoch + rate), tmp_path)
    more = run.read(Table.EXTRAS).to_pydict()
    means = [v for n, v in zip(more["name"], more["value"], strict=True) if n == "train_loss"]
    assert means == [float(f"7.{n}") for n in range(12)]
    assert steps_of(run)["loss"][1::2] == pytest.approx(LOSSES, abs=1e-4)
    assert steps_of(run)["lr"] == [
        0.001, *(told for m in range(1, 13) for told in (float(f"0.00{m}"), None))
    ][:24]  # fmt: skip


def test_a_bar_that_is_drawn_again_as_it_is_closed_is_no_step(tmp_path):
    bar = "Training: {p:3d}%|##| {n}/12 [00:01<00:00, 46.3it/s, loss={l:.4f}]\n"
    drawn = [bar.format(n=n, p=8 * n, l=loss) for n, loss in enumerate(LOSSES, 1)]
    assert steps_of(imported("".join([*drawn, drawn[-1]]), tmp_path))["step"] == list(range(1, 13))


def test_a_message_that_a_sentence_quotes_is_no_overflow(tmp_path):
    says = "overflow detected, setting loss scale to: "
    text = f'the training stops after "{says}0.125".\n'
    text += "".join(f"| WARNING: {says}{scale}\n" for scale in (0.5, 0.25, 0.125))
    told = imported(text, tmp_path).read(Table.STEPS, columns=("scale_after",)).to_pydict()
    assert told["scale_after"] == [0.5, 0.25, 0.125]


def test_a_bar_before_a_frameworks_line_tells_the_loss_under_its_own_name(tmp_path):
    bar = "Steps: 0%|#| {n}/6000 [00:55<4:54:46, 2.96s/it, lr=0.1, noise_loss={l}]"
    skip = "[loss_scaler.py:184] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss "
    skip += "scale: {m}, reducing to {n}\n"
    text = "".join((bar + skip).format(n=2**n, m=2 ** (n + 1), l="nan") for n in (4, 5, 6))
    found = steps_of(imported(text, tmp_path))
    assert sum(loss is not None and math.isnan(loss) for loss in found["loss"]) == 3


def test_lines_of_one_step_are_one_row_and_an_evaluation_is_none(tmp_path):
    line = (
        "solver.cpp:310] Iteration {t}, Testing net (#0)\n"
        "solver.cpp:359]     Test net output #0: loss = 9.5 (* 1 = 9.5 loss)\n"
        "solver.cpp:222] Iteration {t}, loss = {l:.4f}\n"
        "solver.cpp:238]     Train net output #0: loss = {l:.4f} (* 1 = {l:.4f} loss)\n"
        "sgd_solver.cpp:105] Iteration {t}, lr = 0.003\n"
    )
    found = steps_of(imported(lines_of(line), tmp_path))
    assert found["step"] == list(range(0, 1200, 100))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert found["lr"] == pytest.approx([0.003] * 12)


def test_a_line_that_sums_up_an_epoch_is_no_step_after_its_steps(tmp_path):
    steps = lines_of("Epoch 1/2 | batch {n}/12 | loss {l:.4f}\n")
    run = imported(steps + "Epoch 01/2 | loss=7.7 | CER=0.1786\n", tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    more = run.read(Table.EXTRAS).to_pydict()
    assert dict(zip(more["name"], more["value"], strict=True)) == pytest.approx(
        {"train_loss": 7.7, "cer": 0.1786}
    )


def test_the_loss_of_each_step_is_known_beside_a_line_that_sums_up_the_epoch(tmp_path):
    text = lines_of("Epoch [1/9], Step [{n}/12], CrossEntropyLoss: {l:.4f}, Perplexity: 9.1\n")
    run = imported(text + "Epoch [1/9], Train Loss: 9.5, Valid Loss: 9.6\n", tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_parts_of_a_loss_never_stand_in_for_it(tmp_path):
    text = lines_of("step {n} loss_cls: 0.4, acc: 91.5, loss: {l:.4f}\n")
    run = imported(text + "step 12 loss_cls: 0.3351, acc: 91.6, loss_b", tmp_path)
    assert steps_of(run)["loss"][:12] == pytest.approx(LOSSES, abs=1e-4)
    assert steps_of(run)["loss"][12:] in ([], [None])


def test_columns_without_names_are_losses_if_the_file_says_so(tmp_path):
    found = steps_of(imported(lines_of("{t} {l:.4f}\n"), tmp_path, "loss.log"))
    assert found["step"] == list(range(0, 1200, 100))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    with pytest.raises(LogError):
        imported(lines_of("{t} {l:.4f}\n"), tmp_path, "temperatures.log")


def test_an_agents_log_without_a_loss_is_a_training_of_its_reward(tmp_path):
    line = "Episode {}/50 | Score: 8 | Reward: {}.5 | Epsilon: 0.04 | Steps: {}\n"
    text = "".join(line.format(n + 1, 100 * n, 40 + 37 * n % 23) for n in range(12))
    run = imported(text, tmp_path)
    assert steps_of(run)["step"] == list(range(1, 13))
    assert 1100.5 in run.read(Table.EXTRAS).to_pydict()["value"]


def test_evaluations_after_every_epoch_alone_are_a_run_and_a_single_one_is_none(tmp_path):
    line = "Epoch {m}/50, Validation Loss: {l:.4f}, Validation Acc: 0.7\n"
    run = imported(lines_of(line), tmp_path)
    assert steps_of(run)["step"] == list(range(1, 13))
    with pytest.raises(LogError):
        imported(line.format(m=3, l=2.0), tmp_path, "other.log")


@pytest.mark.parametrize(
    "text",
    [
        lines_of("GET /epoch/{n} 200 in {l:.3f} ms\n"),
        lines_of("[{n}/12] downloading part {n}: {l:.2f} MB/s\n"),
        lines_of("Val Step[{t}/3125], Avg Loss: {l:.4f}, Avg Acc: 0.67\n"),
        lines_of("node {n} | depth {m} | primal bound {l:.4f} | gap 4.1%\n"),
        "name,score\n" + lines_of("player{n},{l:.3f}\n"),
    ],
)
def test_what_is_no_training_is_refused(text, tmp_path):
    with pytest.raises(LogError):
        imported(text, tmp_path)


def test_what_was_guessed_is_said_and_can_be_named(tmp_path):
    line = "round {m}: koleo_loss {l:.4f} dino_loss {t}.5\n"
    run = imported(lines_of(line), tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert steps_of(run)["step"] == list(range(1, 13))
    note = next(note for note in run.info.notes if "--map" in note)
    assert "step = `round`, loss = `koleo_loss`" in note
    unseen = [str(sentence) for sentence in letter_of("train", run, diagnose(run)).unseen]
    guess = "Read as step = `round`, loss = `koleo_loss`; --map loss=NAME names another number."
    assert guess in unseen

    path = tmp_path / "train.log"
    chosen = ImportOptions(columns={"loss": "dino_loss", "step": "round"})
    named = open_run(import_log(path, tmp_path / "named", chosen))
    assert steps_of(named)["loss"] == [100 * n + 0.5 for n in range(12)]
    assert not [note for note in named.info.notes if "--map" in note]


def test_an_unknown_log_says_what_its_numbers_are_called(tmp_path):
    with pytest.raises(LogError, match="called koleo, dino; say which is the loss"):
        imported(lines_of("koleo {l:.4f} dino {t}.5\n"), tmp_path)
    chosen = ImportOptions(columns={"loss": "koleo"})
    run = open_run(import_log(tmp_path / "train.log", tmp_path / "named", chosen))
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    with pytest.raises(LogError, match="no lines with the numbers koala"):
        import_log(tmp_path / "train.log", tmp_path, ImportOptions(columns={"loss": "koala"}))
    with pytest.raises(LogError, match="of a text log, step, loss"):
        import_log(tmp_path / "train.log", tmp_path, ImportOptions(columns={"rank": "dino"}))


@pytest.mark.parametrize("piece", [7, 100, 4096])
def test_a_log_that_comes_in_pieces_is_learnt_as_the_whole_one(piece, tmp_path):
    preface = "".join(f"layer {n % 7} of the model has {n} parameters\n" for n in range(40))
    text = preface + lines_of("iter {n} step 1: koleo_loss {l:.4f}\n")
    whole = steps_of(imported(text, tmp_path))
    folder = create_run(tmp_path / "pieces", fresh_info("train.log", ImportOptions()))
    pieces = TextImport(folder, fresh_info("train.log", ImportOptions()), ImportOptions())
    for at in range(0, len(text), piece):
        pieces.feed(text[at : at + piece].encode())
    pieces.finish()
    pieces.describe()
    pieces.close()
    found = steps_of(open_run(folder))
    assert found["loss"] == whole["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_counter_that_stands_still_is_no_step_of_lines_beside_numbered_ones(tmp_path):
    line = "[{t}] | gnorm 1.5 lr 0.1 | loss {l:.4f}\nTrain batches[  100] | loss 9.99\n"
    found = steps_of(imported(lines_of(line), tmp_path))
    assert found["step"] == list(range(0, 1200, 100))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_learning_rate_that_is_said_again_and_again_belongs_to_the_step_above_it(tmp_path):
    line = "INFO: [Epoch {n}] Loss: {l:.4f}\nINFO: Current learning rate is: 0.1\n"
    found = steps_of(imported(lines_of(line), tmp_path))
    assert (found["lr"], found["step"]) == ([0.1] * 12, list(range(12)))


def test_a_step_whose_own_line_never_came_keeps_what_was_said_of_it(tmp_path):
    rate, loss = "s.cpp:5] Iteration {t}, lr = 0.1\n", "s.cpp:8] Iteration {t}, loss = {l:.4f}\n"
    text = lines_of(rate + loss) + "s.cpp:5] Iteration 1200, lr = 0.2\n"
    text += "s.cpp:5] Iteration 1300, lr = 0.3\ns.cpp:8] Iteration 1300, loss = 2\n"
    found = steps_of(imported(text, tmp_path))
    assert found["step"] == list(range(0, 1400, 100))
    assert found["lr"] == [*[0.1] * 12, 0.2, 0.3]
    assert found["loss"][-2:] == [None, 2.0]


@pytest.mark.parametrize("cut", ["| epoch 1 | 1200/2983 batches | lr 2", "| epoch 1 | 12"])
def test_the_last_number_of_a_line_that_breaks_off_is_left_out(cut, tmp_path):
    whole = lines_of("| epoch 1 | {t}/2983 batches | lr 20.0 | ms/batch 11.5 | loss {l:.4f}\n")
    found = steps_of(imported(whole + cut, tmp_path))
    assert found["lr"] == [20.0] * 12
    assert 12 not in found["step"]


def test_the_first_line_of_a_cut_log_is_a_place_if_it_is_called_as_the_others_are(tmp_path):
    lines = lines_of("current step: {n}th step\nbatch loss:{l:.4f}\n")
    found = steps_of(imported(lines.removeprefix("curren"), tmp_path))
    assert found["step"] == list(range(12))


def test_what_is_left_of_a_date_before_the_first_value_is_no_step(tmp_path):
    line = "[INFO 12/08/2022 01:19:24 PM ####EPOCH {m}/100 ####\n"
    line += "[INFO 12/08/2022 01:19:25 PM Mean loss {l:.4f}\n"
    text = "08/2022 01:19:24 PM Mean loss 9.5\n" + lines_of(line)
    found = steps_of(imported(text, tmp_path))
    assert found["step"] == [0, *range(1, 13)]
    assert found["loss"] == pytest.approx([9.5, *LOSSES], abs=1e-4)


@pytest.mark.parametrize(
    "line",
    [
        "(epoch: 1, iters: {t}, time: 1.562, data: 7.2) idt: 2.3 disc: 0.7 gen: {l:.4f}\n",
        "epoch: 1, iters: {t}, gen_loss: {l:.4f}\n idt: 2.3; disc: 0.7; idt_loss: 3.3;\n",
    ],
)
def test_where_no_loss_has_that_name_every_figure_is_kept_but_for_times(line, tmp_path):
    run = imported(lines_of(line), tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    names = set(run.read(Table.EXTRAS).column("name").to_pylist())
    assert names >= ({"idt", "disc"} if "(epoch" in line else {"idt_loss"})
    assert not names & {"time", "data", "gen"}


def test_a_loss_may_be_called_by_what_it_is_of_alone(tmp_path):
    text = lines_of("Iter {n} - time: 12 - [train]: {l:.4f} - [valid]: 68.8\n")
    assert steps_of(imported(text, tmp_path))["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_bar_that_is_drawn_again_at_the_same_step_has_the_later_loss(tmp_path):
    bar = "\rTraining:  0%|   | {n}/300 [00:00<15:35, 32.04it/s, Loss={l:.4f}]"
    pairs = zip(range(1, 13), [9.0, *LOSSES[:-1]], LOSSES, strict=True)
    text = "".join(bar.format(n=n, l=old) + bar.format(n=n, l=new) for n, old, new in pairs)
    found = steps_of(imported(text, tmp_path))
    assert found["step"] == list(range(1, 13))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_epoch_is_the_step_of_a_table_in_which_each_row_has_another_one(kind, tmp_path):
    rows = [{"epoch": 9 + at, "train_loss": loss} for at, loss in enumerate(LOSSES)]
    text = {
        "csv": "epoch,train_loss\n" + "".join(f"{r['epoch']},{r['train_loss']}\n" for r in rows),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    }[kind]
    assert steps_of(imported(text, tmp_path, f"log.{kind}"))["step"] == list(range(9, 21))
    twice = "epoch,train_loss\n" + "".join(f"{at // 2},{loss}\n" for at, loss in enumerate(LOSSES))
    assert steps_of(imported(twice, tmp_path, "twice.csv"))["step"] == list(range(12))


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_a_log_is_read_in_the_encoding_in_which_its_words_are_known(encoding, tmp_path):
    text = lines_of("当前Batch：{n}/6035 | 当前损失值：{l:.4f} | 准确率：34.70%\n")  # noqa: RUF001
    path = tmp_path / "log.txt"
    path.write_bytes(text.encode(encoding))
    found = steps_of(open_run(import_log(path, tmp_path / "runs")))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert found["step"] == list(range(12))


def test_rewards_of_episodes_are_a_training_in_other_languages_and_those_of_an_evaluation_none(
    tmp_path,
):
    line = "INFO - Эпизод {n} завершён за 6 шагов, награда: {l:.2f}\n"
    run = imported(lines_of(line), tmp_path)
    assert run.steps["step"].to_pylist() == list(range(12))
    bar = "eval_10ep:  10%|#   | {n}/12 [00:01<00:14,  1.61s/it][EVAL] episode={m} reward={l:.2f}\n"
    with pytest.raises(LogError):
        imported(lines_of(bar), tmp_path)


def test_a_single_line_that_a_program_wrote_is_a_run_and_a_sentence_is_none(tmp_path):
    found = steps_of(
        imported("I Trainer.cpp:165] Batch=1000 samples=128000 AvgCost=10.57\n", tmp_path)
    )
    assert (found["step"], found["loss"]) == ([1000], [10.57])
    with pytest.raises(LogError):
        imported("At step 1000 my training loss was 10.57, is that normal?\n", tmp_path, "mail.txt")


def test_what_follows_the_heading_of_an_evaluation_is_measured(tmp_path):
    line = "Training epoch: {n}\n\tmean_loss: {l:.4f}\nEval epoch: {n}\n\tmean_loss: 9.5\n"
    run = imported(lines_of(line), tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    measured = run.read(Table.EXTRAS).to_pydict()
    assert (set(measured["name"]), set(measured["value"])) == ({"val_loss"}, {9.5})


def test_a_validation_named_behind_its_epoch_is_no_step(tmp_path):
    line = "epoch: {n} end, loss: {l:.4f}\nepoch: {n} validation, acc: 0.6, loss: 9.5\n"
    assert steps_of(imported(lines_of(line), tmp_path))["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_count_called_train_is_neither_an_epoch_nor_a_loss(tmp_path):
    text = "train=960 val=120\n" + lines_of("epoch 0 step {n}/45 lr=1e-4 nll={l:.4f}\n")
    found = steps_of(imported(text, tmp_path))
    assert (found["step"], len(found["loss"])) == (list(range(12)), 12)


def test_tuples_of_python_2_are_names_and_numbers(tmp_path):
    line = "('Epoch: ', {n})\n('dcgan Loss: ', [array({l:.4f}, dtype=float32)])\n"
    assert steps_of(imported(lines_of(line), tmp_path))["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_boxes_of_stable_baselines_2_have_the_policys_loss(tmp_path):
    rule = "-----------------\n"
    box = f"{rule}| policy_loss     | {{l:.4f}} |\n| total_timesteps | {{t}} |\n{rule}"
    found = steps_of(imported(lines_of(box), tmp_path))
    assert found["step"] == list(range(0, 1200, 100))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_a_result_file_of_yolov5_has_the_sum_of_its_losses(tmp_path):
    row = "     {n}/11     6.29G   0.03793     1.291  0.008384     {l:.4f}        17       640"
    row += "    0.5049       0.5  0.005027 0.0006856\n"
    found = steps_of(imported(lines_of(row), tmp_path, "results.txt"))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert found["step"] == list(range(12))


def test_talk_between_the_lines_of_a_training_is_read_once_a_wording(tmp_path, monkeypatch):
    """Each of a million lines of talk took a third of a millisecond."""

    def log(name, talk):
        lines = []
        for step in range(1, 4001):
            if talk:
                lines.append(f"[data.py:12:load] batch {step} loaded in 12 ms, 8 left")
                lines.append(
                    f"batch of {step % 7} files closed, nothing else to do for step reader"
                )
            if step % 100 == 0:
                lines.append(f"[Rank 0] step={step}, skipped={step // 1000}, lr=[0.0{step}]")
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    calls = 0
    read = PlainLines.read

    def counted(self, text):
        nonlocal calls
        calls += 1
        return read(self, text)

    monkeypatch.setattr(PlainLines, "read", counted)
    with_talk = open_run(import_log(log("talk.log", talk=True), tmp_path / "a"))
    assert calls < 2500  # what the text teaches is read too
    alone = open_run(import_log(log("alone.log", talk=False), tmp_path / "b"))
    columns = ["step", "lr", "skipped"]
    assert with_talk.read("steps", columns).to_pylist() == alone.read("steps", columns).to_pylist()


def test_bars_of_an_evaluation_are_no_steps_of_the_training(tmp_path):
    bar = "\rEpoch {m}/12 {part}: {p}%|###  | {at}/{all} [00:01<00:01, 99.2it/s]"
    told = "".join(
        "".join(
            bar.format(m=n + 1, part=part, p=100 * at // total, at=at, all=total)
            for part, total in (("train", 40), ("val", 9))
            for at in (0, total // 2, total)
        )
        + f"\n[net] Epoch {n + 1}/12 Train Loss: {loss:.4f} | Val Loss: {loss + 1:.4f}\n"
        for n, loss in enumerate(LOSSES)
    )
    found = steps_of(imported(told, tmp_path))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


def test_what_is_measured_on_lines_of_its_own_belongs_to_the_step_above_it(tmp_path):
    line = "epoch:4 || iter:{t} || Loss:{l:.4f}\n->> near conf loss:1.5{n:02d} || near loc:0.8\n"
    run = imported(lines_of(line), tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    extras = run.read(Table.EXTRAS).to_pydict()
    steps = [s for s, n in zip(extras["step"], extras["name"], strict=True) if "conf" in n]
    assert steps == [100 * n for n in range(12)]


def test_a_head_of_two_lines_names_its_columns_together(tmp_path):
    head = (
        "|==========================================|\n"
        "|  Epoch  |  Iteration  |  Mini-batch  |  Mini-batch  |  Base Learning  |\n"
        "|         |             |     RMSE     |     Loss     |      Rate       |\n"
        "|==========================================|\n"
    )
    row = "|       1 |        {t:4d} |        33.50 |       {l:.4f} |          0.0010 |\n"
    found = steps_of(imported(head + lines_of(row), tmp_path))
    assert found["step"] == [100 * n for n in range(12)]
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)
    assert found["lr"] == [0.001] * 12


def test_a_counter_whose_words_say_global_goes_before_one_within_it(tmp_path):
    line = "inner iter: {n}/99 | global iter: {t}/5000 | tot_loss: {l:.4f} | lr: 1e-3\n"
    assert steps_of(imported(lines_of(line), tmp_path))["step"] == [100 * n for n in range(12)]


def test_a_place_before_a_verb_is_one(tmp_path):
    line = "main - INFO - epoch {m} begin\nmain - INFO - epoch average loss: {l:.4f}\n"
    assert steps_of(imported(lines_of(line), tmp_path))["step"] == list(range(1, 13))


def test_the_first_part_of_a_norm_stands_for_it(tmp_path):
    line = "step={n} loss={l:.4f} lr=1e-4 grad_norm={{'0_default': 2.5, '1_other': 0.1}}\n"
    assert steps_of(imported(lines_of(line), tmp_path))["grad_norm"] == [2.5] * 12


def test_a_list_of_objects_that_breaks_off_is_read_up_to_there(tmp_path):
    rows = [
        {"main/loss": loss, "validation/main/loss": loss + 1, "iteration": n}
        for n, loss in enumerate(LOSSES)
    ]
    text = json.dumps(rows, indent=4)
    found = steps_of(imported(text[: text.index('"validation', len(text) - 120)], tmp_path))
    assert found["loss"] == pytest.approx(LOSSES[:-1])


@pytest.mark.parametrize(
    "line",
    [
        "Epoch {n} trained with loss: {l:.4f}\nEpoch {n} evaluated with loss: 9.1, dice: 0.5\n",
        "Эпоха {n}/12\nОбучение - Потери: {l:.4f}\nВалидация - Потери: 9.1\n",  # noqa: RUF001
    ],
    ids=["verbs", "Russian"],
)
def test_what_was_evaluated_is_no_step(line, tmp_path):
    assert steps_of(imported(lines_of(line), tmp_path))["loss"] == pytest.approx(LOSSES, abs=1e-4)


def extras_of(run) -> dict[str, list[float]]:
    told = run.read(Table.EXTRAS, columns=("name", "value")).to_pydict()
    values: dict[str, list[float]] = {}
    for name, value in zip(told["name"], told["value"], strict=True):
        values.setdefault(name, []).append(round(value, 4))
    return values


PARTS = {
    "beside a loss": (
        "step {t}, time 570.4s, loss {l:.4f}, rec {n}.25, adv 6.06, d0 0.61, lr 1e-4, mem 2.5\n",
        {"rec", "adv", "d0"},
    ),
    "under the last bar": (
        "{n}/12 [00:01<00:09, 1.5s/it, loss={l:.4f}, kl={n}.25, lr=0.1]\n".join(("9%|#| ", "")),
        {"kl"},
    ),
    "behind a dash": (
        "{n:08d}) perceptual - {l:.4f}; gen_gan - {n}.25; warp - 0.32446\n", {"gen_gan", "warp"}
    ),
    "the two networks of a GAN": (
        "step {t} | G: {l:.4f} | D: {n}.25 | GP: 10.00 | 2.31 s/it\n", {"D", "GP"}
    ),
    "one to a line": (
        "--- epoch {n} ---\ntrain/loss : {l:.4f}\ntrain/ctc : {n}.25\ntrain/s2s : 4.4{m:02d}\n",
        {"train/ctc", "train/s2s"},
    ),
    "Hugging Face": (
        "{{'loss': {l:.4f}, 'logits/chosen': {n}.25, 'epoch': 0.5, 'speed(iter/s)': 0.007}}\n",
        {"logits/chosen"},
    ),
    "fairseq": (
        "| epoch 001:  {m} / 1374 loss={l:.4f}, nll_loss={n}.25, ppl=8.5, num_updates={t}\n",
        {"nll_loss", "ppl"},
    ),
    "icefall": (
        "Epoch 1, batch {t}, loss[loss={l:.4f}, simple_loss={n}.25], batch size: 20, lr: 1.0e-03\n",
        {"simple_loss"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "names"), PARTS.values(), ids=PARTS)
def test_every_fraction_of_a_step_is_kept_by_its_name_but_for_times_and_settings(
    line, names, tmp_path
):
    run = imported(lines_of(line), tmp_path)
    assert steps_of(run)["loss"] == pytest.approx(LOSSES, abs=1e-4)
    extras = extras_of(run)
    assert extras.keys() == names
    assert [n + 0.25 for n in range(12)] in extras.values()


def test_a_bar_without_a_loss_does_not_number_the_epochs_below_it(tmp_path):
    line = "100%|#####| 500/500 [00:10<00:00, 50.1it/s]\nEpoch {m} loss {l:.4f} acc 0.5\n"
    found = steps_of(imported(lines_of(line), tmp_path))
    assert found["step"] == list(range(1, 13))
    assert found["loss"] == pytest.approx(LOSSES, abs=1e-4)


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("box  obj  cls  total  labels", "0.{m:02d}  0.5  0.3  {l:.4f}  18"),
        ("box_loss  seg_loss  cls_loss  dfl_loss  Instances", "0.{m:02d}  {l:.4f}  0.3  0.1  18"),
    ],
    ids=["with their sum", "without it"],
)
def test_a_detectors_losses_are_called_as_the_header_above_them(head, row, tmp_path):
    line = (
        f"  Epoch  gpu_mem  {head}  Size\n  {{m}}/12  2.5G   {row}  640: 100%|##| 9/9 [00:01<0]\n"
    )
    run = imported(lines_of(line), tmp_path)
    extras, names = extras_of(run), head.split()[:-1]
    assert extras.keys() == {*names} - {"total"}
    assert extras[names[0]] == [m / 100 for m in range(1, 13)]
    parts = zip(*extras.values(), strict=True)
    losses = LOSSES if "total" in names else list(map(sum, parts))
    assert steps_of(run)["loss"] == pytest.approx(losses, abs=1e-4)


def test_what_sums_up_an_epoch_is_not_told_once_more(tmp_path):
    line = "Train | Epoch 1 | {m}/12 | Loss {l:.4f} | Reco {n}.25\n"
    end = "Train Summary | Epoch 1 | Loss=2.1 | Reco=1.5 | Dice=0.5\n"
    extras = extras_of(imported(lines_of(line) + end, tmp_path))
    assert (len(extras["Reco"]), extras["dice"]) == (12, [0.5])


def test_a_table_keeps_its_other_fractions_as_lines_do(tmp_path):
    text = "step,loss,rec,adv,elapsed,count\n" + lines_of("{n},{l:.4f},{n}.25,6.06,0.5,{m}\n")
    extras = extras_of(imported(text, tmp_path, "progress.csv"))
    assert extras == {"rec": [n + 0.25 for n in range(12)], "adv": [6.06] * 12}
