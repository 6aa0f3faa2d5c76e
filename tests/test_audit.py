"""The audit of dependencies says what it found, and does not take silence for safety."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["audit"]


def output(*packages: dict) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


FINE = {"name": "numpy", "version": "2.1", "vulns": []}
BAD = {
    "name": "pyzmq", "version": "25.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["25.1"]}, {"id": "PYSEC-2", "fix_versions": []}],
}  # fmt: skip
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}
OURS = {"name": "ampwatch", "skip_reason": "Dependency not found on PyPI"}


def test_packages_without_a_known_vulnerability_are_clean(audit):
    found = audit.read(output(FINE, OURS))
    assert found.is_clean
    assert found.lines() == ["audit: 1 packages audited, 0 vulnerable."]


def test_each_vulnerability_is_named_with_the_release_that_fixes_it(audit):
    found = audit.read(output(FINE, BAD))
    assert not found.is_clean
    assert "  pyzmq 25.0: PYSEC-1, fixed in 25.1" in found.lines()
    assert "  pyzmq 25.0: PYSEC-2, fixed in no release" in found.lines()


def test_a_package_that_was_not_found_is_not_called_safe(audit):
    found = audit.read(output(FINE, SKIPPED))
    assert not found.is_clean
    assert "not in the database: torch" in " ".join(found.lines())


@pytest.mark.parametrize(
    ("printed", "errors", "said"),
    [
        ("", "Traceback ...\nConnectionError: Failed to resolve 'pypi.org'", "Failed to resolve"),
        ("no json", "", "printed nothing"),
        (output(SKIPPED, OURS), "No known vulnerabilities found", "it knew no package"),
        ('{"dependencies": null}', "", "could not be reached"),
    ],
)
def test_a_database_that_cannot_be_reached_is_said_to_be(audit, printed, errors, said):
    found = audit.read(printed, errors)
    assert not found.is_clean
    assert len(found.lines()) == 1
    assert found.lines()[0].startswith("audit: NOT DONE. The vulnerability database could not be")
    assert said in found.lines()[0]


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--strict"], 1)])
def test_only_a_strict_audit_fails(audit, monkeypatch, capsys, options, code):
    monkeypatch.setattr(audit, "audit", lambda _folder: audit.read("", "no network"))
    assert audit.main(["site-packages", *options]) == code
    assert "NOT DONE" in capsys.readouterr().out


def test_without_a_folder_the_script_explains_itself(audit, capsys):
    assert audit.main([]) == 2
    assert "SITE_PACKAGES" in capsys.readouterr().out
