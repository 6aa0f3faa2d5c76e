"""How often a tab is refreshed when many are in view."""

from __future__ import annotations

import pytest
from page_driver import needs_browser, tab, training
from page_parts import LONGEST_S, REFRESHES_A_SECOND, TabsInView


def test_few_tabs_are_refreshed_each_second_and_many_share_the_servers_refreshes():
    tabs = TabsInView(clock=lambda: 0.0)
    paces = []
    for number in range(100):
        tabs.hear(str(number))
        tabs.hear(str(number))  # the same tab, a moment later
        paces.append(tabs.interval_s)
        assert tabs.count == number + 1
        assert (number + 1) / tabs.interval_s <= REFRESHES_A_SECOND or tabs.interval_s == LONGEST_S
    assert paces[:REFRESHES_A_SECOND] == [1.0] * REFRESHES_A_SECOND
    assert paces == sorted(paces)
    assert paces[-1] == LONGEST_S


def test_a_tab_that_was_closed_or_that_nobody_sees_is_not_counted():
    now = [0.0]
    tabs = TabsInView(clock=lambda: now[0])
    for number in range(12):
        tabs.hear(str(number))
    tabs.leave("3")
    tabs.leave("never there")
    assert tabs.count == 11
    now[0] = 60.0
    tabs.hear("0")
    assert (tabs.count, tabs.interval_s) == (1, 1.0)


@pytest.fixture(scope="module")
def place(folder):
    with training(folder, "goes", 100_000, 0.05):
        yield folder


@pytest.mark.slow_browser
@needs_browser
def test_tabs_slow_down_as_others_open_and_speed_up_as_they_close(one, server):
    words = f"{REFRESHES_A_SECOND + 1} tabs are in view: each is refreshed every 2 s."
    with tab(one) as first:
        first.open(f"{server.url}/?run=goes")
        first.drawn()
        others = [first.page.context.new_page() for _ in range(REFRESHES_A_SECOND)]
        for other in others:  # whatever they show
            other.goto(f"{server.url}/settings?run=goes")
        first.says(words)
        first.refreshes(2)  # it goes on
        for other in others:
            other.close()
        first.page.get_by_text(words).wait_for(state="detached")
        first.refreshes(2)
        assert first.troubles == []


@pytest.mark.slow_browser
@needs_browser
def test_an_age_goes_on_by_itself_where_nothing_is_followed(page, server):
    page.open(f"{server.url}/?run=goes&follow=off")
    page.page.wait_for_function(
        "() => { const age = document.querySelector('.aw-age');"
        " return age && parseFloat(age.textContent) > Number(age.dataset.age) + 1; }"
    )
