"""The gallery: its labels are sound, its cases do what they say, its scorer adds up."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import children
import letter_truth
import pytest

import ampwatch
from ampwatch.rows import Table

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def gallery_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def performed(name: str, folder: Path) -> ampwatch.Run:
    """The run of a case, of which the letter is true, as each letter has to be."""
    from examples.gallery import all_cases
    from examples.gallery.performing import perform

    case = next(case for case in all_cases() if case.name == name)
    run = ampwatch.open_run(perform(case, folder))
    assert letter_truth.problems_of(run) == []
    return run


def test_every_label_is_sound() -> None:
    from examples.gallery import all_cases
    from examples.gallery.held_out.streams import unseen_streams
    from examples.gallery.streams import all_streams

    cases = [*all_cases(), *all_streams(), *unseen_streams()]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        label = case.label
        assert case.what.endswith("."), case.name
        assert all(re.fullmatch(r"AMP[1-79]\d\d", c) for c in (*label.must, *label.tells))
        assert label.advice in {None, "lower", "keep", "raise", "not-the-cause", "unknown"}
        assert label.is_healthy or label.onset is not None, case.name
        assert case.issue is None or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.issue), case.name


def test_each_fault_has_a_healthy_twin_and_the_gallery_is_as_large_as_it_says() -> None:
    from examples.gallery import all_cases

    cases = all_cases()
    faults = {case.name for case in cases if not case.label.is_healthy}
    own = [case for case in cases if case.twin_of is None]
    assert {case.twin_of for case in cases if case.twin_of} == faults
    assert len(own) >= 60
    assert sum(case.label.is_healthy for case in own) >= 20
    assert sum(case.issue is not None for case in own) >= 30
    never_blind = [case for case in own if case.family != "blind"]  # looked at once, then mended by
    assert sum(case.held_out for case in never_blind) >= len(never_blind) // 3


def test_a_forward_overflow_has_no_finite_loss_and_its_twin_no_skip(tmp_path: Path) -> None:
    fault = performed("norm-eps-vanishes", tmp_path).steps
    twin = performed("norm-eps-vanishes.twin", tmp_path).steps
    assert all(fault["skipped"].to_pylist())
    assert not any(loss == loss for loss in fault["loss"].to_pylist())
    assert not any(twin["skipped"].to_pylist())


def test_clipping_scaled_gradients_learns_less_than_its_twin(tmp_path: Path) -> None:
    fault = performed("clip-before-unscale", tmp_path).steps["loss"].to_pylist()
    twin = performed("clip-before-unscale.twin", tmp_path).steps["loss"].to_pylist()
    assert fault[0] == twin[0]  # the same weights and data
    assert min(fault[-10:]) > max(twin[-10:])


def test_a_search_from_2_to_the_32_ends_in_health(tmp_path: Path) -> None:
    steps = performed("startup-from-2-to-the-32", tmp_path).steps
    skipped = steps["skipped"].to_pylist()
    assert skipped[0]
    assert skipped == sorted(skipped, reverse=True)  # none after the first success
    assert steps["loss"].to_pylist()[-1] < steps["loss"].to_pylist()[0] / 2


@pytest.mark.parametrize(
    ("name", "code"), [("rate-too-low", "AMP305"), ("scale-too-small", "AMP201")]
)
def test_a_fault_is_told_and_its_twin_is_not(tmp_path: Path, name: str, code: str) -> None:
    fault, twin = (ampwatch.diagnose(performed(n, tmp_path)) for n in (name, f"{name}.twin"))
    assert code in {finding.code for finding in fault.findings}
    assert twin.findings == ()
    assert twin.learning_rate.action.value == "keep"


LOW_PRECISION = {
    "fp8-reaches-the-head": "AMP704", "fp8-filter-matches-nothing": "AMP705",
    "fp8-outlying-channels": "AMP702", "fp8-scale-is-never-renewed": "AMP703",
    "fp8-maxima-of-the-wrong-group": "AMP701", "fp8-scale-is-frozen-by-nan": "AMP706",
}  # fmt: skip


@pytest.mark.slow_trainings
@pytest.mark.parametrize(("name", "code"), LOW_PRECISION.items())
def test_a_fault_below_sixteen_bits_is_told_and_its_twin_is_not(
    tmp_path: Path, name: str, code: str
) -> None:
    pytest.importorskip("torchao.float8")
    runs = [performed(n, tmp_path) for n in (name, f"{name}.twin")]
    fault, twin = map(ampwatch.diagnose, runs)
    assert code in {finding.code for finding in fault.findings}
    assert [one.code for one in twin.findings if one.severity.value != "info"] == []
    if name == "fp8-outlying-channels":  # whose twin leaves the told layers in bf16
        lost, gained = (sum(run.steps["loss"].to_pylist()[-40:]) / 40 for run in runs)
        assert gained < 0.7 * lost


def test_a_case_is_not_performed_again_while_its_source_is_the_same(tmp_path: Path) -> None:
    from examples.gallery import all_cases
    from examples.gallery.performing import chosen, perform_missing

    cases = chosen(all_cases(), "half-meets-float")
    list(perform_missing(cases, tmp_path))
    first = ampwatch.open_run(tmp_path / "half-meets-float").info.started_ns
    list(perform_missing(cases, tmp_path))
    assert ampwatch.open_run(tmp_path / "half-meets-float").info.started_ns == first


def test_a_streams_scale_follows_torchs_rule(tmp_path: Path) -> None:
    from examples.gallery.courses import write_stream
    from examples.gallery.streams import all_streams

    stream = next(stream for stream in all_streams() if stream.name == "fifty-growth-teeth")
    steps = ampwatch.open_run(write_stream(stream, tmp_path)).read(Table.STEPS)
    before, after = steps["scale"].to_numpy(), steps["scale_after"].to_numpy()
    skipped = steps["skipped"].to_numpy()
    assert steps.num_rows == 100_000
    assert skipped.sum() == 49
    assert (before[1:] == after[:-1]).all()
    assert (after[skipped] == before[skipped] / 2).all()
    assert (before[skipped] == 2.0**17).all()


def test_labels_are_printed_as_json() -> None:
    words = "-m", "examples.gallery", "labels", "--only", "update-missing*"
    printed = children.run(*words, cwd=ROOT, env=os.environ)
    cases = json.loads(printed.stdout)["cases"]
    assert [case["name"] for case in cases] == ["update-missing", "update-missing.twin"]
    assert cases[0]["must"] == ["AMP402"]
    assert cases[1]["must"] == []
    assert cases[1]["twin_of"] == "update-missing"


def test_the_benchmark_scores_a_case_and_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    out = tmp_path / "figures.md"
    out.write_text(
        "stale figures\n<!-- explanations, by hand; kept when the figures are renewed -->\nmine\n"
    )
    words = "benchmarks/diagnosis.py", "--only", "half-meets-float*"
    done = children.run(*words, "--runs", tmp_path / "runs", "--out", out, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert "| AMP415 |  | 1 | 0 | 0 | 0 (0) |" in text
    assert "stale figures" not in text
    assert text.endswith("mine\n")
