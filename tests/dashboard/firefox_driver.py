"""Debian's own Firefox, driven by WebDriver BiDi: the standard's messages over a websocket."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_driver import SETTLED, UNSETTLED

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
PATIENCE_S = 60.0
_POLL_S = 0.1
needs_firefox = pytest.mark.skipif(FIREFOX is None, reason="no firefox here to open the page in")


class FirefoxTab:
    """One page in Firefox."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._count = socket, 0
        self._ask("session.new", capabilities={})
        (context,) = self._ask("browsingContext.getTree")["contexts"]
        self._context = context["context"]

    def open(self, url: str) -> None:
        self._ask("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def back(self) -> None:
        self._ask("browsingContext.traverseHistory", context=self._context, delta=-1)

    def is_so(self, condition: str) -> None:
        """Wait until this JavaScript is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.value(f"Boolean({condition})"):
            assert time.monotonic() < until, f"never so: {condition}"
            time.sleep(_POLL_S)

    def value(self, expression: str) -> Any:
        """What this JavaScript gives: a number, a text or a truth."""
        told = self._ask(
            "script.evaluate", expression=expression, target={"context": self._context},
            awaitPromise=True,
        )  # fmt: skip
        assert told["type"] == "success", told
        return told["result"].get("value")

    def click(self, element: str) -> None:
        """Press the mouse on what this JavaScript gives, where it is in view once all is drawn."""
        self.is_so(element)
        self.value(f"({UNSETTLED})()")
        self.is_so(f"({SETTLED})()")
        at = f"{element}.getBoundingClientRect()"
        x, y = (
            round(self.value(f"{at}.{side} + {at}.{size} / 2"))
            for side, size in (("left", "width"), ("top", "height"))
        )
        press = [
            {"type": "pointerMove", "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        actions = [{"type": "pointer", "id": "mouse", "actions": press}]
        self._ask("input.performActions", context=self._context, actions=actions)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(PATIENCE_S))
            if told.get("id") == self._count:
                assert told["type"] == "success", told
                return told["result"]


@contextmanager
def firefox(profile: Path) -> Iterator[FirefoxTab]:
    """A headless Firefox with a profile of its own."""
    from websockets.sync.client import connect

    child = subprocess.Popen(
        [str(FIREFOX), "--headless", "--no-remote", "--remote-debugging-port=0",
         "--profile", str(profile), "--width", "1400", "--height", "1000"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with connect(f"{_address(child)}/session", max_size=None, proxy=None) as socket:
            yield FirefoxTab(socket)
    finally:
        child.kill()
        child.communicate()


def _address(child: subprocess.Popen[str]) -> str:
    """Where Firefox says that it listens; the test's own timeout ends a silent one."""
    assert child.stderr is not None
    for line in child.stderr:
        if found := re.search(r"BiDi listening on (ws://\S+)", line):
            return found[1]
    raise AssertionError("Firefox ended without listening")
