"""What a user saves or copies in a watched training is, byte for byte, what it is without us."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import io
import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import children
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn, optim
from torch.utils.hooks import RemovableHandle

import ampwatch
from ampwatch.probe.hooks import FailureShield, Hook, hook_after

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")

PROTOCOLS = range(6)
LAYER_EVERY = 50


class Block(nn.Module):
    """Has a state of its own, which nests what pickle would take, and holds a hook's handle."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.handle = self.inner.register_forward_hook(leave_alone)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x))

    def __getstate__(self) -> dict[str, Any]:
        return {"all": dict(self.__dict__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["all"])


class OwnCopy(nn.Linear):
    """Copies itself by hand, as many do."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnCopy:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made


def leave_alone(*_: Any) -> None:
    """A hook of the user's."""


def net() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), Block(), OwnCopy(8, 8), nn.Linear(8, 2))
    model[3].register_forward_pre_hook(leave_alone, with_kwargs=True)
    return model


@dataclass
class Training:
    """A training that has a hook of the user's from before the watch, and gets one after it."""

    model: nn.Module
    optimizer: optim.Optimizer
    scaler: torch.amp.GradScaler

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(3, 4)).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@contextlib.contextmanager
def training(folder: Path | None, make: Callable[[], nn.Module] = net) -> Iterator[Training]:
    """The same training each time, watched if there is a folder for the log."""
    torch.manual_seed(0)
    RemovableHandle.next_id = 0  # as in a process of its own
    model = make()
    made = Training(model, optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu"))
    with contextlib.ExitStack() as stack:
        if folder is not None:
            settings = {"endpoint": "off", "layer_every": LAYER_EVERY}
            stack.enter_context(ampwatch.attach(made.scaler, model, log_dir=folder, **settings))
        yield made


def saved(thing: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def pickled(thing: Any, protocol: int, pickler: Any = pickle.Pickler) -> bytes:
    """As `pickle.dumps`; a tensor's own bytes hold its address."""

    class Pickler(pickler):  # type: ignore[misc]
        def persistent_id(self, one: Any) -> str | None:
            return str(one.tolist()) if isinstance(one, Tensor) else None

    file = io.BytesIO()
    Pickler(file, protocol).dump(thing)
    return file.getvalue()


def all_saved(run: Training) -> dict[str, bytes]:
    """Everything that can be saved of a training, in every way."""
    things = {"model": run.model, "optimizer": run.optimizer, "scaler": run.scaler}
    files = {f"{name}, saved": saved(thing) for name, thing in things.items()}
    for name, thing in things.items():
        files[f"{name}, copied"] = saved(copy.deepcopy(thing))
        for protocol in PROTOCOLS:
            files[f"{name}, {protocol}"] = pickled(thing, protocol)
        files[f"{name}, in Python"] = pickled(thing, 4, pickle._Pickler)
    block = run.model[1]
    assert isinstance(block, Block)
    files["together"] = saved(things | {"one": block.inner, "handle": block.handle})
    files["state"] = saved([thing.state_dict() for thing in things.values()])
    files["safetensors"] = safetensors.torch.save(run.model.state_dict())
    return files


def hooks_of_ours(model: nn.Module) -> list[Any]:
    places = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    hooks = [hook for m in model.modules() for at in places for hook in getattr(m, at).values()]
    return [hook for hook in hooks if isinstance(hook, Hook) or hook.__name__ == "__exit__"]


def test_whatever_is_saved_is_the_same_before_during_and_after_a_watch(tmp_path: Path) -> None:
    with training(None) as alone:
        expected = [all_saved(alone)]
        for _ in range(2):
            alone.step()
            expected.append(all_saved(alone))
    with training(tmp_path) as watched:
        found = [all_saved(watched)]  # armed: the first step is a sampled one
        assert len(hooks_of_ours(watched.model)) > 10
        for _ in range(2):
            watched.step()
            found.append(all_saved(watched))
    assert all_saved(watched) == found[-1]
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert [name for name in theirs if ours[name] != theirs[name]] == [], f"after {number}"
    assert not any(word in each for each in found[-1].values() for word in (b"ampw", b"contextl"))


def test_hooks_that_the_user_adds_later_have_the_numbers_they_would_have(tmp_path: Path) -> None:
    numbers = []
    for folder in (None, tmp_path):
        with training(folder) as run:
            run.step()
            handle = run.model.register_forward_hook(leave_alone)
            loss = run.model(torch.ones(1, 4)).sum()
            late = loss.register_hook(lambda _gradient: None)
            last = run.optimizer.register_step_post_hook(leave_alone)
            numbers.append([handle.id, late.id, last.id, saved(run.model)])
    assert numbers[0] == numbers[1]


def test_a_copy_has_the_users_hooks_and_none_of_ours(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        run.step()
        for made in (copy.deepcopy(run.model), pickle.loads(pickle.dumps(run.model))):
            assert hooks_of_ours(made) == []
            block = made[1]
            assert list(block.inner._forward_hooks.values()) == [leave_alone]
            block.handle.remove()  # it is the copy's own
            assert not block.inner._forward_hooks
        assert next(iter(run.model[1].inner._forward_hooks.values())) is leave_alone


def test_a_saved_model_is_loaded_as_weights_only(tmp_path: Path) -> None:
    with training(tmp_path, lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))) as run:
        run.step()
        file = saved(run.model)
    classes = [nn.Sequential, nn.Linear, set]
    with torch.serialization.safe_globals(classes):
        loaded = torch.load(io.BytesIO(file), weights_only=True)
    assert torch.equal(loaded(torch.ones(1, 4)), run.model(torch.ones(1, 4)))


WORD_MODEL = """
import sys, torch, ampwatch

class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Embedding(11, 8)
        self.rnn = torch.nn.LSTM(8, 8, 1)
        self.decoder = torch.nn.Linear(8, 11)

    def forward(self, words):
        output, _ = self.rnn(self.encoder(words))
        return self.decoder(output)

model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
ampwatch.attach(scaler, model, log_dir=sys.argv[1], run="r")
for _ in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.arange(10).reshape(5, 2)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
torch.save(model, sys.argv[1] + "/model.pt")
safe = [Words, torch.nn.Embedding, torch.nn.LSTM, torch.nn.Linear, torch.nn.Module, set]
with torch.serialization.safe_globals(safe):
    torch.load(sys.argv[1] + "/model.pt", weights_only=True).rnn.flatten_parameters()
"""


def test_a_script_that_loads_its_own_model_at_the_end_ends_well(tmp_path: Path) -> None:
    ended = children.run("-c", WORD_MODEL, tmp_path, env=os.environ)
    assert ended.returncode == 0, ended.stderr
    assert ampwatch.open_run(tmp_path / "r").clean_end


def exported(model: nn.Module, mode: bool) -> str:
    program = torch.export.export(model, (torch.ones(3, 4),), strict=mode)
    return str(program)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_is_the_same(tmp_path: Path, strict: bool) -> None:
    programs = []
    for folder in (None, tmp_path):
        with training(folder, lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))) as run:
            run.step()
            programs.append(exported(run.model, strict))
    assert programs[0] == programs[1]


def traced() -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 2))


def compiled_within() -> nn.Module:
    return nn.Sequential(torch.compile(nn.Linear(4, 8), backend="eager"), nn.Linear(8, 2))


def parametrized() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    nn.utils.parametrizations.weight_norm(model[0])
    return model


@pytest.mark.parametrize("make", [traced, lazy, parametrized, compiled_within])
def test_modules_of_every_kind_are_saved_and_copied_as_ever(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    outcomes: list[list[Any]] = [[], [], []]  # the first has what torch makes once in a process
    for found, folder in zip(outcomes, (None, None, tmp_path), strict=True):
        with training(folder, make) as run:
            for _ in range(2):
                for way in (saved, as_pickle, copy.deepcopy):
                    found.append(outcome_of(way, run.model))
                run.step()
    assert outcomes[1] == outcomes[2]


def as_pickle(thing: Any) -> bytes:
    return pickled(thing, 4)


def outcome_of(way: Callable[[Any], Any], model: nn.Module) -> Any:
    """The bytes, the hooks of a copy, or the error: some kinds cannot be saved."""
    try:
        made = way(model)
    except Exception as error:
        return type(error), str(error)[:60]
    return made if isinstance(made, bytes) else hooks_of_ours(made)


def test_a_checkpoint_written_by_another_thread_is_whole(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        run.step()
        files: list[bytes] = []
        writer = threading.Thread(target=lambda: files.extend(saved(run.model) for _ in range(20)))
        writer.start()
        while writer.is_alive():
            hook_after(
                run.model[0], Hook(FailureShield(), leave_alone)
            ).remove()  # as a sampled step does
        writer.join()
        assert files == [saved(run.model)] * 20


def test_who_copies_the_hooks_by_hand_copies_one_that_does_nothing(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        hook = hooks_of_ours(run.model)[0]
        for made in (
            copy.deepcopy({1: hook})[1],
            pickle.loads(pickle.dumps(hook)),
            copy.copy(hook),
        ):
            assert made(run.model, (), {}) is None
            assert not isinstance(made, Hook)


def test_picklers_ask_us_only_while_a_hook_of_ours_is_there(tmp_path: Path) -> None:
    assert OrderedDict not in copyreg.dispatch_table
    with training(tmp_path) as run:
        run.step()
        assert OrderedDict in copyreg.dispatch_table
    assert OrderedDict not in copyreg.dispatch_table


def test_somebody_elses_word_on_ordered_dicts_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def theirs(one: Any) -> Any:
        asked.append(list(one))
        return one.__reduce_ex__(4)

    monkeypatch.setitem(copyreg.dispatch_table, OrderedDict, theirs)
    with training(tmp_path) as run:
        pickle.dumps(run.model)
        assert asked
        assert all(number >= 0 for each in asked for number in each if isinstance(number, int))
    assert copyreg.dispatch_table[OrderedDict] is theirs


def test_who_comes_after_us_and_passes_on_is_not_asked_in_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training(tmp_path / "first") as run:
        ours = copyreg.dispatch_table[OrderedDict]
        monkeypatch.setitem(copyreg.dispatch_table, OrderedDict, lambda one: ours(one))
        alone = saved(run.model)
    with training(tmp_path / "second") as run:
        assert saved(run.model) == alone


def test_a_users_own_ordered_dict_with_numbers_below_zero_is_left_alone(tmp_path: Path) -> None:
    mine = OrderedDict([(-1, "a"), (-2, leave_alone), (3, "c")])
    with training(tmp_path):
        assert pickle.loads(pickle.dumps(mine)) == copy.deepcopy(mine) == mine


def test_a_watched_scaler_says_that_it_is_of_its_own_class(tmp_path: Path) -> None:
    with training(tmp_path) as run:
        assert run.scaler.__class__ is torch.amp.GradScaler
        assert (
            type(copy.deepcopy(run.scaler)) is type(copy.copy(run.scaler)) is torch.amp.GradScaler
        )
