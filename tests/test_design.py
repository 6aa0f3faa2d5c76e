"""docs/design.md says what is built: its map names the folders there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
