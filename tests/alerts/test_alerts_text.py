"""What is new, and what an alert says of it."""

from __future__ import annotations

from alert_parts import diagnosis, finding

from ampwatch.alerts.alert_text import alert_of, bundle, lost_alert
from ampwatch.diagnosis import Severity
from ampwatch.follow import NewFindings


def codes(findings):
    return [one.code for one in findings]


def test_a_finding_is_new_once_and_again_when_it_is_worse():
    new = NewFindings()
    warning = finding(severity=Severity.WARNING)
    assert codes(new.of(diagnosis(warning))) == ["AMP103"]
    assert new.of(diagnosis(warning)) == ()
    assert codes(new.of(diagnosis(finding()))) == ["AMP103"]
    assert new.of(diagnosis(warning)) == ()
    assert new.of(diagnosis(finding())) == ()


def test_information_is_not_new_until_it_becomes_a_warning():
    new = NewFindings()
    assert new.of(diagnosis(finding(severity=Severity.INFO))) == ()
    assert codes(new.of(diagnosis(finding(severity=Severity.WARNING)))) == ["AMP103"]


def test_a_finding_that_names_another_layer_at_each_look_is_told_of_once():
    new = NewFindings()
    assert new.of(diagnosis(finding(layer="up")))
    assert new.of(diagnosis(finding(layer="down"))) == ()


def test_a_alert_says_what_where_since_when_and_what_to_do():
    one = finding(layer="blocks.3.mlp", because_of="AMP203")
    alert = alert_of("train-1204", "/data/my runs/train-1204", diagnosis(one), [one])
    for words in (
        "error: The loss scale collapsed (AMP103 scale-collapse",
        "step 310",
        "layer blocks.3.mlp",
        "because of AMP203",
        "Updates are too large.",
        "Lower the learning rate.",
        'ampwatch report "/data/my runs/train-1204"',
        "ampwatch explain AMP103",
    ):
        assert words in alert.body
    assert alert.title == "ampwatch: train-1204 is failing: The loss scale collapsed"
    assert alert.severity is Severity.ERROR


def test_names_in_a_alert_are_data():
    one = finding(layer="up\x1b[2J\n\nAll is well", summary="a\nb")
    alert = alert_of("x\x1b[31m\n", "/r", diagnosis(one), [one])
    assert "\x1b" not in alert.title + alert.body
    assert "\nAll is well" not in alert.body


def test_many_findings_and_long_texts_still_fit_the_narrowest_service():
    many = [finding(f"AMP{n}", cause="why " * 400, action="do " * 400) for n in range(100, 130)]
    alert = alert_of("one", "/r", diagnosis(*many), many)
    assert "Why: why" in alert.body
    assert "and 19 more" in alert.body
    whole = bundle([alert] * 40)
    assert max(len(alert.body), len(whole.body)) < 2000
    assert whole.title == "ampwatch: 40 alerts"


def test_alone_a_alert_is_sent_as_it_is_and_together_the_gravest_counts():
    warning = finding("AMP205", Severity.WARNING)
    mild = alert_of("a", "/a", diagnosis(warning), [warning])
    grave = alert_of("b", "/b", diagnosis(finding()), [finding()])
    assert bundle([mild]) is mild
    both = bundle([mild, grave])
    assert both.severity is Severity.ERROR
    assert mild.body in both.body
    assert grave.body in both.body


def test_a_run_that_ended_by_an_exception_says_by_which():
    told = finding("AMP902", Severity.INFO, summary="The run ended by RuntimeError.", cause="boom")
    assert "RuntimeError. boom" in lost_alert("a", "/a", diagnosis(told)).body
    killed = finding("AMP902", Severity.INFO, summary="The log has no end mark.")
    assert "killed" in lost_alert("a", "/a", diagnosis(killed, clean_end=False)).body
