"""The post: takes letters at any time, sends them in its own thread, never faster than agreed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ampwatch.alerts.letters import Letter, bundle
from ampwatch.alerts.services import Service
from ampwatch.diagnosis.words import count_text

EVERY_S = 60.0  # what comes within that time of the last message goes out as one
RETRY_S, LONGEST_RETRY_S = 30.0, 600.0
_MOST_WAITING = 100  # letters for a service that does not answer; the oldest go


class Post:
    """Sends letters to services, several within a minute as one message, and tries again.

    `put` returns at once. A service that does not take a letter is tried again later, which
    `on_note` hears of once; `close` sends what waits, and says what could not be sent.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        every_s: float = EVERY_S,
        retry_s: float = RETRY_S,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self._boxes = [_Box(service, every_s, retry_s) for service in services]
        self._on_note = on_note or (lambda _: None)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="ampwatch-post", daemon=True)
        self._thread.start()

    def put(self, letter: Letter) -> None:
        """Have a letter sent when its time comes."""
        with self._changed:
            for box in self._boxes:
                box.put(letter)
            self._changed.notify()

    def close(self, wait_s: float = 20.0) -> None:
        """Send what waits now, and end; a service that hangs is left behind after `wait_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(wait_s)
        for box in self._boxes:
            left = len(box.waiting)
            if left:
                self._on_note(f"{count_text(left, 'alert')} could not be sent to {box.label}.")

    def __enter__(self) -> Post:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (rest_s := self._rest_s()) != 0.0:
                    self._changed.wait(rest_s)
                closing = self._closing
            for box in self._boxes:
                if box.waiting and (closing or box.due_in_s() == 0.0):
                    self._send(box)
            if closing:
                return

    def _rest_s(self) -> float | None:
        """How long until a box is due; None while nothing waits."""
        times = [box.due_in_s() for box in self._boxes if box.waiting]
        return min(times, default=None)

    def _send(self, box: _Box) -> None:
        with self._changed:
            letters = tuple(box.waiting)
        trouble = _trouble_in(box.service, bundle(letters))
        with self._changed:
            first_failure = box.settle(letters, failed=trouble is not None)
        if first_failure:
            self._on_note(
                f"{box.label} did not take an alert ({trouble}). It is tried again, and watching "
                "goes on."
            )


class _Box:
    """What waits for one service, and when it may be sent."""

    def __init__(self, service: Service, every_s: float, retry_s: float) -> None:
        self.service = service
        self.label = service.label
        self.waiting: list[Letter] = []
        self._every_s, self._retry_s = every_s, retry_s
        self._failures = 0
        self._failed_before = False
        self._not_before_s = 0.0

    def put(self, letter: Letter) -> None:
        self.waiting = [*self.waiting, letter][-_MOST_WAITING:]

    def due_in_s(self) -> float:
        return max(0.0, self._not_before_s - time.monotonic())

    def settle(self, sent: Sequence[Letter], *, failed: bool) -> bool:
        """Note how sending went; True if this service failed for the first time."""
        pause_s = self._every_s
        if failed:
            pause_s = min(self._retry_s * 2.0**self._failures, LONGEST_RETRY_S)
            self._failures = min(self._failures + 1, 16)
        else:
            gone = {id(letter) for letter in sent}
            self.waiting = [letter for letter in self.waiting if id(letter) not in gone]
            self._failures = 0
        self._not_before_s = time.monotonic() + pause_s
        is_first, self._failed_before = (
            failed and not self._failed_before,
            (failed or self._failed_before),
        )
        return is_first


def _trouble_in(service: Service, letter: Letter) -> str | None:
    """Why a service did not take a letter, if so; what it raises may quote the address."""
    try:
        return None if service.send(letter) else "it refused, or cannot be reached"
    except Exception as error:  # noqa: BLE001  a hundred plug-ins of others; watching must go on
        return type(error).__name__
