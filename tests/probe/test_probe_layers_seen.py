"""What is told of a layer besides its extremes, and what is left alone."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import children
import numpy as np
import pytest
import torch
from layers_harness import Strict, Watched, half_step
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.layer_rows import info_columns
from ampwatch.probe.models import multiplier_of, survey
from ampwatch.probe.records import StepRecord
from ampwatch.probe.row_maker import RowMaker
from ampwatch.probe.tensor_values import Pack, tensors_in
from ampwatch.rows import SCHEMAS, Table

ROWS = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Widen(nn.Module):
    """What autocast does around a norm on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), Widen(), nn.ReLU(), nn.Linear(32, 4))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def square(model: nn.Module) -> Tensor:
    return model(ROWS).float().pow(2).mean()


def watched_mlp() -> Watched:
    model = mlp()
    return Watched(model).step(half_step(model, square))


# -- what is told ----------------------------------------------------------------------------------


def test_data_types_are_those_that_passed() -> None:
    watched = watched_mlp()
    assert watched.dtype("0", "input_dtype") == "float32"
    assert watched.dtype("0", "param_dtype") == "float32"
    assert watched.dtype("0", "output_dtype") == "float16"
    assert watched.dtype("0", "out_grad_dtype") == "float16"
    assert watched.dtype("0", "param_grad_dtype") == "float32"
    assert watched.dtype("1", "output_dtype") == "float32"
    assert watched.dtype("2", "param_dtype") is None


def test_autocast_is_seen_where_the_layer_runs() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.inside(x)
            with torch.autocast("cpu", enabled=False):
                return self.outside(hidden.float())

    model = Partly()
    watched = Watched(model).step(half_step(model, square))
    assert watched.info("inside").autocast is True
    assert watched.info("outside").autocast is False
    assert watched.dtype("outside", "output_dtype") == "float32"


def test_kind_shape_and_order_are_told_once_and_again_on_change() -> None:
    model = mlp()
    watched = Watched(model).step(half_step(model, square))
    told = {info.name: info for info in watched.changed}
    assert list(told) == ["(root)", "0", "1", "2", "3"]
    assert (told["0"].kind, told["0"].weight_shape, told["0"].order) == ("Linear", [32, 16], 1)
    assert (told["2"].weight_shape, told["2"].trainable) == (None, None)
    assert watched.step(half_step(model, square)).changed == []
    model[3].requires_grad_(False)
    changed = watched.step(half_step(model, square)).changed
    assert [(info.name, info.trainable) for info in changed] == [("3", False)]


def test_a_batch_of_another_size_is_no_change_but_twice_the_size_is() -> None:
    model = mlp()
    watched = Watched(model)
    sizes = (8, 9, 20)
    changes = []
    for size in sizes:
        rows = torch.randn(size, 16)
        run = half_step(model, lambda m, rows=rows: m(rows).float().mean())
        changes.append([info.name for info in watched.step(run).changed])
    assert changes == [["(root)", "0", "1", "2", "3"], [], ["0", "3"]]


def test_columns_fit_the_schema() -> None:
    watched = watched_mlp()
    for rows, table in (
        (watched.last.columns, Table.LAYERS),
        (info_columns(0, watched.changed), Table.LAYER_INFO),
    ):
        assert set(rows) <= set(SCHEMAS[table].names)
        assert {len(column) for column in rows.values()} == {5}


def test_what_a_sampled_step_has_copied_is_let_go_once_its_rows_are_made() -> None:
    model = mlp()
    observer = LayerObserver(survey(model), Strict())
    observer.arm()
    half_step(model, square)()
    record = StepRecord(0, Pack())
    record.sampled, record.layers = True, observer.collect()
    maker = RowMaker(survey(model))
    written = {table for table, _ in maker.rows([record])}
    assert {Table.LAYERS, Table.LAYER_INFO} <= written
    assert record.layers is None  # the record itself waits for an overflow for 64 steps


def test_headroom_is_told_of_half_outputs_alone() -> None:
    watched = watched_mlp()
    cells = watched.cells("0")
    assert 2.0**cells.log2_headroom * cells.act_amax == pytest.approx(65504.0)
    assert watched.cells("1").log2_headroom is None


class _Scored(nn.Module):
    """Scores made between the layers; the softmax is the only one to see them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.softmax = nn.Linear(8, 8), nn.Linear(8, 8), nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.softmax(40 * self.query(x) @ self.key(x).transpose(-2, -1))


def test_a_softmaxs_headroom_is_that_of_the_scores_it_takes() -> None:
    x = torch.randn(4, 8)
    watched = Watched(model := _Scored())
    watched.step(half_step(model, lambda m: m(x).float().square().sum()))
    cells = watched.cells("softmax")
    assert cells.act_amax <= 1.0
    assert cells.input_amax > 10.0
    assert 2.0**cells.log2_headroom * cells.input_amax == pytest.approx(65504.0)


def test_a_module_that_never_runs_says_so_until_it_does() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.spare, self.use = nn.Linear(16, 4), nn.Linear(16, 4), False

        def forward(self, x: Tensor) -> Tensor:
            return self.spare(x) if self.use else self.always(x)

    model = Sometimes()
    watched = Watched(model).step(half_step(model, square))
    assert watched.info("spare").observed == "never ran"
    assert watched.info("spare").weight_shape == [4, 16]
    model.use = True
    watched.step(half_step(model, square))
    assert watched.info("spare").observed is None
    assert watched.info("always").observed is None
    assert watched.dtype("always", "output_dtype") == "float16"


def test_an_additive_mask_is_no_activation() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    series = torch.randn(4, 6, 16)
    model = nn.ModuleList([layer])
    forward = lambda m: m[0](series, src_mask=mask).float().pow(2).mean()  # noqa: E731
    watched = Watched(model).step(half_step(model, forward))
    assert watched.cells("0").input_finite
    assert watched.cells("0").input_amax == series.abs().max().item()
    assert watched.cells("0.self_attn").input_finite


def test_a_non_finite_activation_is_told_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    rows = torch.full((2, 4), 6e4)
    watched = Watched(model).step(half_step(model, lambda m: m(rows).sum()))
    cells = watched.cells("0")
    assert (cells.act_amax, cells.act_finite, cells.input_finite) == (torch.inf, False, True)
    assert cells.log2_headroom is None


# -- products --------------------------------------------------------------------------------------


class CountedProducts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts matrix products by an implementation that is not ours."""

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import FlopCounterMode

        self.counter = FlopCounterMode(display=False)

    def flops(self, module: nn.Module, *inputs: Tensor) -> tuple[int, Tensor]:
        with self.counter:
            output = module(*inputs)
        return self.counter.get_total_flops(), output


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (nn.Linear(16, 8), [(3, 5, 16)]),
        (nn.Conv2d(4, 8, 3, stride=2, groups=2), [(2, 4, 9, 9)]),
        (nn.Conv1d(4, 8, 3, padding=1), [(2, 4, 9)]),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), [(2, 4, 5, 5)]),
        (nn.MultiheadAttention(16, 4, batch_first=True), [(2, 5, 16)] * 3),
        (nn.MultiheadAttention(16, 4, kdim=8, vdim=12), [(5, 2, 16), (7, 2, 8), (7, 2, 12)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_operations_equal_torchs_own_count(
    module: nn.Module, shapes: list[tuple[int, ...]]
) -> None:
    counted, output = CountedProducts().flops(module, *(torch.randn(shape) for shape in shapes))
    first = output[0] if isinstance(output, tuple) else output
    product = multiplier_of(module).product(shapes, tuple(first.shape))
    assert product is not None
    assert product.flops == counted


def test_operations_of_a_recurrent_layer_are_those_of_its_matrices() -> None:
    gru = nn.GRU(8, 12, num_layers=2, bidirectional=True, batch_first=True)
    output, _ = gru(torch.randn(4, 6, 8))
    product = multiplier_of(gru).product([(4, 6, 8)], tuple(output.shape))
    matrices = sum(p.numel() for name, p in gru.named_parameters() if name.startswith("weight"))
    assert product is not None
    assert (product.rows, product.flops) == (24, 2.0 * 24 * matrices)


def test_sizes_may_be_of_numpy() -> None:
    layer = nn.Linear(np.array((2, 4)).prod(), 16)
    assert multiplier_of(layer).product([(3, 8)], (3, 16)).flops == 2.0 * 3 * 8 * 16


def test_rows_are_those_of_the_product() -> None:
    assert watched_mlp().info("0").rows == 8
    assert multiplier_of(nn.Embedding(9, 4)).product([(2, 3)], (2, 3, 4)).rows == 6
    assert multiplier_of(nn.ReLU()) is None


# -- what is left alone ----------------------------------------------------------------------------


def test_evaluation_and_passes_without_gradients_are_no_training() -> None:
    model = mlp()
    huge = torch.full((2, 16), 1e30)
    train = half_step(model, square)

    def step() -> None:
        with torch.no_grad():
            model(huge)
        model.eval()
        model(huge)
        model.train()
        train()

    assert Watched(model).step(step).cells("0").input_amax == ROWS.abs().max().item()


def hooks_of(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


def test_hooks_are_there_only_while_armed() -> None:
    model = mlp()
    watched = Watched(model)
    on_root = hooks_of(model)
    watched.step(half_step(model, square))
    assert hooks_of(model) > 2 * len(list(model.modules()))
    watched.observer.disarm()
    assert hooks_of(model) == on_root + 1  # the first layer's
    watched.observer.release()
    assert hooks_of(model) == 0


def test_tensors_that_the_user_keeps_are_unhooked_after_the_step() -> None:
    model = mlp()
    kept: list[Tensor] = []
    query = nn.Parameter(torch.randn(8, 16))

    def run() -> None:
        kept.append(model(query))
        kept[0].sum().backward()

    Watched(model).step(run)
    assert not kept[0]._backward_hooks
    assert not query._backward_hooks
    pickle.loads(pickle.dumps(query))


def test_the_state_dict_is_the_same() -> None:
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Watched(model).observer.arm()
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_copy_of_an_armed_model_is_not_watched() -> None:
    model = mlp()
    watched = Watched(model)
    for copied in (copied_by_deepcopy(watched), copied_by_pickle(watched)):
        pack = Pack()
        watched.observer.collect_first(pack)
        watched.observer.arm()
        square(copied).backward()
        assert watched.observer.collect().visits == {}
        assert watched.observer.collect_first(pack) == []


def copied_by_deepcopy(watched: Watched) -> nn.Module:
    watched.step(half_step(watched.model, square))
    return copy.deepcopy(watched.model)


def copied_by_pickle(watched: Watched) -> nn.Module:
    watched.step(half_step(watched.model, square))
    return pickle.loads(pickle.dumps(watched.model))


@pytest.mark.slow_starts
def test_a_saved_model_loads_where_ampwatch_is_not_installed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    watched = Watched(model).step(half_step(model, square))
    watched.observer.arm()
    torch.save(model, tmp_path / "model.pt")
    script = (
        "import sys, torch\n"
        "loaded = {name for name in sys.modules if name.partition('.')[0] == 'ampwatch'}\n"
        "sys.modules.update(dict.fromkeys(loaded | {'ampwatch'}))  # none can be imported\n"
        "model = torch.load('model.pt', weights_only=False)\n"
        "print(model(torch.ones(2, 16)).sum().item())\n"
    )
    done = children.run("-c", script, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    watched.observer.release()
    assert float(done.stdout) == pytest.approx(model(torch.ones(2, 16)).sum().item())


def test_an_output_that_is_kept_can_be_saved_without_a_warning() -> None:
    model = mlp()
    watched = Watched(model)
    watched.observer.arm()
    output = model(ROWS)
    torch.save(output, io.BytesIO())
    assert output._backward_hooks


# -- compiled --------------------------------------------------------------------------------------


def test_a_compiled_part_is_seen_from_outside_and_never_recompiled() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    model = nn.Sequential(torch.compile(inner, backend=counter), nn.Linear(16, 4))
    watched = Watched(model)
    run = half_step(model, square)
    for _ in range(2):
        run()
    frames = counter.frame_count
    watched.step(run)
    watched.observer.disarm()
    run()
    watched.step(run)
    assert counter.frame_count == frames
    assert [watched.info(name).observed for name in ("0", "0.0", "0.1", "1")] == [
        "compiled", "compiled", "compiled", None,
    ]  # fmt: skip
    assert watched.cells("0").act_amax > 0
    assert watched.cells("0.0").act_amax is None
    assert watched.cells("0.0").weight_norm > 0


def test_a_model_compiled_in_place_or_behind_our_back_is_not_disturbed() -> None:
    for compile_it in (compiled_in_place, compiled_after):
        torch._dynamo.reset()
        counter = CompileCounter()
        model = Net()
        watched = Watched(model)
        called = compile_it(model, counter)
        run = half_step(model, lambda _m, called=called: called(ROWS).float().pow(2).mean())
        run()
        frames = counter.frame_count
        watched.step(run).step(run).step(run)
        watched.observer.disarm()
        run()
        assert counter.frame_count == frames == 1
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert watched.cells("body.0").weight_norm == pytest.approx(weights.norm().item(), rel=1e-5)
        if torch.__version__ >= "2.6":  # older ones run hooked modules outside the graph
            assert watched.cells("body.0").act_amax is None


def compiled_in_place(model: nn.Module, backend: object) -> nn.Module:
    model.compile(backend=backend)
    return model


def compiled_after(model: nn.Module, backend: object) -> object:
    return torch.compile(model, backend=backend)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_watched_model_can_be_traced() -> None:
    model = mlp()
    observer = LayerObserver(survey(model), Strict())
    observer.arm()
    traced = torch.jit.trace(model, ROWS)
    assert "aminmax" not in str(traced.inlined_graph)


# -- always on -------------------------------------------------------------------------------------


def test_the_first_layer_is_measured_on_every_step() -> None:
    model = mlp()
    watched = Watched(model)
    run = half_step(model, square)
    watched.step(run)
    assert watched.observer.first_layer.name == "0"
    watched.observer.disarm()
    run()
    run()
    pack = Pack()
    with torch.autocast("cpu", torch.float16), torch.no_grad():
        truth = model[0](ROWS).abs().max().item()
    at = watched.observer.collect_first(pack)
    assert [pack.values[place] for place in at] == [truth, truth]
    assert watched.observer.collect_first(pack) == []


class Listener:
    def __init__(self) -> None:
        self.began: list[list[Tensor]] = []
        self.ended = 0

    def forward_began(self, inputs: object, device_type: str) -> None:
        assert device_type == "cpu"
        self.began.append(list(inputs))

    def forward_ended(self, layer: int, outputs: object) -> None:
        self.ended += 1


def test_a_listener_hears_of_training_forwards_and_their_inputs() -> None:
    model = nn.Bilinear(16, 16, 2)
    observer = LayerObserver(survey(model), Strict())
    listener = Listener()
    observer.follow(listener)
    model(ROWS, ROWS)
    with torch.no_grad():
        model(ROWS, ROWS)
    model.eval()
    model(ROWS, ROWS)
    assert [len(inputs) for inputs in listener.began] == [2]
    assert listener.ended == 1
    observer.release()
    model.train()
    model(ROWS, ROWS)
    assert listener.ended == 1


def test_a_listener_hears_of_a_model_whose_parts_are_called_one_by_one() -> None:
    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Linear(16, 8)), nn.Linear(8, 2)

    model = Loose()
    watched = Watched(model)
    listener = Listener()
    watched.observer.follow(listener)
    run = half_step(model, lambda m: m.head(m.body(ROWS)).float().mean())
    watched.step(run)  # nobody knows yet which part is the last
    assert (len(listener.began), listener.ended) == (1, 2)
    run()
    assert (len(listener.began), listener.ended) == (2, 3)
    assert all(inputs[0] is ROWS for inputs in listener.began)
    assert watched.observer.first_layer.name == "body.0"


# -- odd circumstances -----------------------------------------------------------------------------


def test_a_forward_that_fails_leaves_the_next_step_whole() -> None:
    model = mlp()
    watched = Watched(model)
    watched.observer.arm()
    with pytest.raises(RuntimeError, match="shape"):
        model(torch.randn(2, 3))
    watched.step(half_step(model, square))
    assert watched.cells("3").act_amax > 0


def test_functional_transforms_pass_through_unseen() -> None:
    model = mlp()
    watched = Watched(model)
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (row,)).sum()

    def run() -> None:
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, ROWS)
        half_step(model, square)()

    assert watched.step(run).cells("0").input_amax == ROWS.abs().max().item()


def test_a_view_that_was_written_to_twice_is_hooked_without_harm() -> None:
    """Without a look at `grad_fn` before, torch 2.13 ends the process here."""

    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            view = x.view(-1).view(x.shape)
            view += 1
            view[:, 0] = 0
            return view

    model = nn.Sequential(nn.Linear(16, 16), Writes(), nn.Linear(16, 4))
    watched = Watched(model).step(lambda: square(model).backward())
    assert watched.cells("1").out_grad_amax > 0


def test_containers_are_looked_into_without_running_code_of_theirs() -> None:
    class Lazy(Mapping):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> Tensor:
            raise AssertionError("it would load now")

        def __iter__(self) -> Iterator[str]:
            return iter("a")

        def __len__(self) -> int:
            return 1

    class Whole(list):  # type: ignore[type-arg]
        def __getitem__(self, at: object) -> Tensor:
            raise TypeError("no slices")

    @dataclass
    class Unset:
        x: Tensor
        later: Tensor = field(init=False)

    assert tensors_in(Lazy()) == []
    assert [*tensors_in(Whole([ROWS])), *tensors_in(Unset(ROWS))] == [ROWS, ROWS]
    assert tensors_in(UserDict(a=ROWS), {"b": ROWS}) == [ROWS, ROWS]


def test_nested_tensors_pass_through_unmeasured() -> None:
    model = mlp()
    rows = torch.nested.nested_tensor([ROWS[:3], ROWS[3:]], layout=torch.jagged)
    watched = Watched(model).step(lambda: model(rows).values().square().mean().backward())
    assert (watched.info("0").kind, watched.info("0").rows) == ("Linear", None)
    assert watched.cells("0").input_amax is None


def test_inputs_made_in_inference_mode_are_measured() -> None:
    with torch.inference_mode():
        rows = torch.randn(8, 16)
    model = nn.Sequential(nn.ReLU(), nn.Linear(16, 4))
    watched = Watched(model).step(half_step(model, lambda m: m(rows).float().mean()))
    assert watched.cells("0").input_amax == rows.abs().max().item()


def test_a_lazy_module_is_told_as_what_it_becomes() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(2))
    assert survey(model).layers[1].kind == "LazyLinear"
    watched = Watched(model)
    for _ in range(2):
        watched.step(half_step(model, square))
    assert (watched.info("0").kind, watched.info("0").weight_shape) == ("Linear", [8, 16])
    assert watched.cells("0").weight_norm > 0


def test_several_threads_may_run_the_model() -> None:
    model = mlp()
    watched = Watched(model)
    batches = [ROWS * factor for factor in (1.0, 2.0, 3.0, 4.0)]

    def run() -> None:
        jobs = [threading.Thread(target=lambda b=b: model(b).sum().backward()) for b in batches]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()

    assert watched.step(run).cells("0").input_amax == batches[-1].abs().max().item()


def test_double_backward_is_untouched() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    twin = copy.deepcopy(model)
    for trained, observe in ((twin, False), (model, True)):
        rows = ROWS.clone().requires_grad_()

        def run(trained: nn.Module = trained, rows: Tensor = rows) -> None:
            (slope,) = torch.autograd.grad(trained(rows).sum(), rows, create_graph=True)
            slope.pow(2).mean().backward()

        Watched(trained).step(run) if observe else run()
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.equal(one.grad, other.grad)
