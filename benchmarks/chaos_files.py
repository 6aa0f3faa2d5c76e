"""Hostile files: flipped bits and forgeries in everything that is read, ours and foreign."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from chaos_damage import damaged, flipped, forged, hostile_json
from chaos_material import RUNS, a_run, content_of, samples
from chaos_trials import Lost, Trial, kind

from ampwatch import cli, diagnose, feed, list_runs, open_run
from ampwatch.codec import Batch, encode
from ampwatch.diagnosis import Engine, conclude
from ampwatch.errors import AmpwatchError
from ampwatch.importers import import_log
from ampwatch.report import html_report, to_json
from ampwatch.rows import SCHEMAS, TABLES, Table
from ampwatch.store import RankWriter, Run, compact, read_copies
from ampwatch.store.compacted_log import seal
from ampwatch.store.layout import BASE_FILE, INDEX_FILE
from ampwatch.store.live_log import HEADER_BYTES, RECORD, read_records

_LIMIT_S = 60.0
Rows = dict[tuple[int, Table], pa.Table]


# --- a run's own files ---------------------------------------------------------------------------


@kind("run-bits", a_child=150, limit_s=_LIMIT_S, share=4.0, capped=True)
def run_bits(trial: Trial) -> None:
    """Damage in files of a run: rows are those that were written, or missing and said."""
    chance, name = trial.chance, trial.chance.choice(RUNS)
    run = a_run(trial.material, name, trial.folder / "run")
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    is_one_bit = chance.random() < 0.5
    victims = chance.sample(files, 1 if is_one_bit else chance.randrange(1, 4))
    trial.say(f"{name}: {', '.join(str(path.relative_to(run)) for path in victims)}")
    for path in victims:
        _harm(path, chance, is_one_bit=is_one_bit)
    trial.inputs += 1
    with contextlib.suppress(AmpwatchError):
        opened = open_run(run)
        _refuse_other_rows(opened, str(trial.material), name, must_say=is_one_bit)
        _use(opened, chance)
    _list(run, chance)
    with contextlib.suppress(AmpwatchError):
        _rewrite(run, chance)


def _harm(path: Path, chance: random.Random, *, is_one_bit: bool) -> None:
    data = path.read_bytes()
    if is_one_bit:
        path.write_bytes(flipped(data, chance))
    elif chance.random() < 0.08:
        path.unlink()
    else:
        path.write_bytes(damaged(data, chance))


def _rows_of(run: Run) -> Rows:
    """Each rank's rows as they stand in its log."""
    found: Rows = {}
    for rank in run.ranks:
        for table in TABLES:
            rows = run.logged(table, SCHEMAS[table].names, rank)
            found[rank, table] = pa.table({n: _bits(rows[n]) for n in rows.column_names})
    return found


def _bits(column: pa.ChunkedArray) -> pa.Array:
    """The column with floats as the bits they are: a nan is what it was."""
    array = column.combine_chunks()
    if pa.types.is_float32(array.type):
        return array.view(pa.int32())
    if pa.types.is_float64(array.type):
        return array.view(pa.int64())
    if pa.types.is_list(array.type):
        return pa.array([repr(value) for value in array.to_pylist()], pa.string())
    return array


@functools.cache
def _true_rows(material: str, name: str) -> Rows:
    return _rows_of(open_run(Path(material) / "runs" / name))


def _refuse_other_rows(run: Run, material: str, name: str, *, must_say: bool) -> None:
    truth, is_cut = _true_rows(material, name), False
    for place, rows in _rows_of(run).items():
        true = truth[place]
        if not rows.equals(true.slice(0, rows.num_rows)) and not _is_part(rows, true):
            raise Lost(f"{place[1].value} of rank {place[0]} has rows that nobody wrote")
        is_cut = is_cut or rows.num_rows < true.num_rows
    if is_cut and must_say and not run.notes:
        raise Lost("rows are missing after a flipped bit and nothing says so")


def _is_part(rows: pa.Table, true: pa.Table) -> bool:
    """Whether these are true rows in order: a damaged base may leave a hole before the tail."""
    left = iter(true.to_pylist())
    return all(any(row == other for other in left) for row in rows.to_pylist())


def _use(run: Run, chance: random.Random) -> None:
    """What a page or a report does with a run."""
    for table in TABLES:
        rows = run.read(table)
        rows.validate(full=True)
        if chance.random() < 0.1:
            rows.to_pylist()
    assert isinstance(run.notes, tuple)
    run.refresh()
    if chance.random() < 0.25:
        case = Engine().feed(run).case()
        diagnosis = conclude(case)
        to_json(diagnosis)
        if chance.random() < 0.1:
            html_report(run, diagnosis, case.scale.established)


def _list(run: Path, chance: random.Random) -> None:
    """One bad run is one bad line."""
    list_runs(run.parent)
    if chance.random() < 0.05 and (code := cli.run(["list", str(run.parent)])) not in (0, 2):
        raise Lost(f"`ampwatch list` ended with {code}")


def _rewrite(run: Path, chance: random.Random) -> None:
    """What a resumed training or a compaction does with it."""
    way = chance.random()
    if way < 0.25:
        writer = RankWriter(run, 0)
        try:
            writer.read_from(0, 1 << 20)
            number = writer.append(_one_step())
            if not writer.read_from(number, 1):
                raise Lost("a batch that was just acknowledged cannot be read")
        finally:
            writer.close()
    elif way < 0.35:
        compact(run)


def _one_step() -> Batch:
    return encode(Table.STEPS, {"step": [10**6], "time_ns": [1], "loss": [1.0]})


# --- a stranger's run ----------------------------------------------------------------------------


@kind("run-forged", a_child=150, limit_s=_LIMIT_S, share=4.0, capped=True)
def run_forged(trial: Trial) -> None:
    """A stranger's run whose checksums hold: odd values in JSON, index, batches and Parquet."""
    chance, name = trial.chance, trial.chance.choice(RUNS)
    run = a_run(trial.material, name, trial.folder / "run")
    forge = chance.choice(_FORGERIES)
    trial.say(f"{name}: {(forge.__doc__ or '').rstrip('.')}")
    trial.inputs += 1
    forge(run, chance)
    with contextlib.suppress(AmpwatchError):
        _use(open_run(run), chance)
    read_copies(run)
    _list(run, chance)
    with contextlib.suppress(AmpwatchError):
        _rewrite(run, chance)


def _forge_info(run: Path, chance: random.Random) -> None:
    """run.json with odd values"""
    path = run / "run.json"
    path.write_text(hostile_json(chance, path.read_text()), errors="replace")


def _forge_notes(run: Path, chance: random.Random) -> None:
    """recorder.json with odd values"""
    facts = {"ranks": {"0": {"gaps": [[4, 6]], "ended_at": None}, "1": {"gaps": [], "ended_at": 9}}}
    (run / "recorder.json").write_text(hostile_json(chance, facts))


def _forge_base(run: Path, chance: random.Random) -> None:
    """base.json with odd values, sealed"""
    facts = _base_of(run)
    for _ in range(chance.randrange(1, 3)):
        facts = forged(facts, chance)
    _seal_base(run, facts)


def _forge_parquet(run: Path, chance: random.Random) -> None:
    """damaged Parquet, vouched for"""
    facts = _base_of(run)
    entry = chance.choice(list(facts["tables"].values()))
    path = run / "rank-0" / entry["file"]
    data = damaged(path.read_bytes(), chance)
    path.write_bytes(data)
    _vouch_for(entry, data)
    _seal_base(run, facts)


def _forge_index(run: Path, chance: random.Random) -> None:
    """index records with odd numbers, their checksums right"""
    path = run / "rank-0" / INDEX_FILE
    data = path.read_bytes()
    records = read_records(data[HEADER_BYTES:]).copy()
    if not len(records):
        return
    for _ in range(chance.randrange(1, 5)):
        field = chance.choice(["sequence", "offset", "length", "rows", "table", "crc"])
        most = int(np.iinfo(RECORD[field]).max)
        odd = chance.choice([0, 1, 5, most, most // 2, most - 1, 1 << 20])
        records[field][chance.randrange(len(records))] = odd
    for number in range(len(records)):
        raw = records[number : number + 1].tobytes()
        records["own_crc"][number] = zlib.crc32(raw[:-4])
    path.write_bytes(data[:HEADER_BYTES] + records.tobytes())


def _forge_batches(run: Path, chance: random.Random) -> None:
    """damaged batches, filed as if they were whole"""
    writer = RankWriter(run, 0)
    try:
        found = [batch for _, batch in writer.read_from(0, 1 << 20)]
        for _ in range(chance.randrange(1, 5)):
            batch = chance.choice(found or [_one_step()])
            rows = chance.choice([batch.row_count, 0, 7, 1 << 31])
            table = batch.table if chance.random() < 0.7 else chance.choice(TABLES)
            payload = damaged(batch.payload, chance) if chance.random() < 0.8 else batch.payload
            writer.append(Batch(table, rows, payload))
    finally:
        writer.close()


_DETAILS = ("", "{", "[]", "null", "5", '"x"', "[" * 5000, '{"groups": 5}', '{"layer": [1]}')


def _forge_rows(run: Path, chance: random.Random) -> None:
    """rows with odd values, as another program might write them"""
    writer = RankWriter(run, 0)
    try:
        for _ in range(chance.randrange(1, 6)):
            writer.append(_odd_rows(chance))
    finally:
        writer.close()


def _odd_rows(chance: random.Random) -> Batch:
    numbers = [-1, 0, 7, 1 << 40, (1 << 63) - 1, -(1 << 63)]
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-45, 3e38]
    count = chance.randrange(1, 6)

    def some(choices: list[Any]) -> list[Any]:
        return [chance.choice(choices) for _ in range(count)]

    columns: dict[str, list[Any]] = {"step": some(numbers), "time_ns": some(numbers)}
    if chance.random() < 0.5:
        columns |= {name: some(values) for name in ("loss", "lr", "scale", "scale_after")}
        columns |= {name: some(values) for name in ("grad_norm", "update_norm", "param_norm")}
        columns["lrs"] = [some(values) for _ in range(count)]
        return encode(Table.STEPS, columns)
    if chance.random() < 0.5:
        kinds = ["started", "optimizer", "overflow", "exception", "gap", "misuse", "", "\ud7ff"]
        details = [json.dumps(forged({"groups": [{"lr": 0.1}], "layer": "x", "lost_rows": 3,
                   "fatal": True, "type": "ValueError"}, chance)), *_DETAILS]  # fmt: skip
        columns |= {"kind": some(kinds), "detail": some(details)}
        return encode(Table.EVENTS, columns)
    columns.pop("time_ns")
    columns["layer"] = some([0, 1, 5, 1 << 20, (1 << 31) - 1])
    columns |= {name: some(values) for name in ("grad_norm", "act_amax", "weight_norm")}
    return encode(Table.LAYERS, columns)


_FORGERIES = (
    _forge_info, _forge_notes, _forge_base, _forge_base, _forge_parquet, _forge_parquet,
    _forge_index, _forge_batches, _forge_rows,
)  # fmt: skip


def _base_of(run: Path) -> dict[str, Any]:
    """The facts of base.json; a run without one is compacted first."""
    path = run / "rank-0" / BASE_FILE
    if not path.exists():
        compact(run)
    facts: dict[str, Any] = json.loads(path.read_bytes().splitlines()[0])
    return facts


def _seal_base(run: Path, facts: dict[str, Any]) -> None:
    (run / "rank-0" / BASE_FILE).write_bytes(seal(facts))


def _vouch_for(entry: dict[str, Any], data: bytes) -> None:
    """Make a table's entry fit its file, whatever that now holds."""
    entry["size"] = len(data)
    length = int.from_bytes(data[-8:-4], "little") if len(data) >= 12 else 0
    entry["footer_crc"] = zlib.crc32(data[-8 - length :] if length + 12 <= len(data) else b"")
    for group in entry["chunks"]:
        for name, (start, size, _) in group.items():
            group[name] = (start, size, zlib.crc32(data[start : start + size]))


# --- foreign logs --------------------------------------------------------------------------------


@kind("foreign-logs", a_child=100, limit_s=_LIMIT_S, share=4.0, capped=True)
def foreign_logs(trial: Trial) -> None:
    """A damaged log of any of the formats: read or refused with a sentence."""
    path = trial.chance.choice(samples())
    trial.say(path.name)
    trial.inputs += 1
    log = trial.folder / f"metrics{trial.chance.choice(['.csv', '.txt', path.suffix])}"
    log.write_bytes(damaged(content_of(path)[:60_000], trial.chance, most=12))
    with contextlib.suppress(AmpwatchError):
        run = open_run(import_log(log, trial.folder / "runs"))
        if trial.chance.random() < 0.5:
            diagnose(run)


@kind("foreign-bits", a_child=60, limit_s=_LIMIT_S, share=2.0, capped=True)
def foreign_bits(trial: Trial) -> None:
    """One bit of a TensorBoard or W&B file, which bear checksums: no altered, no invented value."""
    path = trial.chance.choice([p for p in samples() if p.suffix in (".tfevents", ".wandb")])
    trial.say(path.name)
    trial.inputs += 1
    log = trial.folder / path.name
    log.write_bytes(flipped(content_of(path), trial.chance))
    with contextlib.suppress(AmpwatchError):
        run = open_run(import_log(log, trial.folder / "runs"))
        _refuse_invented(_values_of(run), _true_values(path))


_COMPARED = ("loss", "lr", "grad_norm")
Values = dict[str, set[tuple[int, float]]]


def _values_of(run: Run) -> Values:
    """(step, value) of what a log says itself."""
    found: Values = {}
    names = [
        *_COMPARED,
        *(n for n in run.column_names("steps") if n not in SCHEMAS[Table.STEPS].names),
    ]
    rows = run.read("steps", ["step", *(n for n in names if n in run.column_names("steps"))])
    steps = rows["step"].to_pylist()
    for name in rows.column_names[1:]:
        values = rows[name].to_pylist()
        pairs = zip(steps, values, strict=True)
        found[name] = {
            (step, value) for step, value in pairs if isinstance(value, float) and value == value
        }
    return found


@functools.cache
def _true_values(path: Path) -> Values:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return _values_of(open_run(import_log(path, Path(folder))))


def _refuse_invented(values: Values, truth: Values) -> None:
    for name, pairs in values.items():
        if invented := pairs - truth.get(name, set()):
            step, value = min(invented)
            raise Lost(f"{len(invented)} values of {name!r} that nobody logged: {value} at {step}")


# --- small files of the user's -------------------------------------------------------------------


@kind("small-files", a_child=60, limit_s=_LIMIT_S, capped=True)
def small_files(trial: Trial) -> None:
    """Damaged keys, lists of keys, announcements, registered runs and kept verdicts."""
    chance, home = trial.chance, trial.folder / "home"
    state, config = home / "state", home / "config"
    environ = {"XDG_STATE_HOME": str(state), "AMPWATCH_CONFIG_DIR": str(config)}
    with _environment(environ):
        run = a_run(trial.material, "live", trial.folder / "runs" / "live")
        _make_small_files(trial.folder, run)
        files = sorted(path for path in home.rglob("*") if path.is_file())
        keys = [path for path in files if path.name == "key-pair"]
        others = [path for path in files if path not in keys]
        victims = chance.sample(others, 2) if chance.random() < 0.9 else keys  # waits for 2 s
        for path in victims:
            path.write_bytes(damaged(path.read_bytes(), chance))
        trial.say(", ".join(path.name for path in victims))
        trial.inputs += 1
        list_runs(None)
        for look in (feed.own_keys, feed.allowed_keys, lambda: feed.resolve_endpoint(None)):
            with contextlib.suppress(AmpwatchError):
                look()
        if (code := cli.run(["list", str(run.parent)])) != 0:
            raise Lost(f"`ampwatch list` ended with {code} though the runs are whole")


def _make_small_files(folder: Path, run: Path) -> None:
    from ampwatch.store import register_run

    feed.own_keys()
    feed.allow_key("ab" * 32, "somebody")
    feed.announce("tcp://127.0.0.1:5999")
    register_run(run)
    cli.run(["list", str(run.parent)])  # keeps verdicts


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Any:
    import os

    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    del os.environ["AMPWATCH_ENDPOINT"]
    try:
        yield
    finally:
        os.environ["AMPWATCH_ENDPOINT"] = "off"
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
