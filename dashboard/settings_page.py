"""Settings: all that the run recorded of itself, and what changed since the script's last run."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import address
import browser_component
import open_runs
import run_list
import streamlit as st
from html_text import exact_html, said
from open_runs import RunSnapshot
from page_parts import refresh_run_part, show_as_text
from run_list import ListedRun, Origin

from ampwatch.diagnosis.value_text import count_text, duration_text, list_text
from ampwatch.errors import AmpwatchError
from ampwatch.printable_text import printable
from ampwatch.report.settings import Change, assumed_settings, changes, run_before, whole_settings
from ampwatch.report.timeline import Attempt
from ampwatch.store import RUN_FILE, RunInfo, open_run, read_info
from ampwatch.store.console_and_diff import read_console, read_diff
from ampwatch.store.layout import rank_folder

_EVERY_S = 5.0
_KEY, _CHANGES, _KEPT = "settings", "settings changes", "kept texts"
_MOST_ROWS = 2_000  # at once: of more, what is searched for comes from the server
_MOST_CHANGES = 25  # in sight; the others are folded
_FOLDED_LETTERS = 300  # of a value that is longer a part is in sight
_HEAD_LETTERS = 120
_OF_GROUP = re.compile(r"(optimizer(?:\.\d+)?)\.group\.\d+\.(.+)")
_COMMITTED = {"yes": "with uncommitted changes", "no": "nothing uncommitted"}


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the Settings page: its title and the first words of its settings' names."""

    title: str
    words: tuple[str, ...]
    absence: str  # in a run of ours; a foreign log seldom holds any


SECTIONS = (
    Section("Command and code", ("command", "code"), "It was not recorded how the run started."),
    Section(
        "Config", ("config",),
        "No configuration was given: ampwatch.attach(..., config=vars(args)) records it.",
    ),
    Section("Optimizer", ("optimizer",), "It is recorded when the optimizer is first seen."),
    Section("Scaler", ("scaler",), "The run has no gradient scaler."),
    Section("Precision", ("autocast", "precision"), "It shows with the first step."),
    Section("Versions", ("versions",), "No versions were recorded."),
    Section("Hardware", ("devices", "host", "processes"), "No hardware was recorded."),
    Section(
        "Environment", ("environment",),
        "No variable of CUDA, NCCL, PyTorch or OpenMP was set, or the run is of an older ampwatch.",
    ),
)  # fmt: skip


def show(path: str) -> None:
    """Draw the Settings page; a live run may still record its optimizer and cards."""
    refresh_run_part(_draw_settings, path, _EVERY_S)


def _draw_settings(path: str) -> None:
    run = open_runs.snapshot(path)
    settings = run.settings()
    earlier = previous_run(run.info, run_list.current_list().choices)
    top = changes_html(run, settings, earlier) + resumed_html(run.attempts())
    browser_component.html(top, key=_CHANGES, acts={"go": _open_comparison})
    find = address.read().find or ""
    every = settings_html(run, settings, find)
    browser_component.html(
        every, key=_KEY, search="Search settings", found=find, on_find=_find,
    )  # fmt: skip
    kept = kept_html(Path(path), run.rank if run.rank is not None else min(run.ranks, default=0))
    browser_component.html(kept, key=_KEPT)
    show_as_text(top, every, kept)
    address.switch_if_asked()


def _find() -> None:
    text = st.session_state[_KEY].find
    address.change(find=str(text) if text else None)


def _open_comparison(runs: object) -> None:
    address.ask_for_page("Compare", runs=str(runs))


# --- what changed ---------------------------------------------------------------------------------


def changes_html(run: RunSnapshot, settings: Mapping[str, str], earlier: PreviousRun | None) -> str:
    """The settings that changed since the last run of the script, as HTML."""
    if earlier is None:
        return f'<p class="aw-muted">{said(_no_earlier(run))}</p>'
    found = changes(earlier.settings, settings)
    name = f"<bdi>{said(earlier.choice.name)}</bdi>"
    apart = duration_text((run.info.started_ns - earlier.info.started_ns) / 1e6)
    what = "this script" if earlier.info.origin.get("script") else "this name"
    about = f'<div class="aw-muted">the last run of {what}, started {said(apart)} before</div>'
    if not found:
        head = f"No setting changed since {name}"
    else:
        head = f"{count_text(len(found), 'setting')} changed since {name}"
    return (
        f'<section class="aw-changes"><h2 class="aw-section">{head}</h2>{about}'
        f"{_changes(found)}{_compare_link(run, earlier)}</section>"
    )


def resumed_html(attempts: Sequence[Attempt]) -> str:
    """The settings with which each later attempt of a resumed run started otherwise, as HTML."""
    parts = []
    for before, one in pairwise(attempts):
        both_tell = before.settings and one.settings
        found = changes(before.settings, one.settings) if both_tell else ()
        if found:
            head = f"Attempt {one.number} of this run was started with other settings"
            parts.append(
                f'<section class="aw-changes"><h2 class="aw-section">{head}</h2><div '
                'class="aw-muted">than the attempt before; those below are the first one\'s</div>'
                f"{_changes(found)}</section>"
            )
    return "".join(parts)


def _no_earlier(run: RunSnapshot) -> str:
    if run.info.source != "ampwatch":
        return "No earlier log of this name is listed, so there is nothing to compare it with."
    script = run.info.origin.get("script")
    return f"No earlier run of {script or 'this name'} is listed: nothing to compare it with."


def _compare_link(run: RunSnapshot, earlier: PreviousRun) -> str:
    here = run_list.name_of(run.path)
    runs = address.names_text([earlier.choice.name, here])
    link = html.escape(address.link("compare", address.Address(run=here, runs=runs)))
    return (
        f'<a class="aw-lines" href="{link}" data-go="{html.escape(runs)}">Compare both runs: '
        "curves, figures, where they part</a>"
    )


def _changes(found: Sequence[Change]) -> str:
    if not found:
        return ""
    shown = _change_table(found[:_MOST_CHANGES])
    rest = found[_MOST_CHANGES:]
    if not rest:
        return shown
    words = f"{count_text(len(rest), 'more change')}"
    return (
        f'{shown}<details data-key="{html.escape(found[0].name)}"><summary>{words}</summary>'
        f"{_change_table(rest)}</details>"
    )


def _change_table(found: Sequence[Change]) -> str:
    rows = "".join(
        f'<tr><th scope="row"><bdi>{exact_html(_shown_name(change.name))}</bdi></th>'
        f"<td>{_kind(change)}</td><td>{_side(change.before)}</td>"
        f"<td>{_side(change.after)}</td></tr>"
        for change in found
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("setting", "", "before", "now"))
    return (
        f'<table class="aw-settings changes"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _kind(change: Change) -> str:
    return f'<span class="aw-kind {change.kind}">{change.kind}</span>'


def _side(text: str | None) -> str:
    return '<span class="aw-muted">not set</span>' if text is None else _value(text)


# --- all settings ---------------------------------------------------------------------------------


def settings_html(run: RunSnapshot, settings: Mapping[str, str], find: str) -> str:
    """All settings of the run by sections, as HTML; of very many those that are searched for."""
    shown = settings
    if len(settings) > _MOST_ROWS:
        wanted = find.strip().lower()
        matching = ((n, t) for n, t in settings.items() if wanted in f"{n} {t}".lower())
        shown = dict([*matching][:_MOST_ROWS])
    parts = "".join(_section(run, section, shown, settings) for section in SECTIONS)
    hidden = len(settings) - len(shown)
    more = ""
    if hidden:
        words = f"{count_text(hidden, 'more setting')}: search for them, or read run.json."
        more = f'<p class="aw-muted">{said(words)}</p>'
    return f'{_missing(run, settings)}{more}{parts}<p class="aw-none">No setting matches.</p>'


def _missing(run: RunSnapshot, settings: Mapping[str, str]) -> str:
    """A sentence on the settings that the log of another trainer does not hold."""
    if run.info.source == "ampwatch":
        return ""
    missing = [s.title.lower() for s in SECTIONS if not _of(s, settings)]
    if not missing:
        return ""
    sentence = (
        f"This run was read from a log of {run.info.source}, which does not hold: "
        f"{list_text(missing, len(missing))}."
    )
    return f'<p class="aw-muted">{said(sentence)}</p>'


def _of(section: Section, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text for name, text in settings.items() if name.partition(".")[0] in section.words
    }


def _section(
    run: RunSnapshot, section: Section, shown: Mapping[str, str], every: Mapping[str, str]
) -> str:
    rows = "".join(_rows(_of(section, shown)))
    if section.title == "Scaler":
        rows += "".join(_assumed_rows(run))
    if rows:
        inside = f'<table class="aw-settings"><tbody>{rows}</tbody></table>'
    elif run.info.source != "ampwatch" or _of(section, every):
        return ""
    else:
        inside = f'<p class="aw-muted">{said(section.absence)}</p>'
    empty = "" if rows else " empty"
    return (
        f'<section class="aw-part{empty}"><h2 class="aw-section">{section.title}</h2>'
        f"{inside}</section>"
    )


def _rows(settings: Mapping[str, str]) -> Iterator[str]:
    of_all = _of_all_groups(settings)
    for name, text in settings.items():
        if name == "code.uncommitted changes":
            continue  # beside the commit
        if name == "code.commit":
            yield _row(name, text, _COMMITTED.get(settings.get("code.uncommitted changes", ""), ""))
        elif name not in of_all:
            yield _row(name, text)
        elif of_all[name]:
            yield _row(*of_all[name])


def _of_all_groups(settings: Mapping[str, str]) -> dict[str, tuple[str, str, str] | tuple[()]]:
    """Settings that all groups of an optimizer share: one row at the first group."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for name, text in settings.items():
        if (match := _OF_GROUP.fullmatch(name)) is not None:
            groups.setdefault((match[1], match[2]), {})[name] = text
    count = max((len(texts) for texts in groups.values()), default=0)
    found: dict[str, tuple[str, str, str] | tuple[()]] = {}
    for (optimizer, name), texts in groups.items():
        if 1 < len(texts) == count and len(set(texts.values())) == 1:
            found |= dict.fromkeys(texts, ())
            text = next(iter(texts.values()))
            found[next(iter(texts))] = (f"{optimizer}.{name}", text, f"in all {count} groups")
    return found


def _assumed_rows(run: RunSnapshot) -> Iterator[str]:
    """A row for each setting that the log does not state and that is its trainer's default."""
    for name, text in assumed_settings(run.info).items():
        yield _row(name, text, f"not in the log: as {run.info.source} sets it")


def _row(name: str, text: str, note: str = "") -> str:
    told = f' <span class="aw-muted">{said(note)}</span>' if note else ""
    words = html.escape(f"{name} {text} {note}")
    label = html.escape(printable(_shown_name(name)))
    return (
        f'<tr data-text="{words}"><th scope="row"><bdi>{label}</bdi></th>'
        f"<td>{_value(text)}{told}</td>"
        f'<td><button type="button" class="aw-copy" data-copy="{html.escape(text)}" '
        f'aria-label="copy {label}">copy</button></td></tr>'
    )


def _shown_name(name: str) -> str:
    """A setting's name as shown: one from the user's config as the user wrote it."""
    return name.removeprefix("config.")


def _value(text: str) -> str:
    if len(text) <= _FOLDED_LETTERS:
        return f'<bdi class="aw-value">{exact_html(text)}</bdi>'
    head = f"{exact_html(text[:_HEAD_LETTERS])}… ({len(text):,} characters)"
    return (
        f'<details><summary><bdi class="aw-value">{head}</bdi></summary>'
        f'<bdi class="aw-value">{exact_html(text)}</bdi></details>'
    )


# --- what a rank kept beside its rows -------------------------------------------------------------


def kept_html(run_folder: Path, rank: int) -> str:
    """The last lines of a rank's console and its uncommitted diff as HTML, where it kept them."""
    folder = rank_folder(run_folder, rank)
    texts = {"Console": read_console(folder), "Uncommitted changes": read_diff(folder)}
    return "".join(_kept_section(title, text) for title, text in texts.items() if text)


def _kept_section(title: str, text: str) -> str:
    count = count_text(len(text.splitlines()), "last line" if title == "Console" else "line")
    what = title.lower()
    return (
        f'<section class="aw-kept"><h2 class="aw-section">{title}</h2><details data-key="{what}">'
        f'<summary>{count}; secrets are replaced</summary><button type="button" class="aw-copy" '
        f'aria-label="copy {what}" data-copy="{html.escape(text)}">copy</button>'
        f"<pre>{exact_html(text)}</pre></details></section>"
    )


# --- the previous run of the same script ----------------------------------------------------------


MOST_READ = 2_000  # runs, the newest ones: each is a file to open, 0.2 ms
_MOST_KEPT = 24  # runs whose settings are held


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The previous run of the same script, and its settings."""

    choice: ListedRun
    info: RunInfo
    settings: dict[str, str]


def previous_run(info: RunInfo, choices: Sequence[ListedRun]) -> PreviousRun | None:
    """The last of these runs of the same script that started before this one."""
    newest = sorted(choices, key=lambda choice: choice.run.last_time_ns, reverse=True)
    infos = {}
    for choice in newest[:MOST_READ]:
        if choice.origin is Origin.PUBLISHED:
            continue  # each would have to be fetched
        try:
            stamp = (Path(choice.path) / RUN_FILE).stat().st_mtime_ns
            infos[choice.path] = _info_without_settings(choice.path, stamp)
        except (AmpwatchError, OSError):
            continue  # the list of runs says what is wrong with it
    path = run_before(info, infos.items())
    if path is None:
        return None
    choice = next(one for one in choices if one.path == path)
    return PreviousRun(choice, infos[path], _settings_of(path, choice.run.last_time_ns))


@functools.lru_cache(maxsize=MOST_READ)
def _info_without_settings(path: str, _stamp: int) -> RunInfo:
    """What identifies a run, without its settings, which may be large; kept by its stamp."""
    info = read_info(Path(path))
    return replace(info, config={}, environment={}, versions={}, scaler={}, marks={}, notes=())


@functools.lru_cache(maxsize=_MOST_KEPT)
def _settings_of(path: str, _last_time_ns: int) -> dict[str, str]:
    return whole_settings(open_run(path))
