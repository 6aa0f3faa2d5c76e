"""Writes the samples whose lines are the frameworks' own wordings, filled from a simulated scaler.

    python tests/importers/make_literal_samples.py

The truth beside each sample comes from the simulation, never from the importer. Verdicts are what
the sequence was made to be. What a format does not print is not in its truth.
"""

# ruff: noqa: E501  (the frameworks' lines are as long as they are)

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "samples"
LARGE_BYTES = 40_000  # beyond that a sample is kept compressed
SAMPLES: dict[str, Callable[[], tuple[str | bytes, dict]]] = {}


def sample(make):
    SAMPLES[make.__name__] = make
    return make


@dataclass
class Scaler:
    """Halves on an overflow, doubles after `window` accepted steps."""

    scale: float
    window: int = 2000
    hysteresis: int = 1
    floor: float = 0.0
    good: int = 0
    left: int = field(init=False)
    skips: int = 0

    def __post_init__(self) -> None:
        self.left = self.hysteresis

    def step(self, overflow: bool) -> tuple[float, float]:
        before = self.scale
        if overflow:
            self.skips, self.good = self.skips + 1, 0
            self.left -= 1
            if self.left <= 0:
                self.scale = max(self.scale / 2, self.floor)
        else:
            self.good += 1
            if self.good % self.window == 0:
                self.scale, self.left = self.scale * 2, self.hysteresis
        return before, self.scale


def loss_at(step: int, noise: random.Random) -> float:
    return 2.0 + 8.0 * math.exp(-step / 300) + 0.02 * noise.random()


def halvings(first: float, count: int) -> list[tuple[float, float]]:
    return [(math.ldexp(first, -n), math.ldexp(first, -n - 1)) for n in range(count)]


def truth(source: str, verdict: str, pairs: Iterable[tuple[float, float]] = (), **more) -> dict:
    pairs = list(pairs)
    found = {"source": source, "verdict": verdict}
    if pairs:
        found |= {"final_scale": pairs[-1][1], "overflows": len(pairs), "skipped": len(pairs)}
    return {**found, **more}


# --- Apex ----------------------------------------------------------------------------------------

APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"
APEX_BLOCK = """Selected optimization level O1:  Insert automatic casts around Pytorch functions and Tensor methods.

Defaults for this optimization level are:
enabled                : True
opt_level              : O1
cast_model_type        : None
patch_torch_functions  : True
keep_batchnorm_fp32    : None
master_weights         : None
loss_scale             : dynamic
Processing user overrides (additional kwargs that are not None)...
After processing overrides, optimization options are:
enabled                : True
opt_level              : O1
cast_model_type        : None
patch_torch_functions  : True
keep_batchnorm_fp32    : None
master_weights         : None
loss_scale             : dynamic
"""


@sample
def apex_collapse():
    pairs = halvings(65536.0, 31)
    text = "".join(APEX.format(after) for _, after in pairs)
    return text, truth("apex", "failing", pairs, first_scale=32768.0, must=["AMP103", "AMP901"])


@sample
def apex_eight_ranks_start_up():
    pairs = halvings(65536.0, 3)
    text = APEX_BLOCK + "".join(APEX.format(after) * 8 for _, after in pairs)
    text += "Epoch: [0][10/5004] Time 0.500 (0.600) Loss 6.9000 (6.9500)\n" * 3
    config = {"opt_level": "O1", "patch_torch_functions": True, "loss_scale": "dynamic"}
    return text, truth("apex", "incomplete", pairs, first_scale=32768.0, config=config)


@sample
def apex_ranks_out_of_step():
    """Two ranks, the second of which prints its line after the first one's next."""
    order = [32768.0, 16384.0, 32768.0, 8192.0, 16384.0, 8192.0]
    text = "".join(APEX.format(after) for after in order)
    return text, truth("apex", "incomplete", halvings(65536.0, 3), first_scale=32768.0)


@sample
def apex_to_denormals():
    pairs = halvings(65536.0, 1082)
    text = "".join(APEX.format(after) for _, after in pairs)
    return text, truth("apex", "failing", pairs, must=["AMP103", "AMP104"])


@sample
def apex_sawtooth():
    """A long healthy run of which only the overflows were kept: 2^14, and now and then 2^15."""
    afters = [32768.0, 16384.0] + [16384.0] * 12
    text = "".join(APEX.format(after) for after in afters)
    found = {"final_scale": 16384.0, "overflows": 14, "skipped": 14}
    return text, truth("apex", "healthy", must=["AMP102"], first_scale=32768.0, **found)


@sample
def apex_fp16_utils():
    pairs = halvings(65536.0, 40)
    line = "Gradient overflow.  Skipping step, reducing loss scale to {}\n"
    return "".join(line.format(a) for _, a in pairs), truth("apex", "failing", pairs)


@sample
def apex_contrib():
    pairs = halvings(65536.0, 24)
    line = "\nGrad overflow on iteration {}\nUsing dynamic loss scale of {}\n"
    text = "".join(line.format(n, before) for n, (before, _) in enumerate(pairs))
    return text, truth(
        "apex", "failing", pairs, first_scale=65536.0, final_scale=pairs[-1][0], steps=24
    )


@sample
def apex_without_values():
    text = "Gradient overflow, skipping update\nepoch 1\n" * 5
    return text, truth("apex", "incomplete", overflows=5, skipped=5, final_scale=None)


# --- NVIDIA FP16_Optimizer -----------------------------------------------------------------------


@sample
def nvfp16_tacotron():
    pairs = halvings(2.0**32, 12)
    line = "OVERFLOW! Skipping step. Attempted loss scale: {}, reducing to {}\n"
    text = "".join(line.format(*pair) for pair in pairs)
    text += "".join(
        f"Train loss {n} {2.0 - n / 100:.6f} Grad Norm 1.02 0.54s/it\n" for n in range(12, 21)
    )
    return text, truth("nvfp16", "healthy", pairs, first_scale=2.0**32, last_loss=1.8)


@sample
def nvfp16_without_the_new_scale():
    text = "OVERFLOW! Skipping step. Attempted loss scale: 65536.0\n" * 1
    return text, truth("nvfp16", "incomplete", overflows=1, skipped=1, first_scale=65536.0)


# --- fairseq -------------------------------------------------------------------------------------


def fairseq_run(overflow_line: str, stats: Callable, window: int = 500, start: float = 128.0):
    noise, scaler, lines, pairs = random.Random(1), Scaler(start, window), [], []
    updates = batch = 0
    while updates < 2400:
        batch += 1
        overflow = scaler.scale > 16.0
        pair = scaler.step(overflow)
        if overflow:
            pairs.append(pair)
            lines.append(overflow_line.format(pair[1]))
            continue
        updates += 1
        if updates % 100 == 0:
            lines.append(stats(batch, updates, loss_at(updates, noise), scaler.scale))
    return "".join(lines), pairs, scaler.scale


def era_one(batch, updates, loss, scale):
    return (
        f"| epoch 001:   {batch:5d} / 13740 loss={loss:.3f}, nll_loss=7.1, ppl=137.2, wps=28000, "
        f"ups=7, wpb=3500.0, bsz=128.0, num_updates={updates}, lr={updates * 1e-7:.6g}, "
        f"gnorm=1.5, clip=0.000, oom=0.000, loss_scale={scale:.3f}, wall=100, train_wall=99\n"
    )


@sample
def fairseq_first_era():
    text, pairs, final = fairseq_run(
        "| WARNING: overflow detected, setting loss scale to: {}\n", era_one
    )
    return text, truth("fairseq", "healthy", pairs, final_scale=final, first_scale=64.0)


@sample
def fairseq_second_era():
    text, pairs, final = fairseq_run(
        "2020-09-01 10:00:00 | INFO | fairseq.trainer | NOTE: overflow detected, setting loss "
        "scale to: {}\n",
        lambda b, u, loss, scale: (
            f"2020-09-01 10:00:00 | INFO | train_inner | epoch 001:   {b:5d} / 13740 loss={loss:.3f}"
            f", ppl=30.1, wps=28000, num_updates={u}, lr={u * 1e-7:.6g}, gnorm=1.5, "
            f"loss_scale={scale:.3g}, train_wall=99, wall=100\n"
        ),
    )
    return text, truth("fairseq", "healthy", pairs, final_scale=final, first_scale=64.0)


def hydra(b, u, loss, scale, prefix="[2021-06-01 10:00:00,000][train_inner][INFO] - "):
    facts = {
        "epoch": 1, "update": round(b / 13740, 3), "loss": f"{loss:.3f}", "ppl": "30.1",
        "wps": "28000", "num_updates": str(u), "lr": f"{u * 1e-7:.6g}", "gnorm": "1.5",
        "loss_scale": f"{scale:.4g}", "train_wall": "99", "wall": "100",
    }  # fmt: skip
    return prefix + json.dumps(facts) + "\n"


@sample
def fairseq_hydra():
    text, pairs, final = fairseq_run(
        "[2021-06-01 10:00:00,000][fairseq.trainer][INFO] - NOTE: gradient overflow detected, "
        "ignoring gradient, setting loss scale to: {}\n",
        hydra,
    )
    return text, truth("fairseq", "healthy", pairs, final_scale=final, first_scale=64.0)


@sample
def fairseq_json_lines():
    text, pairs, final = fairseq_run(
        "2021-06-01 10:00:00 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring "
        "gradient, setting loss scale to: {}\n",
        lambda *a: hydra(*a, prefix="2021-06-01 10:00:00 | INFO | train_inner | "),
    )
    return text, truth("fairseq", "healthy", pairs, final_scale=final, first_scale=64.0)


@sample
def fairseq_amp():
    pairs = halvings(128.0, 3)
    text = "".join(
        f"AMP: overflow detected, setting scale to to {after}\nAMP: skipping this batch.\n"
        for _, after in pairs
    )
    noise = random.Random(2)
    text += "".join(hydra(u + 3, u, loss_at(u, noise), 16.0) for u in range(100, 3000, 100))
    return text, truth("fairseq", "healthy", pairs, final_scale=16.0, first_scale=64.0)


@sample
def fairseq_low_by_design():
    """A sum-reduced loss: scale 2^-8, printed as 0.004, and all is well."""
    noise = random.Random(3)
    text = "".join(
        f"| epoch 001:   {u:5d} / 13740 loss={loss_at(u, noise):.3f}, num_updates={u}, "
        f"lr={u * 1e-7:.6g}, gnorm=120.5, loss_scale=0.004, wall=100\n"
        for u in range(100, 8100, 100)
    )
    found = {"first_scale": 0.004, "final_scale": 0.004, "overflows": 0, "skipped": 0}
    return text, truth("fairseq", "healthy", must=["AMP109"], **found)


@sample
def fairseq_ends_at_its_floor():
    noise = random.Random(4)
    lines = [hydra(u, u, loss_at(u, noise), 64.0) for u in range(100, 1100, 100)]
    pairs = halvings(64.0, 19)
    note = "2021-06-01 10:00:00 | INFO | fairseq.trainer | NOTE: gradient overflow detected, "
    for _, after in pairs:
        lines.append(f"{note}ignoring gradient, setting loss scale to: {after}\n")
    lines.append(
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding. "
        "Try lowering the learning rate, using gradient clipping or increasing the batch size.\n"
    )
    return "".join(lines), truth("fairseq", "failing", pairs, first_scale=64.0, must=["AMP103"])


@sample
def fairseq_epochs_only():
    noise = random.Random(5)
    text = "".join(
        f"| epoch {n:03d} | loss {loss_at(n * 1000, noise):.3f} | nll_loss 3.2 | ppl 9.1 | wps 3000 "
        f"| num_updates {n * 1000} | lr 0.0005 | gnorm 1.2 | loss_scale 0.500 | wall 1000\n"
        f"| epoch {n:03d} | valid on 'valid' subset | loss 99.9 | ppl 9.9 | num_updates {n * 1000}\n"
        for n in range(1, 28)
    )
    found = {"first_scale": 0.5, "final_scale": 0.5, "overflows": 0, "skipped": 0}
    return text, truth("fairseq", "healthy", last_loss=2.0, **found)


@sample
def metaseq_holds_its_floor():
    lines, pairs = [], [*halvings(4.0, 7)]
    lines.append(
        "2022-01-01 10:00:00 | INFO | metaseq | *** SCALE_WINDOW: 256, loss scale: 4.0 ***\n"
    )
    note = "2022-01-01 10:00:01 | INFO | metaseq.trainer | NOTE: gradient overflow detected, "
    for _, after in pairs:
        lines.append(f"{note}ignoring gradient, setting loss scale to: {after}\n")
    for _ in range(60):
        pairs.append((2.0**-5, 2.0**-5))
        lines.append(f"{note}ignoring gradient, setting loss scale to: 0.03125\n")
        lines.append(
            f"{note}ignoring gradient, Grad norm: 3.20 exceeds threshold: 1.00, rejecting batch.\n"
        )
    return "".join(lines), truth("metaseq", "failing", pairs, first_scale=4.0, must=["AMP104"])


@sample
def fairseq2_search_and_growth():
    lines, pairs = [], halvings(65536.0, 4)
    head = "[2024-05-01 10:00:00] INFO fairseq2.optim.fp16_loss_scaler - "
    for step, (before, after) in enumerate(pairs):
        lines.append(
            f"{head}Overflow detected at step {step}, ignoring gradient, decreasing loss "
            f"scale from {before:g} to {after:g}.\n"
        )
    lines.append(
        f"{head}No gradient overflow detected in the last 2,000 step(s) after step 2,003, "
        "increasing loss scale from 4096 to 8192.\n"
    )
    found = {"first_scale": 65536.0, "final_scale": 8192.0}
    return "".join(lines), truth("fairseq2", "healthy", pairs, **found)


# --- DeepSpeed -----------------------------------------------------------------------------------

STAMP = "[2023-03-01 10:00:00,123] [INFO] [loss_scaler.py:183:update_scale] "
DS_OLD = "[deepspeed] OVERFLOW! Skipping step. Attempted loss scale: {}, reducing to {}\n"
DS_SCALE = "[deepscale] OVERFLOW! Rank {} Skipping step. Attempted loss scale: {}, reducing to {}\n"
DS_2021 = ("[deepspeed] fp16 dynamic loss scale overflow! Rank {} Skipping step. Attempted loss "
           "scale: {}, reducing to {}\n")  # fmt: skip
DS_2022 = STAMP + ("[deepspeed] OVERFLOW! Rank {} Skipping step. Attempted loss scale: {}, "
                   "reducing to {}\n")  # fmt: skip


@sample
def deepspeed_2020_search():
    pairs = halvings(2.0**32, 16)
    text = "".join(DS_OLD.format(*pair) for pair in pairs)
    text += "".join(
        f"[2020-06-01 10:00:00,000] [INFO] [logging.py:60:log_dist] [Rank 0] step={n}, skipped=16, "
        f"lr=[{n * 1e-7}], mom=[[0.9, 0.999]]\n"
        for n in range(20, 420, 20)
    )
    return text, truth("deepspeed", "healthy", pairs, first_scale=2.0**32, must=["AMP101"])


@sample
def deepspeed_deepscale_eight_ranks():
    """Eight ranks, each a little behind the one before it."""
    pairs = halvings(65536.0, 6)
    order = sorted((n * 3 + rank, rank, pair) for n, pair in enumerate(pairs) for rank in range(8))
    text = "".join(DS_SCALE.format(rank, *pair) for _, rank, pair in order)
    return text, truth("deepspeed", "incomplete", pairs, first_scale=65536.0)


@sample
def deepspeed_2021_collapse():
    pairs = halvings(65536.0, 16)
    text = "".join(DS_2021.format(0, *pair) for pair in pairs)
    text += DS_2021.format(0, 1.0, 1.0)
    text += ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. "
             "Exiting run.\n")  # fmt: skip
    pairs.append((1.0, 1.0))
    return text, truth("deepspeed", "failing", pairs, first_scale=65536.0, must=["AMP104"])


def bar(n: int, total: int = 1184) -> str:
    return f"{n * 100 // total:3d}%|{'█' * (n % 9):10s}| {n}/{total} [00:{n % 60:02d}<1:09:10,  3.52s/it]"


@sample
def deepspeed_under_hf():
    """tqdm's bar is glued before the line; the Trainer's dictionaries stand between."""
    scaler, lines, pairs, noise = Scaler(65536.0, 1000), [], [], random.Random(6)
    for step in range(1, 301):
        overflow = scaler.scale > 8192.0
        pair = scaler.step(overflow)
        head = bar(step - 1)
        if overflow:
            pairs.append(pair)
            lines.append(head + DS_2022.format(0, int(pair[0]), int(pair[1])))
        else:
            lines.append(head + "\r")
        if step % 10 == 0:
            lines.append("\n" + str({
                "loss": round(loss_at(step, noise), 4), "learning_rate": step * 1e-7,
                "epoch": round(step / 1184, 2),
            }) + "\n")  # fmt: skip
    found = {"first_scale": 65536.0, "steps": 300}
    return "".join(lines), truth("deepspeed", "healthy", pairs, must=["AMP101"], **found)


@sample
def deepspeed_hysteresis():
    lines, pairs = [], []
    scaler = Scaler(65536.0, 1000, hysteresis=2)
    for _ in range(4):
        left = scaler.left
        pair = scaler.step(True)
        pairs.append(pair)
        head = STAMP + "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: "
        if pair[0] == pair[1]:
            tail = f"{pair[0]:.0f}, but hysteresis is {left}. Reducing hysteresis to {left - 1}"
        else:
            tail = f"{pair[0]:.0f}, reducing to {pair[1]:.0f}"
        lines.append(head + tail + "\n")
    return "".join(lines), truth("deepspeed", "incomplete", pairs, first_scale=65536.0)


@sample
def deepspeed_fused_four_ranks():
    lines, pairs = [], halvings(65536.0, 3)
    for n, pair in enumerate(pairs):
        lines += [f"\nGrad overflow on iteration {n}\n"] * 4
        lines += [f"Reducing dynamic loss scale from {pair[0]} to {pair[1]}\n"] * 4
    lines += ["\nNo Grad overflow for 1000 iterations\n"] * 4
    lines += ["Increasing dynamic loss scale from 8192.0 to 16384.0\n"] * 4
    found = {"first_scale": 65536.0, "final_scale": 16384.0}
    return "".join(lines), truth("deepspeed", "healthy", pairs, **found)


@sample
def deepspeed_counter_only():
    """No overflow line at all: the counter alone tells of the skips."""
    skips = [9, 9, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    text = "".join(
        f"[2022-06-01 10:00:00,000] [INFO] [logging.py:68:log_dist] [Rank 0] step={n * 100}, "
        f"skipped={skip}, lr=[{n * 1e-6}], mom=[[0.9, 0.999]]\n"
        for n, skip in enumerate(skips, 1)
    )
    found = {"overflows": 10, "skipped": 10, "final_scale": None}
    return text, truth("deepspeed", "healthy", **found)


@sample
def deepspeed_wrapped_by_the_terminal():
    pairs = halvings(65536.0, 4)
    text = "".join(DS_2022.format(0, *pair) for pair in pairs)
    wrapped = [line[at : at + 80] for line in text.splitlines() for at in range(0, len(line), 80)]
    return "\n".join(wrapped) + "\n", truth("deepspeed", "incomplete", pairs, first_scale=65536.0)


@sample
def deepspeed_sawtooth():
    """Only overflows were kept of 30,000 healthy steps: one a growth interval."""
    text = "".join(DS_2022.format(0, 65536, 32768) for _ in range(30))
    found = {"first_scale": 65536.0, "final_scale": 32768.0, "overflows": 30, "skipped": 30}
    return text, truth("deepspeed", "healthy", must=["AMP102"], **found)


@sample
def deepspeed_prints_zero():
    """Scales through int(): 0.5 prints as 0, which is no scale."""
    pairs = halvings(65536.0, 16)
    text = "".join(DS_2022.format(0, int(a), int(b)) for a, b in pairs)
    text += DS_2022.format(0, 1, 0) + DS_2022.format(0, 0, 0)
    found = {"overflows": 18, "skipped": 18, "final_scale": 1.0}
    return text, truth("deepspeed", "failing", **found)


# --- Megatron ------------------------------------------------------------------------------------


def megatron_line(step, scale, loss, norm, skipped=0, nan=0, lr=1e-4, tail="", head=" "):
    shown = "" if loss is None else f"lm loss: {loss:.6E} | "
    return (
        f"{head}iteration {step:8d}/{500000:8d} | consumed samples: {step * 512:12d} | elapsed time "
        f"per iteration (ms): 512.3 | learning rate: {lr:.3E} | global batch size: {512:5d} | "
        f"{shown}loss scale: {scale:.1f} | grad norm: {norm:.3f} | number of skipped iterations: "
        f"{skipped:3d} | number of nan iterations: {nan:3d} |{tail}\n"
    )


@sample
def megatron_recoverable_spike():
    """Four halvings in a row at step 3,000; the loss spikes and comes back; nothing was changed."""
    noise, scaler, lines, pairs = random.Random(7), Scaler(65536.0, 1000), [], []
    for step in range(1, 4601):
        overflow = 3000 <= step < 3004
        pair = scaler.step(overflow)
        loss = loss_at(step, noise) + (1.5 * math.exp(-(step - 3004) / 40) if step >= 3004 else 0)
        norm = 0.8 + 0.1 * noise.random()
        if scaler.scale > 65536.0:
            scaler.scale = 65536.0  # max_scale
        if overflow:
            pairs.append(pair)
        if step > 2600:
            lines.append(megatron_line(
                step, scaler.scale, None if overflow else loss, math.inf if overflow else norm,
                int(overflow),
            ))  # fmt: skip
    found = {"first_scale": 65536.0, "final_scale": scaler.scale, "must": ["AMP303"]}
    return "".join(lines), truth("megatron", "healthy", pairs, **found)


@sample
def megatron_every_hundred():
    """From 2^32: the counters of each hundred steps tell of the search."""
    noise, scaler, lines, skips = random.Random(8), Scaler(2.0**32, 1000), [], 0
    for step in range(1, 6001):
        overflow = scaler.scale > 2.0**17
        scaler.step(overflow)
        skips += overflow
        if step % 100 == 0:
            lines.append(megatron_line(
                step, scaler.scale, loss_at(step, noise), 0.8 + 0.1 * noise.random(), skips
            ))  # fmt: skip
            skips = 0
    found = {"overflows": scaler.skips, "skipped": scaler.skips, "final_scale": scaler.scale}
    return "".join(lines), truth("megatron", "healthy", **found)


@sample
def megatron_2019():
    noise, lines = random.Random(9), []
    lines += ["OVERFLOW! Skipping step. Attempted loss scale: {}, reducing to {}\n".format(*pair)
              for pair in halvings(2.0**32, 15)]  # fmt: skip
    for step in range(100, 3100, 100):
        lines.append(
            f" iteration {step:8d}/{320000:8d} | elapsed time per iteration (ms): 512.3 | learning "
            f"rate {step * 1e-7:.3E} | lm loss {loss_at(step, noise):.3E} | loss scale 131072.0 |\n"
        )
    return "".join(lines), truth(
        "megatron", "healthy", halvings(2.0**32, 15), first_scale=2.0**32, final_scale=131072.0
    )


@sample
def megatron_newer_with_stamp():
    noise = random.Random(10)
    text = "".join(
        f" [2024-05-01 10:00:{n % 60:02d}] iteration {n * 10:8d}/  500000 | consumed samples: "
        f"{n * 5120:12d} | elapsed time per iteration (ms): 512.3 | throughput per GPU "
        f"(TFLOP/s/GPU): 123.4 | learning rate: {n * 1e-6:.6E} | global batch size:   512 | lm loss: "
        f"{loss_at(n * 10, noise):.6E} | loss scale: 65536.0 | grad norm: 0.{800 + n % 90} | number "
        "of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for n in range(1, 90)
    )
    found = {"first_scale": 65536.0, "final_scale": 65536.0, "overflows": 0, "skipped": 0}
    return text, truth("megatron", "healthy", **found)


@sample
def megatron_deepspeed_dies():
    """DeepSpeed's skips are not counted: a stale norm beside a missing loss tells of them."""
    noise, scaler, lines, pairs = random.Random(11), Scaler(16384.0, 1000, floor=1.0), [], []
    norm = 0.8
    for step in range(1, 241):
        overflow = step > 200
        pair = scaler.step(overflow)
        if overflow:
            pairs.append(pair)
        else:
            norm = 0.8 + 0.1 * noise.random()
        lines.append(megatron_line(
            step, scaler.scale, None if overflow else loss_at(step, noise), norm,
            tail=" samples per second: 5.1 | TFLOPs: 41.2 |", head="[default7]: ",
        ))  # fmt: skip
    found = {"first_scale": 16384.0, "final_scale": 1.0, "must": ["AMP103"]}
    return "".join(lines), truth("megatron", "failing", pairs, **found)


@sample
def megatron_bf16():
    noise = random.Random(12)
    text = "".join(
        megatron_line(n * 10, 1.0, loss_at(n * 10, noise), 0.8 + noise.random() / 10)
        for n in range(1, 120)
    )
    found = {"final_scale": 1.0, "overflows": 0, "skipped": 0}
    return text, truth("megatron", "healthy", **found)


# What `_print_args` of Megatron-LM prints of fp8, among the rest: dots up to column 48.
FP8_ARGUMENTS = {
    "bf16": "True", "first_last_layers_bf16": "False", "fp8": "hybrid",
    "fp8_amax_compute_algo": "most_recent", "fp8_amax_history_len": "1", "fp8_interval": "1",
    "fp8_margin": "0", "fp8_param_gather": "False", "fp8_recipe": "delayed", "fp8_wgrad": "True",
    "keep_fp8_transpose_cache_when_using_custom_fsdp": "False",
    "num_layers_at_end_in_bf16": "1", "num_layers_at_start_in_bf16": "1",
}  # fmt: skip


@sample
def megatron_fp8_loss_vanishes():
    noise = random.Random(15)
    text = "------------------------ arguments ------------------------\n"
    text += "".join(f"  {n} {'.' * (48 - len(n))} {v}\n" for n, v in FP8_ARGUMENTS.items())
    text += "-------------------- end of arguments ---------------------\n"
    text += "".join(
        megatron_line(n, 1.0, loss_at(n, noise), 0.8 + noise.random() / 10) for n in range(1, 80)
    )
    text += "".join(megatron_line(n, 1.0, None, math.nan) for n in range(80, 120))
    told = {"fp8": "hybrid", "fp8_recipe": "delayed", "first_last_layers_bf16": "False"}
    found = {"overflows": 0, "skipped": 0, "config": told, "note": "The settings say fp8=hybrid"}
    return text, truth("megatron", "failing", must=["AMP204"], **found)


# The keys of NeMo 1's configuration as YAML, and the line of NeMo 2's `ProgressPrinter`.
NEMO_OPTIONS = """\
  transformer_engine: true
  fp8: true
  fp8_e4m3: false
  fp8_hybrid: true
  fp8_margin: 0
  fp8_interval: 1
  fp8_amax_history_len: 1024
  fp8_amax_compute_algo: max
"""


@sample
def nemo_fp8():
    noise, lines = random.Random(16), [NEMO_OPTIONS]
    losses = []
    for n in range(0, 200, 2):
        losses.append(float(f"{loss_at(n, noise):.4}"))
        lines.append(
            f"Training epoch 0, iteration {n}/199 | lr: 0.0003 | global_batch_size: 32 | "
            f"global_step: {n} | reduced_train_loss: {losses[-1]:.4} | train_step_timing in s: "
            f"1.25 | consumed_samples: {32 * n + 32}\n"
        )
    found = {"overflows": 0, "skipped": 0, "values": {"loss": losses}}
    told = {"fp8": "true", "fp8_amax_compute_algo": "max", "fp8_hybrid": "true"}
    return "".join(lines), truth("nemo", "healthy", config=told, **found)


# The line of `MetricsProcessor.log`, with its colours.
TITAN = (
    "[titan] 2026-02-03 10:{:02d}:{:02d},123 - root - INFO - \033[31mstep: {:2}  \033[32mloss: "
    "{:8.5f}  \033[38;2;180;60;0mgrad_norm: {:7.4f}  \033[36mmemory:  1.25GiB(1.32%)  \033[34m"
    "tps: 1,234  \033[36mtflops: 0.09  \033[35mmfu: N/A\033[39m\n"
)


@sample
def torchtitan_console():
    noise = random.Random(17)
    text = (
        "[titan] 2026-02-03 10:00:00,000 - root - INFO - Float8 training active with recipe "
        "rowwise\n[titan] 2026-02-03 10:00:00,001 - root - INFO - Swapped to Float8Linear layers\n"
    )
    losses = []
    for n in [1, *range(10, 1000, 10)]:
        losses.append(round(loss_at(n, noise), 5))
        text += TITAN.format(n // 60, n % 60, n, losses[-1], 1.2 + noise.random() / 10)
    found = {"overflows": 0, "skipped": 0, "values": {"loss": losses}}
    return text, truth("torchtitan", "healthy", config={"float8": "rowwise"}, **found)


@sample
def megatron_bf16_loss_vanishes():
    noise = random.Random(13)
    text = "".join(
        megatron_line(n, 1.0, loss_at(n, noise), 0.8 + noise.random() / 10) for n in range(1, 80)
    )
    text += "".join(megatron_line(n, 1.0, None, math.nan) for n in range(80, 120))
    return text, truth("megatron", "failing", overflows=0, skipped=0, must=["AMP204"])


@sample
def gpt_neox_search():
    noise, scaler, lines = random.Random(14), Scaler(2.0**32, 1000), []
    skips = 0
    for step in range(1, 2001):
        overflow = scaler.scale > 2.0**18
        scaler.step(overflow)
        skips += overflow
        if step % 10 == 0:
            loss = "" if skips == 10 else f"lm_loss: {loss_at(step, noise):.6E} | "
            lines.append(
                f" samples/sec: 101.2 | iteration {step:8d}/  320000 | elapsed time per iteration "
                f"(ms): 512.3 | learning rate: 1.000E-04 | approx flops per GPU: 41.2TFLOPS | {loss}"
                f"loss scale: {scaler.scale:.1f} | number of skipped iterations: {skips:3d} | "
                "number of nan iterations:   0 |\n"
            )
            skips = 0
    found = {"overflows": scaler.skips, "skipped": scaler.skips, "final_scale": scaler.scale}
    return "".join(lines), truth("gpt-neox", "healthy", **found)


@sample
def megatron_restarted_without_its_scaler():
    """Two attempts in one file; the second begins again at 2^16 where the first had 2^10."""
    noise = random.Random(15)
    scale = 1024.0
    lines = [megatron_line(n, scale, loss_at(n, noise), 0.8) for n in range(1, 101)]
    skips = 0
    scale = 65536.0
    for n in range(81, 300):
        overflow = scale > 1024.0
        skips += overflow
        scale = scale / 2 if overflow else scale
        lines.append(megatron_line(n, scale, None if overflow else loss_at(n, noise),
                                   math.inf if overflow else 0.8, int(overflow)))  # fmt: skip
    found = {"overflows": skips, "skipped": skips, "final_scale": 1024.0, "attempts": 2}
    return "".join(lines), truth("megatron", "*", **found)


# --- others --------------------------------------------------------------------------------------


@sample
def hf_nothing_is_learnt():
    text = "".join(
        f"{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': {5e-5 * (1 - n / 50)}, 'epoch': "
        f"{n / 50:.2f}}}\n" + bar(n * 10, 500) + "\r"
        for n in range(1, 40)
    )
    return text, truth("hf-trainer", "failing", final_scale=None, must=["AMP204"], steps=390)


@sample
def hf_rate_stuck_at_zero():
    text = "".join(
        f"{{'loss': 2.{n % 7}31, 'grad_norm': inf, 'learning_rate': 0.0, 'epoch': {n / 50:.2f}}}\n"
        for n in range(1, 40)
    )
    return text, truth("hf-trainer", "failing", must=["AMP105", "AMP308"])


@sample
def icefall_scale_falls():
    lines, noise = [], random.Random(16)
    scales = [16.0] * 20 + [8.0, 4.0, 1.0, 0.25, 0.03125]
    for n, scale in enumerate(scales):
        lines.append(
            f"2023-05-01 10:00:00,123 INFO [train.py:900] (0/4) Epoch 1, batch {n * 50}, loss[loss="
            f"{loss_at(n * 50, noise):.4f}, simple_loss=0.5, over 8000.00 frames. ], tot_loss[loss="
            f"0.9, over 50000.00 frames. ], batch size: 20, lr: 3.00e-02, grad_scale: {scale}\n"
        )
    lines += ["2023-05-01 10:00:01,123 WARNING [train.py:910] (0/4) Grad scale is small: "
              f"{2.0**-n}\n" for n in (7, 9, 12, 15)]  # fmt: skip
    lines.append("RuntimeError: grad_scale is too small, exiting: 3.814697265625e-06\n")
    found = {"first_scale": 16.0, "final_scale": 3.814697265625e-06}
    return "".join(lines), truth("icefall", "failing", **found)


@sample
def espnet_skips():
    noise, lines = random.Random(17), []
    for n in range(1, 30):
        lines.append(
            f"[node1] 2022-05-01 10:00:00,123 (trainer:732) INFO: 1epoch:train:{n * 50 - 49}-{n * 50}"
            f"batch: iter_time=0.1, forward_time=0.2, loss={loss_at(n * 50, noise):.3f}, "
            f"backward_time=0.2, optim_step_time=0.02, optim0_lr0={n * 1e-6:.3e}, train_time=1.2\n"
        )
        if n in (3, 4, 9):
            lines.append("[node1] 2022-05-01 10:00:00,123 (trainer:663) WARNING: The grad norm is "
                         "nan. Skipping updating the model.\n")  # fmt: skip
    return "".join(lines), truth("espnet", "*", overflows=3, skipped=3, final_scale=None)


@sample
def parlai_search():
    pairs = halvings(131072.0, 4)
    text = "".join(f"10:00:00 | [ Overflow: setting loss scale to {b} ]\n" for _, b in pairs)
    return text, truth("parlai", "incomplete", pairs, first_scale=65536.0)


@sample
def mindyolo_search():
    pairs = halvings(131072.0, 4)
    text = "".join(
        f"2024-03-01 10:00:0{at} [WARNING] overflow, drop step, loss scale adjust to {b}\n"
        for at, (_, b) in enumerate(pairs)
    )
    return text, truth("mindyolo", "incomplete", pairs, first_scale=65536.0)


@sample
def paddle_collapse():
    pairs = halvings(32768.0, 20)
    text = "".join(
        f"Found inf or nan, current scale is: {before}, decrease to: {before}*0.5\n"
        for before, _ in pairs
    )
    return text, truth("paddle", "failing", pairs, first_scale=32768.0)


@sample
def colossalai_skips():
    text = "[05/01/23 10:00:00] INFO     colossalai - INFO: Found overflow. Skip step\n" * 1
    return text, truth("colossalai", "incomplete", overflows=1, skipped=1, final_scale=None)


@sample
def mindformers_search():
    """The scale is printed with few digits and is a power of two."""
    noise, scaler, lines = random.Random(18), Scaler(65536.0, 1000), []
    for step in range(1, 101):
        overflow = scaler.scale > 2048.0
        before, _ = scaler.step(overflow)
        lines.append(
            f"2023-05-01 10:00:00,123 - mindformers[mindformers/core/callback/callback.py:316] - "
            f"INFO - {{ Epoch:[  1/  2], step:[{step:5d}/ 1000], loss:{loss_at(step, noise):6.3f}, "
            f"per_step_time:500ms, lr:1e-05, overflow cond: {overflow}, loss_scale: "
            f"{float(f'{before:.4g}')}\n"
        )
    found = {"first_scale": 65536.0, "final_scale": 2048.0, "steps": 100}
    return "".join(lines), truth("mindformers", "healthy", overflows=5, skipped=5, **found)


@sample
def insightface_healthy():
    noise = random.Random(19)
    text = "".join(
        f"Training: 2022-05-01 10:00:00,123-Speed 3000.12 samples/sec   Loss {loss_at(n, noise):.4f}"
        f"   LearningRate 0.1000   Epoch: 0   Global Step: {n}   Fp16 Grad Scale: 65536   Required: "
        "10 hours\n"
        for n in range(20, 1500, 10)
    )
    found = {"first_scale": 65536.0, "final_scale": 65536.0, "overflows": 0, "skipped": 0}
    return text, truth("insightface", "healthy", **found)


def swin_line(n: int, loss: float, scale: float, norm: float, mean: float) -> str:
    return (
        f"[2022-05-01 10:00:00 swin_tiny] (main.py 218): INFO Train: [{n // 1251}/300]["
        f"{n % 1251}/1251]\teta 0:10:00 lr 0.000100\t wd 0.0500\ttime 0.4000 (0.5000)\tloss "
        f"{loss:.4f} (6.9000)\tgrad_norm {norm:.4f} ({mean:.4f})\tloss_scale {scale:.4f} "
        f"(51000.1200)\tmem 9000MB\n"
    )


@sample
def swin_poisoned_average():
    """One inf made the *average* norm inf for ever; the run is well."""
    noise = random.Random(20)
    lines = [
        swin_line(n, loss_at(n, noise), 65536.0 if n < 600 else 32768.0,
                  math.inf if n == 600 else 1.2 + 0.1 * noise.random(),
                  1.2 if n < 600 else math.inf)
        for n in range(0, 4000, 10)
    ]  # fmt: skip
    found = {"first_scale": 65536.0, "final_scale": 32768.0, "overflows": 1, "skipped": 1}
    return "".join(lines), truth("swin", "healthy", **found)


@sample
def swin_collapse():
    noise, scale, lines = random.Random(21), 65536.0, []
    for n in range(1000, 1045):
        scale = scale / 2 if n >= 1030 else scale
        lines.append(
            swin_line(n, loss_at(n, noise), scale, math.nan if n >= 1030 else 1.2, math.nan)
        )
    found = {"first_scale": 65536.0, "final_scale": scale, "overflows": 15, "skipped": 15}
    return "".join(lines), truth("swin", "failing", must=["AMP103"], **found)


@sample
def beit_and_its_median():
    noise = random.Random(22)
    text = "".join(
        f"Epoch: [{n // 1251}]  [{n % 1251:4d}/1251]  eta: 0:10:00  lr: 0.000100  min_lr: 0.000100  "
        f"loss: {loss_at(n, noise):.4f} (6.9123)  loss_scale: 8192.0000 (8646.0600)  weight_decay: "
        f"0.0500 (0.0500)  grad_norm: 0.39 (nan)  time: 0.5000  data: 0.0001  max mem: 15000\n"
        for n in range(0, 3000, 10)
    )
    found = {"first_scale": 8192.0, "final_scale": 8192.0, "overflows": 0, "skipped": 0}
    return text, truth("beit", "healthy", **found)


def timm_line(n: int, loss: float, mean: float) -> str:
    """timm's own train.py, which tells neither the norm nor the scale."""
    epoch, batch = divmod(n, 1251)
    return (
        f"Train: {epoch} [{batch:>4d}/1251 ({100.0 * (batch + 1) / 1251:>3.0f}%)]  Loss: "
        f"{loss:#.3g} ({mean:#.3g})  Time: 0.400s,  640.00/s  (0.500s,  512.00/s)  LR: 5.000e-04  "
        "Data: 0.001 (0.002)\n"
    )


@sample
def timm_over_three_epochs():
    noise = random.Random(27)
    losses = [loss_at(n, noise) for n in range(0, 3000, 50)]
    lines = [timm_line(50 * at, loss, 6.91) for at, loss in enumerate(losses)]
    found = {"final_scale": None, "overflows": 0, "skipped": 0, "steps": 2951}
    return "".join(lines), truth("timm", "healthy", last_loss=losses[-1], **found)


@sample
def timm_loss_is_lost():
    """The loss is nan from a step on and stays so; the average has been nan since."""
    noise = random.Random(28)
    lines = [timm_line(n, loss_at(n, noise), 6.91) for n in range(0, 1500, 50)]
    lines += [timm_line(n, math.nan, math.nan) for n in range(1500, 2500, 50)]
    found = {"final_scale": None, "overflows": 0, "skipped": 0}
    return "".join(lines), truth("timm", "failing", must=["AMP204"], **found)


@sample
def mae_stops_at_nan():
    noise = random.Random(23)
    text = "".join(
        f"Epoch: [0]  [{n:4d}/1251]  eta: 0:10:00  lr: 0.000100  loss: {loss_at(n, noise):.4f} "
        "(0.9123)  time: 0.5000  data: 0.0001  max mem: 15000\n"
        for n in range(0, 400, 20)
    )
    text += "Loss is nan, stopping training\n"
    return text, truth("mae", "failing", final_scale=None, overflows=0, skipped=0)


@sample
def dllogger_scales():
    text = "".join(
        f"DLL 2020-11-26 10:00:00.123456 - PARAMETER loss_scale : {after}\n"
        for _, after in halvings(65536.0, 3)
    )
    noise = random.Random(24)
    text += "".join(
        f"DLL 2020-11-26 10:00:01.123456 - Training Epoch: 0 Training Iteration: {n}  average_loss :"
        f" 9.1  step_loss : {loss_at(n, noise):.4f}  learning_rate : {n * 1e-7:.6g} \n"
        for n in range(10, 600, 10)
    )
    found = {"first_scale": 32768.0, "final_scale": 8192.0}
    return text, truth("dllogger", "*", **found)


# --- tables --------------------------------------------------------------------------------------


@sample
def wandb_exported_scale_falls():
    """What the web's `Export CSV` writes, as its documentation shows it."""
    names = [f'"lilac-7 - train/{name}{kind}"' for name in ("loss", "grad_scale")
             for kind in ("", "__MIN", "__MAX")]  # fmt: skip
    noise, scale, rows, losses = random.Random(32), 65536.0, [], []
    for n in range(0, 3000, 10):
        scale = scale / 2 if n >= 2600 else scale
        losses.append(round(loss_at(n, noise), 6) if n < 2600 else math.nan)
        loss = "NaN" if n >= 2600 else losses[-1]
        rows.append(f'"{n}"' + f',"{loss}"' * 3 + f',"{scale}"' * 3)
    text = "\n".join([",".join(['"Step"', *names]), *rows]) + "\n"
    found = {"first_scale": 65536.0, "final_scale": scale, "values": {"loss": losses}}
    return text, truth("wandb", "failing", **found)


# --- how files come ------------------------------------------------------------------------------


@sample
def windows_utf16_colours():
    text, found = apex_collapse()
    lines = text.replace("Gradient", "\x1b[31mGradient\x1b[0m").replace("\n", "\r\n")
    return lines.encode("utf-16"), found


@sample
def mixture_of_experts_is_no_overflow():
    noise = random.Random(25)
    text = "".join(
        hydra(u, u, loss_at(u, noise), 64.0).replace(
            '"gnorm"', '"overflow_expert1": "12.5", "gnorm"'
        )
        for u in range(100, 4000, 100)
    )
    found = {"first_scale": 64.0, "final_scale": 64.0, "overflows": 0, "skipped": 0}
    return text, truth("fairseq", "healthy", **found)


@sample
def unknown_scale_messages():
    noise = random.Random(26)
    text = "".join(f"iter {n}: loss {loss_at(n, noise):.4f}, time 12.00ms, mfu 3.10%\n"
                   "MyScaler: loss scale reduced to 1024.0 after overflow\n"
                   for n in range(0, 200, 10))  # fmt: skip
    return text, truth("nanogpt", "*", final_scale=None, note="20 lines look like a scale message")


def write(samples: Mapping[str, Callable[[], tuple[str | bytes, dict]]]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in samples.items():
        content, found = make()
        data = content if isinstance(content, bytes) else content.encode()
        if len(data) > LARGE_BYTES:
            (FOLDER / f"{name}.txt.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (FOLDER / f"{name}.txt").write_bytes(data)
        (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write(SAMPLES)
