"""Denoising diffusion as its README trains it: its Trainer, and an average of the weights."""

import sys

import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet


class Diffusion(GaussianDiffusion):
    def forward(self, *images: torch.Tensor) -> torch.Tensor:
        return super().forward(*images)


if __name__ == "__main__":
    torch.manual_seed(0)
    rate = float(sys.argv[-1])
    diffusion = Diffusion(Unet(dim=16, dim_mults=(1, 2)), image_size=16, timesteps=20)
    trainer = Trainer(
        diffusion, "images/train", train_batch_size=16, train_lr=rate, train_num_steps=60,
        calculate_fid=False, amp=True, mixed_precision_type="bf16", results_folder="out",
    )  # fmt: skip
    trainer.train()
    trainer.save(1)
    print(f"{trainer.step} steps")
