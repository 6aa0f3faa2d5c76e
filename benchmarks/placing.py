"""Can a newcomer place a function by the list of files alone? Draws functions, scores answers.

    python benchmarks/placing.py --seed 7          writes placing/questions.txt and placing/key.json
    python benchmarks/placing.py --score answers.txt

Give questions.txt to somebody who has not seen the code. It lists all files, then functions by
name (a method with its class), parameters and first docstring line. The answer to each question is
one line: its number, the file and, if unsure, a second guess:

    1 ampwatch/probe/watched_scaler.py
    2 ampwatch/store/run.py ampwatch/store/layout.py

A file counts as right only with its folder. The score says how many files were right at the first
guess and at either guess, and how many packages (folders).
"""

from __future__ import annotations

import ast
import functools
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from parts.options import command_line

ROOT = Path(__file__).parents[1]
FOLDERS = ("ampwatch", "dashboard")
QUESTIONS = 20
TARGET = 0.85  # 17 of 20 at the first guess


@dataclass(frozen=True)
class Function:
    """A function as the question shows it, and the file that is the answer."""

    name: str  # of a method: Class.method
    parameters: str
    docstring: str
    path: str


def source_files(root: Path = ROOT) -> list[Path]:
    """All Python files of the folders, by path."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


@functools.cache
def functions_of(path: Path, root: Path = ROOT) -> tuple[Function, ...]:
    """Functions and methods with a docstring, except special methods."""
    return tuple(_functions(path, root))


def _functions(path: Path, root: Path) -> Iterator[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {
        id(member): f"{node.name}."
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for member in node.body
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring and not node.name.startswith("__"):
            name, shown = classes.get(id(node), "") + node.name, ast.unparse(node.args)
            yield Function(name, shown, docstring.split("\n")[0], str(path.relative_to(root)))


def drawn(seed: int, count: int, root: Path = ROOT) -> list[Function]:
    """`count` functions, each as likely as any other; the same for the same seed and code."""
    every = [one for path in source_files(root) for one in functions_of(path, root)]
    return random.Random(seed).sample(every, count)


def questions(functions: list[Function], root: Path = ROOT) -> str:
    """The text for the newcomer: the task, the files, the functions without their files."""
    files = "\n".join(str(path.relative_to(root)) for path in source_files(root))
    asked = "\n".join(
        f"{number}. {one.name}({one.parameters})\n   {one.docstring}"
        for number, one in enumerate(functions, 1)
    )
    return (
        "In which file is each function? Look at the list of files only, not into the files.\n"
        "Answer with one line each: NUMBER FILE [SECOND GUESS].\n\n"
        f"Files\n-----\n{files}\n\nFunctions\n---------\n{asked}\n"
    )


def guesses(answers: str) -> dict[int, list[str]]:
    """The first two guesses by question; lines that are no answer are ignored."""
    found = {}
    for line in answers.splitlines():
        number, *paths = line.replace(",", " ").split() or [""]
        if number.rstrip(".").isdigit():
            found[int(number.rstrip("."))] = paths[:2]
    return found


def score(key: list[str], answered: dict[int, list[str]]) -> dict[str, int]:
    """How many files and packages are right, at the first guess and at either."""
    counts = dict.fromkeys(("file, first", "file, either", "package, first", "package, either"), 0)
    for number, right in enumerate(key, 1):
        tried = answered.get(number, [])
        folders = [str(Path(path).parent) for path in tried]
        counts["file, first"] += tried[:1] == [right]
        counts["file, either"] += right in tried
        counts["package, first"] += folders[:1] == [str(Path(right).parent)]
        counts["package, either"] += str(Path(right).parent) in folders
    return counts


def main(arguments: list[str] | None = None) -> int:
    """Draw or score; scoring exits 1 below the target of 17 in 20 files at the first guess."""
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which functions are drawn")
    parser.add_argument("--count", type=int, default=QUESTIONS, help="how many (default 20)")
    parser.add_argument("--out", type=Path, default=Path("placing"), help="of questions and key")
    parser.add_argument("--score", type=Path, metavar="ANSWERS", help="score a file of answers")
    given = parser.parse_args(arguments)
    key_file, text = given.out / "key.json", given.out / "questions.txt"
    if given.score is None:
        functions = drawn(given.seed, given.count)
        given.out.mkdir(parents=True, exist_ok=True)
        text.write_text(questions(functions), encoding="utf-8")
        key = [asdict(function) for function in functions]
        key_file.write_text(json.dumps(key, indent=1), encoding="utf-8")
        print(f"{text}: {len(functions)} functions; the key is {key_file}.")
        return 0
    paths = [function["path"] for function in json.loads(key_file.read_text(encoding="utf-8"))]
    counts = score(paths, guesses(given.score.read_text(encoding="utf-8")))
    for what, count in counts.items():
        print(f"{what}: {count} of {len(paths)}")
    return 0 if counts["file, first"] >= TARGET * len(paths) else 1


if __name__ == "__main__":
    raise SystemExit(main())
