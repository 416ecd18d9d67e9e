"""Read where a warehouse is, and the settings of its object store, without I/O. No message repeats a setting's value.

Only settings that Spark's FileIO and pyiceberg's both know are allowed: with any other, the files of one of them would
be written in another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolkit.values.locations import scheme

S3 = "s3"
_REGION = "client.region"
_ENDPOINT = "s3.endpoint"
_PATH_STYLE = "s3.path-style-access"
_KEYS = ("s3.access-key-id", "s3.secret-access-key")
_SHARED = (_REGION, _ENDPOINT, _PATH_STYLE, *_KEYS, "s3.session-token")
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


def require_warehouse(warehouse: str) -> None:
    """Find out whether the warehouse is in a place that is supported.

    Raises:
        ValueError: it is not; the message says what is expected.
    """
    kind = scheme(warehouse)
    if kind is None:
        return
    if kind != S3:
        hint = " (write s3:// for it)" if kind in ("s3a", "s3n") else ""
        raise ValueError(
            f"a warehouse in {kind}: is not supported{hint}; expected a folder of this machine or s3://bucket/prefix"
        )
    if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[^/?#]+)*/?", warehouse):
        raise ValueError("not the address of a folder in a bucket; expected s3://bucket/prefix")


def require_settings(warehouse: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Find out whether the properties of a catalog say how to reach the warehouse.

    Raises:
        ValueError: one is missing, or means something to one side only.
    """
    if scheme(warehouse) != S3:
        return
    unknown = sorted(key for key in properties if key.startswith(("s3.", "client.")) and key not in _SHARED)
    if unknown:
        raise ValueError(
            f"property {unknown[0]!r} does not mean the same to Spark and to pyiceberg; allowed are"
            f" {', '.join(_SHARED)}"
        )
    if len([key for key in _KEYS if key in properties]) == 1:
        raise ValueError(f"{' and '.join(_KEYS)} belong together; set both, or neither")
    if not _region(properties, environment):
        raise ValueError(
            f"the region of the warehouse's bucket is not known; set {_REGION} in [lake.properties], or the variable"
            f" {_VARIABLES[0]}"
        )


def spark_settings(warehouse: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Give the properties of Spark's catalog for the store, beside those that are configured."""
    if scheme(warehouse) != S3:
        return {}
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", _REGION: _region(properties, environment)}


def pyiceberg_settings(warehouse: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Give the properties of pyiceberg's FileIO for the store. Without keys it asks the usual places for them."""
    if scheme(warehouse) != S3:
        return {}
    found = {key: value for key, value in properties.items() if key in _SHARED}
    found[_REGION] = _region(properties, environment)
    if _ENDPOINT in found and found.get(_PATH_STYLE, "false").lower() != "true":
        found["s3.force-virtual-addressing"] = "true"
    return found


def _region(properties: Mapping[str, str], environment: Mapping[str, str]) -> str:
    return properties.get(_REGION) or next(filter(None, map(environment.get, _VARIABLES)), "")


__all__ = ["S3", "pyiceberg_settings", "require_settings", "require_warehouse", "spark_settings"]
