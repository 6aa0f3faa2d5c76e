"""A wire to a server, which can be cut and mended."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Listens on a port of its own and passes everything on."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.is_cut = False
        self._ends: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        self.is_cut = True
        for end in self._ends:
            with contextlib.suppress(OSError):  # it may have ended by itself
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def _serve(self) -> None:
        while True:
            caller, _ = self._door.accept()
            if self.is_cut:
                caller.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [caller, server]
            for one, other in ((caller, server), (server, caller)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
