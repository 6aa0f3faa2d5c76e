"""Words and numbers as the page shows them."""

from __future__ import annotations

import pytest
from html_text import age_text, rate_text, said, shortened


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.2e-4, "1.2e-4"), (3e-4, "3e-4"), (0.003, "0.003"), (0.149, "0.149"), (1.0, "1"), (0, "0"),
     (6.543e-7, "6.54e-7")],
)  # fmt: skip
def test_a_rate_is_written_as_people_write_it(value, text):
    assert rate_text(value) == text


def test_a_long_name_keeps_both_ends():
    name = "encoder.layer.11.attention.self.query"
    short = shortened(name, 20)
    assert len(short) == 20
    assert short.startswith("encode")
    assert short.endswith("self.query")
    assert shortened("head", 20) == "head"


def test_names_are_data():
    assert said("<img src=x> 2^16\n") == "&lt;img src=x&gt; 2¹⁶�"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (45, "45 s"), (600, "10 min"), (9000, "2 h"), (260000, "3 days")],
)
def test_an_age_has_one_unit(seconds, text):
    assert age_text(seconds) == text


def test_a_pages_html_becomes_plain_text_a_line_a_block_and_a_row():
    from html_text import plain_text

    page = (
        "<section><p>Loss <b>3.2</b> at step&nbsp;7.</p><button>copy</button><svg>x</svg>"
        '<div aria-hidden="true">for <div>the</div> eye</div><p class="aw-none">None matches.</p>'
        "<table><tr><th>run</th><th>loss</th></tr><tr><td>a &lt; b</td><td>1</td></tr></table>"
        "</section>"
    )
    assert plain_text(page) == "Loss 3.2 at step 7.\nrun | loss\na < b | 1"
