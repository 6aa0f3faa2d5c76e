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
def built_wheel(tmp_path_factory):
    """A freshly built wheel."""
    builder = pytest.importorskip(
        "hatchling.builders.wheel", reason="no hatchling here to build with"
    )
    out = tmp_path_factory.mktemp("dist")
    (built,) = builder.WheelBuilder(str(ROOT)).build(directory=str(out), versions=["standard"])
    return built


@pytest.fixture(scope="module")
def wheel(built_wheel):
    """The names of the files in it."""
    with zipfile.ZipFile(built_wheel) as archive:
        return set(archive.namelist())


# Streamlit's own search, among the distributions of one folder.
PAINTERS = """
import importlib.metadata, sys
installed = importlib.metadata.distributions
importlib.metadata.distributions = lambda: installed(path=sys.argv[1:])
from streamlit.components.v2.manifest_scanner import scan_component_manifests
for manifest, root in scan_component_manifests():
    if manifest.name == "ampwatch":
        for part in manifest.components:
            print(f"{manifest.name}.{part.name}", part.resolve_asset_root(root))
"""


def painters(installed: Path, package: Path) -> list[str]:
    """The components of ours that Streamlit finds where this is installed, and their folders."""
    child = subprocess.run(
        [sys.executable, "-c", PAINTERS, str(installed)],
        capture_output=True, text=True, check=True, cwd=package,
        env={**os.environ, "PYTHONPATH": str(package)},
    )  # fmt: skip
    return child.stdout.split()


def test_streamlit_finds_the_painters_folder_in_an_installed_wheel(built_wheel, tmp_path):
    pytest.importorskip("streamlit", reason="no streamlit here to look for components")
    with zipfile.ZipFile(built_wheel) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "ampwatch/report/painter"
    assert painters(tmp_path, tmp_path) == ["ampwatch.painter", str(folder)]


def test_streamlit_finds_the_painters_folder_in_a_clone_that_is_installed_to_be_edited(tmp_path):
    pytest.importorskip("streamlit", reason="no streamlit here to look for components")
    metadata = tmp_path / "ampwatch-0.0.dist-info"  # all that such an install leaves beside a path
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: ampwatch\nVersion: 0.0\nRequires-Dist: streamlit\n"
    )
    folder = ROOT / "ampwatch/report/painter"
    assert painters(tmp_path, ROOT) == ["ampwatch.painter", str(folder)]


def test_the_wheel_ships_the_dashboard_and_the_demo_inside_the_package(wheel):
    assert {
        "ampwatch/py.typed",
        "ampwatch/diagnosis/pages/AMP101.md",
        "ampwatch/report/letter.css",
        "ampwatch/report/report.css",
        "ampwatch/report/painter/painter.css",
        "ampwatch/report/painter/chart.js",
        "ampwatch/report/painter/dashboard.js",
        "ampwatch/pyproject.toml",
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


def test_a_wheels_metadata_names_the_addresses_that_its_builder_knows(monkeypatch):
    core = pytest.importorskip("hatchling.metadata.core", reason="no hatchling here to build with")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager
    for variable in ("AMPWATCH_SITE_URL", "AMPWATCH_REPOSITORY_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert core.ProjectMetadata(str(ROOT), manager()).core.urls == {}
    monkeypatch.setenv("AMPWATCH_SITE_URL", "https://docs.example.org/")
    named = core.ProjectMetadata(str(ROOT), manager()).core.urls
    assert named == {"Documentation": "https://docs.example.org/"}


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
