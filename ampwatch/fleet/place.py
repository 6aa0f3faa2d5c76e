"""A place: its address, its objects, its Delta tables, and error messages for what can be wrong.

Credentials come from the environment or the cloud's own chain (a role, an instance's identity),
never from an address, which libraries write into their logs: one that holds a password is refused,
and no error repeats what a service said beyond a few known words.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ampwatch.errors import PlaceError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

PLACE_FORMAT = 1
_ABOUT = "ampwatch place, format "
_TRIES = 4  # of a request that a service did not answer; each waits longer
_TURNS = 60  # to be the one who commits, which takes a tenth of a second
_CHECKPOINT_EVERY = 10  # commits: opening a table reads each one since

_COMMIT = re.compile(r"/\d{20}\.json$")

_SCHEMES = {"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "file"}
_ENDPOINTS = re.compile(r"(AWS|AZURE|GOOGLE)_\w*(ENDPOINT|URL)\w*", re.IGNORECASE)

# What services say, and what it means. The first that matches counts.
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"RequestTimeTooSkewed|RequestExpired|AuthenticationFailed.*\bDate\b",
     ("it refuses this machine's clock: set the clock (such as with NTP), then run the same "
      "command again; it goes on where it stopped")),
    (r"NoSuchBucket|bucket does not exist|ContainerNotFound",
     "the bucket does not exist: create it, or correct the address"),
    ((r"\b401\b|\b403\b|Forbidden|AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId|Unauthor|"
     r"[Cc]redential|token"),
     ("access was refused: check the credentials in the environment (for S3 AWS_ACCESS_KEY_ID, "
     "AWS_SECRET_ACCESS_KEY, AWS_REGION) and that they may read and write there")),
    (r"[Cc]onnect|timed out|[Tt]imeout|dns|resolve|error sending request",
     ("it cannot be reached: check the network and the address, then run the same command again; "
     "it goes on where it stopped")),
    (r"[Pp]ermission denied", "its files may not be written: check the folder's owner"),
    (r"No space left", "the disk is full"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Added:
    """A file of a table in the place, or one that is to become part of it."""

    path: str
    size: int
    stats: str = ""
    partition: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in the place, as the service lists it."""

    path: str
    size: int
    modified: dt.datetime


class Extent(NamedTuple):
    """A range of bytes in an object of the place."""

    path: str
    offset: int
    length: int


class Place:
    """A place, in which many runs are stored: its objects and its Delta tables.

    No request is made before the first use.
    """

    def __init__(self, text: str | Path) -> None:
        self.address, self.url = checked_address(str(text))
        self._store: Any = None
        self._fetched: dict[Extent, bytes] = {}

    def __repr__(self) -> str:
        return f"<Place {self.address}>"

    # --- objects ---------------------------------------------------------------------------------

    def put(self, path: str, data: bytes) -> None:
        """Write an object to the place, whole or not at all."""
        import obstore

        with self.trouble("written"):
            obstore.put(self._objects(), path, data)

    def get(self, path: str, start: int, length: int) -> bytes:
        """Read a range of an object in the place, in one request unless it was fetched ahead."""
        import obstore

        fetched = self._fetched.pop(Extent(path, start, length), None)
        if fetched is not None:
            return fetched
        with self.trouble("read"):
            return bytes(obstore.get_range(self._objects(), path, start=start, length=length))

    def fetch_ahead(self, wanted: Iterable[Extent]) -> None:
        """Fetch the ranges that `get` will read next: of each object, near ones in one request.

        Ranges that were fetched before and not read are dropped. Of an object that cannot be read
        nothing is fetched ahead; `get` says why.
        """
        import obstore

        self._fetched = {}
        for path, extents in groupby(sorted(set(wanted)), key=lambda extent: extent.path):
            ranges = list(extents)
            starts = [extent.offset for extent in ranges]
            lengths = [extent.length for extent in ranges]
            with suppress(PlaceError, OverflowError), self.trouble("read"):
                data = obstore.get_ranges(self._objects(), path, starts=starts, lengths=lengths)
                self._fetched |= zip(ranges, map(bytes, data), strict=True)

    def get_whole(self, path: str) -> bytes | None:
        """Read an object in the place; None if there is none."""
        import obstore

        if self.is_local and not Path(self.url).is_dir():
            return None  # who only reads makes no folder
        with self.trouble("read"):
            try:
                return bytes(obstore.get(self._objects(), path).bytes())
            except FileNotFoundError:
                return None

    def has_commit_after(self, name: str, version: int) -> bool:
        """Whether a table of the place has a newer commit than this version."""
        import obstore

        log = f"{name}/_delta_log/"
        with self.trouble("read"):
            pages = obstore.list(self._objects(), log, offset=f"{log}{version:020}.json")
            later = [entry["path"] for page in pages for entry in page]
        return any(_COMMIT.search(path) for path in later)

    def names(self) -> set[str]:
        """The names at the top of the place."""
        import obstore

        with self.trouble("read"):
            listing = obstore.list_with_delimiter(self._objects())
        paths = [*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])]
        return {str(path).rstrip("/").rpartition("/")[2] for path in paths}

    def listed(self, prefix: str) -> list[Listed]:
        """All objects in the place whose paths have this prefix."""
        import obstore

        with self.trouble("read"):
            pages = obstore.list(self._objects(), prefix)
            return [
                Listed(str(entry["path"]), int(entry["size"]), entry["last_modified"])
                for page in pages
                for entry in page
            ]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects in the place."""
        import obstore

        with self.trouble("written"):
            if paths:
                obstore.delete(self._objects(), list(paths))

    def _objects(self) -> Any:
        if self._store is None:
            from obstore.store import LocalStore, from_url

            if self.is_local:
                self._store = LocalStore(Path(self.url), mkdir=True)
            else:
                retries: Any = {"max_retries": _TRIES}
                self._store = from_url(self.url, retry_config=retries)
        return self._store

    @property
    def is_local(self) -> bool:
        """Whether the place is a folder of this machine."""
        return "://" not in self.url

    # --- tables ----------------------------------------------------------------------------------

    def table(self, name: str) -> DeltaTable | None:
        """The current version of a table of the place; None if there is none of ours."""
        with self.trouble("read"):
            table = self._open(name)
        if table is not None:
            self._refuse_other(table, name)
        return table

    def create(self, name: str, schema: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
        """A table of the place, created if missing; two processes at once get the same one."""
        table = self.table(name)
        if table is not None:
            return table
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        if self.is_local:
            Path(self._table_url(name)).mkdir(parents=True, exist_ok=True)
        with self.trouble("written"):
            try:
                create_table_with_add_actions(
                    self._table_url(name), Schema.from_arrow(schema), [], mode="error",
                    partition_by=list(partition_by), name=f"ampwatch {name}",
                    description=f"{_ABOUT}{PLACE_FORMAT}",
                    configuration={"delta.checkpointInterval": str(_CHECKPOINT_EVERY)},
                    storage_options=self._options(),
                )  # fmt: skip
            except (CommitFailedError, DeltaError):  # somebody else was first
                if self._open(name) is None:
                    raise
        table = self.table(name)
        assert table is not None
        return table

    def commit(
        self,
        table: DeltaTable,
        schema: pa.Schema,
        added: Sequence[Added],
        removed: Sequence[Added] = (),
        *,
        alone: bool = False,
    ) -> bool:
        """Add files to a table of the place and remove others, in one transaction.

        `alone`: False, and nothing happened, if anybody committed since the table was read.
        """
        from deltalake import CommitProperties, Schema
        from deltalake.exceptions import CommitFailedError

        properties = CommitProperties(max_commit_retries=0 if alone else 100)
        with self.trouble("written"):
            try:
                table.create_write_transaction(
                    _actions(added, removed), "append", Schema.from_arrow(schema),
                    partition_by=table.metadata().partition_columns, commit_properties=properties,
                )  # fmt: skip
            except CommitFailedError:
                if alone:
                    return False
                raise
        return True

    def put_rows(
        self, name: str, rows: pa.Table, keys: Sequence[str], partition: Mapping[str, str] | None
    ) -> Added:
        """Write rows as a file of a table of the place; a commit makes it part of the table.

        Readers skip files by the values of `keys`.
        """
        import pyarrow.compute as pc
        from pyarrow import parquet

        sink = io.BytesIO()
        parquet.write_table(rows, sink, compression="zstd")
        data = sink.getvalue()
        folder = "".join(f"{key}={value}/" for key, value in (partition or {}).items())
        path = f"{folder}part-{fresh_token()}.parquet"
        self.put(f"{name}/{path}", data)
        bounds = {key: pc.min_max(rows.column(key)).as_py() for key in keys}
        stats = statistics_text(
            rows.num_rows, {key: (bound["min"], bound["max"]) for key, bound in bounds.items()}
        )
        return Added(path, len(data), stats, partition)

    def _open(self, name: str) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self.is_local and not Path(self._table_url(name), "_delta_log").is_dir():
            return None
        try:
            return DeltaTable(self._table_url(name), storage_options=self._options())
        except TableNotFoundError:
            return None

    def _refuse_other(self, table: DeltaTable, name: str) -> None:
        about = table.metadata().description or ""
        number = about.removeprefix(_ABOUT)
        if not about.startswith(_ABOUT) or not number.isdigit():
            raise PlaceError(
                f"{self.address} holds a table {name!r} that ampwatch did not make: choose "
                "another place, such as a new prefix in the same bucket.",
                place=self.address,
            )
        if int(number) > PLACE_FORMAT:
            raise PlaceError(
                f"{self.address} has format {number} and this ampwatch reads up to "
                f"{PLACE_FORMAT}: update ampwatch.",
                place=self.address,
            )

    def _table_url(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _options(self) -> dict[str, str]:
        return {"max_retries": str(_TRIES)}

    # --- trouble ---------------------------------------------------------------------------------

    @contextmanager
    def trouble(self, done: str) -> Iterator[None]:
        """Turn any error of a library or service into a PlaceError that says what to do."""
        try:
            from deltalake.exceptions import DeltaError
            from obstore.exceptions import BaseError
        except ImportError as problem:
            raise PlaceError(
                "Publishing needs Delta Lake, which is not installed: pip install "
                "'ampwatch[fleet]'.",
                place=self.address,
            ) from problem
        try:
            yield
        except (DeltaError, BaseError, OSError, ValueError) as problem:
            raise PlaceError(
                f"{self.address} cannot be {done}: {_cause(str(problem))}.", place=self.address
            ) from None


def _actions(added: Sequence[Added], removed: Sequence[Added]) -> list[AddAction | RemoveAction]:
    """What a commit to a table of the place writes into the table's log."""
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = int(time.time() * 1000)
    adding = [
        AddAction(
            path=file.path, size=file.size, partition_values=dict(file.partition or {}),
            modification_time=now_ms, data_change=True, stats=file.stats,
        )
        for file in added
    ]  # fmt: skip
    removing = [
        RemoveAction(
            file.path, data_change=True, deletion_timestamp=now_ms, size=file.size,
            partition_values=dict(file.partition or {}),
        )
        for file in removed
    ]  # fmt: skip
    return [*adding, *removing]


def commit_in_turn(place: Place, act: Callable[[], bool]) -> None:
    """Try to change a place until nobody else committed meanwhile, with growing random pauses."""
    for turn in range(_TURNS):
        if act():
            return
        time.sleep(random.uniform(0.0, min(2.0, 0.05 * 2**turn)))  # noqa: S311
    raise PlaceError(
        f"{place.address} is being written by many at once: run the same command again; it goes on "
        "where it stopped.",
        place=place.address,
    )


def statistics_text(rows: int, bounds: Mapping[str, tuple[str, str]]) -> str:
    """A file's statistics as a Delta table holds them: its rows, lowest and highest values."""
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": {key: low for key, (low, _) in bounds.items()},
            "maxValues": {key: high for key, (_, high) in bounds.items()},
            "nullCount": dict.fromkeys(bounds, 0),
        }
    )


def fresh_token() -> str:
    """A unique name for a file or an edition."""
    return secrets.token_hex(8)


def _cause(message: str) -> str:
    for pattern, words in _CAUSES:
        if re.search(pattern, message):
            return words
    plain = re.sub(r"\x1b\[\d+m|https?://\S+|<[^>]*>", " ", message)
    return " ".join(plain.split())[:200].rstrip(".") or "its service gave no reason"


# --- addresses ------------------------------------------------------------------------------------


def checked_address(text: str) -> tuple[str, str]:
    """A place's address for people and for libraries; PlaceError if it holds credentials."""
    text = re.sub(r"^([a-z][a-z0-9]+):/(?=[^/])", r"\1://", text)  # a Path makes one slash of two
    if "://" not in text:
        return text, str(Path(text).expanduser().absolute())
    parts = urlsplit(text)
    is_account = parts.scheme in {"abfs", "abfss"}  # CONTAINER@ACCOUNT
    if (parts.username and not is_account) or parts.password or parts.query:
        raise PlaceError(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path} was given with credentials in "
            "it: take them out, change them where they were seen, and set them in the environment."
        )
    if parts.scheme not in _SCHEMES:
        raise PlaceError(
            f"{parts.scheme}:// is no address that runs can be published to: use s3://, gs://, "
            "az:// or a folder's path.",
            place=text,
        )
    if parts.scheme == "file":
        return text, parts.path.rstrip("/")
    _refuse_telling_endpoints()
    return text.rstrip("/"), text.rstrip("/")


def _refuse_telling_endpoints() -> None:
    """Refuse a service's address in the environment that holds a password."""
    for name, value in os.environ.items():
        parts = urlsplit(value) if _ENDPOINTS.fullmatch(name) else None
        if parts is not None and (parts.username or parts.password or parts.query):
            raise PlaceError(
                f"{name} was given with credentials in it: take them out, change them where they "
                "were seen, and set them in variables of their own."
            )


def is_place(text: str) -> bool:
    """Whether this text is the address of a place: a URL, or a folder that holds one."""
    return "://" in text or (Path(text) / "runs" / "_delta_log").is_dir()
