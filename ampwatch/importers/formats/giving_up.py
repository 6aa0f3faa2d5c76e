"""The messages with which a run ends: a framework gives it up, or an exception ends the program.

A table of phrases: the words, and which value is not finite. A line about a setting does not count;
nor does one after which the run goes on (the run builder checks that).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ampwatch.importers.format import Format
from ampwatch.importers.statements import GaveUp, Statement

_BAD = r"(?:nan|inf|-inf|infinite|non-?finite|not finite|not a number)"
_END = r"(?:stopping|stopped|terminating|terminated|aborting|aborted|exiting|giving up|quitting)"
_LOWEST = r"(?:minimum|too (?:small|low))"
_SCALE = r"(?:loss|grad(?:ient)?)[ _]scal(?:e|er|ing)"


@dataclass(frozen=True, slots=True)
class _Saying:
    """A phrase with which frameworks give up; a group of its pattern is the step."""

    anchor: str  # a literal part of it
    pattern: re.Pattern[str]
    column: str | None  # the value that is not finite; None: the loss scale cannot fall any further
    exception: str


def _saying(anchor: str, text: str, column: str | None, exception: str) -> _Saying:
    return _Saying(anchor, re.compile(f"(?i){text}"), column, exception)


_SAYINGS = (
    # detectron2, MMEngine
    _saying("infinite or NaN", r"loss bec[ao]me infinite or nan(?: at iteration=(\d{1,12}))?",
            "loss", "FloatingPointError"),
    # Composer, AllenNLP and OLMo, Lightning and its EarlyStopping
    _saying("Train loss contains", r"train loss contains a nan", "loss", "RuntimeError"),
    _saying("nan loss encountered", r"nan loss encountered", "loss", "ValueError"),
    _saying("The loss returned in", rf"the loss returned in `training_step` is .{{0,20}}?{_BAD}",
            "loss", "ValueError"),
    _saying("Monitored metric", rf"monitored metric \S*loss\S* = {_BAD} is not finite", "loss",
            "EarlyStopping"),
    # Keras (with its batch of the epoch), MindSpore, TensorFlow's estimators
    _saying("Invalid loss", r"invalid loss, terminating training", "loss", "TerminateOnNaN"),
    _saying("Model diverged with", r"model diverged with loss = nan", "loss",
            "NanLossDuringTrainingError"),
    # Megatron-LM
    _saying("in local forward loss", r"found (?:nan|inf) in local forward loss calculation", "loss",
            "ValueError"),
    _saying("in local grad norm", r"found (?:nan|inf) in local grad norm", "grad_norm",
            "ValueError"),
    # fairseq; torch's clip_grad_norm_ and its anomaly mode
    _saying("gradients are Nan/Inf", r"gradients are nan/inf", "grad_norm", "FloatingPointError"),
    _saying("cannot be clipped", r"is non-finite, so it cannot be clipped", "grad_norm",
            "RuntimeError"),
    _saying("returned nan values", r"function '\w{1,60}' returned nan values in its", "grad_norm",
            "RuntimeError"),
    # Ultralytics
    _saying("NaN persisted", r"training failed: nan persisted for", "loss", "RuntimeError"),
    # An exception that a script raises.
    *(
        _saying(anchor, rf"^\W{{0,8}}\w{{0,60}}(?:error|exception): .{{0,80}}?{words}"
                r"(?:.{0,20}\b(?:step|iteration) (\d{1,12}))?", column, "ValueError")
        for anchor in ("Error: ", "Exception: ")
        for words, column in (
            (rf"\bloss\b.{{0,30}}?\b{_BAD}\b", "loss"),
            (rf"\b{_BAD}\b.{{0,12}}?\bloss\b", "loss"),
            (rf"\bgrad(?:ient)?s?\b.{{0,30}}?\b{_BAD}\b", "grad_norm"),
        )
    ),
    # Other wordings: MAE, DETR and their many derivatives, scripts.
    *(
        _saying(anchor, text, None if column == "scale" else column, "SystemExit")
        for anchor in ("topping", "topped", "erminating", "erminated", "borting", "borted",
                       "xiting", "iving up", "uitting")
        for column, text in (
            ("loss", rf"\bloss(?:es)?\b.{{0,40}}?\b{_BAD}\b.{{0,40}}?\b{_END}\b"),
            ("loss", rf"\b{_END}\b.{{0,40}}?\b{_BAD}\b.{{0,12}}?\bloss"),
            ("loss", rf"\b{_END}\b.{{0,40}}?\bloss\b.{{0,24}}?\b{_BAD}\b"),
            ("grad_norm", rf"\bgrad(?:ient)?s?\b.{{0,40}}?\b{_BAD}\b.{{0,40}}?\b{_END}\b"),
            ("grad_norm", rf"\b{_END}\b.{{0,40}}?\bgrad(?:ient)?s?\b.{{0,24}}?\b{_BAD}\b"),
            ("scale", rf"\b{_SCALE}\b.{{0,60}}?\b{_LOWEST}\b.{{0,60}}?\b{_END}\b"),
        )
    ),
)  # fmt: skip
# A setting, a condition, or a batch that is only left out.
_NO_END = re.compile(
    r"(?i)\b(?:if|when|whenever|unless|would|will|may|could|not|enable\w*|true|false|batch(?:es)? "
    r"skipped|skipping|skipped|patience|help)\b|--\w|namespace\(|^\s*(?:raise|print|log|assert)\b"
)
_AT_MINIMUM = "loss scale already at minimum"  # as the diagnosis knows it

# The last line of a traceback, of any rank.
_EXCEPTION = re.compile(
    r"(?:\W{0,4}rank\W?\d{1,6}\W{0,4})?(?:[A-Za-z_]\w{0,60}\.){0,8}"
    r"([A-Z]\w{0,60}(?:Error|Exception)): +(\S.*)"
)
_STOPPED = re.compile(r"\b(?:signal: (?:2|15)|SIGTERM|SIGINT)\b")  # by a person or a scheduler
# How a process dies that raises nothing itself.
_DEATHS = (
    ("collective operation timeout", "DistBackendError"),
    ("(SIGKILL) received by PID", "SignalException"),
    ("(SIGSEGV) received by PID", "SignalException"),
    ("Segmentation fault (core dumped)", "SegmentationFault"),
)
# What a shell says of a process that the kernel killed, mostly for the host's memory.
_KILLED = re.compile(r"(?:\S+: line \d+: +\d+ )?Killed(?: +python.*)?\s*$")
# What torch says of mixed precision and of a device, as of its memory, is understood without a row.
_SAYS_WHY = re.compile(
    r"(?i)attempting to unscale fp16|no inf checks were recorded|does not require grad and|"
    r"out ?of ?memory|unsafe to autocast|expected scalar|\bCUDA error\b|\bNCCL error\b|cuDNN error|"
    r"\bdtype\b.{0,80}\b(?:half|float16|bfloat16)\b"
)
# A traceback's frames, or a launcher's lines, of a program that trains.
_TRAINING_PROGRAM = re.compile(
    rb"(?i)\b(?:main_|run_)?(?:(?:pre)?train(?:er|ing)?|sft|grpo|dpo|ppo|distill)\w*\.py\b|"
    rb"\bfine_?tun(?:e|ing)\w*\.py\b|\.backward\(|optimizer\.step\(|\btorchrun\b|"
    rb"\btorch[./]distributed[./](?:elastic|run)\b|\.training_step\(|\btrainer\.fit\("
)

_PARTS_OF_ONE = (
    b".py", b".backward(", b"ptimizer.step(", b"orchrun", b"orch.distributed", b"orch/distributed",
    b".training_step(", b"rainer.fit(",
)  # fmt: skip


def is_of_training_program(text: bytes) -> bool:
    """Whether a text is of a program that trains, by the names of its files and calls."""
    # The pattern alone takes a second for 8 MB.
    may_be = any(part in text for part in _PARTS_OF_ONE)
    return may_be and _TRAINING_PROGRAM.search(text) is not None


def read(line: str) -> Iterator[Statement]:
    """Yield the statement that the run ends, if a line says so."""
    for statement in _SAYINGS:
        if statement.anchor in line and (told := statement.pattern.search(line)):
            if not _NO_END.search(line.replace("cannot", "").replace("not finite", "")):
                yield _gave_up(statement, told, line)
            return
    raised = _EXCEPTION.match(line)
    if raised is not None and not _STOPPED.search(raised[2]):
        message = raised[2].strip()[:300]
        yield GaveUp(raised[1], message, says_why=_SAYS_WHY.search(message) is not None)
        return
    died = next((exception for words, exception in _DEATHS if words in line), None)
    if died is None and _KILLED.match(line):
        died = "SIGKILL"
    if died is not None:
        yield GaveUp(died, line.strip()[:300])


def _gave_up(statement: _Saying, told: re.Match[str], line: str) -> GaveUp:
    message = line[told.start() :].strip()[:300]
    if statement.column is None and _AT_MINIMUM not in message:
        message = f"{_AT_MINIMUM}: {message}"
    step = next((group for group in told.groups() if group), None)
    return GaveUp(
        statement.exception, message, statement.column, None if step is None else int(step),
        says_why=True,
    )  # fmt: skip


_ANCHORS = [*(saying.anchor for saying in _SAYINGS), *(words for words, _ in _DEATHS), "Killed"]
FORMAT = Format("giving-up", tuple(dict.fromkeys(_ANCHORS)), read, is_shared=True)
