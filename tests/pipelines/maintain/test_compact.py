"""Compaction: the same rows in fewer files, whatever arrives meanwhile, and never a deleted row again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scan_core
from pipelines.iceberg.commit import RowDelta
from pipelines.iceberg.table_writer import check_key, write_deletes, write_rows
from pipelines.maintain import compact as module
from pipelines.maintain.compact import CompactReport, CompactSettings, compact
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of

EVERYTHING = CompactSettings(rewrite_all=True)
COLUMNS = {"id": "long", "city": "string", "x": "double"}


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return catalog_in(tmp_path)


def rows(ids: range | list[int], version: str = "a") -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "city": [f"{version}{i % 3}" for i in ids], "x": [i / 2 for i in ids]}
    )


def upsert(catalog: Any, ids: range | list[int], version: str = "a", *, deleted: list[int] | None = None) -> int:
    """Delete these keys and insert rows of them, as a commit of ingest does; return the sequence number."""
    delta = RowDelta(reloaded(catalog))
    keys = pa.table({"id": pa.array([*ids, *(deleted or [])], pa.int64())})
    spec = delta.unpartitioned_spec()
    files = write_deletes(keys, delta.target, spec, check_key(delta.schema, ("id",)))
    return delta.commit([*files, *write_rows(rows(ids, version), delta.target, delta.default_spec)], {}).sequence_number


def append(catalog: Any, ids: range | list[int]) -> None:
    delta = RowDelta(reloaded(catalog))
    delta.commit(write_rows(rows(ids), delta.target, delta.default_spec), {})


def compacted(catalog: Any, settings: CompactSettings = EVERYTHING) -> CompactReport:
    """Compact the table and compare its rows before and after, by the reference and by the engine."""
    before = rows_of(reloaded(catalog))
    report = compact(reloaded(catalog), settings)
    assert rows_of(reloaded(catalog)) == before
    assert scan_core.open_table(reloaded(catalog)).scan().to_table().sort_by("id").to_pylist() == before
    return report


def files_of(catalog: Any) -> tuple[list[scan_core.DataFile], list[str]]:
    """The live data files, and the paths of all live delete files, needed or not."""
    table = reloaded(catalog)
    deletes = [e["file_path"] for e in table.inspect.delete_files().to_pylist()]
    return [task.data_file for task in scan_core.open_table(table).scan().plan().tasks], deletes


def test_small_files_become_one_and_needless_deletes_leave_in_the_same_commit(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 50, 10):
        upsert(catalog, range(start, start + 15), f"v{start}-")
    number = upsert(catalog, [], deleted=[3, 64])
    report = compacted(catalog)
    assert (report.files_before, report.files_after, report.commits) == (5, 1, 1)
    assert (report.dead_rows_removed, report.delete_files_dropped, report.rows) == (21, 6, 54)
    (file,), deletes = files_of(catalog)
    assert (file.data_sequence_number, file.record_count, deletes) == (number, 54, [])
    snapshot = reloaded(catalog).current_snapshot()
    assert snapshot.summary.operation.value == "replace"
    assert (snapshot.summary["total-delete-files"], snapshot.summary["total-data-files"]) == ("0", "1")
    assert reloaded(catalog).scan().to_arrow().num_rows == 54  # PyIceberg refuses tables with equality deletes
    assert not compacted(catalog, CompactSettings()).has_changed


def test_rule_30_deletes_that_arrive_meanwhile_still_apply_and_reinserted_rows_stay(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 50, 10):
        upsert(catalog, range(start, start + 10))
    upsert(catalog, [7], "re-inserted ")

    def meanwhile() -> None:
        upsert(catalog, [8, 9], "new ", deleted=[11, 12])

    between(monkeypatch, meanwhile)
    report = compact(reloaded(catalog), EVERYTHING)
    assert (report.commits, report.replanned, report.files_after) == (1, 0, 1)
    found = {row["id"]: row["city"] for row in rows_of(reloaded(catalog))}
    assert set(found) == {*range(50)} - {11, 12}
    assert (found[7], found[8], found[9]) == ("re-inserted 1", "new 2", "new 0")
    engine = scan_core.open_table(reloaded(catalog)).scan().to_table()
    assert dict(zip(engine["id"].to_pylist(), engine["city"].to_pylist(), strict=True)) == found
    assert len(files_of(catalog)[1]) == 1  # the delete that came meanwhile


def between(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], times: int = 1) -> None:
    """Let another writer commit after files were rewritten and before they are committed."""
    original, left = module._Run._commit, [times]

    def commit(self: Any, groups: Any, read: Any) -> None:
        if left[0]:
            left[0] -= 1
            meanwhile()
        original(self, groups, read)

    monkeypatch.setattr(module._Run, "_commit", commit)
