"""A real Ray cluster on this machine: a head and a second node, each with processes of its own."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
WAIT_S = 90.0


@dataclass
class Node:
    """One `ray start --block`."""

    child: subprocess.Popen[str]

    def processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.child.pid).children(recursive=True)
        return []

    def workers(self, task: str) -> list[psutil.Process]:
        """Those that are at this task now."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] == [f"ray::{task}"]:
                    found.append(process)
        return found

    def kill(self) -> None:
        """As if the machine were gone."""
        for process in [*self.processes(), psutil.Process(self.child.pid)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.child.communicate(timeout=WAIT_S)


@dataclass
class Cluster:
    address: str  # of the cluster itself
    client: str  # ray://...
    head: Node
    second: Node


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A head and a second node with one CPU each."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short: its sockets' paths have a limit
    port, client = free_port(), free_port()
    head = ["--head", "--port", str(port), "--ray-client-server-port", str(client),
            "--include-dashboard", "false", "--no-monitor", "--temp-dir", folder]  # fmt: skip
    nodes = []
    try:
        for arguments in (head, ["--address", f"127.0.0.1:{port}"]):
            nodes.append(_started(*arguments))
            _wait_until_it_takes_part(nodes[-1])
        _wait_until_it_answers(client)
        yield Cluster(f"127.0.0.1:{port}", f"ray://127.0.0.1:{client}", *nodes)
    finally:
        for node in reversed(nodes):
            with contextlib.suppress(psutil.Error):
                node.kill()
        shutil.rmtree(folder, ignore_errors=True)


def environment(home: Path) -> dict[str, str]:
    """What all who take part need: a secret of their own, and no file in the user's home."""
    return {
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # gRPC's care for a fork kills, now and then, what the server of ray:// starts for a client.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }


def _started(*arguments: str) -> Node:
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1",
        "--node-ip-address", "127.0.0.1", "--object-store-memory", str(100 << 20),
        # Ports that are free, for another cluster may be at work beside this one.
        "--min-worker-port", "0", "--max-worker-port", "0",
        "--dashboard-agent-listen-port", str(free_port()), "--disable-usage-stats",
        "--include-log-monitor", "false",  # a process that would send logs to nobody
        *arguments,
    ]  # fmt: skip
    return Node(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    )


def _wait_until_it_takes_part(node: Node) -> None:
    """Ray says so once the head knows of the node."""
    said = []
    for line in node.child.stdout:
        said.append(line)
        if "Ray runtime started" in line:
            return
    raise AssertionError(f"a node did not start: {''.join(said)}")


def _wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        assert time.monotonic() < deadline, "the server of ray:// does not answer"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
