"""The importer that CONTRIBUTING.md shows, copied from there and run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch import diagnose, open_run
from ampwatch.importers import formats, import_log

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def the_importer_of_the_page(folder: Path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) <= 30
    path = folder / "tinytrainer.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("tinytrainer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FORMAT


def test_the_thirty_lines_of_the_page_are_an_importer(tmp_path, monkeypatch):
    form = the_importer_of_the_page(tmp_path)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, form))
    before = [f"step {n} loss 2.5 scale 65536.0\n" for n in range(10, 200, 10)]
    after = [f"step {n} loss 2.4 scale 32768.0\n" for n in range(200, 400, 10)]
    log = tmp_path / "train.log"
    log.write_text("".join([*before, "inf found, scale now 32768.0\n", *after]))
    run = diagnose(open_run(import_log(log, tmp_path / "runs"))).run
    assert (run.source, run.steps, run.skipped) == ("tinytrainer", 390, 1)
    assert (run.first_scale, run.final_scale) == (65536.0, 32768.0)


def imported_beside(folder: Path, code: str):
    """What `ampwatch import` says, beside an installed package whose format has this code."""
    site = folder / "site"
    about = site / "tinytrainer_logs-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "tinytrainer_logs.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tinytrainer-logs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[ampwatch.formats]\ntinytrainer = tinytrainer_logs:FORMAT\n"
    )
    log = folder / "train.log"
    log.write_text("".join(f"tiny<{n}> l={2.5 - n / 1000} s=65536\n" for n in range(10, 400, 10)))
    return subprocess.run(
        [sys.executable, "-m", "ampwatch", "import", str(log), "-o", str(folder / "runs")],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_another_packages_format_is_found_by_its_entry_point(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    code = code.replace(
        "step <step> loss <loss> scale <scale_after>", "tiny.<step>. l=<loss> s=<scale_after>"
    )
    done = imported_beside(tmp_path, code.replace('"step "', '"tiny<"'))
    assert done.returncode == 0, done.stderr
    run = open_run(next((tmp_path / "runs").iterdir()))
    assert run.info.source == "tinytrainer"
    assert run.steps["scale_after"].to_pylist() == [65536.0] * 39


@pytest.mark.parametrize("code", ["FORMAT = 1", "import nothing_of_that_name"])
def test_a_format_that_cannot_be_loaded_is_named(tmp_path, code):
    done = imported_beside(tmp_path, code)
    assert done.returncode == 2
    assert (
        "The text format tinytrainer_logs:FORMAT (ampwatch.formats) cannot be loaded" in done.stderr
    )
    assert "uninstall its package" in done.stderr
