"""What a notebook's cell shows of a run, in a real browser: readable, small, and kept to itself."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from page_driver import needs_browser, tab
from structured_runs import write_structured
from written_runs import event_columns, step_columns, write_run

from ampwatch import cli, codec, diagnose, open_run, store
from ampwatch.report.painter import DARK, LIGHT
from ampwatch.rows import Table

ATTACK = '</style></svg><script>document.title="attacked"</script><img src=x onerror=alert(2)>"\''
OUTSIDE = '<p class="dim verdict" id="outside">outside</p><table id="table"><td>x</td></table>'
HOSTS = {  # what a notebook writes on its page, and which theme it says
    "<html><body>": None,
    '<html><body data-jp-theme-light="true">': "light",
    '<html><body data-jp-theme-light="false">': "dark",
    '<html theme="dark"><body>': "dark",
    '<html><body class="vscode-dark">': "dark",
    '<html><body class="vscode-light">': "light",
    '<html><body data-theme="dark">': "dark",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The HTML of runs and of their diagnoses, by name."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, "healthy")
    write_run(folder, "failing", skipped=30)
    write_run(folder, "short", accepted=1)
    write_structured(folder, "high", rate=0.5, fails=True)
    runs = [open_run(folder / name) for name in ("healthy", "failing", "short", "high")]
    return {
        f"{what} {run.info.name}": one._repr_html_()
        for run in runs
        for what, one in (("run", run), ("diagnosis", diagnose(run)))
    }


def document(host: str, body: str) -> str:
    page = f'<!doctype html><html lang="en">{host.removeprefix("<html>")}'
    page = page if host.startswith("<html>") else f"<!doctype html>{host}"
    return f"{page}<title>notebook</title><main>{body}{OUTSIDE}</main>"


def rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))})"


@needs_browser
def test_every_cell_can_be_read_in_both_themes(one, cells):
    with tab(one) as opened:
        opened.page.set_content(
            document('<html lang="en"><body>', "<h1>Notebook</h1>" + "".join(cells.values()))
        )
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        from axe_playwright_python.sync_playwright import Axe

        for scheme in ("light", "dark"):
            opened.page.emulate_media(color_scheme=scheme)
            told = Axe().run(
                opened.page, context=".aw-cell", options={"runOnly": ["wcag2aa", "wcag2a"]}
            )
            assert told.response["passes"]
            assert [
                (rule["id"], [node["html"] for node in rule["nodes"]])
                for rule in told.response["violations"]
            ] == []


@needs_browser
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("system", ["light", "dark"])
def test_a_cell_has_the_theme_that_the_notebook_says_and_touches_nothing_else(
    one, cells, host, system
):
    with tab(one, scheme=system) as opened:
        looks = []
        for body in ("", cells["run failing"]):
            opened.page.set_content(document(host, body))
            looks.append(
                opened.page.evaluate(
                    "['outside', 'table'].map(id => [...getComputedStyle("
                    "document.getElementById(id))].map(n => getComputedStyle("
                    "document.getElementById(id))[n]).join(';'))"
                )
            )
            if body:
                look = opened.page.evaluate(
                    "(({color, backgroundColor}) => [color, backgroundColor])"
                    "(getComputedStyle(document.querySelector('.aw-cell')))"
                )
        palette = {"light": LIGHT, "dark": DARK}[HOSTS[host] or system]
        assert look == [rgb(palette["ink"]), rgb(palette["page"])]
        sizes = re.compile(r"-?[\d.]+px( -?[\d.]+px)*")  # where it stands is another matter
        assert [sizes.sub("", one) for one in looks[0]] == [sizes.sub("", one) for one in looks[1]]


@needs_browser
def test_names_are_shown_and_never_interpreted(one, tmp_path):
    path = write_run(tmp_path, ATTACK, skipped=30)
    with tab(one) as opened:
        opened.page.set_content(document("<html><body>", open_run(path)._repr_html_()))
        assert opened.page.title() == "notebook"
        assert opened.page.locator(".aw-cell img, .aw-cell script").count() == 0
        assert "<script>" in opened.page.locator(".aw-cell .verdict").inner_text()


def test_a_cell_says_what_the_report_says(cells, tmp_path, capsys):
    path = write_run(tmp_path, "failing", skipped=30)
    assert cli.run(["report", str(path)]) == 0
    printed = capsys.readouterr().out
    page = re.sub(r"<style>.*?</style>|<figure>.*?</figure>", "", cells["run failing"])
    told = html.unescape(re.sub(r"<[^>]+>", " ", page)).split()
    assert [word for word in printed.split() if word not in told and word != "More"] == []


def test_cells_are_small_however_long_the_run(cells, tmp_path):
    assert max(len(page.encode()) for page in cells.values()) < 9_000
    path = write_run(tmp_path, "long", accepted=0, ended=False)
    steps = 200_000
    loss = 1 + np.random.default_rng(0).normal(0, 0.1, steps)
    writer = store.RankWriter(path, 0)
    for first in range(0, steps, 50_000):
        rows = step_columns(50_000, 0, 10**18, first=first)
        writer.append(codec.encode(Table.STEPS, rows | {"loss": loss[first : first + 50_000]}))
    writer.append(codec.encode(Table.EVENTS, event_columns([(steps, "ended", {})], 10**18)))
    writer.close()
    page = open_run(path)._repr_html_()
    assert len(page.encode()) < 12_000
    points = re.search(r'points="([^"]+)" fill="none" stroke="var\(--aw-ink\)', page)[1].split()
    drawn = np.array([float(point.split(",")[1]) for point in points])
    # The line reaches the highest and the lowest value, at the panel's edges.
    assert (drawn.min(), drawn.max()) == (4.0, 60.0)
    assert len(points) <= 280
