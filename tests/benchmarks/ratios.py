"""Keep the ratios of `make bench` to the limits of the same run, and say when one has fallen.

A ratio compares two speeds of one run on one machine, so it may be compared with that of another machine. Figures in
seconds may not. `python -m tests.benchmarks.ratios < figures.jsonl` keeps the ratios of a run in `ratios.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_FILE = Path(__file__).with_name("ratios.json")
#: The share of a kept ratio that may be lost between two runs of one machine.
_ALLOWED = 0.2


def fallen(name: str, ratio: float | None, kept: Mapping[str, float] | None = None) -> str | None:
    """Say that a ratio is more than a fifth below the kept one; None if it is not, or if there is none."""
    before = (read() if kept is None else kept).get(name)
    if ratio is None or before is None or ratio >= before * (1 - _ALLOWED):
        return None
    return f"bench: {name} fell to {ratio:g} of its limit; {before:g} is kept ({1 - ratio / before:.0%} less)"


def read() -> dict[str, float]:
    """Give the kept ratios by the name of the figure."""
    found: dict[str, float] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def of_figures(lines: Iterable[str]) -> dict[str, float]:
    """Give the ratios among the figures of a run, one JSON line a figure."""
    figures = (json.loads(line) for line in lines if line.startswith("{"))
    return {figure["name"]: figure["limit_ratio"] for figure in figures if figure["limit_ratio"] is not None}


def main() -> None:
    """Keep the ratios of a run."""
    kept = dict(sorted((read() | of_figures(sys.stdin)).items()))
    _FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
