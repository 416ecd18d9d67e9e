"""Set up logging: modules use standard loggers, and one formatter writes them to standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def logger(name: str) -> logging.Logger:
    """Return the logger of a module."""
    return logging.getLogger(name)


class _Lines(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        extra = {k: v for k, v in vars(record).items() if k not in _FIELDS}
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        if self.as_json:
            line = {"ts": at, "level": record.levelname.lower(), "event": record.getMessage()} | extra
            return json.dumps(line, default=str)
        facts = " ".join(f"{key}={value}" for key, value in extra.items())
        return f"{at} {record.getMessage()} {facts}".rstrip()


def report_problem(problem: str, traceback: str | None = None, *, shown: bool = False) -> None:
    """Write the one line of a failed command to the log: `cdc: ...`, or a JSON object if the log is JSON.

    The JSON object has the traceback as a field. A plain line has it before the line only if it is to be `shown`. If
    standard error cannot be written, such as on a full disk, the exit code and the notice still report the problem.
    """
    root = logging.getLogger("toolkit")
    handler = next((h for h in root.handlers if isinstance(h, logging.StreamHandler)), None)
    if handler is not None and isinstance(handler.formatter, _Lines) and handler.formatter.as_json:
        root.error(problem, extra={} if traceback is None else {"traceback": traceback})
    else:
        before = traceback if shown and traceback is not None else ""
        with contextlib.suppress(OSError):
            print(f"{before}cdc: {problem}", file=handler.stream if handler is not None else sys.stderr, flush=True)


def configure(*, verbose: bool, as_json: bool) -> None:
    """Write the toolkit's log to standard error, as JSON lines or as plain text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json=as_json))
    root = logging.getLogger("toolkit")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    root.propagate = False
    logging.getLogger().addFilter(not_of_py4j)  # the same function again is no second filter
    # What the driver says of a session that has ended. Python, or a handler that another library has installed, would
    # print it in a form of its own.
    driver = logging.getLogger("psycopg")
    driver.handlers[:] = [logging.NullHandler()]
    driver.propagate = False


def not_of_py4j(record: logging.LogRecord) -> bool:
    """Leave out the tracebacks of py4j about a JVM that has ended. The command that needed it says so in one line."""
    return Path(record.pathname).parent.name != "py4j"
