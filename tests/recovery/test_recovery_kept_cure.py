"""A real training with two faults: a layer that overflows, and a rate that is too high."""

from __future__ import annotations

import json
import os

import pytest
from proving_commands import OVERFLOWS, prove, ran

from ampwatch.recovery.proof import kept_proof

pytestmark = pytest.mark.skipif(os.name != "posix", reason="ends processes by their group")

IN_FULL = """
def in_full(layer, x):
    with torch.autocast("cpu", enabled=False):
        return layer(x.float())
"""


def last_loss(folder, rate, *, wide_in_float32):
    """Of the script that overflows, unwatched, changed by hand."""
    script = OVERFLOWS.replace("lr=1e-3", f"lr={rate}") + "\nprint(loss.item())"
    if wide_in_float32:
        script = script.replace("self.wide(20", "in_full(self.wide, 20")
        script = script.replace("import torch\n", f"import torch\n{IN_FULL}")
    (folder / "by_hand.py").write_text(script)
    return float(ran(folder, "by_hand.py").stdout)


@pytest.mark.slow_trainings
def test_a_cure_that_ends_the_trouble_is_kept_while_the_rate_is_searched(tmp_path):
    """A layer overflows from the first step, at any rate; in float32 the training diverges."""
    (tmp_path / "train.py").write_text(OVERFLOWS.replace("lr=1e-3", "lr=0.1"))
    ran(tmp_path, "-m", "ampwatch", "run", "--name", "toy", "train.py").check_returncode()
    run = tmp_path / "ampwatch-runs" / "toy"
    done = prove(tmp_path, run, "-o", tmp_path / "reruns", "--budget", "5m")
    assert done.returncode == 0, done.stderr
    proof = kept_proof(run)
    alone, first, *others = proof.tries[2:]
    assert [(one.change, one.is_cured) for one in proof.tries[:2]] == [
        ("nothing", False), ("float32", True),
    ]  # fmt: skip
    assert not proof.tries[1].is_stable
    assert (alone.rate, alone.kept, alone.is_cured) == (first.rate, None, False)
    assert {one.kept for one in (first, *others)} == {("float32", "wide")}

    rate, (low, high) = proof.proved_rate, proof.interval
    assert rate <= low < high <= 0.1
    assert last_loss(tmp_path, rate, wide_in_float32=True) < 0.5
    for fails, is_full in ((0.1, True), (rate, False), (0.1, False)):
        assert not last_loss(tmp_path, fails, wide_in_float32=is_full) < 2.9  # as at first

    rows, said = done.stdout.splitlines(), " ".join(done.stdout.split())
    assert any(row.startswith(f"learning rate {rate:.3g} and wide in float32  ") for row in rows)
    assert f"Proved: a learning rate of {rate:.3g} with wide in float32 held for 60 steps" in said
    assert "was kept while learning rates were tried" in said
    shown = " ".join(ran(tmp_path, "-m", "ampwatch", "report", run).stdout.split())
    assert f"peak learning rate of {rate:.3g} instead of 0.1 and wide in float32" in shown
    planned = json.loads(ran(tmp_path, "-m", "ampwatch", "plan", run, "--json").stdout)
    assert planned["learning_rate"]["groups"] == [pytest.approx(rate)]
    assert planned["keep_in_float32"] == ["wide"]
    assert (
        f"with wide in float32, as proved by reruns of {proof.proved.steps} steps"
        in planned["because"]
    )


# The layer overflows from step 25 on; before, the training diverges or learns by its rate.
OVERFLOWS_LATER = (
    OVERFLOWS.replace("lr=1e-3", "lr=0.1").replace("range(60)", "range(90)")
    .replace("5e4 * torch", "5e2 * torch").replace(".float() / 1e6", ".float() / self.range")
    .replace("    x = 4 +", """
    model.range = 1e4 if step < 25 else 1e6
    if step == 25:
        with torch.no_grad(): model.wide.weight.mul_(100)
    x = 4 +""")
)  # fmt: skip


@pytest.mark.slow_trainings
def test_a_cure_is_sought_where_rates_fail_alike_by_what_is_not_their_height(tmp_path):
    (tmp_path / "train.py").write_text(OVERFLOWS_LATER)
    ran(tmp_path, "-m", "ampwatch", "run", "--name", "toy", "train.py").check_returncode()
    run = tmp_path / "ampwatch-runs" / "toy"
    asked = ("-o", tmp_path / "reruns", "--budget", "5m", "--steps", "80")
    done = prove(tmp_path, run, *asked)
    assert done.returncode == 0, done.stderr
    proof = kept_proof(run)
    assert {one.told for one in proof.tries[:2]} == {"AMP203 forward-overflow"}
    assert [one.kept for one in proof.tries[:3]] == [None, None, ("float32", "wide")]
    assert proof.tries[1].rate == proof.tries[2].rate < proof.tries[0].rate
    assert proof.proved.kept == ("float32", "wide")
    learnt = proof.proved.loss_at
    assert learnt["80"] < learnt["0"] / 4
    assert "A lower learning rate alone failed, by AMP203" in " ".join(done.stdout.split())
    planned = json.loads(ran(tmp_path, "-m", "ampwatch", "plan", run, "--json").stdout)
    assert planned["learning_rate"]["groups"] == [pytest.approx(proof.proved_rate)]
    assert planned["keep_in_float32"] == ["wide"]
