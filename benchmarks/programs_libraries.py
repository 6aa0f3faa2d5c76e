"""Recipes of libraries that own the loop: a script of ours hands them a model and data."""

from __future__ import annotations

from programs_data import instructions, no_data
from programs_recipe import RATE_TOO_HIGH, Broken, Edit, Program

SKORCH = Program(
    name="skorch",
    repository="skorch",
    commit="1.4.0",
    trains="fp32, SGD, three folds in one process: a model and an optimizer each",
    folder=".",
    command=("skorch_folds.py", "0.05"),
    make_data=no_data,
    script="skorch_folds.py",
    broken=(
        Broken("a rate of 100", RATE_TOO_HIGH, arguments=("100",)),
        Broken(
            "one sample is nan",
            ("AMP209",),
            (
                Edit(
                    "skorch_folds.py",
                    "    net = NeuralNetClassifier(",
                    "    samples[240] = np.nan\n    net = NeuralNetClassifier(",
                ),
            ),
        ),
    ),
    times=r"[\d.]+$",
)

FASTAI = Program(
    name="fastai",
    repository="fastai",
    commit="2.8.12",
    trains="fp32, one cycle of rate and momentum, its own wrapper of torch's AdamW",
    folder=".",
    command=("fastai_one_cycle.py", "1e-2"),
    make_data=no_data,
    script="fastai_one_cycle.py",
    broken=(
        Broken("a rate of 1000", RATE_TOO_HIGH, arguments=("1000",)),
        Broken(
            "the loss is multiplied by 0",
            ("AMP410",),
            (
                Edit(
                    "fastai_one_cycle.py",
                    "nn.CrossEntropyLoss(), optimizer",
                    "lambda said, meant: 0 * nn.functional.cross_entropy(said, meant), optimizer",
                ),
            ),
        ),
    ),
)

TRL_SFT = Program(
    name="TRL SFT",
    repository="trl",
    commit="1.16.0",
    trains="SFTTrainer: Transformers' loop, bf16, clipping",
    folder=".",
    command=("trl_sft.py", "1e-3"),
    make_data=instructions,
    script="trl_sft.py",
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("10",)),
        Broken(
            "weights in fp16, with no scaler and AdamW's eps of 1e-8",
            ("AMP406", "AMP408", "AMP414"),
            (
                Edit("trl_sft.py", "dtype=torch.float32", "dtype=torch.float16"),
                Edit("trl_sft.py", "bf16=True", "bf16=False, fp16=False"),
            ),
        ),
    ),
    times=r"'(train_runtime|train_(samples|steps)_per_second|train_tokens_per_second)': '?[\d.]+'?",
)

PROGRAMS = (SKORCH, FASTAI, TRL_SFT)
