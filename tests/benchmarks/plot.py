"""Draw seconds against rows from the JSON lines of `large` with several sizes, as SVG on stdout.

`python -m tests.benchmarks.large --rows 1000000 10000000 50000000 > figures.jsonl`, and then
`python -m tests.benchmarks.plot figures.jsonl > docs/reference/figures.svg`. Both scales are logarithmic, so that a
step whose time grows with the rows runs beside the grey lines. Of several runs of a size the median counts.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_STEPS = {
    "large_copy": ("copy", "#1b6ca8"),
    "large_first_build": ("first build", "#b5452c"),
    "large_rebuild_current": ("full rebuild", "#2e7d32"),
    "large_check": ("check", "#7b4f9d"),
}
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 360, 60, 20
_ROWS, _SECONDS = (1e6, 1e8), (1.0, 1000.0)  # the ranges of the axes


def main(files: Iterable[str]) -> None:
    """Print the plot of all figures in some files."""
    seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in (line for file in files for line in Path(file).read_text(encoding="utf-8").splitlines()):
        figure = json.loads(line)
        seconds[figure["name"]][figure["rows"]].append(figure["seconds"])
    print(svg({step: {n: statistics.median(s) for n, s in seconds[step].items()} for step in _STEPS}))


def svg(seconds: dict[str, dict[int, float]]) -> str:
    """Return the plot of each step's seconds by rows."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12"><title>Seconds of each step against rows</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    ]
    for rows, label in ((1e6, "1 M"), (1e7, "10 M"), (1e8, "100 M rows")):
        x = _x(rows)
        parts.append(f'<text x="{x:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{label}</text>')
    for value in (1, 10, 100, 1000):
        y = _y(value)
        parts.append(_line([(_ROWS[0], value), (_ROWS[1], value)], "#eeeeee", 1))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value} s</text>')
    parts += [_line([(1e6, each), (1e8, each * 100)], "#bbbbbb", 1) for each in (1.0, 3.0, 10.0)]
    for step, (name, colour) in _STEPS.items():
        points = sorted(seconds.get(step, {}).items())
        if points:
            parts.append(_line(points, colour, 2))
            parts += [f'<circle cx="{_x(n):.1f}" cy="{_y(s):.1f}" r="3.5" fill="{colour}"/>' for n, s in points]
            rows, last = points[-1]
            parts.append(f'<text x="{_x(rows) + 9:.0f}" y="{_y(last) + 4:.0f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"])


def _line(points: Iterable[tuple[float, float]], colour: str, width: int) -> str:
    joined = " ".join(f"{_x(n):.1f},{_y(s):.1f}" for n, s in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _x(rows: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 50) * _part(rows, *_ROWS)


def _y(seconds: float) -> float:
    return _TOP + (_HEIGHT - _TOP - 40) * (1 - _part(seconds, *_SECONDS))


def _part(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


if __name__ == "__main__":
    main(sys.argv[1:])
