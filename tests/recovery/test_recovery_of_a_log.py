"""`ampwatch prove train.log -- COMMAND`: a log is proved by the command that wrote it."""

from __future__ import annotations

import children
from proving_commands import prove, ran

TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
data = torch.Generator().manual_seed(1)
teacher = torch.randn(16, 4, generator=data) / 4
for step in range(60):
    x = torch.randn(32, 16, generator=data)
    loss = ((model(x) - x @ teacher) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"step {step} loss {loss.item():.4g} lr 8.0")
"""


def written_log(folder):
    """The log of a training whose learning rate is too high, beside its script."""

    (folder / "train.py").write_text(TRAINING)
    done = ran(folder, "train.py")
    (folder / "train.log").write_text(done.stdout)


def test_a_log_is_proved_by_the_command_that_its_report_asks_for(tmp_path):

    written_log(tmp_path)
    letter = ran(tmp_path, "-m", "ampwatch", "report", "train.log").stdout
    assert "ampwatch prove train.log -- COMMAND" in " ".join(letter.split())
    asked = ("--steps", "40", "--budget", "2m", "--", children.python(), "train.py")
    done = prove(tmp_path, "train.log", *asked)
    assert done.returncode == 0, done.stderr
    assert "Proved: a learning rate of" in done.stdout
    assert "`ampwatch report train` says what held" in done.stderr
    assert "Remedy: tested" in ran(tmp_path, "-m", "ampwatch", "report", "train").stdout


def test_a_log_without_a_command_is_refused_and_leaves_no_run(tmp_path):
    written_log(tmp_path)
    done = prove(tmp_path, "train.log")
    assert done.returncode == 2
    assert "`ampwatch prove train.log -- python train.py ...`" in done.stderr
    healthy = "".join(f"step {n} loss {2.5 * 0.98**n + 0.5:.4g} lr 0.1\n" for n in range(200))
    (tmp_path / "healthy.log").write_text(healthy)
    done = prove(tmp_path, "healthy.log", "--", children.python(), "train.py")
    assert done.returncode == 2
    assert "nothing to prove" in done.stderr
    assert not list(tmp_path.glob("ampwatch-runs/*"))
