"""Delete files of the lake that nothing needs any more, and name the one that cannot be deleted.

Iceberg only finds them. Its own deletion reports no error where the store refuses it, or does not know the request that
deletes several objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from toolkit.lake import storage
from toolkit.values.errors import LakeError
from toolkit.values.failpoints import Point, can_fail
from toolkit.values.names import quote_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toolkit.values.lake_access import LakeAccess

_AT_ONCE = 8  # files that are deleted at a time
_METADATA = (".avro", ".json", ".text")  # endings of the files from which Iceberg knows the files with rows


class Unused:
    """Places of files that a procedure of Iceberg would delete, collected in Java. `consumer` is what it takes."""

    def __init__(self, jvm: Any) -> None:
        lang = jvm.java.lang
        add = lang.invoke.MethodType.methodType(lang.Boolean.TYPE, lang.Class.forName("java.lang.Object"))
        self._jvm = jvm
        self._found = jvm.java.util.Vector()  # several threads add to it
        bound = lang.invoke.MethodHandles.publicLookup().bind(self._found, "add", add)
        consumer = lang.Class.forName("java.util.function.Consumer")
        self.consumer = lang.invoke.MethodHandleProxies.asInterfaceInstance(consumer, bound)

    def places(self) -> list[str]:
        """Return what was collected, in one call for all."""
        joined = self._jvm.java.lang.String.join("\n", self._found)
        return joined.split("\n") if joined else []


def delete(access: LakeAccess, table: str, places: Sequence[str], what: str, then: str) -> None:
    """Delete files that nothing needs.

    Raises:
        LakeError: one of them cannot be deleted; `what` says what it is, and `then` what to do after that is corrected.
    """
    properties = storage.file_properties(access)

    def delete_one(place: str) -> None:
        try:
            storage.delete(place, properties)
        except OSError as error:
            raise LakeError(
                f"{table}: {place} {what} and cannot be removed: {' '.join(str(error).split())[:300]};"
                f" let this user delete files of the warehouse, and {then}"
            ) from error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(delete_one, places):
            pass


@can_fail(Point.RETIRE)
def drop(spark: SparkSession, access: LakeAccess, table: str) -> None:
    """Drop `namespace.table` with its files.

    Files with rows are deleted first. If that is refused or killed, the table is still in the catalog, and the next
    build drops it.

    Raises:
        LakeError: a file cannot be deleted, or the table is damaged so that its files are not known.
    """
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    shown = table.replace("`", "")
    name = f"{quote_spark(access.lake.catalog)}.{table}"
    native = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    actions = jvm.org.apache.iceberg.spark.actions.SparkActions.get(spark._jsparkSession)
    unused, location = Unused(jvm), native.location()
    reachable = actions.deleteReachableFiles(native.operations().current().metadataFileLocation())
    try:
        reachable.io(native.io()).deleteWith(unused.consumer).execute()
    except Py4JJavaError as error:
        cause = str(error.java_exception.getMessage()).partition("\n")[0]
        raise LakeError(
            f"{shown} is to be dropped, and its files cannot be listed: {cause}; run DROP TABLE {name} in Spark, and"
            f" delete its folder {location}"
        ) from None
    places = unused.places()
    metadata = [place for place in places if place.endswith(_METADATA)]
    rows = [place for place in places if not place.endswith(_METADATA)]
    delete(access, shown, rows, "is of a table to drop", "run `cdc build` again")
    spark.sql(f"DROP TABLE {name}")
    delete(access, shown, metadata, "is of a dropped table", f"delete what is left of {location} by hand")
