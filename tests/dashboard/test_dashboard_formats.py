"""The views of layers in a browser, of real trainings: in fp16, in torchao's fp8, in bf16."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import children
import pytest
from page_driver import needs_browser, training

import ampwatch
from ampwatch import cli
from ampwatch.rows import WHAT_IF_FORMATS

pytestmark = [pytest.mark.slow_browser, needs_browser]

ROOT = Path(ampwatch.__file__).parents[1]
EXAMPLE = ROOT / "examples" / "fp8_head_by_mistake.py"
HEAD, OUTLIER = "lm_head", "blocks.1.up"
RECIPE = "fp8 e4m3 tensorwise, gradient e5m2"


@pytest.fixture(scope="module")
def place(folder):
    """Runs of three kinds."""
    with training(folder, "half", 60, 0.0) as child:
        assert child.wait(120) == 0
    paths = f"{ROOT}{os.pathsep}{Path(children.__file__).parent}"
    with training(folder, "wide", script="bf16_training.py", PYTHONPATH=paths) as child:
        assert child.wait(120) == 0
    if importlib.util.find_spec("torchao") is not None:
        words = "--steps=20", f"--log-dir={folder}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        ended = children.run(EXAMPLE, *words, env=environment)
        assert ended.returncode == 0
    return folder


@pytest.fixture
def narrow(place):
    """The name of the run in fp8."""
    found = [path.name for path in place.iterdir() if path.name.startswith("fp8")]
    return found[0] if found else pytest.skip("torchao is not installed")


def opened(page, server, query, path=""):
    page.open(f"{server.url}/{path}?{query}")
    page.page.locator(".aw-views").wait_for()
    page.settled()
    return page.page


def view(page):
    return page.locator(".aw-views").get_attribute("data-view")


def shows(page, name):
    page.locator(f".aw-views[data-view={name}]").wait_for()


def cells(page, layer):
    """A layer's numbers, as the panel shows them."""
    row = page.locator(".aw-losses tr", has=page.locator(f"button[title^='{layer}']"))
    return row.locator("td").all_inner_texts()


def sentence(page):
    return page.locator(".aw-view-sentence").inner_text()


def test_each_run_begins_with_the_view_that_fits_it(page, server, narrow):
    for run, fits in (("half", "fp16"), (narrow, "fp8"), ("wide", "what-if")):
        assert view(opened(page, server, f"run={run}")) == fits
        assert sentence(page.page)
        assert "format=" not in page.page.url


def test_the_switch_is_in_the_address_and_a_reload_keeps_it(page, server):
    at = opened(page, server, "run=half")
    assert at.locator(".aw-view-switch button").all_inner_texts() == ["fp16", "what if"]
    at.get_by_role("button", name="what if").click()
    shows(at, "what-if")
    at.wait_for_url(re.compile("format=what-if"))
    at.reload()
    shows(at, "what-if")
    at.get_by_role("button", name="fp16").press("Enter")
    shows(at, "fp16")
    assert at.locator(".aw-window").count() == 3


def test_a_run_with_one_view_has_no_switch_and_a_link_to_another_shows_what_there_is(page, server):
    at = opened(page, server, "run=wide&format=fp16")
    assert view(at) == "what-if"
    assert not at.locator(".aw-view-switch").is_visible()


def test_a_head_in_fp8_is_marked_and_its_recipe_said_on_every_page(page, server, narrow):
    at = opened(page, server, f"run={narrow}")
    assert at.locator(".aw-losses button.fault").all_inner_texts() == [HEAD]
    at.get_by_text("named by AMP704").wait_for()
    assert RECIPE in sentence(at)
    assert len(cells(at, HEAD)) == 3
    at.locator(".aw-losses button.fault").click()
    at.wait_for_url(re.compile(rf"/layers\?.*layer={HEAD}"))
    page.settled()
    assert at.locator(".aw-fault").inner_text().endswith(HEAD)
    row = at.locator(".aw-tree-row", has=at.locator(".aw-fault"))
    assert row.locator(".aw-recipe").inner_text() == RECIPE
    at.get_by_role("button", name="Table", exact=True).click()
    head = at.locator(".aw-map-table tr", has=at.locator(f"[data-row='{HEAD}']"))
    assert head.locator(".aw-map-recipe").inner_text() == RECIPE


def test_what_if_shows_what_the_record_says_of_each_role(page, server, place):
    rows = ampwatch.open_run(place / "wide").layers.to_pylist()
    last = [row for row in rows if row["layer"] == OUTLIER and row["input_what_if"]][-1]
    at = opened(page, server, "run=wide&role=input")
    assert f"{OUTLIER} would lose" in sentence(at)
    shown = at.locator(".aw-losses tr", has=at.locator(f"button[title^='{OUTLIER}']")).locator("td")
    says = [cell.get_attribute("title") for cell in shown.all()]
    assert len(says) == len(WHAT_IF_FORMATS)
    for text, share in zip(says, last["input_what_if"], strict=True):
        assert f"{100 * share:.0f} % of the input" in text or share < 0.1
    at.get_by_label("Role of the values").select_option("weight")
    at.wait_for_url(re.compile("role=weight"))
    at.wait_for_function("() => document.querySelector('.aw-losses td[title*=weight]')")
    assert cells(at, OUTLIER)[0] == "0"


def test_the_map_follows_the_view_and_its_role(page, server):
    at = opened(page, server, "run=wide", "layers")
    title = at.locator(".aw-heatmap .aw-chart-title")
    assert "E4M3, the worst role" in title.inner_text()
    buttons = at.get_by_test_id("stButtonGroup")
    buttons.get_by_text("weight", exact=True).click()
    at.wait_for_url(re.compile("role=weight"))
    buttons.get_by_text("NVFP4").click()
    at.wait_for_url(re.compile("quantity=nvfp4"))
    title.get_by_text("NVFP4, weight").wait_for()
    buttons.get_by_text("gradient norm").click()
    title.get_by_text("gradient norm").wait_for()


def test_one_layer_tells_what_if_by_role_and_format(page, server):
    at = opened(page, server, f"run=wide&layer={OUTLIER}", "layers")
    table = at.locator(".aw-what-if")
    assert table.locator("thead th").all_inner_texts()[1:] == ["E4M3", "E5M2", "MXFP8", "NVFP4"]
    assert table.locator("tbody th").all_inner_texts() == ["input", "weight", "gradient"]
    assert table.locator("tbody tr").first.locator("b").count() >= 1


def test_the_html_report_shows_the_same(page, place, narrow, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert cli.run(["report", str(place / narrow), "--html", str(out)]) == 0
    capsys.readouterr()
    page.open(out.as_uri())
    shown = page.page.locator(".aw-views")
    assert [one.get_attribute("data-view") for one in shown.all()] == ["fp8", "what-if"]
    assert page.page.locator(".aw-losses button.fault").first.inner_text() == HEAD
    assert not shown.nth(1).is_visible()
    page.page.get_by_text("The layers in another view: what if").click()
    assert shown.nth(1).is_visible()


@pytest.mark.parametrize("path", ["", "layers"])
def test_the_views_hold_nothing_that_some_readers_cannot_use(page, server, narrow, path):
    for query in (f"run={narrow}", "run=wide"):
        opened(page, server, query, path)
        assert page.faults() == [], query
