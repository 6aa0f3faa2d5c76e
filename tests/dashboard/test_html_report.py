"""The HTML report in a real browser without a network: it draws, and shows what the log holds."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from page_driver import needs_browser, tab
from test_report_terminal import report_of
from written_runs import event_columns, step_columns, write_run

from ampwatch import cli, codec, diagnose, open_run, store
from ampwatch.diagnosis.scale_history import EstablishedScale
from ampwatch.report import html_report
from ampwatch.report.overview_chart import SCALE, TIME, curves_of
from ampwatch.rows import Table

ATTACK = """</script><script>alert(1)</script><img src=x onerror=alert(2)> "'&@scale@"""


def html_of(path, out, capsys) -> str:
    assert cli.run(["report", str(path), "-o", str(out)]) == 0
    capsys.readouterr()
    return out.read_text("utf-8")


def words(text: str) -> list[str]:
    return text.split()


@pytest.fixture
def offline(one):
    """A page whose every request but the file itself is a failure."""
    with tab(one) as opened:
        asked = []
        opened.page.on("request", lambda request: asked.append(request.url))
        yield opened
        assert opened.troubles == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def draw(opened, path):
    opened.open(path.as_uri())
    opened.drawn()


def points(line):
    """Each point of a line; breaks are left out."""
    return [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None]


@needs_browser
def test_it_draws_the_numbers_of_the_log(tmp_path, capsys, offline):
    path, out = write_run(tmp_path, skipped=30), tmp_path / "out.html"
    html_of(path, out, capsys)
    draw(offline, out)
    drawn = dict(zip(("loss scale", "loss", "gradient norm", "lr"), offline.lines(), strict=True))
    rows = open_run(path).steps
    at = {step: row for row, step in enumerate(rows["step"].to_pylist())}
    for name, column in (("loss", "loss"), ("gradient norm", "grad_norm"), ("lr", "lr")):
        values = rows[column].to_pylist()
        line = points(drawn[name])
        assert len(line) == sum(math.isfinite(v) for v in values)
        assert all(y == pytest.approx(values[at[x]], rel=1e-6) for x, y in line)
    scale = rows["scale"].to_pylist()
    for x, y in points(drawn["loss scale"]):
        assert y == math.log2(scale[at[x]])
    assert set(offline.ticks()) == set(range(100, 130))


@pytest.mark.slow_browser
@needs_browser
def test_it_is_read_and_zoomed_by_mouse(tmp_path, capsys, offline):
    out = tmp_path / "out.html"
    html_of(write_run(tmp_path, skipped=30), out, capsys)
    draw(offline, out)
    box = offline.page.locator(".aw-plot").bounding_box()
    middle, left, right = (box["x"] + share * box["width"] for share in (0.5, 0.3, 0.7))
    y = box["y"] + 60
    offline.page.mouse.move(middle, y)
    label = offline.page.locator(".aw-label").inner_text()
    assert re.match(r"step \d+\nloss scale\n2¹⁶\n", label)
    offline.page.mouse.move(left, y)
    offline.page.mouse.down()
    offline.page.mouse.move(right, y, steps=5)
    offline.page.mouse.up()
    first, last = offline.axis()
    assert 20 < first < last < 100
    offline.page.mouse.click(middle, y, click_count=2)
    assert offline.axis() == [0, 129]


@pytest.mark.slow_browser
@needs_browser
def test_its_chart_is_seen_otherwise_and_saved_without_a_network(tmp_path, capsys, offline):
    out = tmp_path / "out.html"
    html_of(write_run(tmp_path, skipped=30), out, capsys)
    draw(offline, out)
    page = offline.page
    page.get_by_label("x axis").select_option(label="time")
    assert page.evaluate("() => document.querySelector('.aw-plot').drawn.range[1]") < 1  # seconds
    page.locator(".aw-menu summary", has_text="Share").click()
    for kind, begin in (("CSV", b"line,step,time,value"), ("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        assert download.value.path().read_bytes().startswith(begin)
        assert download.value.suggested_filename.endswith(f"-chart.{kind.lower()}")


@needs_browser
def test_the_text_is_the_terminals_word_for_word(tmp_path, capsys, offline):
    path, out = write_run(tmp_path, skipped=30), tmp_path / "out.html"
    html_of(path, out, capsys)
    draw(offline, out)
    parts = [offline.page.locator(part).inner_text() for part in (".verdict", ".more")]
    plain = report_of(path, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", plain)
    told = [word for part in parts for word in words(part)]
    assert sorted(told) == sorted(words(plain))
    found = offline.page.locator(".verdict, .aw-plot, .more").all()[:3]
    places = [one.evaluate("one => one.classList[0]") for one in found]
    assert places == ["verdict", "aw-plot", "more"]


@pytest.mark.slow_browser
@needs_browser
def test_a_runs_name_is_text_and_nothing_else(tmp_path, capsys, offline):
    path = write_run(tmp_path, skipped=30)
    config = {ATTACK: ATTACK}
    info = store.RunInfo(
        id="ab" * 16, name=ATTACK, command=(ATTACK,), config=config, notes=(ATTACK,)
    )
    store.describe_run(path, info)
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.LAYER_INFO, {"step": [0], "layer": [0], "name": [ATTACK]}))
    layer = {"step": [0], "layer": [0], "scale_low": [1.0], "scale_high": [64.0]}
    writer.append(codec.encode(Table.LAYERS, layer))
    writer.append(codec.encode(Table.EVENTS, event_columns([(0, "optimizer", config)], 0)))
    writer.close()
    text = html_of(path, tmp_path / "out.html", capsys)
    assert "<img" not in text
    assert text.count("<script") == 3  # two messages, and what draws them
    draw(offline, tmp_path / "out.html")
    assert ATTACK in offline.page.locator(".more").inner_text()
    assert offline.page.locator(".aw-window").get_attribute("title").startswith(ATTACK)
    assert offline.page.locator("[data-layer]").get_attribute("data-layer") == ATTACK
    assert offline.page.locator("img").count() == 0


@pytest.mark.slow_browser
@needs_browser
def test_dark_and_paper_have_colours_of_their_own(tmp_path, capsys, one):
    out = tmp_path / "out.html"
    html_of(write_run(tmp_path, skipped=30), out, capsys)
    colour = "() => getComputedStyle(document.querySelector('.aw-plot g path')).stroke"
    back = "() => getComputedStyle(document.body).backgroundColor"
    with tab(one, "dark") as dark:
        draw(dark, out)
        assert dark.page.evaluate(colour) == "rgb(127, 166, 255)"
        assert dark.page.evaluate(back) == "rgb(20, 23, 27)"
        dark.page.emulate_media(media="print")
        dark.page.wait_for_function(f"() => ({colour})() === 'rgb(36, 86, 200)'")
        assert dark.page.evaluate(back) == "rgb(253, 253, 251)"
        assert dark.page.pdf(format="A4").startswith(b"%PDF")
        assert dark.troubles == []


@pytest.mark.slow_browser
@needs_browser
def test_a_comparison_draws_each_run_over_the_others_and_says_what_the_terminal_does(
    tmp_path, capsys, offline
):
    runs = [str(write_run(tmp_path, name, skipped=n)) for name, n in ((ATTACK[:9], 3), ("b", 30))]
    out = tmp_path / "out.html"
    assert cli.run(["compare", *runs, "-o", str(out)]) == 0
    assert cli.run(["compare", *runs]) == 0
    printed = capsys.readouterr().out.split("kB\n", 1)[1]
    draw(offline, out)
    panels = "() => document.querySelector('.aw-plot').drawn.panels"
    drawn = offline.page.evaluate(f"{panels}.flatMap(({{lines}}) => lines.map((one) => one.label))")
    assert drawn == ["A", "B"] * 4  # loss, scale, norm, rate
    said = offline.page.locator("main > section").inner_text()
    said, printed = re.sub("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", "", said), re.sub(r"\^-?\d+", "", printed)
    assert sorted(words(said)) == sorted(words(printed))  # the terminal folds columns


@pytest.mark.slow_browser
@needs_browser
def test_on_a_telephone_no_title_is_cut_and_no_word_broken(tmp_path, capsys, one):
    out = tmp_path / "out.html"
    html_of(write_run(tmp_path, skipped=30), out, capsys)
    with tab(one) as opened:
        opened.page.set_viewport_size({"width": 390, "height": 844})
        draw(opened, out)
        ends = "() => [...document.querySelectorAll('.aw-plot .title')].map("
        ends += "(title) => title.getBoundingClientRect().right)"
        assert max(opened.page.evaluate(ends)) <= 390
        heights = "() => [...document.querySelectorAll('.finding th')].map((th) => "
        heights += "[th.textContent, th.getClientRects()[0].width])"
        assert all(width > 5 * len(word) for word, width in opened.page.evaluate(heights))


def test_a_million_steps_are_half_a_megabyte_and_no_skip_is_lost(tmp_path):
    random = np.random.default_rng(3)
    columns = step_columns(1_000_000, 0, 0)
    skipped = random.random(1_000_000) < 0.01
    columns |= {
        "skipped": skipped, "loss": random.random(1_000_000), "grad_norm": random.random(1_000_000),
        "lr": random.random(1_000_000), "scale": 2.0 ** random.integers(0, 16, 1_000_000),
    }  # fmt: skip
    path = store.create_run(tmp_path, store.RunInfo(id="cd" * 16, name="long"))
    writer = store.RankWriter(path, 0)
    for part in range(0, 1_000_000, 250_000):
        some = {name: values[part : part + 250_000] for name, values in columns.items()}
        writer.append(codec.encode(Table.STEPS, some))
    writer.close()
    curves = curves_of(open_run(path))
    assert curves is not None
    assert int(curves.skips.count.sum()) == curves.skipped == int(skipped.sum())
    assert all(len(line.x) <= 2000 for line in curves.lines.values())
    assert set(curves.lines) == {SCALE, TIME, "loss", "grad_norm", "lr"}
    short = diagnose(open_run(write_run(tmp_path)))  # judging a million steps is another's test
    assert len(html_report(open_run(path), short, EstablishedScale(2.0**15, 0)).encode()) < 500_000


def test_no_steps_make_a_report_without_charts(tmp_path, capsys):
    text = html_of(write_run(tmp_path, accepted=0), tmp_path / "out.html", capsys)
    assert "INCOMPLETE" in text
    assert 'class="message"' not in text


def test_a_scale_that_ran_away_is_still_a_report(tmp_path, capsys):
    path = write_run(tmp_path, accepted=0)
    writer = store.RankWriter(path, 0)
    columns = step_columns(200, 0, 0)
    scale = np.where(np.arange(200) > 150, np.inf, 2.0 ** np.minimum(np.arange(200) * 6, 1000))
    columns |= {"scale": scale, "scale_after": scale}
    writer.append(codec.encode(Table.STEPS, columns))
    writer.append(codec.encode(Table.LAYER_INFO, {"step": [0], "layer": [0], "name": ["fc"]}))
    bounds = {"scale_low": [math.inf], "scale_high": [64.0]}
    writer.append(codec.encode(Table.LAYERS, {"step": [0], "layer": [0], **bounds}))
    writer.close()
    text = html_of(path, tmp_path / "out.html", capsys)
    assert '<td class="number">none</td>' in text


@pytest.mark.parametrize(
    ("place", "words"),
    [("folder", "the name says what to write"), ("absent/out.html", "pass a file")],
)
def test_a_place_that_is_no_file_is_refused_before_any_work(tmp_path, capsys, place, words):
    (tmp_path / "folder").mkdir()
    out = tmp_path / place
    assert cli.run(["report", str(write_run(tmp_path)), "-o", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.glob("**/.*new")) == []


def test_a_large_configuration_leaves_the_file_small(tmp_path, capsys):
    config = {f"{'x' * 400}{n}": "y" * 1000 for n in range(5000)}
    text = html_of(write_run(tmp_path, config=config), tmp_path / "out.html", capsys)
    assert len(text) < 2_000_000
    assert "more settings" in text


def test_without_what_thins_lines_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ampwatch.report.html_file.find_spec", lambda name: None)
    out = tmp_path / "out.html"
    assert cli.run(["report", str(write_run(tmp_path)), "--html", str(out)]) == 2
    assert "pip install -e '.[dashboard]'" in capsys.readouterr().err
    assert list(tmp_path.glob("*out.html*")) == []


def test_several_runs_are_sent_to_compare(tmp_path, capsys):
    path = str(write_run(tmp_path))
    assert cli.run(["report", path, path, "-o", str(tmp_path / "x.html")]) == 2
    assert "ampwatch compare" in capsys.readouterr().err
