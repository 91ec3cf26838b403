"""Evolved files through Spark's own reader: columns are those with the field id, whatever their names and types were."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from nevermore import scan_core
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark.frames import choice_of, dataframe
from nevermore.scan_core.spark.native import FileReading, how_to_read
from tests.support.iceberg_json import Column
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

pytestmark = SPARK_TEST

_POINT = {
    "type": "struct",
    "fields": [
        {"id": 21, "name": "x", "type": "int", "required": False},
        {"id": 22, "name": "y", "type": "float", "required": False},
    ],
}
_LATER_POINT = {
    "type": "struct",
    "fields": [
        {"id": 23, "name": "x", "type": "string", "required": False},
        {"id": 22, "name": "why", "type": "double", "required": False},
        {"id": 21, "name": "y", "type": "long", "required": False},
    ],
}
_BEFORE = [
    Column(1, "id", "int"), Column(2, "name", "string"), Column(3, "price", "decimal(7, 2)"), Column(4, "p", _POINT),
    Column(5, "gone", "double"), Column(8, "big", "float"),
]  # fmt: skip
_SWAPPED = [
    Column(2, "id", "string"), Column(1, "name", "long"), Column(3, "price", "decimal(12, 2)"),
    Column(4, "p", _LATER_POINT), Column(6, "gone", "int"), Column(7, "since", "date", initial_default="2026-02-01"),
    Column(8, "big", "double"), Column(9, "word", "string", initial_default="it's"),
]  # fmt: skip


@pytest.fixture
def evolved(tmp_path: Path) -> scan_core.Table:
    """Names swapped, types promoted, members added and renamed, a column dropped and another added under its name."""
    builder = TableBuilder(tmp_path / "t", _BEFORE, version=3)
    rows = range(50)
    builder.commit(
        builder.data(
            {
                "id": list(rows), "name": [f"n{i}" for i in rows], "price": [Decimal(i) / 4 for i in rows],
                "p": [None if i % 7 == 0 else {"x": i, "y": i / 2} for i in rows], "gone": [0.5] * 50,
                "big": [i / 4 for i in rows],
            }
        )
    )  # fmt: skip
    builder.evolve(*_SWAPPED)
    later = [
        {
            "id": f"n{i}",
            "name": i,
            "price": Decimal(i),
            "p": {"x": "s", "why": 0.5, "y": 2**40},
            "gone": i,
            "big": 1e300,
        }
        for i in range(1000, 1040)
    ]
    days = [dt.date(2026, 3, 1)] * 40
    columns = {name: [row[name] for row in later] for name in later[0]} | {"since": days, "word": ["w"] * 40}
    builder.commit(builder.data(columns))
    builder.commit(builder.equality_delete({"name": [3, 4, 1003]}, ids=[1]))
    return scan_core.open_table(builder.metadata_path)


def flat(table: scan_core.Table) -> scan_core.Scan:
    return table.scan().select(*(name for name in table.schema.names if name != "p"))


@pytest.mark.each(3)
@pytest.mark.parametrize(
    "condition",
    [
        "true", "id = 'n5'", "name = 5 or name > 1010", "gone is null", "big < 3",
        "price < 99999999.25", "name < 3000000000", "big > 1e-300",
        "since = date '2026-02-01' and word = 'it\\'s' and price > 11.25",
    ],
)  # fmt: skip
def test_evolved_files_are_read_natively_whatever_is_asked_of_them(
    spark: SparkSession, evolved: scan_core.Table, condition: str
) -> None:
    native, python = (dataframe(spark, flat(evolved), reader=reader) for reader in ("native", "python"))
    assert native.schema == python.schema
    expected = sorted(map(repr, python.filter(condition).collect()))
    assert expected
    assert sorted(map(repr, native.filter(condition).collect())) == expected


def test_files_that_lack_the_dropped_key_of_a_delete_have_null_in_it_whoever_reads_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = [Column(1, "id", "long"), Column(2, "n", "long")]
    builder = TableBuilder(tmp_path / "t", columns)
    builder.commit(builder.data({"id": [1, 2, 3], "n": [1, 2, None]}))
    builder.evolve(columns[0])
    builder.commit(builder.data({"id": [11, 12]}))
    for key, alive in ((2, [1, 3, 11, 12]), (None, [1])):
        builder.commit(builder.equality_delete({"n": [key]}, ids=[2], columns=[columns[1]]))
        for reader in ("native", "python"):
            frame = dataframe(spark, scan_core.open_table(builder.metadata_path).scan(), reader=reader)
            assert sorted(row.id for row in frame.collect()) == alive


def test_names_find_columns_only_where_they_mean_the_same_in_every_file(
    evolved: scan_core.Table, tmp_path: Path
) -> None:
    plain = TableBuilder(tmp_path / "plain", [*_BEFORE, Column(9, "later", "long")])
    plain.commit(plain.data({"id": [1], "p": [{"x": 1, "y": 0.5}], "gone": [0.5]}))
    readings = {}
    for name, table in {"plain": scan_core.open_table(plain.metadata_path), "evolved": evolved}.items():
        plan = flat(table).plan()
        found = [how_to_read(task, plan.context) for task in plan.tasks]
        readings[name] = sorted(not reading.stored for reading in found if isinstance(reading, FileReading))
    assert readings == {"plain": [True], "evolved": [False, True]}


def test_the_session_is_left_as_it_was(spark: SparkSession, evolved: scan_core.Table) -> None:
    assert dataframe(spark, flat(evolved), reader="native").count() == 87
    assert spark.conf.get("spark.sql.parquet.fieldId.read.enabled") == "false"


def test_names_that_differ_only_in_case_are_read_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    columns = [Column(1, "id", "int"), Column(2, "Id", "string"), Column(3, "v", "long")]
    builder = TableBuilder(tmp_path / "t", columns)
    builder.commit(builder.data({"id": [1, 2], "Id": ["a", "b"], "v": [1, 2]}))
    builder.evolve(Column(1, "id", "int"), Column(2, "other", "string"), columns[2])
    scan = scan_core.open_table(builder.metadata_path).scan()
    with pytest.raises(OptionError, match="several columns that Spark finds under the name 'id'"):
        dataframe(spark, scan, reader="native")
    assert sorted(map(tuple, dataframe(spark, scan).collect())) == [(1, "a", 1), (2, "b", 2)]
    assert sorted(map(tuple, dataframe(spark, scan.select("v"), reader="native").collect())) == [(1,), (2,)]


NAMES = ["b`t", pytest.param("`", marks=pytest.mark.slow), pytest.param("a.b", marks=pytest.mark.slow)]
NAMES += [pytest.param(name, marks=pytest.mark.slow) for name in ("*", "``", ".", 'q"', "$x", " a", "\u200b")]


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_any_name_are_read_natively_beside_one_that_was_renamed(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Members that moved have other names in the file, so that columns are renamed, whatever their names are."""
    before = [Column(1, "id", "int"), Column(2, name, "string"), Column(4, "p", _POINT)]
    builder = TableBuilder(tmp_path / "t", before)
    builder.commit(builder.data({"id": [1, 2, 3], name: ["a", "b", None], "p": [{"x": 1, "y": 0.5}] * 3}))
    builder.evolve(*before[:2], Column(4, "p", _LATER_POINT), Column(9, "since", "date", initial_default="2026-02-01"))
    builder.commit(builder.equality_delete({"id": [2]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan().select("id", name, "since")
    rows = dataframe(spark, scan, reader="native").collect()
    since = dt.date(2026, 2, 1)
    assert sorted(tuple(row) for row in rows) == [(1, "a", since), (3, None, since)]


@pytest.mark.parametrize(
    "name",
    ["_metadata", pytest.param("_METADATA", marks=pytest.mark.slow), "__nevermore_key", "_tmp_metadata_row_index"],
)
def test_columns_that_reading_natively_needs_for_itself_are_read_by_tasks(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """A struct of these members would tell which rows are dead."""
    names = ("file_size", "row_index")
    members = [{"id": 21 + n, "name": member, "type": "long", "required": False} for n, member in enumerate(names)]
    columns = [Column(1, "id", "int"), Column(2, name, {"type": "struct", "fields": members})]
    builder = TableBuilder(tmp_path / "t", columns)
    builder.commit(builder.data({"id": [1, 2, 3], name: [{"file_size": 1, "row_index": n} for n in (1, 0, 2)]}))
    builder.commit(builder.equality_delete({"id": [2]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    with pytest.raises(OptionError, match="needs for itself"):
        dataframe(spark, scan, reader="native")
    assert sorted(row[0] for row in dataframe(spark, scan).collect()) == [1, 3]


def test_a_file_that_has_a_column_by_which_spark_numbers_rows_is_read_by_tasks_even_if_it_is_not_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = [Column(1, "id", "int"), Column(2, "_TMP_metadata_row_index", "long")]
    builder = TableBuilder(tmp_path / "t", columns)
    builder.commit(builder.data({"id": [1, 2, 3], columns[1].name: [0, 0, 1]}))
    builder.commit(builder.equality_delete({"id": [2]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan().select("id")
    with pytest.raises(OptionError, match="needs for itself"):
        dataframe(spark, scan, reader="native")
    assert sorted(row[0] for row in dataframe(spark, scan).collect()) == [1, 3]


_DEFAULTS = {
    "timestamptz": ["2026-02-01T12:34:56.789012+00:00", "0001-01-01T00:00:00+00:00"],
    "timestamp": ["1969-12-31T23:59:59.999999", "9999-12-31T23:59:59"],
    "binary": ["00ff27"], "fixed[2]": ["27ff"], "date": ["0001-01-01"], "uuid": ["0123ABCD-0000-0000-0000-00000000ffff"],
}  # fmt: skip


@pytest.mark.slow
def test_times_and_bytes_that_older_files_lack_are_constants_in_any_time_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "int")], version=3)
    builder.commit(builder.data({"id": [1, 2, 3]}))
    builder.commit(builder.equality_delete({"id": [2]}, ids=[1]))
    defaults = [(kind, value) for kind, values in _DEFAULTS.items() for value in values]
    later = [Column(9 + n, f"c{n}", kind, initial_default=value) for n, (kind, value) in enumerate(defaults)]
    builder.evolve(Column(1, "id", "int"), *later)
    scan = scan_core.open_table(builder.metadata_path).scan()
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for name in ("UTC", "Asia/Kolkata"):
            spark.conf.set("spark.sql.session.timeZone", name)
            texts = [f"cast({c.name} as string)" for c in later if not str(c.type).startswith(("binary", "fixed"))]
            hexed = [f"hex({c.name})" for c in later if str(c.type).startswith(("binary", "fixed"))]
            native, python = (
                sorted(map(tuple, dataframe(spark, scan, reader=reader).selectExpr("id", *texts, *hexed).collect()))
                for reader in ("native", "python")
            )
            assert native == python
            assert len(native) == 2
            assert native[0][-2:] == ("00FF27", "27FF")
            assert native[0][-3] == "0123abcd-0000-0000-0000-00000000ffff"
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("is_renamed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_uuids_are_text(spark: SparkSession, tmp_path: Path, *, is_renamed: bool) -> None:
    member = {"id": 11, "name": "x", "type": "uuid", "required": False}
    kinds: dict[str, Any] = {
        "u": "uuid",
        "s": {"type": "struct", "fields": [member, {"id": 12, "name": "n", "type": "int", "required": False}]},
        "l": {"type": "list", "element-id": 13, "element": "uuid", "element-required": False},
        "m": {"type": "map", "key-id": 14, "key": "uuid", "value-id": 15, "value": "uuid", "value-required": False},
    }
    columns = [Column(1, "id", "int"), *(Column(n, name, kind) for n, (name, kind) in enumerate(kinds.items(), 2))]
    one, two = bytes(range(16)), b"\xff" * 16
    builder = TableBuilder(tmp_path / "t", columns)
    rows = {
        "id": [1, 2, 3, 4], "u": [one, None, two, one], "s": [{"x": two, "n": 1}, None, {"x": None, "n": 3}, None],
        "l": [[one, None, two], [], None, None], "m": [{one: None, two: one}, {}, None, None],
    }  # fmt: skip
    builder.commit(builder.data(rows))
    builder.commit(builder.equality_delete({"u": [two]}, ids=[2]))
    name = "v" if is_renamed else "u"
    builder.evolve(columns[0], Column(2, name, "uuid"), *columns[2:])
    scan = scan_core.open_table(builder.metadata_path).scan()
    native, python = (dataframe(spark, scan.select("id", name), reader=reader) for reader in ("native", "python"))
    assert native.schema == python.schema
    assert sorted(map(str, native.collect())) == sorted(map(str, python.collect()))
    assert native.where(f"{name} = '{UUID(bytes=one)}'").count() == 2
    for column in ("s", "l", "m"):
        assert read_by_tasks(spark, scan.select("id", column), f"has column '{column}' as") == 3


def read_by_tasks(spark: SparkSession, scan: scan_core.Scan, reason: str) -> int:
    """The number of rows of a scan that only tasks read, which they do as the engine does."""
    with pytest.raises(OptionError, match=reason):
        dataframe(spark, scan, reader="native")
    frame = dataframe(spark, scan)
    assert choice_of(frame).strategy == "python"
    return frame.count()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (("name", "p"), "has column 'p' as struct<x: int32, y: float>, which Spark does not read as"),
        (("p.y", "id"), "column 'p.y' is a part of a struct, list or map"),
    ],
)
def test_nested_columns_that_have_changed_and_members_alone_are_read_by_tasks(
    spark: SparkSession, evolved: scan_core.Table, columns: tuple[str, ...], reason: str
) -> None:
    assert read_by_tasks(spark, evolved.scan().select(*columns), reason) == 87


def test_nested_columns_as_the_table_states_them_are_read_natively(spark: SparkSession, tmp_path: Path) -> None:
    points = {"type": "list", "element-id": 31, "element": {**_POINT}, "element-required": False}
    by_name = {"type": "map", "key-id": 41, "key": "string", "value-id": 42, "value": "long", "value-required": False}
    columns = [Column(1, "id", "int"), Column(2, "points", points), Column(3, "by_name", by_name)]
    builder = TableBuilder(tmp_path / "t", columns)
    rows = {
        "id": [1, 2, 3], "points": [[{"x": 1, "y": 0.5}, None], [], None], "by_name": [{"a`.b": 1, "c": None}, {}, None],
    }  # fmt: skip
    builder.commit(builder.data(rows))
    builder.commit(builder.equality_delete({"id": [2]}, ids=[1]))
    builder.evolve(columns[0], Column(2, "renamed", points), columns[2])
    scan = scan_core.open_table(builder.metadata_path).scan()
    native, python = (dataframe(spark, scan, reader=reader) for reader in ("native", "python"))
    assert native.schema == python.schema
    assert sorted(map(repr, native.collect())) == sorted(map(repr, python.collect()))


@pytest.mark.slow
def test_many_shapes_of_files_are_read_natively(spark: SparkSession, tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "int"), Column(2, "c0", "string")])
    for number in range(24):
        builder.evolve(Column(1, "id", "int"), Column(2, f"c{number}", "string"))
        builder.commit(builder.data({"id": [number, 100 + number], f"c{number}": [f"v{number}", None]}))
    builder.commit(builder.equality_delete({"id": [3, 105]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    native, python = (sorted(map(repr, dataframe(spark, scan, reader=r).collect())) for r in ("native", "python"))
    assert native == python
    assert len(native) == 46
