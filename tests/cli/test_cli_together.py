"""Several real runs of one model in one report: they differ in their rate alone."""

from __future__ import annotations

import json

import pytest
import torch

import ampwatch
from ampwatch.cli import run


def train(folder, rate, *, width=32, steps=60):
    """A small perceptron in fp16; it bears a rate of about 1."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu")
    name = f"rate-{rate:g}-{width}"
    data = torch.Generator().manual_seed(1)
    teacher = torch.randn(16, 4, generator=data) / 4
    with ampwatch.attach(scaler, model, run=name, log_dir=folder, endpoint="off"):
        for _ in range(steps):
            x = torch.randn(32, 16, generator=data)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                out = model(x)
            scaler.scale(((out.float() - x @ teacher) ** 2).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return str(folder / name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two that their rate broke, one that trained."""
    folder = tmp_path_factory.mktemp("runs")
    return [train(folder, rate) for rate in (16.0, 4.0, 0.1)]


def report(capsys, *words):
    code = run(["report", *words])
    shown = capsys.readouterr()
    return code, " ".join(shown.out.split()), shown.err


def test_runs_of_one_model_get_one_rate_between_what_failed_and_what_worked(capsys, runs):
    code, out, err = report(capsys, *runs)
    assert (code, err) == (0, "")
    assert out.count("FAILING") == 2
    assert out.count("HEALTHY") == 1
    assert "for all runs lower to" in out
    assert "3 runs together: 4 failed, 0.1 worked." in out
    assert out.count("for all runs") == 1


def test_the_rate_of_several_runs_trains(capsys, runs, tmp_path):
    advice = json.loads(report(capsys, *runs, "--json")[1])["learning_rate"]
    assert 0.1 <= advice["recommended"] < 4.0
    again = train(tmp_path, advice["recommended"])
    assert json.loads(report(capsys, again, "--json")[1])["verdict"] == "healthy"


def test_json_holds_each_run_and_the_advice_for_all(capsys, runs):
    body = json.loads(report(capsys, *runs, "--json")[1])
    assert [each["verdict"] for each in body["runs"]] == ["failing", "failing", "healthy"]
    assert body["learning_rate"]["action"] == "lower"
    assert body["learning_rate"]["current"] == 4.0


def test_the_gravest_run_decides_the_exit_code(capsys, runs):
    assert report(capsys, *runs, "--fail-on", "error")[0] == 1
    assert report(capsys, runs[2], runs[2], "--fail-on", "error")[0] == 0


def test_runs_of_two_models_are_refused(capsys, runs, tmp_path):
    code, out, err = report(capsys, runs[0], train(tmp_path, 0.1, width=8))
    assert (code, out) == (2, "")
    assert "not runs of one model: they train 172 and 676 parameters" in err


# Losses at one learning rate, of logs that show nothing else.
COURSES = {
    "leaps": [11.7, 8.85, 8713, 15806],
    "climbs": [2.5 * 0.98**n if n < 200 else 0.05 * 1.05 ** (n - 200) for n in range(300)],
    "nan": [2.0] * 20 + [float("nan")] * 20,
    "still": [2.3] * 100,
    "learns": [2.5 * 0.98**n + 0.5 for n in range(200)],
    "few": [2.0, 1.9],
}


@pytest.mark.parametrize("losses", COURSES.values(), ids=COURSES)
def test_two_copies_of_a_log_are_advised_as_each_alone(capsys, tmp_path, losses):
    lines = [f"step {n} loss {loss:.6g} lr 0.1\n" for n, loss in enumerate(losses)]
    one, other = tmp_path / "a.log", tmp_path / "b.log"
    for log in (one, other):
        log.write_text("".join(lines))
    alone = json.loads(report(capsys, str(one), "--json")[1])["learning_rate"]
    both = json.loads(report(capsys, str(one), str(other), "--json")[1])["learning_rate"]
    for part in ("action", "current", "recommended"):
        assert both[part] == alone[part]


def test_a_rate_that_another_log_bore_is_not_undercut(capsys, tmp_path):
    words = []
    for name, rate in (("leaps", 0.1), ("learns", 0.08)):
        log = tmp_path / f"{name}.log"
        lines = (f"step {n} loss {x:.6g} lr {rate}\n" for n, x in enumerate(COURSES[name]))
        log.write_text("".join(lines))
        words.append(str(log))
    for order in (words, words[::-1]):
        advice = json.loads(report(capsys, *order, "--json")[1])["learning_rate"]
        assert (advice["action"], advice["recommended"]) == ("lower", 0.08)
