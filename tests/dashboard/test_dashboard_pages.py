"""Every page of a real run, in a real browser: what it says and draws is what the log holds."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from page_driver import PAGES, needs_browser, tab, training
from written_runs import write_run

import ampwatch
from ampwatch import store
from ampwatch.report.thinning import merged

pytestmark = [pytest.mark.slow_browser, needs_browser]

HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def place(folder):
    """Runs: real ones, of which one loses gradients and one fails; a healthy one; one hostile."""
    with training(folder, "loses", 160, 0.0, 0, 1e-8) as child:
        assert child.wait(120) == 0
    with training(folder, "falls", 160, 0.0, 120) as child:
        assert child.wait(120) == 0
    write_run(folder, HOSTILE, skipped=30, age_s=9000)
    write_run(folder, "well", age_s=5000)
    return folder


@pytest.fixture(scope="module")
def run(place):
    return store.open_run(place / "falls")


@pytest.fixture
def page(kept_page):
    """What is tested is what the page does, not how one comes there."""
    return kept_page


def test_a_run_is_found_by_search_and_opened_by_a_click(page, server):
    page.show("/runs")
    page.page.get_by_label("Search runs, verdicts, findings").fill("WELL")
    rows = page.page.locator(".aw-runs tbody tr[data-go]")
    page.page.wait_for_function(
        "() => document.querySelectorAll('.aw-runs tbody tr[data-go]').length === 1"
    )
    assert "well" in rows.inner_text()
    page.page.get_by_role("cell", name="well").last.click()
    page.page.wait_for_url(re.compile("run=well"))
    page.page.get_by_text("No problems found in").first.wait_for()


def test_a_run_that_is_chosen_keeps_its_place_in_the_table(page, server):
    page.show("/runs")
    row = page.page.locator(".aw-runs tbody tr", has_text="well")
    row.wait_for()
    width = row.bounding_box()["width"]
    page.page.get_by_label("choose well").check()
    page.page.locator(".aw-runs tbody tr.aw-chosen", has_text="well").wait_for()
    assert row.bounding_box()["width"] == pytest.approx(width, abs=2)


def test_another_trainers_log_is_dropped_onto_the_page_and_diagnosed(page, server, place, tmp_path):
    log = tmp_path / "train_0412.log"
    lines = [f"step {n} loss {2.0 / (n + 1):.4f}" for n in range(40)]
    lines += [
        f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {2.0 ** (15 - n)}"
        for n in range(30)
    ]
    log.write_text("\n".join(lines) + "\n")
    page.show("/runs")
    page.page.locator("input[type=file]").set_input_files(log)
    page.page.wait_for_url(re.compile("run=.*train_0412"))
    page.says("FAILING")
    assert [path.name for path in place.iterdir() if "train_0412" in path.name]


def test_a_layer_clicked_in_the_windows_is_opened_with_its_own_numbers(page, server, place):
    run = store.open_run(place / "loses")
    page.show("/?run=loses")
    page.page.locator(".aw-window").first.click()
    page.page.wait_for_url(re.compile(r"/layers\?"))
    page.page.wait_for_function("() => location.search.includes('layer=')")
    page.page.get_by_role("button", name="Close").wait_for()
    name = page.page.locator("p.aw-title").inner_text()
    page.drawn()
    rows = run.read("layers", columns=("step", "layer", "grad_norm")).to_pylist()
    log = {r["step"]: r["grad_norm"] for r in rows if r["layer"] == name and r["grad_norm"]}
    norm = page.lines()[0]
    drawn = {x: y for x, y in zip(norm["x"], norm["y"], strict=True) if y is not None}
    assert drawn == {s: pytest.approx(v, rel=1e-6) for s, v in log.items() if np.isfinite(v)}


def test_a_link_brings_a_colleague_to_the_same_span_and_step(one, server):
    with tab(one) as new:
        new.open(f"{server.url}/?run=falls&span=100-140&step=121")
        new.drawn(160)
        assert new.axis() == [100, 140]
        assert new.page.get_by_text("step 121").count() > 0
        assert new.troubles == []


def test_the_findings_say_what_the_report_says_are_copied_and_downloaded(page, server, run):
    diagnosis = ampwatch.diagnose(run)
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.show("/findings?run=falls")
    page.page.locator(".aw-finding").first.wait_for()
    told = sorted(diagnosis.findings, key=lambda f: f.severity.value == "info")
    head, *others = (f.code for f in told)
    assert page.page.locator(".aw-finding .aw-where").first.inner_text().startswith(head)
    folds = page.page.locator(".aw-fold > summary")
    assert [fold.split(" ")[-1] for fold in folds.all_inner_texts()] == others
    folds.first.click()
    page.page.locator(".aw-fold .aw-copy").first.click()
    copied = page.page.evaluate("() => navigator.clipboard.readText()")
    assert copied == told[1].action
    page.go("Overview")
    page.drawn()
    page.page.locator(".aw-menu summary", has_text="Share").click()
    page.page.get_by_role("button", name="Download HTML report").click()
    with page.page.expect_download() as download:
        page.page.get_by_role("dialog").get_by_role("button", name="Download").click()
    taken = download.value.path().read_text("utf-8")
    assert download.value.suggested_filename == "falls.html"
    for finding in diagnosis.findings:
        assert finding.code in taken


def test_the_layer_at_fault_is_shown_and_the_map_tells_step_and_layer_under_the_mouse(
    page, server, run
):
    details = [json.loads(row) for row in run.events.column("detail").to_pylist() if row]
    named = next(detail["layer"] for detail in details if detail.get("layer"))
    page.show("/layers?run=falls&quantity=grad_norm")
    page.page.locator(".aw-map-name.fault").first.wait_for()
    assert page.page.locator(".aw-map-name.fault").first.get_attribute("title") == named
    canvas = page.page.locator(".aw-map-body canvas")
    canvas.wait_for()
    page.settled()
    box = canvas.bounding_box()
    names = page.page.locator(".aw-map-body .aw-map-name").evaluate_all(
        "all => all.map(x => x.dataset.name)"
    )
    page.page.mouse.move(box["x"] + 14, box["y"] + 22 * names.index(named) + 8)
    page.page.locator(".aw-heatmap .aw-label").wait_for()
    step, layer, value = page.page.locator(".aw-heatmap .aw-label").inner_text().split("\n")
    at = int(step.removeprefix("step "))
    rows = run.read("layers", columns=("step", "layer", "grad_norm")).to_pylist()
    (norm,) = [r["grad_norm"] for r in rows if r["step"] == at and r["layer"] == layer]
    assert float(value) == pytest.approx(norm, rel=1e-3)


def test_names_are_data_on_every_page(page, server):
    page.show("/")
    page.drawn()
    page.go("Runs")
    page.page.locator(".aw-runs tbody tr", has_text="<img src=x").locator("bdi").click()
    page.page.wait_for_url(re.compile("run=-img"))  # its folder
    page.page.locator("h1.aw-run", has_text=HOSTILE).wait_for()
    page.says("FAILING")
    for name in PAGES:
        page.go(name)
    assert page.page.title() != "taken"
    assert page.page.locator("img[src=x]").count() == 0


def test_the_chart_is_opened_in_plotly(page, server):
    page.show("/?run=falls")
    page.drawn(160)
    page.page.locator(".aw-menu summary", has_text="Share").click()
    page.page.get_by_role("button", name="Open in Plotly").click()
    page.page.locator("[role=dialog] .js-plotly-plot").wait_for()


def test_runs_lie_over_one_another_and_are_kept_when_another_appears_and_on_reload(
    page, server, place
):
    def compared():
        return page.page.locator(".aw-runs td:first-child").all_inner_texts()

    page.show("/compare?run=falls&runs=falls,well")
    page.drawn()
    assert len(compared()) == 2
    assert all(len(line["x"]) > 50 for line in page.lines()[:2])  # the losses
    box = page.page.get_by_label("Add a run").last
    box.click()
    page.page.get_by_role("option", name="onerror").click()
    rows = ".st-key-compare-table .aw-runs tbody tr"
    page.page.wait_for_function(f"() => document.querySelectorAll('{rows}').length === 3")
    chosen = compared()
    page.page.wait_for_url(re.compile("runs="))
    write_run(place, "newcomer", age_s=1)
    try:
        page.page.get_by_text("newcomer").first.wait_for(state="attached")  # in the switcher
        page.settled()
        assert compared() == chosen
        page.page.reload()
        page.drawn()
        page.page.wait_for_function(f"() => document.querySelectorAll('{rows}').length === 3")
        assert compared() == chosen
        shutil.rmtree(place / "newcomer")
        page.page.get_by_text("newcomer").first.wait_for(state="detached")
        page.show("/compare?run=falls&runs=falls,well,newcomer")
        page.says("No longer there: newcomer.")
    finally:
        shutil.rmtree(place / "newcomer", ignore_errors=True)


TICKS = """async ([root, first, last, count, ends, pixels]) => {
    const { ticks } = await import(`${root}/_stcore/bidi-components/ampwatch.painter/lines.js`);
    return ticks({ first, last, count }, [], ends, pixels).map(({ step, count }) => [step, count]);
}"""


def columns(steps, ends):
    """The columns of pixels in which they lie."""
    return {int((step - ends[0]) / (ends[1] - ends[0]) * 913) for step in steps}


def test_the_browser_leaves_no_column_of_pixels_without_its_skip(page, server):
    skips = np.unique(np.random.default_rng(3).integers(0, 1_000_000, 20_000))
    page.show("/")
    for ends in ((0, 999_999), (250_000, 251_000), (400_000, 700_123)):
        rug = merged(skips[(skips >= ends[0]) & (skips <= ends[1])], *ends)
        cells = [part.tolist() for part in (rug.first, rug.last, rug.count)]
        drawn = page.page.evaluate(TICKS, [server.url, *cells, list(ends), 913])
        inside = [step for step in skips.tolist() if ends[0] <= step <= ends[1]]
        assert columns((step for step, _ in drawn), ends) == columns(inside, ends), ends
        assert sum(count for _, count in drawn) == len(inside), ends
