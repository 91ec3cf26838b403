"""Many small files: errors name the file at fault, and values stay those of each file."""

from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import MalformedTableError, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from tests.support.iceberg_json import Column, Partition, list_of
from tests.support.table_builder import TableBuilder

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "price", "double"),
    Column(4, "tags", list_of(5, "int")),
    Column(6, "day", "date"),
)
ONE_THREAD = ScanOptions(parallelism=1)
FILES, ROWS = 12, 50


def values(file: int, rows: int = ROWS) -> dict[str, Any]:
    ids = [file * 100 + i for i in range(rows)]
    return {
        "id": [None if i % 17 == 5 else i for i in ids],
        "name": [None if i % 11 == 2 else f"n-{i % 9}" if file % 2 else f"long name {i}" for i in ids],
        "price": [None if i % 13 == 4 else i / 4 for i in ids],
        "tags": [None if i % 5 == 0 else [i, None, file] for i in ids],
        "day": [None if i % 3 == 0 else i for i in ids],
    }


def deleted_in_partitions(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS, partitions=[Partition("day", 6)])
    for round_ in range(2):
        table.commit(*(table.data(values(k + round_), partition={"day": k}) for k in range(FILES)))
        table.commit(
            *(
                table.equality_delete({"id": [k * 100 + 3, k * 100 + 104, 7]}, ids=[1], partition={"day": k})
                for k in range(FILES - 1)
            )
        )
    return table


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_constant_keeps_the_sign_of_zero(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path / "t", (COLUMNS[0], Column(2, "x", kind)), partitions=[Partition("x", 2)])
    table.commit(*(table.data({"id": [k]}, partition={"x": -0.0 if k % 2 else 0.0}) for k in range(FILES)))
    scan = scan_core.open_table(table.metadata_path).scan()
    found = scan.with_options(ONE_THREAD).to_table()["x"].to_pylist()
    assert str(found) == str([-0.0 if k % 2 else 0.0 for k in range(FILES)])


@pytest.mark.parametrize("column", ["name", "price", "tags"])
def test_a_damaged_file_among_others_is_named(tmp_path: Path, column: str) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    files = [table.data(values(k), compression="none") for k in range(FILES)]
    table.commit(*files)
    bad = files[5].local
    import pyarrow.parquet as pq

    index = [leaf.split(".")[0] for leaf in _leaves(bad)].index(column)
    chunk = pq.read_metadata(bad).row_group(0).column(index)
    data = bytearray(bad.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 40] = b"\xff" * 40
    bad.write_bytes(data)
    scan = scan_core.open_table(table.metadata_path).scan().with_options(ONE_THREAD)
    with pytest.raises(MalformedTableError, match=bad.name):
        scan.to_table()
    assert scan.select("id").to_table().num_rows == FILES * ROWS


def _leaves(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    schema = pq.read_metadata(path).schema
    return [schema.column(i).path for i in range(len(schema))]


def test_a_damaged_delete_file_among_others_is_named(tmp_path: Path) -> None:
    table = deleted_in_partitions(tmp_path / "t")
    bad = sorted(tmp_path.rglob("*delete*.parquet"))[3]
    data = bad.read_bytes()
    bad.write_bytes(data[:4] + b"\xff" * 30 + data[34:])
    with pytest.raises(MalformedTableError, match=bad.name):
        scan_core.open_table(table.metadata_path).scan().with_options(ONE_THREAD).to_table()


def test_a_damaged_delete_file_that_no_row_needs_does_no_harm(tmp_path: Path) -> None:
    """The row groups of its data file exclude the value, which lies within the bounds of the file."""
    table = TableBuilder(tmp_path / "t", COLUMNS[:2], partitions=[Partition("id", 1)])
    names = [["a", "z"] if k == 3 else ["a", "m", "z"] for k in range(FILES)]
    files = ({"id": [k] * len(found), "name": found} for k, found in enumerate(names))
    table.commit(*(table.data(file, partition={"id": k}, row_group_size=1) for k, file in enumerate(files)))
    table.commit(*(table.equality_delete({"name": ["a"]}, ids=[2], partition={"id": k}) for k in range(FILES)))
    bad = sorted(tmp_path.rglob("*delete*.parquet"))[3]
    data = bad.read_bytes()
    bad.write_bytes(data[:4] + b"\xff" * 30 + data[34:])
    DELETE_CACHE.clear()
    scan = scan_core.open_table(table.metadata_path).scan().with_options(ONE_THREAD)
    assert scan.where("name = 'm'").to_table().num_rows == FILES - 1
    with pytest.raises(MalformedTableError, match=bad.name):
        scan.to_table()
