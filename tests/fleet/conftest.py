"""A real S3 server for the tests of this folder, and places in it."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="no Delta Lake here: pip install 'ampwatch[fleet]'")
if importlib.util.find_spec("moto") is None:
    pytest.skip("no S3 server here to publish to", allow_module_level=True)

import s3_server

BUCKET = "team-runs"
_numbers = itertools.count()


@dataclass
class Server:
    """The server, and what it was asked."""

    port: int
    log: Path

    def requests(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def client(self):
        import boto3

        told = s3_server.environment(self.port)
        return boto3.client(
            "s3",
            endpoint_url=told["AWS_ENDPOINT_URL"],
            aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=told["AWS_SECRET_ACCESS_KEY"],
            region_name=told["AWS_REGION"],
        )


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("s3") / "requests"
    child, port = s3_server.start(log)
    try:
        server = Server(port, log)
        server.client().create_bucket(Bucket=BUCKET)
        yield server
    finally:
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def s3(one_server: Server) -> Iterator[Server]:
    """The server, and an environment that leads to it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment(one_server.port).items():
            patch.setenv(name, value)
        yield one_server


@pytest.fixture(params=["path", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new place: a folder, or a prefix in the bucket."""
    if request.param == "path":
        return str(tmp_path / "place")
    request.getfixturevalue("s3")
    return f"s3://{BUCKET}/place-{next(_numbers)}"


@pytest.fixture
def s3_place(s3: Server) -> str:
    return f"s3://{BUCKET}/place-{next(_numbers)}"
