"""Ask an Iceberg REST server through pyiceberg, within a time limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.catalog.rest import RestCatalog

if TYPE_CHECKING:
    from requests import Session

#: pyiceberg has no limit. A server whose own database or store is gone may keep a connection open without an answer.
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 120.0


class LimitedRest(RestCatalog):
    """A REST catalog whose server must answer within two minutes."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.request = partial(session.request, timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS))  # type: ignore[method-assign]
        return session
