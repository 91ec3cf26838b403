"""`sql` gives the rows that plain Spark gives over all live rows: random queries over random tables with deletes."""

import random
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from nevermore import scan_core
from nevermore.scan_core import Scan
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark import parse_sql, planning, reads_of_sql, spark_schema, sql
from tests.differential.published_queries import KINDS, SCHEMAS, TABLES, row_of
from tests.differential.test_needed_rows import query_of
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST


class Tables:
    """Each table twice: as an Iceberg table with equality deletes, and as a view of its live rows in Spark."""

    def __init__(self, spark: SparkSession, chance: random.Random, folder: Path) -> None:
        self.scans: dict[str, Scan] = {}
        for name, columns in TABLES.items():
            builder = TableBuilder(
                folder / name,
                [Column(1, "row", "long"), *(Column(n, c, kind) for n, (c, kind) in enumerate(columns.items(), 2))],
            )
            live: list[tuple[Any, ...]] = []
            for batch in range(3):
                rows = [tuple(map(_value, row_of(chance, columns), columns.values())) for _ in range(5)]
                numbers = [batch * 5 + n for n in range(5)]
                by_column = zip(*rows, strict=True)
                builder.commit(builder.data({"row": numbers} | dict(zip(columns, map(list, by_column), strict=True))))
                gone = chance.sample(numbers, 2)
                builder.commit(builder.equality_delete({"row": gone}, ids=[1]))
                live += [row for number, row in zip(numbers, rows, strict=True) if number not in gone]
            self.scans[name] = scan_core.open_table(builder.metadata_path).scan().select(*columns)
            schema = st.StructType([st.StructField(f.name, f.dataType) for f in spark_schema(SCHEMAS[name])])
            spark.createDataFrame(live, schema).createOrReplaceTempView(name)


def _value(value: object, kind: str) -> Any:
    if isinstance(value, str) and kind == "date":
        return date.fromisoformat(value)
    return datetime.fromisoformat(value) if isinstance(value, str) and kind == "timestamp" else value


def check(spark: SparkSession, seed: int, folder: Path, num_queries: int) -> Counter[str]:
    chance = random.Random(seed)
    tables, seen = Tables(spark, chance, folder), Counter[str]()
    for _ in range(num_queries):
        text = query_of(chance, KINDS)
        reader = chance.choice(["auto", "native", "python"])
        try:
            frame = sql(spark, text, tables.scans, reader=reader)
        except OptionError as error:
            if "a column of the query is a sub-query, which Spark fails to plan" not in str(error):
                raise
            frame = sql(spark, text, tables.scans)
        with planning(spark, parse_sql(text).tree):  # Spark fails to plan some of these over any tables
            expected = Counter(map(tuple, spark.sql(text).collect()))
            assert Counter(map(tuple, frame.collect())) == expected, text
        reads = reads_of_sql(frame).values()
        seen += Counter(queries=1, where=any(r.where for r in reads), joins=any(r.joins for r in reads))
    return seen


def test_random_queries_give_what_plain_spark_gives(ansi_spark: SparkSession, tmp_path: Path) -> None:
    seen = check(ansi_spark, 7, tmp_path, 8)
    assert seen["where"] > 2
    assert seen["joins"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_thousands_of_random_queries_give_what_plain_spark_gives(
    ansi_spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    check(ansi_spark, seed, tmp_path, 40)
