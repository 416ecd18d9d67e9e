"""Give a scratch database for `cdc ddl lint`, on an embedded PostgreSQL or on a server that the user names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.demo.server import EmbeddedServer, wheel_bindir
from toolkit.source.scratch import make_scratch, read_origin
from toolkit.values.capture_rules import CaptureRules
from toolkit.values.errors import SourceUnavailable
from toolkit.values.source_access import DdlConfig

_ADMIN = "cdc_scratch"  # not `postgres`: a role of the source with this name must not be a superuser here


@contextmanager
def open_scratch(rules: CaptureRules, admin: str | None = None, *, ddl: DdlConfig) -> Iterator[str]:
    """Return the conninfo of a role without rights in a database with the source's schema. Both are dropped at the end.

    Args:
        config: the source.
        admin: conninfo of a superuser of a scratch server; if left out, an embedded server is started.

    Raises:
        SourceUnavailable: a server cannot be reached, or the programs of PostgreSQL are not installed.
        ConfigError: the scratch server is the server of the source.
    """
    origin = read_origin(rules)
    major = 16 if origin.major <= 16 else 18
    if admin is not None:
        with make_scratch(rules, origin, admin, lambda name: _program(name, major), alone=False, ddl=ddl) as conninfo:
            yield conninfo
        return
    with (
        EmbeddedServer(major=major, user=_ADMIN) as server,
        make_scratch(rules, origin, server.conninfo(), server.program, alone=True, ddl=ddl) as conninfo,
    ):
        yield conninfo


def _program(name: str, major: int) -> str:
    """Find a client program: in the wheel of the embedded server, or else on the PATH."""
    try:
        return str(wheel_bindir(major) / name)
    except SourceUnavailable:
        found = shutil.which(name)
        if found is None:
            raise SourceUnavailable(
                f'{name} is not installed; install PostgreSQL\'s client programs, or pip install "cdc-toolkit[demo]"'
            ) from None
        return found
