"""Rows for tables without a project: of each version and partitioning, from several processes, and refusals that write nothing."""

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import hypothesis.strategies as st
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.config import Config

import nevermore
from nevermore import PipelineError, ScanError, delete, upsert
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.commit import upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from tests.pipelines.test_python_source import project_in
from tests.support.given_rows import KINDS
from tests.support.object_server import properties_of, serving, store_of
from tests.support.rest_catalog import Fault, serving_catalog

NAME = "shop.orders"
DAY = dt.datetime(2026, 11, 28, 10, tzinfo=dt.UTC)
FIELDS = (
    ("id", LongType()),
    ("shop", StringType()),
    ("at", TimestamptzType()),
    ("v", LongType()),
)
SPECS: dict[str, list[tuple[str, Transform[Any, Any]]]] = {
    "unpartitioned": [],
    "identity of the key": [("id", IdentityTransform())],
    "bucket of the key": [("id", BucketTransform(3))],
    "truncate of the key": [("id", TruncateTransform(4))],
    "identity of another": [("shop", IdentityTransform())],
    "day of another": [("at", DayTransform())],
    "key and another": [("id", BucketTransform(2)), ("at", DayTransform())],
}


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def new_table(
    folder: Path,
    version: int = 2,
    spec: str = "unpartitioned",
    fields: tuple[tuple[str, IcebergType], ...] = FIELDS,
    catalog: Catalog | None = None,
) -> Table:
    catalog = catalog or load_catalog("own", **properties(folder))
    catalog.create_namespace("shop")
    schema = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(fields, 1)))
    parts = [
        PartitionField(schema.find_field(column).field_id, 1000 + n, transform, f"p{n}")
        for n, (column, transform) in enumerate(SPECS[spec])
    ]
    table = catalog.create_table(NAME, schema, partition_spec=PartitionSpec(*parts))
    if version > 2:
        upgrade(table, version)
    return table


def row(number: int, value: int | None = None, shop: str = "a", days: int = 0) -> dict[str, Any]:
    return {"id": number, "shop": shop, "at": DAY + dt.timedelta(days=days), "v": value}


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The rows as the reference reads them by DuckDB, which must be those of a scan."""
    now = table.catalog.load_table(NAME)
    if now.metadata.current_snapshot_id is None:
        return []
    by = [("id", "ascending"), ("shop", "ascending")]
    found = live_rows(now.metadata_location.removeprefix("file://")).sort_by(by).to_pylist()
    scanned = nevermore.open_table(now).scan().to_table().sort_by(by).to_pylist()
    assert (
        [{name: one[name] for name in names} for one in scanned] == found
        if (names := found and list(found[0]))
        else not scanned
    )
    return list(found)


def read_by_pyiceberg(table: Table) -> list[dict[str, Any]]:
    return list(
        table.catalog.load_table(NAME)
        .scan()
        .to_arrow()
        .sort_by([("id", "ascending"), ("shop", "ascending")])
        .to_pylist()
    )


@pytest.mark.each(13)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_upserted_and_deleted_by_key(tmp_path: Path, version: int, spec: str) -> None:
    table = new_table(tmp_path, version, spec)
    upsert(table, [row(n, n, "ab"[n % 2], n) for n in range(9)], key=["id"])
    done = upsert(table, [row(3, 30, "c", 20), row(4, None, "a", 4), row(9)], key="id")
    assert done == table.metadata.current_snapshot_id == table.catalog.load_table(NAME).metadata.current_snapshot_id
    assert len(table.metadata.snapshots) == 2
    delete(table, [{"id": 5}, {"id": 77}], key=["id"])
    kept = [row(n, n, "ab"[n % 2], n) for n in range(9) if n != 5]
    expected = [*kept[:3], row(3, 30, "c", 20), row(4, None, "a", 4), *kept[5:], row(9)]
    assert rows_of(table) == expected
    if version == 2:
        convert(table)
    assert read_by_pyiceberg(table) == expected
    upsert(table, [row(0, 1)], key=["id"])  # also after a conversion, which is no sign of a project
    assert rows_of(table) == [row(0, 1), *expected[1:]]


@pytest.mark.each(12)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("fault", ["none", "lost-409", "repeated", "done-504", "done-closed", "lost-closed"])
def test_tables_of_a_rest_catalog_are_written_once_whatever_the_connection_does(
    tmp_path: Path, version: int, fault: Fault | Literal["none"]
) -> None:
    with serving_catalog(tmp_path) as server:
        catalog = load_catalog("own", **server.properties)
        table = new_table(tmp_path, version, "identity of another", catalog=catalog)
        upsert(table, [row(n, n, "ab"[n % 2]) for n in range(4)], key=["id"])
        server.faults[:] = [] if fault == "none" else [fault]
        upsert(table, [row(1, 10, "c"), row(9)], key=["id"])
        delete(table, [{"id": 2}], key=["id"])
        expected = [row(0, 0), row(1, 10, "c"), row(3, 3, "b"), row(9)]
        assert (rows_of(table), len(table.metadata.snapshots)) == (expected, 3)


def test_tables_of_a_glue_catalog_are_written_also_after_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with serving() as endpoint:
        store = properties_of(endpoint)
        store_of(store).create_dir("lake")
        login = {"glue.access-key-id": "testing", "glue.secret-access-key": "testing", "glue.region": "us-east-1"}
        warehouse = {"glue.endpoint": endpoint, "warehouse": "s3://lake/warehouse"}
        catalog = load_catalog("own", type="glue", **login, **warehouse, **store)
        table = new_table(tmp_path, spec="identity of another", catalog=catalog)
        stale = catalog.load_table(NAME)
        upsert(table, [row(n, n, "ab"[n % 2]) for n in range(4)], key=["id"])
        upsert(stale, [row(1, 10, "c"), row(9)], key=["id"])  # moto knows no versions, so writers cannot race here
        assert delete(table, [{"id": 2}], key=["id"]) == catalog.load_table(NAME).metadata.current_snapshot_id
        now = nevermore.open_table(catalog.load_table(NAME)).scan().to_table().sort_by("id").to_pylist()
        kept = [row(0, 0), row(1, 10, "c"), row(3, 3, "b"), row(9)]
        assert (now, len(table.metadata.snapshots)) == (kept, 3)
        catalog.drop_table(NAME)  # moto keeps it for the next server
        catalog.drop_namespace("shop")


@pytest.mark.each(4)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("spec", ["unpartitioned", "bucket of the key", "identity of another", "day of another"])
def test_several_columns_may_be_the_key(tmp_path: Path, version: int, spec: str) -> None:
    table = new_table(tmp_path, version, spec)
    upsert(table, [row(n, n, shop) for n in range(3) for shop in "ab"], key=["shop", "id"])
    upsert(table, [row(1, 10, "b", 3)], key=["shop", "id"])
    delete(table, [{"id": 0, "shop": "a"}, {"id": 2, "shop": "z"}], key=["shop", "id"])
    assert rows_of(table) == [row(0, 0, "b"), row(1, 1, "a"), row(1, 10, "b", 3), row(2, 2, "a"), row(2, 2, "b")]


@pytest.mark.parametrize("version", [2, 3])
def test_rows_of_other_writers_and_under_older_specs_are_replaced(tmp_path: Path, version: int) -> None:
    table = new_table(tmp_path, 2, "identity of another")
    arrow = table.schema().as_arrow()
    table.append(pa.Table.from_pylist([row(1, 1), row(1, 2, "b"), row(2, 3), row(3, 4, "b")], arrow))
    with table.update_spec() as change:
        change.add_identity("id")
        change.remove_field("p0")
    table.append(pa.Table.from_pylist([row(1, 5, "c"), row(4, 6)], arrow))
    if version > 2:
        upgrade(table, 3)
    upsert(table, [row(1, 7, "d")], key=["id"])
    delete(table, [{"id": 3}], key=["id"])
    assert rows_of(table) == [row(1, 7, "d"), row(2, 3), row(4, 6)]


@pytest.mark.each(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_is_taken(tmp_path: Path, kind: str) -> None:
    table = new_table(tmp_path)
    given_as = KINDS[kind]
    upsert(table, given_as(pa.Table.from_pylist([row(1, 1), row(2, 2)])), key=["id"])
    delete(table, given_as(pa.table({"id": [1]})), key=["id"])
    assert rows_of(table) == [row(2, 2)]


TYPES: dict[str, tuple[IcebergType, Any, Any]] = {
    "boolean": (BooleanType(), pa.bool_(), True),
    "int": (IntegerType(), pa.int64(), 7),
    "float": (FloatType(), pa.float32(), 0.5),
    "double": (DoubleType(), pa.float64(), 0.1),
    "decimal": (DecimalType(10, 2), pa.decimal128(10, 2), Decimal("12.34")),
    "date": (DateType(), pa.date32(), dt.date(2026, 11, 28)),
    "time": (TimeType(), pa.time64("us"), dt.time(1, 2, 3)),
    "timestamp": (TimestampType(), pa.timestamp("us"), DAY.replace(tzinfo=None)),
    "zoned": (TimestamptzType(), pa.timestamp("us", "UTC"), DAY),
    "uuid": (UUIDType(), pa.uuid(), UUID(int=5)),
    "fixed": (FixedType(3), pa.binary(3), b"abc"),
    "binary": (BinaryType(), pa.binary(), b"\0\xff"),
    "list": (ListType(9, LongType(), element_required=False), pa.list_(pa.int64()), [1, None]),
    "map": (
        MapType(9, StringType(), 10, LongType(), value_required=False),
        pa.map_(pa.string(), pa.int64()),
        [("k", 1)],
    ),
    "struct": (
        StructType(NestedField(9, "a", LongType()), NestedField(10, "b", StringType())),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        {"a": 1, "b": None},
    ),
    "required members": (
        ListType(9, StructType(NestedField(10, "m", MapType(11, StringType(), 12, LongType()), required=True))),
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
        [{"m": [("k", 1)]}, {"m": []}],
    ),
}


@pytest.mark.each(9)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", TYPES)
def test_values_of_every_type_come_back_and_the_schema_stays(tmp_path: Path, kind: str, version: int) -> None:
    iceberg, arrow, value = TYPES[kind]
    table = new_table(tmp_path, version, fields=(("id", LongType()), ("w", iceberg)))
    before = table.schema()
    for values in ([value, None], [None, value]):
        upsert(table, pa.table({"id": [1, 2], "w": pa.array(values, arrow)}), key=["id"])
        scanned = nevermore.open_table(table).scan().to_table().sort_by("id")
        assert scanned["w"].to_pylist() == values
    assert (table.schema(), len(table.metadata.schemas)) == (before, 1)


REFUSED: dict[str, tuple[Any, str]] = {
    "another type": ([{**row(3), "v": "x"}], r"row 1 of the data does not fit: column v: 'x'"),
    "a fraction": ([{**row(3), "v": 1.5}], r"column v"),
    "a missing column": ([{"id": 3, "v": 1}], "the data lacks shop, at"),
    "an unknown column": ([{**row(3), "more": 1}], r"shop\.orders has no columns more \(int64\): leave"),
    "a key that is NULL": ([{**row(3), "id": None}], "id is NULL in rows of the data"),
    "a key twice": ([row(3), row(3)], r"1 key more than once in the data, such as id = 3: keep one"),
    "no rows at all": (5, "rows cannot be read from int"),
}


@pytest.mark.each(3)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("why", REFUSED)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path: Path, why: str, version: int) -> None:
    table = new_table(tmp_path, version)
    upsert(table, [row(1, 1)], key=["id"])
    before = table.metadata, sorted(tmp_path.rglob("*.parquet"))
    data, message = REFUSED[why]
    with pytest.raises(PipelineError, match=message):
        upsert(table, data, key=["id"])
    assert (table.catalog.load_table(NAME).metadata, sorted(tmp_path.rglob("*.parquet"))) == before
    if why == "a key twice":
        upsert(table, [row(3, 1), row(3, 2)], key=["id"], keep="last")
        assert rows_of(table) == [row(1, 1), row(3, 2)]


def test_a_required_column_is_not_null(tmp_path: Path) -> None:
    catalog = load_catalog("own", **properties(tmp_path))
    catalog.create_namespace("shop")
    fields = NestedField(1, "id", LongType(), required=True), NestedField(2, "v", LongType(), required=True)
    table = catalog.create_table(NAME, Schema(*fields, identifier_field_ids=[1]))
    upsert(table, [{"id": 1, "v": 1}, {"id": 2, "v": 2}], key=["id"])
    with pytest.raises(PipelineError, match="'v' is required"):
        upsert(table, [{"id": 1, "v": None}], key=["id"])
    delete(table, [{"id": 1}], key=["id"])
    assert nevermore.open_table(table).scan().to_table().to_pylist() == [{"id": 2, "v": 2}]
    assert table.schema().find_field("v").required


KEYS = {
    "unknown": (["nothing"], "key column 'nothing' is not in the table"),
    "of another type": (["price"], "'price' has type double"),
    "empty": ([], "the key is empty"),
}


@pytest.mark.parametrize("why", KEYS)
def test_keys_that_identify_no_row_are_refused(tmp_path: Path, why: str) -> None:
    table = new_table(tmp_path, fields=(("id", LongType()), ("price", DoubleType())))
    key, message = KEYS[why]
    with pytest.raises(PipelineError, match=message):
        upsert(table, [{"id": 1, "price": 1.0}], key=key)
    assert not rows_of(table)


def test_without_a_catalog_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    upsert(table, [row(1, 1)], key=["id"])
    static = StaticTable.from_metadata(table.metadata_location)
    for place in (
        static,
        table.metadata_location,
        str(tmp_path / "warehouse" / "shop" / "orders"),
        nevermore.open_table(table),
        5,
    ):
        with pytest.raises(PipelineError, match=r"not a table of a catalog.*pass what its load_table returns"):
            delete(place, [{"id": 1}], key=["id"])
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    monkeypatch.setattr(Config, "get_catalog_config", lambda _self, _name: properties(tmp_path))
    upsert("own.shop.orders", [row(2, 2)], key=["id"])
    assert rows_of(table) == [row(1, 1), row(2, 2)]
    with pytest.raises(ScanError, match=r"no table 'shop\.other'"):
        upsert("own.shop.other", [row(2, 2)], key=["id"])


def test_tables_that_cannot_be_written_right_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    with table.transaction() as change:
        change.set_properties({"encryption.key-id": "k"})
    with pytest.raises(PipelineError, match="is encrypted"):
        upsert(table, [row(1)], key=["id"])
    with table.transaction() as change:
        change.remove_properties("encryption.key-id")
    with monkeypatch.context() as patch:
        patch.setattr(type(table), "format_version", 4)
        with pytest.raises(PipelineError, match="format version 4"):
            upsert(table, [row(1)], key=["id"])
    with monkeypatch.context() as patch:
        unknown = PartitionSpec(PartitionField(2, 1000, UnknownTransform("zorder"), "z"), spec_id=0)
        table.metadata = table.metadata.model_copy(update={"partition_specs": [unknown]})
        patch.setattr("nevermore.pipelines.ingest.python_source.refresh", lambda _: None)
        with pytest.raises((PipelineError, ScanError), match="partition field z is unknown"):
            upsert(table, [row(1)], key=["id"])
    assert not list(tmp_path.rglob("*.parquet"))


def test_tables_of_a_project_are_refused(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    project.upsert(NAME, [{"id": 1}])
    catalog = open_catalog(project.config)
    for name in (NAME, "change_log.shop_orders"):
        with pytest.raises(PipelineError, match="belongs to a project"):
            delete(catalog.load_table(name), [{"id": 1}], key=["id"])


def test_no_rows_make_no_commit(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert upsert(table, pa.Table.from_pylist([row(1)]).slice(0, 0), key=["id"]) is None
    delete(table, [{"id": 1}], key=["id"])
    assert not rows_of(table)


def test_more_rows_than_memory_holds_are_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.pipelines.ingest.python_source.DEFAULT_MEMORY_LIMIT_BYTES", 1024**2)
    table = new_table(tmp_path, fields=(("id", LongType()), ("shop", StringType())))
    rows = pa.table({"id": range(60_000), "shop": [f"{n:0100d}" for n in range(60_000)]})
    for _ in range(2):
        upsert(table, rows.to_reader(max_chunksize=5_000), key=["id"])
    assert (len(table.metadata.snapshots), nevermore.open_table(table).scan().count()) == (2, 60_000)


PROGRAM = """
import sys
from datetime import UTC, datetime
from pyiceberg.catalog import load_catalog
from nevermore import delete, upsert
folder, number = sys.argv[1], int(sys.argv[2])
table = load_catalog("own", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse").load_table("shop.orders")
at = datetime(2026, 11, 28, 10, tzinfo=UTC)
for n in range(4):
    rows = [{"id": i, "shop": str(number), "at": at, "v": n} for i in (number * 1000 + n, -1)]
    upsert(table, rows, key=["id"])
delete(table, [{"id": number * 1000}], key=["id"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("version", "spec"), [(2, "identity of another"), (3, "unpartitioned")])
def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path, version: int, spec: str) -> None:
    table = new_table(tmp_path, version, spec)
    started = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(1, 6)
    ]
    for process in started:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    found = rows_of(table)
    assert [r["id"] for r in found] == [-1, *(n * 1000 + i for n in range(1, 6) for i in range(1, 4))]
    assert found[0]["v"] == 3
    assert len(table.catalog.load_table(NAME).metadata.snapshots) == 25


STEP = st.one_of(
    st.tuples(
        st.just("upsert"),
        st.dictionaries(st.integers(0, 9), st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=5),
    ),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 9), max_size=5)),
    st.tuples(st.sampled_from(["compact", "convert", "append"]), st.none()),
)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(STEP, min_size=1, max_size=7), version=st.sampled_from([2, 3]), spec=st.sampled_from(list(SPECS)))
def test_any_sequence_leaves_the_rows_of_a_dict(
    steps: list[tuple[str, Any]], version: int, spec: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = new_table(tmp_path_factory.mktemp("random"), version, spec)
    expected: dict[int, dict[str, Any]] = {}
    for number, (what, values) in enumerate(steps):
        if what == "upsert":
            new = {n: row(n, number, shop, days) for n, (shop, days) in values.items()}
            expected |= new
            upsert(table, pa.Table.from_pylist([*new.values()], table.schema().as_arrow()), key=["id"])
        elif what == "delete":
            expected = {n: one for n, one in expected.items() if n not in values}
            delete(table, pa.table({"id": pa.array(values, pa.int64())}), key=["id"])
        elif what == "append":  # by another engine
            if version == 2 and spec in {"unpartitioned", "identity of another"}:
                expected[100 + number] = row(100 + number, number, "b")
                table.append(pa.Table.from_pylist([expected[100 + number]], table.schema().as_arrow()))
        elif table.metadata.current_snapshot_id is not None:
            convert(table) if what == "convert" else compact(table, CompactSettings(rewrite_all=True))
        assert rows_of(table) == [expected[n] for n in sorted(expected)]


def test_pandas_example_of_the_face(tmp_path: Path) -> None:
    table = new_table(tmp_path, fields=(("id", LongType()), ("price", DoubleType())))
    nevermore.upsert(table, pd.DataFrame({"id": [1, 2], "price": [1.5, 2.5]}), key="id")
    nevermore.delete(table, pd.DataFrame({"id": [1]}), key="id")
    assert nevermore.open_table(table).scan().to_pandas().to_dict("records") == [{"id": 2, "price": 2.5}]


MEMBERS = {
    "struct": (StructType(NestedField(9, "a", LongType(), required=True)), pa.struct([("a", pa.int64())]), {"a": None}),
    "list": (ListType(9, LongType()), pa.list_(pa.int64()), [1, None]),
    "map": (MapType(9, StringType(), 10, LongType()), pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)]),
    "inner": (ListType(9, ListType(10, LongType())), pa.list_(pa.list_(pa.int64())), [[1], [2, None]]),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_required_members_are_not_null(tmp_path: Path, kind: str) -> None:
    iceberg, arrow, value = MEMBERS[kind]
    table = new_table(tmp_path, fields=(("id", LongType()), ("w", iceberg)))
    with pytest.raises(PipelineError, match=r"column 'w' is required|'w': .* non-nullable"):
        upsert(table, pa.table({"id": [1, 2], "w": pa.array([None, value], arrow)}), key=["id"])
    if kind != "struct":
        upsert(table, pa.table({"id": [1, 2], "w": pa.array([None, value[:1]], arrow)}), key=["id"])
        assert nevermore.open_table(table).scan().to_table()["w"].to_pylist() == [None, value[:1]]
