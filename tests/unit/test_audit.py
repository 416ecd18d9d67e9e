"""`make audit` never takes a package that could not be looked up for one without vulnerabilities."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit import verdict

pytestmark = pytest.mark.unit

_GOOD: dict[str, Any] = {"name": "good", "version": "1.0", "vulns": []}
_BAD = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
_UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([_GOOD], 0, "1 packages audited, 0 vulnerabilities known"),
        ([_GOOD, _BAD], 1, "bad 2.0: PYSEC-1, fixed in 2.1"),
        ([_GOOD, _UNKNOWN], 3, "not audited: the data on 1 packages (unknown ...) is not reachable, 1 were audited"),
        ([_BAD, _UNKNOWN], 3, "bad 2.0: PYSEC-1"),
        ([], 3, "not audited: the data on all packages is not reachable"),
    ],
)
def test_what_an_audit_says(packages: list[dict[str, Any]], code: int, said: str) -> None:
    found, lines = verdict(packages)
    assert found == code
    assert said in "\n".join(lines)
