"""The page's address holds what its reader chose last, whatever the browser still sends."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit", reason="no streamlit here to serve with")
from streamlit.testing.v1 import AppTest


def page():
    """A page whose reader searches for `x`, then chooses run `a`, at once."""
    import address
    import streamlit as st

    if "chosen" not in st.session_state:
        st.session_state.chosen = True
        address.change(find="x")
        address.change(runs="a")
    where = address.read()
    st.text(f"{where.find} {where.runs}")


@pytest.fixture
def opened():
    opened = AppTest.from_function(page).run()
    assert opened.text[0].value == "x a"
    return opened


@pytest.mark.parametrize("sent", [{}, {"find": "x"}, {"find": "x", "runs": "a"}])
def test_a_request_that_set_out_before_a_change_does_not_take_it_back(opened, sent):
    opened.query_params.clear()
    for name, text in sent.items():
        opened.query_params[name] = text
    opened.run()
    assert opened.text[0].value == "x a"
    told = {name: "".join(text) for name, text in opened.query_params.items()}
    assert told == {"find": "x", "runs": "a"}  # the browser is told again


@pytest.mark.parametrize("sent", [{"runs": "a"}, {"find": "y", "runs": "a"}])
def test_an_address_that_a_reader_went_to_is_taken_and_the_change_is_forgotten(opened, sent):
    opened.query_params.clear()
    for name, text in sent.items():
        opened.query_params[name] = text
    opened.run()
    assert opened.text[0].value == f"{sent.get('find')} a"
    opened.query_params.clear()
    opened.run()
    assert opened.text[0].value == "None None"


def test_an_old_change_is_no_reason_to_doubt_what_the_browser_sends(opened, monkeypatch):
    address = pytest.importorskip("address")
    monkeypatch.setattr(address, "_LATE_S", 0.0)
    opened.query_params.clear()
    opened.run()
    assert opened.text[0].value == "None None"
