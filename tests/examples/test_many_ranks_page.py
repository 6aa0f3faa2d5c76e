"""What the page on many ranks says to read runs by, run as it stands there on a real data set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from written_runs import step_columns, write_run

from ampwatch import codec, store
from ampwatch.rows import Table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "many_ranks.md").read_text()


@pytest.fixture
def place(tmp_path):
    """Two compacted runs, one of two ranks, where an object store would have them."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    write_run(tmp_path, "alone", accepted=30, skipped=2)
    pair = write_run(tmp_path, "pair", accepted=50, skipped=3)
    writer = store.RankWriter(pair, 1)
    writer.append(codec.encode(Table.STEPS, step_columns(50, 4, 10**18)))
    writer.close()
    for name in ("alone", "pair"):
        store.compact(tmp_path / name)
    files = fsspec.filesystem("memory")
    files.put(f"{tmp_path}/", "/bucket/runs/", recursive=True)
    yield "memory://bucket/runs"
    files.rm("/bucket", recursive=True)


def test_the_pages_lines_read_all_runs_as_one_data_set(place):
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict[str, object] = {}
    exec(compile(code.replace("s3://bucket/runs", place), "many_ranks.md", "exec"), known)
    assert known["skipped"] == 2 + 3 + 4
    assert [row[:4] for row in known["by_rank"]] == [
        ("alone", "rank-0", 32, 2), ("pair", "rank-0", 53, 3), ("pair", "rank-1", 54, 4),
    ]  # fmt: skip


def test_every_test_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(named) > 8
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []
