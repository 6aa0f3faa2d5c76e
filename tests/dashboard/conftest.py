"""What the tests in a browser share; each file says which runs are at its `place`."""

from __future__ import annotations

import functools

import pytest


@pytest.fixture(scope="package", autouse=True)
def _components_sought_once():
    """AppTest looks through all that is installed for components, at each page that it opens."""
    try:
        from streamlit.components.v2 import manifest_scanner as scanner
    except ImportError:  # one that looks for none
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        sought = functools.cache(scanner.scan_component_manifests)
        patch.setattr(scanner, "scan_component_manifests", sought)
        yield


@pytest.fixture(scope="module", autouse=True)
def forked_servers():
    """Dashboards are forks of a process that has their pages loaded (`children`)."""
    import children

    from ampwatch.cli import dashboard

    line = dashboard.command_line
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            dashboard, "command_line", lambda port: [children.dashboard_python(), *line(port)[1:]]
        )
        yield


@pytest.fixture(scope="package")
def one():
    """A browser."""
    from page_driver import browser

    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for runs, with a state folder of its own; the feed is off."""
    made = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(made / ".state"))
        patch.setenv("AMPWATCH_ENDPOINT", "off")
        yield made


@pytest.fixture(scope="module")
def server(place):
    """The dashboard of the runs there."""
    from ampwatch.cli.dashboard import Server

    with Server([place]) as started:
        yield started


@pytest.fixture
def page(one, server):
    """A new page, of which the browser had nothing to complain."""
    from page_driver import tab

    with tab(one) as opened:
        yield opened
        assert opened.troubles == []


@pytest.fixture(scope="module")
def _page_of_the_file(one, server):
    from page_driver import tab

    with tab(one) as opened:
        opened.open(f"{server.url}/alerts")
        opened.settled()
        yield opened


@pytest.fixture
def kept_page(_page_of_the_file):
    """The file's page: it `show`s a run in a fifth of the time in which a new one loads.

    For tests of what a page does once it is there; how one comes to be there needs `page`.
    """
    _page_of_the_file.troubles.clear()
    yield _page_of_the_file
    assert _page_of_the_file.troubles == []
