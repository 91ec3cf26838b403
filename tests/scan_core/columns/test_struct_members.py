"""Struct members are read alone: only their leaf columns, only their pages, and with the values of the whole struct."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.model.errors import ColumnNotFoundError
from tests.support.iceberg_json import Column, list_of, struct
from tests.support.table_builder import TableBuilder

COLUMNS = [
    Column(1, "id", "long"),
    Column(
        2,
        "a",
        struct(
            Column(3, "b", struct(Column(4, "c", "int"), Column(5, "s", "string"))),
            Column(6, "x", "double"),
            Column(7, "l", list_of(8, "int")),
        ),
    ),
]
VALUES: list[Any] = [
    None,
    {"b": None, "x": 1.5, "l": None},
    {"b": {"c": 1, "s": "one"}, "x": None, "l": []},
    {"b": {"c": None, "s": "two"}, "x": 2.5, "l": [1, None]},
    {"b": {"c": 3, "s": None}, "x": -0.5, "l": [2]},
]
MEMBERS = ["a.b.c", "a.b.s", "a.b", "a.x", "a.l"]


def table_of(folder: Path, values: list[Any], file_format: str = "parquet", **options: Any) -> TableBuilder:
    table = TableBuilder(folder / "t", COLUMNS)
    table.commit(table.data({"id": range(len(values)), "a": values}, file_format=file_format, **options))
    return table


def member(value: Any, name: str) -> Any:
    for part in name.split(".")[1:]:
        value = None if value is None else value[part]
    return value


def sizes(table: TableBuilder) -> dict[str, int]:
    data = pq.ParquetFile(next(Path(table.location, "data").glob("*.parquet")))
    chunks = [data.metadata.row_group(0).column(i) for i in range(data.metadata.num_columns)]
    return {c.path_in_schema: c.total_compressed_size for c in chunks}


@pytest.mark.each(3)
@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.sampled_from(VALUES), min_size=1, max_size=12),
    chosen=st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True),
)
def test_members_alone_are_those_of_the_whole_struct(
    tmp_path_factory: pytest.TempPathFactory, file_format: str, rows: list[Any], chosen: list[str]
) -> None:
    if file_format == "orc":
        # Below a struct that is NULL, pyarrow's ORC writer shifts the values of its members (Spark reads them so, too).
        rows = [row for row in rows if row is None or row["b"] is not None] or [None]
    chosen = [name for name in chosen if name == "a.b" or "a.b" not in chosen or not name.startswith("a.b")]
    options = {"row_group_size": 5, "max_rows_per_page": 2} if file_format == "parquet" else {}
    table = table_of(tmp_path_factory.mktemp("t"), rows, file_format, **options)
    scan = scan_core.open_table(table.metadata_path).scan()
    expected = {name: [member(row, name) for row in rows] for name in chosen}
    for switches in (ScanOptions(), ScanOptions.without_optimisations()):
        assert scan.with_options(switches).select(*chosen).to_table().to_pydict() == expected
        found = scan.with_options(switches).select("id").where("a.b.c > 0 and a.x is null or a.b.s = 'two'")
        kept = [
            i
            for i, row in enumerate(rows)
            if member(row, "a.b.s") == "two" or ((member(row, "a.b.c") or 0) > 0 and member(row, "a.x") is None)
        ]
        assert found.to_table().column("id").to_pylist() == kept


def test_filter_on_a_member_reads_its_leaf_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path, [{"b": {"c": i, "s": "s" * 50 + str(i)}, "x": i / 2, "l": [i]} for i in range(5000)])
    size = sizes(table)
    scan = scan_core.open_table(table.metadata_path).scan().where("a.b.c % 2 = 0")
    assert scan.count() == 2500
    assert scan.metrics.bytes_read == size["a.b.c"]
    narrow = scan.select("a.x", "a.b.c")
    assert narrow.to_table().num_rows == 2500
    assert narrow.metrics.bytes_read == size["a.b.c"] + size["a.x"]


def test_pages_of_a_member_are_chosen_by_its_bounds(tmp_path: Path) -> None:
    rows = [{"b": {"c": i, "s": f"{i:060}"}, "x": i / 2, "l": [i]} for i in range(20_000)]
    table = table_of(tmp_path, rows, max_rows_per_page=1_000, use_dictionary=False)
    scan = scan_core.open_table(table.metadata_path).scan().select("a.b.s").where("a.b.c between 7001 and 7003")
    assert scan.to_table().column("a.b.s").to_pylist() == [f"{i:060}" for i in (7001, 7002, 7003)]
    assert scan.metrics.pages_read <= 2
    assert scan.metrics.bytes_read < sizes(table)["a.b.s"] / 5


def test_row_groups_are_left_out_by_bounds_of_a_member(tmp_path: Path) -> None:
    rows: list[Any] = [{"b": {"c": i, "s": "x"}, "x": None, "l": []} if i % 3 else None for i in range(3000)]
    table = table_of(tmp_path, rows, row_group_size=1000)
    scan = scan_core.open_table(table.metadata_path).scan().where("a.b.c = 2500")
    assert scan.count() == 1
    assert scan.metrics.row_groups_pruned == 2
    assert scan_core.open_table(table.metadata_path).scan().where("a.b.c is null").count() == 1000


def test_equality_deletes_on_a_member_read_its_leaf_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path, [{"b": {"c": i, "s": "s" * 50 + str(i)}, "x": 0.5, "l": [i]} for i in range(3000)])
    size = sizes(table)
    delete = pa.table({"a": pa.array([{"b": {"c": 7}}], pa.struct({"b": pa.struct({"c": pa.int32()})}))})
    narrow = [Column(2, "a", struct(Column(3, "b", struct(Column(4, "c", "int")))))]
    table.commit(table.equality_delete(delete, ids=[4], columns=narrow))
    scan = scan_core.open_table(table.metadata_path).scan().select("id")
    assert scan.count() == 2999
    assert scan.metrics.bytes_read == size["a.b.c"]


def test_member_of_an_old_file_without_it_is_null(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(2, "a", struct(Column(6, "x", "double")))])
    table.commit(table.data({"a": [{"x": 1.0}, None]}))
    table.evolve(Column(2, "a", struct(Column(6, "x", "double"), Column(9, "new", "int"))))
    table.commit(table.data({"a": [{"x": 2.0, "new": 5}, None]}))
    scan = scan_core.open_table(table.metadata_path).scan().select("a.new")
    assert sorted(scan.to_table().column(0).to_pylist(), key=str) == [5, None, None, None]
    assert scan.where("a.new is null").count() == 3


def test_a_struct_and_its_member_cannot_both_be_selected(tmp_path: Path) -> None:
    table = scan_core.open_table(table_of(tmp_path, VALUES).metadata_path)
    with pytest.raises(ColumnNotFoundError, match=r"'a\.x' is part of 'a', which is selected as a whole"):
        _ = table.scan().select("a", "a.x").schema
    with pytest.raises(ColumnNotFoundError, match=r"'a\.l\.element' lies inside a list or map: select the column 'a'"):
        _ = table.scan().select("a.l.element").schema
