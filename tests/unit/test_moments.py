"""Times and durations that users write."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.values import config as configuration
from toolkit.values.errors import ConfigError
from toolkit.values.lsn import parse_moment

pytestmark = pytest.mark.unit


def test_the_remedy_for_a_time_without_its_offset_is_one_that_works() -> None:
    """The one for a day was refused, or taken for another time; a time outside of those of UTC ended unexpectedly."""
    for text in ("2026-11-20", "2026-11-20 12:00", "2026-11-20T12:00"):
        with pytest.raises(ConfigError, match="needs its offset") as refused:
            parse_moment(text)
        found = [parse_moment(remedy) for remedy in str(refused.value).partition("write ")[2].split(" or ")]
        hour = "12" if "12:" in text else "00"
        assert [str(one) for one in found] == [f"2026-11-20 {hour}:00:00+0{hours}:00" for hours in (1, 0)]
    for text in ("2026-11-20+01", "2026-11-20+01+01", "0001-01-01 00:00+14", "9999-12-31 23:59-12", "2026-11-20Z"):
        with pytest.raises(ConfigError, match="expected an LSN such as"):
            parse_moment(text)


@pytest.mark.parametrize("name", ["CDC_LAKE__KEEP_DAYS", "CDC_CHECK__CUT_SECONDS", "CDC_SNAPSHOT__LOCK_SECONDS"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e9"])
def test_a_duration_that_no_clock_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Each was accepted, and commands ended unexpectedly with an OverflowError."""
    monkeypatch.setenv(name, value)
    (tmp_path / "cdc.toml").touch()
    with pytest.raises(ConfigError, match=name.removeprefix("CDC_").lower().replace("__", ".")):
        configuration.load(str(tmp_path / "cdc.toml"))
