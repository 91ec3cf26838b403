import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.update import update_table_metadata
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from nevermore import scan_core
from nevermore.pipelines.errors import CommitConflictError, CommitNotWrittenError
from nevermore.pipelines.iceberg import metadata_swap
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.commit import RowDelta, commit, upgrade
from nevermore.pipelines.iceberg.loaded_table import refresh
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return new_table(catalog_in(tmp_path), {"id": "long"})


def append(table: Any, key: int, **properties: str) -> None:
    delta = RowDelta(table)
    delta.commit(write_rows(pa.table({"id": [key]}), delta.target, delta.default_spec), properties)


def set_property(table: Any, name: str, value: str) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({name: value})


def document(table: Any) -> dict[str, Any]:
    return json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())


def test_metadata_in_memory_is_the_one_in_the_file(table: Any) -> None:
    for key in range(4):
        append(table, key)
        assert reloaded(table.catalog).metadata == table.metadata
    assert [r["id"] for r in rows_of(table)] == [0, 1, 2, 3]


HEAD = {"action": "set-snapshot-ref", "type": "branch", "snapshot-id": 7, "min-snapshots-to-keep": 3}
SNAPSHOT = {"snapshot-id": 7, "sequence-number": 9, "timestamp-ms": 2**42, "manifest-list": "m", "schema-id": 0}
SNAPSHOT |= {"summary": {"operation": "append", "a": "b"}}
SCHEMA = {"type": "struct", "schema-id": 5, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
STRUCT = {"type": "struct", "fields": [{"id": 12, "name": "a", "required": False, "type": "int"}]}
SCHEMA["fields"] += [{"id": 4, "name": "more", "required": False, "type": STRUCT}]
SPEC = {"spec-id": 3, "fields": [{"source-id": 1, "field-id": 1004, "transform": "bucket[4]", "name": "id_bucket"}]}
STATISTICS = {"statistics-path": "p", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}


def _updates(old: int, current: int) -> dict[str, list[dict[str, Any]]]:
    """Updates of a table with these snapshots."""
    dropped = [{"action": "remove-statistics", "snapshot-id": current}]
    statistics = [{"action": "set-statistics", "statistics": {**STATISTICS, "snapshot-id": i}} for i in (old, current)]
    return {
        "snapshot": [{"action": "add-snapshot", "snapshot": SNAPSHOT}, {**HEAD, "ref-name": "main"}],
        "branch": [{"action": "add-snapshot", "snapshot": SNAPSHOT}, {**HEAD, "ref-name": "aside"}],
        "rollback": [{**HEAD, "ref-name": "main", "snapshot-id": old}],
        "no branch": [{"action": "remove-snapshot-ref", "ref-name": "kept"}],
        "no snapshot": [
            {"action": "remove-snapshot-ref", "ref-name": "kept"},
            {"action": "remove-snapshots", "snapshot-ids": [old]},
        ],
        "schema": [
            {"action": "add-schema", "schema": SCHEMA},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "set-properties", "updates": {"a": "b"}},
        ],
        "spec": [{"action": "add-spec", "spec": SPEC}, {"action": "set-default-spec", "spec-id": -1}],
        "no fields": [{"action": "add-spec", "spec": {"spec-id": 3, "fields": []}}],
        "statistics": [*statistics, *dropped],
    }


@pytest.mark.each(3)
@pytest.mark.parametrize("kind", _updates(0, 1))
def test_updates_change_what_pyiceberg_changes(table: Any, kind: str) -> None:
    for key in range(3):
        append(table, key)
    with table.manage_snapshots() as change:
        change.create_tag(table.metadata.snapshots[0].snapshot_id, "kept")
    updates = _updates(table.metadata.snapshots[0].snapshot_id, table.metadata.current_snapshot_id)[kind]
    request = CommitTableRequest.model_validate(
        {"identifier": {"namespace": [], "name": "t"}, "requirements": [], "updates": updates}
    )
    expected = update_table_metadata(table.metadata, request.updates, metadata_location=table.metadata_location)
    commit(table, [], updates)
    assert table.metadata == reloaded(table.catalog).metadata
    assert _comparable(table.metadata) == _comparable(expected)


def _comparable(metadata: Any) -> dict[str, Any]:
    """Metadata without the time of the change; PyIceberg cuts the line of snapshots before those that it removes."""
    document = metadata.model_dump()
    line = [{**s, "parent-snapshot-id": None} for s in document["snapshots"]]
    history = [entry["snapshot-id"] for entry in document["snapshot-log"]]
    return {**document, "snapshots": line, "snapshot-log": history, "last-updated-ms": 0}


def test_a_tag_keeps_its_snapshot_from_being_removed(table: Any) -> None:
    append(table, 1)
    append(table, 2)
    first = table.metadata.snapshots[0].snapshot_id
    other = reloaded(table.catalog)
    with other.manage_snapshots() as change:
        change.create_tag(first, "kept")
    with pytest.raises(CommitConflictError, match="kept"):
        commit(table, [], [{"action": "remove-snapshots", "snapshot-ids": [first]}])


@pytest.mark.each(2)
@pytest.mark.parametrize("requirement", [
    {"type": "assert-table-uuid", "uuid": "x"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
    {"type": "assert-ref-snapshot-id", "ref": "aside", "snapshot-id": 1},
    {"type": "assert-current-schema-id", "current-schema-id": 4},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 4},
    {"type": "assert-default-spec-id", "default-spec-id": 4},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 4},
])  # fmt: skip
def test_a_requirement_that_is_not_met_is_a_conflict(table: Any, requirement: dict[str, Any]) -> None:
    append(table, 1)
    before = table.metadata_location
    with pytest.raises(CommitConflictError, match=requirement["type"]):
        commit(table, [requirement], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert reloaded(table.catalog).metadata_location == before


def test_commits_through_both_ways_follow_each_other(table: Any) -> None:
    append(table, 1)
    with table.transaction() as transaction:
        transaction.set_properties({"owner": "somebody"})
    append(table, 2)
    with table.update_schema() as update:
        update.add_column("name", _string())
    append(table, 3)
    assert document(table)["properties"]["owner"] == "somebody"
    assert len(document(table)["snapshots"]) == 3
    assert [r["id"] for r in rows_of(table)] == [1, 2, 3]


def _string() -> Any:
    from pyiceberg.types import StringType

    return StringType()


def test_second_of_two_writers_conflicts_and_leaves_nothing(table: Any, tmp_path: Path) -> None:
    other = reloaded(catalog_in(tmp_path))
    late = RowDelta(other)
    append(table, 1)
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    before = sorted(folder.iterdir())
    with pytest.raises(CommitConflictError):
        late.commit([], {})
    assert sorted(folder.iterdir()) == before
    refresh(other)
    append(other, 2)
    assert [r["id"] for r in rows_of(other)] == [1, 2]


def test_a_commit_goes_on_over_changes_of_properties_and_tags(table: Any, tmp_path: Path) -> None:
    append(table, 1)
    late = RowDelta(table)
    files = write_rows(pa.table({"id": [2]}), late.target, late.default_spec)
    other = reloaded(catalog_in(tmp_path))
    set_property(other, "owner", "somebody")
    other.manage_snapshots().create_tag(other.metadata.current_snapshot_id, "kept").commit()
    late.commit(files, {})
    now = reloaded(catalog_in(tmp_path))
    assert now.metadata == table.metadata
    assert now.properties["owner"] == "somebody"
    assert "kept" in now.metadata.refs
    assert [r["id"] for r in rows_of(now)] == [1, 2]
    times = [s.timestamp_ms for s in now.metadata.snapshots]
    assert times == sorted(times)
    assert now.metadata.last_updated_ms == times[-1] > other.metadata.last_updated_ms


@pytest.mark.each(4)
@pytest.mark.parametrize("change", ["schema", "spec", "snapshot", "branch", "version", "replaced", "dropped"])
def test_a_commit_never_goes_on_over_what_it_builds_upon(table: Any, tmp_path: Path, change: str) -> None:
    late = RowDelta(table)
    files = write_rows(pa.table({"id": [2]}), late.target, late.default_spec)
    other = reloaded(catalog_in(tmp_path))
    match change:
        case "schema":
            with other.update_schema() as schema:
                schema.add_column("name", _string())
        case "spec":
            with other.update_spec() as spec:
                spec.add_identity("id")
        case "snapshot":
            append(other, 1)
        case "branch":
            delta = RowDelta(other)
            delta.commit([], {}, branch="aside")
        case "version":
            upgrade(other, 3)
        case "replaced":
            other.catalog.drop_table(other.name())
            new_table(other.catalog, {"id": "long"})
        case "dropped":
            other.catalog.drop_table(other.name())
    with pytest.raises(CommitConflictError, match="another writer changed"):
        late.commit(files, {})
    if change != "dropped":
        assert len(rows_of(reloaded(catalog_in(tmp_path)))) == (change == "snapshot")


def test_rolled_back_table_is_never_committed_upon_by_an_old_delta(table: Any) -> None:
    append(table, 1)
    stale = RowDelta(table)
    append(table, 2)
    with pytest.raises(CommitConflictError):
        stale.commit([], {})


def test_old_metadata_files_are_removed(table: Any) -> None:
    set_property(table, metadata_swap.PREVIOUS_VERSIONS, "3")
    for key in range(8):
        append(table, key)
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    names = {entry["metadata-file"].rsplit("/", 1)[-1] for entry in document(table)["metadata-log"]}
    current = table.metadata_location.rsplit("/", 1)[-1]
    assert {p.name for p in folder.glob("*.metadata.json")} == names | {current}
    assert len(names) == 3


def test_removed_snapshots_leave_metadata_that_pyiceberg_reads(table: Any) -> None:
    for key in range(5):
        append(table, key)
    ids = [s["snapshot-id"] for s in document(table)["snapshots"]]
    commit(table, [], [{"action": "remove-snapshots", "snapshot-ids": [ids[0], ids[2]]}])
    assert [s["snapshot-id"] for s in document(table)["snapshots"]] == [ids[1], *ids[3:]]
    assert [e["snapshot-id"] for e in document(table)["snapshot-log"]] == ids[3:]  # without a gap
    assert reloaded(table.catalog).metadata == table.metadata
    stale = reloaded(table.catalog)
    append(table, 5)
    head = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": ids[4]}
    with pytest.raises(CommitConflictError):
        commit(stale, [head], [{"action": "remove-snapshots", "snapshot-ids": [ids[1]]}])
    assert [r["id"] for r in rows_of(table)] == list(range(6))


@pytest.mark.parametrize("version", [2, 3])
def test_compressed_metadata_stays_compressed_whatever_changes_it(table: Any, version: int) -> None:
    """PyIceberg refuses to write that of format version 3."""
    with table.transaction() as change:
        change.set_properties({"write.metadata.compression-codec": "gzip"})
    if version == 3:
        upgrade(table, 3)
    for key in range(3):
        append(table, key)
    delta = RowDelta(reloaded(table.catalog))
    delta.unpartitioned_spec()
    delta.set_properties({"a": "b"})
    delta.commit([], {}, operation="append")
    build_indexes(CatalogTarget(reloaded(table.catalog)), ["id"])
    table = reloaded(table.catalog)
    commit(table, [], [{"action": "remove-snapshots", "snapshot-ids": [table.metadata.snapshots[0].snapshot_id]}])
    location = table.metadata_location
    assert location.endswith(".gz.metadata.json")
    assert Path(location.removeprefix("file://")).read_bytes().startswith(b"\x1f\x8b")
    assert (table.format_version, len(table.metadata.snapshots), len(table.metadata.statistics)) == (version, 3, 1)
    assert scan_core.open_table(table).scan().count() == 3


def test_commit_row_delta_uses_the_same_way(table: Any) -> None:
    delta = RowDelta(table)
    RowDelta(table).commit(write_rows(pa.table({"id": [1]}), delta.target, delta.default_spec), {})
    assert len(document(table)["snapshots"]) == 1


def test_a_commit_whose_database_takes_no_journal_leaves_no_file(table: Any, tmp_path: Path) -> None:
    append(table, 0)
    (database,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:6] == b"SQLite")
    journal = database.with_name(f"{database.name}-journal")
    before = set(tmp_path.rglob("metadata/*"))
    journal.symlink_to(tmp_path / "no folder" / "journal")
    with pytest.raises(
        CommitNotWrittenError, match=r"^nothing was committed: the disk of the catalog is full or broken, or"
    ):
        append(table, 1)
    journal.unlink()
    assert set(tmp_path.rglob("metadata/*")) == before
    append(table, 2)
    assert [row["id"] for row in rows_of(table)] == [0, 2]


@pytest.mark.parametrize("became", ["undone", "done", "overtaken"])
def test_after_an_error_of_its_disk_the_database_tells_what_became_of_a_commit(
    table: Any, tmp_path: Path, became: str
) -> None:
    append(table, 0)
    before = set(tmp_path.rglob("metadata/*"))
    broken = sqlite3.OperationalError("disk I/O error")
    broken.sqlite_errorname = "SQLITE_FULL"
    patched = pytest.MonkeyPatch()

    @contextmanager
    def failing(engine: Engine) -> Iterator[Any]:
        with engine.connect() as connection:
            yield connection
            if became != "undone":
                connection.commit()
        if became == "overtaken":
            patched.undo()
            append(reloaded(table.catalog), 9)
        raise OperationalError("UPDATE", {}, broken)

    try:
        patched.setattr(Engine, "begin", failing)
        if became == "undone":
            with pytest.raises(CommitNotWrittenError, match="the disk of the catalog is full"):
                append(table, 1)
        else:
            append(table, 1)
    finally:
        patched.undo()
    if became == "undone":
        assert set(tmp_path.rglob("metadata/*")) == before
    append(reloaded(table.catalog), 2)
    rows = sorted(row["id"] for row in rows_of(reloaded(table.catalog)))
    assert rows == {"undone": [0, 2], "done": [0, 1, 2], "overtaken": [0, 1, 2, 9]}[became]
