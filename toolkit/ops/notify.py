"""Notify about a command that failed or found something wrong, by a program and by a webhook."""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from toolkit.values.errors import CdcError, LeaseHeld
from toolkit.values.log_setup import logger

if TYPE_CHECKING:
    from toolkit.values.config import NotifyConfig

_log = logger(__name__)
_SECONDS = 30  # timeout for each of the two ways


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice about a command. `result` is its JSON, if there is one; `problem` is the error in one line."""

    command: str
    exit_code: int
    at: str  # ISO 8601
    problem: str | None
    result: dict[str, Any] | None
    host: str  # machine on which the command ran
    lake: str  # location of its tables
    prefix: str  # `[lake] prefix`

    def to_json(self) -> bytes:
        """Return it as a JSON object. Chat programs show its `text`, in which all is in one line."""
        lake = f"{self.lake} ({self.prefix})" if self.prefix else self.lake
        text = f"cdc {self.command} of {lake} on {self.host}, exit code {self.exit_code}: {self.problem}"
        return json.dumps({"text": text, **asdict(self)}, ensure_ascii=False).encode()


def send(notify: NotifyConfig, notice: Notice, error: CdcError | None = None) -> None:
    """Run `[notify] command` and post to `[notify] webhook`. A failure here is logged and changes nothing else.

    A lease of another runner is reported only if it has been held for `[notify] lease_minutes`. Below that, it is only
    a long run.
    """
    if isinstance(error, LeaseHeld):
        longest = timedelta(minutes=notify.lease_minutes)
        if error.since is None or datetime.now(UTC) - error.since < longest:
            return
    text = notice.to_json()
    if notify.command:
        _run(notify.command, text)
    if notify.webhook:
        _post(notify.webhook, text)


def _run(command: tuple[str, ...], text: bytes) -> None:
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:  # an argument may be a token: the last has all
        late = isinstance(error, subprocess.TimeoutExpired)
        reason = f"not ended after {_SECONDS} seconds" if late else str(error)
        _log.warning("[notify] command failed", extra={"program": command[0], "reason": reason})
        return
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        _log.warning(
            "[notify] command failed", extra={"program": command[0], "exit_code": done.returncode, "stderr": said}
        )


def _post(url: str, text: bytes) -> None:
    """Post the text. The URL may contain a token, so it is not logged."""
    try:
        request = urllib.request.Request(url, text, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        _log.warning("[notify] webhook failed", extra={"status": error.code})
    except (OSError, ValueError, http.client.HTTPException) as error:
        _log.warning("[notify] webhook failed", extra={"reason": type(error).__name__})
