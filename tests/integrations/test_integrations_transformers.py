"""Real trainings by the Transformers Trainer: bf16 and fp32, and half precision on the CPU.

Accelerate refuses fp16 on a CPU, so the half-precision test gives it the scaler and the autocast
that it would make on a GPU; everything else is the Trainer's own.
"""

import json

import pytest
import torch

import ampwatch

transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
pytest.importorskip("accelerate", reason="Accelerate is not installed")

from ampwatch.integrations.transformers import AmpwatchCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # the framework's own, many and changing


def language_model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def examples(count=24):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 32, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


class Keeping(transformers.Trainer):
    """Keeps the loss of each micro-batch as the trainer reports it."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.kept = [*getattr(self, "kept", []), float(loss)]
        return loss


def trainer(folder, callbacks, model=None, **arguments):
    defaults = {
        "max_steps": 6,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "max_grad_norm": 0.0,
    }
    settings = transformers.TrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    return Keeping(
        model=model or language_model(),
        args=settings,
        train_dataset=examples(),
        callbacks=callbacks,
    )


def run_of(folder):
    return ampwatch.open_run(folder / "runs" / "hf")


def callback(folder):
    return AmpwatchCallback(log_dir=folder / "runs", run="hf")


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("bf16", [False, True])
def test_without_a_scaler_the_loss_is_the_trainers_own(tmp_path, bf16, accumulate):
    one = trainer(tmp_path, [callback(tmp_path)], bf16=bf16, gradient_accumulation_steps=accumulate)
    one.train()
    run = run_of(tmp_path)
    parts = [one.kept[i : i + accumulate] for i in range(0, len(one.kept), accumulate)]
    assert run.steps["loss"].to_pylist() == pytest.approx([sum(p) for p in parts], rel=1e-5)
    assert set(run.steps["autocast_dtype"].to_pylist()) == {"bfloat16" if bf16 else None}
    assert "transformer.h.0.attn.c_attn" in run.layers["layer"].to_pylist()
    assert run.clean_end


def in_half(one):
    """The trainer as it would be on a GPU with fp16=True."""
    one.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    one.train_scaler = one.accelerator.scaler
    with torch.autocast("cpu", dtype=torch.float16):
        one.train()
    return one


def test_a_half_precision_training_is_logged_with_its_scale_and_skips(tmp_path):
    one = in_half(trainer(tmp_path, [callback(tmp_path)], max_steps=40))
    steps = run_of(tmp_path).steps
    assert steps["scale"].to_pylist()[0] == 2.0**40
    assert steps["scale_after"].to_pylist()[-1] == one.train_scaler.get_scale()
    skips = sum(map(bool, steps["skipped"].to_pylist()))
    assert 2.0 ** (40 - skips) == one.train_scaler.get_scale()
    assert skips > 0
    assert type(one.train_scaler) is torch.amp.GradScaler


@pytest.mark.skipif(
    torch.__version__ < "2.6", reason="Transformers loads no checkpoint with this torch"
)
def test_a_training_resumed_from_a_checkpoint_begins_at_its_step(tmp_path):
    trainer(tmp_path, [], save_strategy="steps", save_steps=4).train()
    one = trainer(tmp_path, [callback(tmp_path)], max_steps=8)
    one.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert run_of(tmp_path).steps["step"].to_pylist() == [4, 5, 6, 7]


def test_a_second_training_of_one_trainer_is_a_second_run(tmp_path):
    one = trainer(tmp_path, [callback(tmp_path)], max_steps=2)
    one.train()
    one.train()
    assert len(ampwatch.list_runs(tmp_path / "runs")) == 2


def test_the_training_is_the_same_to_the_last_bit(tmp_path):
    def weights(callbacks):
        one = in_half(trainer(tmp_path, callbacks, max_steps=30))
        return torch.nn.utils.parameters_to_vector(one.model.parameters())

    assert torch.equal(weights([callback(tmp_path)]), weights([]))


def test_a_label_smoothing_trainer_has_the_loss_that_went_backward(tmp_path):
    one = trainer(
        tmp_path, [callback(tmp_path)], label_smoothing_factor=0.1, max_steps=3, logging_steps=1
    )
    one.train()
    told = [row["loss"] for row in one.state.log_history if "loss" in row]
    assert run_of(tmp_path).steps["loss"].to_pylist() == pytest.approx(told, abs=1e-3)


class Bad(torch.nn.Module):
    """A language model whose loss is a thousand times too large in some calls."""

    def __init__(self, bad):
        super().__init__()
        self.inner, self.bad, self.calls = language_model(), bad, 0

    def forward(self, input_ids=None, labels=None, **_):
        output = self.inner(input_ids=input_ids, labels=labels)
        output.loss = output.loss * (1000.0 if self.calls in self.bad else 1.0)
        self.calls += 1
        return output


def test_a_guard_leaves_a_step_out_and_stops_the_trainer_with_a_plan(tmp_path):
    guarded = {"dry_run": False, "stop": True, "lower_rate": False, "most": (1, 1000)}
    callback = AmpwatchCallback(log_dir=tmp_path, run="a", endpoint="off", guard=guarded)
    one = trainer(tmp_path / "out", [callback], Bad({80, 85}), max_steps=100)
    one.train()
    assert one.state.global_step == 86
    assert callback.exit_code == 11
    rows = ampwatch.open_run(tmp_path / "a").events.to_pylist()
    told = [(row["step"], json.loads(row["detail"])) for row in rows if row["kind"] == "guard"]
    decided = [(step, detail["decided"]) for step, detail in told]
    assert decided == [(0, "begin"), (80, "leave-out"), (85, "stop")]
    assert (tmp_path / "a" / "plan.json").exists()
