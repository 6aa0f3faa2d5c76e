"""docs/design.md says what is built: its map names the folders there are, and no others.

And what it promises of the files: none is long, and no two need each other.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "design.md").read_text("utf-8")


def test_the_map_names_every_package_and_no_other():
    first_cells = re.findall(r"^\| (`.+?) \|", TEXT.split("## Map")[1].split("##")[0], re.MULTILINE)
    named = {name for cell in first_cells for name in re.findall(r"`([\w/]+/)`", cell)}
    packages = {f"{init.parent.relative_to(ROOT)}/" for init in ROOT.glob("ampwatch/*/__init__.py")}
    assert named == packages | {"dashboard/", "examples/", "benchmarks/", "tests/"}


def test_the_map_names_every_module_at_the_top():
    named = set(re.findall(r"([a-z_]+\.py)`", TEXT.split("## Map")[1].split("##")[0]))
    assert named == {file.name for file in ROOT.glob("ampwatch/*.py")} - {
        "__init__.py",
        "__main__.py",
    }


def test_the_words_are_few_enough_to_be_learnt():
    words = re.findall(r"^\| ([a-z][^|]*?) \|", TEXT.split("## Words")[1], re.MULTILINE)[1:]
    assert len(set(words)) == len(words) <= 30


@pytest.mark.parametrize("package", ["probe", "report", "store"])
def test_a_package_that_lists_its_files_names_each_once(package):
    init = ROOT / "ampwatch" / package / "__init__.py"
    told = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
    listed = re.findall(r"^- [^:]+:(.+?)(?=^-|\Z)", told, re.DOTALL | re.MULTILINE)
    named = sorted(name for line in listed for name in re.findall(r"\w+", line))
    files = [
        *init.parent.glob("*.py"),
        *(inner.parent for inner in init.parent.glob("*/__init__.py")),
    ]
    assert named == sorted(path.stem for path in files if path != init)


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target


def test_no_file_is_longer_than_700_lines():
    files = [*ROOT.glob("ampwatch/**/*.py"), *ROOT.glob("dashboard/**/*.py")]
    lengths = {path.relative_to(ROOT): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > 700} == {}


def imports_of(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules that a file names, be it within a function or for a type only."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            yield from (name if name in modules else node.module for name in inner.values())


def test_no_two_files_import_each_other_even_through_others():
    paths = {path: path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("ampwatch/**/*.py")}
    modules = {".".join(p.parts).removesuffix(".__init__"): path for path, p in paths.items()}
    # The package itself names everything for type checkers; those within ask it for its version.
    inner = {name: path for name, path in modules.items() if name != "ampwatch"}
    graph = {
        name: {other for other in imports_of(path, inner) if other in inner and other != name}
        for name, path in inner.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the files
