"""Run `cdc` as `python -m toolkit.cli`."""

from toolkit.cli import run

run()
