"""The other side of a join in Spark: collected once, of exactly the types that Spark would read, or read by Spark."""

import datetime as dt
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from nevermore import scan_core
from nevermore.scan_core import Scan
from nevermore.scan_core.spark.frames import dataframe
from nevermore.scan_core.spark.joins import BuildLimits, join, keys_of_scan
from nevermore.scan_core.spark.types import arrow_schema_of, spark_schema
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

KEYS = 6
UTC = dt.UTC
VALUES: dict[str, tuple[str, list[Any]]] = {
    "flag": ("boolean", [True, False]),
    "wide": ("long", [-(2**63), 2**63 - 1]),
    "single": ("float", [-0.0, float("nan")]),
    "double": ("double", [float("nan"), float("-inf")]),
    "amount": ("decimal(9, 3)", [Decimal("-999999.999"), Decimal("0.100")]),
    "large": ("decimal(38, 10)", [Decimal("9" * 28 + ".0000000001"), Decimal(0)]),
    "day": ("date", [dt.date(1500, 2, 28), dt.date(9999, 12, 31)]),
    "at": ("timestamp", [dt.datetime(1500, 2, 28, 1, 2, 3, 4), dt.datetime(2024, 3, 31, 2, 30)]),  # noqa: DTZ001
    "instant": ("timestamptz", [dt.datetime(1500, 2, 28, tzinfo=UTC), dt.datetime(2024, 3, 31, 1, 30, tzinfo=UTC)]),
    "name": ("string", ["", "ÿ\0z"]),
    "uuid": ("uuid", [b"\xff" * 16, bytes(16)]),
    "raw": ("binary", [b"", b"\0\xff"]),
    "fixed": ("fixed[3]", [b"abc", b"\0\0\0"]),
}


@pytest.fixture(scope="module")
def dimension(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """Each key twice, one of them gone by an equality delete, and NULL; a value of each type beside it."""
    columns = [Column(1, "k", "int"), *(Column(i, n, t) for i, (n, (t, _)) in enumerate(VALUES.items(), 2))]
    builder = TableBuilder(tmp_path_factory.mktemp("dimension") / "t", columns)
    rows: dict[str, list[Any]] = {"k": [*range(KEYS), *range(KEYS), None]}
    for name, (_, (one, other)) in VALUES.items():
        rows[name] = [one, other, None] * 4 + [one]
    builder.commit(builder.data(rows))
    builder.commit(builder.equality_delete({"k": [2]}, ids=[1]))
    return scan_core.open_table(builder.metadata_path).scan()


@pytest.fixture(scope="module")
def fact(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    """A row for each of ten keys, and one without."""
    builder = TableBuilder(tmp_path_factory.mktemp("fact") / "t", [Column(1, "k", "long"), Column(2, "n", "int")])
    for first in (0, 5):
        numbers: list[int | None] = [*range(first, first + 5), None]
        builder.commit(builder.data({"k": numbers, "n": numbers}))
    return scan_core.open_table(builder.metadata_path).scan()


def rows(frame: DataFrame) -> Counter[str]:
    """As Arrow has them, which knows every date and has NaN equal to itself."""
    table = frame.toArrow()
    return Counter(repr((row, table.schema.types)) for row in table.to_pylist())


def test_collected_rows_have_the_types_of_spark_and_keys_those_of_the_table(dimension: Scan) -> None:
    side = keys_of_scan(dimension, ["uuid", "k"], BuildLimits())
    assert side.rows is not None
    assert side.keys is not None
    assert side.rows.schema == arrow_schema_of(spark_schema(dimension.schema))
    assert side.rows["uuid"][0].as_py() == "ffffffff-ffff-ffff-ffff-ffffffffffff"
    assert side.keys.schema == dimension.select("uuid", "k").arrow_schema
    assert side.rows.num_rows == side.keys.num_rows == 2 * KEYS - 1


def test_dimension_that_is_too_wide_gives_its_keys_alone(dimension: Scan) -> None:
    size = dimension.select("k").to_table().nbytes
    side = keys_of_scan(dimension, ["k"], BuildLimits(max_bytes=size))
    assert side.rows is None
    assert side.keys is not None
    none = keys_of_scan(dimension, ["k"], BuildLimits(max_bytes=size - 1))
    assert none.keys is None
    assert none.why_not == f"the dimension takes more than {size - 1} bytes (max_bytes)"
    assert keys_of_scan(dimension, ["k"], BuildLimits(max_rows=3)).keys is None


def test_nested_columns_are_left_to_spark(tmp_path: Path) -> None:
    member = {"type": "list", "element-id": 3, "element-required": False, "element": "int"}
    builder = TableBuilder(tmp_path / "t", [Column(1, "k", "int"), Column(2, "l", member)])
    builder.commit(builder.data({"k": [1, 2], "l": [[1], None]}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    side = keys_of_scan(scan, ["k"], BuildLimits())
    assert side.rows is None
    assert side.keys is not None
    assert side.keys.num_rows == 2


@pytest.mark.spark
@pytest.mark.parametrize(
    "how", [k if k == "inner" else pytest.param(k, marks=pytest.mark.slow) for k in ("inner", "left_semi", "right")]
)
def test_every_type_comes_out_as_spark_reads_it(spark: SparkSession, fact: Scan, dimension: Scan, how: str) -> None:
    right = dimension.where("k < 100 or k is null")
    plain = dataframe(spark, fact, "python").join(dataframe(spark, right, "python"), "k", how)
    found = join(fact, right, on="k", how=how, spark=spark)
    assert found.schema == plain.schema
    assert rows(found) == rows(plain)


@pytest.mark.slow
@pytest.mark.spark
def test_keys_of_every_type_and_of_none(spark: SparkSession, dimension: Scan) -> None:
    for name in VALUES:
        few = dimension.select(name).where("k < 1")
        plain = dataframe(spark, dimension, "python").join(dataframe(spark, few, "python"), name, "left_semi")
        found = join(dimension, few, on=name, how="left_semi", spark=spark)  # with itself
        assert rows(found) == rows(plain), name
        nothing = join(dimension, dimension.where("k > 100"), on=name, spark=spark)
        assert nothing.count() == 0, name
