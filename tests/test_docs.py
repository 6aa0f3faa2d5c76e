"""The docs say what is: their code runs, their links lead somewhere, their names are real."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# What a recipe needs around it, as its page says.
BEFORE_A_RECIPE = """
import torch
from torch import nn
torch.manual_seed(0)
device = "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()
loader = [(torch.randn(16, 8), torch.randint(2, (16,))) for _ in range(12)]
weights_at_first = [parameter.clone() for parameter in model.parameters()]
"""
# A recipe that trains has moved the weights.
AFTER_A_RECIPE = """
trains = "backward()" in {code!r}
weights = [parameter.detach() for parameter in model.parameters()]
weights = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in weights]
moved = any(not torch.equal(old, new) for old, new in zip(weights_at_first, weights))
assert moved == trains, "the weights " + ("moved" if moved else "did not move")
"""
ONE_RANK = """
import os, torch.distributed
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
torch.distributed.init_process_group("gloo")
"""


def blocks(page: str, mark: str) -> list[tuple[str, str]]:
    """The code blocks of a page that stand behind a mark: what the mark says, and the code."""
    pattern = rf"<!-- {mark}:? ?([^>]*?) ?-->\n```\w*\n(.*?)```"
    return re.findall(pattern, (DOCS / page).read_text("utf-8"), re.DOTALL)


RECIPES = blocks("recipes.md", "recipe")


def headings(page: str) -> list[str]:
    """The heading above each recipe of a page."""
    parts = re.split(r"^## (.+)$", (DOCS / page).read_text("utf-8"), flags=re.MULTILINE)[1:]
    return [
        name
        for name, text in zip(parts[::2], parts[1::2], strict=True)
        for _ in range(text.count("<!-- recipe"))
    ]


def python(code: str, folder: Path) -> None:
    """Run a program in a folder, as a reader would."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder, capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code"), RECIPES, ids=[f"{n}-{name}" for n, name in enumerate(headings("recipes.md"))]
)
def test_a_recipe_trains(kind, code, tmp_path):
    around = ONE_RANK if kind == "distributed" else ""
    python(BEFORE_A_RECIPE + around + code + AFTER_A_RECIPE.format(code=code), tmp_path)


def test_every_recipe_is_tried():
    text = (DOCS / "recipes.md").read_text("utf-8")
    assert len(RECIPES) == text.count("```python") > 10


@pytest.mark.slow
def test_the_quickstart_does_what_it_says(tmp_path):
    ((name, code),) = blocks("quickstart.md", "file")
    (tmp_path / name).write_text(code, encoding="utf-8")
    printed: dict[str, str] = {}
    for _, commands in blocks("quickstart.md", "run"):
        for line in commands.splitlines():
            program, *arguments = shlex.split(line)
            command = (
                ["-W", "ignore", *arguments] if program == "python" else ["-m", *shlex.split(line)]
            )
            done = subprocess.run(
                [sys.executable, *command],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed[line] = done.stdout
    assert printed["ampwatch report first"].startswith("FAILING")
    advised = float(re.search(r"learning rate of ([\d.]+)", printed["ampwatch report first"])[1])
    assert advised == pytest.approx(0.08, rel=0.3)  # the page's second training takes this one
    assert printed["ampwatch report second"].startswith("HEALTHY")
    assert "lr" in printed["ampwatch compare first second"]
    ((_, shown),) = blocks("reading_a_report.md", "printed")
    assert shown.splitlines()[:4] == printed["ampwatch report first"].splitlines()[:4]


def test_the_signature_on_the_page_is_the_functions():
    import ampwatch

    ((name, shown),) = blocks("reference.md", "signature")
    assert name == "ampwatch.attach"
    described = re.findall(r"(\w+)(?:=([^,)]+))?[,)]", shown.split("(", 1)[1])
    real = inspect.signature(ampwatch.attach).parameters.values()
    assert described == [
        (each.name, "" if each.default is inspect.Parameter.empty else repr(each.default))
        for each in real
    ]


def test_every_variable_on_the_page_is_read_by_the_program():
    named = re.findall(
        r"^\| `(AMPWATCH\w*)", (DOCS / "reference.md").read_text("utf-8"), re.MULTILINE
    )
    source = "".join(path.read_text("utf-8") for path in ROOT.glob("ampwatch/**/*.py"))
    assert named
    assert [name for name in named if f'"{name}' not in source] == []


def test_the_site_is_built_without_a_broken_link(tmp_path):
    build = ["mkdocs", "build", "--strict", "-q", "-f", "docs/site/mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", *build], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "faq" / "index.html").is_file()
    assert (tmp_path / "search" / "search_index.json").is_file()
    fetched = re.findall(
        r'(?:src|href)="(https?:[^"]+\.(?:js|css|woff2?))"',
        (tmp_path / "index.html").read_text("utf-8"),
    )
    assert fetched == []  # a reader's browser asks nobody else
