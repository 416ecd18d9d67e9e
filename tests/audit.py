"""Look up known vulnerabilities of the locked packages with pip-audit: `python -m tests.audit`.

pip-audit itself exits with 0 if it could look up nothing, so its report is read here. Exits with 0 if no package has a
known vulnerability, 1 if one has, and 3 if the data on any package was not reachable.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_UNREACHABLE = 3


def verdict(packages: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """Give the exit code and the lines to print for the packages of a report."""
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", ())
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    audited = len(packages) - len(unknown)
    if unknown or not packages:
        named = f" ({', '.join(unknown[:3])} ...)" if unknown else ""
        lines.append(
            f"not audited: the data on {len(unknown) or 'all'} packages{named} is not reachable, {audited} were"
            " audited; run it where PyPI's JSON interface can be reached"
        )
        return _UNREACHABLE, lines
    lines.append(f"{audited} packages audited, {len(lines)} vulnerabilities known")
    return int(len(lines) > 1), lines


def main() -> int:
    """Audit requirements.lock."""
    with tempfile.TemporaryDirectory(prefix="cdc-audit-") as folder:
        report = Path(folder) / "report.json"
        command: list[str | Path] = [
            Path(sys.executable).with_name("uv"),
            "tool",
            "run",
            "--quiet",
            "pip-audit",
            "--no-deps",
        ]
        command += ["--disable-pip", "--progress-spinner", "off", "--format", "json", "--output", report]
        command += ["--requirement", _ROOT / "requirements.lock"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        packages = json.loads(report.read_text(encoding="utf-8"))["dependencies"] if report.exists() else []
    if not packages:
        print((done.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1])
    code, lines = verdict(packages)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
