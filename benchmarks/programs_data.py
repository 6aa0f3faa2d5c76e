"""The data that the recipes make: a little, of random words and noise, never downloaded."""

from __future__ import annotations

import csv
import json
import pickle
import random
from pathlib import Path

WORDS = ("king", "queen", "sword", "night", "day", "rose", "thou", "art", "shall", "speak", "love")


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


def corpus(folder: Path) -> None:
    """Lines of words, nine of ten told by the one before, as word_language_model reads them."""
    target = folder / "data" / "tiny"
    target.mkdir(parents=True)
    for split, count in (("train", 2_400), ("valid", 100), ("test", 100)):
        lines, word = [], 0
        for _ in range(count):
            words = []
            for _ in range(10):
                known = random.random() < 0.9
                word = (3 * word + 1) % len(WORDS) if known else random.randrange(len(WORDS))
                words.append(WORDS[word])
            lines.append(" ".join(words))
        (target / f"{split}.txt").write_text("\n".join(lines) + "\n")


def more_images(folder: Path) -> None:
    """Four classes of noise with a tint, enough for sixty batches of eight."""
    for split, count in (("train", 120), ("val", 8)):
        for kind in range(4):
            for number in range(count):
                picture(folder / "images" / split / f"class{kind}" / f"{number}.png", kind)


def flying_chairs(folder: Path) -> None:
    """Pairs of pictures, the second moved by two pixels, and the flow that says so."""
    import numpy as np
    from PIL import Image

    target = folder / "datasets" / "FlyingChairs_release" / "data"
    target.mkdir(parents=True)
    noise = np.random.default_rng(0)
    flow = np.zeros((160, 192, 2), np.float32)
    flow[..., 0] = 2
    for number in range(1, 17):
        pixels = noise.integers(0, 255, (160, 194, 3)).astype(np.uint8)
        Image.fromarray(pixels[:, 2:]).save(target / f"{number:05}_img1.ppm")
        Image.fromarray(pixels[:, :-2]).save(target / f"{number:05}_img2.ppm")
        with (target / f"{number:05}_flow.flo").open("wb") as file:
            np.array([202021.25], np.float32).tofile(file)
            np.array([192, 160], np.int32).tofile(file)
            flow.tofile(file)
    (folder / "chairs_split.txt").write_text("1\n" * 16)


def boxes(folder: Path) -> None:
    """Pictures with a bright square, its box, and a YOLO of a few channels."""
    import numpy as np

    for split, count in (("train", 160), ("val", 8)):
        for number in range(count):
            mask = np.zeros((32, 32), np.uint8)
            top, left = random.randrange(16), random.randrange(16)
            mask[top : top + 14, left : left + 14] = 255
            picture(folder / "tiny" / "images" / split / f"{number}.png", 0, mask)
            label = folder / "tiny" / "labels" / split / f"{number}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text(f"0 {(left + 7) / 32} {(top + 7) / 32} {14 / 32} {14 / 32}\n")
    (folder / "tiny.yaml").write_text(
        "path: .\ntrain: tiny/images/train\nval: tiny/images/val\nnames: {0: square}\n"
    )
