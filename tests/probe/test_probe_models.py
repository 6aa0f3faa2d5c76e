"""What a survey says of a model: names, first holders, wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch
from torch import nn

from ampwatch.errors import AttachError
from ampwatch.probe.models import survey


class WithBareParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.attention = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)


def names(model: object) -> list[str]:
    return [layer.name for layer in survey(model).layers]


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_the_layers_are_the_named_modules_with_the_root_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    expected = ["(root)" if name == "" else name for name, _ in model.named_modules()]
    assert names(model) == expected


def test_a_bare_parameter_of_a_module_with_children_is_a_layer_of_its_own() -> None:
    assert names(WithBareParameters()) == [
        "(root)", "token", "attention", "attention.in_proj_weight", "attention.in_proj_bias",
        "attention.out_proj", "norm",
    ]  # fmt: skip


def test_every_parameter_stands_once_with_its_first_holder() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    model["head"].weight = model["embed"].weight
    surveyed = survey(model)
    assert [id(p) for p in surveyed.parameters] == [id(p) for p in model.parameters()]
    holders = [surveyed.layers[number].name for number in surveyed.parameter_layers]
    assert holders == ["embed", "head"]
    embed, head = surveyed.layers[1], surveyed.layers[2]
    assert (embed.parameters, embed.weights) == ((0,), (0,))
    assert (head.parameters, head.weights) == ((1,), (0, 1))


def test_a_shared_module_is_one_layer() -> None:
    shared = nn.Linear(2, 2)
    assert names(nn.Sequential(shared, nn.ReLU(), shared)) == ["(root)", "0", "1"]


def test_several_models_are_prefixed_by_index_or_key() -> None:
    one, two = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    assert names([one, two]) == ["0", "1", "1.0"]
    assert names({"gen": one, "disc": two}) == ["gen", "disc", "disc.0"]
    assert names([two, two]) == ["0", "0.0"]
    assert names(None) == []


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_names_do_not_show_a_data_parallel_wrapper(group: None) -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for wrapped in (nn.DataParallel(plain), nn.parallel.DistributedDataParallel(plain)):
        surveyed = survey(wrapped)
        assert [layer.name for layer in surveyed.layers] == ["(root)", "0", "1"]
        assert surveyed.roots == (plain,)


def test_names_do_not_show_a_compiled_wrapper_and_what_is_inside_is_sealed() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = torch.compile(plain, backend="eager")
    outer = nn.Sequential(compiled, nn.Linear(2, 2))
    surveyed = survey(outer)
    assert [layer.name for layer in surveyed.layers] == ["(root)", "0", "0.0", "0.1", "1"]
    assert surveyed.layers[1].module is plain
    assert surveyed.layers[1].hooked is compiled
    assert [layer.sealed for layer in surveyed.layers] == [None, "compiled", None, None, None]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_scripted_module_is_sealed() -> None:
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    assert survey(nn.Sequential(scripted)).layers[1].sealed == "scripted"


def test_containment_follows_the_tree() -> None:
    surveyed = survey(nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU()))
    layers = {layer.name: layer for layer in surveyed.layers}
    assert surveyed.around(layers["0.0"]) == [layers["0"].number, layers["(root)"].number]
    assert surveyed.around(layers["1"]) == [layers["(root)"].number]
    assert surveyed.around(layers["(root)"]) == []


@pytest.mark.parametrize("wrong", ["a string", [nn.Linear(2, 2), 3], {"a": None}, 7])
def test_what_is_no_model_is_refused_with_the_remedy(wrong: object) -> None:
    with pytest.raises(AttachError, match=r"pass attach\(scaler, model\)"):
        survey(wrong)


def test_a_run_tells_what_its_models_are_wrapped_in() -> None:
    wrapped = torch.compile(nn.DataParallel(nn.Linear(2, 2)))
    assert [asdict(root) for root in survey({"G": wrapped, "D": nn.ReLU()}).described] == [
        {"prefix": "G", "wrapped": ("OptimizedModule", "DataParallel")},
        {"prefix": "D", "wrapped": ()},
    ]
