"""Which catalogs a configuration may name, what each side gets of it, and that no message has a secret."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from toolkit.build import models
from toolkit.lake import lake_catalog, reads, session, storage
from toolkit.lake.any_catalog import AnyCatalog
from toolkit.ops import maintenance
from toolkit.values import config as configuration
from toolkit.values.config import Config
from toolkit.values.errors import ConfigError, LakeError

pytestmark = pytest.mark.unit


def _write(folder: Path, text: str) -> str:
    file = folder / "cdc.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


_S3 = "warehouse = 's3://lake/w'\n[lake.properties]\n'client.region' = 'x'\n"
_ABFSS = "warehouse = 'abfss://lake@acme.dfs.core.windows.net/w'\n[lake.properties]\n"
_GS = "warehouse = 'gs://lake/w'\n[lake.properties]\n"


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        (
            "uri = 'jdbc:postgresql://u:pl4nted@x/y'",
            "lake.uri: .*not an address of PostgreSQL; expected jdbc:",
        ),
        ("uri = 'jdbc:postgresql://x/y?password=pl4nted&reWrite=1'", "parameter 'reWrite' does not mean the same"),
        ("uri = 'jdbc:mysql://x/y?password=pl4nted'", "a catalog jdbc:mysql: is not supported; expected jdbc:sqlite:"),
        ("uri = 'jdbc:sqlite:lake/catalog.db?journal_mode=WAL'", "a catalog in a file has no parameters"),
        ("uri = 'lake/catalog.db'", "a catalog without a scheme is not supported"),
        ("type = 'rest'", "not the address of a REST catalog; expected http"),
        ("type = 'rest'\nuri = 'https://u:pl4nted@x/y'", r"not in its address; put them into \[lake.properties\]"),
        ("type = 'hive'\nuri = 'http://x:pl4nted'", "not the address of a Hive metastore; expected thrift://host:port"),
        ("type = 'glue'", "`published` needs views, and Iceberg's catalog for AWS Glue has none; use another"),
        ("warehouse = 's3a://bucket/lake'", r"a warehouse in s3a: is not supported \(write s3:// for it\); expected a"),
        ("warehouse = 'gcs://bucket/lake'", r"a warehouse in gcs: is not supported \(write gs:// for it\)"),
        ("warehouse = 'gs://bucket/lake?pl4nted'", "expected gs://bucket/prefix"),
        (
            "warehouse = 'hdfs://host/lake'",
            r"a warehouse in hdfs: is not supported \(the commands without Spark would need Hadoop's own library",
        ),
        ("warehouse = 'wasbs://c@a.blob.core.windows.net/lake'", r"\(write abfss:// for it\)"),
        ("warehouse = 'abfss://lake/w'", "expected abfss://container@account.dfs.core.windows.net/prefix"),
        (
            f"{_ABFSS}'adls.token' = 'pl4nted'",
            r"property 'adls\.token' does not mean the same to Spark and to pyiceberg",
        ),
        (
            f"{_ABFSS}'adls.account-key' = 'pl4nted'\n'adls.sas-token' = 'pl4nted'",
            r"adls\.account-key and adls\.sas-token are two ways to the same account; set one of them",
        ),
        (f"{_GS}'gcs.service.host' = 'pl4nted:1'", r"gcs\.service\.host is not the URL of a store"),
        (f"{_S3}'s3.endpoint' = 'pl4nted:1'", r"s3\.endpoint is not the URL of a store; expected https://host"),
        (
            f"{_GS}'gcs.no-auth' = 'pl4nted'",
            r"property 'gcs\.no-auth' does not mean the same to Spark and to pyiceberg",
        ),
        (f"{_GS}'gcs.oauth2.token' = 'pl4nted'", "token and gcs.oauth2.token-expires-at belong together; set both, or"),
        ("warehouse = 'file:/lake'", "a warehouse in file: is not supported"),
        ("warehouse = 's3://k:pl4nted@bucket'", "not the address of a folder in a bucket"),
        ("warehouse = 's3://b//lake'", "expected s3://bucket/prefix"),
        ("warehouse = 's3://lake'", r"lake: .*region of the warehouse's bucket is not known; set client\.region"),
        (f"{_S3}'s3.sse.key' = 'pl4nted'", r"property 's3\.sse\.key' does not mean the same to Spark and to pyiceberg"),
        (f"{_S3}'s3.access-key-id' = 'pl4nted'", "s3.secret-access-key belong together; set both, or neither"),
        (f"{_S3}'io-impl' = 'pl4nted'", "'io-impl' is not a further property"),
        ("[lake.properties]\nuri = 'pl4nted'", "'uri' is not a further property"),
    ],
)
def test_a_catalog_or_warehouse_that_is_not_supported_is_refused_by_name(
    tmp_path: Path, section: str, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=wanted) as refused:
        configuration.load(_write(tmp_path, f"[lake]\n{section}\n"))
    assert "pl4nted" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [tmp_path / "cdc.toml"]


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("spark.sql.catalog.lake = 'org.apache.iceberg.spark.SparkCatalog'", "[lake] type, uri and properties"),
        ("spark.sql.catalog.lake.type = 'rest'", "[lake] type"),
        ("spark.sql.catalog.lake.uri = 'http://u:pl4nted@x'", "[lake] uri"),
        ("spark.sql.catalog.lake.warehouse = 's3a://x'", "[lake] warehouse"),
        ("spark.sql.catalog.lake.io-impl = 'x'", "[lake] type, uri and properties"),
        ("spark.sql.defaultCatalog = 'other'", "[lake] catalog instead"),
    ],
)
def test_a_catalog_that_only_spark_would_see_is_refused(tmp_path: Path, setting: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configuration.load(_write(tmp_path, f"[spark]\n{setting}\n"))
    assert str(refused.value).endswith(f"set {wanted}; correct it there") and "pl4nted" not in str(refused.value)


def test_settings_of_the_catalog_that_concern_spark_alone_stay_there(tmp_path: Path) -> None:
    own = "spark.sql.catalog.lake.cache-enabled = false\nspark.sql.catalog.other.type = 'hive'\n"
    assert len(configuration.load(_write(tmp_path, f"[spark]\n{own}")).spark) == 2


def test_both_sides_of_a_postgresql_catalog_get_one_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User and password may be in the address or in the environment; Spark gets them as properties of their own."""
    monkeypatch.setenv("CDC_LAKE__PROPERTIES", '{"jdbc.password": "p:w@rd/"}')
    file = _write(tmp_path, "[lake]\nuri = 'jdbc:postgresql://[::1]:5433/my%20lake?user=u%40x&sslmode=require'\n")
    config = configuration.load(file)
    spark = lake_catalog.spark_properties(config.lake_access)
    assert spark["uri"] == "jdbc:postgresql://[::1]:5433/my%20lake?sslmode=require"
    assert (spark["jdbc.user"], spark["jdbc.password"]) == ("u@x", "p:w@rd/")
    assert lake_catalog._pyiceberg_properties(config.lake_access)["uri"] == (
        "postgresql+psycopg://u%40x:p%3Aw%40rd%2F@[::1]:5433/my%20lake?sslmode=require&connect_timeout=10"
    )
    assert lake_catalog.secrets_of(config.lake_access) == {"jdbc.password": "p:w@rd/"}
    assert "p:w@rd/" not in repr(config) and "p:w@rd/" not in lake_catalog.open_catalog(config.lake_access).where


@pytest.mark.parametrize("path_style", [True, False])
def test_both_sides_of_an_object_store_get_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path_style: bool
) -> None:
    """The region may come from the environment, the keys too: then neither side gets any."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "x-2")
    style = "'s3.path-style-access' = 'true'\n" if path_style else ""
    file = _write(
        tmp_path, f"[lake]\nwarehouse = 's3://lake/w/'\n[lake.properties]\n's3.endpoint' = 'http://e'\n{style}"
    )
    config = configuration.load(file)
    assert (config.lake_access.warehouse, config.lake_access.work_dir) == ("s3://lake/w", tmp_path / "lake")
    spark = session.spark_settings(config.lake_access)
    given = {
        k.removeprefix("spark.sql.catalog.lake."): v for k, v in spark.items() if k.startswith("spark.sql.catalog")
    }
    assert given["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert (
        given["warehouse"] == "s3://lake/w" and given["client.region"] == "x-2" and given["s3.endpoint"] == "http://e"
    )
    assert spark["spark.sql.warehouse.dir"] == str(tmp_path / "lake")
    assert "org.apache.iceberg:iceberg-aws-bundle" in spark["spark.jars.packages"]
    files = storage.file_properties(config.lake_access)
    assert files.pop("py-io-impl") == "toolkit.lake.store_io.StoreFileIO"
    assert files.pop("s3.force-virtual-addressing", "false") == ("false" if path_style else "true")
    assert files == {key: value for key, value in given.items() if key.startswith(("s3.", "client."))}
    assert lake_catalog.secrets_of(config.lake_access) == {}
    keys = {"s3.access-key-id": "pl4nted1", "s3.secret-access-key": "pl4nted2"}
    monkeypatch.setenv("CDC_LAKE__PROPERTIES", json.dumps(keys))
    config = configuration.load(file)
    assert (
        lake_catalog.secrets_of(config.lake_access) == keys
        and storage.file_properties(config.lake_access).items() >= keys.items()
    )
    assert "pl4nted" not in models.profile(config.lake_access, dbt=config.dbt_project) + repr(config)


def test_both_sides_of_google_s_store_get_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(tmp_path, "[lake]\nwarehouse = 'gs://lake/w'\n")
    config = configuration.load(file)  # with the credentials that Google's clients find
    assert (
        storage.file_properties(config.lake_access).keys() == {"py-io-impl"}
        and lake_catalog.secrets_of(config.lake_access) == {}
    )
    files = {"gcs.oauth2.token": "pl4nted", "gcs.oauth2.token-expires-at": "1", "gcs.service.host": "http://e"}
    monkeypatch.setenv("CDC_LAKE__PROPERTIES", json.dumps(files))
    config = configuration.load(file)
    spark = session.spark_settings(config.lake_access)
    given = {f"spark.sql.catalog.lake.{key}": value for key, value in files.items()}
    assert spark.items() >= given.items()
    assert spark["spark.sql.catalog.lake.io-impl"] == "org.apache.iceberg.gcp.gcs.GCSFileIO"
    assert "org.apache.iceberg:iceberg-gcp-bundle" in spark["spark.jars.packages"]
    assert storage.file_properties(config.lake_access) == files | {"py-io-impl": "toolkit.lake.store_io.StoreFileIO"}
    assert lake_catalog.secrets_of(config.lake_access)["gcs.oauth2.token"] == "pl4nted"
    assert "pl4nted" not in models.profile(config.lake_access, dbt=config.dbt_project) + repr(config)


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1/"])
def test_both_sides_of_azure_s_store_get_the_same_settings_by_their_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    file = _write(tmp_path, "[lake]\nwarehouse = 'abfss://lake@acme.dfs.core.chinacloudapi.cn/w'\n")
    where = {"adls.endpoint": endpoint} if endpoint else {}

    def given(**keys: str) -> tuple[dict[str, str], dict[str, str]]:
        named = {f"adls.{name.replace('_', '-')}": value for name, value in keys.items()}
        monkeypatch.setenv("CDC_LAKE__PROPERTIES", json.dumps(where | named))
        config = configuration.load(file)
        assert "pl4nted" not in models.profile(config.lake_access, dbt=config.dbt_project) + repr(config)
        assert len(lake_catalog.secrets_of(config.lake_access)) == len(named)
        assert storage.file_properties(config.lake_access).pop("py-io-impl") == "toolkit.lake.store_io.StoreFileIO"
        spark = lake_catalog.spark_properties(config.lake_access)
        files = storage.file_properties(config.lake_access)
        return ({k: v for k, v in p.items() if k.startswith("adls.")} for p in (spark, files))  # type: ignore[return-value]

    host = "acme.dfs.core.chinacloudapi.cn"
    at = {f"adls.connection-string.{host}": "http://127.0.0.1:1/acme"} if endpoint else {}
    spark, files = given()
    assert spark == at and files.pop("adls.account-name") == "acme"
    if endpoint:
        kinds = {"storage-authority": "127.0.0.1:1", "storage-scheme": "http"}
        assert files == {f"adls.{service}-{k}": v for service in ("blob", "dfs") for k, v in kinds.items()}
    else:
        services = ("blob", "dfs")
        assert files == {f"adls.{s}-storage-authority": f".{s}.core.chinacloudapi.cn" for s in services}
    named, own = given(account_key="pl4nted")
    assert own.pop("adls.account-key") == "pl4nted" and own.keys() == files.keys() | {"adls.account-name"}
    shared = {"account.name": "acme", "account.key": "pl4nted"}
    assert named == at | {f"adls.auth.shared-key.{name}": value for name, value in shared.items()}
    for token in ("pl4nted", "?pl4nted"):  # Azure's tools give it in both ways, and Arrow appends it to the URL
        named, own = given(sas_token=token)
        assert own["adls.sas-token"] == "?pl4nted" and named == at | {f"adls.sas-token.{host}": "pl4nted"}


def test_the_folder_of_the_runner_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    assert configuration.load(_write(tmp_path, "[lake]\nwarehouse = 'a/b'\n")).lake_access.work_dir == tmp_path / "a"
    named = configuration.load(_write(tmp_path, "[lake]\nwarehouse = 'a/b'\nwork_dir = 'run'\n"))
    assert named.lake_access.work_dir == tmp_path / "run"


def test_a_path_in_the_home_folder_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder `~` was made beside the configuration."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = configuration.load(
        _write(
            tmp_path,
            '[lake]\nwarehouse = "~/lake"\nuri = "jdbc:sqlite:~/lake/catalog.db"\n[dbt]\nproject_dir = "~/models"\n'
            '[drain]\nspool_dir = "~one/spool"\n',
        )
    )
    lake = config.lake_access
    assert (lake.warehouse, lake.catalog_db) == (str(tmp_path / "home/lake"), tmp_path / "home/lake/catalog.db")
    assert config.dbt_project.folder == tmp_path / "home/models"
    assert config.source_access.spool_dir == tmp_path / "~one/spool"


def test_a_key_that_needs_a_list_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source.tables: must be a list, such as \[...\], found 'public.\*'"):
        configuration.load(_write(tmp_path, '[source]\ntables = "public.*"\n'))


def test_an_error_is_readable_beside_an_empty_secret(tmp_path: Path) -> None:
    """A variable that is not set makes one. A part of a longer secret is not shown either."""
    secrets = ("", "abc", "abcdef")
    catalog = AnyCatalog(Config(root=tmp_path).lake_access, "here", {}, secrets)
    assert catalog._in_one_line(ValueError("token abcdef of abc")) == "token *** of ***"


def test_secrets_of_a_catalog_are_known_by_their_names(tmp_path: Path) -> None:
    properties = {"token": "1", "credential": "2", "header.X-Key": "3", "s3.secret-access-key": "4", "scope": "catalog"}
    lake = {"type": "rest", "uri": "http://x", "properties": properties}
    config = Config.model_validate({"root": tmp_path, "lake": lake})
    assert lake_catalog.secrets_of(config.lake_access).keys() == properties.keys() - {"scope"}
    outputs = yaml.safe_load(models.profile(config.lake_access, dbt=config.dbt_project))["cdc"]["outputs"]
    settings = outputs["session"]["server_side_parameters"]
    named = settings["spark.sql.catalog.lake.s3.secret-access-key"]
    assert named == "{{ env_var('DBT_ENV_SECRET_CDC_S3_SECRET_ACCESS_KEY') }}"
    assert settings["spark.sql.catalog.lake.scope"] == "catalog"
    assert {v for *_, v in models.secret_variables(config.lake_access)} == {"1", "2", "3", "4"}
    assert "credential" in session.spark_settings(config.lake_access)["spark.redaction.regex"]


def test_dbt_has_settings_with_braces_as_they_are(tmp_path: Path) -> None:
    """Spark puts the names of a run into {{APP_ID}} and {{EXECUTOR_ID}}; dbt put nothing there before."""
    from dbt.clients.jinja import get_rendered

    given = {"spark.executor.extraJavaOptions": '-Xlog:gc:/tmp/{{APP_ID}}-{{EXECUTOR_ID}}.gc -Da="b\\n" {% -De=é'}
    config = Config.model_validate({"root": tmp_path, "spark": given})
    outputs = yaml.safe_load(models.profile(config.lake_access, dbt=config.dbt_project))["cdc"]["outputs"]
    settings = outputs["session"]["server_side_parameters"]
    shown = {name: get_rendered(value, {}, native=True) for name, value in settings.items()}
    assert shown.items() >= given.items()


_EVENTS = "/w/raw/events"


@pytest.mark.parametrize("root", ["/srv/C#/w", "/srv/why?/w", "s3://bucket/a;b"])
def test_maintenance_knows_folders_by_their_whole_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    """Read as a URL, the path of each table ended at the same `#`, and maintenance refused the lake for ever."""
    monkeypatch.setattr(reads, "each_metadata", lambda _, names: [{"location": f"{root}/{name}-1"} for name in names])
    maintenance._require_own_folders(Config(root=tmp_path).lake_access, ["raw.events", "current.a"])


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [("CDC_SOURCE__SLOT", "A-B", "source.slot"), ("cdc_source__tables", "[1]", r"source\.tables\.0")],
)
def test_an_unusable_value_is_said_to_be_the_variables_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, key: str
) -> None:
    """The message named the file, in which nothing was wrong."""
    file = _write(tmp_path, "[source]\nslot = 'ok'\n")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^variable {name}: {key}: .*; correct it there$"):
        configuration.load(file)
    monkeypatch.setenv(name, "")  # which is no value: the file has it
    with pytest.raises(ConfigError, match=r"cdc\.toml: source\.slot: "):
        configuration.load(_write(tmp_path, "[source]\nslot = 'A-B'\n"))


@pytest.mark.parametrize(
    ("second", "shared"),
    [(_EVENTS, True), (f"file:{_EVENTS}", True), (f"{_EVENTS}/x/", True), (f"{_EVENTS}-2", False)],
)
def test_maintenance_refuses_tables_that_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: str, shared: bool
) -> None:
    """A catalog behind a server may give a table the folder that a renamed table still has."""
    folders = {"raw.events": _EVENTS, "raw.old": second}
    monkeypatch.setattr(reads, "each_metadata", lambda _, names: [{"location": folders[name]} for name in names])
    with pytest.raises(LakeError, match=r"raw\.events and raw\.old share the folder") if shared else nullcontext():
        maintenance._require_own_folders(Config(root=tmp_path).lake_access, list(folders))
