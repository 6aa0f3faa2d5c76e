"""What is shipped: the wheel's contents, a light import, and documents that keep their word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "zmq", "pyarrow", "streamlit", "plotly", "pandas"}


def loaded_by(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after this code."""
    script = f"import sys\n{code}\nprint(*({HEAVY!r} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return set(child.stdout.split())


def test_importing_ampwatch_loads_nothing_heavy():
    assert loaded_by("import ampwatch") == set()


def test_attach_loads_neither_views_nor_pandas():
    assert loaded_by("import ampwatch; ampwatch.attach") <= {"torch", "zmq", "pyarrow"}


def test_a_report_needs_neither_torch_nor_zmq():
    assert loaded_by("import ampwatch; ampwatch.diagnose, ampwatch.open_run") == {"pyarrow"}


def test_the_text_and_the_html_report_load_no_view():
    code = "from ampwatch.report import compare, html_report, print_report, write_event_files"
    assert loaded_by(code) == {"pyarrow"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names of the files in a freshly built wheel."""
    builder = pytest.importorskip(
        "hatchling.builders.wheel", reason="no hatchling here to build with"
    )
    out = tmp_path_factory.mktemp("dist")
    (built,) = builder.WheelBuilder(str(ROOT)).build(directory=str(out), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_ships_the_dashboard_and_the_demo_inside_the_package(wheel):
    assert {
        "ampwatch/py.typed",
        "ampwatch/diagnosis/pages/AMP101.md",
        "ampwatch/report/report.css",
        "ampwatch/report/painter/painter.css",
        "ampwatch/report/painter/chart.js",
        "ampwatch/report/painter/loader.js",
        "ampwatch/report/painter/report.js",
        "ampwatch/_dashboard/streamlit_app.py",
        "ampwatch/_dashboard/.streamlit/config.toml",
        "ampwatch/_dashboard/styles/page.css",
        "ampwatch/_demo/charmodel.py",
        "ampwatch/_demo/lr_too_high.py",
    } <= wheel


def test_the_wheel_has_one_top_level_name_and_no_tests(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ampwatch"}
    assert not [name for name in wheel if "test_" in name or "__pycache__" in name]


def test_the_changelog_has_a_section_for_what_comes():
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_link_in_the_readme_leads_somewhere():
    text = (ROOT / "README.md").read_text("utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", text):
        assert (ROOT / target).exists(), target


def test_the_ci_runs_the_readmes_test_command_and_besides_only_what_that_leaves_out():
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"<!-- test -->\n```bash\n(.+)\n```\n<!-- /test -->", readme)
    assert block is not None
    tests = block[1].partition("-m pytest")[2]
    assert tests.endswith('-m "not slow"')
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    told = [line.partition("-m pytest")[2] for line in script.splitlines() if "pytest" in line]
    assert [re.sub("-n [0-9]", "-n 2", one) for one in told] == [
        tests.replace('-m "not slow"', "-m slow </dev/null")
    ]
