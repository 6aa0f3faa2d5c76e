"""Two models, two optimizers, one scaler: a small GAN that learns a ring of points.

Each iteration steps both optimizers and updates the scaler once. The run has a row for each
optimizer, with its own loss, gradient norm and skips; the scale is shared, so an overflow in either
network lowers it for both.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import ampwatch

BATCH_SIZE = 64
NOISE_SIZE = 8


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)

    generator = make_network(NOISE_SIZE, 2).to(device)
    discriminator = make_network(2, 1).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), 1e-3, betas=(0.5, 0.99))
    scaler = torch.amp.GradScaler(device)

    models = {"generator": generator, "discriminator": discriminator}
    ampwatch.attach(scaler, models, log_dir=options.log_dir)  # <-- the added line

    for step in range(options.steps):
        real = ring_of_points(device)
        noise = torch.randn(BATCH_SIZE, NOISE_SIZE, device=device)

        with torch.autocast(device, torch.float16):
            fake = generator(noise)
            judged_real, judged_fake = discriminator(real), discriminator(fake.detach())
            discriminator_loss = says(judged_real, real=True) + says(judged_fake, real=False)
        discriminator_optimizer.zero_grad()
        scaler.scale(discriminator_loss).backward()
        scaler.step(discriminator_optimizer)

        with torch.autocast(device, torch.float16):
            generator_loss = says(discriminator(fake), real=True)
        generator_optimizer.zero_grad()
        scaler.scale(generator_loss).backward()
        scaler.step(generator_optimizer)

        scaler.update()  # once, after both
        losses = f"{discriminator_loss.item():.6g}  {generator_loss.item():.6g}"
        print(f"step {step}  losses {losses}  scale {scaler.get_scale():g}")


def make_network(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers are enough for points in the plane."""
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2),
        nn.Linear(64, outputs),
    )  # fmt: skip


def says(logits: Tensor, *, real: bool) -> Tensor:
    """The loss of a judgement, from logits: a sigmoid before it is unsafe in half precision."""
    wanted = torch.full_like(logits, float(real))
    return nn.functional.binary_cross_entropy_with_logits(logits, wanted)


def ring_of_points(device: str) -> Tensor:
    """The data: points on the unit circle."""
    angles = torch.rand(BATCH_SIZE, device=device) * 2 * math.pi
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--log-dir", default=None, help="default: ./ampwatch-runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
