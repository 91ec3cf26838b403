"""Rows that came or went, as Spark's tasks and this process find them: compactions change none, and signs of zeros count."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.pipelines.publish.mirror_reads import changed_rows, changed_rows_here
from nevermore.scan_core import open_table
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

NAN = float("nan")
FIRST = {"id": [1, 2, 3, 4, 5, None], "x": [0.0, -0.0, NAN, None, 1.5, 2.5], "note": ["a", "b", "c", None, "e", ""]}
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("note", pa.string())])


def test_rows_that_were_only_moved_cancel_out_and_others_do_not(tmp_path: Path, spark: SparkSession) -> None:
    catalog = open_catalog(parse("tables: {shop.t: {source: {path: none}, key: [id]}}", tmp_path / "nevermore.yaml"))
    delta = RowDelta(create_table(catalog, "shop.t", iceberg_fields(SCHEMA)))
    before = delta.commit(write_rows(pa.table(FIRST, SCHEMA), delta.target, delta.default_spec), {}).snapshot_id

    delta = RowDelta(find_table(catalog, "shop.t"))
    moved = FIRST | {"x": [-0.0, -0.0, -NAN, None, 1.5, 2.5]}  # one zero has changed
    delta.commit(write_rows(pa.table(moved, SCHEMA), delta.target, delta.default_spec), {}, remove=everything)
    assert _changed(catalog, spark, before) == {(1, "0.0", "a"): 1, (1, "-0.0", "a"): 1}

    delta = RowDelta(find_table(catalog, "shop.t"))
    gone = write_deletes(pa.table({"id": pa.array([5], pa.int64())}), delta.target, delta.default_spec, [1])
    twice = pa.table({"id": [9, 9], "x": [1.0, 1.0], "note": ["n", "n"]}, SCHEMA)
    delta.commit([*write_rows(twice, delta.target, delta.default_spec), *gone], {})
    assert _changed(catalog, spark, before) == {
        (1, "0.0", "a"): 1, (1, "-0.0", "a"): 1, (5, "1.5", "e"): 1, (9, "1.0", "n"): 2,
    }  # fmt: skip


def test_without_a_change_there_is_nothing_to_read(tmp_path: Path, spark: SparkSession) -> None:
    catalog = open_catalog(parse("tables: {shop.t: {source: {path: none}, key: [id]}}", tmp_path / "nevermore.yaml"))
    table = create_table(catalog, "shop.t", iceberg_fields(SCHEMA))
    delta = RowDelta(table)
    delta.commit(write_rows(pa.table(FIRST, SCHEMA), delta.target, delta.default_spec), {})
    now = find_table(catalog, "shop.t")
    assert changed_rows(spark, open_table(now).scan().changes(now.metadata.current_snapshot_id)) is None  # type: ignore[union-attr] # it exists


def _changed(catalog: Any, spark: SparkSession, before: int) -> Counter[tuple[Any, ...]]:
    changes = open_table(find_table(catalog, "shop.t")).scan().changes(before)
    rows = changed_rows(spark, changes)
    assert rows is not None
    by_spark = Counter({(row[0], str(row[1]), row[2]): row[3] for row in rows.collect()})
    here = changed_rows_here(changes)
    assert here is not None
    assert Counter({(x, str(y), z): n for x, y, z, n in zip(*here.to_pydict().values(), strict=True)}) == by_spark
    return by_spark
