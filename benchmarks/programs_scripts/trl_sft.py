"""TRL's supervised fine-tuning of a Llama of two layers."""

import json
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

if __name__ == "__main__":
    rows = json.loads(Path("data.json").read_text())
    model = AutoModelForCausalLM.from_pretrained("tiny", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained("tiny")
    tokenizer.pad_token = tokenizer.eos_token
    settings = SFTConfig(
        output_dir="out", use_cpu=True, bf16=True, max_steps=60, per_device_train_batch_size=4,
        learning_rate=float(sys.argv[-1]), logging_steps=10, save_strategy="no", report_to="none",
        seed=1, max_length=64, disable_tqdm=True,
    )  # fmt: skip
    texts = Dataset.from_list([{"text": f"{row['instruction']} {row['output']}"} for row in rows])
    SFTTrainer(model, settings, train_dataset=texts, processing_class=tokenizer).train()
