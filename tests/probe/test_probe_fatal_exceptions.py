"""What is read from the traceback of an exception that ended training."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwatch.probe import devices, fatal_exceptions
from ampwatch.probe.devices import DeviceRow, DeviceSampler
from ampwatch.probe.fatal_exceptions import describe, passed_through
from ampwatch.probe.hooks import tell_of_lookups


class Failing(nn.Module):
    """Fails in its forward pass with what it is given to raise."""

    def __init__(self, error: BaseException | type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.lift = nn.Linear(4, 8)
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.lift(x))


def names_of(model: nn.Module) -> dict[int, str]:
    return {id(module): name or "(root)" for name, module in model.named_modules()}


def failure_of(work) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    pytest.fail("the work was to fail")


def failed(model: nn.Module, x: torch.Tensor | None = None) -> BaseException:
    given = torch.zeros(2, 4) if x is None else x
    return failure_of(lambda: model(given))


# --- the layer ------------------------------------------------------------------------------


def test_a_dtype_mismatch_names_the_innermost_layer_its_dtypes_and_the_operation():
    model = nn.Sequential(nn.Linear(4, 4), Block(nn.Linear(8, 2).half()))
    words = describe(failed(model), names_of(model))
    assert words.layer == "1.inner"
    assert words.kind == "Linear"
    assert words.param_dtypes == {"weight": "float16", "bias": "float16"}
    assert words.tensor_dtypes == {"input": "float32"}
    assert words.exception == "RuntimeError"
    assert "dtype" in words.message
    assert words.operation.startswith("torch/nn/modules/linear.py:")
    assert words.operation.endswith(", in forward")
    assert f"{__file__}:" in words.user_frame
    assert not words.out_of_memory


def test_an_operation_unsafe_under_autocast_is_named_though_its_module_is_not_watched():
    model, loss = nn.Linear(4, 1), nn.BCELoss()

    def train():
        with torch.autocast("cpu", torch.bfloat16):
            F.nll_loss("no tensor", loss(torch.sigmoid(model(torch.zeros(2, 4))), "no target"))

    words = describe(failure_of(train), names_of(model))
    assert (words.layer, words.kind, words.param_dtypes) == (None, None, {})
    assert words.operation.startswith("torch/nn/functional.py:")
    assert words.operation.endswith(", in binary_cross_entropy")
    assert words.user_frame.endswith(", in train")


def test_a_call_that_we_pass_on_is_not_where_the_user_looks_first() -> None:
    class Loss:
        backward = torch.autograd.backward

    tell_of_lookups(Loss, "backward", lambda _loss: None)

    def train() -> None:
        Loss().backward()

    words = describe(failure_of(train), {})
    assert "torch/autograd" in words.operation
    assert words.user_frame.endswith(", in train")


def test_a_call_that_never_reaches_forward_shows_the_arguments():
    model = nn.Linear(4, 4)
    x = torch.zeros(2, 4, dtype=torch.bfloat16)
    words = describe(failure_of(lambda: model(x, x)), names_of(model))
    assert words.layer == "(root)"
    assert words.tensor_dtypes == {"args[0]": "bfloat16", "args[1]": "bfloat16"}


@pytest.mark.parametrize(("value", "error", "finite"), [
    (1.0, ValueError, True), (float("nan"), ValueError, False), (float("nan"), RuntimeError, None),
])  # fmt: skip
def test_the_input_of_the_model_is_looked_at_unless_the_device_may_have_failed(
    value, error, finite
):
    model = Block(Failing(error))
    words = describe(failed(model, torch.full((2, 4), value)), names_of(model))
    assert words.input_finite is finite


def test_an_exception_outside_every_layer_names_none():
    def load_batch():
        raise FileNotFoundError("data.bin")

    words = describe(failure_of(load_batch), names_of(nn.Linear(2, 2)))
    assert (words.layer, words.kind, words.tensor_dtypes) == (None, None, {})
    assert words.exception == "FileNotFoundError"
    assert words.user_frame == words.operation
    assert words.operation.endswith(", in load_batch")


def test_an_exception_that_was_never_raised_has_no_places():
    words = describe(ValueError("made by hand"), {})
    assert (words.operation, words.user_frame, words.message) == (None, None, "made by hand")


def test_a_layer_inside_a_generator_is_found():
    class Streaming(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Failing(RuntimeError("in the stream"))

        def chunks(self, x):
            yield x
            yield self.inner(x)

        def forward(self, x):
            return list(self.chunks(x))

    model = Streaming()
    assert describe(failed(model), names_of(model)).layer == "inner"


def test_a_layer_that_is_recomputed_in_backward_is_found():
    class Once(nn.Module):
        """Works in the forward pass and fails when checkpointing runs it again."""

        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("second time")
            return x.sin()

    model = nn.Sequential(nn.Linear(4, 4), Once())
    x = torch.zeros(2, 4)
    loss = checkpoint(model, x, use_reentrant=False).sum()
    words = describe(failure_of(loss.backward), names_of(model))
    assert (words.layer, words.message) == ("1", "second time")


@pytest.mark.filterwarnings("ignore")  # what torch.compile's own parts say about themselves
def test_a_compiled_model_yields_a_report_and_perhaps_no_inner_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(8, 2))
    compiled = torch.compile(model, backend="eager")
    words = describe(failed(compiled), names_of(model))
    assert words.layer in ("(root)", "1", None)
    assert "4" in words.message
    assert words.user_frame is not None


def test_a_self_that_is_no_module_is_never_asked_anything():
    class Touchy:
        @property
        def __class__(self):
            pytest.fail("asked for its class")

        def __getattr__(self, name):
            pytest.fail(f"asked for {name}")

        def __eq__(self, other):
            pytest.fail("compared")

        def work(self):
            raise RuntimeError("from a stranger")

    assert describe(failure_of(Touchy().work), {1: "x"}).message == "from a stranger"


# --- chains ---------------------------------------------------------------------------------


class Wrapping(nn.Module):
    """Raises a new exception from, or while handling, that of its inner module."""

    def __init__(self, inner: nn.Module, *, explicit: bool) -> None:
        super().__init__()
        self.inner, self.explicit = inner, explicit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.inner(x)
        except RuntimeError as error:
            if self.explicit:
                raise ValueError("the block failed") from error
            return self.fall_back(x)

    def fall_back(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("the fallback failed too")


def test_an_explicit_cause_is_followed_to_the_layer_it_came_from():
    model = Wrapping(Block(Failing(RuntimeError("deep"))), explicit=True)
    words = describe(failed(model), names_of(model))
    assert words.layer == "inner.inner"
    assert (words.exception, words.message) == ("ValueError", "the block failed")
    assert words.causes == ("RuntimeError: deep",)


def test_what_was_merely_being_handled_does_not_take_the_blame():
    model = Wrapping(Failing(RuntimeError("first try")), explicit=False)
    words = describe(failed(model), names_of(model))
    assert words.layer == "(root)"
    assert words.operation.endswith(", in fall_back")
    assert words.causes == ("RuntimeError: first try",)


def test_an_exception_raised_outside_from_one_inside_names_the_layer_inside():
    model = Block(Failing(RuntimeError("deep")))

    def train(how):
        try:
            model(torch.zeros(2, 4))
        except RuntimeError as error:
            if how == "from":
                raise SystemError("training failed") from error
            raise SystemError("training failed")  # noqa: B904 - the implicit chain is the point

    for how in ("from", "while handling"):
        assert describe(failure_of(lambda h=how: train(h)), names_of(model)).layer == "inner"


def test_a_suppressed_context_is_not_read():
    model = Block(Failing(RuntimeError("deep")))

    def train():
        try:
            model(torch.zeros(2, 4))
        except RuntimeError:
            raise SystemError("training failed") from None

    words = describe(failure_of(train), names_of(model))
    assert (words.layer, words.causes) == (None, ())


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert describe(first, {}).causes == ("ValueError: b",)


def test_a_recursion_error_names_the_layer_that_called_itself():
    class Ouroboros(nn.Module):
        def forward(self, x):
            return self(x)

    model = nn.Sequential(Ouroboros())
    words = describe(failed(model), names_of(model))
    assert (words.exception, words.layer) == ("RecursionError", "0")


# --- words ----------------------------------------------------------------------------------


def test_everything_is_json_and_no_longer_than_it_may_be():
    model = Block(Failing(RuntimeError("x" * 100_000 + "\udcff")))
    words = describe(failed(model), names_of(model))
    assert len(words.message) == 2000
    assert words.message.endswith("…")
    text = json.dumps(asdict(words))
    text.encode("utf-8")
    assert json.loads(text)["layer"] == "inner"


def test_a_message_that_cannot_be_printed_is_said_to_be_so():
    class Mute(RuntimeError):
        def __str__(self):
            raise ValueError("no words")

    words = describe(failure_of(lambda: Failing(Mute())(torch.zeros(1))), {})
    assert "failed" in words.message
    assert words.exception.endswith("Mute")


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        MemoryError(),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error):
    assert describe(error, {}).out_of_memory
    wrapped = RuntimeError("training failed")
    wrapped.__cause__ = error
    assert describe(wrapped, {}).out_of_memory
    assert not describe(RuntimeError("other"), {}).out_of_memory


def test_a_real_allocation_that_fails_is_out_of_memory():
    error = failure_of(lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert describe(error, {}).out_of_memory


def test_the_memory_state_of_each_device_is_told_and_its_pressure_when_it_ran_out(monkeypatch):
    class Sampler(DeviceSampler):
        def rows(self, time_ns):
            return [DeviceRow(time_ns, "cuda:1", allocated_bytes=5, host_rss_bytes=9)]

    monkeypatch.setattr(fatal_exceptions, "pressure", lambda device: {"ooms": device.index})
    (plain,) = describe(RuntimeError("other"), {}, Sampler()).memory
    assert plain == {
        "time_ns": plain["time_ns"], "device": "cuda:1", "allocated_bytes": 5, "host_rss_bytes": 9,
    }  # fmt: skip
    (short,) = describe(MemoryError(), {}, Sampler()).memory
    assert short["ooms"] == 1
    (here,) = describe(RuntimeError("other"), {}).memory
    assert here["device"] == "cpu" or torch.cuda.is_available()
    assert here["host_rss_bytes"] > 0


# --- nothing is held ------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [True, False])
def test_the_frames_tensors_go_with_the_exception_without_a_collection(explicit):
    model = Wrapping(Block(Failing(RuntimeError("deep"))), explicit=explicit)
    x = torch.zeros(2, 4)
    alive = weakref.ref(x)
    names = names_of(model)
    gc.collect()
    gc.disable()
    try:
        try:
            model(x)
        except ValueError as error:
            words, was_ours = describe(error, names), passed_through(error, names)
            error.__traceback__ = None
            if error.__context__ is not None:
                error.__context__.__traceback__ = None
        del x
        model.inner.inner.error = None  # the module's own reference to its exception
        assert alive() is None
    finally:
        gc.enable()
    assert words.layer
    assert was_ours


def test_an_exception_counts_as_the_trainings_if_it_passed_a_layer_or_the_watch():
    model = Block(Failing(RuntimeError("deep")))
    error = failed(model)
    assert passed_through(error, names_of(model))
    assert not passed_through(error, names_of(nn.Linear(1, 1)))
    inside_the_probe = failure_of(lambda: devices.pressure(SimpleNamespace()))
    assert passed_through(inside_the_probe, {})
