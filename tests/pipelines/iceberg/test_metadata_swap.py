import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.errors import CommitConflictError
from nevermore.pipelines.iceberg import metadata_swap
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.loaded_table import refresh, upgrade
from nevermore.pipelines.iceberg.metadata_swap import swap_without
from nevermore.pipelines.iceberg.storage import Storage
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


def test_metadata_is_as_pyiceberg_would_write_it(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, 1)
    direct = document(table)
    monkeypatch.setattr("nevermore.pipelines.iceberg.commit.supports", lambda _: False)
    append(table, 2)
    through_pyiceberg = document(table)
    assert set(direct) == set(through_pyiceberg)
    assert set(direct["snapshots"][0]) <= set(through_pyiceberg["snapshots"][1])
    assert direct["snapshots"][0] == through_pyiceberg["snapshots"][0]
    assert direct["snapshot-log"] == through_pyiceberg["snapshot-log"][:1]


def test_commits_through_both_ways_follow_each_other(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
            delta.stage([], {}, branch="aside")
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
    folder = f"{table.location()}/metadata"
    assert swap_without(table, [ids[0], ids[2]], Storage(), folder)
    assert [s["snapshot-id"] for s in document(table)["snapshots"]] == [ids[1], *ids[3:]]
    assert [e["snapshot-id"] for e in document(table)["snapshot-log"]] == ids[3:]  # without a gap
    assert reloaded(table.catalog).metadata == table.metadata
    stale = reloaded(table.catalog)
    append(table, 5)
    assert not swap_without(stale, [ids[1]], Storage(), folder)
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
    assert swap_without(table, [table.metadata.snapshots[0].snapshot_id], Storage(), f"{table.location()}/metadata")
    table = reloaded(table.catalog)
    location = table.metadata_location
    assert location.endswith(".gz.metadata.json")
    assert Path(location.removeprefix("file://")).read_bytes().startswith(b"\x1f\x8b")
    assert (table.format_version, len(table.metadata.snapshots), len(table.metadata.statistics)) == (version, 3, 1)
    assert scan_core.open_table(table).scan().count() == 3


def test_commit_row_delta_uses_the_same_way(table: Any) -> None:
    delta = RowDelta(table)
    RowDelta(table).commit(write_rows(pa.table({"id": [1]}), delta.target, delta.default_spec), {})
    assert len(document(table)["snapshots"]) == 1
