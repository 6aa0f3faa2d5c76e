"""Runs real frameworks on small CPU trainings and keeps what they print, with its truth.

    pip install transformers accelerate lightning tensorboard wandb
    pip install timm torchvision
    pip install --no-deps torchtitan nvdlfw-inspect
    git clone https://github.com/karpathy/nanoGPT https://github.com/facebookresearch/mae \
        https://github.com/huggingface/pytorch-image-models \
        https://github.com/deepspeedai/DeepSpeed     (each into CHECKOUTS)
    python tests/importers/make_framework_samples.py CHECKOUTS [NAME...]

The truth is what the framework's own objects held (a GradScaler's scale, the Trainer's history),
not what was printed. Samples are named `real_*`.
"""

from __future__ import annotations

import contextlib
import getpass
import gzip
import io
import json
import logging
import math
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).parent / "samples"
MADE: dict[str, Callable[[Path], None]] = {}
LARGE_BYTES = 40_000


def framework(make):
    MADE[make.__name__] = make
    return make


_PATHS = re.compile(rb"/(?:root|home|Users|tmp|var|usr|opt|mnt|data)/[\w./@+-]*")


def anonymous(data: bytes) -> bytes:
    """The bytes without this machine's paths and name, at the same length: records have theirs."""
    for secret in {str(Path.cwd()), sys.prefix, socket.gethostname(), getpass.getuser()}:
        if len(secret) > 3:
            data = data.replace(secret.encode(), b"x" * len(secret.encode()))
    return _PATHS.sub(lambda path: b"/" + b"x" * (len(path[0]) - 1), data)


def keep(name: str, suffix: str, data: bytes, truth: dict) -> None:
    data = anonymous(data)
    if suffix == ".txt" and len(data) > LARGE_BYTES:
        suffix, data = ".txt.gz", gzip.compress(data, mtime=0)
    (FOLDER / f"real_{name}{suffix}").write_bytes(data)
    text = json.dumps(truth, indent=1, default=str)
    (FOLDER / f"real_{name}.json").write_text(text + "\n")


class Training:
    """A small fp16 training on the CPU with a real GradScaler; the truth is what it held."""

    def __init__(self, *, scale: float = 2.0**20, rate: float = 0.05, window: int = 40) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=window)
        self.x = torch.randn(256, 8)
        self.y = self.x[:, :1] * 3 + 1
        self.skips = 0
        self.step_count = 0

    def step(self, poison: bool = False) -> dict[str, float]:
        """One step; what a logger of it would be given. `poison` makes the loss overflow."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = self.model(self.x)
        loss = (out.float() - self.y).square().mean()
        if poison:
            loss = loss * torch.tensor(math.inf)
        before = self.scaler.get_scale()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        after = self.scaler.get_scale()
        self.skips += after < before
        self.step_count += 1
        rate = self.optimizer.param_groups[0]["lr"]
        return {"loss": loss.item(), "lr": rate, "grad_norm": norm.item(), "loss_scale": after}

    def truth(self, source: str, verdict: str = "*", **more) -> dict:
        found = {"source": source, "verdict": verdict, "final_scale": self.scaler.get_scale()}
        return {**found, "overflows": self.skips, "skipped": self.skips, **more}


def columns(rows: list[dict[str, float]], names: dict[str, str]) -> dict[str, list[float]]:
    return {ours: [row[theirs] for row in rows if theirs in row] for ours, theirs in names.items()}


LOGGED = {"loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "scale_after": "loss_scale"}


# --- TensorBoard, W&B, CSV, JSON lines -----------------------------------------------------------


def _rows(training: Training, steps: int, poison_from: int | None = None) -> list[dict]:
    return [training.step(poison_from is not None and step >= poison_from) for step in range(steps)]


@framework
def tensorboard_scalars(_: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for name, poison, verdict in (("healthy", None, "healthy"), ("collapse", 120, "failing")):
        training = Training()
        rows = _rows(training, 160, poison)
        with tempfile.TemporaryDirectory() as folder:
            with SummaryWriter(folder) as writer:
                for step, row in enumerate(rows):
                    for tag, value in row.items():
                        writer.add_scalar(f"train/{tag}", value, step)
            data = next(Path(folder).iterdir()).read_bytes()
        truth = training.truth("tensorboard", verdict, values=columns(rows, LOGGED), steps=160)
        keep(f"tensorboard_{name}", ".tfevents", data, truth)


@framework
def wandb_offline(_: Path) -> None:
    import wandb

    for name, poison, verdict in (("healthy", None, "healthy"), ("collapse", 120, "failing")):
        training = Training()
        with tempfile.TemporaryDirectory() as folder:
            run = wandb.init(project="p", mode="offline", dir=folder, config={"rate": 0.05})
            rows = []
            for row in _rows(training, 160, poison):
                rows.append(row)
                run.log({f"train/{key}": value for key, value in row.items()})
            run.finish()
            data = next(Path(folder).rglob("*.wandb")).read_bytes()
        truth = training.truth(
            "wandb", verdict, values=columns(rows, LOGGED), steps=160, config={"rate": 0.05}
        )
        keep(f"wandb_{name}", ".wandb", data, truth)


# --- Lightning -----------------------------------------------------------------------------------


@framework
def lightning_loggers(_: Path) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self, poison: int | None = None) -> None:
            super().__init__()
            self.layer, self.poison, self.seen = nn.Linear(8, 1), poison, []

        def training_step(self, batch, index):
            loss = (self.layer(batch[0]) - batch[1]).square().mean()
            if self.poison is not None and self.global_step >= self.poison:
                loss = loss * math.nan
            self.log("train_loss", loss)
            if self.trainer._logger_connector.should_update_logs:
                self.seen.append((self.global_step, loss.item()))
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
    data = DataLoader(TensorDataset(x, x[:, :1]), batch_size=16)
    made = (("csv", CSVLogger, None), ("csv_nan", CSVLogger, 60), ("tb", TensorBoardLogger, None))
    for name, logger, poison in made:
        with tempfile.TemporaryDirectory() as folder:
            module = Module(poison)
            trainer = pl.Trainer(
                max_epochs=4, accelerator="cpu", log_every_n_steps=5, logger=logger(folder),
                callbacks=[pl.callbacks.LearningRateMonitor()], enable_progress_bar=False,
                enable_checkpointing=False, enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(module, data)
            wanted = "metrics.csv" if name != "tb" else "events.*"
            content = next(Path(folder).rglob(wanted)).read_bytes()
        losses = [loss for _, loss in module.seen]
        values = {"loss": losses}
        if name == "tb":
            truth = {"source": "tensorboard", "verdict": "healthy", "values": values}
            keep("lightning_tb", ".tfevents", content, {**truth, "final_scale": None})
        else:
            verdict = "failing" if poison else "healthy"
            truth = {"source": "lightning", "verdict": verdict, "values": values}
            folder_of = FOLDER / f"real_lightning_{name}"
            folder_of.mkdir(exist_ok=True)
            (folder_of / "metrics.csv").write_bytes(content)
            text = json.dumps({**truth, "final_scale": None}, indent=1)
            (FOLDER / f"real_lightning_{name}.json").write_text(text + "\n")


# --- Hugging Face --------------------------------------------------------------------------------

_HF = """
import sys, json, torch
from torch import nn
from transformers import Trainer, TrainingArguments
kind, out = sys.argv[1], sys.argv[2]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 1), 0
    def forward(self, x, labels=None):
        self.calls += 1
        loss = (self.layer(x) - labels).square().mean()
        if kind == "nan" and self.calls > 100:
            loss = loss * float("nan")
        return {"loss": loss}
torch.manual_seed(0)
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(1600)]
arguments = TrainingArguments(
    output_dir=out, num_train_epochs=1, per_device_train_batch_size=4, logging_steps=20,
    learning_rate=1e-2, warmup_steps=50, use_cpu=True, save_steps=200,
    disable_tqdm=kind == "no_bar", report_to=[kind] if kind in ("tensorboard", "wandb") else [],
    logging_nan_inf_filter=kind != "plain_nan",
)
trainer = Trainer(model=Model(), args=arguments, train_dataset=data)
trainer.train()
json.dump(trainer.state.log_history, open(out + "/history.json", "w"))
"""


def _hf(kind: str, folder: str) -> tuple[bytes, list[dict]]:
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": folder,
                   "TENSORBOARD_LOGGING_DIR": folder + "/tb"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _HF, kind, folder], check=True, env=environment, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    history = json.loads((Path(folder) / "history.json").read_text())
    return done.stdout, [entry for entry in history if "loss" in entry]


_HF_NAMES = {"loss": "loss", "lr": "learning_rate", "grad_norm": "grad_norm"}


def _hf_truth(history: list[dict], source: str, verdict: str) -> dict:
    values = columns([{k: float(v) for k, v in row.items()} for row in history], _HF_NAMES)
    steps = {"step": [entry["step"] for entry in history]}
    return {"source": source, "verdict": verdict, "values": {**values, **steps},
            "final_scale": None}  # fmt: skip


@framework
def hugging_face(_: Path) -> None:
    for kind, verdict in (("bar", "healthy"), ("no_bar", "healthy"), ("nan", "failing")):
        with tempfile.TemporaryDirectory() as folder:
            printed, history = _hf(kind, folder)
            state = next(Path(folder).rglob("checkpoint-400/trainer_state.json"))
            state_text = state.read_bytes()
        truth = _hf_truth(history, "hf-trainer", verdict)
        if kind == "no_bar":
            del truth["values"]["step"]  # nothing in that text tells it
            truth["values"].pop("epoch", None)
        keep(f"hf_{kind}", ".txt", printed, truth)
        if kind != "no_bar":
            keep(f"hf_state_{kind}", ".state", state_text,
                 _hf_truth(history, "hf-trainer", verdict))  # fmt: skip
    for kind in ("tensorboard", "wandb"):
        with tempfile.TemporaryDirectory() as folder:
            _, history = _hf(kind, folder)
            pattern, suffix = ("events*", ".tfevents") if kind == "tensorboard" else (
                "*.wandb", ".wandb")  # fmt: skip
            data = next(Path(folder).rglob(pattern)).read_bytes()
        truth = _hf_truth(history, kind, "healthy")
        keep(f"hf_{kind}", suffix, data, truth)


@framework
def accelerate_tracker(_: Path) -> None:
    from accelerate import Accelerator

    training = Training()
    with tempfile.TemporaryDirectory() as folder:
        accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=folder)
        accelerator.init_trackers("run")
        rows = _rows(training, 120)
        for step, row in enumerate(rows):
            accelerator.log(row, step=step)
        accelerator.end_training()
        data = next(Path(folder).rglob("events*")).read_bytes()
    keep("accelerate_tensorboard", ".tfevents", data,
         training.truth("tensorboard", "healthy", values=columns(rows, LOGGED)))  # fmt: skip


# --- nanoGPT, MAE --------------------------------------------------------------------------------


@framework
def nanogpt(checkouts: Path) -> None:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(checkouts / "nanoGPT", folder, dirs_exist_ok=True)
        data = Path(folder) / "data" / "tiny"
        data.mkdir(parents=True)
        for part in ("train", "val"):
            (np.arange(20_000) % 50).astype(np.uint16).tofile(data / f"{part}.bin")
        options = (
            "device=cpu compile=False eval_iters=2 eval_interval=40 log_interval=1 block_size=16 "
        )
        options += "batch_size=4 n_layer=1 n_head=2 n_embd=32 max_iters=160 lr_decay_iters=160 "
        options += "dropout=0.0 dataset=tiny gradient_accumulation_steps=1 dtype=float32"
        done = subprocess.run(
            [sys.executable, "train.py", *(f"--{option}" for option in options.split())],
            cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    truth = {"source": "nanogpt", "verdict": "healthy", "final_scale": None, "steps": 161}
    keep("nanogpt", ".txt", done.stdout, truth)


@framework
def mae(checkouts: Path) -> None:
    stub = types.ModuleType("torch._six")
    stub.inf = math.inf
    sys.modules["torch._six"] = stub
    sys.path.insert(0, str(checkouts / "mae"))
    torch.cuda.synchronize = lambda *_: None
    import engine_pretrain
    import util.misc as misc

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.losses = nn.Linear(8, 8), []

        def forward(self, x, mask_ratio=0.0):
            loss = (self.layer(x) - x).square().mean()
            self.losses.append(loss.item())
            return loss, None, None

    torch.manual_seed(0)
    data = [(torch.randn(16, 8), 0) for _ in range(200)]
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    arguments = types.SimpleNamespace(
        accum_iter=1, mask_ratio=0.5, lr=1e-3, min_lr=0.0, warmup_epochs=1, epochs=3
    )
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        for epoch in range(3):
            engine_pretrain.train_one_epoch(
                model, data, optimizer, torch.device("cpu"), epoch,
                misc.NativeScalerWithGradNormCount(), args=arguments,
            )  # fmt: skip
    truth = {"source": "mae", "verdict": "healthy", "final_scale": None, "steps": 600}
    keep("mae", ".txt", text.getvalue().encode(), truth)


# --- timm's train.py -----------------------------------------------------------------------------

_TIMM = (
    "--model resnet10t --num-classes 4 --img-size 32 --batch-size 16 --epochs 3 --warmup-epochs 1 "
    "--workers 1 --device cpu --sched-on-updates --log-interval 2 --checkpoint-hist 1 --lr"
)


class _Meters(logging.Handler):
    """What timm's meters held whenever it printed them: its own variables, unrounded."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.rates: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        frame = sys._getframe()
        while record.getMessage().startswith("Train: ") and frame is not None:
            if frame.f_code.co_name == "train_one_epoch":
                self.losses.append(frame.f_locals["losses_m"].val)
                self.rates.append(frame.f_locals["lr"])
                return
            frame = frame.f_back


def _pictures(folder: Path) -> None:
    from PIL import Image

    shades = torch.Generator().manual_seed(0)
    for split, count in (("train", 64), ("validation", 16)):
        for kind in range(4):
            (folder / split / f"class{kind}").mkdir(parents=True)
            for number in range(count):
                picture = torch.rand(40, 40, 3, generator=shades) * 60 + 50 * kind
                image = Image.fromarray(picture.to(torch.uint8).numpy())
                image.save(folder / split / f"class{kind}" / f"{number}.png")


@framework
def timm(checkouts: Path) -> None:
    script = checkouts / "pytorch-image-models" / "train.py"
    for name, rate, verdict in (("timm", "0.05", "healthy"), ("timm_nan", "1e12", "failing")):
        text, meters = io.StringIO(), _Meters()
        with tempfile.TemporaryDirectory() as folder:
            _pictures(Path(folder) / "data")
            data = ["--data-dir", f"{folder}/data", "--output", f"{folder}/out"]
            sys.argv = ["train.py", *_TIMM.split(), rate, *data]
            logging.getLogger("train").addHandler(meters)
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                runpy.run_path(str(script), {"__name__": "train"})["main"]()
            printed = text.getvalue().replace(folder, ".")
        logging.getLogger("train").removeHandler(meters)
        values = {"loss": meters.losses, "lr": meters.rates}
        truth = {"source": "timm", "verdict": verdict, "final_scale": None, "values": values}
        keep(name, ".txt", printed.encode(), truth)


# --- DeepSpeed's own loss scaler, by era ---------------------------------------------------------

DS_ERAS = {
    "2023_03": ("ac2c9ffae", {}),
    "2023_04": ("47f9f13bd", {}),
    "hysteresis": ("0411a9f87", {"delayed_shift": 2, "consecutive_hysteresis": True}),
}
_DS_FORMAT = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"


def _deepspeed_scaler(checkouts: Path, commit: str, text: io.StringIO):
    source = subprocess.run(
        ["git", "-C", str(checkouts / "DeepSpeed"), "show",
         f"{commit}:deepspeed/runtime/fp16/loss_scaler.py"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter(_DS_FORMAT))
    logger = logging.getLogger("DeepSpeed")
    logger.handlers.clear()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    package = types.ModuleType("deepspeed")
    utils, comm = types.ModuleType("deepspeed.utils"), types.ModuleType("deepspeed.comm")
    utils.logger = logger
    comm.is_initialized, comm.get_rank = (lambda: True), (lambda: 0)
    package.utils, package.comm = utils, comm
    sys.modules |= {"deepspeed": package, "deepspeed.utils": utils, "deepspeed.comm": comm}
    torch.distributed.get_rank = lambda: 0
    module = types.ModuleType("loss_scaler")
    exec(compile(source, "loss_scaler.py", "exec"), module.__dict__)
    return module


@framework
def deepspeed_scaler(checkouts: Path) -> None:
    for era, (commit, options) in DS_ERAS.items():
        text = io.StringIO()
        module = _deepspeed_scaler(checkouts, commit, text)
        with contextlib.redirect_stdout(text):
            scaler = module.DynamicLossScaler(
                init_scale=2.0**16, scale_window=50, min_scale=1, **options
            )
            skips, scales = 0, []
            for step in range(400):
                overflow = scaler.cur_scale > 2.0**12 or step in (260, 261, 262)
                before = scaler.cur_scale
                scaler.update_scale(overflow)
                skips += overflow
                if overflow:
                    scales.append(before)
        truth = {
            "source": "deepspeed", "verdict": "*", "first_scale": 65536.0, "overflows": skips,
            "skipped": skips, "scales": scales,
        }  # fmt: skip
        keep(f"deepspeed_{era}", ".txt", text.getvalue().encode(), truth)


# --- NVIDIA's inspector, torchtitan's events -----------------------------------------------------


def _shares(operand: torch.Tensor, scale: float, largest: float, dtype: torch.dtype) -> tuple:
    """Of all values, in percent, as Transformer Engine's `stats_computation.py` counts them."""
    cast = (operand * scale).clamp(-largest, largest).to(dtype).float()
    flushed = operand.count_nonzero() - cast.count_nonzero()
    beyond = operand.abs() > largest / scale
    return 100 * flushed.item() / operand.numel(), 100 * beyond.sum().item() / operand.numel()


def _inspected(steps: int, growth: float, history: int) -> Iterator[tuple[int, str, str, float]]:
    """The statistics of a training with delayed scaling: step, layer, name and value.

    Transformer Engine needs a GPU: its layer is the stand-in of these tests, its counts are
    repeated above; only the lines are the inspector's own.
    """
    from delayed_scaling import DelayedScaling, Linear, fp8_autocast

    torch.manual_seed(0)
    recipe = DelayedScaling(amax_history_len=history)
    fc1, fc2 = Linear(16, 64, recipe), Linear(64, 16, recipe)
    model = nn.Sequential(fc1, nn.ReLU(), fc2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tensors = {"input": "activation", "weight": "weight", "grad": "gradient"}
    for step in range(steps):
        x = torch.randn(32, 16) * growth**step
        with fp8_autocast(model):
            ((model(x) - x) / growth**step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, layer in (("decoder.layers.0.mlp.fc1", fc1), ("decoder.layers.0.mlp.fc2", fc2)):
            for role, operand, scale in layer.passes[-1].operands:
                is_grad = role == "grad"
                largest = 57344.0 if is_grad else 448.0
                kind = torch.float8_e5m2 if is_grad else torch.float8_e4m3fn
                flushed, beyond = _shares(operand, scale, largest, kind)
                named = f"{tensors[role]}_"
                yield step, name, f"{named}cur_amax", operand.abs().max().item()
                yield step, name, f"{named}underflows%", flushed
                yield step, name, f"{named}overflows%", beyond
                yield step, name, f"{named}scale_inv_min", 1 / scale
                yield step, name, f"{named}scale_inv_max", 1 / scale


@framework
def nvidia_inspector(_: Path) -> None:
    import nvdlfw_inspect.logging as inspect

    sys.path.insert(0, str(Path(__file__).parents[1]))
    for name, growth, history, verdict, must in (
        ("healthy", 1.0, 16, "healthy", []), ("stale", 3.0, 1, "warning", ["AMP701", "AMP703"]),
    ):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            inspect.initialize_logger(folder)
            inspect.make_default_statistics_logger()
            logger, layers = inspect.get_logger(), {}
            for step, layer, stat, value in _inspected(24, growth, history):
                logger.log_scalar(f"{layer}_{stat}", value, step)
                tensor, _, kind = stat.partition("_")
                role = {"activation": "input", "weight": "weight", "gradient": "grad"}[tensor]
                column = {"underflows%": f"{role}_flushed_share",
                          "overflows%": f"{role}_saturated_share"}.get(kind)  # fmt: skip
                if column:
                    layers.setdefault(layer, {}).setdefault(column, []).append(
                        round(value, 4) / 100
                    )
            where = Path(folder) / "nvdlfw_inspect_statistics_logs"
            data = next(where.iterdir()).read_bytes()
            for handler in [*logger.stats_logger.handlers, *logger.logger.handlers]:
                handler.close()
            logger.stats_logger.handlers.clear()
            logger.logger.handlers.clear()
        truth = {"source": "nvidia-inspector", "verdict": verdict, "must": must, "steps": 24}
        keep(f"nvidia_inspector_{name}", ".txt", data, {**truth, "layers": layers})


@framework
def torchtitan_events(_: Path) -> None:
    from torchtitan.observability import structured_logger as sl

    logger = logging.getLogger("torchtitan.structured_logger")
    for name, poison in (("healthy", None), ("nan", 25)):
        training, rows = Training(scale=8.0), []
        with tempfile.TemporaryDirectory() as folder:
            sl.init_structured_logger(source="training", output_dir=folder, rank=0)
            sl.log_trace_instant("training_start")
            with contextlib.suppress(RuntimeError):
                for step in range(1, 41):
                    sl.set_step(step, relative_step=step)
                    with sl.log_trace_span("step"):
                        with sl.log_trace_span("fwd_bwd"):
                            row = training.step(step == poison)
                        with sl.log_trace_span("optim"):
                            if not math.isfinite(row["grad_norm"]):
                                raise RuntimeError(_TITAN_ENDS.format(step))
                        sl.log_trace_scalar({"train.loss": row["loss"], "local_valid_tokens": 256})
                    rows.append(row)
            data = next(Path(folder).rglob("*.jsonl")).read_bytes()
            for handler in list(logger.handlers):
                handler.close()
                logger.removeHandler(handler)
        sl.structured_logging._is_initialized = False
        must = [] if poison is None else ["AMP211"]
        verdict = "healthy" if poison is None else "failing"
        losses = {"loss": [row["loss"] for row in rows]}
        truth = {"source": "torchtitan", "verdict": verdict, "must": must, "values": losses}
        keep(f"torchtitan_{name}", ".jsonl", data, {**truth, "steps": 40 if poison is None else 25})


# The message of torchtitan's own check (trainer.py, `train_step`).
_TITAN_ENDS = (
    "Loss or gradient norm is not finite on at least one rank at step {}. Stopping training before "
    "the optimizer update."
)


def main() -> None:
    checkouts, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:] or list(MADE)
    FOLDER.mkdir(exist_ok=True)
    for name in wanted:
        MADE[name](checkouts)
        print(name)


if __name__ == "__main__":
    main()
