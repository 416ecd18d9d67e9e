"""The statements in `sql/`, by their path without the ending."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def load(name: str) -> str:
    """Text of `sql/<name>.sql`."""
    return (ROOT / "sql" / f"{name}.sql").read_text(encoding="utf-8")
