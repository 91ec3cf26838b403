"""Small files that are read as one: the same answers and counts as file by file, errors that name the file at fault."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import MalformedTableError, Scan, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.joined import JoinedFiles
from nevermore.scan_core.rows.selection import RowSelection
from tests.support.iceberg_json import Column, Partition, list_of
from tests.support.table_builder import TableBuilder

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "price", "double"),
    Column(4, "tags", list_of(5, "int")),
    Column(6, "day", "date"),
)
TOGETHER, APART = ScanOptions(parallelism=1), ScanOptions.of(parallelism=1, join_small_files=False)
FILES, ROWS = 12, 50
CONDITIONS = (
    None,
    "id % 7 = 3",
    "name = 'n-4'",
    "id = 203",
    "price > 10 and name is not null",
    "id < 0",
    "id between 120 and 260",
)


def values(file: int, rows: int = ROWS) -> dict[str, Any]:
    ids = [file * 100 + i for i in range(rows)]
    return {
        "id": [None if i % 17 == 5 else i for i in ids],
        "name": [None if i % 11 == 2 else f"n-{i % 9}" if file % 2 else f"long name {i}" for i in ids],
        "price": [None if i % 13 == 4 else i / 4 for i in ids],
        "tags": [None if i % 5 == 0 else [i, None, file] for i in ids],
        "day": [None if i % 3 == 0 else i for i in ids],
    }


def plain(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    table.commit(*(table.data(values(k)) for k in range(FILES)))
    return table


def deleted_by_key(path: Path) -> TableBuilder:
    table = plain(path)
    table.commit(table.equality_delete({"id": [203, 204, 911, None]}, ids=[1]))
    table.commit(
        *(table.data(values(k)) for k in range(3)), table.equality_delete({"name": ["n-4"], "id": [310]}, ids=[2, 1])
    )
    table.commit(*(table.equality_delete({"name": [f"n-{k}"]}, ids=[2]) for k in range(2)))
    return table


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


def constant_in_partitions(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS, partitions=[Partition("day", 6)])
    files = [{n: v for n, v in values(k).items() if n != "day"} for k in range(FILES)]
    table.commit(*(table.data(file, partition={"day": k // 4}) for k, file in enumerate(files)))
    return table


def deleted_by_position(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    files = [table.data(values(k)) for k in range(FILES)]
    table.commit(*files)
    table.commit(*(table.position_delete([(file, 0), (file, 7), (file, ROWS - 1)]) for file in files[::2]))
    table.commit(
        table.position_delete([(files[1], i) for i in range(ROWS)]), table.equality_delete({"id": [500]}, ids=[1])
    )
    return table


def evolved(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS[:3], version=3)
    table.commit(*(table.data({n: values(k)[n] for n in ("id", "name", "price")}) for k in range(5)))
    table.evolve(*COLUMNS, Column(9, "added", "int", initial_default=5))
    table.commit(*(table.data({**values(k), "added": [k] * ROWS}) for k in range(5, FILES)))
    table.commit(table.equality_delete({"id": [103, 603], "added": [5, 6]}, ids=[1, 9]))
    return table


def of_several_row_groups(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    table.commit(*(table.data(values(k, 10 + 30 * k), row_group_size=40) for k in range(FILES)))
    table.commit(table.equality_delete({"id": [203, 505, 1130]}, ids=[1]))
    return table


TABLES = (
    plain,
    deleted_by_key,
    deleted_in_partitions,
    constant_in_partitions,
    deleted_by_position,
    evolved,
    of_several_row_groups,
)


def read(table: TableBuilder, options: ScanOptions, where: str | None) -> tuple[Any, ...]:
    DELETE_CACHE.clear()
    scan = scan_core.open_table(table.metadata_path).scan().with_options(options)
    scan = scan if where is None else scan.where(where)
    calls = (("count", "name"), ("min", "name"), ("max", "id"), ("sum", "id"), ("max", "price"), ("count", "*"))
    found: list[Any] = [scan.to_table().to_pylist()]
    counted = [_counts(scan)]
    found += [scan.count(), scan.aggregate(*calls), scan.select("price", "id").to_table().to_pylist()]
    return found, counted


def _counts(scan: Scan) -> dict[str, int]:
    metrics = scan.metrics
    names = (
        "data_files_read",
        "row_groups_read",
        "row_groups_pruned",
        "rows_in_files",
        "rows_removed_by_position_deletes",
        "rows_out",
        "delete_files_opened",
        "delete_indexes_built",
        "delete_index_hits",
        "delete_rows_loaded",
        "delete_bytes_read",
        "bytes_read",
    )
    # a row that a filter and a delete remove is counted as removed by the one that ran first
    removed = metrics.rows_removed_by_filter + metrics.rows_removed_by_equality_deletes
    return {"removed": removed, **{name: getattr(metrics, name) for name in names}}


@pytest.mark.parametrize("build", TABLES, ids=lambda build: build.__name__)
def test_small_files_give_the_same_together_and_apart(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, joined = build(tmp_path / "t"), list[int]()
    made = JoinedFiles.__init__

    def counted(self: JoinedFiles, parts: Sequence[Any], reads: Sequence[Any]) -> None:
        joined.append(len(parts))
        made(self, parts, reads)

    monkeypatch.setattr(JoinedFiles, "__init__", counted)
    for where in CONDITIONS:
        apart = read(table, APART, where)
        assert not joined
        assert read(table, TOGETHER, where) == apart, where
        if where is None:
            assert max(joined) > 1
        joined.clear()


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_constant_keeps_the_sign_of_zero(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path / "t", (COLUMNS[0], Column(2, "x", kind)), partitions=[Partition("x", 2)])
    table.commit(*(table.data({"id": [k]}, partition={"x": -0.0 if k % 2 else 0.0}) for k in range(FILES)))
    scan = scan_core.open_table(table.metadata_path).scan()
    together, apart = (str(scan.with_options(o).to_table()["x"].to_pylist()) for o in (TOGETHER, APART))
    assert together == apart == str([-0.0 if k % 2 else 0.0 for k in range(FILES)])


def test_metadata_columns_are_those_of_each_file(tmp_path: Path) -> None:
    table = deleted_by_key(tmp_path / "t")
    scans = [scan_core.open_table(table.metadata_path).scan().select("_file", "_pos", "id") for _ in range(2)]
    together, apart = (s.with_options(o).to_table() for s, o in zip(scans, (TOGETHER, APART), strict=True))
    assert together.equals(apart)


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
    scan = scan_core.open_table(table.metadata_path).scan().with_options(TOGETHER)
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
        scan_core.open_table(table.metadata_path).scan().with_options(TOGETHER).to_table()


@pytest.mark.parametrize("options", [TOGETHER, APART], ids=["together", "apart"])
def test_a_damaged_delete_file_that_no_row_needs_does_no_harm(tmp_path: Path, options: ScanOptions) -> None:
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
    scan = scan_core.open_table(table.metadata_path).scan().with_options(options)
    assert scan.where("name = 'm'").to_table().num_rows == FILES - 1
    with pytest.raises(MalformedTableError, match=bad.name):
        scan.to_table()


def test_files_without_a_row_of_the_result_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, sizes = plain(tmp_path / "t"), list[int]()
    touched = JoinedFiles._touched

    def noted(self: JoinedFiles, selection: RowSelection) -> tuple[list[int], RowSelection]:
        found = touched(self, selection)
        sizes.append(len(found[0]))
        return found

    monkeypatch.setattr(JoinedFiles, "_touched", noted)
    scan = scan_core.open_table(table.metadata_path).scan().with_options(TOGETHER).where("name like '%name 206'")
    assert scan.to_table().num_rows == 1
    assert {1, 8} <= set(sizes)


def test_the_memory_limit_bounds_how_many_files_are_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    text = pa.array(["x" * 20_000] * ROWS)
    table.commit(*(table.data({**values(k), "name": text.to_pylist()}) for k in range(FILES)))
    parts = list[int]()
    made = JoinedFiles.__init__

    def counted(self: JoinedFiles, files: Sequence[Any], reads: Sequence[Any]) -> None:
        parts.append(len(files))
        made(self, files, reads)

    monkeypatch.setattr(JoinedFiles, "__init__", counted)
    scan = scan_core.open_table(table.metadata_path).scan()
    tight = ScanOptions(parallelism=1, memory_limit_bytes=64 * 1024**2)
    assert scan.with_options(tight).to_table().num_rows == FILES * ROWS
    assert sum(parts) * 20_000 * ROWS <= 64 * 1024**2 or max(parts, default=0) < FILES // 2
    parts.clear()
    assert scan.with_options(TOGETHER).to_table().num_rows == FILES * ROWS
    assert max(parts) >= 4
