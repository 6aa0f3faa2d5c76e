"""The band at the top of a run: the verdict, what broke, since when, and what to do."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterator
from pathlib import Path

import address
import numpy as np
from formatting import age_text, counted_age, rate_text, said
from open_runs import Look

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Severity
from ampwatch.diagnosis.code_to_paste import words_and_lines
from ampwatch.diagnosis.words import go_back_text, limit_text, restart_text, time_text
from ampwatch.follow import State
from ampwatch.recovery.proof import sentence_of
from ampwatch.report.overview_chart import is_change
from ampwatch.report.painter import VERDICT_COLOR

YET = "Nothing can be judged yet."
_STALL_S, _STALL_STEPS = 10.0, 20  # a step that takes longer than both is reported
_STEPS_ASKED = 200


def band(look: Look) -> str:
    """The verdict on a run, with the headline and what to do."""
    diagnosis = look.diagnosis
    if diagnosis is None:
        return _band("incomplete", "READING", f"{len(look.curves):,} steps are being judged.", "")
    verdict, head = diagnosis.verdict.value, diagnosis.headline
    if diagnosis.calm is not None or head is None:
        nothing = verdict == "incomplete" and diagnosis.little_seen is None
        calm = YET if look.is_live and nothing else diagnosis.calm or ""
        state = _state(look, says_why=verdict != "cut off")
        return _band(verdict, verdict.upper(), said(calm), f'<span class="aw-where">{state}</span>')
    since = "" if head.first_step is None else f"since step {head.first_step:,} · "
    where = f'<span class="aw-where">{since}{said(_chain(diagnosis, head))} · {_state(look)}</span>'
    body = (
        f'<div class="aw-head" role="heading" aria-level="2">{said(head.summary)}</div>'
        f'<div class="aw-do">{" &ensp;".join(_do(look, diagnosis, head))}</div>'
    )
    proof = look.proof()
    if proof is not None:
        body += f'<div class="aw-do">{said(sentence_of(proof))}</div>'
    also = _also(diagnosis, head)
    body += f'<div class="aw-also">{said(also)}</div>' if also else ""
    return _band(verdict, verdict.upper(), where, body)


def _band(verdict: str, word: str, where: str, body: str) -> str:
    calm = "calm" if not body.startswith("<div") else ""
    return (
        f'<div class="aw-band {calm}" style="--aw-tone:var(--aw-{VERDICT_COLOR[verdict]})">'
        f'<span class="aw-verdict {verdict}">{word}</span>{where} {body}</div>'
    )


def _state(look: Look, *, says_why: bool = True) -> str:
    """The state of the record; a page whose server is gone hides it (server_watch.js)."""
    return f'<span class="aw-state">{_freshness(look, says_why=says_why)}</span>'


def _freshness(look: Look, *, says_why: bool) -> str:
    """Live and how fresh, silent, or ended; `says_why` it counts as cut off."""
    now = time.time_ns()
    if look.info.source != "ampwatch":  # other tools write no end mark, and many no times
        live = "live, " if look.is_live else ""
        return f"{live}read from a log of {said(look.info.source)}"
    age = (now - look.last_time_ns) / 1e9
    if look.is_live:
        since = (now - look.curves.last_step_ns) / 1e9
        usual = _usual_step_s(look)
        if look.curves.last_step_ns and since > max(_STALL_S, _STALL_STEPS * usual):
            takes = f"; one usually takes {time_text(1000 * usual)}" if usual else ""
            return f"live, but no step for {age_text(since)}{takes}: evaluating, saving, or hung"
        return f"live, {counted_age(age)} ago"
    if look.state is State.ENDED:
        return f"ended {age_text(age)} ago"
    why = ": no end mark, and nobody writes it any more" if says_why else ""
    return f"cut off {age_text(age)} ago{why}"


def _usual_step_s(look: Look) -> float:
    times = look.curves.columns["step_time_ms"][-_STEPS_ASKED:]
    known = times[np.isfinite(times)]
    return float(np.median(known)) / 1000 if len(known) else 0.0


def _chain(diagnosis: Diagnosis, head: Finding) -> str:
    """The headline's code and name, and its gravest consequence's."""
    follows = [
        f"{f.code} {f.name}" for f in diagnosis.findings
        if f.because_of == head.code and f.severity is not Severity.INFO
    ]  # fmt: skip
    return " → ".join([f"{head.code} {head.name}", *follows[:1]])


def _do(look: Look, diagnosis: Diagnosis, head: Finding) -> Iterator[str]:
    """The action in numbers where the rate is the cure, else in words; and the culprit layer."""
    advice = diagnosis.learning_rate
    yield _advice_line(look, advice) if is_change(advice) else _words(look, head)
    if advice.action in {Action.KEEP, Action.NOT_THE_CAUSE}:
        yield "Learning rate: leave it."
    suspect = diagnosis.suspect
    if suspect is not None:
        yield _place(diagnosis, suspect)


def _words(look: Look, head: Finding) -> str:
    """The action in words; lines to paste would push the charts off the screen."""
    words, lines = words_and_lines(head.action)
    if not lines:
        return said(words)
    page = html.escape(
        address.link("findings", address.Address(run=Path(look.path).name.rpartition("#")[2]))
    )
    return f'{said(words)} <a class="aw-lines" href="{page}" target="_self">The lines to paste</a>'


def _advice_line(look: Look, advice: Advice) -> str:
    """Where to restart and with which rate; under a schedule, the base rate."""
    assert advice.recommended is not None
    where = restart_text(advice.restart_checkpoint_step, advice.restart_from_step)
    if advice.leapt_at_step is not None:
        assert advice.current is not None  # the rate of the leap
        back = go_back_text(f"<b>lr = {rate_text(advice.recommended)}</b>", advice.leapt_at_step)
        undo = f"undo what made it {rate_text(advice.current)} there"
        return f"{back}: the run had trained at it. {said(where or 'Restart')}, and {undo}."
    text = f"{said(where or 'Restart')} with "
    rate, _ = look.curves.latest("lr")
    is_base = bool(rate and advice.current and not math.isclose(rate, advice.current, rel_tol=1e-3))
    text += f"<b>{'base lr' if is_base else 'lr'} = {rate_text(advice.recommended)}</b>"
    known = [] if advice.current is None else [f"now {rate_text(advice.current)}"]
    is_estimated = advice.proved_steps is None  # what reruns have shown stands below
    if advice.low is not None and advice.high is not None and is_estimated:
        known.append(limit_text(advice.low, advice.high, advice.recommended))
    return f"{text} ({'; '.join(known)})." if known else f"{text}."


def _place(diagnosis: Diagnosis, suspect: Finding) -> str:
    """The layer that the engine names, and the rank, if it is one of several."""
    one = len(suspect.ranks) == 1 < len(diagnosis.run.ranks)
    who = f" of <b>rank {suspect.ranks[0]}</b>" if one else ""
    symptom = " (symptom)" if diagnosis.is_symptom(suspect) else ""
    return f"Layer: <b>{said(suspect.layer or '')}</b>{who}{symptom}."


def _also(diagnosis: Diagnosis, head: Finding) -> str:
    """Other serious findings."""
    rest = [
        f"{f.code} {f.name}" for f in diagnosis.findings[1:]
        if f.severity is not Severity.INFO and f.because_of != head.code
    ]  # fmt: skip
    return f"Also found: {', '.join(dict.fromkeys(rest))}." if rest else ""
