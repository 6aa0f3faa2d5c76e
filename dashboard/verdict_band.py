"""The band at the top of a run: the verdict, what broke, what to do and how sure that is."""

from __future__ import annotations

import time

import numpy as np
from html_text import age_text, said, ticking_age
from open_runs import RunSnapshot

from ampwatch.diagnosis import Diagnosis, Finding, Severity
from ampwatch.diagnosis.value_text import time_text
from ampwatch.follow import State
from ampwatch.recovery.proof import sentence_of
from ampwatch.report.letter import Letter
from ampwatch.report.letter_facts import Fact, Sentence
from ampwatch.report.painter import VERDICT_COLOR

YET = "Nothing can be judged yet."
_STALL_S, _STALL_STEPS = 10.0, 20  # a step that takes longer than both is reported
_STEPS_ASKED = 200
_MOST_SURE = 2  # sentences on how sure the conclusion is


def verdict_band(run: RunSnapshot) -> str:
    """The band at the top of a run as HTML: verdict, what broke, what to do, how sure."""
    diagnosis = run.diagnosis
    if diagnosis is None:
        return _band("incomplete", "READING", f"{len(run.curves):,} steps are being judged.", "")
    verdict, head = diagnosis.verdict.value, diagnosis.headline
    if diagnosis.calm is not None or head is None:
        nothing = verdict == "incomplete" and diagnosis.little_seen is None
        calm = YET if run.is_live and nothing else diagnosis.calm or ""
        state = f'<span class="aw-where">{_state(run)}</span>'
        return _band(verdict, verdict.upper(), said(calm), state)
    where = f'<span class="aw-where">{said(_chain(diagnosis, head))} · {_state(run)}</span>'
    letter = run.letter()
    body = "" if letter is None else _of_letter(letter)
    suspect = diagnosis.suspect
    if suspect is not None:
        body += f'<div class="aw-do">{_suspect_text(diagnosis, suspect)}</div>'
    proof = run.proof()
    if proof is not None:
        body += f'<div class="aw-do">{said(sentence_of(proof))}</div>'
    also = _other_findings(diagnosis, head)
    body += f'<div class="aw-also">{said(also)}</div>' if also else ""
    return _band(verdict, verdict.upper(), where, body)


def _of_letter(letter: Letter) -> str:
    """The letter's title, what happened, what to do and how sure that is, as HTML."""
    opening = "".join(f'<div class="aw-do">{_sentence(one)}</div>' for one in letter.opening)
    steps = "".join(f"<li>{_sentence(one)}</li>" for one in letter.to_do)
    sure = " ".join(_sentence(one) for one in letter.how_sure[:_MOST_SURE])
    return (
        f'<div class="aw-head" role="heading" aria-level="2">{said(letter.title)}</div>{opening}'
        f'<ol class="aw-do aw-steps">{steps}</ol><div class="aw-also">{sure}</div>'
    )


def _sentence(sentence: Sentence) -> str:
    """A sentence as HTML, its numbers in bold."""
    return "".join(
        f"<b>{said(part.text)}</b>" if isinstance(part, Fact) else said(str(part))
        for part in sentence.parts
    )


def _band(verdict: str, word: str, where: str, body: str) -> str:
    calm = "calm" if not body.startswith("<div") else ""
    return (
        f'<div class="aw-band {calm}" style="--aw-tone:var(--aw-{VERDICT_COLOR[verdict]})">'
        f'<span class="aw-verdict {verdict}">{word}</span>{where} {body}</div>'
    )


def _state(run: RunSnapshot) -> str:
    """The state of the run in the band; a page whose server is gone hides it (server_watch.js)."""
    return f'<span class="aw-state">{_freshness(run)}</span>'


def _freshness(run: RunSnapshot) -> str:
    """Whether the run is live and how fresh, silent or ended, in words for the band."""
    now = time.time_ns()
    if run.info.source != "ampwatch":  # other tools write no end mark, and many no times
        live = "live, " if run.is_live else ""
        return f"{live}read from a log of {said(run.info.source)}"
    age = (now - run.last_time_ns) / 1e9
    if run.is_live:
        since = (now - run.curves.last_step_ns) / 1e9
        usual = _usual_step_s(run)
        if run.curves.last_step_ns and since > max(_STALL_S, _STALL_STEPS * usual):
            takes = f"; one usually takes {time_text(1000 * usual)}" if usual else ""
            return f"live, but no step for {age_text(since)}{takes}: evaluating, saving, or hung"
        return f"live, {ticking_age(age)} ago"
    if run.state is State.ENDED:
        return f"ended {age_text(age)} ago"
    return (
        f"cut off {age_text(age)} ago: its process was killed or crashed, or its machine was lost"
    )


def _usual_step_s(run: RunSnapshot) -> float:
    times = run.curves.columns["step_time_ms"][-_STEPS_ASKED:]
    known = times[np.isfinite(times)]
    return float(np.median(known)) / 1000 if len(known) else 0.0


def _chain(diagnosis: Diagnosis, head: Finding) -> str:
    """The code and name of the headline's finding, and those of its gravest consequence."""
    follows = [
        f"{f.code} {f.name}" for f in diagnosis.findings
        if f.because_of == head.code and f.severity is not Severity.INFO
    ]  # fmt: skip
    return " → ".join([f"{head.code} {head.name}", *follows[:1]])


def _suspect_text(diagnosis: Diagnosis, suspect: Finding) -> str:
    """The layer that the diagnosis suspects, and the rank, if it is one of several."""
    one = len(suspect.ranks) == 1 < len(diagnosis.run.ranks)
    who = f" of <b>rank {suspect.ranks[0]}</b>" if one else ""
    symptom = " (symptom)" if diagnosis.is_symptom(suspect) else ""
    return f"Layer: <b>{said(suspect.layer or '')}</b>{who}{symptom}."


def _other_findings(diagnosis: Diagnosis, head: Finding) -> str:
    """The other serious findings of a run, in a sentence for the band."""
    rest = [
        f"{f.code} {f.name}" for f in diagnosis.findings[1:]
        if f.severity is not Severity.INFO and f.because_of != head.code
    ]  # fmt: skip
    return f"Also found: {', '.join(dict.fromkeys(rest))}." if rest else ""
