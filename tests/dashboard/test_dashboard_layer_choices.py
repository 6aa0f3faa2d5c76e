"""Which quantity of layers a page begins with, and which ones it offers."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from address import Address
from alert_parts import finding
from layer_choices import offered_quantities, shown_quantity
from written_runs import write_run

from ampwatch import diagnose, open_run
from ampwatch.diagnosis import Severity

ALL = {"act_amax", "grad_norm", "update_ratio", "log2_headroom", "underflow_share"}


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory):
    return diagnose(open_run(write_run(tmp_path_factory.mktemp("runs"))))


def snapshot(diagnosis, filled, *findings):
    """A run whose layers have values in these columns, with these findings."""
    layers = SimpleNamespace(columns_with_values=lambda *_, **__: frozenset(filled))
    told = dataclasses.replace(diagnosis, findings=findings)
    return SimpleNamespace(
        layers=layers, diagnosis=told, is_live=False, once=lambda _, make: make()
    )  # fmt: skip


def begins_with(run, **where):
    return shown_quantity(run, Address(**where)).quantity.column


SPIKE = finding("AMP302", Severity.ERROR, because_of=None)


@pytest.mark.parametrize(
    ("code", "column"),
    [("AMP203", "act_amax"), ("AMP201", "underflow_share"), ("AMP302", "grad_norm"),
     ("AMP205", "log2_headroom")],
)  # fmt: skip
def test_the_page_begins_with_what_the_headline_is_about(diagnosis, code, column):
    run = snapshot(diagnosis, ALL, finding(code, Severity.WARNING, because_of=None))
    assert begins_with(run) == column
    assert begins_with(run, quantity="update_ratio") == "update_ratio"


def test_where_the_headline_is_of_no_layer_what_follows_from_it_is_shown(diagnosis):
    cause = finding("AMP412", Severity.ERROR, because_of=None)
    other = finding("AMP205", Severity.WARNING, because_of=None)
    effect = finding("AMP203", Severity.ERROR, because_of="AMP412")
    assert begins_with(snapshot(diagnosis, ALL, cause, other, effect)) == "act_amax"
    assert begins_with(snapshot(diagnosis, ALL, cause, other)) == "grad_norm"


def test_a_calm_run_begins_with_gradients_and_a_run_without_them_with_what_it_has(diagnosis):
    calm = finding("AMP102", Severity.INFO, because_of=None)
    assert begins_with(snapshot(diagnosis, ALL, calm)) == "grad_norm"
    assert begins_with(snapshot(diagnosis, {"act_amax"}, SPIKE)) == "act_amax"


def test_only_quantities_that_the_run_has_are_offered(diagnosis):
    filled = {"grad_norm", "update_ratio", "input_what_if.0"}
    offered = [one.column for one in offered_quantities(snapshot(diagnosis, filled))]
    assert offered == ["grad_norm", "update_ratio", "e4m3"]
    assert begins_with(snapshot(diagnosis, filled), quantity="moment_ratio") == "grad_norm"
