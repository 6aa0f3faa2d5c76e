"""Runs in a bucket on the page: listed, opened, compared; a bucket that is away says so."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("deltalake", reason="no Delta Lake here: pip install 'ampwatch[fleet]'")
pytest.importorskip("moto", reason="no S3 server here to publish to")

import boto3
import s3_server
from page_driver import needs_browser, tab
from written_runs import write_run

from ampwatch.cli.dashboard import Server
from ampwatch.fleet import Place, list_published, publish
from ampwatch.fleet.judging import judge_run
from ampwatch.fleet.verdicts import store_verdicts, tables_of

pytestmark = [pytest.mark.slow_browser, needs_browser]
PLACE = "s3://team/runs"


@pytest.fixture(scope="module")
def requests(folder):
    """What the S3 server was asked; in it are three judged runs, and one that nobody judged."""
    log = folder / "requests"
    child, port = s3_server.start(log)
    told = s3_server.environment(port)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        boto3.client(
            "s3", endpoint_url=told["AWS_ENDPOINT_URL"], region_name=told["AWS_REGION"],
            aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=told["AWS_SECRET_ACCESS_KEY"],
        ).create_bucket(Bucket="team")  # fmt: skip
        for number, skipped in enumerate((0, 0, 40)):
            write_run(folder / "own", f"train-{number}", accepted=400, skipped=skipped)
        publish(folder / "own", PLACE)
        rows = list_published(PLACE)
        store_verdicts(tables_of(Place(PLACE)), [judge_run(Place(PLACE), row) for row in rows])
        write_run(folder / "late", "late", accepted=50)
        publish(folder / "late", PLACE)
        yield lambda: log.read_text().splitlines()
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def server(requests):
    with Server([PLACE]) as started:
        yield started


def test_published_runs_are_listed_with_their_verdicts_and_opened_in_few_requests(
    page, server, requests
):
    page.open(f"{server.url}/runs")
    page.page.locator(".aw-runs.all tbody tr[data-go]").nth(3).wait_for()
    assert page.page.get_by_text("not judged", exact=True).count() == 1
    before = len(requests())
    page.page.get_by_role("link", name="train-2").click()
    page.drawn(400)
    page.says("FAILING")
    assert len(requests()) - before <= 12
    page.go("Layers")
    page.go("Timeline")
    page.go("Settings")


def test_a_bar_of_the_fleet_leads_to_its_runs_and_back_restores_it(page, server):
    page.open(f"{server.url}/fleet")
    page.says("1 of 4 runs in s3://team/runs not judged yet")
    page.says("ampwatch fleet s3://team/runs")
    table = page.page.locator(".aw-fleet").last.locator("tbody tr")
    table.first.wait_for()
    assert table.count() == 3
    page.page.locator("[data-go^='code=AMP']").first.click()
    page.page.wait_for_url("**/fleet?fleet=code**")
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('.aw-fleet')].at(-1).querySelectorAll('tbody tr')"
        ".length === 1"
    )
    assert page.faults() == []
    page.page.get_by_role("link", name="train-2").click()
    page.drawn(400)
    page.back()
    page.page.get_by_role("button", name="take back").wait_for()
    page.page.get_by_role("button", name="take back").click()
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('.aw-fleet')].at(-1).querySelectorAll('tbody tr')"
        ".length === 3"
    )
    for name in ("train-0", "train-2"):
        page.page.get_by_role("button", name=f"choose {name}").click()
    page.page.get_by_role("button", name="Compare 2 runs").click()
    page.says("steps in common")


def test_without_a_place_the_page_says_how_to_get_one(one, folder):
    with Server([folder / "own"]) as local, tab(one) as page:
        page.open(f"{local.url}/fleet")
        page.says("Publish runs to a bucket or a shared folder")


def test_a_place_that_cannot_be_reached_says_so_and_what_to_do(one, folder, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, os.environ.get(name, "us-east-1"))
    with Server([PLACE]) as away, tab(one) as page:
        page.open(f"{away.url}/fleet")
        page.says("cannot be reached: check the network and the address")
