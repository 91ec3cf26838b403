import uuid
from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core import PredicateError
from nevermore.scan_core.why import DeletedBy, KeyReport, RowFate, key_report
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
KEY = COLUMNS[:1]


def report_of(table: TableBuilder, snapshot_id: int | None = None, **key: object) -> KeyReport:
    scan = scan_core.open_table(table.metadata_path).scan()
    return key_report(scan if snapshot_id is None else scan.as_of_snapshot(snapshot_id), key)  # type: ignore[arg-type]


def test_every_version_of_a_key_is_told_with_what_removed_it(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    first, second = table.data({"id": [1, 5], "name": ["x", "old"]}), table.data({"id": [5], "name": ["newer"]})
    delete, again = (table.equality_delete({"id": [5]}, ids=[1], columns=KEY) for _ in range(2))
    before = table.commit(first)
    table.commit(delete, second)
    third = table.data({"id": [5], "name": ["newest"]})
    table.commit(again, third)
    report = report_of(table, id=5)
    on_id = ("id",)
    made = sorted(
        scan_core.open_table(table.metadata_path).metadata.snapshots.values(), key=lambda s: s.sequence_number
    )
    assert report.rows == (
        RowFate(first.path, 1, 1, DeletedBy(delete.path, "equality delete", 2, "the whole table", on_id), made[0]),
        RowFate(second.path, 0, 2, DeletedBy(again.path, "equality delete", 3, "the whole table", on_id), made[1]),
        RowFate(third.path, 0, 3, None, made[2]),
    )
    assert report.num_alive == 1
    assert report.seen_in == report.snapshot
    assert [row.is_alive for row in report_of(table, before, id="5").rows] == [True]


def test_position_deletes_vectors_and_scopes_are_named(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, version=3, partitions=[Partition("name", 2)])
    files = [table.data({"id": [1, 1], "name": [n, n]}, partition={"name": n}) for n in "abc"]
    table.commit(*files)
    vector = table.deletion_vector(files[0], [1])
    positions = table.position_delete([(files[1], 0)])
    named = table.position_delete([(files[1], 1)], referenced=files[1])
    keys = table.equality_delete({"id": [1]}, ids=[1], columns=KEY, partition={"name": "c"})
    table.commit(vector, positions, named, keys)
    found = {(row.file, row.position): row.deleted_by for row in report_of(table, id=1).rows}
    of_c = DeletedBy(keys.path, "equality delete", 2, "partition name='c' of spec 0", ("id",))
    assert found == {
        (files[0].path, 0): None,
        (files[0].path, 1): DeletedBy(vector.path, "deletion vector", 2, "this data file"),
        (files[1].path, 0): DeletedBy(positions.path, "position delete", 2, "partition name='b' of spec 0"),
        (files[1].path, 1): DeletedBy(named.path, "position delete", 2, "this data file"),
        (files[2].path, 0): of_c,
        (files[2].path, 1): of_c,
    }


def test_key_whose_files_were_rewritten_is_found_in_an_older_snapshot(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data = table.data({"id": [1, 5], "name": ["x", "y"]})
    table.commit(data)
    delete = table.equality_delete({"id": [5]}, ids=[1], columns=KEY)
    second = table.commit(delete)
    third = table.commit(table.data({"id": [1], "name": ["x"]}), remove=[data, delete], operation="replace")
    last = table.commit(table.data({"id": [7], "name": ["z"]}))
    report = report_of(table, id=5)
    assert [(row.file, row.is_alive) for row in report.rows] == [(data.path, False)]
    assert (report.snapshot.snapshot_id, report.seen_in.snapshot_id) == (last, second)  # type: ignore[union-attr]
    assert report.removed_in is not None
    assert report.removed_in.snapshot_id == third
    assert report.num_alive == 0


def test_key_never_seen_has_no_rows(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    assert report_of(table, id=1) == KeyReport("id = 1", None)
    table.commit(table.data({"id": [1], "name": ["x"]}))
    report = report_of(table, id=2)
    assert report.rows == ()
    assert report.seen_in is None
    assert report.snapshot is not None


def test_keys_have_several_columns_nulls_and_members(tmp_path: Path) -> None:
    columns = [*COLUMNS, Column(3, "s", struct(Column(4, "u", "uuid")))]
    table = TableBuilder(tmp_path / "t", columns)
    member = uuid.UUID(int=7)
    rows = {"id": [1, None], "name": ["x", "y"], "s": [{"u": member.bytes}, {"u": None}]}
    table.commit(table.data(rows))
    assert [r.position for r in report_of(table, id=None, name="y").rows] == [1]
    assert [r.position for r in report_of(table, id=1, name="y").rows] == []
    assert [r.position for r in report_of(table, None, **{"s.u": str(member)}).rows] == [0]


def test_unknown_columns_and_values_are_refused(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data({"id": [1], "name": ["x"]}))
    with pytest.raises(PredicateError, match="idd"):
        report_of(table, idd=1)
    with pytest.raises(PredicateError, match="at least one"):
        report_of(table)
    with pytest.raises(PredicateError, match="five"):
        report_of(table, id="five")
