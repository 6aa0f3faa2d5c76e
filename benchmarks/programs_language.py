"""Recipes of programs that train language models."""

from __future__ import annotations

from programs_data import corpus, instructions, no_data, text_in_characters
from programs_recipe import RATE_TOO_HIGH, Broken, Edit, Program

EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")

NANO_GPT = Program(
    name="nanoGPT",
    repository="karpathy/nanoGPT",
    commit="3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    trains="fp16, GradScaler, accumulation, clipping, warm-up by hand",
    folder=".",
    command=(
        "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--dtype=float16",
        "--compile=False", "--block_size=32", "--batch_size=8", "--n_layer=2", "--n_head=4",
        "--n_embd=32", "--max_iters=100", "--eval_interval=100", "--eval_iters=2",
        "--gradient_accumulation_steps=2", "--dropout=0.1",
    ),
    make_data=text_in_characters,
    edits=(
        Edit("train.py", "ctx = nullcontext() if device_type == 'cpu' else ", "ctx = "),
        Edit("train.py", "cuda.amp.GradScaler(", "amp.GradScaler('cpu', "),
    ),
    broken=(
        Broken("a rate of 3", RATE_TOO_HIGH, arguments=("--learning_rate=3.0",)),
        Broken(
            "`unscale_` left out before clipping",
            ("AMP401",),
            (Edit("train.py", "scaler.unscale_(optimizer)", "pass"),),
        ),
    ),
    saved=("out-shakespeare-char/*.pt",),
    times=r"time [\d.]+ms, mfu -?[\d.]+%",
)  # fmt: skip

MIN_GPT_DDP = Program(
    "minGPT-ddp",
    *EXAMPLES,
    trains="fp16, GradScaler, DDP, two ranks by torchrun",
    folder="distributed/minGPT-ddp/mingpt",
    command=(
        "torchrun", "--standalone", "--nproc-per-node=2", "main.py",
        "data_config.path=data/input.txt", "data_config.block_size=32",
        "data_config.truncate=0.004", "gpt_config.n_layer=2", "gpt_config.n_head=2",
        "gpt_config.n_embd=32", "trainer_config.max_epochs=1", "trainer_config.batch_size=16",
        "trainer_config.data_loader_workers=0",
    ),
    make_data=no_data,
    edits=(
        Edit("main.py", "if not verify_min_gpu_count(min_gpus=_min_gpu_count)", "if False"),
        Edit("main.py", 'f"{acc}:{rank}"', '"cpu"'),
        Edit("main.py", "torch.accelerator.set_device_index(rank)", "torch.manual_seed(0)"),
        Edit("trainer.py", 'f"{self.acc}:{self.local_rank}"', '"cpu"'),
        Edit("trainer.py", ".to(self.local_rank)", ".to(self.device)"),
        Edit("trainer.py", ", device_ids=[self.local_rank]", ""),
    ),
    broken=(
        Broken(
            "a rate of 3", RATE_TOO_HIGH, arguments=("optimizer_config.learning_rate=3",)
        ),  # its clipping before `unscale_` is in both; AdamW takes gradients of any size
        Broken(
            "`update()` left out",
            ("AMP402", "AMP401"),
            (Edit("trainer.py", "self.scaler.update()", "pass"),),
        ),
    ),
    right=("AMP401",),  # it clips between `backward()` and `step()`, and never unscales
    launcher=True,
)  # fmt: skip

STANFORD_ALPACA = Program(
    name="stanford_alpaca",
    repository="tatsu-lab/stanford_alpaca",
    commit="761dc5bfbdeeffa89b8bff5d038781a4055f796a",
    trains="Transformers' Trainer, bf16, accumulation",
    folder=".",
    command=(
        "train.py", "--model_name_or_path=tiny", "--data_path=data.json", "--output_dir=out",
        "--use_cpu=True", "--bf16=True", "--num_train_epochs=2", "--logging_steps=20",
        "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2",
        "--learning_rate=1e-3", "--lr_scheduler_type=cosine", "--warmup_steps=3",
        "--save_strategy=no", "--report_to=none", "--seed=1",
    ),
    make_data=instructions,
    edits=(Edit("train.py", "tokenizer=tokenizer, args=", "processing_class=tokenizer, args="),),
    broken=(
        Broken("a rate of 10", RATE_TOO_HIGH, arguments=("--learning_rate=10",)),
        Broken(
            "every label masked, so that loss and gradients are 0",
            ("AMP410",),
            (Edit("train.py", "label[:source_len]", "label[:]"),),
        ),
    ),
    saved=("out/*.safetensors",),
    times=r"'(train_runtime|train_(samples|steps)_per_second)': '?[\d.]+'?",
)  # fmt: skip

WORD_LANGUAGE_MODEL = Program(
    "word_language_model",
    *EXAMPLES,
    trains="fp32, AdamW by its flag, saves the whole model and loads it `weights_only`",
    folder="word_language_model",
    command=(
        "main.py", "--data=data/tiny", "--use-optimizer", "--lr=1e-3", "--emsize=32", "--nhid=32",
        "--epochs=2", "--batch_size=20", "--bptt=16", "--log-interval=20",
    ),
    make_data=corpus,
    broken=(
        Broken("a rate of 3", RATE_TOO_HIGH, arguments=("--lr=3",)),
        Broken(
            "`zero_grad()` left out",
            ("AMP412",),
            (Edit("main.py", "optimizer.zero_grad()", "pass"),),
        ),
    ),
    saved=("word_language_model/model.pt",),
    times=r"ms/batch +[\d.]+|time: +[\d.]+s",
)  # fmt: skip

MIN_GPT = Program(
    name="minGPT",
    repository="karpathy/minGPT",
    commit="37baab71b9abea1b76ab957409a1cc2fbfba8a26",
    trains="fp32, clipping, a Trainer class with callbacks, evaluation within the loop",
    folder=".",
    command=(
        "-m", "projects.adder.adder", "--data.ndigit=1", "--trainer.max_iters=160",
        "--trainer.num_workers=0", "--trainer.device=cpu",
    ),
    make_data=no_data,
    broken=(
        Broken("a rate of 1", RATE_TOO_HIGH, arguments=("--trainer.learning_rate=1",)),
        Broken(
            "from the 80th call on, the second block's attention masks all it could see",
            ("AMP203",),
            (
                Edit(
                    "mingpt/model.py",
                    "        att = F.softmax(att, dim=-1)",
                    "        self.calls = getattr(self, 'calls', 0) + 1\n"
                    "        if self.calls > 80 and self.last: att = att - float('inf')\n"
                    "        att = F.softmax(att, dim=-1)",
                ),
                Edit(
                    "mingpt/model.py",
                    "        n_params = sum(",
                    "        for i, block in enumerate(self.transformer.h): "
                    "block.attn.last = i == 1\n        n_params = sum(",
                ),
            ),
            layer="h.1.attn",
        ),
    ),
    saved=("out/adder/model.pt",),
    times=r"iter_dt [\d.]+ms",
)  # fmt: skip

PROGRAMS = (NANO_GPT, MIN_GPT_DDP, STANFORD_ALPACA, WORD_LANGUAGE_MODEL, MIN_GPT)
