"""The command line, one module a family of commands, registered on `main` as they are imported."""

from toolkit.cli import ddl, history, pipeline
from toolkit.cli.frame import main

__all__ = ["ddl", "history", "main", "pipeline"]
