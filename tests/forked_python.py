"""Stands for Python where tests have a child's children forked: `forked_python DOOR ARGUMENT...`.

Has the program that has torch loaded (`nursery`) fork a process with these arguments, this
environment, folder and streams; passes signals on to it, and ends as it ends. It loads as little
as it can.
"""

import contextlib
import json
import os
import signal
import socket
import sys


def main() -> None:
    door, *words = sys.argv[1:]
    while words[0] == "-u":
        words = words[1:]
    if words[0].startswith("-") and words[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *words])
    environment = dict(os.environ)
    order = {"words": words, "environment": environment, "stands_in": os.getpid(),
             "folder": os.getcwd()}  # noqa: PTH109  pathlib loads much  # fmt: skip
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(door)
    socket.send_fds(connection, [json.dumps(order).encode()], [0, 1, 2])
    child = int(connection.recv(100))

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    for stream in range(3):
        os.close(stream)
    code = int(connection.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
