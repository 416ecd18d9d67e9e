"""Run `cdc` as `python -m toolkit.cli`."""

from toolkit.cli import main

main(prog_name="cdc")
