"""What may be asked for, and what is said where it cannot be had."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from written_runs import write_run

import ampwatch
from ampwatch import cli
from ampwatch.errors import MirrorError
from ampwatch.mirrors import open_mirror
from ampwatch.mirrors.mirroring import EXAMPLES, KINDS

OTLP = "opentelemetry.exporter.otlp.proto.{}.metric_exporter"
CLIENTS = {
    "prometheus://:0": ("prometheus_client", "prometheus-client"),
    "otlp://h": ("opentelemetry.sdk.metrics", "opentelemetry-sdk"),
    "otlps://h": (OTLP.format("http"), "opentelemetry-exporter-otlp-proto-http"),
    "otlp://h:4317": (OTLP.format("grpc"), "opentelemetry-exporter-otlp-proto-grpc"),
    "wandb:p": ("wandb", "wandb"),
    "mlflow:e": ("mlflow", "mlflow"),
    "trackio:p": ("trackio", "trackio"),
}


@pytest.mark.parametrize("place", CLIENTS)
def test_a_client_that_is_missing_is_named_with_what_to_install(monkeypatch, place):
    module, package = CLIENTS[place]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MirrorError, match=f"pip install {package}"):
        open_mirror(place, is_inside=False)


@pytest.mark.parametrize("place", ["", "nowhere", "tensorboard", "tensorboard:"])
def test_a_place_that_is_none_is_refused_with_examples(tmp_path, capsys, place):
    assert cli.run(["watch", str(write_run(tmp_path)), "--to", place]) == 2
    error = capsys.readouterr().err
    assert "tensorboard:DIR" in error
    assert error.count("\n") == 1


def test_of_several_places_none_is_left_open_when_one_cannot_be_had(tmp_path):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    pytest.importorskip("prometheus_client", reason="no prometheus-client here")
    place = f"prometheus://127.0.0.1:{port}"
    with pytest.raises(MirrorError, match="nowhere"):
        ampwatch.mirror(write_run(tmp_path), to=[place, "nowhere"])
    open_mirror(place, is_inside=True).close()  # the port is free again


def test_a_client_that_raises_when_it_is_opened_is_told_of_without_a_password(monkeypatch):
    def broken(rest, *, is_inside):
        raise OSError("no way to http://me:s3cret@host")

    monkeypatch.setattr("ampwatch.mirrors.mlflow.open_mirror", broken)
    with pytest.raises(MirrorError, match="no way to http://…@host"):
        open_mirror("mlflow", is_inside=True)


def test_with_no_run_active_it_says_what_to_begin(tmp_path):
    with pytest.raises(MirrorError, match="active"):
        ampwatch.mirror(write_run(tmp_path))


def test_thinning_takes_a_whole_number(tmp_path):
    with pytest.raises(MirrorError, match="thin is 0"):
        ampwatch.mirror(write_run(tmp_path), to=f"tensorboard:{tmp_path}", thin=0)


def test_with_the_watch_switched_off_nothing_is_mirrored(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPWATCH", "0")
    threads = threading.active_count()
    with ampwatch.mirror(ampwatch.attach(None, None), to=f"tensorboard:{tmp_path}/tb"):
        assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_notebooks_cell_that_is_run_again_mirrors_once(tmp_path):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    place = f"tensorboard:{tmp_path}/tb"
    with ampwatch.attach(None, None, optimizer=optimizer, log_dir=tmp_path) as watch:
        first = ampwatch.mirror(watch, to=place)
        with pytest.warns(RuntimeWarning, match="already"):
            assert ampwatch.mirror(watch, to=place) is first
        first.close()
        assert ampwatch.mirror(watch, to=place) is not first


def test_no_client_is_loaded_before_it_is_asked_for():
    code = "import sys, ampwatch.mirrors; print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in child.stdout.split()}
    assert not loaded & {"wandb", "mlflow", "trackio", "prometheus_client", "opentelemetry"}
    assert not loaded & {"torch", "pandas", "plotly", "streamlit", "tensorboard"}


def test_every_place_is_documented():
    for name in KINDS:
        assert name in EXAMPLES  # which an unknown tool prints
        assert f"`{name}:" in (Path(__file__).parents[2] / "docs" / "mirrors.md").read_text("utf-8")
