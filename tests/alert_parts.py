"""A real web server that keeps what it is sent, and findings made by hand."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from web_server import answering

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, RunFacts, Severity, Verdict

PATIENCE_S = 30.0
# A run "collapse" whose every step overflows, and which then waits to be killed.
COLLAPSING = """
import sys, torch, ampwatch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
watch = ampwatch.attach(scaler, model, run="collapse")
for step in range(60):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.full((2, 4), float("nan"))).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("trained", flush=True)
sys.stdin.readline()
"""


@dataclass
class Hook:
    """What came in, and whether it is to be refused, with which status, or left without answer."""

    port: int = 0
    refuses: bool = False
    status: int = 500
    hangs: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    asked: int = 0
    taken: list[dict] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"json://me:s3cret@127.0.0.1:{self.port}/t0ken"


@contextlib.contextmanager
def web_hook() -> Iterator[Hook]:
    hook = Hook()

    def take(_path: str, body: bytes) -> int:
        hook.asked += 1
        if hook.hangs:
            hook.over.wait(PATIENCE_S)
        if hook.refuses:
            return hook.status
        hook.taken.append(json.loads(body))
        return 200

    with answering(take) as hook.port:
        yield hook
        hook.over.set()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def finding(code: str = "AMP103", severity: Severity = Severity.ERROR, **values) -> Finding:
    made = {
        "name": "scale-collapse", "first_step": 310, "last_step": 812, "ranks": (0,),
        "layer": None, "summary": f"{code} was seen.", "cause": "Updates are too large.",
        "action": "Lower the learning rate.", **values,
    }  # fmt: skip
    return Finding(code=code, severity=severity, **made)


def diagnosis(*findings: Finding, clean_end: bool = True) -> Diagnosis:
    facts = RunFacts("0" * 32, "ampwatch", (0,), 812, None, None, clean_end, 1.0, 1.0, 0, 0)
    advice = Advice(Action.KEEP, "Nothing speaks against it.")
    return Diagnosis(facts, Verdict.FAILING if findings else Verdict.HEALTHY, findings, advice)
