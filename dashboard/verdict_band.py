"""The band at the top of a run: the verdict, what broke, what to do and how sure that is."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Sequence

import address
import numpy as np
from html_text import said, ticking_age
from open_runs import RunSnapshot

from ampwatch.diagnosis import Diagnosis, Finding, Severity
from ampwatch.diagnosis.findings import CUT_OFF
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.value_text import time_text
from ampwatch.follow import State
from ampwatch.recovery.proof import sentence_of
from ampwatch.report.letter import CAUSE_UNKNOWN, Letter, begun_as_told
from ampwatch.report.letter_facts import Fact, Sentence
from ampwatch.report.painter import VERDICT_COLOR
from ampwatch.report.timeline import STOPPED_BY_HAND

YET = "Nothing can be judged yet."
_STALL_S, _STALL_STEPS = 10.0, 20  # a step that takes longer than both is reported
_STEPS_ASKED = 200
_MOST_SURE = 2  # sentences on how sure the conclusion is
_MOST_STEPS = 6  # of the last single steps of a finding
_CODE = re.compile(r"`([^`]+)`")
_A_STEP = re.compile(r"\bstep \d")


def verdict_band(run: RunSnapshot) -> str:
    """The band at the top of a run as HTML: verdict, what broke, what to do, how sure."""
    diagnosis = run.diagnosis
    if diagnosis is None:
        return _band("incomplete", "READING", f"{len(run.curves):,} steps are being judged.")
    verdict, head = diagnosis.verdict.value, diagnosis.headline
    letter = None if head is None or diagnosis.calm is not None else run.letter()
    if head is None or letter is None:
        nothing = verdict == "incomplete" and diagnosis.little_seen is None
        calm = YET if run.is_live and nothing else diagnosis.calm or ""
        more = f"<b>{said(calm)}</b>{state_html(run)}"
        to_do = _steps(run.letter()) if diagnosis.run.state == CUT_OFF else ""
        earlier = _also([_earlier(run)])
        return _band(verdict, verdict.upper(), more, _rows(("do", to_do)) + earlier)
    top = f"{state_html(run)}{_codes_html(diagnosis, head)}"
    title, opening = said(letter.title), list(letter.opening)
    cause = ""
    if diagnosis.run.state == CUT_OFF and opening:  # a dead run says so first, whatever was found
        cause, title = f"{title}. ", _sentence(opening.pop(0))
    cause += " ".join(_sentence(one) for one in opening)
    sure = " ".join(_sentence(one) for one in letter.how_sure[:_MOST_SURE])
    proof = run.proof()
    also = [
        sure,
        "" if proof is None else said(sentence_of(proof)),
        _others(diagnosis),
        _earlier(run),
    ]
    body = f'<div class="aw-head" role="heading" aria-level="2">{title}</div>' + _rows(
        (_label(letter), cause),
        ("when", _when(begun_as_told(diagnosis, letter).findings[0], opening)),
        ("where", _where(diagnosis)),
        ("do", _steps(letter)),
    )
    body += _also(also)
    return _band(verdict, verdict.upper(), top, body)


def _label(letter: Letter) -> str:
    """What the opening tells: the cause, or what was seen, where the title or nothing names one."""
    names_none = CAUSE_UNKNOWN in map(str, letter.how_sure)
    return "seen" if names_none or letter.blames_rate else "cause"


def _rows(*rows: tuple[str, str]) -> str:
    """Labelled rows of the band as HTML; those without contents are left out."""
    inside = "".join(f"<dt>{label}</dt><dd>{words}</dd>" for label, words in rows if words)
    return f'<dl class="aw-rows">{inside}</dl>' if inside else ""


def _steps(letter: Letter | None) -> str:
    """What to do, step by step, and a button that copies it, as HTML."""
    steps = () if letter is None else letter.to_do
    if not steps:
        return ""
    text = html.escape("\n".join(str(step) for step in steps))
    copy = (
        f'<button type="button" class="aw-copy" data-copy="{text}" '
        'aria-label="copy what to do">copy</button>'
    )
    if len(steps) == 1:
        return f'<div class="aw-do">{_sentence(steps[0])} {copy}</div>'
    lines = "".join(f"<li>{_sentence(step)}</li>" for step in steps)
    return f'<div class="aw-do"><ol class="aw-steps">{lines}</ol>{copy}</div>'


def _sentence(sentence: Sentence) -> str:
    """A sentence as HTML, its numbers in bold, what stands between backticks as code."""
    words = "".join(
        f"<b>{said(part.text)}</b>" if isinstance(part, Fact) else said(str(part))
        for part in sentence.parts
    )
    return _CODE.sub(r"<code>\1</code>", words)


def _band(verdict: str, word: str, top: str, body: str = "") -> str:
    calm = "" if body else " calm"
    return (
        f'<div class="aw-band{calm}" style="--aw-tone:var(--aw-{VERDICT_COLOR[verdict]})">'
        f'<div class="aw-band-top"><span class="aw-verdict {verdict}">{word}</span>{top}</div>'
        f"{body}</div>"
    )


def state_html(run: RunSnapshot) -> str:
    """The state of the run as HTML; a page whose server is gone hides it (server_watch.js)."""
    return f'<span class="aw-state aw-where">{_freshness(run)}</span>'


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
            return f"live, but no step for {ticking_age(since)}{takes}: evaluating, saving, or hung"
        return f"live, {ticking_age(age)} ago"
    if run.state is State.ENDED:
        how = STOPPED_BY_HAND if run.ending() == STOPPED_BY_HAND else "ended"
        return f"{how} {ticking_age(age)} ago"
    return (
        f"cut off {ticking_age(age)} ago: its process was killed or crashed, or its machine was "
        "lost"
    )


def _usual_step_s(run: RunSnapshot) -> float:
    times = run.curves.columns["step_time_ms"][-_STEPS_ASKED:]
    known = times[np.isfinite(times)]
    return float(np.median(known)) / 1000 if len(known) else 0.0


def _codes_html(diagnosis: Diagnosis, head: Finding) -> str:
    """The headline's finding and its gravest consequence as links to the page Findings."""
    follows = [
        f for f in diagnosis.findings
        if f.because_of == head.code and f.severity is not Severity.INFO
    ]  # fmt: skip
    where = html.escape(address.link("findings", address.read()))
    chips = (
        f'<a class="aw-code" href="{where}" data-go="{f.code}" data-key="code {f.code}" '
        f'title="{said(f.name.replace("-", " "))}">{f.code}</a>'
        for f in (head, *follows[:1])
    )
    return f'<span class="aw-codes">{"<i>→</i>".join(chips)}</span>'


def _where(diagnosis: Diagnosis) -> str:
    """The layer that the diagnosis suspects, and the rank if it is one of several, as HTML."""
    suspect = diagnosis.suspect
    if suspect is None:
        return ""
    one = len(suspect.ranks) == 1 < len(diagnosis.run.ranks)
    who = f" of <b>rank {suspect.ranks[0]}</b>" if one else ""
    shows = "shows in " if diagnosis.is_symptom(suspect) else ""
    return f"{shows}layer <b>{said(suspect.layer or '')}</b>{who}"


def _when(head: Finding, opening: Sequence[Sentence]) -> str:
    """At which steps the headline holds, as HTML; empty where the opening tells of a step."""
    first = head.first_step
    if first is None or any(_A_STEP.search(str(sentence)) for sentence in opening):
        return ""
    if head.goes_on or (head.last_step is None and not head.steps):
        return f"from step <b>{first:,}</b> on"
    if not head.steps:
        return f"from step <b>{first:,}</b> to <b>{head.last_step:,}</b>"
    others = sorted({*head.steps} - {first})
    shown = [first, *others[-_MOST_STEPS:]]
    words = [f"<b>{step:,}</b>" for step in shown]
    if len(shown) <= len(others):
        words.insert(1, "…")
    return f"at step{'s' if others else ''} {', '.join(words)}"


def _also(sentences: list[str]) -> str:
    return "".join(f'<div class="aw-also">{words}</div>' for words in sentences if words)


def _earlier(run: RunSnapshot) -> str:
    """Which headlines of a live run others have replaced while it was looked at."""
    if not run.is_live or run.verdict is None or run.diagnosis is None:
        return ""
    weighty = {finding.code: bool(finding.severity.weight) for finding in run.diagnosis.findings}
    replaced = [f for f in run.verdict.earlier if not weighty.get(f.code)]
    gone = "and withdrawn since" if run.diagnosis.calm is not None else "replaced by the above"
    groups = {
        gone: [f for f in replaced if f.code not in weighty],
        "now a remark": [f for f in replaced if f.code in weighty],
    }
    return " ".join(_said_earlier(run, how, group) for how, group in groups.items() if group)


def _said_earlier(run: RunSnapshot, how: str, findings: Sequence[Finding]) -> str:
    # Without a step: the band told the letter's, which is not kept.
    words = (f"{title_of(f, run.ranks)} ({f.code})" for f in findings)
    return said(f"Said earlier, {how}: {'; '.join(words)}.")


def _others(diagnosis: Diagnosis) -> str:
    """The other serious findings of a run, in a sentence for the band."""
    rest = [
        f"{f.code} {f.name}" for f in diagnosis.findings[1:]
        if f.severity is not Severity.INFO and f.code not in diagnosis.effects
    ]  # fmt: skip
    return said(f"Also found: {', '.join(dict.fromkeys(rest))}.") if rest else ""
