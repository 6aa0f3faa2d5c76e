"""Looks the installed packages up in a database of known vulnerabilities, by pip-audit.

    python .ci/audit.py SITE_PACKAGES [--strict]

Prints what is vulnerable, what was not found in the database, and whether the database could be
reached at all: pip-audit by itself reports success for packages that it could not look up. The exit
code is 0, so that a new entry in the database does not break an old commit; with --strict (before a
release) it is 1 unless every package was audited and none is vulnerable.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

OURS = "ampwatch"  # not in the database: it is what is audited
TIMEOUT_S = 300


@dataclass(frozen=True)
class Audit:
    """What was found out about each package, or why nothing was."""

    audited: int = 0
    vulnerable: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether every package was audited and none is vulnerable."""
        return not (self.problem or self.vulnerable or self.unknown)

    def lines(self) -> list[str]:
        """The report."""
        if self.problem is not None:
            return [f"audit: NOT DONE. {self.problem}"]
        told = [f"audit: {self.audited} packages audited, {len(self.vulnerable)} vulnerable."]
        if self.unknown:
            told.append(f"  not audited, because not in the database: {', '.join(self.unknown)}")
        return told + [f"  {one}" for one in self.vulnerable]


def read(output: str, errors: str = "") -> Audit:
    """The result in pip-audit's JSON; without JSON, the last line of its errors is the problem."""
    try:
        packages = list(json.loads(output)["dependencies"])
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        return Audit(problem=f"The vulnerability database could not be reached: {last}")
    others = [one for one in packages if one["name"] != OURS]
    unknown = tuple(one["name"] for one in others if "skip_reason" in one)
    audited = len(others) - len(unknown)
    if not audited:
        return Audit(problem="The vulnerability database could not be reached: it knew no package.")
    return Audit(audited, tuple(line for one in others for line in _vulnerabilities(one)), unknown)


def _vulnerabilities(package: dict[str, Any]) -> list[str]:
    name = f"{package['name']} {package.get('version', '')}".strip()
    return [
        f"{name}: {one['id']}, fixed in {', '.join(one.get('fix_versions', [])) or 'no release'}"
        for one in package.get("vulns", [])
    ]


def audit(site_packages: str) -> Audit:
    """Run pip-audit on the packages of this folder."""
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
    command += ["--path", site_packages]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Audit(problem=f"The vulnerability database did not answer within {TIMEOUT_S} s.")
    if "No module named" in done.stderr:
        return Audit(problem="pip-audit is not installed.")
    return read(done.stdout, done.stderr)


def main(arguments: list[str]) -> int:
    """Print the report; the exit code."""
    folders = [one for one in arguments if not one.startswith("-")]
    if len(folders) != 1:
        print(__doc__)
        return 2
    found = audit(folders[0])
    print("\n".join(found.lines()))
    return 1 if "--strict" in arguments and not found.is_clean else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
