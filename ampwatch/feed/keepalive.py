"""How a socket learns that the host at its other end has vanished: by TCP's own means.

Not by ZeroMQ's heartbeats. In libzmq up to 4.3.5 a connection whose queue was full when its peer
was killed waits, marked as broken, until the queue has been read; should a heartbeat be due in that
moment, on either side's account, the process is aborted (`!_io_error`, stream_engine_base.cpp). So
neither end of the feed asks for any. A stranger's socket still may: that is why the recorder's
socket lives in a process of its own (`ampwatch.recorder`).
"""

from __future__ import annotations

import zmq

_IDLE_S = 15
_BETWEEN_S = 5
_PROBES = 3


def notice_lost_hosts(socket: zmq.Socket[bytes]) -> None:
    """Let a connection end half a minute after its other host has vanished."""
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _IDLE_S
    socket.tcp_keepalive_intvl = _BETWEEN_S
    socket.tcp_keepalive_cnt = _PROBES
    socket.tcp_maxrt = 1000 * (_IDLE_S + _BETWEEN_S * _PROBES)  # the same while data is under way
