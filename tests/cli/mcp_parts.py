"""A client of the real `ampwatch mcp`, and a relay that records every byte between the two."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]


@dataclass
class Conversation:
    """What a client asked and was answered, and the bytes on the wire."""

    tools: list[str] = field(default_factory=list)
    instructions: str = ""
    answers: list[tuple[str, dict[str, Any], bool, str]] = field(default_factory=list)
    sent: bytes = b""
    received: bytes = b""

    @property
    def bytes(self) -> int:
        return len(self.sent) + len(self.received)

    def texts(self, tool: str) -> list[str]:
        return [text for name, _, _, text in self.answers if name == tool]


class Agent:
    """Asks the server's tools; `ask` gives an answer's text."""

    def __init__(self, client: Any, talk: Conversation) -> None:
        self._client, self.talk = client, talk

    async def ask(self, tool: str, **arguments: Any) -> str:
        answer = await self._client.call_tool(tool, arguments)
        text = answer.content[0].text
        self.talk.answers.append((tool, arguments, bool(answer.is_error), text))
        return text


def converse(
    folder: Path,
    talk: Any,
    *options: str,
    runs: Sequence[Path | str] = (),
    record: Path,
    environment: Mapping[str, str] = os.environ,
) -> Conversation:
    """Start the server in a folder, as an agent's program does, and let `talk(agent)` ask it."""
    import anyio
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    python = environment.get("AMPWATCH_FORKED_PYTHON", sys.executable)
    server = StdioServerParameters(
        command=sys.executable,
        args=[str(HERE), str(record), python, "-m", "ampwatch", "mcp", *map(str, runs), *options],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=folder,
    )
    kept = Conversation()

    async def main() -> None:
        async with Client(stdio_client(server)) as client:
            kept.instructions = client.instructions or ""
            kept.tools = [tool.name for tool in (await client.list_tools()).tools]
            await talk(Agent(client, kept))

    # In a thread: where a browser was driven before, this one's event loop is running.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(anyio.run, main).result()
    kept.sent = record.with_suffix(".sent").read_bytes()
    kept.received = record.with_suffix(".received").read_bytes()
    return kept


def _pump(source: BinaryIO, target: BinaryIO, copy: Path) -> None:
    with copy.open("wb", buffering=0) as file:
        while data := os.read(source.fileno(), 1 << 16):
            file.write(data)
            target.write(data)
            target.flush()
    target.close()


def relay(record: Path, words: Sequence[str]) -> int:
    """Run this command, and copy what goes in and out to two files."""
    with subprocess.Popen(words, stdin=-1, stdout=-1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        arguments = sys.stdin.buffer, child.stdin, record.with_suffix(".sent")
        threading.Thread(target=_pump, args=arguments, daemon=True).start()
        _pump(child.stdout, sys.stdout.buffer, record.with_suffix(".received"))
        return child.wait()


if __name__ == "__main__":
    sys.exit(relay(Path(sys.argv[1]), sys.argv[2:]))
