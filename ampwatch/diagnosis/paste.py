"""Lines of code within an action: a sentence, and below it indented lines, ready to paste."""

from __future__ import annotations

import textwrap

_INDENT = "    "
# Only half tensors are cast: a mask of truths must stay one.
_ISLAND = """\
device = next(model.parameters()).device.type
def full(x):
    return x.float() if getattr(x, 'dtype', None) == torch.half else x
def island(*inputs, forward=layer.forward, **named):
    named = {name: full(x) for name, x in named.items()}
    with torch.autocast(device, enabled=False):
        return forward(*map(full, inputs), **named)
layer.forward = island"""


def with_lines(sentence: str, lines: str) -> str:
    """An action: what to do, and the lines that do it."""
    return f"{sentence}\n{textwrap.indent(lines, _INDENT)}"


def words_and_lines(action: str) -> tuple[str, str]:
    """An action's sentences, and its lines without their indent; either may be empty."""
    said = action.split("\n")
    words = [line for line in said if not line.startswith(_INDENT)]
    lines = [line for line in said if line.startswith(_INDENT)]
    return " ".join(words), textwrap.dedent("\n".join(lines))


def float32_island(layer: str) -> str:
    """Lines that run one layer in float32 under autocast, once the model is made."""
    found = "model" if layer == "(root)" else f"model.get_submodule({layer!r})"
    return f"layer = {found}.float()\n{_ISLAND}"
