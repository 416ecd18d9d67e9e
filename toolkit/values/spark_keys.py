"""Read keys of settings that others define, and find misspelled ones, which Spark itself ignores."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

#: Prefixes of settings whose names users choose.
_FREE = ("spark.hadoop.", "spark.sql.catalog.", "spark.executorEnv.", "spark.kubernetes.", "spark.yarn.appMasterEnv.")


def misspelled(key: str) -> str | None:
    """Return the Spark setting that a key is probably meant to be. Other keys are left to Spark and its extensions."""
    known = Path(__file__).with_name("spark_settings.txt").read_text(encoding="ascii").split()
    if key in known or key.startswith(_FREE):
        return None
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.93)), None)


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten settings, which may be quoted (`"spark.x.y" = 1`) or nested, into one mapping."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, name + ".")
        else:
            flat[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat
