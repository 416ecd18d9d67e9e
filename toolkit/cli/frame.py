"""Provide what all commands share: their options, the rendering of results, and exit codes.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 parity difference or stale table, 4 lease held, 130 interrupted, 129
ended by SIGHUP, 143 by SIGTERM.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit import __version__
from toolkit.cli import INTERRUPTED
from toolkit.cli.interrupt import Interrupt
from toolkit.cli.output import plain
from toolkit.values.errors import CdcError, LeaseHeld
from toolkit.values.lsn import Lsn, parse_moment
from toolkit.values.modes import LogFormat, LogLevel
from toolkit.values.names import in_one_line, visible

if TYPE_CHECKING:
    from toolkit.api import Toolkit
    from toolkit.cli.output import Output
    from toolkit.values.config import Config

NOT_PROVEN = 3
#: Exit codes of commands that another program has ended: no person has seen it.
_ENDED = {128 + number: number for number in (signal.SIGHUP, signal.SIGTERM)}
_PACKAGE = Path(__file__).parent.parent


#: Commands whose end is remembered, and reported by `[notify]` if the exit code is not 0.
_NOTIFIED = frozenset({"run", "drain", "build", "check", "repair", "maintain"})
#: Commands of a scheduler, after which the disks and the server are examined too.
_SCHEDULED = frozenset({"run", "drain"})


@dataclass(slots=True)
class Context:
    """The options that every command takes, its result as JSON values, and what is wrong."""

    config_path: str | None
    output_format: str
    verbose: bool
    result: dict[str, Any] | None = None
    stages: dict[str, Any] = field(default_factory=dict)  # the results of the stages of a run so far
    problems: list[str] = field(default_factory=list)
    defaults_in: Path | None = None  # the working directory, if it has no cdc.toml and nothing else configures
    aside: bool = False  # the command says nothing about the lake as it is now

    def show(self, value: Any) -> None:
        """Show the result, and keep it for whoever is notified."""
        self.result = plain(value)
        self.output.record(value)

    def fail(self, problem: str, code: int = NOT_PROVEN) -> int:
        """Keep what is wrong with the result, for standard error and for whoever is notified. Return the exit code."""
        self.problems.append(problem)
        return code

    @property
    def config(self) -> Config:
        """Read the configuration, and log as it says from here on."""
        from toolkit.values import config, log_setup, progress

        found = config.load(self.config_path)
        configured = found.model_fields_set - {"root"} or (found.root / config.DEFAULT_NAME).is_file()
        self.defaults_in = None if configured or self.config_path else found.root
        as_json = self.output_format == "json" or found.log.format == LogFormat.JSON
        log_setup.configure(verbose=self.verbose or found.log.level == LogLevel.INFO, as_json=as_json)
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
        """Return the renderer that `--output` selects."""
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
        try:
            code = _run(Context(config_path, output_format, verbose), function, arguments)
        finally:
            os.umask(umask)
        if code in _ENDED and threading.current_thread() is threading.main_thread():
            signal.signal(_ENDED[code], signal.SIG_DFL)
            signal.raise_signal(_ENDED[code])  # ends the process as its parent expects it
        sys.exit(code)

    return run


def _run(context: Context, function: Callable[..., int | None], arguments: dict[str, Any]) -> int:
    """Run a command up to its exit code, whatever ends it."""
    from toolkit.values import log_setup

    interrupted = Interrupt()
    code = 0
    try:
        with interrupted:
            try:
                end = _end(context, function, arguments)
            finally:
                _stop_spark(at_once=bool(interrupted.came))
            if not interrupted.came:
                code = end.code
                _report(context, function.__name__, end)
    except (KeyboardInterrupt, click.Abort) as stopped:
        if isinstance(stopped, click.Abort) and not interrupted.came:
            raise
        interrupted.came = interrupted.came or signal.SIGINT
    if interrupted.came:
        _stop_spark(at_once=True)
        logging.disable(logging.NOTSET)
        log_setup.report_problem(INTERRUPTED)
        code = 128 + interrupted.came
        if code in _ENDED and function.__name__ in _NOTIFIED:
            _conclude(context, function.__name__, _End(code, (f"{_ENDED[code].name}: {INTERRUPTED}",)))
    return code


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a command. `problems` are lines for standard error; `traceback` is for `--verbose` and the log."""

    code: int
    problems: tuple[str, ...] = ()
    error: CdcError | None = None
    traceback: str | None = None


def _end(context: Context, function: Callable[..., int | None], arguments: dict[str, Any]) -> _End:
    """Run a command, and say how it ended, whatever it raised but Ctrl-C and errors of usage."""
    from toolkit.values import progress

    try:
        with _bars(context.output_format), progress.stage(click.get_current_context().command_path, whole=True):
            return _End(function(context, **arguments) or 0, tuple(context.problems))
    except (click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except CdcError as error:
        shown = traceback.format_exc() if context.verbose else None
        return _End(error.exit_code, (_shown(error, context.defaults_in),), error, shown)
    except Exception as error:
        known = _missing(error) or _lost(error) or _jvm(error) or _storage(error) or _java(error)
        shown = traceback.format_exc() if context.verbose or known is None else None
        return _End(1, (known or _unexpected(error),), None, shown)


def _report(context: Context, command: str, end: _End) -> None:
    """Report how a command ended; on standard error if it did not succeed."""
    from toolkit.values import log_setup

    if end.traceback is not None and end.problems:
        log_setup.report_problem(end.problems[0], end.traceback, shown=context.verbose)
    else:
        for problem in end.problems:
            log_setup.report_problem(problem)
    if context.stages and context.result is None:  # some stages are done, and the figures of a run are wanted
        context.result = {**plain(context.stages), "problem": "; ".join(end.problems)}
        if context.output_format == "json":
            with suppress(CdcError):  # the command has failed already, and its end is to be remembered
                context.output.record(context.result)
    if command in _NOTIFIED:
        _conclude(context, command, end)


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


def _conclude(context: Context, command: str, end: _End) -> None:
    """Record how a command ended, for `cdc status`, and send a notice if it did not succeed.

    After a scheduled command that succeeded, `cdc status` may still report an alert, such as growing WAL. The exit code
    stays 0; each alert becomes one line of the log and part of a notification.
    """
    from toolkit.ops import alerts, last_run, notify
    from toolkit.values import log_setup

    try:
        config = context.config
    except CdcError:  # it was said already, and the receiver is not known
        return
    at = datetime.now(UTC).isoformat(timespec="seconds")
    problem = "; ".join(end.problems) or None
    if not (context.aside or isinstance(end.error, LeaseHeld)):  # the one who holds it is still at work
        last_run.remember(config.lake_access, last_run.LastRun(command, end.code, at, problem))
    if end.code == 0 and command in _SCHEDULED:
        found = [visible(str(alert)) for alert in alerts.at_the_end(config)]
        problem = "; ".join(found) or None
        for alert in found:
            log_setup.report_problem(alert)
    if problem is not None or end.code:
        where = (platform.node(), config.lake_access.warehouse, config.lake.prefix)
        notify.send(config.notify, notify.Notice(command, end.code, at, problem, context.result, *where), end.error)


def _shown(error: CdcError, defaults_in: Path | None) -> str:
    where = f", or in the folder of cdc.toml: {defaults_in} has none" if defaults_in is not None else ""
    return visible(f"{error}{where}")


def _unexpected(error: Exception) -> str:
    """Name an error that no command foresees, and the line of the toolkit that it came through last."""
    passed = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(_PACKAGE)]
    place = f" at {Path(passed[-1].filename).relative_to(_PACKAGE)}:{passed[-1].lineno}" if passed else ""
    text = in_one_line(f"{type(error).__name__}: {error}"[:300])
    return f"unexpected {text}{place}; run it again with --verbose and report it"


def _missing(error: Exception) -> str | None:
    """Return the remedy if an object that `cdc init` made was dropped from the source; None for other errors."""
    if "toolkit.source.connection" not in sys.modules:
        return None
    from toolkit.source.connection import dropped_object

    gone = dropped_object(error)
    if gone is None or not re.search(r"\bcdc\b", gone):
        return None
    return f"schema cdc, or what `cdc init` has put there, is gone from the source: {gone}; run `cdc init`"


def _lost(error: Exception) -> str | None:
    """Describe in one line an ended session of the source; None for other errors."""
    if "toolkit.source.connection" not in sys.modules:
        return None
    from toolkit.source.connection import lost

    text = lost(error)
    return text and f"the connection to the source was lost: {text}; check network and server, and run it again"


def _storage(error: Exception) -> str | None:
    """Describe in one line an error of the file system or of the catalog's file; None for other errors."""
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}; free space or correct permissions there, and run it again"
    if isinstance(error, sqlite3.Error):
        return f"the lake's catalog: {error}; end the program that holds it or free space, and run it again"
    return None


def _jvm(error: Exception) -> str | None:
    """Describe in one line the end of Spark's JVM; None for errors of other kinds."""
    broken = isinstance(error, ConnectionError) or type(error).__module__.startswith(("py4j.", "pyspark."))
    if not broken or "toolkit.lake.session" not in sys.modules:
        return None
    from toolkit.lake.session import jvm_end

    ended = jvm_end()
    return ended and f"{ended}; run it again"


def _java(error: Exception) -> str | None:
    """Describe an error of Spark in one line; None for errors of other programs."""
    if not type(error).__module__.startswith(("py4j.", "pyspark.")):
        return None
    text = f"{error}\n{getattr(error, 'java_exception', None) or ''}"
    causes = re.findall(r"^(?:Caused by: |: )?((?:\w+\.)+\w*(?:Error|Exception)\b.*)$", text, re.MULTILINE)
    reason = causes[-1] if causes else text.strip().splitlines()[0]
    return f"Spark failed: {reason[:300]}; run `cdc doctor`, or the same again with --verbose, which shows all of it"


def _stop_spark(*, at_once: bool) -> None:
    if "toolkit.lake.session" in sys.modules:
        from toolkit.lake import session

        session.stop_session(at_once=at_once)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="cdc")
def main() -> None:
    """Batch CDC reconciliation for PostgreSQL and an Iceberg lake: right at every LSN, and proven so."""
