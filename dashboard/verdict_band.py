"""The band at the top of a run: the verdict, what broke, since when, and what to do."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
from html_text import age_text, rate_text, said, ticking_age
from open_runs import RunSnapshot

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Severity
from ampwatch.diagnosis.value_text import go_back_text, limit_text, restart_text, time_text
from ampwatch.follow import State
from ampwatch.recovery.proof import sentence_of
from ampwatch.report.overview_chart import is_change
from ampwatch.report.painter import VERDICT_COLOR

YET = "Nothing can be judged yet."
_STALL_S, _STALL_STEPS = 10.0, 20  # a step that takes longer than both is reported
_STEPS_ASKED = 200


def verdict_band(run: RunSnapshot) -> str:
    """The band at the top of a run as HTML: verdict, headline, since when, and what to do."""
    diagnosis = run.diagnosis
    if diagnosis is None:
        return _band("incomplete", "READING", f"{len(run.curves):,} steps are being judged.", "")
    verdict, head = diagnosis.verdict.value, diagnosis.headline
    if diagnosis.calm is not None or head is None:
        nothing = verdict == "incomplete" and diagnosis.little_seen is None
        calm = YET if run.is_live and nothing else diagnosis.calm or ""
        state = _state(run, says_why=verdict != "cut off")
        return _band(verdict, verdict.upper(), said(calm), f'<span class="aw-where">{state}</span>')
    since = "" if head.first_step is None else f"since step {head.first_step:,} · "
    where = f'<span class="aw-where">{since}{said(_chain(diagnosis, head))} · {_state(run)}</span>'
    body = (
        f'<div class="aw-head" role="heading" aria-level="2">{said(head.summary)}</div>'
        f'<div class="aw-do">{" &ensp;".join(_what_to_do(run, diagnosis, head))}</div>'
    )
    proof = run.proof()
    if proof is not None:
        body += f'<div class="aw-do">{said(sentence_of(proof))}</div>'
    also = _other_findings(diagnosis, head)
    body += f'<div class="aw-also">{said(also)}</div>' if also else ""
    return _band(verdict, verdict.upper(), where, body)


def _band(verdict: str, word: str, where: str, body: str) -> str:
    calm = "calm" if not body.startswith("<div") else ""
    return (
        f'<div class="aw-band {calm}" style="--aw-tone:var(--aw-{VERDICT_COLOR[verdict]})">'
        f'<span class="aw-verdict {verdict}">{word}</span>{where} {body}</div>'
    )


def _state(run: RunSnapshot, *, says_why: bool = True) -> str:
    """The state of the run in the band; a page whose server is gone hides it (server_watch.js)."""
    return f'<span class="aw-state">{_freshness(run, says_why=says_why)}</span>'


def _freshness(run: RunSnapshot, *, says_why: bool) -> str:
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
    why = ": no end mark, and nobody writes it any more" if says_why else ""
    return f"cut off {age_text(age)} ago{why}"


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


def _what_to_do(run: RunSnapshot, diagnosis: Diagnosis, head: Finding) -> Iterator[str]:
    """What to do, for the band: the learning rate in numbers or words; and the suspected layer."""
    advice = diagnosis.learning_rate
    yield _advice_line(run, advice) if is_change(advice) else said(head.action)
    if advice.action in {Action.KEEP, Action.NOT_THE_CAUSE}:
        yield "Learning rate: leave it."
    suspect = diagnosis.suspect
    if suspect is not None:
        yield _suspect_text(diagnosis, suspect)


def _advice_line(run: RunSnapshot, advice: Advice) -> str:
    """The band's advice in numbers: where to restart, with which learning rate."""
    assert advice.recommended is not None
    where = restart_text(advice.restart_checkpoint_step, advice.restart_from_step)
    if advice.leapt_at_step is not None:
        assert advice.current is not None  # the rate of the leap
        back = go_back_text(f"<b>lr = {rate_text(advice.recommended)}</b>", advice.leapt_at_step)
        undo = f"undo what made it {rate_text(advice.current)} there"
        return f"{back}: the run had trained at it. {said(where or 'Restart')}, and {undo}."
    text = f"{said(where or 'Restart')} with "
    rate, _ = run.curves.latest("lr")
    is_base = bool(rate and advice.current and not math.isclose(rate, advice.current, rel_tol=1e-3))
    text += f"<b>{'base lr' if is_base else 'lr'} = {rate_text(advice.recommended)}</b>"
    text += "" if advice.besides is None else f" and {said(advice.besides)}"
    known = [] if advice.current is None else [f"now {rate_text(advice.current)}"]
    is_estimated = advice.proved_steps is None  # what reruns have shown stands below
    if advice.low is not None and advice.high is not None and is_estimated:
        known.append(limit_text(advice.low, advice.high))
    return f"{text} ({'; '.join(known)})." if known else f"{text}."


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
