import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.errors import CommitConflictError, SourceError
from nevermore.pipelines.iceberg.commit import (
    CONFLICT_ATTEMPTS,
    RowDelta,
    everything,
    partitions_in,
    retry_conflicts,
    upgrade,
)
from nevermore.pipelines.iceberg.manifests import (
    EntryStatus,
    ManifestEntry,
    NamedFiles,
    PartitionLayout,
    manifest_bytes,
    manifest_record,
    read_avro,
)
from nevermore.pipelines.iceberg.positions import (
    LAST_ORDINAL,
    LOG_ORDINAL,
    POSITION,
    POSITION_FILE,
    ancestors,
    carried_positions,
    newest_property,
)
from nevermore.pipelines.iceberg.schema_evolution import evolve, iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows
from nevermore.scan_core import DataFile, FileFormat, PartitionField, PartitionSpec, PrimitiveType, Schema
from nevermore.scan_core.metadata import normalise_value
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of


def table_with(tmp_path: Path, *partition_by: tuple[str, str]) -> tuple[Any, Any]:
    catalog = catalog_in(tmp_path)
    table = new_table(catalog, {"id": "long", "name": "string", "part": "int"}, *partition_by)
    delta = RowDelta(table)
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "part": pa.array([0, 1, None], pa.int32())})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {"position": "1"})
    return catalog, reloaded(catalog)


def manifests(table: Any) -> list[dict[str, Any]]:
    path = table.current_snapshot().manifest_list.removeprefix("file://")
    with Path(path).open("rb") as file:
        return list(fastavro.reader(file))  # type: ignore[arg-type] # records


def entries(manifest: dict[str, Any]) -> tuple[dict[str, Any], Any, list[dict[str, Any]]]:
    with Path(manifest["manifest_path"].removeprefix("file://")).open("rb") as file:
        reader = fastavro.reader(file)
        return reader.metadata, reader.writer_schema, list(reader)  # type: ignore[return-value, arg-type]


def test_rule_24_data_and_deletes_are_one_snapshot_with_right_counts(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    delta = RowDelta(table)
    files = write_rows(pa.table({"id": [2, 4], "name": ["B", "d"]}), delta.target, delta.default_spec)
    files += write_deletes(pa.table({"id": [1, 2]}), delta.target, delta.default_spec, (1,))
    committed = delta.commit(files, {"position": "2"})
    table = reloaded(catalog)
    assert [s.snapshot_id for s in table.metadata.snapshots][-1] == committed.snapshot_id
    assert len(table.metadata.snapshots) == 2
    summary = table.current_snapshot().summary
    assert summary.operation.value == "overwrite"
    expected = {
        "added-data-files": "1",
        "added-records": "2",
        "added-delete-files": "1",
        "added-equality-delete-files": "1",
        "added-equality-deletes": "2",
        "total-data-files": "2",
        "total-records": "5",
        "total-delete-files": "1",
        "total-equality-deletes": "2",
        "total-position-deletes": "0",
        "position": "2",
    }
    assert {k: summary[k] for k in expected} == expected
    size = sum(f.file_size_bytes for f in files)
    assert summary["added-files-size"] == str(size)
    assert [r["id"] for r in rows_of(table)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("data", "deletes", "operation"), [(True, False, "append"), (False, True, "delete"), (True, True, "overwrite")]
)
def test_rule_24_operation_says_what_was_done(tmp_path: Path, *, data: bool, deletes: bool, operation: str) -> None:
    _, table = table_with(tmp_path)
    delta = RowDelta(table)
    keys = pa.table({"id": [1]})
    files = write_rows(keys, delta.target, delta.default_spec) if data else []
    files += write_deletes(keys, delta.target, delta.default_spec, (1,)) if deletes else []
    assert delta.commit(files, {}).operation == operation


def test_rule_25_delete_manifest_is_what_strict_readers_expect(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    delta = RowDelta(table)
    delta.commit(write_deletes(pa.table({"id": [1, 2]}), delta.target, delta.default_spec, (1,)), {})
    table = reloaded(catalog)
    (manifest,) = [m for m in manifests(table) if m["content"] == 1]
    assert (manifest["sequence_number"], manifest["min_sequence_number"]) == (2, 2)
    assert (manifest["added_files_count"], manifest["added_rows_count"]) == (1, 2)
    metadata, schema, (entry,) = entries(manifest)
    assert metadata["content"] == "deletes"
    data_file = next(f for f in schema["fields"] if f["name"] == "data_file")["type"]
    ids = next(f for f in data_file["fields"] if f["name"] == "equality_ids")
    assert ids["field-id"] == 135
    assert ids["type"][1]["items"] == "int"
    assert ids["type"][1]["element-id"] == 136
    assert entry["data_file"]["content"] == 2
    assert entry["data_file"]["equality_ids"] == [1]
    assert entry["data_file"]["record_count"] == 2
    assert entry["data_file"]["lower_bounds"] == [{"key": 1, "value": (1).to_bytes(8, "little")}]
    assert entry["data_file"]["null_value_counts"] == [{"key": 1, "value": 0}]
    assert entry["sequence_number"] is None
    assert entry["status"] == 1


def test_manifests_are_readable_by_the_catalog_library(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path, ("identity", "part"), ("bucket[4]", "id"))
    assert table.scan().to_arrow().num_rows == 3
    assert table.inspect.partitions().num_rows == 3
    assert reloaded(catalog).current_snapshot().manifests(table.io)[0].added_rows_count == 3


def test_rule_27_global_spec_is_found_or_added_but_never_the_default(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path, ("identity", "part"))
    for expected_specs in (2, 2):
        delta = RowDelta(reloaded(catalog))
        spec = delta.unpartitioned_spec()
        assert spec.spec_id == 1
        delta.commit(write_deletes(pa.table({"id": [1]}), delta.target, spec, (1,)), {})
        table = reloaded(catalog)
        assert len(table.specs()) == expected_specs
        assert table.spec().spec_id == 0
    assert [r["id"] for r in rows_of(table)] == [2, 3]
    assert {m["partition_spec_id"] for m in manifests(table) if m["content"] == 1} == {1}


def test_schema_change_and_rows_are_one_commit(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    delta = RowDelta(table)
    rows = pa.table({"id": [9], "note": ["new"]})
    delta.evolve(evolve(delta.schema, iceberg_fields(rows.schema), table.metadata.last_column_id).schema)
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})
    table = reloaded(catalog)
    assert table.schema().find_field("note").field_id == 4
    assert table.current_snapshot().schema_id == table.schema().schema_id == 1
    assert [r["note"] for r in rows_of(table)] == [None, None, None, "new"]


def test_rule_28_truncate_removes_every_file_in_one_snapshot(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path, ("identity", "part"))
    delta = RowDelta(table)
    delta.commit(write_deletes(pa.table({"id": [1]}), delta.target, delta.unpartitioned_spec(), (1,)), {})
    table = reloaded(catalog)
    delta = RowDelta(table)
    files = write_rows(pa.table({"id": [7]}), delta.target, delta.default_spec)
    committed = delta.commit(files, {}, remove=everything)
    table = reloaded(catalog)
    assert committed.operation == "overwrite"
    assert rows_of(table) == [{"id": 7, "name": None, "part": None}]
    totals = {k: v for k, v in committed.summary.items() if k.startswith("total-") and k != "total-files-size"}
    assert totals == {
        "total-data-files": "1",
        "total-records": "1",
        "total-delete-files": "0",
        "total-equality-deletes": "0",
        "total-position-deletes": "0",
    }
    assert committed.summary["removed-equality-deletes"] == "1"
    assert committed.summary["deleted-records"] == "3"


def test_partition_is_replaced_in_one_snapshot_and_others_keep_their_sequence_numbers(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path, ("identity", "part"))
    for generation in ("x", "y"):
        table = reloaded(catalog)
        delta = RowDelta(table)
        rows = pa.table({"id": [20, 21], "name": [generation] * 2, "part": pa.array([1, 1], pa.int32())})
        files = write_rows(rows, delta.target, delta.default_spec)
        delta.commit(files, {}, remove=partitions_in(delta.default_spec.spec_id, {(1,)}), operation="overwrite")
    table = reloaded(catalog)
    assert [(r["id"], r["name"]) for r in rows_of(table)] == [(1, "a"), (3, "c"), (20, "y"), (21, "y")]
    assert table.current_snapshot().summary.operation.value == "overwrite"
    kept = [e for m in manifests(table) for e in entries(m)[2] if e["status"] == 0]
    assert {e["sequence_number"] for e in kept} == {1}
    assert {e["file_sequence_number"] for e in kept} == {1}
    assert table.scan().to_arrow().num_rows == 4


def test_null_partition_can_be_replaced(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path, ("identity", "part"))
    RowDelta(table).commit([], {}, remove=partitions_in(0, {(None,)}))
    assert [r["id"] for r in rows_of(reloaded(catalog))] == [1, 2]


def test_files_are_removed_by_path(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path, ("identity", "part"))
    (manifest,) = manifests(table)
    paths = [e["data_file"]["file_path"] for e in entries(manifest)[2]]
    committed = RowDelta(table).commit([], {}, remove=lambda file: file.path == paths[0])
    assert committed.operation == "delete"
    assert len(rows_of(reloaded(catalog))) == 2


def test_manifests_without_live_files_are_dropped_by_the_next_commit(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    RowDelta(table).commit([], {}, remove=everything)
    assert len(manifests(reloaded(catalog))) == 1
    RowDelta(reloaded(catalog)).commit([], {})
    assert manifests(reloaded(catalog)) == []
    assert rows_of(reloaded(catalog)) == []


def test_rule_29_second_writer_conflicts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    first, second = RowDelta(reloaded(catalog)), RowDelta(table)
    first.commit([], {"position": "first"})
    files = write_rows(pa.table({"id": [9]}), second.target, second.default_spec)
    folder = tmp_path / "warehouse/shop/t/metadata"
    before = {p.name for p in folder.iterdir() if p.suffix == ".avro"}
    with pytest.raises(CommitConflictError, match=r"shop\.t"):
        second.commit(files, {"position": "second"})
    second.discard(files)
    assert {p.name for p in folder.iterdir() if p.suffix == ".avro"} == before
    assert newest_property(reloaded(catalog), "position") == "first"
    assert len(list((tmp_path / "warehouse/shop/t/data").glob("*.parquet"))) == 1


def rewritten(table: Any) -> None:
    """What compaction does: the same rows in another file, with the sequence number of the snapshot that it read."""
    old = {(path, None) for path in table.inspect.data_files()["file_path"].to_pylist()}
    delta = RowDelta(table)
    written = write_rows(scan_core.open_table(table).scan().to_table(), delta.target, delta.default_spec)
    files = [replace(file, data_sequence_number=table.current_snapshot().sequence_number) for file in written]
    delta.commit(files, carried_positions(table), remove=NamedFiles(frozenset(old)), operation="replace")


def appended(table: Any) -> None:
    delta = RowDelta(table)
    rows = pa.table({"id": [9], "name": ["z"], "part": pa.array([0], pa.int32())})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})


def emptied(table: Any) -> None:
    RowDelta(table).commit([], {}, remove=everything)


def partitioned(table: Any) -> None:
    with table.update_spec() as change:
        change.add_identity("part")


def widened(table: Any) -> None:
    with table.update_schema() as change:
        change.rename_column("name", "title")


def upgraded(table: Any) -> None:
    upgrade(table, 3)


@pytest.mark.each(10)
@pytest.mark.parametrize(
    ("between", "outlasts"),
    [
        ([rewritten], True),
        ([rewritten, rewritten], True),
        ([appended], False),
        ([rewritten, appended], False),
        ([appended, rewritten], False),
        ([emptied], False),
        ([rewritten, partitioned], False),
        ([rewritten, widened], False),
        ([rewritten, upgraded], False),
    ],
)
@pytest.mark.parametrize("evolves", [False, True])
def test_rule_29_files_outlast_rewrites_but_no_change_of_rows(
    tmp_path: Path, between: list[Any], *, outlasts: bool, evolves: bool
) -> None:
    catalog, table = table_with(tmp_path)
    delta = RowDelta(table)
    if evolves:
        more = iceberg_fields(pa.schema({"more": pa.int64()}))
        delta.evolve(evolve(delta.schema, more, table.metadata.last_column_id).schema)
    rows = pa.table({"id": [2, 4], "name": ["new", "d"], "part": pa.array([1, 1], pa.int32())})
    files = write_rows(rows, delta.target, delta.default_spec)
    files += write_deletes(pa.table({"id": [2, 4]}), delta.target, delta.default_spec, (1,))
    for change in between:
        change(reloaded(catalog))
    before = rows_of(reloaded(catalog))
    if outlasts:
        delta.commit(files, {"position": "2"}, after_rewrites=lambda: (files, None))
        table = reloaded(catalog)
        found = [(row["id"], row["name"]) for row in rows_of(table)]
        assert found == [(1, "a"), (2, "new"), (3, "c"), (4, "d")]
        assert scan_core.open_table(table).scan().count() == 4
        assert table.current_snapshot().summary["position"] == "2"
        lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        assert {f"file://{path}" for path in tmp_path.rglob("snap-*.avro")} == lists
    else:
        with pytest.raises(CommitConflictError, match="another writer changed"):
            delta.commit(files, {"position": "2"}, after_rewrites=lambda: (files, None))
        assert rows_of(reloaded(catalog)) == before


def test_rule_29_without_leave_a_rewrite_is_a_conflict(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    delta = RowDelta(table)
    rewritten(reloaded(catalog))
    with pytest.raises(CommitConflictError, match="another writer changed"):
        delta.commit([], {"position": "2"})


def test_rule_29_position_is_found_in_an_ancestor_behind_foreign_commits(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    table.append(pa.table({"id": pa.array([8], pa.int64())}))
    table = reloaded(catalog)
    assert newest_property(table, "position") == "1"
    assert [s.sequence_number for s in ancestors(table)] == [2, 1]
    assert newest_property(table, "unheard of") is None


def test_conflicts_are_retried_until_they_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.pipelines.iceberg.commit.FIRST_PAUSE_SECONDS", 0)
    calls: list[int] = []

    def attempt(fail: int, *, may_retry: bool = True) -> int:
        calls.append(1)
        if len(calls) <= fail:
            raise CommitConflictError("busy", may_retry=may_retry)
        return len(calls)

    assert retry_conflicts(lambda: attempt(3)) == 4
    calls.clear()
    with pytest.raises(CommitConflictError):
        retry_conflicts(lambda: attempt(1, may_retry=False))
    calls.clear()
    with pytest.raises(CommitConflictError):
        retry_conflicts(lambda: attempt(99))
    assert len(calls) == CONFLICT_ATTEMPTS


def test_snapshot_times_rise_with_every_commit(tmp_path: Path) -> None:
    catalog, _ = table_with(tmp_path)
    for _ in range(3):
        RowDelta(reloaded(catalog)).commit([], {})
    times = [s.timestamp_ms for s in reloaded(catalog).metadata.snapshots]
    assert times == sorted(set(times))


def test_rule_30_a_rewrite_states_the_sequence_number_of_the_snapshot_that_it_read(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    read = table.current_snapshot().sequence_number
    old = {(task.file.file_path, None) for task in table.scan().plan_files()}
    keys = RowDelta(table)
    deletes = write_deletes(pa.table({"id": [2]}), keys.target, keys.default_spec, (1,))
    keys.commit(deletes, {LOG_ORDINAL: "7"})  # arrives while files are rewritten
    delta = RowDelta(reloaded(catalog))
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "part": pa.array([0, 1, None], pa.int32())})
    files = [replace(f, data_sequence_number=read) for f in write_rows(rows, delta.target, delta.default_spec)]
    committed = delta.commit(
        files, carried_positions(delta.table), remove=NamedFiles(frozenset(old)), operation="replace"
    )
    table = reloaded(catalog)
    assert (committed.operation, table.current_snapshot().summary["deleted-data-files"]) == ("replace", "1")
    assert newest_property(table, LOG_ORDINAL) == table.current_snapshot().summary[LOG_ORDINAL] == "7"
    (manifest,) = [m for m in manifests(table) if m["content"] == 0 and m["added_files_count"]]
    assert (manifest["sequence_number"], manifest["min_sequence_number"]) == (committed.sequence_number, read)
    assert [r["id"] for r in rows_of(table)] == [1, 3]
    assert scan_core.open_table(table).scan().count() == 2


def test_a_rewrite_of_files_that_are_gone_is_a_conflict_and_leaves_nothing(tmp_path: Path) -> None:
    catalog, table = table_with(tmp_path)
    gone = frozenset({(table.location() + "/data/gone.parquet", None)})
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CommitConflictError, match=r"another writer removed .*gone\.parquet from shop\.t"):
        RowDelta(table).commit([], {}, remove=NamedFiles(gone), operation="replace")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert reloaded(catalog).metadata.current_snapshot_id == table.metadata.current_snapshot_id


def test_rule_29_maintenance_copies_the_newest_position_in_whichever_place(tmp_path: Path) -> None:
    catalog, _ = table_with(tmp_path)
    for properties in ({POSITION: "old", LAST_ORDINAL: "1"}, {POSITION_FILE: "file"}, {}):
        RowDelta(reloaded(catalog)).commit([], properties, operation="append")
    assert carried_positions(reloaded(catalog)) == {POSITION_FILE: "file", LAST_ORDINAL: "1"}


@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0], [math.nan, 0.0, -0.0]])
def test_bounds_of_manifests_tell_the_sign_of_zero(values: list[float]) -> None:
    """Readers that compare by total order, as Iceberg Java does, would not find -0.0 above a lower bound of 0.0."""
    spec = PartitionSpec(1, (PartitionField(1000, 2, "x", "identity"),))
    layout = PartitionLayout(spec, (PrimitiveType("double"),))
    files = [DataFile("a", FileFormat.PARQUET, 1, (normalise_value(x, layout.types[0]),), 1, 1) for x in values]
    entries = [ManifestEntry(EntryStatus.ADDED, 1, file) for file in files]
    record = manifest_record(entries, 0, layout, path="m", length=1, snapshot_id=1, sequence_number=1)
    (summary,) = record["partitions"]
    bounds = [struct.unpack("<d", summary[f"{end}_bound"])[0] for end in ("lower", "upper")]
    assert [math.copysign(1, bound) for bound in bounds] == [-1, 1]


@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns"])
def test_partitions_of_nanoseconds_are_written(kind: str) -> None:
    spec = PartitionSpec(1, (PartitionField(1000, 2, "x", "identity"), PartitionField(1001, 2, "gone", "void")))
    layout = PartitionLayout(spec, (PrimitiveType(kind), PrimitiveType(kind)))
    partition = (1_700_000_000_123_456_789, None)
    entry = ManifestEntry(EntryStatus.ADDED, 1, DataFile("a", FileFormat.PARQUET, 1, partition, 1, 1))
    data = manifest_bytes([entry], 0, layout, Schema(0, ()), 3)
    (found,) = read_avro(data, "m").rows
    assert found["data_file"]["partition"] == {"x": partition[0], "gone": None}


@pytest.mark.parametrize("version", [1, 2, 4])
def test_format_versions_that_nobody_can_give_to_a_table_are_refused(tmp_path: Path, version: int) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"})
    upgrade(table, 3)
    with pytest.raises(SourceError, match=rf"shop\.t has format version 3 and cannot get version {version}: "):
        upgrade(table, version)
    assert (table.refresh(), table.format_version)[1] == 3
