"""TRL's own GRPO on a model of a few thousand weights: what it logs is in the watched run."""

from __future__ import annotations

import pytest
import torch

import ampwatch

trl = pytest.importorskip("trl", reason="TRL is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

from ampwatch.integrations.transformers import AmpwatchCallback  # noqa: E402

pytestmark = [
    pytest.mark.slow_frameworks,
    pytest.mark.filterwarnings("ignore"),  # the framework's own, many and changing
]


class Logged(transformers.TrainerCallback):
    """What the trainer logs, by its step."""

    def __init__(self):
        self.by_step = {}

    def on_log(self, args, state, control, logs, **_):
        self.by_step.setdefault(state.global_step, {}).update(logs)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", *"abcdefghij"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def trained(folder, *callbacks):
    import datasets

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=12, n_positions=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    # The reference policy is loaded from where the model came from.
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    words = tokenizer()
    model = transformers.GPT2LMHeadModel.from_pretrained(folder / "model")
    one = trl.GRPOTrainer(
        model=model, processing_class=words,
        reward_funcs=lambda completions, **_: [float(text.count("a")) for text in completions],
        args=trl.GRPOConfig(
            output_dir=str(folder), max_steps=4, per_device_train_batch_size=4, num_generations=4,
            max_completion_length=6, logging_steps=1, report_to=[], use_cpu=True, bf16=True,
            save_strategy="no", disable_tqdm=True, learning_rate=1e-3, beta=0.1,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "a b c"}, {"prompt": "d e f"}] * 4),
        callbacks=list(callbacks),
    )  # fmt: skip
    one.train()
    return [p.detach().clone() for p in one.model.parameters()]


def test_grpo_is_watched_with_the_figures_that_it_logs_and_ends_with_the_same_weights(tmp_path):
    logged = Logged()
    watched = trained(
        tmp_path, logged, AmpwatchCallback(log_dir=tmp_path, run="grpo", endpoint="off")
    )
    assert all(map(torch.equal, watched, trained(tmp_path)))
    run = ampwatch.open_run(tmp_path / "grpo")
    rows = run.steps.to_pylist()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [row["grad_norm"] for row in rows] == pytest.approx(
        [logged.by_step[step]["grad_norm"] for step in (1, 2, 3, 4)], rel=1e-4
    )
    names = {"reward", "kl", "entropy", "frac_reward_zero_std", "completions/mean_length"}
    for step in (1, 2, 3):  # the trainer has taken so many when it logs; the row has that number
        assert names <= logged.by_step[step].keys()
        for name in names:
            assert rows[step][name] == pytest.approx(logged.by_step[step][name], rel=1e-6)
