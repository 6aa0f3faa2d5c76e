"""RUN/tags.json: what its readers noted on a run, tags and a note.

Each change is made to what the file holds at that moment, under a lock, so two people who tag one
run at once lose nothing. Tags are data from outside: they are checked when they are read.
"""

from __future__ import annotations

import errno
import json
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ampwatch.errors import RunError, RunInUseError, reason_of
from ampwatch.files import BAD_VALUES, read_at_most, replace_file
from ampwatch.store import locks
from ampwatch.store.run_info import RUN_FILE

TAGS_FILE = "tags.json"
MOST_TAGS = 50
MOST_TAG_CHARACTERS = 60
MOST_NOTE_CHARACTERS = 10_000
_MAX_BYTES = 1 << 20
_WAIT_S = 5.0  # for somebody else who is changing them


@dataclass(frozen=True, slots=True)
class RunTags:
    """Tags in their order, and a note of any number of lines."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_tags(run_folder: Path) -> RunTags:
    """A run's tags; none if there are none or they cannot be read."""
    try:
        return _load(run_folder)
    except RunError:
        return RunTags()


def edit_tags(
    run_folder: Path,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
    note_seen: str = "",
) -> RunTags:
    """Change a run's tags and return them; RunError says why they cannot be changed.

    `note` replaces the note that its writer saw, `note_seen`. If somebody else has changed that
    meanwhile, both are kept.
    """
    added = [checked_tag(tag) for tag in add]
    removed = {checked_tag(tag) for tag in remove}
    if not (run_folder / RUN_FILE).is_file():
        raise RunError(f"{run_folder} is gone: it was deleted or moved.", path=run_folder)
    try:
        with locks.held(run_folder, wait_s=_WAIT_S):
            before = _load(run_folder)
            kept = [tag for tag in dict.fromkeys([*before.tags, *added]) if tag not in removed]
            text = before.note if note is None else _merged(before.note, note, note_seen)
            after = RunTags(tuple(kept), text.strip())
            if after != before:
                _refuse_too_much(after)
                facts = {"tags": kept, "note": after.note}
                text = json.dumps(facts, indent=1, ensure_ascii=False)
                data = text.encode("utf-8", "replace")
                replace_file(run_folder / TAGS_FILE, data, durable=True)
    except RunInUseError:
        raise RunError(
            f"Somebody else is changing the tags of {run_folder.name}: try again.", path=run_folder
        ) from None
    except OSError as problem:
        raise _not_writable(run_folder, problem) from problem
    return after


def checked_tag(text: str) -> str:
    """A tag as it is kept: one word; RunError says what is wrong with it."""
    tag = "-".join(unicodedata.normalize("NFC", text).split())
    if not tag or tag[0] in "+-" or "," in tag or not tag.isprintable():
        raise RunError(
            f"{text!r} is no tag: a tag is one word without commas that does not begin with + or -."
        )
    if len(tag) > MOST_TAG_CHARACTERS:
        raise RunError(f"{tag[:20]}… is too long: a tag has at most {MOST_TAG_CHARACTERS} letters.")
    return tag


def _merged(now: str, wanted: str, seen: str) -> str:
    """A run's note as its writer wants it, with what somebody else has added meanwhile."""
    if now in (seen, wanted):
        return wanted
    return f"{now}\n{wanted[len(seen) :].strip() if wanted.startswith(seen) else wanted}"


def _refuse_too_much(tags: RunTags) -> None:
    if len(tags.tags) > MOST_TAGS:
        raise RunError(f"A run has at most {MOST_TAGS} tags: remove some first.")
    if len(tags.note) > MOST_NOTE_CHARACTERS:
        raise RunError(f"A note has at most {MOST_NOTE_CHARACTERS:,} letters: shorten it.")


def _load(run_folder: Path) -> RunTags:
    """The tags; RunError if there are some that cannot be read: a change would lose them."""
    path = run_folder / TAGS_FILE
    try:
        facts = json.loads(read_at_most(path, _MAX_BYTES))
        tags, note = list(facts["tags"]), facts["note"].strip()
        return RunTags(tuple(tag[:MOST_TAG_CHARACTERS].strip() for tag in tags[:MOST_TAGS]), note)
    except FileNotFoundError:
        return RunTags()
    except (OSError, *BAD_VALUES) as problem:
        raise RunError(
            f"{path} is damaged or cannot be read, so it is not changed: repair or delete it.",
            path=path,
        ) from problem


def _not_writable(run_folder: Path, problem: OSError) -> RunError:
    remedy = "make room on the disk" if problem.errno == errno.ENOSPC else "make it writable"
    return RunError(
        f"{run_folder} cannot be written ({reason_of(problem)}), so its tags stay as "
        f"they are: {remedy}.",
        path=run_folder,
    )
