"""Write a script that opens Spark's SQL prompt on the demo's lake."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolkit.values.lake_access import LakeAccess


def hints(access: LakeAccess, folder: Path) -> list[str]:
    """Write the script, and return lines that show how to query the lake with it."""
    script, names = _write(access, folder), access.names
    return [
        f"  SQL prompt  {script} -e 'SELECT * FROM {names.published}.public__customers LIMIT 5'",
        f"  History     SELECT * FROM {names.history}.public__customers WHERE id = 7 ORDER BY _cdc_from_lsn",
    ]


def _write(access: LakeAccess, folder: Path) -> Path:
    """Write a script that opens Spark's SQL prompt on the demo's lake."""
    from toolkit.lake.java import find_java
    from toolkit.lake.session import spark_settings

    settings = spark_settings(access)
    arguments = [item for key, value in settings.items() for item in ("--conf", shlex.quote(f"{key}={value}"))]
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent  # otherwise its scripts use the first python on PATH
    script = folder / "sql"
    script.write_text(
        "#!/bin/sh\n# Spark's SQL prompt on this lake: ./sql, or ./sql -e 'SELECT ...'\n"
        f"export JAVA_HOME={shlex.quote(str(find_java().parent.parent))}\n"
        f"export SPARK_HOME={shlex.quote(str(home))}\n"
        f'exec "$SPARK_HOME/bin/spark-sql" {" ".join(arguments)} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script
