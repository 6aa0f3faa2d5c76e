"""The importer that CONTRIBUTING.md shows, copied from there and run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

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
