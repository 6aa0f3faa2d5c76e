"""What a run says about itself: it comes back, may be written anew, and never holds a secret."""

from __future__ import annotations

import json

import pytest
from written_runs import fresh_id

from ampwatch import codec, store
from ampwatch.rows import Table
from ampwatch.store.run_info import masked_arguments, masked_values


def info(**more) -> store.RunInfo:
    return store.RunInfo(id=fresh_id("x"), name="x", **more)


def test_notes_and_marks_come_back(tmp_path):
    path = store.create_run(tmp_path, info(notes=("Cut off.",), marks={"loss": ["averaged"]}))
    run = store.open_run(path)
    assert run.notes == ("Cut off.",)
    assert run.info.marks == {"loss": ("averaged",)}


def test_a_run_is_described_anew(tmp_path):
    path = store.create_run(tmp_path, info(source="text"))
    store.describe_run(path, info(source="apex", scaler={"min_scale": 1.0}))
    assert store.read_info(path).source == "apex"
    assert store.read_info(path).scaler == {"min_scale": 1.0}
    assert {entry.name for entry in path.iterdir()} == {"run.json"}


@pytest.mark.parametrize("marks", [{"loss": "averaged"}, {"loss": None}, {"loss": [1, {}]}])
def test_marks_may_be_anything_and_harm_nobody(tmp_path, marks):
    path = store.create_run(tmp_path, info())
    facts = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**facts, "marks": marks}))
    assert all(isinstance(m, str) for found in store.read_info(path).marks.values() for m in found)


def test_a_run_without_any_time_has_no_last_one(tmp_path):
    path = store.create_run(tmp_path, info())
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, {"step": [0, 1], "time_ns": [None, None]}))
    writer.close()
    assert store.open_run(path).last_time_ns == 0


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["t.py", "--lr", "0.1"], ("t.py", "--lr", "0.1")),
        (["t.py", "--hf-token", "abc"], ("t.py", "--hf-token", "***")),
        (["--hf_token=abc"], ("--hf_token=***",)),
        (["--wandbApiKey", "abc", "--lr=1"], ("--wandbApiKey", "***", "--lr=1")),
        (["logger.api_key=abc"], ("logger.api_key=***",)),
        (["--password", "-x9", "--lr", "1"], ("--password", "***", "--lr", "1")),
        (["--use-auth", "--lr", "1"], ("--use-auth", "--lr", "1")),
        (["--key-dim", "64", "--max-tokens", "9"], ("--key-dim", "64", "--max-tokens", "9")),
        (["--tokenizer", "gpt2"], ("--tokenizer", "gpt2")),
        (["--url=https://me:pw@host/x"], ("--url=https://***@host/x",)),
        (["--t", "hf_abcdefghijkl"], ("--t", "***")),
    ],
)
def test_secrets_on_the_command_line_are_masked_and_nothing_else(argv, expected):
    assert tuple(masked_arguments(argv)) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.1, "key_dim": 64, "max_tokens": 9, "tokenizer": "gpt2"}, None),
        ({"use_auth": True, "hf_token": None, "password": ""}, None),
        ({"hf_token": "abc", "wandbApiKey": "d", "PIN_SECRET": 1234},
         {"hf_token": "***", "wandbApiKey": "***", "PIN_SECRET": "***"}),
        ({"db": {"url": "postgres://me:pw@host/x", "password": ["a", "b"]}},
         {"db": {"url": "postgres://***@host/x", "password": ["***", "***"]}}),
        ({"credentials": {"user": "me", "how": {"often": 3}}},
         {"credentials": {"user": "***", "how": {"often": "***"}}}),
        ({"logger": "Logger(key='ghp_abcdefghijkl')"}, {"logger": "Logger(key='***')"}),
    ],
)  # fmt: skip
def test_secrets_in_settings_are_masked_and_nothing_else(config, expected):
    assert masked_values(config) == (config if expected is None else expected)


def test_no_secret_reaches_the_file_of_a_run_or_who_receives_it(tmp_path):
    info = store.RunInfo(
        id=fresh_id("x"), name="x", command=("t.py", "--password", "swordfish"),
        config={"api": {"key": "swordfish"}, "objects": {"of": ("a", object)}},
        environment={"NCCL_TOKEN": "swordfish", "CUDA_HOME": "/cuda"},
        origin={"folder": "/home/me"},
    )  # fmt: skip
    path = store.create_run(tmp_path, info)
    store.describe_run(path, info)
    written = (path / "run.json").read_text()
    assert "swordfish" not in written
    assert "swordfish" not in info.to_json()
    read = store.read_info(path)
    assert read.command == ("t.py", "--password", "***")
    assert read.environment == {"NCCL_TOKEN": "***", "CUDA_HOME": "/cuda"}
    assert read.origin == {"folder": "/home/me"}


def test_a_run_that_tells_no_origin_is_read(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("x"), name="x"))
    facts = json.loads((path / "run.json").read_text())
    del facts["origin"], facts["environment"]
    (path / "run.json").write_text(json.dumps(facts))
    assert store.read_info(path).origin == {}
