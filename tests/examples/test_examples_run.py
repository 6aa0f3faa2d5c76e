"""Every example is run as a person runs it, and its run is held against what it printed."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import children
import pytest

import ampwatch

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 24
NUMBER = r"([-+.\deninf]+)"


@dataclass(frozen=True)
class Ran:
    """An example's output, and the folder it wrote its runs into."""

    output: str
    folder: Path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Each example is run once with the watch; several tests look at it."""

    @cache
    def ran(name: str) -> Ran:
        folder = tmp_path_factory.mktemp(name)
        return Ran(run_example(name, folder), folder)

    return ran


def run_example(name: str, folder: Path) -> str:
    """The example's output; it must end well and warn of nothing."""
    for framework in ("lightning", "transformers", "accelerate"):
        if name.startswith(framework):
            pytest.importorskip(framework, reason=f"{framework} is not installed")
    if name.startswith("fp8") and importlib.util.find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    environment = {
        **os.environ,
        "AMPWATCH_STRICT": "1",
        "AMPWATCH_ENDPOINT": "off",
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(EXAMPLES.parent),
    }
    words = EXAMPLES / f"{name}.py", f"--steps={STEPS}", "--seed=3", f"--log-dir={folder / 'runs'}"
    by_itself = name == "minimal"  # one is started as a person starts it
    done = children.run(*words, env=environment, cwd=folder, fresh=by_itself)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if "torchao" not in line]  # nor its folder
    assert not any("ampwatch" in line for line in ours), done.stderr
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


def test_minimal_loop_is_logged_as_it_printed(watched: Callable[[str], Ran]) -> None:
    ran = watched("minimal")
    lines = printed(ran.output, "step N loss N scale N")
    run = the_run(ran.folder)
    assert column(run, "step") == [step for step, _, _ in lines] == list(range(STEPS))
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    assert column(run, "scale_after") == [scale for _, _, scale in lines]
    assert set(column(run, "lr")) == {0.01}
    assert set(column(run, "autocast_dtype")) == {"float16"}
    assert run.clean_end


def test_clipping_and_accumulation_are_seen_in_the_norms(watched: Callable[[str], Ran]) -> None:
    ran = watched("clip_and_accumulate")
    lines = printed(ran.output, "step N loss N norm N")
    run = the_run(ran.folder)
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    agree(column(run, "grad_norm"), [norm for _, _, norm in lines])
    accepted = [norm for norm in column(run, "grad_norm_applied") if math.isfinite(norm)]
    assert max(accepted) <= 1.0 + 1e-5
    assert set(column(run, "micro_batches")) == {4}


def test_both_networks_of_a_gan_have_rows_of_their_own(watched: Callable[[str], Ran]) -> None:
    ran = watched("gan")
    lines = printed(ran.output, "step N losses N N scale N")
    rows = the_run(ran.folder).steps.sort_by([("step", "ascending"), ("optimizer", "ascending")])
    assert rows["step"].to_pylist() == [step for step in range(STEPS) for _ in range(2)]
    assert rows["optimizer"].to_pylist() == [0, 1] * STEPS
    agree(rows["loss"].to_pylist(), [loss for _, *losses, _ in lines for loss in losses])
    assert rows["scale_after"].to_pylist()[::2] == [scale for *_, scale in lines]
    layers = set(the_run(ran.folder).layers["layer"].to_pylist())
    assert {"generator.0", "discriminator.4"} <= layers


def test_a_mirrored_loop_shows_what_it_printed(watched: Callable[[str], Ran]) -> None:
    pytest.importorskip("tensorboard", reason="no tensorboard here to read it back")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ran = watched("mirrored")
    lines = printed(ran.output, "step N loss N scale N")
    shown = EventAccumulator(str(ran.folder / "runs" / "tensorboard" / "mirrored"))
    shown.Reload()
    losses = shown.Scalars("ampwatch/loss")
    assert [event.step for event in losses] == [step for step, _, _ in lines]
    agree([event.value for event in losses], [loss for _, loss, _ in lines])


def test_a_resumed_training_is_one_run_of_two_attempts(watched: Callable[[str], Ran]) -> None:
    ran = watched("save_and_resume")
    lines = printed(ran.output, "step N loss N scale N")
    run = the_run(ran.folder)
    assert run.path.name == "save-and-resume"
    assert column(run, "step") == [step for step, _, _ in lines] == list(range(STEPS))
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    assert column(run, "scale_after") == [scale for _, _, scale in lines]
    kinds = run.events["kind"].to_pylist()
    assert kinds.count("started") == 2
    assert kinds.count("ended") == 2
    assert kinds.count("state-saved") == 2


def test_bfloat16_without_a_scaler_logs_what_it_is_told(watched: Callable[[str], Ran]) -> None:
    ran = watched("bf16_without_scaler")
    lines = printed(ran.output, "step N loss N accuracy N")
    run = the_run(ran.folder)
    agree(column(run, "loss"), [loss for _, loss, _ in lines])
    agree(column(run, "accuracy"), [accuracy for _, _, accuracy in lines])
    assert set(column(run, "scale")) == {None}
    assert set(column(run, "skipped")) <= {None, False}
    assert set(column(run, "autocast_dtype")) == {"bfloat16"}
    assert all(norm > 0 for norm in column(run, "grad_norm"))


def test_a_guarded_loop_is_logged_as_it_printed_and_says_that_a_guard_is_on(
    watched: Callable[[str], Ran],
) -> None:
    ran = watched("guarded")
    run = the_run(ran.folder)
    agree(column(run, "loss"), [loss for _, loss in printed(ran.output, "step N loss N")])
    assert run.events["kind"].to_pylist().count("guard") == 1


def test_a_head_quantised_by_mistake_is_named_with_what_keeps_it(
    watched: Callable[[str], Ran],
) -> None:
    ran = watched("fp8_head_by_mistake")
    run = the_run(ran.folder)
    agree(column(run, "loss"), [loss for _, loss in printed(ran.output, "step N loss N")])
    (finding,) = ampwatch.diagnose(run).findings
    assert (finding.code, finding.layer) == ("AMP704", "lm_head")
    assert "Leave lm_head in bf16" in finding.action
    formats = {row["layer"]: row["grad_format"] for row in run.layers.to_pylist()}
    assert formats["blocks.1.down"] == formats["lm_head"] == "float8_e5m2/tensorwise/dynamic"


def test_the_recipe_leaves_three_runs_side_by_side(watched: Callable[[str], Ran]) -> None:
    ran = watched("fp32_autocast_amp")
    output = ran.output
    for name, dtype in (("fp32", None), ("autocast", "float16"), ("amp", "float16")):
        ((loss, seconds, megabytes),) = printed(output, rf"(?m)^{name} loss N N s N MB")
        run = the_run(ran.folder, name)
        agree(column(run, "loss")[-1:], [loss])
        assert set(column(run, "autocast_dtype")) == {dtype}
        assert (column(run, "scale")[0] is None) == (name != "amp")
        assert seconds > 0
        assert megabytes > 0


@pytest.mark.slow_frameworks
def test_a_lightning_fit_is_logged_with_its_scale(watched: Callable[[str], Ran]) -> None:
    ran = watched("lightning_fit")
    run = the_run(ran.folder)
    agree(column(run, "loss"), [loss for _, loss in printed(ran.output, "step N loss N")])
    assert column(run, "scale") == [65536.0] * STEPS
    assert "net.0" in run.layers["layer"].to_pylist()


@pytest.mark.slow_frameworks
@pytest.mark.parametrize("name", ["transformers_trainer", "accelerate_loop"])
def test_a_framework_without_a_scaler_is_logged_with_its_losses(
    name: str, watched: Callable[[str], Ran]
) -> None:
    ran = watched(name)
    run = the_run(ran.folder)
    agree(column(run, "loss"), [loss for _, loss in printed(ran.output, "step N loss N")])
    assert set(column(run, "autocast_dtype")) == {"bfloat16"}
    assert run.clean_end


def test_every_example_has_a_test_of_its_own_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.stem}"' in text, f"{path.name} is not held against its run"
