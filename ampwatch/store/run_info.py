"""What a run says about itself: RUN/run.json, in which secrets are masked.

Beside it, RUN/recorder.json says which ranks are a recorder's copies, and what each lacks.

A secret is known by the last word of its name: `wandb_api_key` hides its value, `key_dim` does not.
User names and passwords in addresses, and tokens of well-known services, are masked wherever they
stand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ampwatch.errors import FutureRunError, NotARunError, RunError, reason_of
from ampwatch.files import BAD_VALUES, open_regular, read_at_most, replace_file
from ampwatch.ranges import Range, Ranges
from ampwatch.rows import FORMAT

RUN_FILE = "run.json"
MAX_INFO_BYTES = 16 << 20
_MAX_DEPTH = 12
_NUMBERS_END = 1 << 63
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Who ran what, when and with which settings.

    Written once, when the run is created; an importer, which learns as it reads, replaces it with
    `describe_run`. `notes` are sentences on what a foreign log lacks, `marks` say how to read a
    column of one (`rows.Mark`).
    """

    id: str  # 32 hex digits
    name: str
    source: str = "ampwatch"
    started_ns: int = 0
    host: str = ""
    command: tuple[str, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)  # folder, script, commit; if known
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that tell something
    versions: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    scaler: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    layer_every: int = 50
    format: int = FORMAT
    notes: tuple[str, ...] = ()
    marks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of run.json, without secrets; what JSON cannot hold becomes a string."""
        facts = _plain({name: getattr(self, name) for name in self.__slots__}, _MAX_DEPTH)
        facts["command"] = list(masked_arguments(facts["command"]))
        for name in ("config", "environment", "origin"):
            facts[name] = masked_values(facts[name])
        return json.dumps(facts, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> RunInfo:
        """Read run.json's text; raises NotARunError or FutureRunError."""
        facts = _parse(text)
        _refuse_future(facts.get("format"))
        values = {name: facts[name] for name in cls.__slots__ if name in facts}
        for name, kind in _KINDS.items():
            if name in values and not _fits(values[name], kind):
                raise NotARunError(f"{RUN_FILE} is damaged: {name!r} is {values[name]!r:.80}.")
        if not _ID.fullmatch(str(values.get("id"))) or "name" not in values:
            raise NotARunError(f"{RUN_FILE} is damaged: it lacks an id of 32 hex digits or a name.")
        for name in ("command", "notes"):
            values[name] = tuple(str(word) for word in values.get(name, ()))
        values["marks"] = {
            name: tuple(map(str, marks))
            for name, marks in values.get("marks", {}).items()
            if isinstance(marks, list)
        }
        return cls(**values)


# What each field is in JSON; `format` is checked before.
_JSON_TYPES: dict[str, type] = {"str": str, "int": int, "tuple": list, "Mapping": dict}
_KINDS = {
    field.name: _JSON_TYPES[str(field.type).partition("[")[0]]
    for field in fields(RunInfo)
    if field.name != "format"
}


def describe_run(run_folder: Path, info: RunInfo) -> None:
    """Replace a run's run.json; readers see the old one or the new one, whole."""
    replace_file(run_folder / RUN_FILE, info.to_json().encode())


def read_info(run_folder: Path) -> RunInfo:
    """Read a run's run.json; raises NotARunError or FutureRunError."""
    path = run_folder / RUN_FILE
    try:
        with open_regular(path) as file:
            text = file.read(MAX_INFO_BYTES + 1)
    except OSError as problem:
        raise NotARunError(
            f"{run_folder} holds no run: its {RUN_FILE} cannot be read ({reason_of(problem)}).",
            path=run_folder,
        ) from None
    if len(text) > MAX_INFO_BYTES:
        raise NotARunError(f"{path} is larger than a {RUN_FILE} can be.", path=run_folder)
    try:
        return RunInfo.from_json(text)
    except (NotARunError, FutureRunError) as problem:
        raise type(problem)(f"{run_folder} cannot be opened: {problem}", path=run_folder) from None


def _parse(text: str | bytes) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError too
        raise NotARunError(f"{RUN_FILE} is not JSON; the file is damaged or not ours.") from None
    if not isinstance(facts, dict):
        raise NotARunError(f"{RUN_FILE} does not describe a run.")
    plain: dict[str, Any] = _plain(facts, _MAX_DEPTH)  # half a surrogate can be read, not printed
    return plain


def _fits(value: object, kind: type) -> bool:
    """Whether a value in run.json is of this kind; a whole number must also fit a column."""
    if isinstance(value, int) and not 0 <= value < _NUMBERS_END:
        return False
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _refuse_future(number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool):
        raise NotARunError(f"{RUN_FILE} has no format number; the file is damaged or not ours.")
    if number > FORMAT:
        raise FutureRunError(
            f"The run has format {number} and this ampwatch reads up to {FORMAT}: update ampwatch."
        )


def _plain(value: Any, depth: int) -> Any:
    """A value for run.json, in JSON's types; `depth` ends what contains itself."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > 0 and isinstance(value, Mapping):
        return {_plain(str(key), 0): _plain(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    return _plain(_described(value), 0)


def _described(value: Any) -> str:
    # The user's own __repr__ may raise anything; a config that cannot be shown must not stop a run.
    try:
        return str(value)[:1000]
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


# --- secrets --------------------------------------------------------------------------------------

MASK = "***"
_SECRET_WORDS = frozenset({
    "token", "password", "passwd", "pwd", "passphrase", "secret",
    "credential", "credentials", "key", "apikey", "auth",
})  # fmt: skip
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[\w-]{8,}"
)


def masked_values(value: Any, name: str = "") -> Any:
    """A value for run.json, with all replaced that stands under the name of a secret.

    Whether there is one still shows: nothing and truth values stay.
    """
    if isinstance(value, dict):
        is_secret = names_secret(name)
        return {
            inner: masked_values(item, name if is_secret else inner)
            for inner, item in value.items()
        }
    if isinstance(value, list):
        return [masked_values(item, name) for item in value]
    if value in (None, "") or isinstance(value, bool):
        return value
    if names_secret(name):
        return MASK
    return _masked_text(value) if isinstance(value, str) else value


def masked_arguments(argv: Iterable[str]) -> Iterator[str]:
    """A run's arguments, with the values of flags that name a secret replaced by stars."""
    secret_follows = False
    for argument in argv:
        flag, equals, value = argument.partition("=")
        if secret_follows and not argument.startswith("--"):
            yield MASK
            secret_follows = False
        elif equals and value and names_secret(flag):
            yield f"{flag}={MASK}"
            secret_follows = False
        else:
            yield _masked_text(argument)
            secret_follows = not equals and argument.startswith("-") and names_secret(flag)


def _masked_text(text: str) -> str:
    return _KNOWN_TOKENS.sub(MASK, _USER_INFO.sub(MASK, text))


# In lines that anybody wrote: `name = value`, `"name": "value"`, `--name value`. More than secrets
# may be replaced; a secret that stays is worse.
_ASSIGNED = re.compile(
    r"""(?P<start>(?<![\w.-])(?P<name>[A-Za-z_][\w.-]*)["']?\s?[:=]\s?"""
    r"""|(?<![\w-])--(?P<flag>[\w-]+)\s(?=[^\s-]))"""
    r"""(?!(?:None|True|False|lambda)\b)(?:"[^"\n]*"|'[^'\n]*'|[^\s"',;)}\]]+)"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)
_LEAST_SECRET = 8  # characters of a variable's value: a shorter one stands for other things too


def masked_lines(text: str, environment: Mapping[str, str]) -> str:
    """Lines of a program's output or code, with what looks like a secret replaced by stars.

    So is the value of each variable of this environment whose name is that of a secret.
    """
    for name, value in environment.items():
        if names_secret(name) and len(value) >= _LEAST_SECRET:
            text = text.replace(value, MASK)
    text = _BEARER.sub(rf"\1 {MASK}", _PRIVATE_KEY.sub(rf"\1{MASK}\2", text))
    return _ASSIGNED.sub(_masked_assignment, _masked_text(text))


def _masked_assignment(match: re.Match[str]) -> str:
    is_secret = names_secret(match["name"] or match["flag"])
    return f"{match['start']}{MASK}" if is_secret else match[0]


def names_secret(name: str) -> bool:
    """Whether what stands under this name is a secret, by the last word of it."""
    words = _WORDS.findall(name)
    return bool(words) and words[-1].lower() in _SECRET_WORDS


# --- recorder.json --------------------------------------------------------------------------------

# A copy's own rows cannot say which batches will never come, nor whether the trainer ended where
# the copy ends. A rank without a note was written by its trainer.

COPY_FILE = "recorder.json"
_MAX_COPIES_BYTES = 16 << 20
MOST_GAPS = 1000  # that a recorder notes; if there are more, only their number is reported


@dataclass(frozen=True, slots=True)
class CopyNote:
    """What recorder.json says of a rank: what will never come, and where its end mark was."""

    gaps: tuple[Range, ...] = ()
    ended_at: int | None = None


def read_copies(run_folder: Path) -> dict[int, CopyNote]:
    """The notes of the ranks that a recorder has filed; none for a trainer's own run."""
    try:
        return load_copies(run_folder)
    except RunError:
        return {}


def load_copies(run_folder: Path) -> dict[int, CopyNote]:
    """The notes on copies for the recorder, which must not guess: RunError if unreadable.

    Without notes a copy looks like a trainer's own log, into which nothing is ever filed.
    """
    path = run_folder / COPY_FILE
    try:
        ranks = json.loads(read_at_most(path, _MAX_COPIES_BYTES))["ranks"]
        return {int(rank): _note(facts) for rank, facts in ranks.items()}
    except FileNotFoundError:
        return {}
    except (OSError, *BAD_VALUES) as problem:
        raise RunError(
            f"{path} is damaged or cannot be read, so it is not known who wrote the rows beside "
            f"it: move {run_folder} away, and a new copy is made from the trainer's log.",
            path=path,
        ) from problem


def write_copies(run_folder: Path, notes: Mapping[int, CopyNote]) -> None:
    """Replace the notes on copies; an OSError leaves the old ones."""
    text = json.dumps({"ranks": {rank: asdict(note) for rank, note in notes.items()}})
    replace_file(run_folder / COPY_FILE, text.encode())


def what_lacks(held: Ranges, note: CopyNote | None, *, is_over: bool) -> Iterator[str]:
    """What a copy lacks: sentences, without subject and full stop, on its missing batches.

    `is_over`: nobody writes the files any more.
    """
    lost = note.gaps if note else ()
    missing = Ranges(held.gaps)
    if len(missing) > MOST_GAPS:
        yield f"{len(missing)} ranges of batches are not in this copy"
        return
    for first, after in missing.without(lost):
        yield f"{_numbers(first, after)} not in this copy"
    for first, after in lost:
        yield f"{_numbers(first, after)} lost for good: the trainer's own log no longer had them"
    if note is not None and note.ended_at is None and is_over:
        yield (
            f"this copy stops before batch {held.end}, without an end mark; what the trainer wrote "
            "after that is in the trainer's own log only"
        )


def _numbers(first: int, after: int) -> str:
    return f"batch {first} is" if after - first == 1 else f"batches {first} to {after - 1} are"


def _note(facts: dict[str, list[list[int]] | int | None]) -> CopyNote:
    gaps, ended_at = facts["gaps"], facts["ended_at"]
    if not isinstance(gaps, list) or not isinstance(ended_at, int | None):
        raise TypeError("not a note of ours")
    if len(gaps) > MOST_GAPS:
        raise ValueError("more gaps than a recorder notes")
    return CopyNote(tuple((int(first), int(after)) for first, after in gaps), ended_at)
