"""Spark's own Parquet reader with our deletes: equal to the scan, and loud where it would not be."""

import re
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark import native, reader_choice
from nevermore.scan_core.spark.frames import choice_of, dataframe, reports_of, why_not_native
from nevermore.scan_core.spark.native import NativeLimits
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

_COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


@pytest.fixture(autouse=True)
def _no_known_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_CACHE", BoundedCache(lambda rows: rows.num_bytes))


@pytest.fixture
def builder(tmp_path: Path) -> TableBuilder:
    """Three files, two of them of one size; deletes in two, position deletes in one."""
    builder = TableBuilder(tmp_path / "a [odd] {name} *", _COLUMNS)
    files = [builder.data({"id": list(range(start, start + 200)), "name": ["x"] * 200}) for start in (0, 1000, 2000)]
    builder.commit(*files)
    builder.commit(builder.equality_delete({"id": [*range(0, 200, 3), 1007]}, ids=[1]))
    builder.commit(builder.position_delete([(files[0], 1), (files[0], 199)]))
    return builder


def _ids(frame: Any) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


def test_deleted_rows_do_not_come_back_whatever_the_names_and_sizes_of_files(
    spark: SparkSession, builder: TableBuilder
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, reader="native")
    expected = sorted(scan.to_table()["id"].to_pylist())
    assert _ids(frame) == expected
    assert frame.count() == len(expected) == 600 - 67 - 2 - 1
    assert _ids(frame.filter("id between 1000 and 1010")) == [i for i in range(1000, 1011) if i != 1007]
    assert reports_of(frame).total().delete_rows_loaded > 0


def test_no_python_task_reads_rows_and_only_used_columns_are_read(spark: SparkSession, builder: TableBuilder) -> None:
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")
    plan = frame.select("id")._jdf.queryExecution().executedPlan().toString()
    assert "(Python)" not in plan
    assert "ReadSchema: struct<id:bigint,_tmp_metadata_row_index:bigint>" in plan


def test_bits_are_found_once_for_a_file_and_its_deletes(
    spark: SparkSession, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    dataframe(spark, scan, reader="native")
    monkeypatch.setattr(native, "resolve_deletes", None)
    assert dataframe(spark, scan, reader="native").count() == 530
    builder.commit(builder.equality_delete({"id": [2000]}, ids=[1]))
    with pytest.raises(TypeError):
        dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")


def test_field_ids_do_not_leak_into_what_the_user_writes(
    spark: SparkSession, builder: TableBuilder, tmp_path: Path
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    native, python = (dataframe(spark, scan, reader=r) for r in ("native", "python"))
    assert native.schema == python.schema
    assert all(not field.metadata for field in native.schema.fields)


def test_a_row_beyond_its_files_bits_fails_the_query(
    spark: SparkSession, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = native.pack(np.arange(100) == 0)
    monkeypatch.setattr(native, "dead_rows", lambda *_: short)
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")
    with pytest.raises(PySparkException, match="has no delete bits: the file was replaced"):
        frame.count()


def test_a_file_that_matches_no_bits_fails_the_query(
    spark: SparkSession, builder: TableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(1, 100))
    monkeypatch.setattr(native, "crc32", lambda _: next(numbers))
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native")
    with pytest.raises(PySparkException, match="has no delete bits"):
        frame.collect()


@pytest.mark.each(2)
@pytest.mark.parametrize("names", ["one name", "one checksum"])
def test_files_that_checksums_of_names_do_not_tell_apart_are_read_in_scans_of_their_own(
    spark: SparkSession, tmp_path: Path, names: str
) -> None:
    seen: dict[int, str] = {}
    alike = ("same.parquet", "same.parquet")
    for number in range(1_000_000 if names == "one checksum" else 0):
        name = f"{number * 2654435761 % 2**32:08x}.parquet"
        if (known := seen.setdefault(crc32(name.encode()), name)) != name:
            alike = (known, name)
            break
    builder = TableBuilder(tmp_path / "t", _COLUMNS)
    files = [builder.data({"id": [*range(100 * n, 100 * n + 50)], "name": ["x"] * 50}) for n in range(4)]
    for number, (file, name) in enumerate(zip(files, alike, strict=False)):
        moved = file.local.parent / str(number) / name
        moved.parent.mkdir()
        file.local.rename(moved)
        file.record["file_path"] = file.record["file_path"].replace(file.local.name, f"{number}/{name}")
    builder.commit(*files)
    builder.commit(builder.equality_delete({"id": [7, 100, 149, 220]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, reader="native")
    assert _ids(frame) == sorted(scan.to_table()["id"].to_pylist())
    assert frame.count() == 196
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert len(re.findall(r"Relation .* parquet", plan)) == 3  # two of files with dead rows, one of those without


def test_partition_folders_give_no_columns_and_empty_tables_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    columns = [*_COLUMNS, Column(3, "day", "string")]
    builder = TableBuilder(tmp_path / "day=2026-01-01" / "t", columns, partitions=[Partition("day", 3, "identity")])
    scan = scan_core.open_table(builder.metadata_path).scan()
    assert dataframe(spark, scan, reader="native").collect() == []
    builder.commit(builder.data({"id": [1], "name": ["a"], "day": ["x"]}, partition={"day": "x"}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    assert [tuple(row) for row in dataframe(spark, scan, reader="native").collect()] == [(1, "a", "x")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda scan: scan.select("id", "_file"), "metadata column '_file'"),
    ],
)
def test_scans_that_spark_would_answer_differently_are_refused_and_auto_reads_them_in_python(
    spark: SparkSession, builder: TableBuilder, change: Any, reason: str
) -> None:
    scan = change(scan_core.open_table(builder.metadata_path).scan())
    assert str(why_not_native(spark, scan)).startswith(reason)
    with pytest.raises(OptionError, match=f"reader 'native' cannot read this scan: {reason}"):
        dataframe(spark, scan, reader="native")
    assert dataframe(spark, scan).count() == scan.count()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda b: b.evolve(Column(1, "id", "long"), Column(7, "at", struct(Column(8, "x", "int")), initial_default={})), "lacks column 'at', which has a struct<x: int> value"),
        (lambda b: b.commit(b.data({"id": [1], "name": ["a"]}, field_ids=False)), "has no field ids"),
    ],
)  # fmt: skip
def test_files_that_spark_cannot_read_so_are_read_in_python_and_why_is_told(
    spark: SparkSession, builder: TableBuilder, change: Any, reason: str
) -> None:
    change(builder)
    scan = scan_core.open_table(builder.metadata_path).scan().select("id")
    assert choice_of(dataframe(spark, scan)).strategy == "native" or "no field ids" in reason
    whole = scan_core.open_table(builder.metadata_path).scan()
    assert reason in str(why_not_native(spark, whole))
    assert reason in str(choice_of(dataframe(spark, whole, reader="auto")))


@pytest.mark.slow
def test_driver_job_and_python_reader_find_the_same_rows(
    spark: SparkSession, builder: TableBuilder, tmp_path: Path
) -> None:
    for start in range(10_000, 10_000 + 12 * 100, 100):  # twelve files of few sizes
        builder.commit(builder.data({"id": list(range(start, start + 100)), "name": ["y"] * 100}))
    builder.commit(builder.equality_delete({"id": list(range(10_000, 11_200, 7))}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    found = {}
    for limits, by in ((NativeLimits(), "driver"), (NativeLimits(driver_files=0), "job"), (NativeLimits(), "cache")):
        if by == "job":
            native.forget()
        frame = dataframe(spark, scan, reader="native", limits=limits)
        assert choice_of(frame).bits_found_by == by
        found[by] = _ids(frame)
        if by != "cache":
            assert reports_of(frame).total().rows_removed_by_equality_deletes >= 172 + 68
    assert found["driver"] == found["job"] == found["cache"] == _ids(dataframe(spark, scan, reader="python"))
    assert len(found["job"]) == scan.count()


def test_a_limit_of_memory_leaves_the_scan_to_the_python_reader(spark: SparkSession, builder: TableBuilder) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, limits=NativeLimits(bits_bytes=10))
    assert "may take 75 bytes, more than bits_bytes=10" in str(choice_of(frame))
    assert frame.count() == scan.count()
    with pytest.raises(OptionError, match="driver_files must not be negative, not -1"):
        NativeLimits(driver_files=-1)


def test_dead_rows_of_several_chunks_are_found_by_position(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", _COLUMNS)
    num_rows = 3 * native.CHUNK_ROWS + 77
    builder.commit(builder.data({"id": list(range(num_rows)), "name": ["x"] * num_rows}))
    builder.commit(builder.data({"id": list(range(num_rows, num_rows + 500)), "name": ["x"] * 500}))
    dead = [0, 63, 64, 65_535, 2 * 65_536, 2 * 65_536 + 1, num_rows - 1, num_rows + 499]  # none in the second chunk
    builder.commit(builder.equality_delete({"id": dead}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, reader="native")
    assert frame.count() == num_rows + 500 - len(dead)
    assert frame.where(f"id in ({','.join(map(str, dead))})").count() == 0


def test_a_column_that_older_files_lack_is_null_in_the_native_reader_too(
    spark: SparkSession, builder: TableBuilder
) -> None:
    builder.evolve(*_COLUMNS, Column(3, "more", "int"))
    builder.commit(builder.data({"id": [5000], "name": ["y"], "more": [7]}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    frame = dataframe(spark, scan, reader="native")
    assert frame.filter("more = 7").count() == 1
    assert frame.filter("more is null").count() == 530


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("condition", "why_not"),
    [
        ("id >= 0", None),
        ("id is not null and name = 'x' and id between 0 and 2199", None),
        ("id > 0", "the scan selects rows, and has few (600)"),
        ("id < 2199", "the scan selects rows, and has few (600)"),
        ("name <> 'y' and id % 2 >= 0 and id <> 5", "the scan selects rows, and has few (600)"),
    ],
)
def test_a_filter_that_all_rows_fulfil_by_statistics_needs_no_reader_of_ours(
    spark: SparkSession, builder: TableBuilder, condition: str, why_not: str | None
) -> None:
    scan = scan_core.open_table(builder.metadata_path).scan().where(condition)
    frame = dataframe(spark, scan)
    assert choice_of(frame).why_not_native == why_not
    assert _ids(frame) == sorted(scan.to_table()["id"].to_pylist())
    blind = scan.with_options(scan_core.ScanOptions.of(prune_files=False))
    assert choice_of(dataframe(spark, blind)).strategy == "python"


@pytest.mark.parametrize(
    "change",
    [
        lambda scan: scan.where("id % 2 = 1").semi_join("id", [1, 2, 1009, 5]).select("name", "id"),
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in (
                lambda scan: scan.where("id between 2 and 1100 and name is not null"),
                lambda scan: scan.semi_join("id", [1, 2, 1007, 1008, 2000, 5]),
                lambda scan: scan.sample(0.5, seed=3),
                lambda scan: scan.where("id > 9999 or name = 'z'"),
            )
        ),
    ],
    ids=["both", "predicate", "semi join", "sample", "nothing"],
)
def test_rows_that_a_scan_leaves_out_are_bits_like_deleted_rows(
    spark: SparkSession, builder: TableBuilder, change: Any
) -> None:
    scan = change(scan_core.open_table(builder.metadata_path).scan())
    expected = sorted(scan.to_table()["id"].to_pylist())
    assert len(expected) < 530
    for each in (NativeLimits(), NativeLimits(driver_files=0)):
        frame = dataframe(spark, scan, reader="native", limits=each)
        assert _ids(frame) == expected
        assert reports_of(frame).total().rows_out == len(expected)
    assert dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader="native").count() == 530


def test_reader_auto_has_rows_selected_by_bits_where_most_of_many_are_left(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TableBuilder(tmp_path / "t", _COLUMNS)
    names = ["y" if number % 10 == 0 else "x" for number in range(5000)]
    builder.commit(builder.data({"id": list(range(5000)), "name": names}))
    monkeypatch.setattr(reader_choice, "_MIN_SAMPLED_FROM", 100)
    monkeypatch.setattr(reader_choice, "PYTHON_START", 0)
    scan = scan_core.open_table(builder.metadata_path).scan()
    chosen = {}
    for condition in ("name = 'x'", "name = 'y'", "cast(name as int) > 5"):
        frame = dataframe(spark, scan.where(condition))
        chosen[condition] = str(choice_of(frame))
        if "cast" not in condition:
            assert frame.count() == scan.where(condition).count()
    assert [*chosen.values()] == [
        "native reader, dead rows found by driver",
        "python reader: 10 % of the rows are expected to be selected",
        "python reader: the scan's predicate can fail on a row, which is a matter of the query",
    ]
    most = scan.semi_join("id", [*range(4900)])
    assert choice_of(dataframe(spark, most)).strategy == "native"
    assert choice_of(dataframe(spark, scan.semi_join("id", [1, 2]))).strategy == "python"


def test_rows_of_null_are_no_rows_that_fulfil_a_filter(spark: SparkSession, builder: TableBuilder) -> None:
    builder.commit(builder.data({"id": [3000, None], "name": ["x", "x"]}))
    frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan().where("id >= 0"))
    assert choice_of(frame).strategy == "python"
    assert frame.count() == 531
