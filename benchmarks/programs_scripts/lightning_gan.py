"""A GAN in Lightning: two optimizers, stepped by hand."""

import sys

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Gan(lightning.LightningModule):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.rate = rate
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
        self.discriminator = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(), nn.Linear(32, 1))

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        halves = (self.generator, self.discriminator)
        return [torch.optim.Adam(half.parameters(), self.rate, (0.5, 0.999)) for half in halves]

    def training_step(self, batch: list[torch.Tensor], number: int) -> None:
        generators, discriminators = self.optimizers()
        noise = torch.randn(len(batch[0]), 8)
        fakes = self.generator(noise)
        judged = self.discriminator(fakes)
        loss = functional.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        generators.zero_grad()
        self.manual_backward(loss)
        generators.step()
        real, fake = self.discriminator(batch[0]), self.discriminator(fakes.detach())
        loss = functional.binary_cross_entropy_with_logits(real, torch.ones_like(real))
        loss += functional.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
        discriminators.zero_grad()
        self.manual_backward(loss)
        discriminators.step()
        if number % 20 == 0:
            print(f"{number}: {loss.item():.4f}")


if __name__ == "__main__":
    lightning.seed_everything(0)
    samples = TensorDataset(torch.randn(1600, 16) * 0.5 + 1)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", precision="bf16-mixed", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Gan(float(sys.argv[-1])), DataLoader(samples, batch_size=16, shuffle=True))
