"""Commands that train, and that prove what trains, as a user gives them; and a script to train."""

from __future__ import annotations

import os
import subprocess
from subprocess import PIPE

import children

# Its layer `wide` leaves half precision from the first step on.
OVERFLOWS = """
import torch
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.wide, self.last = (torch.nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        return self.last(self.wide(20 * self.first(x)).float() / 1e6)
model = Model()
with torch.no_grad(): model.wide.weight.copy_(5e4 * torch.eye(8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for step in range(60):
    x = 4 + torch.randn(16, 8)
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = ((out.float() - 1) ** 2).mean()
    optimizer.zero_grad(); scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
"""


def environment_of(folder, fresh=False):
    own = {"AMPWATCH_ENDPOINT": "off", "XDG_STATE_HOME": str(folder / ".state")}
    return os.environ | own if fresh else children.forking(os.environ | own)


def ran(folder, *words):
    """`python WORDS` in this folder, at its end."""
    return children.run(*words, cwd=folder, env=environment_of(folder))


def prove(folder, *arguments, fresh=False):
    """`ampwatch prove`, whose reruns are forked, or fresh as a user's are."""
    words = ["-m", "ampwatch", "prove", *arguments]
    environment = environment_of(folder, fresh)
    child = children.start(*words, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE)
    out, err = child.communicate(timeout=500)
    return subprocess.CompletedProcess(words, child.returncode, out, err)
