"""Runs over one another, in a real browser: where they part, and what came of them."""

from __future__ import annotations

import re
import shutil
import time

import numpy as np
import pytest
from page_driver import needs_browser, tab, training
from written_runs import event_columns, fresh_id, step_columns, write_run

from ampwatch import codec, store
from ampwatch.importers import import_log
from ampwatch.rows import Table

pytestmark = [pytest.mark.slow_browser, needs_browser]

RATES = (0.01, 0.02, 0.04, 0.08)  # as 0.08 all skip their steps
STEPS = 200
PARTED_AT = 40
LONG = "x" * 150 + "<img src=x onerror=document.title='taken'>"
SWEPT = [f"rate-{rate}-{seed}" for rate in RATES for seed in (0, 1)]


def write(folder, name, rate=0.02, seed=0, parts_at=None, without=()):
    """A run with a loss of its own; where it parts, its batch is ten times as large."""
    began = time.time_ns() - 3_600_000_000_000
    config = {"depth": 2 + 2 * seed}
    info = store.RunInfo(id=fresh_id(name), name=name, config=config, started_ns=began)
    path = store.create_run(folder, info)
    half, random = STEPS // 2, np.random.default_rng(seed)
    columns = step_columns(STEPS, 0, began)
    columns["lr"] = np.full(STEPS, rate)
    columns["loss"] = columns["loss"] / (1 + 20 * rate) + 0.01 * random.random(STEPS)
    columns |= {"update_norm": 10 * columns["lr"], "param_norm": np.full(STEPS, 10.0)}
    if rate == RATES[-1]:  # from half of the run on it diverges
        columns = step_columns(half + 50, half - 50, began) | {
            name: columns[name] for name in ("lr", "loss", "update_norm", "param_norm")
        }
        growth = np.exp(np.arange(half) / 15)
        columns["loss"][half:] += growth
        columns["loss"][half + 50 :] = np.nan
        columns["grad_norm"][half:] *= growth
    columns["input_amax"] = np.full(STEPS, 3.0)
    if parts_at is not None:
        columns["input_amax"][parts_at:] *= 10
    for column in without:
        del columns[column]
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    detail = {"optimizer": 0, "class": "SGD", "groups": [{"lr": rate}]}
    events = [(0, "started", {}), (0, "optimizer", detail), (STEPS, "ended", {})]
    writer.append(codec.encode(Table.EVENTS, event_columns(events, began)))
    values = {"step": [10, 20], "name": ["val/acc"] * 2, "value": [0.5 + seed / 10, 0.4]}
    writer.append(codec.encode(Table.EXTRAS, values))
    writer.close()
    return path


@pytest.fixture(scope="module")
def place(folder):
    for name in SWEPT:
        _, rate, seed = name.split("-")
        write(folder, name, float(rate), int(seed))
    write(folder, "twin-a")
    write(folder, "twin-b")
    write(folder, "other", parts_at=PARTED_AT)
    write(folder, "silent", without=("loss",))
    write(folder, LONG)
    return folder


@pytest.fixture
def page(kept_page):
    """What is tested is what the page does, not how one comes there."""
    return kept_page


def compared(page, names, more=""):
    page.show(address_of(names) + more)
    page.drawn()
    page.settled()


def address_of(names):
    return f"/compare?runs={','.join(names)}"


@pytest.fixture(scope="module")
def sweep(one, server):
    """The page of the sweep, for those who look and leave it as it is."""
    with tab(one) as page:
        page.open(server.url + address_of(SWEPT))
        page.drawn()
        yield page
        assert page.troubles == []


def rows(page):
    return page.page.locator(".st-key-compare-table tbody tr").all()


def shown_rows(page, count):
    """Wait until the table has so many rows."""
    found = ".st-key-compare-table tbody tr"
    page.page.wait_for_function(f"() => document.querySelectorAll('{found}').length === {count}")


def first_cells(page):
    return [row.locator("td").first.inner_text().strip() for row in rows(page)]


def test_two_runs_say_at_once_at_which_step_and_by_what_they_part(page, server):
    compared(page, ["twin-a", "other"])
    said = page.page.locator(".aw-partings").inner_text()
    assert said.startswith(
        f"They diverge at step {PARTED_AT}, in the batch (largest input 3 against 30)"
    )
    assert f"The {PARTED_AT} common steps before are identical to the bit." in said


def test_two_runs_that_never_part_are_said_to_be_identical(page, server):
    compared(page, ["twin-a", "twin-b"])
    said = page.page.locator(".aw-partings").inner_text()
    assert said.startswith(f"Identical to the bit over {STEPS} steps")
    assert page.page.locator(".st-key-compare-sweep").count() == 0


def test_the_baseline_is_chosen_kept_and_what_the_differences_are_to(page, server):
    compared(page, SWEPT[:3])
    page.page.get_by_role("button", name=f"compare with this run: {SWEPT[2]}").click()
    page.page.wait_for_url(re.compile(rf"base={SWEPT[2]}"))
    page.page.locator(".aw-order", has_text=f"differences are to {SWEPT[2]}").wait_for()
    page.page.reload()
    page.page.locator(".aw-order", has_text=f"differences are to {SWEPT[2]}").wait_for()
    own = next(row for row in rows(page) if SWEPT[2] in row.inner_text())
    assert "%" not in own.locator("td").nth(4).inner_text()


def test_a_sweep_says_up_to_where_it_is_stable_and_marks_every_run(sweep):
    page = sweep
    page.says("Stable up to 0.04 (6 runs), failing from 0.08 on (2 runs)")
    page.says("In these runs config.depth differs, too")
    marks = page.page.locator(".aw-sweep-mark")
    page.page.wait_for_function(
        "runs => document.querySelectorAll('.aw-sweep-mark').length === runs", arg=len(SWEPT)
    )
    shapes = [mark.inner_text()[0] for mark in marks.all()]
    assert shapes.count("●") == 6
    assert shapes.count("✕") == 2
    band = page.page.locator(".aw-sweep-band").bounding_box()
    stable, failed = (
        [one.bounding_box() for one, shape in zip(marks.all(), shapes, strict=True) if shape == s]
        for s in "●✕"
    )
    assert max(one["x"] + one["width"] / 2 for one in stable) <= band["x"] + 12
    assert min(one["x"] + one["width"] / 2 for one in failed) >= band["x"] + band["width"] - 12
    assert page.page.locator(".aw-parallel-line").count() == len(SWEPT)


def test_a_mark_is_read_and_opened_by_keys_alone(page, server):
    compared(page, SWEPT)
    mark = page.page.locator(".aw-sweep-mark").first
    mark.focus()
    tip = mark.locator(".aw-tip")
    tip.wait_for()
    words = r"rate-0\.01-\d: learning rate 0\.01, loss at the end [\d.]+, stable"
    assert re.match(words, tip.inner_text())
    page.page.keyboard.press("Enter")
    page.page.wait_for_url(re.compile(r"run=rate-0\.01"))


def test_the_sweep_goes_over_another_setting_and_outcome_that_the_address_keeps(page, server):
    compared(page, SWEPT, "&by=config.depth&outcome=val/acc, best")
    page.page.locator(".aw-sweep figcaption", has_text="Val/acc, best by config.depth").wait_for()
    tip = page.page.locator(".aw-sweep-mark").last.get_attribute("aria-label")
    assert "config.depth 4, val/acc, best 0.6 at step 10" in tip
    compared(page, SWEPT, "&by=nonsense")  # an old link
    page.says("Stable up to 0.04")


LIT = """() => Object.fromEntries(document.querySelector('.aw-plot').drawn.panels.flatMap(
    ({lines}) => lines.map((one) => [one.key, one.isLit ? 'lit' : one.isDim ? 'dim' : 'plain'])))"""


def test_what_stands_for_a_run_is_lit_together_in_table_chart_and_sweep(sweep):
    page = sweep
    row = next(row for row in rows(page) if "rate-0.02-1" in row.inner_text())
    row.hover()
    page.page.wait_for_function(
        "() => document.querySelectorAll('.aw-sweep-mark.aw-lit').length === 1"
    )
    lit = page.page.evaluate(LIT)
    number = SWEPT.index("rate-0.02-1")
    assert {key for key, how in lit.items() if how == "lit"} == {
        key for key in lit if key.startswith(f"{number}.")
    }
    assert set(lit.values()) == {"lit", "dim"}
    label = page.page.locator(".aw-sweep-mark.aw-lit").get_attribute("aria-label")
    assert label.startswith("rate-0.02-1: ")


def test_one_label_hides_a_run_in_all_panels_and_the_address_keeps_it(page, server):
    compared(page, SWEPT[:4])
    labels = page.page.locator(".aw-series-name")
    assert labels.count() == 4  # once for all panels
    labels.nth(1).click()
    page.page.wait_for_url(re.compile("view="))
    page.page.wait_for_function(
        "() => !document.querySelector('.aw-plot').drawn.panels.some("
        "({lines}) => lines.some(({key}) => key.startsWith('1.')))"
    )
    page.page.reload()
    page.drawn()
    keys = page.page.evaluate(LIT)
    assert keys
    assert not any(key.startswith("1.") for key in keys)
    assert page.page.get_by_text(f"1 hidden: {SWEPT[1]}").count() == 1


def test_runs_are_sorted_by_what_came_of_them_and_those_without_a_loss_come_last(page, server):
    compared(page, ["silent", *SWEPT])
    found = first_cells(page)
    assert found[-1] == "silent"
    assert {found[-2], found[-3]} == {"rate-0.08-0", "rate-0.08-1"}
    assert found[:2] == sorted(found[:2], key=lambda name: -float(name.split("-")[1]))
    assert "not logged" in rows(page)[-1].inner_text()


def test_the_table_is_sorted_by_a_click_kept_in_the_address_and_leads_to_a_runs_page(page, server):
    compared(page, SWEPT[:4])
    head = page.page.locator(".st-key-compare-table th", has_text="steps")
    run = page.page.locator(".st-key-compare-table th", has_text="run").first
    run.get_by_role("button").press("Enter")
    page.page.wait_for_url(re.compile("order=run"))
    page.page.locator("th[aria-sort=ascending]", has_text="run").wait_for()
    assert first_cells(page) == sorted(SWEPT[:4])
    run.get_by_role("button").click()
    page.page.locator("th[aria-sort=descending]", has_text="run").wait_for()
    assert first_cells(page) == sorted(SWEPT[:4], reverse=True)
    page.page.reload()
    page.page.locator("th[aria-sort=descending]", has_text="run").wait_for()
    run.get_by_role("button").click()
    page.page.wait_for_url(lambda url: "order=" not in url)
    assert head.count() == 1
    page.page.locator(".st-key-compare-table a", has_text=SWEPT[1]).click()
    page.page.get_by_role("heading", level=1).get_by_text(SWEPT[1]).wait_for()


def test_the_users_own_values_are_chosen_and_the_address_keeps_it(page, server):
    compared(page, SWEPT[:2])
    titles = (
        "() => document.querySelector('.aw-plot').drawn.panels.map(({title}) => title[0][0].words)"
    )
    assert "val/acc" in page.page.evaluate(titles)
    chosen = page.page.locator(".st-key-compared-values")
    chosen.get_by_role("button", name="Remove val/acc").click()
    page.page.wait_for_url(re.compile("values=-"))
    page.page.wait_for_function(f"() => !({titles})().includes('val/acc')")
    page.page.reload()
    page.drawn()
    assert "val/acc" not in page.page.evaluate(titles)


ODD = """() => document.querySelector('.aw-plot').drawn.panels[0].lines.map(
    ({odd}) => odd.map(({first, last}) => [first, last]))"""


def test_lines_are_the_logs_where_a_loss_is_not_finite_is_marked_and_links_have_the_pages_ink(
    page, server, place
):
    shown = SWEPT[0], SWEPT[-1]
    compared(page, shown)
    for name, line in zip(shown, page.lines(), strict=False):
        log = store.open_run(place / name).steps.column("loss").to_numpy()
        known = {int(x): y for x, y in zip(line["x"], line["y"], strict=True) if y is not None}
        finite = np.flatnonzero(np.isfinite(log))
        assert known == {n: pytest.approx(log[n], rel=1e-6) for n in finite}
    assert page.page.evaluate(ODD) == [[], [[STEPS // 2 + 50, STEPS - 1]]]
    link = page.page.locator(".st-key-compare-table td a").first
    own, page_own = (
        one.evaluate("one => getComputedStyle(one).color")
        for one in (link, page.page.locator(".stApp"))
    )
    assert own == page_own


def test_a_sweep_holds_nothing_that_some_readers_cannot_use(sweep):
    page = sweep
    page.settled()
    for fold in page.page.locator(".stMain summary:visible").all():
        fold.click()
    assert page.faults() == []


def test_a_foreign_log_of_few_columns_is_compared_in_what_it_tells(page, server, place, tmp_path):
    log = tmp_path / "foreign.csv"
    log.write_text("step,loss\n" + "".join(f"{n},{4 - n / 50}\n" for n in range(120)))
    name = import_log(log, place).name
    compared(page, [name, "twin-a"])
    said = page.page.locator(".aw-partings").inner_text()
    assert said.startswith("They diverge at step 0, in the loss (4 against ")
    assert "120 steps in common, the last 119." in said
    assert "Scale: not recorded by both." in said
    row = next(row for row in rows(page) if name in row.inner_text())
    assert "not logged" in row.inner_text()


def test_names_are_data_and_a_phone_is_wide_enough(one, server, place):
    (long,) = [path.name for path in place.iterdir() if path.name.startswith("xxx")]
    with tab(one, size=(420, 900)) as page:
        page.open(server.url + address_of([long, *SWEPT, "y" * 300]))
        page.drawn()
        assert len(rows(page)) == 1 + len(SWEPT)
        page.says("No longer there: yyy")
        assert page.page.evaluate("() => document.querySelector('.stMain').scrollWidth") <= 420
        assert page.page.title() != "taken"
        assert page.page.locator("img[src=x]").count() == 0
        assert page.troubles == []


def test_a_run_that_is_deleted_while_it_is_shown_is_named_and_the_others_stay(page, server, place):
    write(place, "short-lived")
    try:
        compared(page, ["twin-a", "twin-b", "short-lived"], "&run=twin-a")
        shown_rows(page, 3)
        shutil.rmtree(place / "short-lived")
        page.says("No longer there: short-lived.")
        shown_rows(page, 2)
        assert first_cells(page) == ["twin-a", "twin-b"]
    finally:
        shutil.rmtree(place / "short-lived", ignore_errors=True)


def test_fifty_runs_are_read_drawn_and_each_is_in_the_table(page, server, place):
    names = [f"many-{n}" for n in range(50)]
    for n, name in enumerate(names):
        write_run(place, name, accepted=60, config={"width": n}, age_s=9000 + n)
    try:
        compared(page, names)
        page.page.locator(".aw-partings", has_text="49 runs: identical to the bit").wait_for()
        assert sorted(first_cells(page)) == sorted(names)
        assert len({key for key in page.page.evaluate(LIT) if key.endswith(".loss")}) == 50
    finally:
        for name in names:
            shutil.rmtree(place / name)


def test_old_runs_that_are_listed_late_are_compared_without_a_reload(page, server, place):
    names = ["listed-late-a", "listed-late-b"]
    page.show(address_of(names))
    page.says("No longer there: listed-late-a, listed-late-b.")
    for name in names:
        write_run(place, name, accepted=60, age_s=9000)
    page.drawn()
    page.page.locator(".aw-partings", has_text="identical to the bit").wait_for()
    for name in names:
        shutil.rmtree(place / name)


def test_a_live_run_is_followed_beside_one_that_has_ended(one, server, place):
    with training(place, "goes-on", 100_000, 0.02), tab(one) as page:
        deadline = time.monotonic() + 30
        while not (place / "goes-on" / "rank-0").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        page.open(server.url + address_of(["goes-on", "twin-a"]))
        page.drawn()
        page.page.locator(".st-key-compare-table .aw-live").wait_for()
        page.refreshes(1)
    shutil.rmtree(place / "goes-on")
