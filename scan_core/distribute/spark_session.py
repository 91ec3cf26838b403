"""The Spark session of tools and tests: local by default, quiet, offline, workers in this very Python."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import scan_core
from scan_core.distribute.java import require_java
from scan_core.distribute.spark import register
from scan_core.distribute.task_reports import temporary_root

ARROW_BATCH_ROWS = 100_000
"""Spark's own default of 10,000 spends a third of the time on batch borders."""
LOCAL_SHUFFLE_PARTITIONS = 2 * (os.cpu_count() or 1)
"""Spark's default of 200 starts 200 tasks for ten rows on a laptop."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG4J2 = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_session(
    app_name: str = "nevermore", master: str = "local[*]", config: dict[str, str] | None = None
) -> SparkSession:
    """A session set up for reading and writing through scan_core, or the one that already runs.

    Nothing is downloaded; workers run this very Python; times are UTC.

    Args:
        app_name: name in Spark's logs.
        master: as `spark-submit --master`.
        config: further settings, which win over ours; Java options are added to ours.

    Raises:
        MissingRuntimeError: no Java 17 or newer.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _let_workers_import_scan_core()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in _merged(_session_config(master), config or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def _session_config(master: str) -> dict[str, str]:
    settings = {
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_quiet_log_config().as_uri()}",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.worker.reuse": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.sql.warehouse.dir": str(temporary_root() / "warehouse"),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS),
        }
    return settings


def _merged(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    merged = {**ours, **theirs}
    if _JAVA_OPTIONS in theirs:
        merged[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {theirs[_JAVA_OPTIONS]}"
    return merged


def _quiet_log_config() -> Path:
    """Spark greets with a dozen warnings before any setting of its own can silence them."""
    path = temporary_root() / "log4j2.properties"
    path.write_text(_LOG4J2)
    return path


def _let_workers_import_scan_core() -> None:
    """Python workers inherit PYTHONPATH, not the `sys.path` that a test runner or notebook may have changed."""
    root = str(Path(scan_core.__file__).resolve().parent.parent)
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
