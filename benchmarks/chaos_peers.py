"""Peers with a right to connect and bad manners: floods, and frames that are nearly right."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable

import zmq
from chaos_damage import damaged, hostile_json
from chaos_trials import Hung, Trial

from ampwatch import feed
from ampwatch.codec import encode
from ampwatch.feed.frames import Frame, Hello, Kind, pack
from ampwatch.rows import FORMAT, TABLES, Table
from ampwatch.store import RunInfo

_PATIENCE_S = 40.0


class Peer:
    """Somebody with a right to connect and bad manners."""

    def __init__(self, endpoint: str, run_id: str, *, insecure: bool = False) -> None:
        self.run_id, self.token = run_id, 0
        self.socket = zmq.Context().socket(zmq.DEALER)
        self.socket.linger, self.socket.sndhwm = 0, 10_000
        if not insecure:
            feed.find_security(endpoint).configure_trainer(self.socket)
        self.socket.connect(endpoint)

    def send(self, kind: Kind, rank: int = 0, run_id: str = "", **fields: object) -> bool:
        frame = Frame(kind, run_id or self.run_id, rank, self.token, **fields)
        return self.send_parts(pack(frame))

    def send_parts(self, parts: list[bytes]) -> bool:
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def hello(self, run_id: str = "", rank: int = 0, info: str | None = None) -> bool:
        identity = run_id or self.run_id
        text = RunInfo(id=identity, name="flood").to_json() if info is None else info
        payload = Hello(identity, rank, text, FORMAT, "0").to_bytes()
        return self.send(Kind.HELLO, rank, identity, value=1, payload=payload)

    def meet(self, answer: Callable[[], object] = lambda: None) -> None:
        """Introduce oneself and learn the token that rows must bear."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.token == 0:
            self.hello()
            answer()
            while self.socket.poll(200):
                parts = self.socket.recv_multipart()
                if parts[0][3] == Kind.WANT:
                    self.token = struct.unpack_from("<I", parts[0], 12)[0]
            if time.monotonic() > deadline:
                raise Hung("a new peer was not asked for its rows")


def _hellos(peer: Peer, seed: int) -> None:
    """hellos of one run, answers unread"""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        peer.hello()


def _many_ranks(peer: Peer, seed: int) -> None:
    """hellos of many ranks"""
    for number in range(30_000):
        peer.hello(rank=number % 200)


def _many_runs(peer: Peer, seed: int) -> None:
    """hellos of many runs"""
    for number in range(3000):
        peer.hello(run_id=f"{seed * 1000 + number % 300:032x}")


def _many_connections(peer: Peer, seed: int) -> None:
    """hellos over many connections"""
    peers = [Peer(str(peer.socket.last_endpoint, "ascii").rstrip("\0"), f"{seed + n:032x}")
             for n in range(40)]  # fmt: skip
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        for one in peers:
            one.hello()


def _sparse(peer: Peer, seed: int) -> None:
    """rows with each second number"""
    peer.meet()
    batch = encode(Table.STEPS, {"step": [1], "time_ns": [1]})
    for number in range(4000):
        while not peer.send(
            Kind.ROWS, sequence=2 * number + 7, table=Table.STEPS, payload=batch.payload
        ):
            time.sleep(0.01)


def _large(peer: Peer, seed: int) -> None:
    """frames of megabytes"""
    peer.meet()
    detail = secrets.token_hex(1 << 19)
    columns = {"time_ns": [1], "kind": ["misuse"], "detail": [detail]}
    batch = encode(Table.EVENTS, columns)
    for number in range(60):
        peer.send(Kind.ROWS, sequence=number, table=Table.EVENTS, payload=batch.payload)


FLOODS = (_hellos, _hellos, _many_ranks, _many_runs, _many_connections, _sparse, _large)


# --- messages -----------------------------------------------------------------------------------

_ODD_NUMBERS = (0, 1, 5, 7, 1 << 20, (1 << 31) - 1, 1 << 32, (1 << 62) - 1)


def hostile_parts(trial: Trial, peer: Peer) -> list[bytes]:
    """A message that is nearly right."""
    chance = trial.chance
    way = chance.randrange(6)
    if way == 0:  # any bytes
        return [chance.randbytes(chance.randrange(80)) for _ in range(chance.randrange(1, 5))]
    numbers = {name: chance.choice(_ODD_NUMBERS) for name in ("sequence", "value", "count")}
    rank = chance.choice([0, 0, 1, (1 << 20) - 1])
    if way == 1:
        info = hostile_json(chance, RunInfo(id=peer.run_id, name="x").to_json())
        fields = {"run_id": peer.run_id, "rank": 0, "info_json": info, "format": FORMAT}
        payload = hostile_json(chance, {**fields, "version": "0"}).encode()[: 1 << 20]
        return pack(Frame(Kind.HELLO, peer.run_id, 0, peer.token, payload=payload))
    if way == 2:
        sort = chance.choice([Kind.LOST, Kind.END, Kind.BEAT, Kind.ACK, Kind.WANT, Kind.NO])
        return pack(Frame(sort, peer.run_id, rank, peer.token, **numbers))
    table = chance.choice(TABLES)
    payload = encode(Table.STEPS, {"step": [1, 2], "time_ns": [1, 2]}).payload
    if way == 3:
        payload = damaged(payload, chance)
    frame = Frame(Kind.ROWS, peer.run_id, rank, peer.token, **numbers, table=table, payload=payload)
    parts = pack(frame)
    return [damaged(part, chance) for part in parts] if way == 4 else parts
