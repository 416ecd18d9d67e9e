"""Write the sections of lake and Spark in the configuration of a demo."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from toolkit.lake.session import ONE_COMPILER
from toolkit.values.resources import ROOT

if TYPE_CHECKING:
    from toolkit.demo.loopback import ObjectStore, Standalone
    from toolkit.demo.server import EmbeddedServer

#: Lake and Spark on this machine.
LOCAL = f"""\
[lake]
warehouse = "lake/warehouse"
uri = "jdbc:sqlite:lake/catalog.db"

# For tables this small the JVM's second compiler costs more than it saves. A real lake needs no such line: a JVM that
# starts on a small log does without that compiler by itself.
[spark]
"spark.driver.extraJavaOptions" = "{ONE_COMPILER}"
"""


def on_servers(server: EmbeddedServer, database: str, store: ObjectStore, spark: Standalone) -> str:
    """Return the sections of a lake on servers: its catalog is `database`. The keys end with them."""
    sections = {
        "lake": {
            "warehouse": store.warehouse,
            "uri": f"jdbc:postgresql://127.0.0.1:{server.port}/{database}?user={server.user}",
        },
        "lake.properties": {**store.properties, **store.keys, "jdbc.password": server.password},
        "spark": {
            "spark.master": spark.master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.authenticate": "true",
            "spark.authenticate.secret": spark.secret,
            "spark.executor.memory": "1g",
            "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
            "spark.executorEnv.PYTHONPATH": str(ROOT),  # the toolkit need not be installed
            **{f"spark.executorEnv.{name}": value for name, value in store.environment.items()},
            "spark.driver.extraJavaOptions": ONE_COMPILER,
            "spark.executorEnv.JDK_JAVA_OPTIONS": ONE_COMPILER,
        },
    }
    return "\n".join(
        f"[{name}]\n" + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in keys.items())
        for name, keys in sections.items()
    )
