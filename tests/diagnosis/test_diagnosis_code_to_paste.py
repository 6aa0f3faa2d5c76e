"""What an action prints to be pasted does what it says."""

from __future__ import annotations

import pytest
import torch
from scheduled_training import AFTER, BASE, BEFORE, FACTOR, OF, SCHEDULERS, Training
from torch import nn

from ampwatch.diagnosis.code_to_paste import (
    Root,
    float32_island,
    roots_of,
    with_lines,
    words_and_lines,
)


class Masked(nn.Module):
    """Tells which types it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, mask, *, scale=None):
        self.called_with = (x.dtype, mask.dtype, None if scale is None else scale.dtype)
        return self.inner(x)


def test_an_action_parts_into_its_words_and_its_lines():
    action = with_lines("Do this:", "if it:\n    works")
    assert words_and_lines(action) == ("Do this:", "if it:\n    works")
    assert words_and_lines("Do nothing.") == ("Do nothing.", "")


@pytest.mark.parametrize("name", ["0", "(root)"])
def test_the_island_runs_its_layer_in_float32_and_leaves_masks_alone(name):
    model = nn.Sequential(Masked()) if name == "0" else Masked()
    layer = model[0] if name == "0" else model
    exec(float32_island(name), {"torch": torch, "model": model})
    with torch.autocast("cpu", torch.float16):
        half = torch.ones(2, 4).half()
        output = layer(half, torch.ones(2).bool(), scale=half)
    assert output.dtype == torch.float32
    assert layer.called_with == (torch.float32, torch.bool, torch.float32)


PAIR = {"G": nn.Sequential(nn.Linear(4, 4)), "D": nn.Sequential(nn.Linear(4, 4))}


@pytest.mark.parametrize(
    ("name", "roots", "given", "model"),
    [
        ("0", [Root()], "model", nn.Sequential(nn.Linear(4, 4))),
        ("0", [Root("", ("DataParallel",))], "model", nn.DataParallel(PAIR["G"])),
        ("0", [], "model", nn.Sequential(nn.Linear(4, 4))),
        ("D.0", [Root("G"), Root("D")], "models", PAIR),
        ("1.0", [Root("0"), Root("1", ("DataParallel",))], "models",
         [PAIR["G"], nn.DataParallel(PAIR["D"])]),
    ],
)  # fmt: skip
def test_the_island_finds_its_layer_in_what_was_given_to_attach(name, roots, given, model):
    scope = {"torch": torch, given: model}
    exec(float32_island(name, roots), scope)
    assert isinstance(scope["layer"], nn.Linear)
    with torch.autocast("cpu", torch.float16):
        assert scope["layer"](torch.ones(2, 4).half()).dtype == torch.float32


def test_models_that_the_record_does_not_tell_rightly_are_none():
    assert roots_of(None) == roots_of("x") == roots_of([{"prefix": 3}, 7]) == ()
    told = [{"prefix": "D", "wrapped": ["DistributedDataParallel", 3]}, {"prefix": "G"}]
    assert roots_of(told) == (Root("D", ("DistributedDataParallel",)), Root("G"))


# --- the rate, with the schedulers people use ----------------------------------------------------


def near(rates):
    return [pytest.approx(one, rel=1e-6) for one in rates]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_pasted_rate_holds_for_a_whole_schedule_and_every_resume(name, tmp_path):
    make = SCHEDULERS[name]
    lowered = near(Training(make, BASE * FACTOR).rates(BEFORE + AFTER))

    fresh = Training(make)
    fresh.paste()
    assert fresh.rates(BEFORE) == lowered[:BEFORE]

    failed = Training(make)
    failed.rates(BEFORE)
    failed.saved(tmp_path)
    resumed = Training(make).load(tmp_path)
    resumed.paste()
    resumed.paste()  # by mistake
    assert resumed.rates(3) == lowered[BEFORE : BEFORE + 3]

    resumed.saved(tmp_path)
    later = Training(make).load(tmp_path)  # the lines are still in the script
    later.paste()
    assert later.rates(AFTER - 3) == lowered[BEFORE + 3 :]


@pytest.mark.parametrize("name", ["cosine", "function", "transformers linear"])
def test_the_pasted_rate_holds_where_the_schedule_begins_anew(name, tmp_path):
    make = SCHEDULERS[name]
    failed = Training(make)
    failed.rates(BEFORE)
    failed.saved(tmp_path)
    bare = Training(make).load(tmp_path, with_schedule=False).rates(AFTER)
    resumed = Training(make).load(tmp_path, with_schedule=False)
    resumed.paste()
    assert resumed.rates(AFTER) == near([[FACTOR * rate for rate in step] for step in bare])


def test_the_pasted_rate_is_the_ceiling_of_a_plateau():
    training = Training(lambda o, base: OF.ReduceLROnPlateau(o, patience=0, min_lr=base / 8))
    training.paste()
    for loss in (1.0, 2.0, 3.0):
        training.scheduler.step(loss)
    rates = [group["lr"] for group in training.optimizer.param_groups]
    assert rates == [pytest.approx(BASE * FACTOR / 8)] * 2
