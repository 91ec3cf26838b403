"""DataFrames over scans: equal to the scan in every use, deletes applied before rows reach the JVM."""

import datetime as dt
import re
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions, Table
from nevermore.scan_core.model.errors import OptionError, UnsupportedError
from nevermore.scan_core.spark.frames import dataframe, reports_of
from tests.support.fixture_tables import fixture_tables
from tests.support.iceberg_json import Column
from tests.support.rendering import rendered
from tests.support.spark_session import SPARK_TEST
from tests.support.spark_table import build_spark_table
from tests.support.table_builder import TableBuilder
from tests.support.task_reports import of_last_stage

pytestmark = SPARK_TEST


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """400 rows in 4 files; every tenth id deleted, then 3 of them inserted again."""
    return scan_core.open_table(build_spark_table(tmp_path_factory.mktemp("spark")))


def _rows(source: DataFrame | Scan) -> list[tuple[Any, ...]]:
    rows: Sequence[Any]
    if isinstance(source, Scan):
        rows = [tuple(row.values()) for row in source.to_table().to_pylist()]
    else:
        rows = [tuple(row) for row in source.collect()]
    return sorted(rows, key=repr)


def test_one_process_thread_pool_and_spark_give_equal_rows_and_read_equal_bytes(
    spark: SparkSession,
    table: Table,
) -> None:
    one = table.scan().with_options(ScanOptions(parallelism=1))
    pool = table.scan().with_options(ScanOptions(parallelism=4))
    frame = dataframe(spark, table.scan(), reader="python")
    assert _rows(frame) == _rows(pool) == _rows(one)
    in_spark = of_last_stage(reports_of(frame))
    for count in ("bytes_read", "bytes_skipped", "rows_in_files", "rows_out", "rows_removed_by_equality_deletes"):
        assert getattr(in_spark, count) == getattr(one.metrics, count) == getattr(pool.metrics, count), count
    assert in_spark.rows_removed_by_equality_deletes == 40
    assert in_spark.rows_out == 363


def test_predicate_and_columns_are_applied_in_the_tasks(spark: SparkSession, table: Table) -> None:
    scan = table.scan().select("name", "id").where("qty = 5 and id < 200")
    frame = dataframe(spark, scan)
    assert frame.columns == ["name", "id"]
    assert _rows(frame) == _rows(scan)
    assert of_last_stage(reports_of(frame)).rows_out == len(_rows(scan)) < 20


def _operators(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("reader", ["python", "auto"])
def test_filters_the_scan_applies_exactly_are_not_applied_again_and_others_stay(
    ansi_spark: SparkSession, table: Table, reader: Any
) -> None:
    plain = dataframe(ansi_spark, table.scan(), reader="python")
    pushed = ["qty = 5 or name in ('n1', 'n2')", "id < 200", "name like 'n%'"]
    alone = dataframe(ansi_spark, table.scan(), reader, filters=pushed)
    assert "BatchScan" in _operators(alone)
    assert "Filter" not in _operators(alone).replace("RuntimeFilters", "")
    wanted = plain.filter(" and ".join(f"({condition})" for condition in pushed))
    assert _rows(alone) == _rows(wanted)
    assert "Filter (" in _operators(wanted)

    mixed = dataframe(ansi_spark, table.scan(), reader, filters=["qty = 5", "soundex(name) = 'N000'", "ID > 30"])
    conditions = [line for line in _operators(mixed).splitlines() if " Filter " in line]
    assert len(conditions) == 1
    assert "soundex(name" in conditions[0]
    assert "(id#" in conditions[0]  # Spark finds columns without regard to case, this scan does not
    assert "qty" not in conditions[0]
    assert _rows(mixed) == _rows(plain.filter("qty = 5 and soundex(name) = 'N000' and id > 30"))
    assert of_last_stage(reports_of(mixed)).rows_out == table.scan().where("qty = 5").count()


def test_filters_are_all_left_to_a_session_that_means_them_otherwise(ansi_spark: SparkSession, table: Table) -> None:
    filters = ["cast(name as int) is null", "id < 30"]
    ansi_spark.conf.set("spark.sql.ansi.enabled", "false")
    frame = dataframe(ansi_spark, table.scan(), reader="python", filters=filters)
    assert _rows(frame) == _rows(table.scan().where("id < 30"))
    ansi_spark.conf.set("spark.sql.ansi.enabled", "true")
    with pytest.raises(PySparkException, match="cast"):
        dataframe(ansi_spark, table.scan(), reader="python", filters=filters).collect()


def test_a_limit_counts_rows_that_filters_left_to_spark_keep(ansi_spark: SparkSession, table: Table) -> None:
    frame = dataframe(ansi_spark, table.scan().limit(3), filters=["soundex(name) = 'B200'", "id >= 0"])
    assert frame.count() == 2
    with pytest.raises(OptionError, match="not one text"):
        dataframe(ansi_spark, table.scan(), filters="id > 5")


def test_a_view_takes_columns_predicate_and_snapshot_as_options(
    spark: SparkSession,
    table: Table,
    tmp_path: Path,
) -> None:
    first = table.history()[0].snapshot_id
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW v USING nevermore OPTIONS ("
        f"table '{table.metadata_path}', columns 'qty, id', where 'id > 97', snapshot '{first}', "
        f"metrics_dir '{tmp_path}')"
    )
    assert _rows(spark.table("v")) == [(98 % 13, 98), (99 % 13, 99)]
    assert list(tmp_path.glob("stage-*.json"))


def test_schema_chooses_columns_and_must_agree_on_types(spark: SparkSession, table: Table) -> None:
    load = spark.read.format("nevermore").option("table", table.metadata_path)
    assert load.schema("qty int, id bigint").load().count() == 363
    with pytest.raises(PySparkException, match="column 'qty' is int, the schema given to Spark says string"):
        load.schema("qty string").load().count()


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tabel": "x"}, "unknown option 'tabel'; did you mean 'table'"),
        ({}, r"option 'path' is missing.*path '/"),
        ({"table": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"columns": "id,quantity"}, "no column 'quantity'"),
        ({"where": "id >"}, r"\^"),
        ({"snapshot": "12"}, "12"),
    ],
)
def test_wrong_options_fail_at_load_with_one_clear_message(
    spark: SparkSession,
    table: Table,
    options: dict[str, str],
    message: str,
) -> None:
    given = options if not options or {"table", "tabel"} & set(options) else {"table": table.metadata_path, **options}
    with pytest.raises(PySparkException, match=message) as caught:
        spark.read.format("nevermore").options(**given).load().count()
    assert re.search(r"scan_core\.model\.errors\.\w+Error: ", str(caught.value).splitlines()[0])
    assert "Traceback" not in str(caught.value)


def test_a_dataframe_stays_on_its_snapshot_when_the_table_moves_on(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    builder.commit(builder.data({"id": [1, 2, 3]}))
    frame = dataframe(spark, scan_core.open_table(tmp_path / "t").scan())
    builder.commit(builder.equality_delete({"id": [1]}, ids=[1]))
    assert _rows(frame) == [(1,), (2,), (3,)]
    assert _rows(dataframe(spark, scan_core.open_table(tmp_path / "t").scan())) == [(2,), (3,)]


def test_every_type_that_spark_has_arrives_as_the_scan_gives_it(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    point = {"type": "struct", "fields": [{"id": 21, "name": "x", "type": "uuid", "required": False}]}
    values = {"type": "list", "element-id": 31, "element": "decimal(9, 2)", "element-required": False}
    tags = {"type": "map", "key-id": 41, "key": "string", "value-id": 42, "value": "long", "value-required": False}
    kinds = [
        "boolean", "int", "long", "float", "double", "decimal(20, 3)", "date", "timestamp", "timestamptz", "string",
        "uuid", "binary", "fixed[3]", point, values, tags,
    ]  # fmt: skip
    builder = TableBuilder(tmp_path / "t", [Column(i, f"c{i}", kind) for i, kind in enumerate(kinds, 1)])
    identity = uuid.uuid4()
    noon = dt.datetime(2026, 1, 31, 12, 0, 0, 123456)  # noqa: DTZ001 - the type without zone
    row = [
        True, 2**31 - 1, -(2**63), 0.5, float("-inf"), Decimal("-1.125"), dt.date(1, 1, 1), noon,
        noon.replace(tzinfo=dt.UTC), "Zürich\0", identity.bytes, b"\0\xff", b"abc", {"x": identity.bytes},
        [Decimal("1.50"), None], [("a", 1), ("b", None)],
    ]  # fmt: skip
    builder.commit(
        builder.data({f"c{i}": [value, None] for i, value in enumerate(row, 1)}),
    )
    scan = scan_core.open_table(builder.metadata_path).scan()
    got = (
        dataframe(spark, scan, reader="python")
        .selectExpr("*", "cast(c9 as string) as c17")
        .where("c2 is not null")
        .collect()
    )
    text = str(identity)
    expected = [*row[:8], "2026-01-31 12:00:00.123456", "Zürich\0", text, b"\0\xff", b"abc", (text,), row[14]]
    found = [*got[0][:8], got[0]["c17"], *got[0][9:15]]
    assert [
        tuple(v) if isinstance(v, tuple) else bytes(v) if isinstance(v, bytearray) else v for v in found
    ] == expected
    assert got[0]["c16"] == {"a": 1, "b": None}
    assert dataframe(spark, scan).where("c2 is null").collect()[0][0:] == (None,) * 16


def test_a_type_that_spark_lacks_is_refused_before_anything_runs(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "at", "time")])
    builder.commit(builder.data({"id": [1], "at": [dt.time(1)]}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    with pytest.raises(
        UnsupportedError, match="column 'at': Spark has no type for time; select the columns without it"
    ):
        dataframe(spark, scan)
    assert _rows(dataframe(spark, scan.select("id"))) == [(1,)]


def test_empty_tables_and_tables_of_dead_rows_are_empty_dataframes(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    assert dataframe(spark, scan_core.open_table(builder.metadata_path).scan()).count() == 0
    builder.commit(builder.data({"id": [1, 2]}))
    builder.commit(builder.equality_delete({"id": [1, 2]}, ids=[1]))
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="python")
    assert frame.count() == 0
    assert of_last_stage(reports_of(frame)).rows_removed_by_equality_deletes == 2


def test_a_scan_limit_holds_for_the_dataframe(spark: SparkSession, table: Table) -> None:
    assert dataframe(spark, table.scan().limit(5)).count() == 5


def test_expression_objects_and_metadata_columns_reach_the_workers(
    spark: SparkSession,
    table: Table,
) -> None:
    scan = table.scan().select("id", "_pos").where(scan_core.col("name") == "back")
    assert _rows(dataframe(spark, scan)) == _rows(scan) == [(0, 0), (20, 2)]


def test_scan_options_reach_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    builder.commit(builder.data({"id": list(range(400))}, row_group_size=100))
    scan = scan_core.open_table(builder.metadata_path).scan().where("id > 390")
    for options, is_pruned in ((ScanOptions(), True), (ScanOptions.without_optimisations(), False)):
        frame = dataframe(spark, scan.with_options(options), reader="python")
        assert frame.count() == 9
        assert (of_last_stage(reports_of(frame)).row_groups_pruned > 0) == is_pruned


def test_reports_belong_to_what_dataframe_returned(spark: SparkSession, table: Table) -> None:
    frame = dataframe(spark, table.scan())
    with pytest.raises(OptionError, match="not one derived from it"):
        reports_of(frame.filter("id > 5"))
    with pytest.raises(OptionError, match="reader must be"):
        dataframe(spark, table.scan(), reader="jvm")  # type: ignore[arg-type]


def test_a_broken_file_fails_the_query_and_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    file = builder.data({"id": [1, 2, 3]})
    builder.commit(file)
    file.local.write_bytes(file.local.read_bytes()[:-20])
    with pytest.raises(PySparkException, match=file.local.name):
        dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="python").count()


_SPARKLESS = frozenset({"timestamp_ns_key"})
"""Tables with columns of types that Spark has not."""


@pytest.mark.each(48)
@pytest.mark.parametrize("name", sorted(set(fixture_tables()) - _SPARKLESS))
def test_tables_of_other_engines_are_the_same_in_spark(spark: SparkSession, name: str) -> None:
    fixture = fixture_tables()[name]
    scan = scan_core.open_table(fixture.metadata, relocate=fixture.relocate).scan()
    expected = rendered(scan.to_table())
    assert rendered(dataframe(spark, scan, reader="python").toArrow()) == expected
    assert rendered(dataframe(spark, scan, reader="auto").toArrow()) == expected
