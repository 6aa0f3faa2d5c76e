"""A run's folder: its name is safe, its creation atomic, and one id is one run."""

from __future__ import annotations

import math
import os
from pathlib import Path
from subprocess import PIPE

import children
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import ID, OTHER_ID, info

from ampwatch.errors import NotARunError
from ampwatch.store import RunInfo, create_run, read_info, safe_name
from ampwatch.store.layout import MAX_NAME_BYTES


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gpt small", "gpt small"),
        ("модель-日本", "модель-日本"),
        ("../../etc/passwd", "-..-etc-passwd"),
        ("a/b\\c:d", "a-b-c-d"),
        (".hidden", "hidden"),
        ("..", "run"),
        ("", "run"),
        ("a\n\x00b", "a--b"),
        ("trailing. ", "trailing"),
        ("CON", "run-CON"),
        ("nul.txt", "run-nul.txt"),
        ("lpt1", "run-lpt1"),
    ],
)
def test_a_name_becomes_a_folder_that_every_system_takes(name: str, folder: str) -> None:
    assert safe_name(name) == folder


@given(st.text(max_size=300))
def test_any_name_is_one_short_visible_path_component(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert len(safe.encode()) <= MAX_NAME_BYTES + len("run-")
    assert not set(safe) & set('/\\:*?"<>|')
    assert not safe.startswith(".")
    assert safe == safe.strip()
    assert safe_name(safe) == safe


def test_another_rank_of_the_same_run_joins_and_another_run_of_that_name_gets_a_number(tmp_path):
    first = create_run(tmp_path, info())
    assert create_run(tmp_path, info()) == first
    second = create_run(tmp_path, info(identity=OTHER_ID))
    assert (first.name, second.name) == ("run", "run-2")
    assert create_run(tmp_path, info(identity=OTHER_ID)) == second
    assert read_info(second).id == OTHER_ID


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert create_run(tmp_path, info()).name == "run-2"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_resuming_takes_the_newest_run_of_that_name_and_keeps_its_id(tmp_path: Path) -> None:
    create_run(tmp_path, info())
    second = create_run(tmp_path, info(identity=OTHER_ID))
    fresh = info(identity="a" * 32)
    assert create_run(tmp_path, fresh, resume=True) == second
    assert read_info(second).id == OTHER_ID
    assert create_run(tmp_path, info("new"), resume=True).name == "new"


CREATE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from store_samples import info
from ampwatch.store import RankWriter, create_run
print("ready", flush=True)
sys.stdin.readline()
folder = create_run(Path(sys.argv[2]), info(identity=sys.argv[3]))
RankWriter(folder, int(sys.argv[4])).close()
print(folder.name)
"""


@pytest.mark.slow_starts
def test_processes_that_start_at_once_agree_on_the_folders(tmp_path: Path) -> None:
    here = Path(__file__).parent
    identities = [ID, OTHER_ID] * 4
    creators = [
        children.start(
            "-c", CREATE, here, tmp_path, identity, rank, env=os.environ, stdin=PIPE, stdout=PIPE
        )
        for rank, identity in enumerate(identities)
    ]
    for creator in creators:
        assert creator.stdout.readline() == "ready\n"
    for creator in creators:
        creator.stdin.write("go\n")
        creator.stdin.flush()
    names = [creator.communicate()[0].strip() for creator in creators]
    by_identity = {identity: set() for identity in identities}
    for identity, name in zip(identities, names, strict=True):
        by_identity[identity].add(name)
        assert read_info(tmp_path / name).id == identity
    assert sorted(by_identity.values(), key=sorted) == [{"run"}, {"run-2"}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2"]


def test_a_runs_facts_come_back_from_json(tmp_path: Path) -> None:
    facts = RunInfo(
        id=ID,
        name="r/ü",
        started_ns=5,
        host="h",
        command=("python", "x.py"),
        versions={"torch": "2.13"},
        config={"lr": 0.1, "sizes": [1, 2], "nested": {"a": None}},
        scaler={"init_scale": 65536.0, "enabled": True},
        world_size=4,
        layer_every=10,
    )
    assert RunInfo.from_json(facts.to_json()) == facts
    assert read_info(create_run(tmp_path, facts)) == facts


def test_a_config_that_json_cannot_hold_is_written_as_text() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    loop: dict = {}
    loop["self"] = loop
    config = {1: math.inf, "path": Path("x"), "rude": Rude(), "loop": loop, "lone": "\ud800"}
    found = RunInfo.from_json(RunInfo(id=ID, name="r", config=config).to_json()).config
    assert (found["1"], found["path"], found["rude"]) == ("inf", "x", "<Rude>")
    assert found["lone"] == "?"


def test_an_id_that_is_none_is_refused() -> None:
    with pytest.raises(NotARunError, match="32 hex digits"):
        RunInfo.from_json(RunInfo(id="../../x", name="r").to_json())
