"""`ampwatch dashboard [DIR...]`: shows the runs in the browser, live and finished.

The dashboard is a folder of Streamlit scripts (inside the package in a wheel, beside it in a
checkout), run by a child process that listens on this machine only.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import typer

from ampwatch.cli.terminal import say
from ampwatch.errors import AmpwatchError

HELP = """Show runs in the browser, live and finished, until Ctrl-C.

  ampwatch dashboard                   ./ampwatch-runs, and runs elsewhere
  ampwatch dashboard /data/runs more/
  ampwatch dashboard s3://team/runs    published runs, and what broke in them
  ampwatch dashboard --no-browser      on a server: only print the address

It listens on this machine only. From a checkout `streamlit run dashboard` does
the same.
"""

DEFAULT_PORT = 8501
_PATIENCE_S = 60.0


def command(
    folders: list[str] = typer.Argument(
        None,
        metavar="DIR|PLACE",
        help="Folders with runs, or a place to which runs were published.",
        show_default=False,
    ),
    port: int = typer.Option(
        0,
        metavar="PORT",
        help="The port to listen on.  [default: 8501, or a free one]",
        show_default=False,
    ),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Only print the address."),
    keep: bool = typer.Option(
        False,
        "--keep",
        help="Store the runs that trainings send, for after the dashboard has ended.",
    ),
) -> None:
    """Serve the dashboard until interrupted."""
    absent = missing_parts()
    if absent:
        raise AmpwatchError(absent)
    if keep:
        os.environ["AMPWATCH_KEEP_RECEIVED"] = "1"
    with Server(folders or [], port) as server:
        say(f"The dashboard is at {server.url}. Press Ctrl-C to end it.")
        if browser:
            server.open_browser()
        server.wait()


def _place(text: str) -> str:
    """The address of a place to show; a folder's whole path, because the server runs elsewhere."""
    return text if "://" in text else str(Path(text).resolve())


def missing_parts() -> str | None:
    """The packages that the dashboard lacks, as a sentence with the remedy; None if none."""
    absent = [
        part for part in ("streamlit", "tsdownsample") if importlib.util.find_spec(part) is None
    ]
    if not absent:
        return None
    return f"The dashboard needs {' and '.join(absent)}: pip install -e '.[dashboard]'."


class Server:
    """The dashboard's server, Streamlit, as a child process; leaving the block ends it.

    Without folders it shows the runs of the default folder and those that were attached elsewhere.
    A folder or an address at which runs were published is shown as a place.
    """

    def __init__(self, folders: Sequence[Path | str], port: int = 0) -> None:
        self.port = _refuse_taken(port) if port else free_port(DEFAULT_PORT)
        self._is_asked = port != 0
        from ampwatch.fleet import is_place

        given = [str(one) for one in folders]
        self._places = [_place(one) for one in given if is_place(one)]
        self._folders = [str(Path(one).resolve()) for one in given if not is_place(one)]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the dashboard's server."""
        return f"http://localhost:{self.port}"

    @property
    def command(self) -> str:
        """The `ampwatch dashboard` command that starts the server again, at the same address."""
        port = [] if self.port == DEFAULT_PORT else ["--port", str(self.port)]
        words = ["ampwatch", "dashboard", *self._folders, *self._places, *port]
        where = [] if self._folders or self._places else ["cd", str(Path.cwd()), "&&"]
        return " ".join(word if word == "&&" else shlex.quote(word) for word in [*where, *words])

    def __enter__(self) -> Server:
        if not self._starts() and not self._is_asked:
            self.port = free_port(0)  # another dashboard that started at the same time has our port
            self._starts()
        if self._child is None:
            raise AmpwatchError(f"the dashboard did not start on port {self.port}.")
        return self

    def _starts(self) -> bool:
        """Whether the server prints its address; another process may answer at the port."""
        folders = {"AMPWATCH_DASHBOARD_DIRS": os.pathsep.join(self._folders)}
        places = {"AMPWATCH_DASHBOARD_PLACES": "\n".join(self._places)}
        self._child = subprocess.Popen(
            command_line(self.port),
            env={
                **os.environ,
                **(folders if self._folders else {}),
                **(places if self._places else {}),
                "AMPWATCH_DASHBOARD_COMMAND": self.command,
                "PYTHONPATH": search_path(),
                "STREAMLIT_LOGGER_HIDE_WELCOME_MESSAGE": "false",  # we wait for this line
            },
            stdin=subprocess.PIPE,  # closed when we end, however we end: the child then ends too
            stdout=subprocess.PIPE,
        )
        listens = threading.Event()
        self._output_reader = threading.Thread(
            target=_hear, args=(self._child, listens), daemon=True
        )
        self._output_reader.start()
        until = time.monotonic() + _PATIENCE_S
        while not listens.wait(0.1):
            if self._child.poll() is not None or time.monotonic() > until:
                self.__exit__(None, None, None)
                return False
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            self._output_reader.join()  # it reads the child's output to the end
            with child:  # closes the pipes and waits
                pass

    def open_browser(self, run: str = "") -> None:
        """Open the dashboard's page of a run, or of the newest one, if there is a screen."""
        if sys.platform in {"darwin", "win32"} or {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
            webbrowser.open(f"{self.url}/?run={run}" if run else self.url)

    def wait(self) -> None:
        """Wait until Ctrl-C, or until the dashboard's server ends by itself."""
        assert self._child is not None
        try:
            self._child.wait()
        except KeyboardInterrupt:
            return


def _hear(child: subprocess.Popen[bytes], listens: threading.Event) -> None:
    """Read the server's output to its end; `listens` is set once it prints its address."""
    assert child.stdout is not None
    for line in child.stdout:
        if b"://" in line:
            listens.set()


def command_line(port: int) -> list[str]:
    """The command line of the dashboard's server, Streamlit.

    It repeats the settings of config.toml, for a Streamlit that does not look beside the script:
    without them it would listen on every interface and report usage.
    """
    folder = installed_folder("_dashboard", "dashboard", "serve.py", "the dashboard is")
    return [
        sys.executable, str(folder / "serve.py"),
        "--server.address=localhost", f"--server.port={port}", "--server.headless=true",
        "--browser.gatherUsageStats=false", "--logger.level=warning",
    ]  # fmt: skip


def search_path() -> str:
    """The server's PYTHONPATH: it must find this very ampwatch, installed or not."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([here, before]) if before else here


def installed_folder(inside: str, beside: str, script: str, what: str) -> Path:
    """The folder with this script: inside the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / inside, package.parent / beside):
        if (folder / script).is_file():
            return folder
    raise AmpwatchError(f"{what} missing from this installation: install it again.")


def free_port(wanted: int) -> int:
    """The port wanted for the dashboard, or a free one if it is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            if os.name == "posix":  # on other systems this would let two processes listen
                probe.setsockopt(
                    socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
                )  # a port that was just released is free
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AmpwatchError("no port is free on this machine.")


def _refuse_taken(port: int) -> int:
    if _answers(port):
        raise AmpwatchError(
            f"port {port} is taken: choose another, or omit --port to get a free one."
        )
    return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=1.0).close()
    except OSError:
        return False
    return True
