"""The views of layers in a browser, of real trainings: in fp16, in torchao's fp8, in bf16."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import children
import pytest
from page_driver import needs_browser, tab, training

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


@pytest.fixture
def page(kept_page):
    """What is tested is what the page does, not how one comes there."""
    return kept_page


def opened(page, query):
    page.show(f"/layers?{query}")
    page.page.locator(".aw-heatmap[data-rows]").wait_for()
    page.settled()
    return page.page


def view(page):
    return page.locator(".aw-heatmap").get_attribute("data-view")


def shows(page, name):
    page.locator(f".aw-heatmap[data-view={name}]").wait_for()


def row_of(page, layer):
    """A layer's place among the rows of the map."""
    names = page.locator(".aw-map-body .aw-map-name").evaluate_all(
        "all => all.map(x => x.dataset.name)"
    )
    return names.index(layer)


def cells(page, layer):
    """A layer's cells in the view beside the map."""
    return page.locator(".aw-map-body .aw-map-cells").nth(row_of(page, layer)).locator("> *")


def sentence(page):
    return page.locator(".aw-map-view-title").inner_text()


def test_each_run_begins_with_the_view_that_fits_it(page, server, narrow):
    for run, fits in (("half", "fp16"), (narrow, "fp8"), ("wide", "what-if")):
        assert view(opened(page, f"run={run}")) == fits
        assert sentence(page.page)
        assert "format=" not in page.page.url


def test_the_switch_is_in_the_address_and_a_reload_keeps_it(page, server):
    at = opened(page, "run=half")
    assert at.locator(".aw-map-body .aw-window-bar").count() == 3
    at.get_by_role("radio", name="what if").click()
    shows(at, "what-if")
    at.wait_for_url(re.compile("format=what-if"))
    at.reload()
    shows(at, "what-if")
    at.get_by_role("radio", name="fp16").click()
    shows(at, "fp16")


def test_a_run_with_one_view_has_no_switch_and_a_link_to_another_shows_what_there_is(page, server):
    at = opened(page, "run=wide&format=fp16")
    assert view(at) == "what-if"
    assert at.get_by_role("radio", name="what if").count() == 0


def test_beside_the_charts_there_is_no_view_that_no_finding_is_about(page, server):
    for run in ("half", "wide"):
        page.show(f"/?run={run}")
        page.drawn()
        page.settled()
        assert page.page.locator(".aw-views").count() == 0


def test_a_head_in_fp8_is_marked_and_its_recipe_said_on_every_page(page, server, narrow):
    page.show(f"/?run={narrow}")
    at = page.page
    at.locator(".aw-views[data-view=fp8]").wait_for()
    assert at.locator(".aw-window-name.fault").all_inner_texts() == [HEAD]
    at.get_by_text("named by AMP704").wait_for()
    assert RECIPE in at.locator(".aw-views .aw-chart-title b").inner_text()
    at.locator(".aw-window-name.fault").click()
    at.wait_for_url(re.compile(rf"/layers\?.*layer={HEAD}"))
    page.settled()
    assert at.locator(".aw-map-body .aw-map-name.fault").inner_text().endswith(HEAD)
    assert cells(at, HEAD).count() == 3
    at.get_by_role("button", name="Close").click()
    types = at.locator(".aw-map-body .aw-types").nth(row_of(at, HEAD))
    assert RECIPE in types.get_attribute("title")
    at.get_by_role("button", name="Table", exact=True).click()
    head = at.locator(".aw-map-table tr", has=at.locator(f"[data-row='{HEAD}']"))
    assert head.locator(".aw-map-recipe").inner_text() == RECIPE


def test_what_if_shows_what_the_record_says_of_each_role(page, server, place):
    rows = ampwatch.open_run(place / "wide").layers.to_pylist()
    last = [row for row in rows if row["layer"] == OUTLIER and row["input_what_if"]][-1]
    at = opened(page, "run=wide&role=input&quantity=e4m3")
    assert f"{OUTLIER} would lose" in sentence(at)
    says = [cell.get_attribute("title") for cell in cells(at, OUTLIER).all()]
    shares = says[-len(WHAT_IF_FORMATS) :]
    for text, share in zip(shares, last["input_what_if"], strict=True):
        assert f"{100 * share:.0f} % of the input" in text or share < 0.1
    role = at.get_by_role("combobox", name="Role")
    role.click()
    at.get_by_role("option", name="weight").click()
    at.wait_for_url(re.compile("role=weight"))
    at.wait_for_function("() => document.querySelector('.aw-map-cells [title*=weight]')")
    assert cells(at, OUTLIER).nth(-len(WHAT_IF_FORMATS)).inner_text() == "0"


def test_the_map_follows_its_quantity_and_role(page, server):
    at = opened(page, "run=wide&quantity=e4m3&role=weight")
    title = at.locator(".aw-heatmap .aw-chart-title")
    assert "E4M3, weight" in title.inner_text()
    at.get_by_role("combobox", name="more").click()
    at.get_by_role("option", name="NVFP4").click()
    at.wait_for_url(re.compile("quantity=nvfp4"))
    title.get_by_text("NVFP4, weight").wait_for()
    at.get_by_role("radio", name="gradients").click()
    title.get_by_text("gradient norm").wait_for()


def test_one_layer_tells_what_if_by_role_and_format(page, server):
    at = opened(page, f"run=wide&layer={OUTLIER}")
    table = at.locator(".aw-what-if")
    assert table.locator("thead th").all_inner_texts()[1:] == ["E4M3", "E5M2", "MXFP8", "NVFP4"]
    assert table.locator("tbody th").all_inner_texts() == ["input", "weight", "gradient"]
    assert table.locator("tbody tr").first.locator("b").count() >= 1


def test_the_html_report_shows_the_same(one, place, narrow, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert cli.run(["report", str(place / narrow), "-o", str(out)]) == 0
    capsys.readouterr()
    with tab(one) as page:
        page.open(out.as_uri())
        shown = page.page.locator(".aw-views")
        assert [one.get_attribute("data-view") for one in shown.all()] == ["fp8", "what-if"]
        assert page.page.locator(".aw-window-name.fault").first.inner_text() == HEAD
        assert not shown.nth(1).is_visible()
        page.page.get_by_text("The layers in another view: what if").click()
        assert shown.nth(1).is_visible()


def test_the_views_hold_nothing_that_some_readers_cannot_use(page, server, narrow):
    for query in (f"run={narrow}", "run=wide", "run=half"):
        opened(page, query)
        assert page.faults() == [], query
