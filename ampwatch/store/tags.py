"""RUN/tags.json: what its readers noted on a run: tags, a note, a title, what they muted.

Each change is made to what the file holds at that moment, under a lock, so two people who tag one
run at once lose nothing. Tags are data from outside: they are checked when they are read.
"""

from __future__ import annotations

import errno
import json
import unicodedata
from collections.abc import Iterable, Mapping
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
MOST_TITLE_CHARACTERS = 120
_MAX_BYTES = 1 << 20
_WAIT_S = 5.0  # for somebody else who is changing them


@dataclass(frozen=True, slots=True)
class RunTags:
    """Tags in their order, a note of any number of lines, and how a run stands in lists."""

    tags: tuple[str, ...] = ()
    note: str = ""
    title: str = ""  # instead of the run's own name
    is_pinned: bool = False  # stands first in lists
    muted: tuple[tuple[str, str], ...] = ()  # codes of findings, each with the reason


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
    title: str | None = None,
    pin: bool | None = None,
    mute: Mapping[str, str | None] | None = None,
) -> RunTags:
    """Change a run's tags and return them; RunError says why they cannot be changed.

    `note` replaces the note that its writer saw, `note_seen`. If somebody else has changed that
    meanwhile, both are kept. `mute` holds codes of findings, each with a reason; with None it is
    no longer muted.
    """
    added = [checked_tag(tag) for tag in add]
    removed = {checked_tag(tag) for tag in remove}
    if not (run_folder / RUN_FILE).is_file():
        raise RunError(f"{run_folder} is gone: it was deleted or moved.", path=run_folder)
    try:
        with locks.held(run_folder, wait_s=_WAIT_S):
            before = _load(run_folder)
            tags = [tag for tag in dict.fromkeys([*before.tags, *added]) if tag not in removed]
            text = before.note if note is None else _merged(before.note, note, note_seen)
            muted = {**dict(before.muted), **(mute or {})}
            after = RunTags(
                tuple(tags),
                text.strip(),
                before.title if title is None else title.strip()[:MOST_TITLE_CHARACTERS],
                before.is_pinned if pin is None else pin,
                tuple((code, why.strip()) for code, why in muted.items() if why is not None),
            )
            if after != before:
                _refuse_too_much(after)
                facts = {
                    "tags": tags, "note": after.note, "title": after.title,
                    "pinned": after.is_pinned, "muted": dict(after.muted),
                }  # fmt: skip
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
        title = str(facts.get("title", "")).strip()[:MOST_TITLE_CHARACTERS]
        muted = tuple((str(code), str(why)) for code, why in facts.get("muted", {}).items())
        texts = tuple(tag[:MOST_TAG_CHARACTERS].strip() for tag in tags[:MOST_TAGS])
        return RunTags(texts, note, title, facts.get("pinned") is True, muted[:MOST_TAGS])
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
