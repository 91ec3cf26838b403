"""Which scheme Spark is asked to open: the one that its Hadoop knows, or none, with what it said."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.spark.native import spark_path, spark_schemes


class _Spark:
    """A session whose Hadoop knows some schemes."""

    def __init__(self, *known: str) -> None:
        self._known = known
        self.asked: list[str] = []
        self.read = self

    def schema(self, _: str) -> "_Spark":
        return self

    def parquet(self, path: str) -> "_Spark":
        self.asked.append(path)
        return self

    def inputFiles(self) -> list[str]:  # noqa: N802 - Spark's name
        scheme = self.asked[-1].partition(":")[0]
        if scheme not in self._known:
            raise PySparkException(f'\nUnsupportedFileSystemException: No FileSystem for scheme "{scheme}"\n at ...')
        return [self.asked[-1]]


def _tasks(*paths: str) -> Any:
    return [SimpleNamespace(data_file=SimpleNamespace(path=path)) for path in paths]


@pytest.mark.parametrize(("known", "wanted"), [("s3a", "s3a"), ("s3", "s3")])
def test_s3_goes_by_the_name_that_spark_knows(known: str, wanted: str) -> None:
    spark, io = _Spark(known), FileIOConfig()
    tasks = _tasks("s3://bucket/t/a b.parquet", "s3n://bucket/t/2.parquet", "file:/local/3.parquet", "/local/4.parquet")
    schemes = spark_schemes(spark, tasks, io)
    assert schemes == {"s3": wanted}
    found = [spark_path(task.data_file.path, io, schemes) for task in tasks]
    assert found == [
        f"{wanted}://bucket/t/a b.parquet",
        f"{wanted}://bucket/t/2.parquet",
        "/local/3.parquet",
        "/local/4.parquet",
    ]
    assert len(spark.asked) <= 2  # one file of each bucket


def test_a_store_that_spark_does_not_know_is_the_reason_with_its_first_words() -> None:
    reason = spark_schemes(_Spark(), _tasks("gs://lake/t/1.parquet"), FileIOConfig())
    assert reason == ('Spark does not open gs://lake (UnsupportedFileSystemException: No FileSystem for scheme "gs")')


def test_relocated_files_are_asked_for_where_they_are() -> None:
    io = FileIOConfig((("s3://old", "/mnt/lake"),))
    assert spark_schemes(_Spark(), _tasks("s3://old/t/1.parquet"), io) == {}
    assert spark_path("s3://old/t/1.parquet", io, {}) == "/mnt/lake/t/1.parquet"
