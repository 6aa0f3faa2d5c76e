"""Whether a run in bf16 or fp32 would fit fp16, against plain numpy on real trainings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from narrow_models import Language
from written_runs import write_run

import ampwatch
from ampwatch import codec, store
from ampwatch.report.fp16_fit import Fp16Fit, fp16_fits, fp16_sentence, lowest_scale
from ampwatch.report.layer_views import WHAT_IF, Wanted, offered, what_if_header
from ampwatch.rows import DTYPES, EXPONENT_BINS, EXPONENT_LOWEST, Table

STEPS, EVERY = 26, 5
LAYERS = ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down")
LIMIT = 65504.0


class Truth:
    """What enters and leaves each layer in the last sampled step, taken by hooks of our own."""

    def __init__(self, model):
        self.values = {name: [] for name in LAYERS}
        self.gradients = {name: [] for name in LAYERS}
        self.output_gradient = {}
        for name in LAYERS:
            layer = model.get_submodule(name)
            layer.register_forward_hook(self.forward(name))
            layer.register_full_backward_hook(self.backward(name))

    def forward(self, name):
        def keep(_layer, inputs, output):
            self.values[name] = [flat(inputs[0]), flat(output)]

        return keep

    def backward(self, name):
        def keep(_layer, into, out):
            self.gradients[name] = [flat(into[0]), flat(out[0])]
            self.output_gradient[name] = flat(out[0])

        return keep


def flat(tensor):
    return np.abs(tensor.detach().float().numpy().astype(np.float64).ravel())


def train(folder, name, *, is_half, outlier=1.0):
    torch.manual_seed(0)
    model = Language()
    with torch.no_grad():
        model.blocks[1].norm.weight[3] *= outlier
        model.blocks[1].up.weight[:, 3] /= outlier
    truth = Truth(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run=name, log_dir=folder, layer_every=EVERY
    ) as watch:
        for _ in range(STEPS):
            words = torch.randint(64, (8, 16))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
                logits = model(words)
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), words.flatten())
            watch.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return ampwatch.open_run(folder / name), truth


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"), "half", is_half=True, outlier=3e5)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"), "single", is_half=False)


@pytest.mark.parametrize("kind", ["half", "single"])
@pytest.mark.parametrize("layer", LAYERS)
def test_room_and_largest_scale_are_those_of_the_values_themselves(request, kind, layer):
    run, truth = request.getfixturevalue(kind)
    fit = {one.layer: one for one in fp16_fits(run, None)}[layer]
    amax = max(values.max() for values in truth.values[layer])
    assert fit.amax == pytest.approx(amax, rel=1e-6)
    assert fit.headroom == pytest.approx(math.log2(LIMIT / amax), abs=1e-5)
    gradient = max(values.max() for values in truth.gradients[layer])
    assert fit.high == pytest.approx(math.log2(LIMIT / gradient), abs=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_smallest_scale_is_within_an_octave_of_that_of_all_gradients(half, layer):
    run, truth = half
    fit = {one.layer: one for one in fp16_fits(run, None)}[layer]
    gradient = truth.output_gradient[layer]
    small, middle = np.quantile(gradient[gradient > 0], [0.05, 0.5])
    wanted = max(-24 - math.log2(small), -14 - math.log2(middle))
    assert fit.low == pytest.approx(wanted, abs=1.0)


def test_a_run_in_bf16_is_told_which_layer_would_overflow_in_fp16(half):
    run, _ = half
    header = what_if_header(run, Wanted())
    assert header["title"].startswith("fp16 would overflow in blocks.1.up: ")
    assert header["title"].endswith(" is above 65,504.")
    assert header["more"].startswith("In fp8 (E4M3, gradients E5M2) ")
    assert header["columns"] == ["fp16 room", "scales", "E4M3", "E5M2", "MXFP8", "NVFP4"]
    over = [row["layer"] for row in header["rows"] if row["cells"][0]["isOver"]]
    assert over == ["blocks.1.up"]


def test_a_run_in_fp32_is_told_that_it_would_fit_though_it_records_no_small_gradients(single):
    run, _ = single
    assert offered(run) == (WHAT_IF,)
    header = what_if_header(run, Wanted())
    assert header["title"].startswith("The run would fit fp16, with a loss scale of up to 2")
    assert header["columns"] == ["fp16 room", "scales"]
    fits = {one.layer: one for one in fp16_fits(run, None)}
    assert set(fits) == {*LAYERS, "head"}
    assert {one.low for one in fits.values()} == {None}


def test_a_run_in_fp16_needs_no_such_guess(tmp_path):
    path = write_run(tmp_path)
    writer = store.RankWriter(path, 0)
    info = {
        "step": [0],
        "layer": [0],
        "name": ["head"],
        "rows": [8],
        "output_dtype": [DTYPES.index("float16")],
    }
    writer.append(codec.encode(Table.LAYER_INFO, info))
    writer.append(codec.encode(Table.LAYERS, {"step": [0], "layer": [0], "act_amax": [1.0]}))
    writer.close()
    assert fp16_fits(ampwatch.open_run(path), None) == []


def test_gradients_below_the_lowest_octave_leave_the_smallest_scale_unknown():
    counts = np.zeros(EXPONENT_BINS, int)
    counts[1], counts[30] = 50, 100
    assert lowest_scale(counts) is None
    counts[1] = 1
    assert lowest_scale(counts) == pytest.approx(-14 - (EXPONENT_LOWEST + 29), abs=1.0)
    assert lowest_scale(counts // 10) is None
    assert lowest_scale(()) is None


@pytest.mark.parametrize(
    ("fits", "text"),
    [
        ([], ""),
        ([Fp16Fit("a", 0, 2.0, 3.2, 20.9), Fp16Fit("b", 1, 2.0, None, 18.0)],
         "The run would fit fp16, with a loss scale of 2^4 to 2^18."),
        ([Fp16Fit("a", 0, 2.0, 21.0, 24.0), Fp16Fit("b", 1, 2.0, 1.0, 18.0)],
         "fp16 has no loss scale that suits both a and b."),
        ([Fp16Fit("a", 0, 1e6, 1.0, 24.0), Fp16Fit("b", 1, math.inf, 1.0, 18.0)],
         "fp16 would overflow in b and 1 other layer: inf is above 65,504."),
        ([Fp16Fit("a", 0, 2.0, None, None)], "All values would fit fp16."),
    ],
)  # fmt: skip
def test_one_sentence_says_whether_the_run_would_fit(fits, text):
    assert fp16_sentence(fits) == text
