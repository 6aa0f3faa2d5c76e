"""Lightning writes the loop; ampwatch is one callback. It finds the trainer's own scaler.

On a GPU `precision="16-mixed"` makes the scaler; on a CPU Lightning falls back to bfloat16, so this
example hands it a half-precision plugin there. Needs `pip install lightning`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ampwatch.integrations.lightning import AmpwatchCallback  # <-- added


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 2))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        print(f"step {index}  loss {loss.item():.6g}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    torch.manual_seed(options.seed)
    inputs = torch.randn(64 * options.steps, 16)
    batches = DataLoader(TensorDataset(inputs, (inputs.norm(dim=1) > 4).long()), batch_size=64)
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[AmpwatchCallback(log_dir=options.log_dir)],  # <-- added
        **half_precision(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), batches)


def half_precision() -> dict[str, Any]:
    """What to give the trainer for float16, here too where there is no GPU."""
    if torch.cuda.is_available():
        return {"precision": "16-mixed"}
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    return {"accelerator": "cpu", "plugins": [plugin]}


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
