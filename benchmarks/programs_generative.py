"""Recipes of programs that train generators."""

from __future__ import annotations

from programs_data import images, no_data
from programs_recipe import RATE_TOO_HIGH, Broken, Edit, Program

DCGAN = Program(
    name="DCGAN",
    repository="pytorch/examples",
    commit="77f55b912142e11fcfdf5b530231fb9c52f181e8",
    trains="fp32, two models, two optimizers, no scaler",
    folder="dcgan",
    command=(
        "main.py", "--dataset=fake", "--batchSize=8", "--ngf=8", "--ndf=8", "--workers=0",
        "--niter=1", "--manualSeed=1",
    ),
    make_data=no_data,
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("--lr=10",)),
        Broken(
            "from the 40th step on, the generator's output is divided by 0",
            ("AMP203",),
            (
                Edit(
                    "main.py",
                    "fake = netG(noise)",
                    "netG.calls = getattr(netG, 'calls', 0) + 1; fake = netG(noise)",
                ),
                Edit(
                    "main.py",
                    "        return output\n\n\nnetG",
                    "        return output / (getattr(self, 'calls', 0) <= 40)\n\n\nnetG",
                ),
            ),
        ),
    ),
    saved=("dcgan/net*.pth",),
)  # fmt: skip

DENOISING_DIFFUSION = Program(
    name="denoising-diffusion-pytorch",
    repository="denoising-diffusion-pytorch",
    commit="2.3.4",
    trains="its Trainer: accelerate, bf16, clipping, an average of the weights",
    folder=".",
    command=("denoising_diffusion.py", "1e-3"),
    make_data=images,
    script="denoising_diffusion.py",
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("10",)),
        Broken(
            "the root of a loss less 10",
            ("AMP204", "AMP203"),  # its loss is made within the model
            (
                Edit(
                    "denoising_diffusion.py",
                    "return super().forward(*images)",
                    "return super().forward(*images).sub(10).sqrt()",
                ),
            ),
        ),
    ),
)

LIGHTNING_GAN = Program(
    name="Lightning GAN",
    repository="lightning",
    commit="2.6.6",
    trains="manual optimization, bf16-mixed, two optimizers",
    folder=".",
    command=("lightning_gan.py", "1e-3"),
    make_data=no_data,
    script="lightning_gan.py",
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("10",)),
        Broken(
            "from the 50th step on, the generator's last layer leaves float32",
            ("AMP203",),
            (
                Edit(
                    "lightning_gan.py",
                    "class Gan(",
                    "class Loud(nn.Linear):\n"
                    "    def forward(self, values):\n"
                    "        self.calls = getattr(self, 'calls', 0) + 1\n"
                    "        loud = 1e30 if self.calls > 50 else 1.0\n"
                    "        return super().forward(values) * loud * loud\n\n\nclass Gan(",
                ),
                Edit("lightning_gan.py", "nn.ReLU(), nn.Linear(32, 16)", "nn.ReLU(), Loud(32, 16)"),
            ),
            layer="generator",
        ),
    ),
)

PROGRAMS = (DCGAN, DENOISING_DIFFUSION, LIGHTNING_GAN)
