"""Kills at random moments: of a training, from attach to its end, and of what rewrites a run."""

from __future__ import annotations

import csv
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import chaos_training as training
import pyarrow as pa
import pyarrow.parquet as pq
from chaos_material import a_run, ended, samples
from chaos_trials import Hung, Lost, Trial, die_with_parent, kind, lost_if_raised

from ampwatch import cli, list_runs, open_run
from ampwatch.codec import encode
from ampwatch.errors import AmpwatchError
from ampwatch.rows import TABLES, Table
from ampwatch.store import RankWriter
from ampwatch.store.layout import sweep

_KILLS_A_TRIAL = 8
_PATIENCE_S = 90.0
_LEFTOVER = ".*.new"


# --- trainings -----------------------------------------------------------------------------------


@kind("kill-training", share=4.0)
def kill_training(trial: Trial) -> None:
    """SIGKILL before, in and after attach, in training and while it closes; then attach again."""
    chance, log_dir = trial.chance, trial.folder / "runs"
    seed = chance.randrange(training.SEEDS)
    child = training.start(training.Plan(log_dir, seed), trial.folder / "said.txt")
    word, delay_s = _moment(chance)
    trial.say(f"killed {1000 * delay_s:.1f} ms after {word!r}")
    child.until_said(word)
    time.sleep(delay_s)
    trial.kills += child.kill()
    _look_at_what_is_left(trial, child, log_dir, seed)
    _attach_again(trial, log_dir, seed)


def _moment(chance: random.Random) -> tuple[str, float]:
    """After which word the kill comes, and how long after."""
    word, most_s = chance.choice(
        [("attaching", 0.02), ("attaching", 0.15), ("training", 0.5), ("closing", 0.08)]
    )
    return word, chance.uniform(0.0, most_s)


def _look_at_what_is_left(trial: Trial, child: training.Child, log_dir: Path, seed: int) -> None:
    acknowledged = child.acknowledged
    if not (log_dir / "run").exists():
        if acknowledged:
            raise Lost(f"no run's folder, and {sum(acknowledged.values())} rows were acknowledged")
        return
    with lost_if_raised("the run does not open", AmpwatchError):
        run = open_run(log_dir / "run")
    training.check_rows(run, training.truth_of(trial.material, seed)["losses"])
    for table, rows in acknowledged.items():
        if (there := run.rows_logged(Table(table), 0)) < rows:
            raise Lost(f"{there} of {rows} acknowledged rows of {table}")
    _refuse_problems(log_dir)


def _attach_again(trial: Trial, log_dir: Path, seed: int) -> None:
    """The next training takes the same folder, by the same name, resumed or not."""
    resume = trial.chance.random() < 0.5
    before = _steps_in(log_dir / "run")
    trial.say(f"attached again after a kill, resume={resume}")
    plan = training.Plan(log_dir, seed, steps=5, attach={"resume": resume})
    child = training.start(plan, trial.folder / "said-again.txt")
    child.wait()
    if child.code:
        raise Hung(f"the next training in the folder ended with {child.code}")
    if _steps_in(log_dir / "run") < before:
        raise Lost("the next attach took rows of the run before away")
    if sum(_steps_in(path) for path in log_dir.iterdir()) != before + 5:
        raise Lost("the next training's five rows are not there")
    _refuse_problems(log_dir)
    trial.left_behind += _left_behind(log_dir)


def _left_behind(folder: Path) -> int:
    """What nobody takes away, though an hour has gone by: a younger one may be another's work."""
    for path in folder.glob(_LEFTOVER):
        os.utime(path, (0, 0))
    sweep(folder)
    return len(list(folder.glob(_LEFTOVER)))


def _steps_in(path: Path) -> int:
    if path.name.startswith(".") or not path.exists():
        return 0
    with lost_if_raised("the run does not open", AmpwatchError):
        return open_run(path).steps.num_rows


def _refuse_problems(log_dir: Path) -> None:
    for line in list_runs(log_dir):
        if line.problem:
            raise Lost(f"a run that cannot be listed: {line.problem}")


# --- commands ------------------------------------------------------------------------------------


@kind("kill-compact", share=2.5)
def kill_compact(trial: Trial) -> None:
    """`ampwatch compact` killed again and again: the same rows each time, and it can be resumed."""
    run = a_run(trial.material, "long", trial.folder / "run")
    whole = _rows(run)

    def look() -> None:
        nonlocal whole
        _refuse_other(run, whole)
        if trial.chance.random() < 0.3:
            whole = _grow(run)

    _kill_again(trial, ["compact", str(run)], look)
    _refuse_other(run, whole)


@kind("kill-export", share=1.5)
def kill_export(trial: Trial) -> None:
    """`ampwatch export` to Parquet, CSV or TensorBoard: files are whole or not there."""
    run = a_run(trial.material, "long", trial.folder / "run")
    whole, out = _rows(run), trial.folder / "out"
    to = trial.chance.choice(["parquet", "csv", "tensorboard"])

    def look() -> None:
        _refuse_halves(out, whole)
        if trial.chance.random() < 0.7:
            shutil.rmtree(out, ignore_errors=True)

    _kill_again(trial, ["export", str(run), "-o", str(out), "--format", to], look)
    _refuse_other(run, whole)
    _refuse_halves(out, whole)


@kind("kill-report", share=1.5)
def kill_report(trial: Trial) -> None:
    """`ampwatch report -o`: the page is whole or not there, and the run is as it was."""
    run = a_run(trial.material, "long", trial.folder / "run")
    whole, page = _rows(run), trial.folder / "page.html"

    def look() -> None:
        if page.exists() and not page.read_text().rstrip().endswith("</html>"):
            raise Lost("half a page stands under the page's name")
        if trial.chance.random() < 0.7:
            page.unlink(missing_ok=True)

    _kill_again(trial, ["report", str(run), "-o", str(page)], look)
    _refuse_other(run, whole)


@kind("kill-import", share=1.5)
def kill_import(trial: Trial) -> None:
    """`ampwatch import` of a foreign log: what it leaves is a run or nothing."""
    log = trial.chance.choice([path for path in samples() if path.suffix == ".wandb"])
    out = trial.folder / "runs"

    def look() -> None:
        _refuse_problems(out)
        for line in list_runs(out):
            open_run(line.path).steps  # noqa: B018 - it is read

    _kill_again(trial, ["import", str(log), "-o", str(out)], look)
    trial.left_behind += _left_behind(out)


def _kill_again(trial: Trial, words: Sequence[str], look: Callable[[], None]) -> None:
    """Kill a command again and again, and look at what is left; then it does its work."""
    takes_s = _takes(trial, words)
    for _ in range(_KILLS_A_TRIAL):
        trial.kills += _killed(trial, words, takes_s)
        look()
    _refuse_failure(trial, words)


def _command(words: Sequence[str]) -> int:
    """Fork `ampwatch WORDS`; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            die_with_parent()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            code = cli.run(list(words))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return pid


def _killed(trial: Trial, words: Sequence[str], takes_s: float) -> bool:
    """Kill a command at a random moment; False if it was over before."""
    delay_s = trial.chance.uniform(0.0, takes_s)
    trial.say(f"`{words[0]}` killed after {1000 * delay_s:.0f} ms")
    pid = _command(words)
    time.sleep(delay_s)
    with_status = os.waitpid(pid, os.WNOHANG)
    if with_status[0]:
        if code := os.waitstatus_to_exitcode(with_status[1]):
            raise Lost(f"`{words[0]}` ended with {code} before it was killed")
        return False
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return True


def _refuse_failure(trial: Trial, words: Sequence[str]) -> None:
    """After the kills the command does its work."""
    trial.say(f"`{words[0]}` done after kills")
    code = ended(_command(words), _PATIENCE_S)
    if code is None:
        raise Hung(f"`{words[0]}` did not end in {_PATIENCE_S:g} s after kills")
    if code:
        raise Lost(f"`{words[0]}` ended with {code} after kills")


def _takes(trial: Trial, words: Sequence[str]) -> float:
    """How long such a command takes here, once for all trials: the driver's children share a file.

    It is measured on copies: what it leaves must not be there before the first kill.
    """
    note = trial.material / f"takes-{words[0]}-{words[-1] if words[0] == 'export' else ''}"
    if note.exists():
        return float(note.read_text())
    measured = trial.folder / "measured"
    if words[0] != "import":
        a_run(trial.material, "long", measured / "run")
    own = [word.replace(f"{trial.folder}/", f"{measured}/") for word in words]
    began = time.monotonic()
    _refuse_failure(trial, own)
    takes_s = time.monotonic() - began
    note.write_text(str(takes_s))
    return takes_s


Rows = dict[Table, pa.Table]


def _rows(run: Path) -> Rows:
    opened = open_run(run)
    return {table: opened.read(table) for table in TABLES}


def _refuse_other(run: Path, whole: Rows) -> None:
    """The same rows as before, and nothing that is said to be missing."""
    with lost_if_raised("the run does not open", AmpwatchError):
        opened = open_run(run)
        rows = {table: opened.read(table) for table in TABLES}
    for table, before in whole.items():
        if not rows[table].equals(before):
            raise Lost(f"{table.value}: {rows[table].num_rows} rows, before {before.num_rows}")
    if opened.notes:
        raise Lost(f"the run says: {opened.notes[0]}")
    _refuse_problems(run)


def _refuse_halves(out: Path, whole: Rows) -> None:
    """What stands under its final name is complete."""
    for table in (Table.STEPS, Table.EVENTS):
        _refuse_half(out / f"{table.value}.parquet", whole[table].num_rows, _parquet_rows)
        _refuse_half(out / f"{table.value}.csv", whole[table].num_rows, _csv_rows)


def _refuse_half(path: Path, rows: int, count: Callable[[Path], int]) -> None:
    if not path.exists():
        return
    with lost_if_raised(f"{path.name} cannot be read", pa.ArrowException, OSError, ValueError):
        found = count(path)
    if found != rows:
        raise Lost(f"{path.name} has {found} rows of {rows}")


def _parquet_rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows


def _csv_rows(path: Path) -> int:
    with path.open(newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def _grow(run: Path) -> Rows:
    """A training goes on in the folder of a killed compaction."""
    before = _rows(run)[Table.STEPS].num_rows
    with lost_if_raised("a killed compaction's run cannot be written", AmpwatchError):
        writer = RankWriter(run, 0)
        writer.append(encode(Table.STEPS, {"step": [10**6 + before], "time_ns": [before]}))
        writer.close()
    rows = _rows(run)
    if rows[Table.STEPS].num_rows != before + 1:
        raise Lost("the row that was written after a killed compaction is not there")
    return rows
