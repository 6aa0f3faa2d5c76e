"""The pages in docs/findings are those that the rules make."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ampwatch.diagnosis import RULES, rules
from ampwatch.diagnosis.causes import CAUSES, LATE_TO, row_of
from ampwatch.diagnosis.rule import PARTS
from ampwatch.diagnosis.rule_pages import (
    markdown_pages,
    plain_page,
    rules_for,
    rules_like,
    write_pages,
)

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
REMEDY = "write them anew: python -m ampwatch.diagnosis.rule_pages docs/findings"


def test_the_documented_findings_are_the_rules_own_pages():
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert written == markdown_pages(), REMEDY


def test_writing_the_pages_leaves_no_stale_one_behind(tmp_path):
    (tmp_path / "AMP000-gone.md").write_text("old")
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(markdown_pages())


def test_the_terminals_page_and_the_documented_one_say_the_same():
    for rule in RULES:
        page = " ".join(plain_page(rule).split())
        for part in (rule.page.meaning, rule.page.looks, rule.page.do, rule.page.example):
            assert " ".join(part.split()) in page


def test_the_findings_that_a_rule_is_tied_to_are_findings_that_there_are():
    known = {rule.code for rule in RULES}
    for rule in RULES:
        row = row_of(rule.code)
        named = {*row.explained_by, *row.groundless_beside, *LATE_TO.get(rule.code, ())}
        assert named <= known - {rule.code}, rule.code


def test_no_finding_is_without_ground_beside_what_it_explains():
    for code, row in CAUSES.items():
        assert not {*row.groundless_beside} & {*row.explained_by}, code


def test_each_row_of_the_table_of_causes_is_of_a_finding_that_there_is():
    assert {*CAUSES, *LATE_TO} <= {rule.code for rule in RULES}


# Numbers of a format, a card or a code, which no constant of ours can change.
GIVEN = r"AMP\d+|fp16|bf16|fp8|fp4|below 16 bits|float\d+|2\^-?\d+|65504|\b0\b|log2|FP16|below 1\b"


def written_pages():
    """Each page as it is written: its code, its headings and its parts, names not filled in."""
    for path in (Path(rules.__file__).parents[1] / "pages").iterdir():
        head, *parts = re.split(r"^## (.*)$", path.read_text("utf-8"), flags=re.MULTILINE)
        yield path.name, head.split("\n")[0], dict(zip(parts[::2], parts[1::2], strict=True))


OPTIONAL = {"What you may see", "In code"}


def test_each_rule_has_a_page_with_its_code_its_name_and_all_parts_in_order():
    written = {name: (head, list(parts)) for name, head, parts in written_pages()}
    assert written == {
        f"{r.code}.md": (
            f"# {r.code} {r.name}",
            [
                title
                for title, name in PARTS.items()
                if title not in OPTIONAL or getattr(r.page, name)
            ],
        )
        for r in RULES
    }


def test_a_part_of_a_page_is_one_paragraph_or_one_block_and_detection_may_have_lists():
    for name, _, parts in written_pages():
        for title, text in parts.items():
            if title in OPTIONAL:
                language = "python" if title == "In code" else "text"
                assert re.fullmatch(rf"```{language}\n[^`]+(`[^`\n]+`[^`]*)*\n```", text.strip()), (
                    name
                )
            else:
                assert "```" not in text, name
                detects = title == "How ampwatch detects it"
                assert detects or not re.search(r"\n\n|^- ", text.strip(), re.MULTILINE), name


def test_lists_of_a_page_stay_lists_in_the_docs_and_in_the_terminal():
    (rule,) = rules_for("AMP303")
    items = [line for line in rule.page.looks.splitlines() if line.startswith("- ")]
    assert len(items) == 5
    assert "\n".join(items[2:]) in markdown_pages()["AMP303-recoverable-spike.md"]
    assert len(re.findall("^  - ", plain_page(rule), re.MULTILINE)) == 5


def test_code_on_a_page_is_python_of_a_few_lines():
    for rule in RULES:
        ast.parse(rule.page.code)
        assert len(rule.page.code.splitlines()) <= 14, rule.code


def test_a_page_prints_the_thresholds_of_its_rule_and_never_repeats_them():
    for name, _, parts in written_pages():
        text = re.sub(r"\{.*?\}", "", parts["How ampwatch detects it"])
        assert not re.search(r"\d", re.sub(GIVEN, "", text)), (name, text)


@pytest.mark.parametrize(
    ("pasted", "codes"),
    [
        ("amp406", ["AMP406"]),
        ("103", ["AMP103"]),
        ("scale-collapse", ["AMP103"]),
        ("ValueError: Attempting to unscale FP16 gradients.", ["AMP406"]),
        (
            'line 80, in x\n    raise ValueError("Attempting to unscale FP16 gradients.")',
            ["AMP406"],
        ),
        (
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
            ["AMP101", "AMP103", "AMP105"],
        ),
        ("unscale_() has already been called on this optimizer", ["AMP402", "AMP403"]),
        ("mat1 and mat2 must have the same dtype, but got Half and Float", ["AMP415"]),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", ["AMP506"]),
        ("hello world, nothing is wrong", []),
        ("nan", []),
        ("", []),
    ],
)
def test_a_page_is_found_by_its_code_its_name_or_a_message(pasted, codes):
    assert [rule.code for rule in rules_for(pasted)] == codes


@pytest.mark.parametrize(
    ("words", "code"),
    [("scale-colapse", "AMP103"), ("learning rate too high", "AMP301"), ("loss nan", "AMP204")],
)
def test_nearly_a_name_or_words_of_a_title_suggest_findings(words, code):
    assert code in [rule.code for rule in rules_like(words)]


def test_no_rule_has_a_text_of_several_lines():
    """An action is sentences: nobody pastes code that they cannot review."""
    for path in Path(rules.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docstrings:
                assert "\n" not in str(node.value), (path.name, node.lineno)


@pytest.mark.parametrize(
    ("former", "code"), [("scale-at-floor", "AMP104"), ("rate-never-rose", "AMP308")]
)
def test_a_finding_is_found_by_a_name_that_it_once_had(former, code):
    assert [rule.code for rule in rules_for(former)] == [code]
