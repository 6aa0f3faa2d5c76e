"""What other formats would flush of one layer: a table of roles by formats."""

from __future__ import annotations

from html_text import said
from open_runs import RunSnapshot

from ampwatch.diagnosis.value_text import percent_text
from ampwatch.report.format_losses import FORMAT_NAMES, ROLES, WhatIfLayer, what_if_layers


def what_if_table(run: RunSnapshot, layer: str, step: int | None) -> str:
    """What other formats would flush of a layer, as an HTML table; empty where not recorded."""
    found = next((one for one in what_if_layers(run, step) if one.layer == layer), None)
    if found is None:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in FORMAT_NAMES)
    rows = "".join(
        f'<tr><th scope="row">{word}</th>{_cells(found, role)}</tr>' for role, word in ROLES.items()
    )
    return (
        '<div class="aw-chart-title"><b>What if</b>share that each format would flush to zero; '
        "bold: more than a layer survives</div>"
        f'<table class="aw-table aw-what-if"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _cells(layer: WhatIfLayer, role: str) -> str:
    return "".join(_cell(layer, role, name) for name in FORMAT_NAMES)


def _cell(layer: WhatIfLayer, role: str, name: str) -> str:
    loss = layer.losses.get((role, name))
    if loss is None:
        return "<td>-</td>"
    text = said(percent_text(loss.flushed))
    return f"<td><b>{text}</b></td>" if loss.is_too_much else f"<td>{text}</td>"
