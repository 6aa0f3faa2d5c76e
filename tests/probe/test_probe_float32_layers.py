"""One layer in float32: what it computes with, how it is found, and how it is given back."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections import OrderedDict
from typing import NamedTuple

import children
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import ampwatch
from ampwatch.errors import Float32Error
from ampwatch.probe.models import survey
from ampwatch.rows import Table

HALF = torch.float16


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


class Told(OrderedDict):
    """A dict of a class of its own, as libraries return."""


class Mixed(nn.Module):
    """Keeps the types it was called with."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, more=None):
        self.called_with = (x.dtype, mask, more)
        return self.inner(x)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def autocast(dtype=HALF):
    return torch.autocast("cpu", dtype)


def output_of(model, x=None):
    with autocast():
        return model(torch.ones(2, 4) if x is None else x)


# --- what it computes with -----------------------------------------------------------------------


def test_the_layer_computes_in_float32_under_autocast_and_no_other_does():
    model = net()
    seen = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda *o, name=name: seen.update({name: o[2].dtype}))
    ampwatch.run_in_float32(model, "0")
    output_of(model)
    assert seen == {"0": torch.float32, "1": torch.float32, "2": HALF}


def test_a_value_beyond_half_precision_is_finite_in_it():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(40000.0)
    assert not output_of(model[0]).isfinite().all()
    ampwatch.run_in_float32(model, "0")
    assert output_of(model[0]).isfinite().all()


def test_only_half_precision_tensors_of_the_inputs_are_cast_nested_ones_too():
    model = nn.Sequential(OrderedDict(layer=Mixed()))
    ampwatch.run_in_float32(model, "layer")
    half, mask, double = torch.ones(2, 4).half(), torch.ones(2).bool(), torch.ones(2).double()
    plain = {"mask": mask, "count": 3}
    more = {"a": [half, double], "b": Pair(half, ("x", half.bfloat16())), "c": Told(d=half)}
    with autocast():
        model.layer(half, mask, more={**more, "plain": plain})
    dtype, seen_mask, seen = model.layer.called_with
    assert dtype == torch.float32
    assert seen_mask is mask
    assert seen["a"][0].dtype == torch.float32
    assert seen["a"][1] is double
    assert isinstance(seen["b"], Pair)
    assert seen["b"].second[1].dtype == torch.float32
    assert type(seen["c"]) is Told
    assert seen["c"]["d"].dtype == torch.float32
    assert seen["plain"] is plain
    assert more["a"][0] is half  # what was given is as it was


def test_a_recurrent_layer_takes_packed_sequences():
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 3)})
    ampwatch.run_in_float32(model, "lstm")
    packed = pack_sequence([torch.ones(3, 4).half(), torch.ones(2, 4).half()])
    with autocast():
        output, _ = model["lstm"](packed)
    assert output.data.dtype == torch.float32


def test_a_layer_without_weights_and_a_whole_model_can_run_so():
    model = net()
    ampwatch.run_in_float32(model, "1")
    with autocast():
        assert model[1](torch.ones(2).half()).dtype == torch.float32
    whole = net()
    ampwatch.run_in_float32(whole, "(root)")
    assert output_of(whole).dtype == torch.float32


def test_a_training_with_a_loss_scaler_goes_on_and_the_layer_gets_gradients():
    def train(in_float32):
        model = net()
        if in_float32:
            ampwatch.run_in_float32(model, "2")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            with autocast():
                loss = (output_of(model).float() - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
        assert model[2].weight.grad.dtype == torch.float32
        return losses

    plain, changed = train(False), train(True)
    assert changed[-1] < 0.1 * changed[0]
    assert changed == pytest.approx(plain, rel=0.05, abs=0.01)


def test_activation_checkpoints_recompute_it_in_float32():
    from torch.utils.checkpoint import checkpoint

    model = net()
    ampwatch.run_in_float32(model, "2")
    with autocast():
        output = checkpoint(model, torch.ones(2, 4), use_reentrant=False)
    output.sum().backward()
    assert output.dtype == torch.float32
    assert model[0].weight.grad is not None


def test_it_works_with_ampwatch_switched_off():
    code = (
        "import torch, ampwatch; m = torch.nn.Sequential(torch.nn.Linear(2, 2));"
        "print(ampwatch.run_in_float32(m, '0'))\n"
        "with torch.autocast('cpu', torch.float16): print(m(torch.ones(1, 2)).dtype)"
    )
    done = children.run("-c", code, env={**os.environ, "AMPWATCH": "0"})
    assert done.stdout == "0 runs in float32.\ntorch.float32\n"


# --- undone --------------------------------------------------------------------------------------


def test_undo_gives_back_the_class_the_weights_and_their_gradients():
    model = net().half()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    kept = model[2].weight
    handle = ampwatch.run_in_float32(model, "2")
    assert kept is model[2].weight
    assert kept.dtype == torch.float32
    assert model.state_dict().keys() == before.keys()
    kept.grad = torch.ones_like(kept)
    handle.undo()
    handle.undo()
    assert type(model[2]) is nn.Linear
    assert vars(model[2]).keys() == vars(nn.Linear(1, 1)).keys()
    assert (kept.dtype, kept.grad.dtype) == (HALF, HALF)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert str(handle) == "2 runs as it did before."


def test_it_ends_with_the_with_statement_also_if_that_raises():
    model = net()
    with ampwatch.run_in_float32(model, "2"):
        assert output_of(model).dtype == torch.float32
    assert output_of(model).dtype == HALF
    with pytest.raises(RuntimeError), ampwatch.run_in_float32(model, "2"):
        model(torch.ones(1, 3))  # of a wrong size
    assert type(model[2]) is nn.Linear
    assert not torch.is_autocast_enabled("cpu")


def test_a_second_call_returns_the_same_handle_until_it_is_undone():
    model = net()
    handle = ampwatch.run_in_float32(model, "2")
    assert ampwatch.run_in_float32(nn.DataParallel(model), "module.2") is handle
    handle.undo()
    again = ampwatch.run_in_float32(model, "2")
    assert output_of(model).dtype == torch.float32
    again.undo()
    assert type(model[2]) is nn.Linear


def test_a_forward_that_somebody_had_set_on_the_layer_is_called_and_given_back():
    model = net()
    plain = model[2].forward
    model[2].forward = lambda x: plain(x) + 100
    theirs = vars(model[2])["forward"]
    handle = ampwatch.run_in_float32(model, "2")
    output = output_of(model)
    assert output.dtype == torch.float32
    assert output.min() > 50
    handle.undo()
    assert vars(model[2])["forward"] is theirs


def test_weights_in_float64_stay_so():
    model = net().double()
    ampwatch.run_in_float32(model, "2")
    assert model[2].weight.dtype == torch.float64


# --- found ---------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Named as torch's, which is looked through."""

    def __init__(self, module):
        super().__init__()
        self._checkpoint_wrapped_module = module

    def forward(self, x):
        return self._checkpoint_wrapped_module(x)


Checkpointed.__name__ = "CheckpointWrapper"


class Engine(nn.Module):
    """A wrapper that nobody knows."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (nn.DataParallel, "2"),
        (nn.DataParallel, "module.2"),
        (torch.compile, "2"),
        (torch.compile, "_orig_mod.2"),
        (lambda model: torch.compile(nn.DataParallel(model)), "_orig_mod.module.2"),
        (Engine, "2"),
        (Engine, "module.2"),
        (lambda model: nn.DataParallel(Engine(model)), "2"),
    ],
)
def test_a_layer_is_found_behind_wrappers_by_either_name(wrap, name):
    model = net()
    ampwatch.run_in_float32(wrap(model), name)
    assert output_of(model).dtype == torch.float32


def test_a_wrapper_in_the_middle_is_looked_through():
    model = nn.Sequential(Checkpointed(net()))
    ampwatch.run_in_float32(model, "0.2")
    assert output_of(model).dtype == torch.float32
    assert survey(model).layers[-1].name == "0.2"  # as findings name it


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda one, other: {"G": one, "D": other}, "D.2"),
        (lambda one, other: [one, other], "1.2"),
        (lambda one, other: (one, nn.DataParallel(other)), "1.module.2"),
        (lambda one, other: {"G": nn.Linear(1, 1), "D": other}, "2"),
    ],
)
def test_a_layer_of_several_models_is_found_by_its_prefix(make, name):
    one, other = net(), net()
    ampwatch.run_in_float32(make(one, other), name)
    assert output_of(one).dtype == HALF
    assert output_of(other).dtype == torch.float32


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(2, 2)}) for _ in range(2)])
        self.attention = nn.MultiheadAttention(4, 2)
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("model", "name", "told"),
    [
        (Holder(), "blocks.0.upp", r"no layer 'blocks.0.upp'. Near names: blocks.0.up, "),
        (Holder(), "h.3.up", r"Near names: blocks.0.up, blocks.1.up"),
        (nn.DataParallel(Holder()), "blocks.9.up", r"Near names: blocks.[01].up, "),
        (Holder(), "scale", r"is a parameter, not a layer.*\(root\)"),
        (Holder(), "attention.out_proj", "Run attention in float32"),
        (Holder(), 3, "not a text"),
        ("model", "0", "is no model"),
        ([], "0", "is no model"),
        ([net(), net()], "2", "name one of 0.2, 1.2"),
        (torch.jit.script(net()), "2", "TorchScript"),
    ],
)
def test_what_cannot_be_found_or_done_is_answered_with_what_to_do(model, name, told):
    with pytest.raises(Float32Error, match=told):
        ampwatch.run_in_float32(model, name)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def test_shared_weights_are_no_hindrance_in_float32_and_refused_in_half_precision():
    model = Tied()
    ampwatch.run_in_float32(model, "head")
    assert output_of(model, torch.ones(2).long()).dtype == torch.float32
    with pytest.raises(Float32Error, match=r"head shares its weights.*with embed"):
        ampwatch.run_in_float32(Tied().half(), "head")


# --- kept ----------------------------------------------------------------------------------------


def copied(model):
    return copy.deepcopy(model)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [copied, pickled, saved])
def test_a_copy_is_independent_and_runs_in_float32_too(way):
    model = net().half()
    handle = ampwatch.run_in_float32(model, "2")
    other = way(model)
    handle.undo()
    with autocast():
        assert other[2](torch.ones(2, 8)).dtype == torch.float32
        assert model[2](torch.ones(2, 8)).dtype == HALF
    assert other[2].weight.dtype == torch.float32
    assert model[2].weight.dtype == HALF
    ampwatch.run_in_float32(other, "2").undo()
    assert type(other[2]) is nn.Linear
    assert other[2].weight.dtype == HALF


@pytest.mark.parametrize("first", ["compiled", "changed"])
def test_a_compiled_model_runs_the_layer_in_float32_whichever_came_first(first):
    torch._dynamo.reset()
    model = net()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    if first == "compiled":
        assert output_of(compiled).dtype == HALF
    handle = ampwatch.run_in_float32(compiled, "2")
    output_of(compiled).sum().backward()
    assert output_of(compiled).dtype == torch.float32
    handle.undo()
    assert output_of(compiled).dtype == HALF


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch ignores it itself
def test_a_layer_that_was_compiled_in_place_is_compiled_anew():
    torch._dynamo.reset()
    model = net()
    model[2].compile(backend="eager")
    assert output_of(model).dtype == HALF
    ampwatch.run_in_float32(model, "2")
    assert output_of(model).dtype == torch.float32


def test_nested_inputs_of_a_compiled_layer_are_cast_without_a_break():
    torch._dynamo.reset()

    class Summed(nn.Module):
        def forward(self, x, more):
            return x @ more["a"][0]

    model = nn.ModuleDict({"sum": Summed()})
    ampwatch.run_in_float32(model, "sum")
    compiled = torch.compile(model["sum"], backend="eager", fullgraph=True)
    half = torch.ones(2, 2).half()
    with autocast():
        assert compiled(half, {"a": (half, "x")}).dtype == torch.float32


def test_weight_norm_put_on_it_afterwards_keeps_it_in_float32():
    model = net()
    handle = ampwatch.run_in_float32(model, "2")
    nn.utils.parametrizations.weight_norm(model[2])
    assert output_of(model).dtype == torch.float32
    handle.undo()
    assert output_of(model).dtype == HALF


def test_replicas_of_data_parallel_compute_with_their_own_weights():
    model = net()
    ampwatch.run_in_float32(model, "2")
    replica = model[2]._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(2, 8), torch.full((2,), 7.0)
    with autocast():
        output = replica(torch.ones(1, 8))
    assert output.tolist() == [[7.0, 7.0]]
    assert output.dtype == torch.float32


def test_a_watch_sees_the_layer_in_float32(tmp_path):
    model = net()
    ampwatch.run_in_float32(model, "2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    watch = ampwatch.attach(scaler, model, log_dir=tmp_path, run="one", endpoint="off")
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(output_of(model).float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    watch.close()
    told = ampwatch.open_run(tmp_path / "one").read(Table.LAYERS).to_pylist()
    dtypes = {row["layer"]: row["output_dtype"] for row in told if row.get("output_dtype")}
    assert dtypes["2"] == "float32"
    assert dtypes["0"] == "float16"


# --- several ranks -------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ddp_wrapped_around_it_afterwards_trains_it(process_group):
    model = net()
    ampwatch.run_in_float32(model, "2")
    wrapped = nn.parallel.DistributedDataParallel(model)
    output = output_of(wrapped)
    output.sum().backward()
    assert output.dtype == torch.float32
    assert model[2].weight.grad is not None


def test_under_ddp_weights_in_float32_can_run_so_and_half_ones_are_refused(process_group):
    wrapped = nn.parallel.DistributedDataParallel(net())
    ampwatch.run_in_float32(wrapped, "module.2")
    assert output_of(wrapped).dtype == torch.float32
    halved = nn.parallel.DistributedDataParallel(net().half())
    with pytest.raises(Float32Error, match="before the model is wrapped"):
        ampwatch.run_in_float32(halved, "2")


def test_fsdp_put_around_it_afterwards_leaves_it_in_float32(process_group):
    from torch.distributed.fsdp import fully_shard

    model = net()
    ampwatch.run_in_float32(model, "2")
    mesh = dist.init_device_mesh("cpu", (1,))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    output = output_of(model)
    output.sum().backward()
    assert output.dtype == torch.float32


def test_a_layer_that_fsdp_shards_is_refused(process_group):
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    with pytest.raises(Float32Error, match="sharded by FSDP"):
        ampwatch.run_in_float32(model, "2")
