"""Provide the command line: one module for each family of commands, registered on `main` by its import."""

from toolkit.cli import ddl_commands, history, pipeline
from toolkit.cli.frame import main

__all__ = ["ddl_commands", "history", "main", "pipeline"]
