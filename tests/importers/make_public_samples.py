"""Writes samples after logs that people have pasted in public issues, re-keyed.

    python tests/importers/make_public_samples.py

The course and the wording are the thread's, the numbers are ours: each is what a reader of that
thread must be told. The truth comes from the course, never from the importer.
"""

# ruff: noqa: E501  (the frameworks' lines are as long as they are)

from __future__ import annotations

import math
import random

from importers.make_literal_samples import APEX, halvings, loss_at, truth, write

SAMPLES = {}


def sample(make):
    SAMPLES[make.__name__] = make
    return make


def bar(step: int, more: str = "") -> str:
    return f"\r  1%|█▍         | {step}/1184 [00:{step % 60:02d}<1:09:10,  3.52s/it{more}]"


def zero(before: float, after: float, where: str = "stage2.py:1357:step") -> str:
    return (
        f"[2021-02-04 15:06:19,825] [INFO] [{where}] [deepscale] OVERFLOW! Rank 0 Skipping step. "
        f"Attempted loss scale: {before}, reducing to {after}\n"
    )


@sample
def public_search_under_a_bar():
    """huggingface/transformers#9996: a success, whose log begins with its bar at 1."""
    pairs = halvings(2.0**32, 12)
    text = "".join(bar(n) + zero(*pair) for n, pair in enumerate(pairs, 1))
    return text + "".join(map(bar, range(13, 60))), truth("deepspeed", "healthy", pairs)


@sample
def public_nan_in_the_bar():
    """hpcaitech/ColossalAI-Examples#37: the loss is nan from the second step on."""
    pairs = halvings(2.0**32, 19)
    shown = [f", loss={'265.25' if n == 1 else 'nan'}, lr=2.5e-05" for n in range(1, 20)]
    text = "".join(bar(n, shown[n - 1]) + zero(*pair) for n, pair in enumerate(pairs, 1))
    return text, truth("deepspeed", "failing", pairs, must=["AMP204"])


@sample
def public_fp16_t5_at_the_floor():
    """huggingface/transformers#14531: a T5 trained in bf16, at scale 1 since before the log begins."""
    text = "".join(zero(1, 1) + bar(n) for n in range(98, 138))
    found = {"first_scale": 1.0, "final_scale": 1.0, "overflows": 40, "skipped": 40}
    return text, truth("deepspeed", "failing", must=["AMP104"], **found)


@sample
def public_scale_of_zero():
    """ai-forever/ru-gpts#63: the scale has underflowed to zero, as a float tells."""
    text = "".join(zero(0.0, 0.0) for _ in range(30))
    return text, truth("deepspeed", "failing", final_scale=0.0, must=["AMP104"])


@sample
def public_ends_after_two_lines():
    """facebookresearch/fairseq#1529: few lines, and the framework gives up."""
    text = "".join(
        f"| epoch {n:03d} | loss {4.9 - n / 30:.3f} | nll_loss 2.204 | ppl 4.61 | wps 279460 | ups 3 | wpb 110529.673 | bsz 3780.211 | num_updates {n * 327} | lr 0.000330319 | gnorm 0.635 | clip 0.000 | oom 0.000 | loss_scale 0.001 | wall {n * 144} | train_wall {n * 128}\n"
        f"| epoch {n:03d} | valid on 'valid' subset | loss 9.329 | nll_loss 8.088 | ppl 272.04 | num_updates {n * 327} | best_loss 9.11817\n"
        for n in range(1, 29)
    )
    for scale in (2.0**-11, 2.0**-12, 2.0**-13):
        text += f"| WARNING: overflow detected, setting loss scale to: {scale}\n"
    text += "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. Try lowering the learning rate, using gradient clipping or increasing the batch size.\n"
    found = {"final_scale": 2.0**-13, "overflows": 3, "skipped": 3}
    return text, truth("fairseq", "failing", must=["AMP104"], **found)


@sample
def public_before_the_first_update():
    """facebookresearch/fairscale#121: lines that hold a scale and nothing else."""
    text = ""
    for n, (_, after) in enumerate(halvings(128.0, 3), 1):
        text += f"2020-10-01 10:55:02 | INFO | fairseq.trainer | NOTE: overflow detected, setting loss scale to: {after}\n"
        text += f"2020-10-01 10:55:02 | INFO | train_inner | epoch 001:      {n} / 78 loss_scale={after:.0f}, train_wall=0, wall=6\n"
    for n in range(4, 40):
        text += f"2020-10-01 10:55:{n:02d} | INFO | train_inner | epoch 001:     {n} / 78 loss={1.1 - n / 100:.3f}, ppl=2.01, wps=0, ups=0, wpb=1024, bsz=8, num_updates={n - 3}, lr=2.24975e-07, gnorm=0.056, loss_scale=16, train_wall=0, wall=7\n"
    found = {"final_scale": 16.0, "overflows": 3, "skipped": 3, "last_loss": 0.71}
    return text, truth("fairseq", "healthy", **found)


@sample
def public_finds_its_level_below_one():
    """THUDM/Chinese-Transformer-XL#7: the scale comes down to an eighth while the loss falls on."""
    noise = random.Random(30)
    text, scale = "", 2048.0
    for n in range(1, 31):
        scale = {2: 1024.0, 3: 256.0, 4: 64.0, 5: 8.0, 6: 4.0, 8: 0.125, 20: 0.25}.get(n, scale)
        loss = "NAN" if n == 7 else f"{loss_at(n * 20, noise):.6E}"
        text += f" iteration {n * 100:8d}/    3000 | elapsed time per iteration (ms): 11092.2 | learning rate 7.917E-06 | lm loss {loss} | loss scale {scale:.1f} |\n"
    found = {"first_scale": 2048.0, "final_scale": 0.25, "must": ["AMP109"]}
    return text, truth("megatron", "healthy", **found)


@sample
def public_icefall_gives_up():
    """k2-fsa/icefall#1463: four ranks, and the error that ends it."""
    text = "".join(
        f"2024-01-14 00:{n // 60:02d}:{n % 60:02d},418 INFO [train.py:1031] (0/4) Epoch 3, batch {n * 50}, loss[simple_loss=0.4, pruned_loss=0.3, loss={0.5 + n / 100:.4f}, over 2223.00 frames. ], tot_loss[loss=0.5, over 438207.72 frames. ], batch size: 8, lr: 3.54e-02, grad_scale: {2.0**-n}\n"
        for n in range(8)
    )
    for scale in (2.0**-8, 2.0**-12, 2.0**-16):
        for rank in (2, 0, 1, 3):
            text += f"2024-01-14 01:03:00,826 WARNING [train.py:1057] ({rank}/4) Grad scale is small: {scale}\n"
    text += f"RuntimeError: grad_scale is too small, exiting: {2.0**-17}\n"
    return text, truth("icefall", "failing", final_scale=2.0**-17, must=["AMP104"])


@sample
def public_every_update_is_skipped():
    """espnet/espnet#3170: the norm is nan at each update of an epoch."""
    text = ""
    for n in range(1, 301):
        at = f"2021-04-23 19:{n // 60:02d}:{n % 60:02d},420"
        text += f"[user] {at} (trainer:581) WARNING: The grad norm is nan. Skipping updating the model.\n"
        if n % 100 == 0:
            text += f"[user] {at} (trainer:636) INFO: 2epoch:train:{n - 99}-{n}batch: iter_time=3.163e-04, forward_time=0.110, loss=65.129, loss_att=124.079, loss_ctc=144.685, acc=0.065, backward_time=0.086, optim0_lr0=1.485e-05, train_time=0.624\n"
    return text, truth("espnet", "failing", overflows=300, skipped=300, final_scale=None)


@sample
def public_tacotron_at_the_floor():
    """NVIDIA/tacotron2#112: a search, some steps, and then nothing fits even at 1."""
    text = "Epoch: 0\n"
    line = "OVERFLOW! Skipping step. Attempted loss scale: {}\n"
    text += "".join(line.format(2**32 if n == 32 else 2.0**n) for n in range(32, 17, -1))
    losses = [5.0 + 40 * math.exp(-n / 8) for n in range(25)]
    text += "".join(
        f"Train loss {n} {loss:.6f} Grad Norm {11 + n % 3}.616506 2.96s/it\n"
        for n, loss in enumerate(losses, 15)
    )
    text += "".join(line.format(2.0**n) for n in range(17, 0, -1)) + line.format(1) * 40
    found = {"first_scale": 2.0**32, "final_scale": 1.0, "values": {"loss": losses}}
    return text, truth("nvfp16", "failing", overflows=72, skipped=72, must=["AMP104"], **found)


@sample
def public_padded_by_a_terminal():
    """NVIDIA/DeepLearningExamples#1107: two ranks over a bar that a terminal has padded."""
    text = ""
    for _, after in halvings(65536.0, 5):
        text += " " * 180 + APEX.format(after).rstrip() + " " * 60 + "\n"
        text += APEX.format(after).rstrip() + " " * 180 + "\n"
    noise = random.Random(31)
    text += "".join(
        f"DLL 2022-04-05 05:09:27.294727 - Training Epoch: 0 Training Iteration: {n}  step_loss : {loss_at(n, noise)}  learning_rate : {n * 5e-8}    \n"
        for n in range(101, 2500, 50)
    )
    found = {"final_scale": 2048.0, "overflows": 5, "skipped": 5, "last_loss": 2.0}
    return text, truth("apex", "healthy", **found)


@sample
def public_face_loss_is_lost():
    """deepinsight/insightface#1715: the loss is nan, and the scale prints as 0."""
    text = ""
    for n in range(2400, 3200, 50):
        lost = n >= 2850
        loss, scale = ("nan", " 0") if lost else (f"{46 - n / 1500:.4f}", "16384")
        text += f"Training: 2021-08-18 06:{n // 50 % 60:02d}:43,232-Speed 461.27 samples/sec   Loss {loss}   LearningRate 0.0781   Epoch: 0   Global Step: {n}   Fp16 Grad Scale: {scale}   Required: 236 hours\n"
    return text, truth("insightface", "failing", first_scale=16384.0, must=["AMP204"])


@sample
def public_paddle_collapse_in_an_epoch():
    """PaddlePaddle/PaddleClas#2457: far below 1 in the second epoch, and still falling."""
    text = "".join(
        f"[2022/11/08 14:{n:02d}:54] ppcls INFO: [Train][Epoch 1/800][Iter: {n * 10}/366]lr(LinearWarmup): 0.05000000, CELoss: {11.9 - n / 50:.5f}, loss: {12.6 - n / 50:.5f}, batch_cost: 0.54552s, reader_cost: 0.41536, ips: 117.31981 samples/s, eta: 1 day, 20:18:47\n"
        for n in range(36)
    )
    pairs = halvings(32768.0, 40)
    for before, _ in pairs:
        text += f"Found inf or nan, current scale is: {before!r}, decrease to: {before!r}*0.5\n"
    return text, truth("paddle", "failing", pairs, must=["AMP103"])


@sample
def public_eight_ranks_in_a_line():
    """SwinTransformer/Transformer-SSL#19: ranks that print at once, without an end of line between."""
    noise = random.Random(33)
    text, scale = "", 65536.0
    for n in range(0, 620, 10):
        if n in (300, 310):
            scale /= 2
            text += APEX.format(scale).rstrip() * 5 + "\n" + APEX.format(scale) * 3
        loss, norm = loss_at(n, noise), 1.4 + noise.random()
        text += f"\x1b[32m[2023-10-24 17:{n // 60:02d}:{n % 60:02d} moby__swin_tiny]\x1b[0m\x1b[33m(moby_main.py 177)\x1b[0m: INFO Train: [3/300][{n}/625]  eta 0:05:52 lr 0.002772 time 0.5567 (1.0516)    loss {loss:.4f} (10.9174)  grad_norm {norm:.4f} (1.5236)       mem 45716MB\n"
    found = {"final_scale": 16384.0, "overflows": 2, "skipped": 2}
    return text, truth("apex", "healthy", **found)


@sample
def public_quoted_with_its_times():
    """karpathy/nanoGPT#215: quoted, with times before the lines, and nan from one line to the next."""
    losses = [round(4.2 - n / 1000, 4) for n in range(2000, 3010, 10)]
    text = "".join(
        f"> 2023-03-22 09:{n // 60 % 60:02d}:{n % 60:02d} iter {n}: loss {loss}, time 1099.34ms, mfu 15.34%\n> \n"
        for n, loss in zip(range(2000, 3010, 10), losses, strict=True)
    )
    for n in range(3010, 3200, 10):
        text += (
            f"> 2023-03-22 10:{n % 60:02d}:52 iter {n}: loss nan, time 1019.95ms, mfu 14.12%\n> \n"
        )
    found = {"final_scale": None, "values": {"loss": losses + [math.nan] * 19}}
    return text, truth("nanogpt", "failing", must=["AMP204"], **found)


@sample
def public_two_ranks_to_nothing():
    """Junjue-Wang/FactSeg#6: two ranks, into the denormals and to zero."""
    text, scale, pairs = "", 2.0**-1062, []
    while scale:
        pairs.append((scale, scale / 2))
        scale /= 2
        text += "Warning: NaN or Inf found in input tensor.\n" + APEX.format(scale) * 2
    text += "ZeroDivisionError: float division by zero\n"
    return text, truth("apex", "failing", pairs, must=["AMP104"])


if __name__ == "__main__":
    write(SAMPLES)
