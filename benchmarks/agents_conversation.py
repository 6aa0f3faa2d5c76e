"""How many bytes does an agent read from a broken run to a proved learning rate?

    python benchmarks/agents_conversation.py [--out FILE]

`ampwatch demo` trains and fails. Then the MCP SDK's own client starts `ampwatch mcp` over stdio and
asks as the skill says: list, report, prove, report, plan. A relay between the two counts each byte,
the handshake and the list of tools included. The page is the whole conversation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from parts.first_looks import started
from parts.machine import ROOT, keep_state_in, machine
from parts.options import command_line

sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests" / "cli"))

import mcp_parts

BUDGET, RUN = "10m", "demo-lr-too-high"


async def repair(agent: Any) -> None:
    """As the skill says."""
    await agent.ask("list_runs")
    await agent.ask("report", run=RUN)
    while (await agent.ask("prove", run=RUN)).startswith("Still running"):
        pass
    await agent.ask("report", run=RUN)
    await agent.ask("plan", run=RUN)


def page(talk: mcp_parts.Conversation) -> str:
    """The conversation in Markdown."""
    texts = sum(len(text.encode()) for *_, text in talk.answers)
    on_wire = f"{talk.bytes:,} bytes on the wire in {len(talk.answers)} calls"
    parts = [
        "# A conversation of an agent",
        f"`python benchmarks/agents_conversation.py`, {started()}. {machine('torch', 'mcp')}",
        (
            f"**{on_wire}**: {len(talk.sent):,} sent, {len(talk.received):,} received, the list of "
            f"{len(talk.tools)} tools and the handshake included. The answers' texts are {texts:,}."
        ),
        f"The server says at first:\n\n> {talk.instructions}",
    ]
    for tool, arguments, is_error, text in talk.answers:
        told = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
        error = " (an error)" if is_error else ""
        size = len(text.encode())
        parts.append(f"## {tool}({told})\n\n{size:,} bytes{error}\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        keep_state_in(made)
        os.environ |= {"PYTHONPATH": str(ROOT), "AMPWATCH_ENDPOINT": "off"}
        demo = [sys.executable, "-m", "ampwatch", "demo", "--no-dashboard"]
        subprocess.run(demo, cwd=made, check=True, stdout=subprocess.DEVNULL)
        allowed = ["--allow-prove", BUDGET]
        talk = mcp_parts.converse(Path(made), repair, *allowed, record=Path(made) / "wire")
    text = page(talk)
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
