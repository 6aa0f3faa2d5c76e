"""AMP314: experts of a mixture to which its router sends next to no tokens."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.expert_history import IDLE_PART
from ampwatch.diagnosis.findings import Severity
from ampwatch.diagnosis.rule import RuleHit, rule
from ampwatch.diagnosis.value_text import Evidence, count_text, list_text

# Fewer experts cost little of the model.
IDLE_SHARE = 0.1


@rule("AMP314", "idle-experts", Severity.WARNING)
def idle_experts(case: Case) -> Iterator[RuleHit]:
    """Experts of a mixture that receive next to no tokens."""
    windows = case.experts.full
    idle = {name: experts for name, one in windows.items() if len(experts := one.idle)}
    if not idle:
        return
    worst = max(idle, key=lambda name: len(idle[name]) / len(windows[name].tokens))
    window, experts = windows[worst], idle[worst].tolist()
    of, fair = len(window.tokens), float(window.tokens.mean())
    most = int(window.tokens[experts].max())
    others = [name for name in idle if name != worst]
    yield RuleHit(
        at=window,
        layer=worst,
        severity=None if len(experts) >= IDLE_SHARE * of else Severity.INFO,
        summary=f"{worst} sends next to no tokens to {len(experts)} of its "
        f"{count_text(of, 'expert')}.",
        cause=f"In {count_text(window.samples, 'sample')} "
        f"{list_text([f'expert {number}' for number in experts])} received "
        f"{count_text(most, 'token')} at most; an equal share is {fair:,.0f}."
        + (f" Other routers with idle experts: {list_text(others)}." if others else ""),
        evidence=Evidence("idle_tokens", window.last_step, float(most), IDLE_PART * fair, "limit"),
    )
