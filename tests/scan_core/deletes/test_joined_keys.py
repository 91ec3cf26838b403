"""Small delete files whose keys are decoded together: the same rows and counts as one by one, errors that name the file."""

from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import MalformedTableError, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.files.parquet.joined import JoinedFiles
from tests.support.iceberg_json import Column, struct
from tests.support.table_builder import TableBuilder

COLUMNS = (
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "day", "date"),
    Column(4, "at", struct(Column(5, "x", "int"))),
)
ROWS, FILES = 400, 70
TOGETHER, APART = ScanOptions(parallelism=1), ScanOptions.of(parallelism=1, join_small_files=False)
COUNTED = (
    "delete_files_opened",
    "delete_rows_loaded",
    "delete_bytes_read",
    "delete_indexes_built",
    "rows_removed_by_equality_deletes",
)


def name_of(i: int) -> str | None:
    return None if i % 50 == 7 else f"n{i % 9}" if i % 2 else f"a long name {i}"


def rows_of(ids: range) -> dict[str, Any]:
    return {
        "id": [None if i % 100 == 3 else i for i in ids],
        "name": [name_of(i) for i in ids],
        "day": [i % 5 for i in ids],
        "at": [None if i % 40 == 0 else {"x": i} for i in ids],
    }


def deleted(table: TableBuilder, key: str, *, column_id: int, **options: Any) -> list[Any]:
    """Delete files of a few rows each, one of them empty, and one with NULL among its keys."""
    found = [rows_of(range(5 * k, 5 * k + (0 if k == 4 else 1 + k % 3))) for k in range(FILES)]
    return [table.equality_delete({key: f[key], "day": f["day"]}, ids=[column_id], **options) for f in found]


@pytest.mark.parametrize(("key", "column_id"), [("id", 1), ("name", 2), ("at", 5)])
@pytest.mark.parametrize("options", [{}, {"row_group_size": 1}, {"use_dictionary": False}], ids=str)
def test_keys_are_the_same_together_and_one_by_one(
    key: str, column_id: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, joined = TableBuilder(tmp_path / "t", COLUMNS), list[int]()
    table.commit(table.data(rows_of(range(ROWS))))
    table.commit(*deleted(table, key, column_id=column_id, **options))
    read = JoinedFiles.read

    def noted(self: JoinedFiles, *columns: Any) -> Any:
        joined.append(len(self.edges) - 1)
        return read(self, *columns)

    monkeypatch.setattr(JoinedFiles, "read", noted)
    found = []
    for how in (APART, TOGETHER):
        DELETE_CACHE.clear()
        scan = scan_core.open_table(table.metadata_path).scan().with_options(how)
        found.append((scan.to_table().to_pylist(), [getattr(scan.metrics, name) for name in COUNTED]))
        assert bool(joined) == (how is TOGETHER)
    assert found[0] == found[1]
    assert len(found[0][0]) < ROWS
    assert max(joined) > FILES // 2


def test_a_damaged_file_among_others_is_named(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data(rows_of(range(ROWS))))
    files = deleted(table, "name", column_id=2, compression="none")
    table.commit(*files)
    data = files[20].local.read_bytes()
    files[20].local.write_bytes(data[:4] + b"\xff" * 20 + data[24:])
    DELETE_CACHE.clear()
    with pytest.raises(MalformedTableError, match=files[20].local.name):
        scan_core.open_table(table.metadata_path).scan().with_options(TOGETHER).to_table()
