"""Every example is run as a person runs it, and its run is held against what it printed."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ampwatch

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 24
NUMBER = r"([-+.\deninf]+)"


def run_example(name: str, folder: Path, *more: str, watch: str = "1") -> str:
    """The example's output; it must end well and warn of nothing."""
    environment = {
        **os.environ,
        "AMPWATCH": watch,
        "AMPWATCH_STRICT": "1",
        "AMPWATCH_ENDPOINT": "off",
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    command = [sys.executable, EXAMPLES / f"{name}.py", f"--steps={STEPS}", "--seed=3"]
    done = subprocess.run(
        [*command, f"--log-dir={folder / 'runs'}", *more],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ampwatch" not in done.stderr, done.stderr
    return done.stdout


def printed(output: str, pattern: str) -> list[tuple[float, ...]]:
    """The numbers of each line that the pattern matches; it is written as the example prints."""
    found = re.findall(pattern.replace(" ", r"\s+").replace("N", NUMBER), output)
    groups = [(match,) if isinstance(match, str) else match for match in found]
    return [tuple(float(number) for number in group) for group in groups]


def the_run(folder: Path, name: str | None = None) -> ampwatch.Run:
    """The one run that the example has written, or the one of that name."""
    runs = sorted(path.parent for path in (folder / "runs").glob("*/run.json"))
    if name is not None:
        runs = [path for path in runs if path.name == name]
    assert len(runs) == 1, runs
    return ampwatch.open_run(runs[0])


def column(run: ampwatch.Run, name: str) -> list[float]:
    return run.steps.sort_by("step")[name].to_pylist()


def agree(logged: list[float], shown: list[float]) -> None:
    """The example prints six digits."""
    assert len(logged) == len(shown)
    for ours, theirs in zip(logged, shown, strict=True):
        if math.isfinite(theirs):
            assert ours == pytest.approx(theirs, rel=1e-5)
        else:
            assert not math.isfinite(ours)


def test_minimal_loop_is_logged_as_it_printed(tmp_path: Path) -> None:
    lines = printed(run_example("minimal", tmp_path), "step N loss N scale N")
    run = the_run(tmp_path)
    assert column(run, "step") == [step for step, _, _ in lines] == list(range(STEPS))
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    assert column(run, "scale_after") == [scale for _, _, scale in lines]
    assert set(column(run, "lr")) == {0.01}
    assert set(column(run, "autocast_dtype")) == {"float16"}
    assert run.clean_end


def test_clipping_and_accumulation_are_seen_in_the_norms(tmp_path: Path) -> None:
    lines = printed(run_example("clip_and_accumulate", tmp_path), "step N loss N norm N")
    run = the_run(tmp_path)
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    agree(column(run, "grad_norm"), [norm for _, _, norm in lines])
    accepted = [norm for norm in column(run, "grad_norm_applied") if math.isfinite(norm)]
    assert max(accepted) <= 1.0 + 1e-5
    assert set(column(run, "micro_batches")) == {4}


def test_both_networks_of_a_gan_have_rows_of_their_own(tmp_path: Path) -> None:
    lines = printed(run_example("gan", tmp_path), "step N losses N N scale N")
    rows = the_run(tmp_path).steps.sort_by([("step", "ascending"), ("optimizer", "ascending")])
    assert rows["step"].to_pylist() == [step for step in range(STEPS) for _ in range(2)]
    assert rows["optimizer"].to_pylist() == [0, 1] * STEPS
    agree(rows["loss"].to_pylist(), [loss for _, *losses, _ in lines for loss in losses])
    assert rows["scale_after"].to_pylist()[::2] == [scale for *_, scale in lines]
    layers = set(the_run(tmp_path).layers["layer"].to_pylist())
    assert {"generator.0", "discriminator.4"} <= layers


def test_a_resumed_training_is_one_run_of_two_attempts(tmp_path: Path) -> None:
    lines = printed(run_example("save_and_resume", tmp_path), "step N loss N scale N")
    run = the_run(tmp_path)
    assert run.path.name == "save-and-resume"
    assert column(run, "step") == [step for step, _, _ in lines] == list(range(STEPS))
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    assert column(run, "scale_after") == [scale for _, _, scale in lines]
    kinds = run.events["kind"].to_pylist()
    assert kinds.count("started") == 2
    assert kinds.count("ended") == 2
    assert kinds.count("state-saved") == 2


def test_bfloat16_without_a_scaler_logs_what_it_is_told(tmp_path: Path) -> None:
    lines = printed(run_example("bf16_without_scaler", tmp_path), "step N loss N accuracy N")
    run = the_run(tmp_path)
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    agree(column(run, "accuracy"), [accuracy for _, _, accuracy in lines])
    assert set(column(run, "scale")) == {None}
    assert set(column(run, "skipped")) <= {None, False}
    assert set(column(run, "autocast_dtype")) == {"bfloat16"}
    assert all(norm > 0 for norm in column(run, "grad_norm"))


def test_the_recipe_leaves_three_runs_side_by_side(tmp_path: Path) -> None:
    output = run_example("fp32_autocast_amp", tmp_path)
    for name, dtype in (("fp32", None), ("autocast", "float16"), ("amp", "float16")):
        ((loss, seconds, megabytes),) = printed(output, rf"(?m)^{name} loss N N s N MB")
        run = the_run(tmp_path, name)
        agree(column(run, "loss")[-1:], [loss])
        assert set(column(run, "autocast_dtype")) == {dtype}
        assert (column(run, "scale")[0] is None) == (name != "amp")
        assert seconds > 0
        assert megabytes > 0


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_prints_the_same_when_switched_off(path: Path, tmp_path: Path) -> None:
    outputs = []
    for watch in ("1", "0"):
        folder = tmp_path / watch
        folder.mkdir()
        outputs.append(re.sub(r"[\d.]+ s\b", "", run_example(path.stem, folder, watch=watch)))
    assert outputs[0] == outputs[1]
    assert not (tmp_path / "0" / "runs").exists() or not list(tmp_path.glob("0/runs/*/run.json"))


def test_every_example_has_a_test_of_its_own_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'run_example("{path.stem}"' in text, f"{path.name} is not held against its run"
