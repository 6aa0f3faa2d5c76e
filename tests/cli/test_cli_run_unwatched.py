"""`ampwatch run`: where nothing could be watched, one sentence says why, and what to do."""

from __future__ import annotations

import pytest
from run_parts import script, watched, watched_within


def test_a_script_that_trains_nothing_is_told_so(tmp_path):
    (tmp_path / "t.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    under = watched_within(tmp_path, "t.py")
    assert under.returncode == 0
    assert "nothing was watched" in under.stderr
    assert not (tmp_path / "ampwatch-runs").exists()


NO_OPTIMIZER = """
    model = Net()  # Keras and a loop by hand move the weights with no optimizer of torch's
    model(torch.randn(4, 8)).square().mean().backward()
"""
COPIES = """
    model = Net()  # as DeepSpeed and Apex do: the optimizer holds a flat copy in float32
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in model.parameters()]))
    optimizer = torch.optim.AdamW([flat], lr=0.1)
    for _ in range(8):
        model(torch.randn(4, 8)).square().mean().backward()
        flat.grad = torch.cat([p.grad.flatten() for p in model.parameters()])
        optimizer.step()
"""
EVALUATED = """
    model = Net().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
NO_MODULE = """
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(8):
        weight.square().sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "why", "what"),
    [
        (NO_OPTIMIZER, "no torch.optim.Optimizer was made", "ampwatch report"),
        (COPIES, "none holds a parameter of AdamW", "ampwatch report"),
        (EVALUATED, "only in eval mode", "model.train()"),
        (NO_MODULE, "no module ran", "ampwatch.attach"),
    ],
)
def test_a_training_that_cannot_be_watched_is_told_why(tmp_path, text, why, what):
    under = watched_within(tmp_path, script(tmp_path, text).name)
    assert under.returncode == 0, under.stderr
    said = under.stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith("ampwatch: nothing was watched: ")
    assert why in said[0]
    assert what in said[0]
    assert not (tmp_path / "ampwatch-runs").exists()


def test_who_never_imports_torch_is_told_nothing(tmp_path):
    (tmp_path / "t.py").write_text("print(1)\n")
    under = watched(tmp_path, "t.py")
    assert (under.stdout, under.stderr) == ("1\n", "")
