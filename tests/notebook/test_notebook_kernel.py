"""A real Jupyter kernel: what its cells show of runs, and that a training there is as it was."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from children import run as run_child

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow_starts

TRAINING = """
import hashlib, torch, ampwatch

def train(name, steps=60, shown=False, wait_s=0.0):
    import time
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    watch = ampwatch.attach(scaler, model, run=name)
    if shown:
        watch.show()
    for step in range(steps):
        inputs = torch.randn(16, 8)
        with torch.autocast("cpu", torch.float16):
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        time.sleep(wait_s)
    watch.close()
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    return hashlib.sha256(weights).hexdigest()
"""


@dataclass
class Cell:
    """What the kernel sent for one cell."""

    shown: list[dict] = field(default_factory=list)  # display_data, execute_result
    updates: list[dict] = field(default_factory=list)
    printed: str = ""
    error: str = ""

    def html(self) -> str:
        (one,) = self.shown
        return one["data"]["text/html"]

    def value(self) -> str:
        (one,) = self.shown
        return one["data"]["text/plain"]


class Kernel:
    """A kernel of this Python, with the client that a notebook would be."""

    def __init__(self, folder: Path) -> None:
        manager = pytest.importorskip("jupyter_client.manager", reason="no ipykernel here")
        pytest.importorskip("ipykernel")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "AMPWATCH_DIR": str(folder),
               "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(folder / "ipython")}  # fmt: skip
        self.manager, self.client = manager.start_new_kernel(
            kernel_name="python3", env=env, cwd=str(folder), startup_timeout=120
        )

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def run(self, code: str, *, wait_updates_s: float = 0.0) -> Cell:
        """Run a cell; then wait until an update says that its run has ended."""
        wanted, cell = self.start(code), Cell()
        is_idle, until_s = False, time.monotonic() + 150
        while not is_idle or (wait_updates_s and time.monotonic() < until_s):
            assert time.monotonic() < until_s, "the kernel does not answer"
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            own = message["parent_header"].get("msg_id") == wanted
            if kind in ("display_data", "execute_result") and own:
                cell.shown.append(content)
            elif kind == "update_display_data":
                cell.updates.append(content)
                if ": ended" in content["data"]["text/plain"]:
                    wait_updates_s = 0.0
            elif kind == "stream" and own:
                cell.printed += content["text"]
            elif kind == "error" and own:
                cell.error += "\n".join(content["traceback"])
            elif kind == "status" and own and content["execution_state"] == "idle":
                is_idle = True
                until_s = time.monotonic() + wait_updates_s + 1
        return cell

    def wait_for(self, words: str) -> None:
        """Wait until an output begins with these words."""
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            with contextlib.suppress(queue.Empty):
                content = self.client.get_iopub_msg(timeout=1)["content"]
                if content.get("data", {}).get("text/plain", "").startswith(words):
                    return
        raise AssertionError(f"no output begins with {words!r}")

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=120)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("notebook"))
    yield started
    started.close()


@pytest.mark.filterwarnings("ignore")  # of jupyter_client's own
def test_a_kernel_shows_runs_live_and_after_a_restart(kernel):
    assert kernel.run(TRAINING).error == ""
    alone = kernel.run("train('alone')")
    assert alone.error == ""

    # A live cell: an output that is replaced until the run has ended, and the same training.
    live = kernel.run("train('live', steps=120, shown=True, wait_s=0.05)", wait_updates_s=60)
    assert live.error == ""
    display, result = live.shown
    same = kernel.run("train('alone', steps=120)")
    assert result["data"]["text/plain"] == same.value()  # the weights' hash
    assert live.updates
    assert {one["transient"]["display_id"] for one in live.updates} == {
        display["transient"]["display_id"]
    }
    states = [one["data"]["text/plain"].partition(", ")[0] for one in live.updates]
    assert states[-1] == "live: ended"
    assert set(states[:-1]) <= {"live: live"}
    assert "HEALTHY" in live.updates[-1]["data"]["text/html"]
    assert all(len(one["data"]["text/html"].encode()) < 12_000 for one in live.updates)

    # A run, a diagnosis and a watch as a cell's value.
    for code in ("ampwatch.open_run('alone')", "ampwatch.diagnose('alone')"):
        page = kernel.run(code).html()
        assert "HEALTHY" in page
        assert len(page.encode()) < 10_000
    watched = kernel.run(
        "ampwatch.attach(torch.amp.GradScaler('cpu'), torch.nn.Linear(1, 1), run='begun')"
    )
    assert "The log ends before anything could be judged" in watched.html()

    # The kernel is restarted in the middle of a training: the run is there, and says so.
    kernel.start("train('killed', steps=10**6, shown=True, wait_s=0.02)")
    kernel.wait_for("killed: live, loss")
    kernel.restart()
    cell = kernel.run("import ampwatch, sys\nprint('torch' in sys.modules, ampwatch.open_run)")
    assert cell.printed.startswith("False")
    killed = kernel.run("ampwatch.open_run('killed')")
    assert "CUT OFF" in killed.html(), killed.error
    assert re.search(r"\b[\d,]+ steps, fp16", killed.html())

    # %load_ext ampwatch
    assert kernel.run("%load_ext ampwatch").error == ""
    assert "HEALTHY" in kernel.run("%ampwatch report alone").html()
    listed = kernel.run("%ampwatch list").printed
    assert "alone" in listed
    assert "killed" in listed
    assert "!ampwatch run train.py" in kernel.run("%ampwatch run train.py").printed
    followed = kernel.run("%ampwatch watch alone", wait_updates_s=60)
    assert "HEALTHY" in followed.updates[-1]["data"]["text/html"]
    explained = kernel.run("%ampwatch explain AMP103").printed
    assert "AMP103 scale-collapse" in explained
    unknown = kernel.run("%ampwatch report nothing")
    assert unknown.printed.startswith("ampwatch: No run named nothing")
    assert unknown.error == ""


@pytest.mark.filterwarnings("ignore")
def test_every_cell_of_the_page_works(kernel):
    kernel.restart()
    page = (ROOT / "docs" / "notebooks.md").read_text("utf-8")
    cells = re.findall(r"<!-- cell -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len(cells) == page.count("```python") == 6
    for code in cells:
        is_followed = re.search(r"\bshow\(", code) is not None
        cell = kernel.run(code, wait_updates_s=60 if is_followed else 0)
        assert cell.error == ""
        if "load_ext" not in code:
            last = (cell.updates or cell.shown)[-1]
            assert "HEALTHY" in last["data"]["text/html"], code


OUTSIDE = """
import sys, warnings, torch, ampwatch
model = torch.nn.Linear(4, 1)
watch = ampwatch.attach(torch.amp.GradScaler("cpu"), model, run="outside")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert watch.show() is None
    assert ampwatch.diagnose(watch.run_folder)._repr_html_()
watch.close()
print([str(one.message) for one in caught])
forbidden = {"IPython", "ipykernel", "streamlit", "plotly", "pandas", "mcp", "deltalake", "ray"}
print(sorted(forbidden & {name.split(".")[0] for name in sys.modules}))
"""


def test_outside_of_a_notebook_it_says_what_to_do_and_loads_no_ipython(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AMPWATCH_DIR": str(tmp_path)}
    done = run_child("-c", OUTSIDE, env=env, cwd=tmp_path, fresh=True)
    assert done.returncode == 0, done.stderr
    said, loaded = done.stdout.splitlines()
    assert "show() needs a notebook. In a terminal: ampwatch watch" in said
    assert loaded == "[]"


def test_switched_off_show_does_nothing(tmp_path):
    code = "import ampwatch, torch; print(ampwatch.attach(None, torch.nn.Linear(1, 1)).show())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AMPWATCH": "0"}
    done = run_child("-c", code, env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
