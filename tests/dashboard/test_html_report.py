"""The HTML report in a real browser without a network: it draws, and shows what the log holds."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from page_driver import needs_browser, tab
from test_report import letter_of
from written_runs import event_columns, step_columns, write_run

from ampwatch import cli, codec, diagnose, open_run, store
from ampwatch.report import html_report
from ampwatch.report.page.curves import SCALE, curves_of
from ampwatch.rows import Table

ATTACK = """</script><script>alert(1)</script><img src=x onerror=alert(2)> "'&@scale@"""


def html_of(path, out, capsys) -> str:
    assert cli.run(["report", str(path), "--html", str(out)]) == 0
    capsys.readouterr()
    return out.read_text("utf-8")


def own_part(text: str) -> str:
    """The file without plotly's script, which names many addresses."""
    scripts = [s for s in re.findall(r"<script>.*?</script>", text, re.DOTALL) if len(s) > 1e6]
    assert len(scripts) == 1
    return text.replace(scripts[0], "")


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
    opened.page.locator("#charts[data-drawn]").wait_for()


def points(trace):
    """Each point of a line; breaks are left out."""
    return [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if y is not None]


@needs_browser
def test_it_draws_the_numbers_of_the_log(tmp_path, capsys, offline):
    path, out = write_run(tmp_path, skipped=30), tmp_path / "out.html"
    html_of(path, out, capsys)
    draw(offline, out)
    traces = offline.page.evaluate(
        "() => Object.fromEntries(document.getElementById('charts').data.map("
        "({name, x, y}) => [name, {x: Array.from(x), y: Array.from(y)}]))"
    )
    rows = open_run(path).steps
    at = {step: row for row, step in enumerate(rows["step"].to_pylist())}
    columns = (("loss", "loss"), ("gradient norm", "grad_norm"), ("learning rate", "lr"))
    for name, column in columns:
        values = rows[column].to_pylist()
        drawn = points(traces[name])
        assert len(drawn) == sum(math.isfinite(v) for v in values)
        assert all(y == pytest.approx(values[at[x]], rel=1e-6) for x, y in drawn)
    scale = rows["scale"].to_pylist()
    for x, y in points(traces["loss scale"]):
        assert y == math.log2(scale[at[x]])
    assert {x for x in traces["skipped"]["x"] if x is not None} == set(range(100, 130))


@needs_browser
def test_the_letter_is_the_terminals_word_for_word(tmp_path, capsys, offline):
    path, out = write_run(tmp_path, skipped=30), tmp_path / "out.html"
    html_of(path, out, capsys)
    draw(offline, out)
    letter = offline.page.locator(".letter").inner_text()
    plain = letter_of(path, terminal=True)
    plain = re.sub(r"\x1b\[[0-9;]*m|[▁▂▃▄▅▆▇█]", "", plain)
    assert words(letter) == words(plain)


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
    text = own_part(html_of(path, tmp_path / "out.html", capsys))
    assert "<img" not in text
    assert text.count("<script") == 3  # two blocks of data, and what draws them
    draw(offline, tmp_path / "out.html")
    assert ATTACK in offline.page.locator(".letter").inner_text()
    assert offline.page.locator(".windows title").text_content().startswith(ATTACK)
    assert offline.page.locator("img").count() == 0


@pytest.mark.slow_browser
@needs_browser
def test_dark_and_paper_have_colours_of_their_own(tmp_path, capsys, one):
    out = tmp_path / "out.html"
    html_of(write_run(tmp_path, skipped=30), out, capsys)
    colour = "() => document.getElementById('charts').data[0].line.color"
    back = "() => getComputedStyle(document.body).backgroundColor"
    with tab(one, "dark") as dark:
        draw(dark, out)
        assert dark.page.evaluate(colour) == "#7FA6FF"
        assert dark.page.evaluate(back) == "rgb(20, 23, 27)"
        dark.page.emulate_media(media="print")
        dark.page.wait_for_function(f"() => ({colour})() === '#2456C8'")
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
    assert cli.run(["compare", *runs, "--html", str(out)]) == 0
    assert cli.run(["compare", *runs]) == 0
    printed = capsys.readouterr().out.split("MB\n", 1)[1]
    draw(offline, out)
    drawn = offline.page.evaluate("() => document.getElementById('charts').data.map(t => t.name)")
    assert drawn == ["A", "B"] * 4  # scale, loss, norm, rate
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
        ends = "() => [...document.querySelectorAll('.annotation-text')].map("
        ends += "(title) => title.getBoundingClientRect().right)"
        assert max(opened.page.evaluate(ends)) <= 390
        heights = "() => [...document.querySelectorAll('.finding th')].map((th) => "
        heights += "[th.textContent, th.getClientRects()[0].width])"
        assert all(width > 5 * len(word) for word, width in opened.page.evaluate(heights))


def test_a_million_steps_are_less_than_two_megabytes_and_no_skip_is_lost(tmp_path):
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
    assert set(curves.lines) == {SCALE, "loss", "grad_norm", "lr"}
    short = diagnose(open_run(write_run(tmp_path)))  # judging a million steps is another's test
    assert len(own_part(html_report(open_run(path), short, 2.0**15)).encode()) < 2_000_000


def test_no_steps_make_a_report_without_charts(tmp_path, capsys):
    text = html_of(write_run(tmp_path, accepted=0), tmp_path / "out.html", capsys)
    assert "INCOMPLETE" in text
    assert 'id="charts"' not in text


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
    text = own_part(html_of(path, tmp_path / "out.html", capsys))
    assert "no scale serves it" in text


@pytest.mark.parametrize("place", ["folder", "absent/out.html"])
def test_a_place_that_is_no_file_is_refused_before_any_work(tmp_path, capsys, place):
    (tmp_path / "folder").mkdir()
    out = tmp_path / place
    assert cli.run(["report", str(write_run(tmp_path)), "--html", str(out)]) == 2
    assert "pass a file" in capsys.readouterr().err
    assert list(tmp_path.glob("**/.*new")) == []


def test_a_large_configuration_leaves_the_file_small(tmp_path, capsys):
    config = {f"{'x' * 400}{n}": "y" * 1000 for n in range(5000)}
    text = own_part(html_of(write_run(tmp_path, config=config), tmp_path / "out.html", capsys))
    assert len(text) < 2_000_000
    assert "more settings" in text


def test_without_plotly_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ampwatch.report.page.find_spec", lambda name: None)
    out = tmp_path / "out.html"
    assert cli.run(["report", str(write_run(tmp_path)), "--html", str(out)]) == 2
    assert "pip install 'ampwatch[dashboard]'" in capsys.readouterr().err
    assert list(tmp_path.glob("*out.html*")) == []


def test_several_runs_are_sent_to_compare(tmp_path, capsys):
    path = str(write_run(tmp_path))
    assert cli.run(["report", path, path, "--html", str(tmp_path / "x.html")]) == 2
    assert "ampwatch compare" in capsys.readouterr().err
