"""Import every family of commands, which registers them on `main`."""

from toolkit.cli import ddl_commands, history, pipeline
from toolkit.cli.frame import main

__all__ = ["ddl_commands", "history", "main", "pipeline"]
