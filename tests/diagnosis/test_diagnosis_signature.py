"""A signature tells what a run is made of: not its name, its rate, or on how many processes."""

from __future__ import annotations

import json

import pytest
from structured_runs import BEGAN_NS, write_structured
from written_runs import event_columns, write_run

from ampwatch import codec, store
from ampwatch.diagnosis.earlier_runs import Signature, signature_of
from ampwatch.rows import Table


@pytest.fixture
def made(tmp_path):
    """The signature of a run that is written so."""
    numbers = iter(range(100))

    def make(**how):
        return signature_of(store.open_run(write_structured(tmp_path, f"r{next(numbers)}", **how)))

    return make


@pytest.mark.parametrize(
    "other",
    [
        {"rate": 0.3},
        {"prefix": "module.encoder."},
        {"kind": "FSDPLinear"},
        {"rows": 8, "micro_batches": 4},
        {"rows": 8, "world_size": 4, "ranks": (0, 1, 2, 3)},
        {"optimizer": {"fused": True, "weight_decay": 0.1}},
        {"steps": 60, "fails": True},
    ],
)
def test_runs_are_alike_whatever_does_not_change_what_they_are_made_of(made, other):
    assert made().is_alike(made(**other))


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "Conv2d"},
        {"autocast": "bfloat16"},
        {"optimizer": {"class": "SGD"}},
        {"optimizer": {"betas": [0.9, 0.95]}},
    ],
)
def test_another_kind_of_layer_optimizer_or_precision_is_neither_alike_nor_near(made, other):
    one, another = made(), made(**other)
    assert not one.is_alike(another)
    assert not one.is_near(another)


@pytest.mark.parametrize("other", [{"width": 128}, {"depth": 6}, {"rows": 128}])
def test_the_same_at_another_width_depth_or_batch_is_near(made, other):
    one, another = made(), made(**other)
    assert not one.is_alike(another)
    assert one.is_near(another)
    assert another.is_near(one)


def test_what_is_more_than_four_times_as_large_is_not_near(made):
    assert not made().is_near(made(width=512))


def test_the_text_is_short_stable_and_read_back(made):
    one = made()
    assert one.text == "1:e877e57beebc91e4:8334e6179a536259:6.00,1.58,5.00"
    assert Signature.of_text(one.text).is_alike(one)
    assert len(made(depth=400).text) < 80


@pytest.mark.parametrize("text", [None, "", "2:a:b:1,2,3", "1:a:b:1,2", "1:a:b:x,2,3", "nonsense"])
def test_the_text_of_another_version_and_what_is_none_is_no_signature(text):
    assert Signature.of_text(text) is None


def test_a_run_without_layers_has_no_signature(tmp_path):
    assert signature_of(store.open_run(write_run(tmp_path, "bare"))) is None


def test_an_unknown_batch_is_like_another_unknown_one_only(made):
    one, unknown = made(), Signature.of_text(made().text.rsplit(",", 1)[0] + ",")
    assert unknown.is_alike(unknown)
    assert not unknown.is_alike(one)


@pytest.mark.parametrize("value", [10**400, "much", [[[1]]], {"a": 1}, float("inf"), [None] * 1000])
def test_a_damaged_setting_of_the_optimizer_is_another_setting(tmp_path, value):
    path = write_structured(tmp_path, "odd")
    writer = store.RankWriter(path, 0)
    told = {"optimizer": 1, "class": "SGD", "groups": [{"eps": value}]}
    events = event_columns([(1, "optimizer", told)], BEGAN_NS)
    assert json.loads(events["detail"][0])["optimizer"] == 1
    writer.append(codec.encode(Table.EVENTS, events))
    writer.close()
    odd = signature_of(store.open_run(path))
    assert len(odd.text) < 80
    assert not odd.is_alike(signature_of(store.open_run(write_structured(tmp_path, "plain"))))
