"""The JSON Schemas that are shipped: what --json prints is what they say, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import letter_truth
import pytest

import ampwatch
from ampwatch import cli
from ampwatch.diagnosis.findings import Evidence, Finding, Outcome, RunFacts, WeighedCause
from ampwatch.diagnosis.learning_rate.advice import Advice
from ampwatch.errors import LogError
from ampwatch.fleet.summary import Tally
from ampwatch.importers import import_log
from ampwatch.recovery.proof import Proof, Try
from ampwatch.report.compared_run import ValueCourse
from ampwatch.report.divergence import Divergence, LayerDifference
from ampwatch.report.letter import letter_of
from ampwatch.report.letter_facts import Fact, Holds, Reading
from ampwatch.report.sweep import Sweep
from ampwatch.rows import Table

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = Path(ampwatch.__file__).parent / "schemas"
NAMES = sorted(path.stem.rpartition("-")[0] for path in SCHEMAS.glob("*.json"))
HERE = Path(__file__).parent
CLASSES = (
    Advice, Divergence, Evidence, Fact, Finding, LayerDifference, Outcome, RunFacts, Sweep, Tally,
    ValueCourse, WeighedCause,
)  # fmt: skip
TRAINING = """
import sys, torch, ampwatch
torch.manual_seed(0)
rate = float(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
with ampwatch.attach(None, model, optimizer=optimizer, log_dir="runs", run=f"lr-{rate}",
                     config={"batch": 16, "odd": float("nan")}, endpoint="off") as watch:
    for step in range(120):
        x = torch.randn(16, 8)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        watch.log({"val/acc": 0.5}, loss=loss)
"""


def schema_of(name: str) -> dict[str, Any]:
    (path,) = SCHEMAS.glob(f"{name}-*.json")
    return json.loads(path.read_text("utf-8"))


def check(name: str, printed: str | dict[str, Any]) -> dict[str, Any]:
    """Hold what a command printed against its schema."""
    body = json.loads(printed) if isinstance(printed, str) else printed
    jsonschema.Draft202012Validator(schema_of(name)).validate(body)
    return body


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from objects_in(one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with real runs of a training."""
    home = tmp_path_factory.mktemp("schemas")
    (home / "train.py").write_text(TRAINING)
    for rate in ("0.02", "0.05", "3.0"):
        children.run("train.py", rate, cwd=home, env=os.environ).check_returncode()
    return home


@pytest.fixture(scope="module")
def folder(trained: Path) -> Path:
    """The same folder, with logs of other trainers."""
    home = trained
    for path in sorted((HERE / "importers" / "samples").iterdir())[::3]:
        if path.suffix != ".json":
            try:
                import_log(str(path), home / "runs")
            except LogError:
                continue
    (home / "runs" / "unreadable").mkdir()
    (home / "runs" / "unreadable" / "run.json").write_text("{")
    return home


def readable(folder: Path) -> list[Path]:
    return [run.path for run in ampwatch.list_runs(folder / "runs") if run.problem is None]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """What a command line prints."""
    monkeypatch.setenv("AMPWATCH_CONFIG_DIR", "/nonexistent")

    def run(*words: object) -> str:
        cli.run([str(word) for word in words])
        return capsys.readouterr().out

    return run


def test_every_command_that_prints_json_has_a_schema_and_its_version():
    files = (HERE.parent / "ampwatch" / "cli").glob("*.py")
    offered = {path.stem for path in files if '"--json"' in path.read_text("utf-8")}
    assert {name.replace("runs", "list") for name in offered} == set(NAMES)
    for name in NAMES:
        schema = schema_of(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        (path,) = SCHEMAS.glob(f"{name}-*.json")
        assert path.stem == f"{name}-1"
        assert schema["$id"] == f"ampwatch:{path.stem}"


def test_a_report_and_its_numbers_are_as_the_schema_and_the_rows_say(folder, printed):
    seen: set[str] = set()
    checked = 0
    for path in readable(folder):
        body = check("report", printed("report", path, "--json", "--all"))
        seen |= set().union(*objects_in(body))
        run = ampwatch.open_run(path)
        for told in (one for one in objects_in(body["letter"]) if "reading" in one):
            again = letter_truth.recompute(from_json(told), run, body)
            assert again == pytest.approx(float(told["value"]), rel=1e-5, nan_ok=True)
            checked += 1
        letter = letter_of(path.name, run, ampwatch.diagnose(run))
        sentences = [one["text"] for one in objects_in(body["letter"]) if "facts" in one]
        assert {str(one) for one in letter.opening} <= set(sentences)
    assert checked > 150
    assert {"evidence", "causes", "facts", "restart_from_step"} <= seen
    short = check("report", printed("report", path, "--json"))
    assert short == {key: value for key, value in body.items() if key != "letter"}


def test_plans_and_the_list_are_as_their_schemas_say(folder, printed):
    runs = readable(folder)
    assert len(runs) > 20
    for run in runs:
        check("plan", printed("plan", run, "--json"))
    listed = check("list", printed("list", folder / "runs", "--json"))
    assert {row["name"] for row in listed["runs"]} == {*(run.name for run in runs), "unreadable"}
    (broken,) = (row for row in listed["runs"] if row["name"] == "unreadable")
    assert broken["problem"]
    assert broken["verdict"] is None


def test_reports_and_comparisons_of_several_runs_are_as_their_schemas_say(folder, printed):
    ours = [run for run in readable(folder) if run.name.startswith("lr-")]
    check("report", printed("report", *ours, "--json"))
    held = check("report", printed("report", ours[0], "--baseline", ours[1], "--json"))
    assert set(held["baseline"]) == {"name", "as_good", "new_or_worse", "text"}
    several = check("report", printed("report", *ours, "--baseline", ours[1], "--json"))
    assert len(several["baseline"]) == len(ours)
    assert check("compare", printed("compare", *ours, "--json"))["sweep"]
    others = [run for run in readable(folder) if run not in ours]
    for first, second in zip(others[::4], others[1::4], strict=False):
        check("compare", printed("compare", first, second, "--json"))


def test_a_fleets_verdicts_are_as_their_schema_says(folder, printed, tmp_path):
    pytest.importorskip("deltalake")
    printed("publish", folder / "runs", tmp_path / "place")
    body = check("fleet", printed("fleet", tmp_path / "place", "--json"))
    assert len(body["runs"]) > 20
    assert body["summary"]["by_code"]


@pytest.mark.slow_trainings
def test_a_proof_is_as_its_schema_says(trained):
    words = ["prove", "runs/lr-3.0", "--steps", "60", "--budget", "30s", "--json"]
    again = ["--", children.python(), "train.py", "3.0"]
    done = children.run(
        "-m", "ampwatch", *words, *again, cwd=trained, env=children.forking(os.environ)
    )
    body = check("prove", done.stdout)
    assert body["tries"]
    (trained / "runs" / "lr-3.0" / "proved.json").unlink()


def test_a_proof_of_two_changes_is_as_its_schema_says():
    one = Try("lr", 0.1, 60, "healthy", is_stable=True, told="", loss_at={"0": 2.0, "60": 1.0},
              run="r", kept=("float32", "wide"))  # fmt: skip
    for tries in (
        (),
        (one,),
        (one, dataclasses.replace(one, change="nothing", value=None, kept=None)),
    ):
        check("prove", Proof("r", 1.0, 60, tries, kept=("float32", "wide")).to_json())


@pytest.mark.parametrize("name", ["report", "plan", "list"])
def test_an_unknown_key_anywhere_is_refused(name, folder, printed):
    words = [folder / "runs"] if name == "list" else [folder / "runs" / "lr-3.0"]
    body = check(name, printed(name, *words, "--json", *(["--all"] if name == "report" else [])))
    every = [one for one in objects_in(body) if one]
    assert len(every) > 2
    for at in range(len(every)):
        changed = copy.deepcopy(body)
        next(itertools.islice(filter(None, objects_in(changed)), at, None))["a new key"] = 1
        with pytest.raises(jsonschema.ValidationError):
            check(name, changed)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_schema_has_the_fields_of_the_class_that_is_printed(kind):
    """A value that is seldom printed is in no sample: its class says that it may be."""
    fields = [field for field in dataclasses.fields(kind) if field.metadata.get("json", True)]
    wanted = {str(field.metadata.get("name", field.name)) for field in fields}
    wanted |= {"text"} if kind is Evidence else set()
    wanted -= {"key"} if kind is Tally else set()
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
    found = [schema["$defs"][name] for schema in map(schema_of, NAMES) if name in schema["$defs"]]
    assert found
    for each in found:
        assert set(each["properties"]) == wanted


def from_json(told: dict[str, Any]) -> Fact:
    kinds = {"reading": Reading, "table": Table, "holds": Holds}
    return Fact(
        **{name: kinds.get(name, lambda value: value)(value) for name, value in told.items()}
    )


def test_the_page_for_scripts_names_each_schema_and_each_reading():
    page = (HERE.parent / "docs" / "agents.md").read_text("utf-8")
    assert set(re.findall(r"`(\w+)-1\.json`", page)) == set(NAMES)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert json.loads(scope["schema"]) == schema_of("report")
    table = page.partition("| `reading` | operation |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.split("\n") if row.startswith("| ")]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(listed) == sorted(reading.value for reading in Reading)
