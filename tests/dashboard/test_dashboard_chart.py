"""The chart under mouse, fingers and keys: what a reader chose is seen, kept, and taken back."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from page_driver import needs_browser, tab
from written_runs import fresh_id, step_columns

from ampwatch import codec, store
from ampwatch.report.overview_chart import SCALE
from ampwatch.report.painter import bundled
from ampwatch.rows import Table

pytestmark = [pytest.mark.slow_browser, needs_browser]

BAD_BATCHES = [150, 240, 330]
SPAN = "() => JSON.stringify(document.querySelector('.aw-plot').drawn.span)"


@pytest.fixture(scope="module")
def place(folder):
    """A run of 400 steps, of which the last 40 were skipped; two spikes, a clip. One of few 0s."""
    began = time.time_ns() - 10**13
    columns = step_columns(360, 40, began)
    chance = np.random.default_rng(5)
    norm = np.where(columns["skipped"], np.inf, 1 + 0.1 * chance.standard_normal(400))
    norm[[90, 250]] = 3000.0
    columns |= {
        "time_ns": began + np.cumsum(chance.integers(5 * 10**8, 10**9, 400)),
        "grad_norm": norm,
        "grad_norm_applied": np.minimum(norm, 1.0),
    }
    write_steps(folder, "falls", columns)
    columns = step_columns(200, 0, began)
    columns["loss"] = 100.0 ** np.linspace(1, -1, 200)
    columns["loss"][50] = 0.0
    write_steps(folder, "zero", columns)
    columns = step_columns(400, 0, began)
    columns["scale"][:200] = 2.0 ** (26 - np.arange(200) // 20)
    columns |= {"scale_after": np.full(400, np.nan), "skipped": columns["step"] % 20 == 19}
    columns["skipped"][200:] = False
    write_steps(folder, "search", columns)
    columns = step_columns(400, 0, began)
    columns["grad_norm"] = 1 + 0.1 * chance.standard_normal(400)
    columns["loss"] += 0.02 * chance.standard_normal(400)
    columns["loss"][BAD_BATCHES], columns["grad_norm"][BAD_BATCHES] = 40.0, 50.0
    write_steps(folder, "batches", columns)
    return folder


def write_steps(folder, name, columns, rank=0, **info):
    path = folder / name
    if not path.exists():
        path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name, **info))
    writer = store.RankWriter(path, rank)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()


@pytest.fixture
def chart(kept_page):
    kept_page.show("/?run=falls")
    kept_page.drawn(400)
    kept_page.settled()
    return kept_page


def shows(page, span):
    """Wait until these steps are in view."""
    page.page.wait_for_function(
        "span => JSON.stringify(document.querySelector('.aw-plot')?.drawn?.span)"
        " === JSON.stringify(span)",
        arg=span,
    )


def says(page, pattern):
    """Wait until the address matches this."""
    page.page.wait_for_function("pattern => new RegExp(pattern).test(location.search)", arg=pattern)


def at(page, share, down=200):
    """A place of the plot, by its share of the width."""
    box = page.page.locator(".aw-plot").bounding_box()
    width = page.page.evaluate("() => document.querySelector('.aw-plot').drawn.plotWidth")
    return box["x"] + 54 + share * width, box["y"] + down


def drag(page, first, last):
    page.settled()  # what the last press changed may still move the chart down or up
    page.page.mouse.move(*at(page, first))
    page.page.mouse.down()
    page.page.mouse.move(*at(page, last), steps=4)
    page.page.mouse.up()


def test_the_established_scale_is_drawn_from_the_step_at_which_the_scale_stood_there(kept_page):
    page = kept_page
    page.show("/?run=search")
    page.drawn(400)
    page.settled()
    line = page.page.locator(".aw-plot path.guide").first
    first, last = (float(n) for n in re.findall(r"[MH]([\d.]+)", line.get_attribute("d")))
    plot = page.page.evaluate("() => document.querySelector('.aw-plot').drawn.plotWidth")
    assert abs((last - first) / plot - 0.5) < 0.01


def test_back_forward_and_reload_bring_back_what_was_seen(chart):
    page = chart.page
    drag(chart, 0.25, 0.5)
    first, last = zoomed = chart.axis()
    assert abs(first - 100) <= 1
    assert abs(last - 199) <= 1
    says(chart, f"span={first}-{last}")
    page.mouse.click(*at(chart, 0.5))
    says(chart, r"step=\d+")
    step = re.search(r"step=(\d+)", page.url)[1]
    chart.says(f"step {step}")
    page.reload()
    shows(chart, zoomed)
    page.locator(".aw-plot text.flag", has_text=f"step {step}").wait_for()
    page.get_by_role("button", name="Whole run").click()
    says(chart, f"^(?!.*span=).*step={step}")
    shows(chart, [0, 399])
    page.go_back()
    shows(chart, zoomed)
    page.go_back()
    page.locator(".aw-plot text", has_text=f"step {step}").wait_for(state="detached")
    page.go_forward()
    page.locator(".aw-plot text", has_text=f"step {step}").wait_for()
    shows(chart, zoomed)


def test_what_was_chosen_is_taken_back_by_the_same_hand(chart):
    page = chart.page
    page.locator(".aw-plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    says(chart, "step=0")
    page.mouse.click(*at(chart, 0.002))
    says(chart, "^(?!.*step=)")
    drag(chart, 0.25, 0.5)
    says(chart, "span=")
    chart.settled()
    page.mouse.dblclick(*at(chart, 0.5))
    shows(chart, [0, 399])
    says(chart, "^(?!.*(span|step)=)")
    drag(chart, 0.25, 0.5)
    says(chart, "span=")
    page.keyboard.press("Escape")
    shows(chart, [0, 399])
    says(chart, "^(?!.*span=)")


def test_the_keys_do_what_the_mouse_does(chart):
    page = chart.page
    plot = page.get_by_role(
        "slider", name=re.compile(r"^Chart of Loss scale, Loss, .* steps 0 to 399")
    )
    plot.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuenow") == "3"
    assert "loss 1.942" in plot.get_attribute("aria-valuetext")  # 2 / 1.03
    assert page.locator(".aw-label").inner_text().startswith("step 3\n")
    page.keyboard.press("Enter")
    says(chart, "step=3")
    page.keyboard.press("Escape")
    says(chart, "^(?!.*step=)")
    page.keyboard.press("End")
    assert "skipped" in plot.get_attribute("aria-valuetext")
    page.keyboard.press("+")
    says(chart, "span=")
    low, high = chart.axis()
    assert high == 399
    assert high - low == pytest.approx(200, abs=1)
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")  # the view goes along
    shows(chart, [low - 1, high - 1])
    page.keyboard.press("-")
    page.keyboard.press("-")
    shows(chart, [0, 399])
    outline = "() => getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


class Fingers:
    """Real touch events, by the browser's own protocol."""

    def __init__(self, page):
        self.client = page.context.new_cdp_session(page)
        self.client.send("Emulation.setTouchEmulationEnabled", {"enabled": True})

    def send(self, kind, *points):
        touches = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self.client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    def move(self, *paths, steps=8):
        """Each finger from its first place to its last."""
        self.send("touchStart", *(path[0] for path in paths))
        for step in range(1, steps + 1):
            share = step / steps
            self.send(
                "touchMove",
                *(
                    (x + share * (to_x - x), y + share * (to_y - y))
                    for (x, y), (to_x, to_y) in paths
                ),
            )
        self.send("touchEnd")


# Where a chart's lanes and steps lie on the screen, and how far its lines are shifted.
PLACES = """() => { const at = (part) => [...document.querySelectorAll(part)].map((one) => {
    const { left, right } = one.getBoundingClientRect();
    return [one.textContent, Math.round(left), Math.round(right)]; });
  return { lanes: at('.aw-plot .lanes text'), steps: at('.aw-plot .step-axis text'),
    by: new DOMMatrix(getComputedStyle(document.querySelector('.moving:has(.raw)')).transform).e };
  }"""
ON_SHIFT = f"""() => {{ window.shifted = null;
  const wanted = {{ subtree: true, attributes: true, attributeFilter: ['style'] }};
  new MutationObserver(() => {{ window.shifted = ({PLACES})(); }})
    .observe(document.querySelector('.aw-plot'), wanted); }}"""


def test_a_view_that_is_moved_lies_where_it_is_drawn_once_it_rests(chart):
    drag(chart, 0.3, 0.6)
    chart.settled()
    span = json.loads(chart.page.evaluate(SPAN))
    chart.page.evaluate("() => { window.before = document.querySelector('.aw-plot').drawn; }")
    chart.page.keyboard.down("Shift")
    chart.page.mouse.move(*at(chart, 0.8))
    chart.page.mouse.down()
    chart.page.mouse.move(*at(chart, 0.79))
    chart.page.wait_for_function("() => document.querySelector('.aw-plot').drawn !== window.before")
    chart.page.evaluate(ON_SHIFT)
    chart.page.mouse.move(*at(chart, 0.3))
    shifted = chart.page.wait_for_function("() => window.shifted").json_value()
    width = at(chart, 1)[0] - at(chart, 0)[0]
    assert shifted["by"] == pytest.approx(-0.49 * width, abs=8)  # a step has nearly 8 pixels
    shows(chart, [step + (span[1] - span[0] + 1) // 2 for step in span])
    drawn = chart.page.evaluate(PLACES)
    assert drawn["lanes"] == shifted["lanes"]
    assert drawn["steps"] == shifted["steps"]
    chart.page.mouse.up()
    chart.page.keyboard.up("Shift")


def test_fingers_scroll_the_page_move_the_view_and_stretch_it(one, server):
    with tab(one, size=(420, 900)) as page:
        page.open(f"{server.url}/?run=falls")
        page.drawn(400)
        page.settled()
        fingers = Fingers(page.page)
        x, y = at(page, 0.5)
        top = "() => document.querySelector('[data-testid=stMain]').scrollTop"
        fingers.move(((x, y), (x, y - 180)))
        page.page.wait_for_function(f"() => ({top})() > 100")
        assert page.axis() == [0, 399]
        left, right = at(page, 0.4), at(page, 0.6)
        fingers.move((left, at(page, 0.2)), (right, at(page, 0.8)))
        says(page, "span=")
        low, high = page.axis()
        assert high - low == pytest.approx(399 / 3, rel=0.1)
        assert (low + high) / 2 == pytest.approx(200, abs=10)
        fingers.move((at(page, 0.7), at(page, 0.2)))
        says(page, f"^(?!.*span={low}-)")
        moved = page.axis()
        assert moved[1] - moved[0] == high - low
        assert moved[0] - low == pytest.approx((high - low) / 2, rel=0.15)
        fingers.move((at(page, 0.5), at(page, 0.5)))
        says(page, "step=")
        page.page.locator(".aw-label").wait_for()
        page.page.get_by_role("button", name="Whole run").click()
        shows(page, [0, 399])
        assert page.troubles == []


# --- how it is looked at --------------------------------------------------------------------------

POINTS = """key => {
  const { panels } = document.querySelector('.aw-plot').drawn;
  const { x, y, smooth } = panels.flatMap(({ lines }) => lines).find((one) => one.key === key);
  return { x: Array.from(x), y: Array.from(y), smooth: smooth && Array.from(smooth) };
}"""
PATH = "key => document.querySelector(`.aw-plot path.raw[data-key='${key}']`).getAttribute('d')"


def numbers(path):
    """The points of an SVG path of straight lines."""
    return np.array([float(number) for number in re.findall(r"-?[\d.]+", path)]).reshape(-1, 2)


def test_what_was_chosen_is_kept_in_the_address_and_comes_back(chart, server):
    page = chart.page
    page.get_by_label("x axis").select_option(label="time")
    page.get_by_label("More options").click()
    page.get_by_label("Cut outliers").check()
    page.get_by_label(re.compile("max band")).check()
    says(chart, "view=x-time_s~b~c(&|$)")
    slider = page.locator(".aw-tools input[type=range]")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")  # 2, 5, 10 steps
    page.get_by_text("over 10 steps").wait_for()
    page.get_by_label("Smooth by").select_option(label="running median")
    says(chart, "view=x-time_s~m-10~b~c(&|$)")
    drawn = page.locator(".aw-plot path.smooth").first.get_attribute("d")
    page.reload()
    page.locator(".aw-plot path.smooth").first.wait_for()
    page.get_by_label("More options").click()
    assert page.locator(".aw-plot path.smooth").first.get_attribute("d") == drawn
    assert page.get_by_label("Cut outliers").is_checked()
    smoothed = [page.url]
    while "view=x-time_s~b~c" not in page.url:  # where the slider rested is a step of its own
        assert len(smoothed) < 5, smoothed
        page.go_back()
        page.wait_for_function("url => location.href !== url", arg=smoothed[-1])
        smoothed.append(page.url)
    page.wait_for_function("() => !document.querySelector('.aw-plot path.smooth[d*=M]')")


def test_over_time_each_step_lies_at_its_time(chart, place):
    rows = store.open_run(place / "falls").read("steps", columns=("step", "time_ns", "loss"))
    seconds = np.asarray(rows.column("time_ns").to_numpy(), np.float64) / 1e9
    loss = rows.column("loss").to_numpy()
    known = np.isfinite(loss)
    chart.page.get_by_label("x axis").select_option(label="time")
    chart.page.wait_for_function("() => document.querySelector('.aw-plot').drawn.range[1] < 399")
    along = numbers(chart.page.evaluate(PATH, "loss"))[:, 0]
    width = chart.page.evaluate("() => document.querySelector('.aw-plot').drawn.plotWidth")
    since = seconds - seconds[0]
    assert np.allclose(along, 54 + since[known] / since[-1] * width, atol=0.06)


def test_the_clocks_axis_says_date_and_time_of_day_where_the_page_is_read(chart, place):
    page = chart.page
    page.get_by_label("x axis").select_option(label="clock")
    page.wait_for_function("() => document.querySelector('.aw-plot').drawn.range[1] < 399")
    began = store.open_run(place / "falls").steps.column("time_ns")[0].as_py() / 1e9
    ticks = page.evaluate("() => document.querySelector('.aw-plot').drawn.ticks")
    told = page.evaluate(
        """seconds => seconds.map((second) => new Date(1000 * second).toLocaleString("en-GB",
        { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }))""",
        [round(began + second) for second, _ in ticks],
    )
    assert len(ticks) >= 2
    assert ticks[0][1] == told[0]
    assert [text for _, text in ticks[1:]] == [text.split(", ")[1] for text in told[1:]]


def test_a_smoothed_line_is_the_mean_of_what_lies_around_and_the_raw_one_stays(chart, place):
    page = chart.page
    raw = page.evaluate(PATH, "loss")
    slider = page.locator(".aw-tools input[type=range]")
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.get_by_text("over 20 steps").wait_for()
    line = page.evaluate(POINTS, "loss")
    x, y = (np.array(line[name], float) for name in ("x", "y"))
    rows = store.open_run(place / "falls").read("steps", columns=("step", "loss"))
    assert np.allclose(y, rows.column("loss").to_numpy()[: len(y)], rtol=1e-6)
    weights = np.exp(-np.abs(x[:, None] - x[None, :]) / 10) * np.gradient(x)
    weights[:, [0, -1]] *= 0.5  # they stand for half an interval
    assert np.allclose(line["smooth"], weights @ y / weights.sum(axis=1), rtol=1e-6)
    assert page.evaluate(PATH, "loss") == raw
    page.get_by_label("More options").click()
    page.get_by_label("Smooth by").select_option(label="running median")
    page.locator(".aw-plot path.smooth").first.wait_for()
    line = page.evaluate(POINTS, "loss")
    expected = [np.median(y[np.abs(x - at) <= 10]) for at in x]
    assert np.allclose(line["smooth"], expected, rtol=1e-6)


def test_a_spike_may_leave_the_panel_but_no_series_does_and_it_is_counted(chart, place):
    page = chart.page
    page.get_by_label("More options").click()
    page.get_by_label("Cut outliers").check()
    page.get_by_text("2 drawn points lie outside").wait_for()  # both spikes of the gradient norm
    arrows = page.locator(".aw-plot path.outside").evaluate_all(
        "all => all.map((one) => one.getAttribute('d'))"
    )
    assert [arrow.count("M") for arrow in arrows] == [0, 2]
    low, high = page.evaluate(
        "() => document.querySelector('.aw-plot').drawn.panels"
        ".find(({ lines }) => lines.some(({ key }) => key === 'grad_norm')).axis.range"
    )
    norm = store.open_run(place / "falls").read("steps", columns=("grad_norm",)).column(0)
    usual = np.sort(norm.to_numpy()[np.isfinite(norm.to_numpy())])[:-2]
    assert low <= usual[0]
    assert usual[-1] <= high < 100


KINDS = ("Linear", "Logarithmic")


def test_a_line_is_hidden_shown_alone_and_named_while_it_is_away(chart):
    page = chart.page
    legend = page.locator(".aw-legend").filter(has_text="after clipping")
    name = legend.get_by_role("button", name="after clipping", exact=True)
    lines = page.locator(".aw-plot path.raw[data-key^=grad_norm]")
    name.hover()
    pale = "() => +document.querySelector('.aw-plot [data-key=grad_norm]').getAttribute('opacity')"
    page.wait_for_function(f"() => ({pale})() < 0.2")
    name.click()
    page.get_by_text("1 hidden: after clipping").wait_for()
    assert lines.count() == 1
    says(chart, "view=h-grad_norm_applied(&|$)")
    page.get_by_role("button", name="Show all").click()
    legend.get_by_role("button", name="gradient norm", exact=True).click(modifiers=["Shift"])
    page.get_by_text("1 hidden: after clipping").wait_for()
    says(chart, "view=o-grad_norm(&|$)")
    legend.get_by_role("button", name="Show gradient norm alone").click()
    says(chart, "^(?!.*view=)")
    assert lines.count() == 2
    names = page.locator(".aw-plot text.name").all_text_contents()
    assert sorted(names) == ["after clipping", "gradient norm"]
    kinds = [page.get_by_role("button", name=f"{kind} axis of loss") for kind in KINDS]
    assert [kind.get_attribute("aria-pressed") for kind in kinds] == ["true", "false"]
    kinds[1].click()
    says(chart, "view=l-loss(&|$)")
    assert [kind.inner_text() for kind in kinds] == ["lin", "log"]
    assert [kind.get_attribute("aria-pressed") for kind in kinds] == ["false", "true"]


def test_the_label_says_of_each_number_what_it_is_and_of_several_runs_one_panel(kept_page):
    page = kept_page
    page.show("/compare?run=falls&runs=falls,zero")
    page.drawn()
    page.settled()
    page.page.locator(".aw-plot").scroll_into_view_if_needed()
    told = {}
    for name, down in page.page.evaluate(PANELS):
        page.page.mouse.move(*at(page, 0.3, down))
        told[name] = page.page.locator(".aw-label").inner_text().split("\n")
    assert told["Loss"][2:] == ["falls", "0.9091", "zero", "0.3872"]
    assert [rows[1] for rows in told.values()] == list(told)
    assert {len(rows) for name, rows in told.items() if name != "Gradient norm"} == {6}
    downs = dict(page.page.evaluate(PANELS))
    page.page.mouse.move(*at(page, 0.9, downs["Loss scale"]))
    late = page.page.locator(".aw-label").inner_text().split("\n")
    assert "falls" in late
    assert "zero" not in late  # it had ended
    page.page.locator(".aw-plot").focus()
    page.page.keyboard.press("Home")  # no panel is pointed at: all of them, each under its name
    every = page.page.locator(".aw-label").inner_text().split("\n")
    assert [row for row in every if row in told] == list(told)


PANELS = """() => document.querySelector('.aw-plot').drawn.panels
    .map(({ title, top, bottom }) => [
        title.flat().filter(({ weight }) => weight > 400).map(({ words }) => words).join(''),
        (top + bottom) / 2])"""
DOTS = """() => [...document.querySelectorAll('.aw-dots i')]
    .map((dot) => [parseFloat(dot.style.left), parseFloat(dot.style.top)])"""


def test_the_label_lies_beside_the_pointer_and_dots_on_the_lines(chart):
    page = chart.page
    for down in (120, 420):
        page.mouse.move(*at(chart, 100 / 399, down))
        label = page.locator(".aw-label").bounding_box()
        x, y = at(chart, 100 / 399, down)
        assert label["y"] <= y <= label["y"] + label["height"]
        assert label["x"] > x
    dots = page.evaluate(DOTS)
    path = numbers(page.evaluate(PATH, "loss"))
    along = 100 / 399 * page.evaluate("() => document.querySelector('.aw-plot').drawn.plotWidth")
    nearest = path[np.argmin(np.abs(path[:, 0] - 54 - along))]
    assert any(np.allclose(dot, nearest, atol=0.2) for dot in dots)


def test_picking_a_step_moves_nothing_and_its_chip_takes_it_back(chart):
    page = chart.page
    before = page.evaluate(PANELS)
    page.mouse.click(*at(chart, 0.5))
    chip = page.get_by_role("button", name=re.compile(r"^Take back step \d+$"))
    chip.wait_for()
    assert page.evaluate(PANELS) == before
    chip.click()
    says(chart, "^(?!.*step=)")
    chip.wait_for(state="hidden")


def test_of_batches_that_stand_out_the_steps_are_marked_and_not_those_between(kept_page):
    kept_page.show("/?run=batches")
    kept_page.drawn(400)
    kept_page.says("at steps 150, 240, 330")
    drawn = kept_page.page.evaluate(
        "() => { const { bands, lanes } = document.querySelector('.aw-plot').drawn;"
        " return [bands.map(({ first, last }) => [first, last]), lanes[0].ticks.length]; }"
    )
    assert drawn == [[[step, step] for step in BAD_BATCHES], len(BAD_BATCHES)]


LANES = "() => document.querySelector('.aw-plot').drawn.lanes.map(({ label, top }) => [label, top])"


def test_each_finding_has_a_lane_and_only_the_headlines_steps_are_shaded(chart):
    page = chart.page
    lanes = page.evaluate(LANES)
    assert len(lanes) > 1
    assert len({top for _, top in lanes}) == len(lanes)
    bands = page.evaluate("() => document.querySelector('.aw-plot').drawn.bands")
    assert [band["label"] for band in bands] == [lanes[0][0]]
    words = page.locator(".aw-plot text.lane").all_text_contents()
    assert words == [label for label, _ in lanes]
    page.mouse.move(*at(chart, 0.95, lanes[1][1] + 5))
    page.locator(".aw-lit-span").wait_for()
    assert page.locator(".aw-label").inner_text().startswith(lanes[1][0])
    lit = page.locator(".aw-lit-span").bounding_box()
    assert lit["height"] == page.evaluate(
        "() => document.querySelector('.aw-plot').drawn.plotHeight"
    )
    page.mouse.move(*at(chart, 0.95))
    page.locator(".aw-lit-span").wait_for(state="hidden")
    drag(chart, 0.1, 0.3)  # the findings are out of view: their lanes stay, nothing moves
    assert page.evaluate(LANES) == lanes


def test_names_of_lines_stand_beside_the_plot_and_over_nothing(chart):
    over = chart.page.evaluate(
        """() => { const plot = document.querySelector('.aw-plot');
        const edge = plot.getBoundingClientRect().left + 54 + plot.drawn.plotWidth;
        return [...plot.querySelectorAll('text.name')].map((name) => {
          const box = name.getBoundingClientRect();
          return [box.left >= edge, box.right <= plot.getBoundingClientRect().right]; }); }"""
    )
    assert over == [[True, True], [True, True]]


# Of each word that an upright line runs through, whether it lies over the line, with a halo.
CROSSED = """() => {
  const plot = document.querySelector('.aw-plot'), line = plot.querySelector('.uprights path');
  const at = line.getBoundingClientRect().left;
  return [...plot.querySelectorAll('svg text')].filter((one) => {
    const { left, right } = one.getBoundingClientRect();
    return left < at && at < right;
  }).map((one) => [one.textContent, getComputedStyle(one).paintOrder.startsWith('stroke')
    && Boolean(line.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING)]); }"""


FITS = """() => {
  const plot = document.querySelector('.aw-plot');
  return plot?.drawn?.width === plot?.clientWidth && plot?.clientWidth <= innerWidth; }"""


def test_no_line_runs_through_a_word(page, server):
    page.open(f"{server.url}/?run=falls&step=40")
    for width in (1400, 420):
        page.page.set_viewport_size({"width": width, "height": 900})
        page.page.wait_for_function(FITS)
        page.drawn(400)
        page.settled()
        crossed = page.page.evaluate(CROSSED)
        assert crossed, width
        assert [words for words, is_clear in crossed if not is_clear] == [], width


def share(page, words):
    """Choose this in the Share menu, open or not."""
    menu = page.locator(".aw-menu", has_text="Share")
    if menu.get_attribute("open") is None:
        menu.locator("summary").click()
    menu.get_by_role("button", name=words).click()


def test_what_is_shown_is_saved_as_numbers_and_as_a_picture(chart, place, tmp_path):
    page = chart.page
    drag(chart, 0.25, 0.5)
    first, last = chart.axis()
    saved = {}
    for kind in ("CSV", "SVG", "PNG"):
        with page.expect_download() as download:
            share(page, f"Save {kind}")
        assert download.value.suggested_filename == f"falls-chart.{kind.lower()}"
        saved[kind] = download.value.path().read_bytes()
    rows = [row for row in csv.reader(io.StringIO(saved["CSV"].decode())) if row[0] == "loss"]
    loss = store.open_run(place / "falls").read("steps", columns=("loss",)).column(0).to_numpy()
    assert [int(row[1]) for row in rows] == list(range(first, last + 1))
    assert np.allclose([float(row[2]) for row in rows], loss[first : last + 1], rtol=1e-6)
    rows = list(csv.reader(io.StringIO(saved["CSV"].decode())))
    assert {int(row[1]) for row in rows if row[0] == "skipped"} == set()
    picture = saved["SVG"].decode()
    for words in ("falls", "failing: ", "gradient norm", "after clipping"):
        assert re.search(f">{re.escape(words)}", picture), words
    assert "var(" not in picture
    assert "Gradient norm" in picture
    assert ET.fromstring(picture).tag.endswith("svg")
    assert saved["PNG"].startswith(b"\x89PNG")
    width, height = (int.from_bytes(saved["PNG"][at : at + 4]) for at in (16, 20))
    box = page.locator(".aw-plot svg").bounding_box()
    assert width == 2 * box["width"]
    assert height == 2 * float(ET.fromstring(picture).get("height")) > 2 * box["height"]


def test_the_table_has_each_step_that_is_not_finite_and_each_that_was_skipped(chart):
    with chart.page.expect_download() as download:
        share(chart.page, "Save CSV")
    text = download.value.path().read_text()
    rows = [
        (line, int(step), value) for line, step, value in list(csv.reader(io.StringIO(text)))[1:]
    ]
    skipped = list(range(360, 400))
    for line, value in (("loss", "nan"), ("gradient norm", "inf"), ("skipped", "1")):
        found = [step for name, step, what in rows if name == line and what == value]
        assert found == skipped, line
    assert len([1 for name, *_ in rows if name == "loss"]) == 400


def test_where_a_line_is_not_finite_the_chart_says_so(chart):
    page = chart.page
    x = page.evaluate(
        "() => { const { panels, plotWidth } = document.querySelector('.aw-plot').drawn;"
        " const line = panels.flatMap(({ lines }) => lines).find(({ key }) => key === 'grad_norm');"
        " return [line.odd.map(({ first, last }) => [first, last]), plotWidth]; }"
    )
    assert x[0] == [[360, 399]]  # the skipped steps, of which the norm is infinite
    bars = page.locator(".aw-plot path.odd").first.get_attribute("d")
    start = float(re.match(r"M([\d.]+),", bars)[1])
    assert start == pytest.approx(54 + 359.5 / 399 * x[1], abs=0.2)
    page.mouse.move(*at(chart, 380 / 399))
    page.locator(".aw-label").get_by_text("not finite").first.wait_for()


def test_one_exact_0_lies_at_the_ground_of_a_logarithmic_axis_and_the_choice_stays(kept_page):
    page = kept_page
    page.show("/?run=zero")
    page.drawn(200)
    axis, zeros, odd = page.page.evaluate(
        """() => { const panels = document.querySelector('.aw-plot').drawn.panels;
        const { axis, lines: [line] } = panels.find(({ lines }) => lines[0].key === 'loss');
        return [axis.type, line.zeros, line.odd]; }"""
    )
    assert axis == "log"
    assert zeros == [{"first": 50, "last": 50}]
    assert odd == []
    path = page.page.evaluate(PATH, "loss")
    assert path.count("M") == 2  # broken once, and nowhere else
    assert "Infinity" not in path
    page.page.locator(".aw-plot text.odd", has_text=re.compile("^0$")).wait_for()
    page.page.mouse.move(*at(page, 50 / 199))
    page.page.locator(".aw-label").get_by_text("0", exact=True).wait_for()
    page.page.get_by_role("button", name="Linear axis of loss").click()
    says(page, "view=n-loss(&|$)")
    page.page.wait_for_function(f"() => !({PATH})('loss').slice(1).includes('M')")


DRAWN = """() => document.querySelector('.aw-plot').drawn.panels.map(({ axis, lines }) => ({
    type: axis.type, range: axis.range,
    lines: lines.map(({ key, x, y }) => [key, Array.from(x), Array.from(y)]) }))"""


def test_plotly_has_the_axes_and_points_that_the_page_draws(chart, place):
    drawn = chart.page.evaluate(DRAWN)
    figure = store.open_run(place / "falls").figure()
    lines = [line for line in figure.data if line.name != "skipped" and line.showlegend is None]
    assert len(lines) == sum(len(panel["lines"]) for panel in drawn)
    for number, panel in enumerate(drawn, 1):
        axis = figure.layout[f"yaxis{number if number > 1 else ''}"]
        is_power = panel["lines"][0][0] == SCALE
        if is_power:
            expected = ("log", np.multiply(panel["range"], np.log10(2)))
        else:
            expected = (panel["type"], panel["range"])
        assert axis.type == expected[0]
        assert axis.range == pytest.approx(expected[1])
        for _, x, y in panel["lines"]:
            line = lines.pop(0)
            assert np.array_equal(line.x, x)
            values = np.array(y, float)
            values = 2.0**values if is_power else values
            assert np.allclose(np.array(line.y, float), values, equal_nan=True)


@pytest.fixture(scope="module")
def blank(one):
    """An empty page, for what is computed alone."""
    with tab(one) as opened:
        yield opened


@pytest.mark.parametrize(
    ("low", "high", "is_level"),
    [(0.0999, 0.1, False), (0.0999995, 0.1, True), (0.5, 0.6, False), (1e-9, 1.001e-9, False),
     (123456.0, 123470.0, False), (5.0, 5.0, True), (-1.00001, -1.0, True), (0.0, 0.0, True)],
)  # fmt: skip
def test_no_two_labels_of_an_axis_are_alike_however_little_the_values_differ(
    blank, low, high, is_level
):
    axis = blank.page.evaluate(
        f"() => {{ {bundled('axis')}; return from_axis.axisOf('number', [{low}, {high}]) }}"
    )
    assert len(set(axis["ticktext"])) == len(axis["ticktext"]) >= 2
    assert max(map(len, axis["ticktext"])) <= 10
    first, last = axis["range"]
    assert (last - first > 0.9 * max(abs(low), abs(high))) is is_level


def test_no_two_labels_of_a_time_axis_are_alike_late_in_a_long_run(blank):
    texts = blank.page.evaluate(
        f"""() => {{ {bundled("axis")};
        const {{ timeTicks, timeText, distinctTexts }} = from_axis;
        const ticks = timeTicks([1658880, 1658895]);
        return distinctTexts(ticks, timeText, [3, 4, 5, 6, 7]) }}"""
    )
    assert len(set(texts)) == len(texts) >= 2
    assert texts[0].startswith("19.2")


FEW_OR_MANY = """() => { %s;
    const { linearTicks, timeTicks, timeText, distinctTexts } = from_axis, wrong = [];
    for (const ticks of [linearTicks, timeTicks]) for (const most of [2, 3, 5, 9])
        for (let width = 2; width < 3e6; width *= 1.07)
            for (const low of [0, 0.3 * width, 12345.6]) {
                const found = ticks([low, low + width], most);
                const texts = distinctTexts(found, timeText, [3, 4, 5, 6, 7]);
                const count = new Set(texts).size;
                const fits = count >= 2 && count <= most + 1 && count === found.length;
                if (!fits) wrong.push([ticks.name, most, low, width]);
            }
    return wrong; }"""


def test_an_axis_has_two_labels_at_least_and_none_that_has_no_room(blank):
    assert blank.page.evaluate(FEW_OR_MANY % bundled("axis")) == []
