"""Which public programs are run, at which commit, on what data, and what of them is edited.

An edit is a text that stands there, and what takes its place. All of them only bring a program that
asks for a GPU to the CPU, or give it a seed; none is for ampwatch.
"""

from __future__ import annotations

import csv
import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WORDS = ("king", "queen", "sword", "night", "day", "rose", "thou", "art", "shall", "speak", "love")


@dataclass(frozen=True, slots=True)
class Edit:
    """A text in a file of the program, and what takes its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the table."""

    name: str
    repository: str
    commit: str
    folder: str  # where it runs, within the repository
    command: tuple[str, ...]  # what follows `ampwatch run`, or `python`
    make_data: Callable[[Path], None]  # called in the folder
    edits: tuple[Edit, ...] = ()
    launcher: bool = False  # the command is one, not a script


def text_in_characters(folder: Path) -> None:
    """nanoGPT's binary files, of random words."""
    import numpy as np

    text = "".join(f"{random.choice(WORDS)} " for _ in range(40_000))
    letters = sorted(set(text))
    data = np.array([letters.index(letter) for letter in text], dtype=np.uint16)
    target = folder / "data" / "shakespeare_char"
    data[:-10_000].tofile(target / "train.bin")
    data[-10_000:].tofile(target / "val.bin")
    told = {
        "vocab_size": len(letters),
        "stoi": {letter: number for number, letter in enumerate(letters)},
        "itos": dict(enumerate(letters)),
    }
    (target / "meta.pkl").write_bytes(pickle.dumps(told))


def no_data(_folder: Path) -> None:
    """The program brings its own."""


def images(folder: Path) -> None:
    """Four classes of noise with a tint, as folders and as a table of captions."""
    with (folder / "captions.csv").open("w") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerow(["filepath", "title"])
        for split, count in (("train", 64), ("validation", 16)):
            for kind in range(4):
                for number in range(count):
                    path = folder / "images" / split / f"class{kind}" / f"{number}.png"
                    picture(path, kind)
                    if split == "train":
                        table.writerow([path.resolve(), f"a picture of kind {kind}, {number}"])


def masks(folder: Path) -> None:
    """Pictures with a bright square, and where it is."""
    import numpy as np
    from PIL import Image

    for number in range(40):
        mask = np.zeros((32, 32), np.uint8)
        top, left = random.randrange(20), random.randrange(20)
        mask[top : top + 12, left : left + 12] = 255
        picture(folder / "data" / "imgs" / f"{number}.png", 0, mask)
        path = folder / "data" / "masks" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)


def picture(path: Path, kind: int, bright: object = 0) -> None:
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(random.getrandbits(32)).integers(0, 100, (32, 32, 3))
    pixels[:, :, kind % 3] += 30 * (kind + 1) + np.asarray(bright) // 8
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def instructions(folder: Path) -> None:
    """Instructions of random words, a Llama of two layers and a tokenizer for both."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    rows = [
        {name: " ".join(random.choices(WORDS, k=5)) for name in ("instruction", "input", "output")}
        for _ in range(256)
    ]
    (folder / "data.json").write_text(json.dumps(rows))
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        [json.dumps(row) for row in rows],
        trainers.BpeTrainer(vocab_size=400, special_tokens=special),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder / "tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "tiny")


TINY_CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


def images_and_a_tiny_clip(folder: Path) -> None:
    images(folder)
    (folder / "open_clip" / "model_configs" / "tiny.json").write_text(json.dumps(TINY_CLIP))


PROGRAMS = (
    Program(
        "nanoGPT",
        "karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        ".",
        (
            "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--dtype=float16",
            "--compile=False", "--block_size=32", "--batch_size=8", "--n_layer=3", "--n_head=4",
            "--n_embd=64", "--max_iters=150", "--eval_interval=150", "--eval_iters=2",
            "--gradient_accumulation_steps=2", "--dropout=0.1",
        ),
        text_in_characters,
        (
            Edit("train.py", "ctx = nullcontext() if device_type == 'cpu' else ", "ctx = "),
            Edit("train.py", "cuda.amp.GradScaler(", "amp.GradScaler('cpu', "),
        ),
    ),
    Program(
        "minGPT-ddp",
        "pytorch/examples",
        "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        "distributed/minGPT-ddp/mingpt",
        (
            "torchrun", "--standalone", "--nproc-per-node=2", "main.py",
            "data_config.path=data/input.txt", "data_config.block_size=32",
            "data_config.truncate=0.004", "gpt_config.n_layer=2", "gpt_config.n_head=2",
            "gpt_config.n_embd=32", "trainer_config.max_epochs=1", "trainer_config.batch_size=16",
            "trainer_config.data_loader_workers=0",
        ),
        no_data,
        (
            Edit("main.py", "if not verify_min_gpu_count(min_gpus=_min_gpu_count)", "if False"),
            Edit("main.py", 'f"{acc}:{rank}"', '"cpu"'),
            Edit("main.py", "torch.accelerator.set_device_index(rank)", "torch.manual_seed(0)"),
            Edit("trainer.py", 'f"{self.acc}:{self.local_rank}"', '"cpu"'),
            Edit("trainer.py", ".to(self.local_rank)", ".to(self.device)"),
            Edit("trainer.py", ", device_ids=[self.local_rank]", ""),
        ),
        launcher=True,
    ),
    Program(
        "DCGAN",
        "pytorch/examples",
        "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        "dcgan",
        (
            "main.py", "--dataset=fake", "--batchSize=8", "--ngf=8", "--ndf=8", "--workers=0",
            "--niter=1", "--manualSeed=1",
        ),
        no_data,
    ),
    Program(
        "open_clip",
        "mlfoundations/open_clip",
        "89fb801f1e6087880e951fc8354b8a2077b79c6d",
        "src",
        (
            "-m", "open_clip_train.main", "--model=tiny", "--precision=amp", "--device=cpu",
            "--dataset-type=csv", "--train-data=captions.csv", "--csv-img-key=filepath",
            "--csv-caption-key=title", "--batch-size=16", "--epochs=8", "--workers=0",
            "--warmup=10", "--lr=1e-3", "--seed=1",
        ),
        images_and_a_tiny_clip,
    ),
    Program(
        "timm",
        "huggingface/pytorch-image-models",
        "aa4b5850c1543fa488abf260f18390eda46cf85d",
        ".",
        (
            "train.py", "images", "--model=resnet10t", "--num-classes=4", "--img-size=32",
            "--batch-size=8", "--epochs=3", "--workers=1", "--device=cpu", "--amp",
            "--amp-dtype=bfloat16", "--opt=sgd", "--lr=0.05", "--warmup-epochs=1", "--seed=1",
        ),
        images,
    ),
    Program(
        "Pytorch-UNet",
        "milesial/Pytorch-UNet",
        "21d7850f2af30a9695bbeea75f3136aa538cfc4a",
        ".",
        ("train.py", "--amp", "-e=2", "-b=4", "-s=1.0", "-l=1e-4"),
        masks,
        (
            Edit("train.py", "cuda.amp.GradScaler(", "amp.GradScaler('cpu', "),
            Edit("train.py", "args = get_args()", "args = get_args(); torch.manual_seed(0)"),
        ),
    ),
    Program(
        "stanford_alpaca",
        "tatsu-lab/stanford_alpaca",
        "761dc5bfbdeeffa89b8bff5d038781a4055f796a",
        ".",
        (
            "train.py", "--model_name_or_path=tiny", "--data_path=data.json", "--output_dir=out",
            "--use_cpu=True", "--bf16=True", "--num_train_epochs=2", "--logging_steps=20",
            "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2",
            "--learning_rate=1e-3", "--lr_scheduler_type=cosine", "--warmup_steps=3",
            "--save_strategy=no", "--report_to=none", "--seed=1",
        ),
        instructions,
        (Edit("train.py", "tokenizer=tokenizer, args=", "processing_class=tokenizer, args="),),
    ),
)  # fmt: skip
