"""Where Spark finds the files that scan_core reads: local paths as they are, others by the scheme that Spark knows.

Spark opens object stores through Hadoop's file systems, which a session may have or not, and calls by other schemes
(`s3a` for `s3`). One file of each store is asked for before a scan relies on it.
"""

from collections.abc import Mapping, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from scan_core.file_io import locate
from scan_core.location import Location, relocate
from scan_core.split import FileIOConfig, FileScanTask

_SCHEMES = {"s3": ("s3a", "s3"), "gcs": ("gs",)}
"""What Hadoop may call a store."""


def spark_schemes(spark: SparkSession, tasks: Sequence[FileScanTask], io: FileIOConfig) -> Mapping[str, str] | str:
    """For each scheme of the files that are not local the one that Spark opens; the reason if it opens none."""
    examples: dict[tuple[str, str], Location] = {}
    for task in tasks:
        location = relocate(task.data_file.path, io)
        if not location.is_local:
            examples.setdefault((location.scheme, location.authority), location)
    found: dict[str, str] = {}
    for (scheme, authority), location in examples.items():
        if (reason := _find(spark, scheme, location, found)) is not None:
            return f"Spark does not open {scheme}://{authority} ({reason})"
    return found


def spark_path(path: str, io: FileIOConfig, schemes: Mapping[str, str]) -> str:
    """The path of a data file as Spark opens it."""
    location = locate(path, io)
    if location.is_local:
        return location.path
    return f"{schemes[location.scheme]}://{location.authority}{location.path}"


def _find(spark: SparkSession, scheme: str, location: Location, found: dict[str, str]) -> str | None:
    """Add the name under which Spark opens this file; the first line of what it says if it does not."""
    reason = ""
    for name in (found[scheme],) if scheme in found else _SCHEMES.get(scheme, (scheme,)):
        try:
            spark.read.schema("x int").parquet(f"{name}://{location.authority}{location.path}").inputFiles()
        except (PySparkException, Py4JError) as error:
            reason = reason or next((line for line in str(error).splitlines() if "Exception" in line), str(error))
        else:
            found[scheme] = name
            return None
    return reason[:200]
