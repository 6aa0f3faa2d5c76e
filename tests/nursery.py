"""The program that forks the tests' children, with what they load loaded; started by `children`.

There are two kinds: of what trains and reads runs, with torch; of the dashboard's servers, without.

Each message on the socket is one child to be: what to run, where, with which environment, and its
three standard streams beside a pipe that learns its process id and how it ended. The fork becomes
the program that was asked for: what that raises is uncaught at the top of this file, and its
interpreter ends as any other up to the last function at exit. What would follow, the freeing of
all of torch's modules one by one, is left out: it is more than most children's own work.

Where a test wants its child's children forked as well (`children.forking`), their Python is
`forked_python`. It asks at the door, another socket, and its connection is the report.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from collections.abc import Iterator
from pathlib import Path

_exit_code: list[int] = []


@atexit.register  # the first, so the last to run: before torch's own, and the program's
def leave() -> None:
    """End here, as the program has ended; a process that a signal is to end goes on."""
    if not _exit_code:
        return
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code[0])


# What a training, a report and a publisher load, and what those load at their first call; and what
# a server does.
LOADED_BEFORE = {
    "training": (
        "torch", "ampwatch.probe",
        "ampwatch.cli", "ampwatch.diagnosis", "ampwatch.fleet", "ampwatch.recovery",
        "ampwatch.report", "deltalake", "mcp.server.mcpserver", "obstore", "pandas",
        "pyarrow.compute", "pyarrow.parquet",
        "rich.console", "rich.live", "rich.progress", "rich.table",
    ),
    "dashboard": (
        "streamlit.web.bootstrap", "streamlit.web.cli", "alerts_page", "compare_page",
        "findings_page", "fleet_page", "layers_page", "memory_page", "overview_page",
        "received_runs", "runs_page", "settings_page", "sidebar", "timeline_page",
        "pandas", "pyarrow.compute", "pyarrow.parquet", "tsdownsample",
    ),
}  # fmt: skip

FORKED_PYTHON = "AMPWATCH_FORKED_PYTHON"
RUN_PROCESS = "AMPWATCH_RUN_PROCESS"  # holds the process that `ampwatch run` became
_MESSAGE_BYTES = 1 << 20
_OWN_PATHS = 2  # this folder and PYTHONPATH's one entry, which a child has anew

_orders_fd, _door_fd, _kind = sys.argv[1:]
_dashboard = str(Path(__file__).parent.parent / "dashboard")
sys.path.append(_dashboard)
for name in LOADED_BEFORE[_kind]:
    with contextlib.suppress(ModuleNotFoundError):  # some are of extras
        importlib.import_module(name)
sys.path.remove(_dashboard)
if torch := sys.modules.get("torch"):
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer loads as much again
gc.collect()
if "triton" not in sys.modules:  # whose classes say on stderr that they were not freed
    gc.freeze()  # else the forks copy all of it, to look in it for what to free


class Nursery:
    """Forks a child for each order: of the tests on their socket, of their children at the door."""

    def __init__(self, orders: socket.socket, door: socket.socket) -> None:
        self._orders, self._door = orders, door
        self._awake, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._reports: dict[int, int] = {}  # by the child
        self._askers: dict[int, int] = {}  # the child, by the connection of who asked at the door

    def work(self) -> dict | None:
        """Forks until there is no more to fork (None); in each child, what it is to run."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        while True:
            watched = [self._orders, self._door, self._awake, *self._askers]
            ready = select.select(watched, [], [])[0]
            if self._awake in ready:
                os.read(self._awake, 512)
                self._bury()
            for connection in self._askers.keys() & ready:
                if not os.read(connection, 1):  # who asked was killed, so its child is
                    os.killpg(self._askers.pop(connection), signal.SIGKILL)
            if self._orders in ready:
                message, streams, *_ = socket.recv_fds(self._orders, _MESSAGE_BYTES, 4)
                if not message:
                    return None
                if self._forks(streams, streams.pop()):
                    return json.loads(message)
            if self._door in ready:
                connection = self._door.accept()[0]
                message, streams, *_ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
                if message and self._forks(streams, connection.detach(), of_asker=True):
                    return json.loads(message)

    def _forks(self, streams: list[int], report: int, *, of_asker: bool = False) -> bool:
        """Whether this is the child, with these streams."""
        child = os.fork()
        if child:
            for stream in streams:
                os.close(stream)
            if of_asker:
                self._askers[report] = child
            os.write(report, f"{child}\n".encode())
            self._reports[child] = report
            return False
        if of_asker:
            os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A shell that starts tests in its background has them ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
        others = (*self._reports.values(), self._awake, self._wake)
        for number in (*streams, report, *others):
            os.close(number)
        self._door.close()
        faulthandler.register(signal.SIGUSR1)  # as `children` asks one that does not end
        return True

    def _bury(self) -> None:
        """Tell of every child that has ended."""
        while self._reports:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            report = self._reports.pop(child)
            self._askers.pop(report, None)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(report)


def settle(order: dict) -> None:
    """Take the folder, environment, streams and search path that a fresh process would have."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if os.environ.get(RUN_PROCESS) == str(order.get("stands_in")):
        os.environ[RUN_PROCESS] = str(os.getpid())
    program, here = order["words"][0], Path.cwd()
    first = {"-c": "", "-m": str(here)}.get(program, str((here / program).parent))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:_OWN_PATHS] = [first, *filter(None, given)]
    sys.executable = os.environ.get(FORKED_PYTHON, sys.executable)
    importlib.invalidate_caches()
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, None, "backslashreplace", closefd=False)
    if any(Path(entry, "sitecustomize.py").is_file() for entry in given):
        importlib.import_module("sitecustomize")


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Note with which code the program ends."""
    try:
        yield
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        _exit_code.append(code & 0xFF if isinstance(code, int) else 1)
        raise
    except KeyboardInterrupt:
        raise  # which ends the process by a signal
    except BaseException:
        _exit_code.append(1)
        raise
    _exit_code.append(0)


def become(words: list[str]) -> None:
    """Run the program; its words are the process's own arguments."""
    if words[0] == "-m":
        del words[0]
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        name, text = "<string>", words.pop(1)
    else:
        name, text = words[0], Path(words[0]).read_bytes()
        main.__file__ = name
    exec(compile(text, name, "exec"), vars(main))


with (
    socket.socket(fileno=int(_orders_fd)) as _orders,
    socket.socket(fileno=int(_door_fd)) as _door,
):
    _order = Nursery(_orders, _door).work()
if _order is None:
    sys.exit()
settle(_order)
sys.argv = _order["words"]
with ending():
    become(sys.argv)
