"""The chart under mouse, fingers and keys: what a reader chose is seen, kept, and taken back."""

from __future__ import annotations

import csv
import io
import re
import time
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from page_driver import needs_browser, tab
from written_runs import fresh_id, step_columns

from ampwatch import codec, store
from ampwatch.report.painter import bundled
from ampwatch.rows import Table

pytestmark = [pytest.mark.slow_browser, needs_browser]

SPAN = "() => JSON.stringify(document.querySelector('.aw-plot').drawn.span)"


@pytest.fixture(scope="module")
def place(folder):
    """A folder with one run: 400 steps, of which the last 40 were skipped; two spikes, a clip."""
    path = store.create_run(folder, store.RunInfo(id=fresh_id("falls"), name="falls"))
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
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()
    return folder


@pytest.fixture
def chart(page, server):
    page.open(f"{server.url}/?run=falls")
    page.drawn(400)
    page.settled()
    return page


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
    return box["x"] + 54 + share * (box["width"] - 68), box["y"] + down


def drag(page, first, last):
    page.settled()  # what the last press changed may still move the chart down or up
    page.page.mouse.move(*at(page, first))
    page.page.mouse.down()
    page.page.mouse.move(*at(page, last), steps=4)
    page.page.mouse.up()


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
    page.locator(".aw-plot text", has_text=f"step {step}").wait_for()
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
    page.get_by_label("Cut outliers").check()
    page.get_by_label(re.compile("max band")).check()
    says(chart, "view=x-time_s~b~c(&|$)")
    slider = page.locator(".aw-tools input[type=range]")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")  # 2, 5, 10 steps
    page.get_by_text("over 10 steps").wait_for()
    page.get_by_label("Way of smoothing").select_option(label="running median")
    says(chart, "view=x-time_s~m-10~b~c(&|$)")
    drawn = page.locator(".aw-plot path.smooth").first.get_attribute("d")
    page.reload()
    page.locator(".aw-plot path.smooth").first.wait_for()
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
    page.get_by_label("Way of smoothing").select_option(label="running median")
    page.locator(".aw-plot path.smooth").first.wait_for()
    line = page.evaluate(POINTS, "loss")
    expected = [np.median(y[np.abs(x - at) <= 10]) for at in x]
    assert np.allclose(line["smooth"], expected, rtol=1e-6)


def test_a_spike_may_leave_the_panel_but_no_series_does_and_it_is_counted(chart, place):
    page = chart.page
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
    kind = page.get_by_role("button", name="Logarithmic axis of loss")
    kind.click()
    says(chart, "view=l-loss(&|$)")
    assert kind.inner_text() == "log"


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


def test_what_is_shown_is_saved_as_numbers_and_as_a_picture(chart, place, tmp_path):
    page = chart.page
    drag(chart, 0.25, 0.5)
    first, last = chart.axis()
    saved = {}
    for kind in ("CSV", "SVG", "PNG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        assert download.value.suggested_filename == f"falls-chart.{kind.lower()}"
        saved[kind] = download.value.path().read_bytes()
    rows = [row for row in csv.reader(io.StringIO(saved["CSV"].decode())) if row[0] == "loss"]
    loss = store.open_run(place / "falls").read("steps", columns=("loss",)).column(0).to_numpy()
    assert [int(row[1]) for row in rows] == list(range(first, last + 1))
    assert np.allclose([float(row[2]) for row in rows], loss[first : last + 1], rtol=1e-6)
    picture = saved["SVG"].decode()
    assert "var(" not in picture
    assert "Gradient norm" in picture
    assert ET.fromstring(picture).tag.endswith("svg")
    assert saved["PNG"].startswith(b"\x89PNG")
    width, height = (int.from_bytes(saved["PNG"][at : at + 4]) for at in (16, 20))
    box = page.locator(".aw-plot svg").bounding_box()
    assert (width, height) == (2 * box["width"], 2 * box["height"])


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
