"""One Spark session per process of a test run, for every test marked `spark`; starting one takes longer than most suites.

pytestmark = SPARK_TEST

def test_something(spark: SparkSession) -> None: ...
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""For every JVM of a test run, those of commands and examples too: short queries on few cores."""

SPARK_TEST = [pytest.mark.spark]
"""Marks of tests with a session."""

REMOTE = "NEVERMORE_TEST_SPARK_REMOTE"
"""Environment variable: the session is one of Connect; `local[2]` starts its server too."""


@pytest.fixture(scope="session")
def spark() -> "SparkSession":
    """A session with two task slots; it runs until the process ends, as tools keep theirs."""
    from nevermore.scan_core.spark.session import spark_session

    config = {"spark.sql.shuffle.partitions": "2"}
    remote = os.environ.get(REMOTE) or None
    return spark_session("nevermore-tests", master="local[2]", remote=remote, config=config)


@pytest.fixture
def ansi_spark(spark: "SparkSession") -> Iterator["SparkSession"]:
    """The session in ANSI mode and in UTC, as filters mean it."""
    wanted = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, str(value))
