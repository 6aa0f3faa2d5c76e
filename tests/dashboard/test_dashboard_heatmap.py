"""The map of layers in a real browser: thousands of them folded, found, walked and heard."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from firefox_driver import firefox, needs_firefox
from page_driver import needs_browser
from written_runs import event_columns, fresh_id, step_columns

from ampwatch import codec, store
from ampwatch.rows import Table

pytestmark = [pytest.mark.slow_browser, needs_browser]

PARTS = ("norm1", "attn.q", "attn.k", "attn.v", "attn.out", "norm2", "mlp.up", "mlp.down")
BLOCKS = [f"model.blocks.{block}.{part}" for block in range(250) for part in PARTS][:1998]
MANY = ["embed", *BLOCKS, "head"]
HARD = [
    "head",
    "\u202eשבת",
    "😀.🎉",
    "<b>x</b>.<img src=y onerror=alert(1)>",
    "l" * 300,
    "still",
    "quiet",
]
STILL, QUIET = 5, 6  # a gradient of 0, and none at all
STEPS = range(0, 1200, 20)


def norms_of(layers, step):
    """A layer's gradient norm at a step: each value occurs once, and the last layer's are low."""
    at = np.arange(layers)
    return (1 + ((at * 7919 + step * 104_729) % 1_000_003) / 1000).astype(np.float32)


def write(folder, name, names, **odd):
    """A run whose layers were sampled each 20th step."""
    path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name, layer_every=20))
    writer, count = store.RankWriter(path, 0), len(names)
    info = {"step": [0] * count, "layer": np.arange(count), "name": names}
    writer.append(codec.encode(Table.LAYER_INFO, {**info, "order": np.arange(count)}))
    writer.append(codec.encode(Table.STEPS, step_columns(1200, 0, 10**18)))
    for step in STEPS:
        norm = norms_of(count, step)
        norm[odd.get("zero", [])] = 0
        norm[odd.get("broken", []) if step == 600 else []] = np.inf
        told = [None if at in odd.get("silent", []) else v for at, v in enumerate(norm.tolist())]
        rows = {"step": [step] * count, "layer": np.arange(count), "grad_norm": told}
        rows["act_amax"] = 2 * norm
        if "losing" in odd:
            rows["underflow_share"] = np.where(np.isin(np.arange(count), odd["losing"]), 0.9, 0.1)
        writer.append(codec.encode(Table.LAYERS, rows))
    writer.append(codec.encode(Table.EVENTS, event_columns([(1200, "ended", {})], 10**18)))
    writer.close()


@pytest.fixture(scope="module")
def place(folder):
    """A run of 2,000 layers, and one of few whose names are hard to show."""
    write(folder, "many", MANY)
    write(folder, "hard", HARD, zero=[STILL], broken=[0], silent=[QUIET])
    write(folder, "losing", HARD, losing=[0])
    return folder


@pytest.fixture
def page(kept_page):
    """What is tested is what the page does, not how one comes there."""
    return kept_page


def opened(page, query):
    page.show(f"/layers?{query}")
    page.page.locator(".aw-heatmap[data-rows]").wait_for()
    page.settled()
    return page.page


# What is seen while one scrolls from the first row to the last.
ALL_NAMES = """async () => { const seen = new Set(), map = document.querySelector('.aw-map-scroll');
  for (let top = 0; top < map.scrollHeight; top += map.clientHeight) {
    map.scrollTop = top;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const names = [...document.querySelectorAll('.aw-map-body .aw-map-name')];
    names.forEach((one) => seen.add(one.dataset.name)); }
  return [...seen]; }"""


def count(page):
    return int(page.locator(".aw-heatmap").get_attribute("data-rows"))


def names(page):
    return page.locator(".aw-map-body .aw-map-name").evaluate_all(
        "all => all.map(x => x.dataset.name)"
    )


def heard(page):
    return page.locator(".aw-heatmap .aw-spoken").text_content()


def map_of(page):
    return page.locator(".aw-map-scroll")


def says_in_address(page, **parts):
    """Wait until the address says this, None where it says nothing of it."""
    for name, text in parts.items():
        page.wait_for_function(
            "([name, text]) => new URLSearchParams(location.search).get(name) === text",
            arg=[name, text],
        )


def pressed(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def test_thousands_of_layers_begin_folded_and_none_is_left_out(page, server):
    at = opened(page, "run=many")
    assert 10 <= count(at) <= 40
    at.get_by_text("2,000 layers, in").wait_for()
    at.get_by_role("button", name="Unfold all").click()
    at.wait_for_function("() => document.querySelector('.aw-heatmap').dataset.rows > 2000")
    shown = set(at.evaluate(ALL_NAMES))
    assert set(MANY) <= shown
    says_in_address(at, map="a")


def test_a_fold_shows_the_worst_of_what_is_inside_and_a_press_on_it_opens_that_layer(page, server):
    at = opened(page, "run=many&map=n")
    assert names(at) == ["embed", "model.blocks", "head"]
    map_of(at).focus()
    pressed(at, "ArrowDown", "Home")
    worst = norms_of(2000, 0)[1:-1]
    assert heard(at) == (
        f"model.blocks, folded, 1,998 layers, worst in {MANY[1 + int(worst.argmax())]}, step 0, "
        f"gradient norm {worst.max():.4g}"
    )
    pressed(at, "Enter")
    says_in_address(at, layer=MANY[1 + int(worst.argmax())], step="0")
    at.get_by_role("heading", name=MANY[1 + int(worst.argmax())]).wait_for()


def test_keys_fold_move_and_say_each_cell_as_the_log_has_it(page, server):
    at = opened(page, "run=hard")
    map_of(at).focus()
    pressed(at, "Home", "ArrowRight", "ArrowRight")
    value = norms_of(len(HARD), 40)
    assert heard(at) == f"head, step 40, gradient norm {value[0]:.4g}"
    pressed(at, *["ArrowDown"] * 10)
    assert heard(at) == "quiet, step 40, gradient norm no sample"
    pressed(at, "ArrowUp")
    assert heard(at) == "still, step 40, gradient norm 0"
    pressed(at, *["ArrowUp"] * 10, *["ArrowRight"] * 28)
    assert heard(at) == "head, step 600, gradient norm not finite"
    at = opened(page, "run=many&map=n")
    map_of(at).focus()
    pressed(at, "ArrowDown", " ")
    assert heard(at).startswith("model.blocks, unfolded")
    says_in_address(at, map="n~o-model.blocks")
    rows = count(at)
    at.reload()
    at.locator(".aw-heatmap[data-rows]").wait_for()
    assert count(at) == rows
    map_of(at).focus()
    pressed(at, "ArrowDown", " ")
    says_in_address(at, map="n")


def test_the_map_keeps_its_place_and_the_keys_while_a_layer_opens_and_closes(page, server):
    at = opened(page, "run=many&map=a")
    map_of(at).focus()
    pressed(at, *["PageDown"] * 6)
    top = map_of(at).evaluate("one => { one.isSame = true; return one.scrollTop; }")
    assert top > 0
    wide = map_of(at).bounding_box()["width"]
    pressed(at, "Enter")
    at.locator("p.aw-title").wait_for()
    page.settled()
    state = "one => [one.isSame, one.scrollTop, document.activeElement === one]"
    assert map_of(at).evaluate(state) == [True, top, True]
    assert map_of(at).bounding_box()["width"] < 0.8 * wide
    at.get_by_role("button", name="Close").click()
    at.locator("p.aw-title").wait_for(state="detached")
    page.settled()
    assert map_of(at).evaluate(state)[:2] == [True, top]
    assert map_of(at).bounding_box()["width"] == wide


def test_a_layer_is_found_by_name_as_one_types_and_enter_opens_it(page, server):
    at = opened(page, "run=many")
    field = at.get_by_role("searchbox", name="Find a layer")
    field.fill("blocks.24")
    at.get_by_text(f"{11 * 8 - 2} layers of 2,000 found").wait_for()
    field.fill("BLOCKS.17.mlp")
    at.get_by_text("2 layers of 2,000 found").wait_for()
    assert names(at) == ["model.blocks.17.mlp.up", "model.blocks.17.mlp.down"]
    field.press("Enter")
    says_in_address(at, layer="model.blocks.17.mlp.up", map="f-BLOCKS.17.mlp")
    at.get_by_role("heading", name="model.blocks.17.mlp.up").wait_for()
    at.reload()
    at.get_by_text("2 layers of 2,000 found").wait_for()
    field.fill("")
    at.get_by_text("2,000 layers, in").wait_for()
    assert at.locator(".aw-map-pins .aw-map-name").get_attribute("title") == MANY[1 + 17 * 8 + 6]


def test_a_layer_that_lacks_the_quantity_is_counted_and_found_all_the_same(page, server):
    at = opened(page, "run=hard")
    at.get_by_text("6 of 7 layers have a value").wait_for()
    field = at.get_by_role("searchbox", name="Find a layer")
    field.fill("qui")
    at.get_by_text("1 layer of 7 found").wait_for()
    field.press("Enter")
    says_in_address(at, layer="quiet")
    at.get_by_role("heading", name="quiet").wait_for()
    at.get_by_role("button", name="Table", exact=True).click()
    at.get_by_role("cell", name="no value").wait_for()


def test_a_part_of_the_model_says_what_it_holds_and_an_unknown_name_is_named(page, server):
    at = opened(page, "run=many&layer=model.blocks.3")
    at.get_by_text("a part of the model that holds 8 layers").wait_for()
    at = opened(page, "run=many&layer=model.blocks.%3Ci%3E")
    at.get_by_text("This run has no layer named model.blocks.<i>.").wait_for()


def test_back_takes_back_a_fold_and_a_choice(page, server):
    at = opened(page, "run=many&map=n")
    map_of(at).focus()
    pressed(at, "ArrowDown", " ")
    says_in_address(at, map="n~o-model.blocks")
    pressed(at, "ArrowUp", "ArrowUp", "Enter")
    says_in_address(at, layer="embed")
    at.go_back()
    says_in_address(at, layer=None, map="n~o-model.blocks")
    at.wait_for_function("() => !document.querySelector('.aw-map-name.chosen')")
    at.go_back()
    says_in_address(at, map="n")
    at.wait_for_function("() => document.querySelector('.aw-heatmap').dataset.rows === '3'")


def test_worst_first_puts_the_worst_on_top_at_every_depth(page, server):
    at = opened(page, "run=many&map=f-blocks")
    at.get_by_label("Order of the layers").select_option("worst first")
    says_in_address(at, map="w~f-blocks")
    highest = np.max([norms_of(2000, step) for step in STEPS], axis=0)
    wanted = [
        MANY[place] for place in np.argsort(-highest, kind="stable") if "blocks" in MANY[place]
    ]
    shown = names(at)
    assert len(shown) > 10
    assert shown == wanted[: len(shown)]


def test_axis_and_chosen_layer_stay_in_sight_while_the_others_scroll(page, server):
    at = opened(page, f"run=many&map=a&layer={MANY[1500]}")
    map_of(at).evaluate("one => { one.scrollTop = 20000; }")
    at.wait_for_function(
        "title => !document.querySelector(`.aw-map-body [title='${title}']`)", arg=MANY[0]
    )
    pin = at.locator(".aw-map-pins .aw-map-name")
    assert pin.get_attribute("title") == MANY[1500]
    for part in (pin, at.locator(".aw-map-axis span").first):
        box = part.bounding_box()
        assert 0 < box["y"] < 1000


def test_a_layers_details_stand_at_the_right_of_the_map_and_can_be_closed(page, server):
    at = opened(page, f"run=many&layer={MANY[9]}")
    page.drawn()
    cells = at.locator(".aw-map-body canvas").bounding_box()
    title = at.locator("p.aw-title").bounding_box()
    assert title["x"] > cells["x"] + cells["width"]
    assert title["y"] < 250
    assert page.axis() == [-1, 1181]
    at.get_by_role("button", name="Close").click()
    says_in_address(at, layer=None)
    at.locator("p.aw-title").wait_for(state="detached")


PIXELS = """row => { const canvas = document.querySelector('.aw-map-body canvas');
  const scale = canvas.width / canvas.clientWidth;
  const [top, height] = [Math.round(row * 22 * scale), Math.round(20 * scale)];
  const { data } = canvas.getContext('2d').getImageData(0, top, canvas.width, height);
  let [filled, red, grey, black] = [0, 0, 0, 0];
  for (let at = 0; at < data.length; at += 4) {
    const [r, g, b, a] = data.slice(at, at + 4);
    filled += a > 100;
    red += a > 100 && r > b + 20;
    black += a > 200 && Math.max(r, g, b) < 45;
    grey += a > 200 && b >= r && Math.max(r, g, b) > 60; }
  return [filled, red, grey, black].map((count) => count / (data.length / 4)); }"""


def test_shades_are_neutral_zero_is_hatched_what_is_not_finite_is_black(page, server):
    at = opened(page, "run=hard")
    rows = names(at)
    filled, red, *_ = at.evaluate(PIXELS, rows.index("still"))
    assert 0.1 < filled < 0.7
    assert red < 0.01
    assert at.evaluate(PIXELS, rows.index("l" * 300))[1:3] == pytest.approx([0, 1], abs=0.05)
    black = at.evaluate(PIXELS, rows.index("head"))[3]
    assert black == pytest.approx(1 / len(STEPS), rel=0.3)  # one sample, all of its height
    title = at.locator(".aw-heatmap .aw-chart-title")
    assert "pale" not in title.inner_text()
    for words in ("zero", "not finite"):
        assert title.get_by_text(words).first.is_visible()


def test_only_what_is_over_a_limit_is_red(page, server):
    at = opened(page, "run=losing")
    rows = names(at)
    over, under = (at.evaluate(PIXELS, rows.index(name)) for name in ("head", "quiet"))
    assert over[1] == pytest.approx(1, abs=0.02)
    assert under[1] < 0.01
    at.locator(".aw-heatmap .aw-chart-title").get_by_text("over 0.67").wait_for()


def test_the_quantity_and_the_table_are_in_the_address_and_hold_the_logs_numbers(page, server):
    at = opened(page, "run=hard")
    at.get_by_test_id("stButtonGroup").get_by_text("activations").click()
    says_in_address(at, quantity="act_amax")
    at.get_by_role("button", name="Table", exact=True).click()
    says_in_address(at, map="t")
    at.reload()
    at.get_by_role("columnheader", name="steps 0 to").wait_for()
    row = at.get_by_role("row").filter(has=at.get_by_role("rowheader", name="l" * 20))
    highest = max(2 * norms_of(len(HARD), step)[4] for step in STEPS)
    told = [float(text) for text in row.get_by_role("cell").all_inner_texts()]
    assert max(told) == pytest.approx(highest, rel=1e-3)
    assert (
        page.page.get_by_role("row").filter(has_text="still").get_by_role("cell").first.inner_text()
        == "0"
    )
    at.locator(".aw-map-table").get_by_role("button", name="head").press("Enter")
    says_in_address(at, layer="head")
    assert parse_qs(urlsplit(at.url).query)["quantity"] == ["act_amax"]


def test_a_table_of_thousands_is_folded_by_buttons_and_goes_on_when_asked(page, server):
    at = opened(page, "run=many&map=t~a")
    assert at.locator(".aw-map-table tbody tr").count() == 100
    at.get_by_role("button", name="show 100 more").click()
    assert at.locator(".aw-map-table tbody tr").count() == 200
    fold = at.get_by_role("button", name=re.compile("^model.blocks, 1,998 layers"))
    assert fold.get_attribute("aria-expanded") == "true"
    fold.press("Enter")
    at.wait_for_function("() => document.querySelector('.aw-heatmap').dataset.rows === '3'")
    assert fold.get_attribute("aria-expanded") == "false"
    assert at.evaluate("() => document.activeElement.getAttribute('aria-expanded')") == "false"


def test_map_and_table_hold_nothing_that_some_readers_cannot_use(page, server):
    for query in ("run=hard&layer=head", "run=hard&map=t"):
        opened(page, query)
        assert page.faults() == [], query


def test_on_a_phone_the_legend_is_whole_and_a_tap_opens_a_layer(one, server):
    context = one.new_context(viewport={"width": 420, "height": 900}, has_touch=True)
    with context:
        at = context.new_page()
        at.goto(f"{server.url}/layers?run=hard")
        at.locator(".aw-heatmap[data-rows]").wait_for()
        for words in ("zero", "not finite"):
            box = at.locator(".aw-heatmap .aw-chart-title").get_by_text(words).first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 420
        assert at.evaluate("() => document.querySelector('.stMain').scrollWidth - innerWidth") <= 0
        box = at.locator(".aw-map-body canvas").bounding_box()
        at.touchscreen.tap(box["x"] + 20, box["y"] + 10)
        says_in_address(at, layer="head")


def test_a_name_is_data_however_long_and_whatever_it_holds(page, server):
    at = opened(page, "run=hard")
    assert at.locator(".aw-map-name[title='" + "l" * 300 + "']").inner_text().count("…") == 1
    at.locator(".aw-map-name").filter(has_text="<b>x</b>").click()
    at.get_by_role("heading", name="<b>x</b>.<img src=y onerror=alert(1)>").wait_for()
    assert at.locator(".aw-heatmap img, .aw-title img").count() == 0


@needs_firefox
def test_the_map_is_drawn_folds_and_opens_a_layer_in_firefox(server, tmp_path):
    rows = "Number(document.querySelector('.aw-heatmap')?.dataset.rows)"
    with firefox(tmp_path) as page:
        page.open(f"{server.url}/layers?run=many&map=n")
        page.is_so(f"{rows} === 3")
        assert page.value(f"({PIXELS})(0)[2]") > 0.9
        page.click("document.querySelector('.aw-map-body .aw-map-fold[aria-expanded]')")
        page.is_so(f"{rows} > 3 && location.search.includes('o-model.blocks')")
        page.click("document.querySelector('.aw-map-body .aw-map-name')")
        page.is_so("new URLSearchParams(location.search).get('layer') === 'embed'")
        page.is_so("document.querySelector('.aw-title')?.innerText === 'embed'")
