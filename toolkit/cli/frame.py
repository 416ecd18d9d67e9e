"""Provide what all commands share: their options, the rendering of results, and exit codes.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 parity difference or stale table, 4 lease held, 130 interrupted.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from toolkit import __version__
from toolkit.values.errors import CdcError
from toolkit.values.lsn import Lsn, parse_moment

if TYPE_CHECKING:
    from toolkit.api import Toolkit
    from toolkit.cli.output import Output
    from toolkit.values.config import Config

RED = 3


#: Commands whose red or failed end is told by `[notify]`.
_NOTIFIED = frozenset({"run", "drain", "build", "check", "repair", "maintain"})


@dataclass(slots=True)
class Context:
    """The options that every command takes, and the result of the command as JSON values once there is one."""

    config_path: str | None
    output_format: str
    verbose: bool
    result: dict[str, Any] | None = None

    @property
    def config(self) -> Config:
        """Read the configuration, and log as it says from here on."""
        from toolkit.values import config, log_setup, progress

        found = config.load(self.config_path)
        as_json = self.output_format == "json" or found.log.format == "json"
        log_setup.configure(verbose=self.verbose or found.log.level == "info", as_json=as_json)
        if as_json:
            progress.show_on(None)
        return found

    @property
    def toolkit(self) -> Toolkit:
        """Open the source and the lake of the configuration."""
        from toolkit.api import Toolkit

        return Toolkit(self.config)

    @property
    def output(self) -> Output:
        """Give the renderer that `--output` selects."""
        from toolkit.cli import output

        return output.JsonOutput() if self.output_format == "json" else output.TextOutput()


class _LsnType(click.ParamType[Lsn]):
    name = "lsn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lsn:
        try:
            return value if isinstance(value, Lsn) else Lsn.parse(str(value))
        except CdcError as error:
            self.fail(str(error), param, ctx)


class _MomentType(click.ParamType["Lsn | datetime"]):
    name = "lsn|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lsn | datetime:
        try:
            return value if isinstance(value, Lsn | datetime) else parse_moment(str(value))
        except CdcError as error:
            self.fail(str(error), param, ctx)


LSN = _LsnType()
MOMENT = _MomentType()


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Pass a command its `Context`, turn errors into one line and an exit code, and stop the JVM that it started."""

    @click.option("--config", "config_path", metavar="FILE", help="Configuration; else CDC_CONFIG, else ./cdc.toml.")
    @click.option("--output", "output_format", type=click.Choice(["text", "json"]), default="text", show_default=True)
    @click.option("--verbose", is_flag=True, help="Log to stderr; show tracebacks.")
    @functools.wraps(function)
    def run(config_path: str | None, output_format: str, verbose: bool, **arguments: Any) -> None:
        from toolkit.values import log_setup

        log_setup.configure(verbose=verbose, as_json=output_format == "json")
        umask = os.umask(0o077)  # the lake, the spool and the reports hold rows: only this account reads them
        context = Context(config_path, output_format, verbose)
        problem: str | None = None
        failed: CdcError | None = None
        interrupted = _Interrupt()
        try:
            with interrupted, _bars(output_format):
                code = function(context, **arguments)
        except CdcError as error:
            if verbose and not interrupted.came:
                traceback.print_exc()
            problem, failed, code = _shown(error), error, error.exit_code
        except KeyboardInterrupt:
            code = 130
        except Exception as error:
            problem, code = _missing(error) or _storage(error) or _java(error), 1
            if (problem is None or verbose) and not interrupted.came:
                raise
        finally:
            _stop_spark(at_once=interrupted.came)
            os.umask(umask)
        if interrupted.came or code == 130:
            logging.disable(logging.NOTSET)
            problem, code = "interrupted; nothing half-done remains, run the command again", 130
        if problem is not None:
            log_setup.complain(problem)
        if code and code != 130 and function.__name__ in _NOTIFIED:
            _tell(context, function.__name__, code, problem, failed)
        sys.exit(code or 0)

    return run


@contextmanager
def _bars(output_format: str) -> Iterator[None]:
    """Show the progress of the command on a terminal, and wipe it however the command ends."""
    from toolkit.cli import bars
    from toolkit.values import progress

    if output_format == "json" or not bars.wanted():
        yield
        return
    shown = bars.Bars()
    progress.show_on(shown)
    try:
        yield
    finally:
        progress.show_on(None)
        shown.close()


def _tell(context: Context, command: str, code: int, problem: str | None, error: CdcError | None) -> None:
    from toolkit.ops import notify

    try:
        config = context.config
    except CdcError:  # it was said already, and who is to be told is not known
        return
    at = datetime.now(UTC).isoformat(timespec="seconds")
    notify.tell(config, notify.Notice(command, code, at, problem, context.result), error)


def _shown(error: CdcError) -> str:
    from toolkit.values.names import visible

    return visible(str(error))


def _missing(error: Exception) -> str | None:
    """Give the remedy if an object that `cdc init` made was dropped from the source; None for other errors."""
    if "toolkit.source.connection" not in sys.modules:
        return None
    from toolkit.source.connection import dropped_object

    gone = dropped_object(error)
    if gone is None or not re.search(r"\bcdc\b", gone):
        return None
    return f"schema cdc, or what `cdc init` has put there, is gone from the source: {gone}; run `cdc init`"


def _storage(error: Exception) -> str | None:
    """Say in one line what a file system or the catalog's file refused; None for other errors."""
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}; free space or correct permissions there, and run it again"
    if isinstance(error, sqlite3.Error):
        return f"the lake's catalog: {error}; end the program that holds it or free space, and run it again"
    return None


def _java(error: Exception) -> str | None:
    """Say in one line what Spark refused; None for errors that are not of Spark."""
    if not type(error).__module__.startswith(("py4j.", "pyspark.")):
        return None
    text = f"{error}\n{getattr(error, 'java_exception', None) or ''}"
    causes = re.findall(r"^(?:Caused by: |: )?((?:\w+\.)+\w*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    reason = causes[-1] if causes else text.strip().splitlines()[0]
    return f"Spark failed: {reason[:300]}; --verbose shows all of it"


class _Interrupt:
    """While it is entered, the first Ctrl-C stops the command, and whatever other threads then complain of is silent.

    A library between here and there may turn the KeyboardInterrupt into an error of its own, so `came` counts.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._stop)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN if self.came else signal.default_int_handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.came = True
        logging.disable(logging.CRITICAL)
        threading.excepthook = lambda _: None
        sys.stderr = io.StringIO()  # the log's own stream stays
        raise KeyboardInterrupt


def _stop_spark(*, at_once: bool) -> None:
    if "toolkit.lake.session" in sys.modules:
        from toolkit.lake import session

        session.stop_session(at_once=at_once)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="cdc")
def main() -> None:
    """Batch CDC reconciliation for PostgreSQL and an Iceberg lake: right at every LSN, and proven so."""
