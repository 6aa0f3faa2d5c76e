"""The Transformers Trainer writes the loop; ampwatch is one callback, with the trainer's scaler.

fp16 where there is a GPU, else bfloat16: Accelerate makes no scaler on a CPU. The small language
model learns to count. Needs `pip install transformers accelerate`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from ampwatch.integrations.transformers import AmpwatchCallback  # <-- added


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    set_seed(options.seed)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
    rows = [(torch.arange(16) + start) % 64 for start in range(64)]
    on_gpu = torch.cuda.is_available()
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=str(Path(options.log_dir or "ampwatch-runs") / "checkpoints"),
            max_steps=options.steps,
            learning_rate=1e-3,
            fp16=on_gpu,
            bf16=not on_gpu,
            use_cpu=not on_gpu,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[AmpwatchCallback(log_dir=options.log_dir)],  # <-- added
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    for logged in trainer.state.log_history:
        if "loss" in logged:
            print(f"step {logged['step'] - 1}  loss {logged['loss']:.6g}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
