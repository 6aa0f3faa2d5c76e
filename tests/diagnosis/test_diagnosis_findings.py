"""What the findings add up to: how each stands, which layer is at fault, where to restart."""

from __future__ import annotations

import dataclasses

import pytest
from hand_built import HandBuiltRun, Info, step_table

from ampwatch.diagnosis import RULES, diagnose
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.causes import link_causes
from ampwatch.diagnosis.engine import Engine
from ampwatch.diagnosis.findings import Finding, FindingStatus, Severity
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.rule import RuleHit, title_of

CALM = HandBuiltRun(step_table(skipped=[False] * 40, scale=[2.0**16] * 40))


def finding(code, *, layer=None, because_of=None):
    return Finding(code, code, Severity.ERROR, 3, 9, (0,), layer, "", "", "", because_of=because_of)


def found(seen):
    """The finding that the first rule of errors makes of it."""
    rule = next(rule for rule in RULES if rule.usual is Severity.ERROR)
    case = Engine().feed(CALM).case()
    (made,) = dataclasses.replace(rule, check=lambda _: [seen]).findings(case)
    return made


@pytest.mark.parametrize(
    ("standing", "severity", "action", "ending"),
    [
        (FindingStatus.STANDS, Severity.ERROR, "Mend it.", ""),
        (FindingStatus.PAUSED, Severity.ERROR, "Mend it.", ""),
        (FindingStatus.HEALS, Severity.ERROR, "Mend it.", ", but no longer at the end"),
        (
            FindingStatus.HEALED,
            Severity.INFO,
            "Nothing to do unless it returns.",
            ", but no longer at the end",
        ),
    ],
)
def test_how_it_stands_sets_severity_action_and_ending(standing, severity, action, ending):
    made = found(RuleHit("", "", "Mend it.", standing=standing, at=Times(2, 5, 7, 7)))
    assert (made.severity, made.action) == (severity, action)
    assert (made.first_step, made.last_step) == (5, 7)
    assert standing.ending == ending
    assert made.last_in(40) == (40 if standing is FindingStatus.STANDS else 7)
    assert title_of(made).endswith("at the end") is (standing is FindingStatus.HEALS)


def test_what_was_seen_in_the_last_steps_stands_and_what_was_long_ago_is_healed():
    case = Engine().feed(HandBuiltRun(step_table(skipped=[False] * 400))).case()
    assert case.standing(Times(1, 390, 390, 390)) is FindingStatus.STANDS
    assert case.standing(Times(1, 5, 5, 5)) is FindingStatus.HEALED


def test_the_suspect_is_the_headlines_layer_or_that_of_its_own_consequence():
    calm = diagnose(CALM)
    head, effect = finding("AMP103"), finding("AMP203", layer="a", because_of="AMP103")
    other = finding("AMP201", layer="b")

    def suspect(*findings):
        one = dataclasses.replace(calm, findings=findings).suspect
        return one and one.layer

    assert suspect(dataclasses.replace(head, layer="c"), effect) == "c"
    assert suspect(head, other, effect) == "a"
    assert suspect(head, other) is None
    assert suspect() is None


def test_what_goes_on_stands_above_what_is_over_though_it_began_later():
    fall = dataclasses.replace(finding("AMP103"), last_step=90)
    over = dataclasses.replace(
        finding("AMP202"), severity=Severity.WARNING, standing=FindingStatus.HEALS
    )
    for standing, head in ((FindingStatus.STANDS, "AMP203"), (FindingStatus.HEALS, "AMP202")):
        later = dataclasses.replace(finding("AMP203"), first_step=60, standing=standing)
        linked = link_causes([fall, over, later])
        assert linked[0].code == head
        assert linked[-1].because_of == "AMP202"


@pytest.mark.parametrize("trouble", ["AMP306", "AMP311"])
def test_what_foretells_a_trouble_does_not_stand_above_it(trouble):
    drift, later = finding("AMP304"), dataclasses.replace(finding(trouble), first_step=60)
    assert [one.code for one in link_causes([drift, later])] == [trouble, "AMP304"]
    assert link_causes([drift])[0].code == "AMP304"


def test_a_goal_that_fell_just_before_the_learning_rates_doing_showed_follows_from_it():
    goal, rate = finding("AMP311"), finding("AMP301")
    for apart, cause in ((9, "AMP301"), (60, None)):
        linked = link_causes([goal, dataclasses.replace(rate, first_step=3 + apart)])
        assert {one.code: one.because_of for one in linked}["AMP311"] == cause


def test_what_a_record_shows_is_told_by_its_rows_and_not_by_who_wrote_them():
    def observed(**columns):
        return (
            Engine()
            .feed(HandBuiltRun(step_table(**columns), info=Info(source="csv")))
            .case()
            .observed
        )

    every = observed(skipped=[False] * 30, scale=[2.0**16] * 30)
    tenth = observed(skipped=[False] * 30, step=list(range(0, 300, 10)), loss=[1.0] * 30)
    assert (every.every_step, every.scale, every.loss) == (True, True, False)
    assert (tenth.every_step, tenth.scale, tenth.loss) == (False, False, True)
    assert not every.loop


def test_of_nested_layers_the_innermost_is_named():
    assert innermost_layers(["(root)", "a", "a.b", "ab"]) == ["a.b", "ab"]
    assert innermost_layers(["(root)"]) == ["(root)"]
