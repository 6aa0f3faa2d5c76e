"""Runs as a JUnit file, the format in which CI services take the results of tests: a test a run."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from ampwatch.printable_text import printable
from ampwatch.report.health_check import HealthCheck


def junit_of(checks: Sequence[tuple[str, HealthCheck]]) -> str:
    """The JUnit file of runs, each with its name; one that could not be judged is skipped."""
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", name="ampwatch", tests=str(len(checks)), errors="0")
    for name, check in checks:
        case = SubElement(suite, "testcase", classname="ampwatch", name=printable(name))
        letter = check.letter_text(name)
        if not check.is_healthy:
            kind = check.findings[0].code if check.findings else "baseline"
            SubElement(case, "failure", message=letter.splitlines()[0], type=kind).text = letter
            continue
        if not check.is_judged:
            SubElement(case, "skipped", message="The log says too little to judge the run.")
        SubElement(case, "system-out").text = letter
    for outcome, count in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(outcome, str(len(suite.findall(f"*/{count}"))))
    return tostring(root, "unicode", xml_declaration=True) + "\n"
