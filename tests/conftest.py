"""What every test stands on: folders of its own, a strict guard, nobody's endpoint, and its tier.

A test is quick, slow or neither. Slow ones bear a mark that says what takes long (`slow_browser`,
`slow_ranks`, ...; see pyproject.toml) and are left out by `-m "not slow"`.
"""

from __future__ import annotations

import fnmatch
import gc
import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Children of the tests inherit these too: what fails inside the guard fails the test.
os.environ["AMPWATCH_STRICT"] = "1"
# What a program prints is compared with what it prints alone: tests of our line ask for it.
os.environ["AMPWATCH_QUIET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled once, whatever the shell says: not by every worker, and by every child of theirs, again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

HERE = Path(__file__).parent
_numbers = itertools.count()

# Files of tests that start no process and train for a few steps at most; some of every room.
QUICK = [
    "alerts/test_alerts_delivery.py",
    "alerts/test_alerts_text.py",
    "cli/test_cli_import.py",
    "dashboard/test_dashboard_step_curves.py",
    "dashboard/test_dashboard_rank_curves.py",
    "dashboard/test_dashboard_html_text.py",
    "diagnosis/*",
    "examples/test_gallery_scoring.py",
    "feed/test_feed_endpoint.py",
    "importers/test_importers_endings.py",
    "importers/test_importers_times.py",
    "integrations/test_integrations_models.py",
    "probe/test_probe_culprit.py",
    "probe/test_probe_norms.py",
    "probe/test_probe_flushed_gradients.py",
    "probe/test_probe_layers_truth.py",
    "recorder/test_recorder_rank_copies.py",
    "store/test_store_catalogue.py",
    "store/test_store_copy_notes.py",
    "store/test_store_run.py",
    "test_codec.py",
    "test_files.py",
    "test_ranges.py",
    "test_report_divergence.py",
    "test_report_terminal.py",
    "test_printable_text.py",
    "torch_suite/test_torch_suite_scaler.py",
    "wrappers/test_wrappers_closures.py",
    "wrappers/test_wrappers_page.py",
]
# Those that train, and those that judge the same rows again and again, in other blocks.
NOT_QUICK = [
    "diagnosis/*_cast_losses.py",
    "diagnosis/*_engine.py",
    "diagnosis/*_late.py",
    "diagnosis/*_loss_spikes.py",
    "diagnosis/*_nonfinite_gradients.py",
    "diagnosis/*_portions.py",
    "diagnosis/*_quantised_layers.py",
    "diagnosis/*_rate_advice.py",
    "diagnosis/*_real.py",
    "diagnosis/*_rises.py",
]

# CI looks at more examples than who waits for the answer, and at the same ones each time: it judges
# the change and not its luck (HYPOTHESIS_PROFILE=thorough). Elsewhere they are drawn anew.
hypothesis.settings.register_profile("everyday", max_examples=50, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=150, deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` and `-m slow` do not load the other files: that takes each worker seconds."""
    holds = {"quick": is_quick, "slow": names_slow}.get(config.option.markexpr)
    if holds is None or not collection_path.name.startswith("test_"):
        return None
    return not holds(collection_path) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put each test into its tier, before `-m` chooses among them."""
    for item in items:
        is_slow = any(mark.name.startswith("slow_") for mark in item.iter_markers())
        if is_slow and names_slow(item.path):
            item.add_marker("slow")
        elif is_quick(item.path):
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the many tests that collect garbage need not look through it."""
    gc.collect()
    gc.freeze()


def is_quick(path: Path) -> bool:
    name = os.path.relpath(path, HERE).replace(os.sep, "/")
    told, untold = (any(fnmatch.fnmatch(name, p) for p in which) for which in (QUICK, NOT_QUICK))
    return told and not untold


def names_slow(path: Path) -> bool:
    """Whether a file marks tests as slow; what is marked from elsewhere runs with the others."""
    return b"mark.slow_" in path.read_bytes()


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a fixture of a whole module makes is not the user's either, nor another process's."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("session")
        patch.setenv("AMPWATCH_CONFIG_DIR", str(home / "config"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("AMPWATCH_ENDPOINT", "off")
        yield


@pytest.fixture(autouse=True)
def _no_conversion_before() -> None:
    """A conversion to fp8 is known by a module that it loads: another test's is not this one's."""
    sys.modules.pop("torchao.float8._inductor_patch", None)


@pytest.fixture
def _home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a test. `mktemp` would look through those of all tests before for a free number."""
    home = tmp_path_factory.getbasetemp() / f"test-{next(_numbers)}"
    home.mkdir(0o700)
    return home


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, _home: Path) -> Path:
    """pytest's, in the folder of the test."""
    path = _home / re.sub(r"\W", "_", request.node.name)[:30]
    path.mkdir(0o700)
    return path


@pytest.fixture(autouse=True)
def own_folders(_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration and state are the test's own; nothing is sent unless it asks."""
    for variable in ("AMPWATCH_DIR", "AMPWATCH", "AMPWATCH_INSECURE", "AMPWATCH_NOTIFY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AMPWATCH_CONFIG_DIR", str(_home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(_home / "state"))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", "off")
    return _home
