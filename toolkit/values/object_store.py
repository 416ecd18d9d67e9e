"""Read where a warehouse is, and the settings of its object store, without I/O. No message repeats a setting's value.

Only settings that Spark's FileIO and pyiceberg's both follow are allowed: with any other, the files of one of them
would be written in another way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.values.locations import scheme

_FOLDER = r"(/[^/?#]+)*/?"


@dataclass(frozen=True)
class _Store:
    """One kind of store."""

    address: str
    """The pattern of the address of a warehouse."""
    example: str
    file_io: str
    """Iceberg's FileIO in Spark."""
    jars: tuple[str, ...]
    """What it needs in Spark, each as `group:artifact`."""
    owns: tuple[str, ...]
    """The beginnings of names of settings that concern the store."""
    endpoint: str
    """The setting that has the URL of a store."""
    further: tuple[str, ...]
    """The other settings that are allowed."""
    together: tuple[str, ...]
    """Settings of which all are given, or none."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """Return the settings that both sides follow."""
        return (self.endpoint, *self.further)


_REGION = "client.region"
_ENDPOINT = "s3.endpoint"
_PATH_STYLE = "s3.path-style-access"
_KEYS = ("s3.access-key-id", "s3.secret-access-key")
_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_TOKEN = ("gcs.oauth2.token", "gcs.oauth2.token-expires-at")

_ACCOUNT_KEY = "adls.account-key"
_SAS = "adls.sas-token"
_ABFSS = re.compile(r"abfss://[a-z0-9-]+@(?P<host>(?P<account>[a-z0-9]+)\.dfs\.(?P<cloud>[a-z0-9.-]+))")
#: The modules of Azure's SDK that Iceberg's FileIO uses, and what they need.
_AZURE_JARS = (
    "com.azure:azure-storage-file-datalake",
    "com.azure:azure-storage-blob",
    "com.azure:azure-storage-common",
    "com.azure:azure-storage-internal-avro",
    "com.azure:azure-core",
    "com.azure:azure-core-http-jdk-httpclient",
    "com.azure:azure-identity",
    "com.azure:azure-json",
    "com.azure:azure-xml",
    "io.projectreactor:reactor-core",
    "org.reactivestreams:reactive-streams",
    "com.microsoft.azure:msal4j",
    "com.microsoft.azure:msal4j-persistence-extension",
    "net.java.dev.jna:jna",
    "net.java.dev.jna:jna-platform",
)

_STORES = {
    "s3": _Store(
        address=r"s3://[a-z0-9][a-z0-9.-]+",
        example="s3://bucket/prefix",
        file_io="org.apache.iceberg.aws.s3.S3FileIO",
        jars=("org.apache.iceberg:iceberg-aws-bundle",),
        owns=("s3.", "client."),
        endpoint=_ENDPOINT,
        further=(_REGION, _PATH_STYLE, *_KEYS, "s3.session-token"),
        together=_KEYS,
    ),
    "gs": _Store(
        address=r"gs://[a-z0-9][a-z0-9._-]+",
        example="gs://bucket/prefix",
        file_io="org.apache.iceberg.gcp.gcs.GCSFileIO",
        jars=("org.apache.iceberg:iceberg-gcp-bundle",),
        owns=("gcs.",),
        endpoint="gcs.service.host",
        further=_TOKEN,
        together=_TOKEN,
    ),
    "abfss": _Store(
        address=_ABFSS.pattern,
        example="abfss://container@account.dfs.core.windows.net/prefix",
        file_io="org.apache.iceberg.azure.adlsv2.ADLSFileIO",
        jars=_AZURE_JARS,
        owns=("adls.",),
        endpoint="adls.endpoint",
        further=(_ACCOUNT_KEY, _SAS),
        together=(),
    ),
}
#: Other names of the same places, which would be written into every table.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
_HINTS = {other: f" (write {name}:// for it)" for other, name in _OTHER_NAMES.items()}
_HINTS["hdfs"] = " (the commands without Spark would need Hadoop's own library on the runner)"


def require_warehouse(warehouse: str) -> None:
    """Check whether the warehouse is in a place that is supported.

    Raises:
        ValueError: it is not; the message says what is expected.
    """
    kind = scheme(warehouse)
    if kind is None:
        return
    if kind not in _STORES:
        expected = " or ".join(store.example for store in _STORES.values())
        raise ValueError(
            f"a warehouse in {kind}: is not supported{_HINTS.get(kind, '')}; expected a folder of this machine,"
            f" {expected}"
        )
    store = _STORES[kind]
    if not re.fullmatch(store.address + _FOLDER, warehouse):
        raise ValueError(f"not the address of a folder in a bucket; expected {store.example}")


def require_settings(warehouse: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Check whether the properties of a catalog say how to reach the warehouse.

    Raises:
        ValueError: one is missing, or means something to one side only.
    """
    store = _store(warehouse)
    if store is None:
        return
    unknown = sorted(key for key in properties if key.startswith(store.owns) and key not in store.allowed)
    if unknown:
        raise ValueError(
            f"property {unknown[0]!r} does not mean the same to Spark and to pyiceberg; allowed are"
            f" {', '.join(store.allowed)}"
        )
    if not re.match(r"https?://[^/]", properties.get(store.endpoint, "https://x")):
        raise ValueError(f"{store.endpoint} is not the URL of a store; expected https://host")
    if 0 < len([key for key in store.together if key in properties]) < len(store.together):
        raise ValueError(f"{' and '.join(store.together)} belong together; set both, or neither")
    if _ACCOUNT_KEY in properties and _SAS in properties:
        raise ValueError(f"{_ACCOUNT_KEY} and {_SAS} are two ways to the same account; set one of them")
    if _REGION in store.allowed and not _region(properties, environment):
        raise ValueError(
            f"the region of the warehouse's bucket is not known; set {_REGION} in [lake.properties], or the variable"
            f" {_VARIABLES[0]}"
        )


def jars(warehouse: str) -> tuple[str, ...]:
    """Return the jars that Spark needs for the store, each as `group:artifact`."""
    store = _store(warehouse)
    return () if store is None else store.jars


def spark_settings(warehouse: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for Spark's catalog: those that are configured, and what the store needs."""
    store = _store(warehouse)
    if store is None:
        return dict(properties)
    found = {"io-impl": store.file_io, **properties}
    if _REGION in store.allowed:
        found[_REGION] = _region(properties, environment)
    if account := _ABFSS.match(warehouse):
        key, token, endpoint = (found.pop(name, None) for name in (_ACCOUNT_KEY, _SAS, store.endpoint))
        if key is not None:
            found |= {
                "adls.auth.shared-key.account.name": account["account"],
                "adls.auth.shared-key.account.key": key,
            }
        if token is not None:
            found[f"adls.sas-token.{account['host']}"] = token.removeprefix("?")
        if endpoint is not None:  # this is what Iceberg takes for it
            found[f"adls.connection-string.{account['host']}"] = f"{endpoint.rstrip('/')}/{account['account']}"
    return found


def pyiceberg_settings(warehouse: str, properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of pyiceberg's FileIO for the store. Without keys it asks the usual places for them."""
    store = _store(warehouse)
    if store is None:
        return {}
    found = {key: value for key, value in properties.items() if key in store.allowed}
    if _REGION in store.allowed:
        found[_REGION] = _region(properties, environment)
    if _ENDPOINT in found and found.get(_PATH_STYLE, "false").lower() != "true":
        found["s3.force-virtual-addressing"] = "true"
    if account := _ABFSS.match(warehouse):
        found |= {
            "adls.account-name": account["account"],
            "adls.blob-storage-authority": f".blob.{account['cloud']}",
            "adls.dfs-storage-authority": f".dfs.{account['cloud']}",
        }
        if _SAS in found:  # Arrow appends it to the URL as it is
            found[_SAS] = f"?{found[_SAS].removeprefix('?')}"
        if endpoint := found.pop(store.endpoint, ""):
            protocol, _, host = endpoint.rstrip("/").partition("://")
            for service in ("blob", "dfs"):
                found[f"adls.{service}-storage-authority"] = host
                found[f"adls.{service}-storage-scheme"] = protocol
    return found


def _store(warehouse: str) -> _Store | None:
    return _STORES.get(scheme(warehouse) or "")


def _region(properties: Mapping[str, str], environment: Mapping[str, str]) -> str:
    return properties.get(_REGION) or next(filter(None, map(environment.get, _VARIABLES)), "")
