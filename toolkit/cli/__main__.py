"""`python -m toolkit.cli` is `cdc`."""

from toolkit.cli import main

main(prog_name="cdc")
