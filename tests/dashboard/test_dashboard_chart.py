"""The chart under mouse, fingers and keys: what a reader chose is seen, kept, and taken back."""

from __future__ import annotations

import re

import pytest
from page_driver import needs_browser, tab
from written_runs import write_run

pytestmark = [pytest.mark.slow_browser, needs_browser]

SPAN = "() => JSON.stringify(document.querySelector('.aw-plot').drawn.span)"


@pytest.fixture(scope="module")
def place(folder):
    """A folder with one run: 400 steps, of which the last 40 were skipped."""
    write_run(folder, "falls", accepted=360, skipped=40)
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
