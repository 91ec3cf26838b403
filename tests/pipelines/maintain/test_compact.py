"""Compaction: the same rows in fewer files, whatever arrives meanwhile, and never a deleted row again."""

import json
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import year
from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.changes.row_order import Order, sorted_rows
from nevermore.pipelines.cli.arguments import split_names
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError, PipelineError, SchemaConflictError, SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything, upgrade
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes, write_rows
from nevermore.pipelines.maintain import compact as module
from nevermore.pipelines.maintain.compact import (
    CompactReport,
    CompactSettings,
    Costs,
    FileDebt,
    Upkeep,
    choose_groups,
    compact,
    compact_mirror,
)
from nevermore.scan_core import DataFile, DeleteContent, DeleteFile, FileFormat, FileScanTask, PartitionSpec
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded, rows_of
from tests.pipelines.maintain.test_adoption_of_others import copied
from tests.pipelines.project import Project, event, product
from tests.support.fixture_tables import FixtureTable, fixture_tables
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

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


def test_rule_30_a_delete_stays_though_all_files_of_the_time_before_it_were_replaced(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sequence number is below that of all other files, but not below that of the new one."""
    new_table(catalog, COLUMNS)
    append(catalog, [1, 2, 3])

    def meanwhile() -> None:
        upsert(catalog, [], deleted=[2])
        append(catalog, [4])

    between(monkeypatch, meanwhile)
    report = compact(reloaded(catalog), EVERYTHING)
    assert (report.commits, report.delete_files_dropped) == (1, 0)
    assert [row["id"] for row in rows_of(reloaded(catalog))] == [1, 3, 4]
    report = compact(reloaded(catalog), EVERYTHING)
    assert (report.dead_rows_removed, report.delete_files_dropped) == (1, 1)
    assert [row["id"] for row in rows_of(reloaded(catalog))] == [1, 3, 4]


def between(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], times: int = 1) -> None:
    """Let another writer commit after files were rewritten and before they are committed."""
    original, left = module._Run._commit, [times]

    def commit(self: Any, *arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            meanwhile()
        original(self, *arguments)

    monkeypatch.setattr(module._Run, "_commit", commit)


def delete_positions(catalog: Any, positions: dict[str, list[int]]) -> None:
    """A commit of one position-delete file for these data files, as Spark makes it."""
    table = reloaded(catalog)
    delta = RowDelta(table)
    pairs = [(path, place) for path in sorted(positions) for place in positions[path]]
    schema = pa.schema(
        [
            pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
            for name, kind, number in (("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545))
        ]
    )
    path = f"{delta.target.data_location}/{len(pairs)}-{table.metadata.last_sequence_number}-deletes.parquet"
    local = path.removeprefix("file://")
    pq.write_table(pa.table([[p for p, _ in pairs], [n for _, n in pairs]], schema=schema), local)
    size = Path(local).stat().st_size
    file = DeleteFile(path, FileFormat.PARQUET, 0, (), len(pairs), size, content=DeleteContent.POSITION)
    delta.commit([file], {})


def test_position_deletes_that_arrive_meanwhile_make_it_plan_again(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 40, 10):
        append(catalog, range(start, start + 10))
    paths = [file.path for file in files_of(catalog)[0]]
    delete_positions(catalog, {paths[0]: [1, 2]})
    between(monkeypatch, lambda: delete_positions(catalog, {paths[0]: [3], paths[1]: [0]}))
    report = compact(reloaded(catalog), EVERYTHING)
    assert (report.commits, report.replanned, report.given_up) == (1, 4, 0)
    assert (report.files_before, report.files_after, report.dead_rows_removed) == (4, 1, 4)
    assert report.delete_files_dropped == 2
    assert len(rows_of(reloaded(catalog))) == 36
    assert files_of(catalog)[1] == []


def test_a_position_delete_file_stays_while_one_of_its_data_files_does(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    append(catalog, range(10))
    append(catalog, range(100, 110))
    paths = {file.lower_bounds[1][0]: file.path for file in files_of(catalog)[0]}
    delete_positions(catalog, {paths[0]: [1], paths[100]: [2]})
    append(catalog, [200])
    report = compacted(catalog, CompactSettings(rewrite_all=True, where="id < 50"))
    assert (report.files_before, report.delete_files_dropped) == (1, 0)
    report = compacted(catalog, CompactSettings(rewrite_all=True, where="id > 50"))
    assert (report.files_before, report.delete_files_dropped) == (2, 1)


def test_files_that_another_writer_keeps_changing_are_given_up(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 40, 10):
        append(catalog, range(start, start + 10))
    paths = [file.path for file in files_of(catalog)[0]]
    places = iter(range(10))
    between(monkeypatch, lambda: delete_positions(catalog, {paths[0]: [next(places)]}), times=9)
    before = set(Path(reloaded(catalog).location().removeprefix("file://")).rglob("compact-*"))
    report = compact(reloaded(catalog), EVERYTHING)
    assert (report.given_up, report.files_before) == (4, 0)
    assert len(rows_of(reloaded(catalog))) == 37
    assert "4 files left unchanged" in "\n".join(report.lines)
    after = set(Path(reloaded(catalog).location().removeprefix("file://")).rglob("compact-*"))
    assert before == after == set()  # nothing is left behind


@pytest.mark.parametrize("back", ["truncate", "rollback"])
def test_rows_that_left_meanwhile_do_not_return(catalog: Any, monkeypatch: pytest.MonkeyPatch, back: str) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 40, 10):
        append(catalog, range(start, start + 10))
    first = reloaded(catalog).metadata.current_snapshot_id
    upsert(catalog, [], deleted=[3])

    def meanwhile() -> None:
        if back == "truncate":
            RowDelta(reloaded(catalog)).commit([], {}, remove=everything)
        else:
            reloaded(catalog).manage_snapshots().rollback_to_snapshot(first).commit()

    between(monkeypatch, meanwhile)
    compact(reloaded(catalog), EVERYTHING)
    found = [row["id"] for row in rows_of(reloaded(catalog))]
    assert found == ([] if back == "truncate" else list(range(40)))


def test_finished_partitions_are_committed_while_others_are_rewritten(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(catalog, COLUMNS, ("identity", "city"))
    for version in range(4):
        upsert(catalog, range(30), "part ", deleted=[version])
    monkeypatch.setattr(module, "COMMIT_BYTES", 1)
    done: list[tuple[int, int]] = []
    table = reloaded(catalog)
    before = rows_of(table)
    report = compact(table, CompactSettings(), lambda now, total, _name: done.append((now, total)))
    assert (report.commits, report.files_before, report.files_after) == (3, 12, 3)
    assert done[-1][0] == done[-1][1] == report.bytes_before
    assert report.snapshot_id == reloaded(catalog).metadata.current_snapshot_id
    assert rows_of(reloaded(catalog)) == before
    partitions = {task.data_file.partition for task in scan_core.open_table(reloaded(catalog)).scan().plan().tasks}
    assert partitions == {("part 0",), ("part 1",), ("part 2",)}
    assert files_of(catalog)[1] == []


def test_files_of_an_older_spec_move_to_the_current_one_and_partial_deletes_meanwhile_make_it_plan_again(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(catalog, COLUMNS, ("identity", "city"))
    append(catalog, range(12))
    with reloaded(catalog).update_spec() as change:
        change.remove_field("city")
        change.add_field("id", "bucket[2]")
    append(catalog, range(12, 24))
    old = table.spec().spec_id

    def meanwhile() -> None:
        delta = RowDelta(reloaded(catalog))
        keys = pa.table({"id": pa.array([0], pa.int64()), "city": ["a0"]})
        delta.commit(write_deletes(keys, delta.target, delta.specs[old], (1,)), {})

    between(monkeypatch, meanwhile)
    report = compact(reloaded(catalog), EVERYTHING)
    assert report.replanned == 3
    assert [row["id"] for row in rows_of(reloaded(catalog))] == list(range(1, 24))
    assert [r["id"] for r in scan_core.open_table(reloaded(catalog)).scan().to_table().sort_by("id").to_pylist()] == (
        list(range(1, 24))
    )
    specs = {file.spec_id for file in files_of(catalog)[0]}
    assert specs == {reloaded(catalog).spec().spec_id}


def test_global_deletes_of_a_partitioned_table_stay_while_an_older_file_of_any_partition_does(catalog: Any) -> None:
    new_table(catalog, COLUMNS, ("identity", "city"))
    append(catalog, range(30))
    upsert(catalog, [], deleted=[0, 1])  # unpartitioned: it reaches every partition
    report = compacted(catalog, CompactSettings(rewrite_all=True, where="city = 'a0'"))
    assert (report.files_before, report.dead_rows_removed, report.delete_files_dropped) == (1, 1, 0)
    report = compacted(catalog, CompactSettings(rewrite_all=True, where="city <> 'a0'"))
    assert (report.files_before, report.dead_rows_removed, report.delete_files_dropped) == (2, 1, 1)


def test_evolved_columns_are_rewritten_under_their_ids(catalog: Any) -> None:
    new_table(catalog, {"id": "int", "city": "string", "x": "float", "gone": "string"})
    delta = RowDelta(reloaded(catalog))
    old = pa.table({"id": pa.array(range(6), pa.int32()), "city": ["a"] * 6, "x": [0.5] * 6, "gone": ["b"] * 6})
    delta.commit(write_rows(old, delta.target, delta.default_spec), {})
    with reloaded(catalog).update_schema() as change:
        change.rename_column("city", "town")
        change.update_column("id", field_type=_type("long"))
        change.update_column("x", field_type=_type("double"))
        change.delete_column("gone")
        change.add_column("gone", _type("int"))
    delta = RowDelta(reloaded(catalog))
    new = pa.table({"id": [7, 2**40], "town": ["c", None], "x": [1.25, None], "gone": pa.array([1, None], pa.int32())})
    delta.commit(write_rows(new, delta.target, delta.default_spec), {})
    delta = RowDelta(reloaded(catalog))
    keys = pa.table({"id": pa.array([3, 2**40], pa.int64())})
    delta.commit(write_deletes(keys, delta.target, delta.default_spec, (1,)), {})
    report = compacted(catalog)
    assert (report.rows, report.dead_rows_removed, report.files_after) == (6, 2, 1)
    assert [(row["town"], row["gone"]) for row in rows_of(reloaded(catalog))] == [("a", None)] * 5 + [("c", 1)]


def _type(name: str) -> Any:
    from pyiceberg.types import DoubleType, IntegerType, LongType

    return {"long": LongType(), "double": DoubleType(), "int": IntegerType()}[name]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2**30, 2**16])
def test_sorted_files_follow_each_other_however_little_memory_there_is(catalog: Any, limit: int) -> None:
    new_table(catalog, COLUMNS)
    for part in range(6):
        append(catalog, [i * 7919 % 30_000 for i in range(part * 5_000, part * 5_000 + 5_000)])
    upsert(catalog, [], deleted=list(range(0, 30_000, 3)))
    chosen = CompactSettings(
        rewrite_all=True, order=Order(("city", "x")), memory_limit_bytes=limit, target_file_bytes=40_000
    )
    report = compacted(catalog, chosen)
    assert (report.rows, report.files_before) == (20_000, 6)
    assert report.files_after > 1
    found = []
    for file in files_of(catalog)[0]:
        read = pq.read_table(file.path.removeprefix("file://"))
        keys = list(zip(read["city"].to_pylist(), read["x"].to_pylist(), strict=True))
        assert keys == sorted(keys)
        found.append((keys[0], keys[-1]))
    found.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(found))


@pytest.mark.parametrize("order", [Order(("city", "x")), Order(("city", "x"), is_curve=True)])
def test_rows_that_are_all_equal_are_sorted_in_bounded_parts(catalog: Any, order: Order) -> None:
    new_table(catalog, COLUMNS)
    delta = RowDelta(reloaded(catalog))
    same = pa.table({"id": pa.array(range(30_000)), "city": ["x"] * 30_000, "x": pa.nulls(30_000, pa.float64())})
    delta.commit(write_rows(same, delta.target, delta.default_spec), {})
    parts = list(sorted_rows(iter(same.to_batches(1_000)), order, 2**16, lambda: iter(same.to_batches(1_000))))
    assert sum(part.num_rows for part in parts) == 30_000
    assert max(part.nbytes for part in parts) < 2 * 2**16
    assert pa.concat_tables(parts)["id"].to_pylist() == list(range(30_000))


@pytest.mark.each(3)
@pytest.mark.parametrize(("kind", "limit"), [("long", 2**30), ("long", 2**22), ("string", 2**22)])
def test_on_a_curve_filters_on_any_of_the_columns_skip_files_and_pages(catalog: Any, kind: str, limit: int) -> None:
    new_table(catalog, {"id": "long", "a": "long", "b": kind})
    draw = np.random.default_rng(3)
    a, b = (draw.integers(0, 1_000, 100_000) for _ in range(2))
    texts = pa.array([None if v < 20 else f"text {v:05}" for v in b.tolist()])
    rows = pa.table({"id": np.arange(100_000), "a": a, "b": pa.array(b) if kind == "long" else texts})
    for part in range(4):
        delta = RowDelta(reloaded(catalog))
        delta.commit(write_rows(rows.slice(part * 25_000, 25_000), delta.target, delta.default_spec), {})
    wanted = {"a": "a = 500", "b": "b = 500" if kind == "long" else "b = 'text 00500'"}

    def read_by(column: str) -> tuple[int, int, list[int]]:
        """Data files, rows whose values were compared, and the rows found."""
        scan = scan_core.open_table(reloaded(catalog)).scan().where(wanted[column])
        found = sorted(scan.to_table().column("id").to_pylist())
        return scan.metrics.data_files_read, scan.metrics.rows_removed_by_filter + len(found), found

    plain = {column: read_by(column)[2] for column in wanted}
    read = {}
    for order in (Order(("a", "b")), Order(("a", "b"), is_curve=True)):
        compact(
            reloaded(catalog),
            CompactSettings(rewrite_all=True, order=order, memory_limit_bytes=limit, target_file_bytes=20_000),
        )
        read[order.is_curve] = {column: read_by(column) for column in wanted}
        assert {column: found for column, (_, _, found) in read[order.is_curve].items()} == plain
        assert scan_core.open_table(reloaded(catalog)).scan().count() == 100_000
    total = len(files_of(catalog)[0])
    assert total >= 12
    assert read[False]["b"][0] > 0.9 * total  # the first column alone decides
    assert read[False]["b"][1] > 90_000
    for column in wanted:
        files, compared, _ = read[True][column]
        assert files < 0.6 * total, column
        assert compared < 75_000, column


@pytest.mark.parametrize("text", ["zorder(a)", "zorder(a, a)", "zorder()", ""])
def test_an_order_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an order"):
        Order.parse(text, split_names)
    assert Order.parse("zorder(a, b)", split_names) == Order(("a", "b"), is_curve=True)
    assert Order.parse("a, b", split_names) == Order(("a", "b"))


def test_mistakes_are_one_message(catalog: Any, tmp_path: Path) -> None:
    new_table(catalog, COLUMNS)
    append(catalog, range(3))
    with pytest.raises(SchemaConflictError, match="cannot be sorted by 'nothing'"):
        compact(reloaded(catalog), CompactSettings(order=Order(("nothing",))))
    with pytest.raises(scan_core.PredicateError):
        compact(reloaded(catalog), CompactSettings(where="id <"))
    first = TableBuilder(tmp_path / "first", [Column(1, "id", "long")], version=1)
    first.commit(first.data({"id": [1]}))
    catalog.register_table("shop.first", str(first.metadata_path))
    with pytest.raises(SourceError, match=r"shop\.first has format version 1 and cannot be compacted: only versions 2"):
        compact(reloaded(catalog, "shop.first"), EVERYTHING)


def test_rows_of_version_3_keep_their_ids(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    append(catalog, range(3))
    upgrade(reloaded(catalog), 3)
    append(catalog, range(3, 6))
    upsert(catalog, [], deleted=[1, 4])

    def lineage() -> list[tuple[int, int, int]]:
        scan = scan_core.open_table(reloaded(catalog)).scan().select("id", "_row_id", "_last_updated_sequence_number")
        return sorted(tuple(row.values()) for row in scan.to_table().to_pylist())

    before = lineage()
    assert [row[0] for row in before] == [0, 2, 3, 5]
    assert len({row[1] for row in before}) == 4
    for _ in range(2):
        report = compact(reloaded(catalog), EVERYTHING)
        assert (report.rows, report.files_after) == (4, 1)
        assert lineage() == before
        append(catalog, [9])
        assert lineage()[:-1] == before
        assert lineage()[-1][1] > max(row[1] for row in before)
        upsert(catalog, [], deleted=[9])


def test_an_empty_table_and_one_of_dead_rows_only(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    assert not compact(reloaded(catalog), EVERYTHING).has_changed
    append(catalog, range(3))
    upsert(catalog, [], deleted=[0, 1, 2])
    report = compacted(catalog)
    assert (report.files_before, report.files_after, report.dead_rows_removed) == (1, 0, 3)
    assert files_of(catalog) == ([], [])


@pytest.mark.parametrize("dead", [0, 2])
def test_a_dry_run_reports_what_the_run_then_does(catalog: Any, dead: int) -> None:
    new_table(catalog, COLUMNS)
    for start in range(0, 50, 10):
        append(catalog, range(start, start + 10))
    upsert(catalog, [], deleted=list(range(dead)))
    before = reloaded(catalog).metadata_location
    dry = compact(reloaded(catalog), CompactSettings(is_dry=True))
    assert reloaded(catalog).metadata_location == before
    done = compacted(catalog, CompactSettings())
    for name in ("files_before", "files_after", "bytes_before", "dead_rows_removed", "delete_files_dropped", "rows"):
        assert getattr(dry, name) == getattr(done, name), name
    assert "would rewrite 5 data files" in "\n".join(dry.lines)


def test_needless_deletes_leave_though_nothing_is_rewritten(catalog: Any) -> None:
    new_table(catalog, COLUMNS)
    upsert(catalog, range(5))  # deletes of keys that no older file can have
    report = compacted(catalog, CompactSettings())
    assert (report.files_before, report.delete_files_dropped, report.commits) == (0, 1, 1)
    assert files_of(catalog)[1] == []


# Tables of other writers


MOVED = {"pos_and_eq"}
"""Its position deletes name data files by their old paths."""
JAVA = [
    name
    for name, table in fixture_tables().items()
    if name not in MOVED and json.loads(Path(table.metadata).read_text())["format-version"] == 2
]


@pytest.mark.each(33)
@pytest.mark.parametrize("name", JAVA)
def test_tables_of_other_writers_have_the_same_rows_afterwards(tmp_path: Path, name: str) -> None:
    fixture: FixtureTable = fixture_tables()[name]
    folder = copied(fixture.folder / name, tmp_path / "t", fixture.facts["location"])
    catalog = catalog_in(tmp_path)
    catalog.create_namespace("shop")
    catalog.register_table("shop.t", str(folder / fixture.facts["metadata"]))
    before = scan_core.open_table(reloaded(catalog)).scan().to_table()
    report = compact(reloaded(catalog), EVERYTHING)
    table = reloaded(catalog)
    after = live_rows(table.metadata_location.removeprefix("file://"))
    assert report.rows == after.num_rows == before.num_rows
    assert sorted(map(repr, after.to_pylist())) == sorted(map(repr, before.to_pylist()))
    again = scan_core.open_table(table).scan()
    assert sorted(map(repr, again.to_table().to_pylist())) == sorted(map(repr, before.to_pylist()))
    assert not any(task.has_deletes for task in again.plan().tasks)


# Beside ingests, and killed


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest"])


def rewrite_and_crash(config: str, point: str) -> None:
    """A compaction of a mirror that the system ends at a point."""
    import os

    os.environ[storage.VARIABLE] = point
    table = find_table(open_catalog(load(config)), "shop.products")
    assert table is not None
    compact(table, EVERYTHING)


def project_with_updates(folder: Path, **table: Any) -> tuple[Project, list[dict[str, Any]]]:
    """A mirror of ten commits of inserts, updates and deletes, and its rows."""
    project = Project(folder, {"shop.products": {"key": ["id"], **table}})
    for number in range(10):
        first = number * 5
        lines = [event("c", product(i)) for i in range(first, first + 10)]
        lines += [event("u", product(first, "updated")), event("d", product(first + 1))]
        project.land(f"{number}.jsonl", lines)
        assert project.run().exit_code == 0
    return project, project.rows()


@pytest.mark.each(3)
@pytest.mark.parametrize("point", [p for p in get_args(storage.CrashPoint) if p != "before-acknowledgement"])
def test_a_killed_compaction_changes_no_row_and_the_next_one_finishes(tmp_path: Path, point: str) -> None:
    project, rows = project_with_updates(tmp_path)
    process = FORKS.Process(target=rewrite_and_crash, args=(str(tmp_path / "nevermore.yaml"), point))
    process.start()
    process.join()
    assert process.exitcode == storage.EXIT_CODE
    assert project.rows() == rows
    compact(project.table("shop.products"), EVERYTHING)
    assert project.rows() == rows
    assert len(scan_core.open_table(project.table("shop.products")).scan().plan().tasks) == 1
    project.land("later.jsonl", [event("u", product(7, "after")), event("d", product(8))])
    assert project.run().exit_code == 0
    assert {row["id"]: row["name"] for row in project.rows()} == (
        {row["id"]: row["name"] for row in rows if row["id"] != 8} | {7: "after"}
    )


@pytest.mark.each(6)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("point", [p for p in get_args(storage.CrashPoint) if p != "before-acknowledgement"])
def test_an_interrupted_compaction_removes_no_file_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, version: int
) -> None:
    project, rows = project_with_updates(tmp_path, format_version=version)

    def interrupt(here: str) -> None:
        if here == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compact(project.table("shop.products"), EVERYTHING)
    assert project.rows() == rows
    compact(project.table("shop.products"), EVERYTHING)
    assert project.rows() == rows


@pytest.mark.each(3)
@pytest.mark.parametrize("sort_by", [(), ("id",), ("name", "id")])
def test_a_table_with_uuids_is_compacted(tmp_path: Path, sort_by: tuple[str, ...]) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "types": {"id": "uuid"}}})
    ids = [f"0e4f5b86-2a4a-4c5e-9e2a-7d3f6a1b2c{n:02x}" for n in range(9)]
    for number in range(3):
        lines = [event("c", {"id": key, "name": f"{number}-{key[-2:]}"}) for key in ids[number * 3 : number * 3 + 3]]
        project.land(f"{number}.jsonl", [*lines, event("d", {"id": ids[0]})])
        project.run()
    rows = project.rows("shop.products", "name")
    assert len(rows) == 8
    compact(project.table("shop.products"), CompactSettings(rewrite_all=True, order=Order(sort_by)))
    assert project.rows("shop.products", "name") == rows


@pytest.mark.slow
def test_a_mirror_goes_on_after_a_compaction_and_its_log_too(tmp_path: Path) -> None:
    project, rows = project_with_updates(tmp_path)
    ordinal = project.table("shop.products").current_snapshot().summary[LOG_ORDINAL]
    for name in ("shop.products", "change_log.shop_products"):
        report = compact(project.table(name), EVERYTHING)
        assert report.files_after == 1
    assert project.table("shop.products").current_snapshot().summary[LOG_ORDINAL] == ordinal
    assert project.rows() == rows
    assert all(table.status == "nothing new" for table in project.run().tables)
    from nevermore.pipelines.maintain.replay import resync

    config = load(tmp_path / "nevermore.yaml")
    resync(open_catalog(config), config, "shop.products")
    assert project.rows() == rows


@pytest.mark.slow
def test_ingests_and_compactions_side_by_side(tmp_path: Path) -> None:
    project, _ = project_with_updates(tmp_path, commit_rows=3)
    expected = {row["id"]: row["name"] for row in project.rows()}
    for number in range(8):
        names = {i: f"{number}.{i}" for i in range(number, 60, 7)}
        project.land(f"n{number}.jsonl", [event("u", product(i, name)) for i, name in names.items()])
        expected |= names
    failures: list[BaseException] = []
    stop = threading.Event()

    def keep_compacting() -> None:
        try:
            while not stop.is_set():
                compact(project.table("shop.products"), EVERYTHING)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    beside = threading.Thread(target=keep_compacting)
    beside.start()
    try:
        report = project.run()
    finally:
        stop.set()
        beside.join()
    assert (failures, report.exit_code) == ([], 0)
    assert {row["id"]: row["name"] for row in project.rows()} == expected
    assert project.table("shop.products").metadata.snapshots


@pytest.mark.slow
def test_it_is_automatic_where_the_config_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, rows = project_with_updates(tmp_path, index={"bitmap": ["id"], "every_rows": 1})
    config = load(tmp_path / "nevermore.yaml")
    monkeypatch.setattr(module, "MIN_AUTO_SECONDS", 1.0)
    report = compact_mirror(config, "shop.products")
    assert report is not None
    assert report.files_before == 0  # what is lost is too little to matter
    monkeypatch.setattr(module, "MIN_AUTO_SECONDS", 0.0)
    report = compact_mirror(config, "shop.products")
    assert report is not None
    assert (report.files_before, report.files_after) == (10, 1)
    assert project.rows() == rows
    project.write({"shop.products": {"key": ["id"], "maintenance": {"compact": False}}})
    assert compact_mirror(load(tmp_path / "nevermore.yaml"), "shop.products") is None


@pytest.mark.slow
def test_logs_and_quarantines_are_compacted_with_their_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_AUTO_SECONDS", 0.0)
    monkeypatch.setattr(module, "MAX_TIME_SHARE", 1e9)
    project = Project(tmp_path)
    for number in range(12):
        changes = [event("u", product(key, f"v{number}"), before=product(key)) for key in range(3)]
        project.land(f"{number:02}.jsonl", [*changes, f"no json {number}"])
        project.run()
    config, rows = load(tmp_path / "nevermore.yaml"), project.rows()
    logged = project.rows("change_log.shop_products", "ordinal")
    done = {report.table: report for report in Upkeep(config).after_commits(["shop.products"])}
    assert set(done) == {"shop.products", "change_log.shop_products", "quarantine.shop_products"}
    assert all(report.files_after < report.files_before / 3 for report in done.values())
    assert (project.rows(), project.rows("change_log.shop_products", "ordinal")) == (rows, logged)
    project.land("99.jsonl", [event("d", product(1))])
    project.run()
    assert project.rows() == [row for row in rows if row["id"] != 1]
    for command in (["check"], ["resync", "shop.products"], ["check"]):
        with pytest.raises(SystemExit) as end:
            main([*command, "--config", str(tmp_path / "nevermore.yaml")])
        assert not end.value.code, command
    assert project.rows() == [row for row in rows if row["id"] != 1]


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_unasked_deletes_of_large_files_become_positions_and_the_files_stay(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 1 / 28e6)  # a file of 0.4 MB counts as one of 4 MB
    catalog = catalog_in(tmp_path)
    new_table(catalog, COLUMNS)
    if version == 3:
        upgrade(reloaded(catalog), 3)
    append(catalog, range(200_000))
    (large,) = files_of(catalog)[0]
    for number in range(30):
        upsert(catalog, range(100), f"v{number}")
    report = compacted(catalog, CompactSettings(is_automatic=True))
    assert report.deletes_converted == 30
    assert report.bytes_after < large.file_size_bytes // 10
    data, deletes = files_of(catalog)
    assert large.path in {file.path for file in data}
    assert len(data) <= 2
    assert not [path for path in deletes if "eq-deletes" in path]
    assert "30 delete files converted" in "".join(report.lines)
    assert not compacted(catalog, CompactSettings(is_automatic=True)).has_changed


def test_unasked_a_large_file_is_not_rewritten_with_every_few_small_ones() -> None:
    """Eight files of 40 MB are a full tier, but merging them saves too little; a bin with the last of them and small files seemed to pay."""
    files = [_sized(40_000_000, number) for number in range(8)] + [_sized(30_000, 8 + number) for number in range(150)]
    groups = choose_groups(files, PartitionSpec(0, ()), Costs(), CompactSettings(is_automatic=True))
    assert [sorted(debt.size for debt in group) for group in groups] == [[30_000] * 150]


def test_unasked_only_as_many_tiers_are_merged_as_are_needed() -> None:
    """Seven small files and seven medium ones, no full tier, beside one file: the small ones are enough."""
    sizes = [60_000_000] + [2_000_000] * 7 + [20_000] * 7
    files = [_sized(size, number) for number, size in enumerate(sizes)]
    groups = choose_groups(files, PartitionSpec(0, ()), Costs(0.006), CompactSettings(is_automatic=True))
    assert [sorted(debt.size for debt in group) for group in groups] == [[20_000] * 7]


def test_unasked_deletes_that_a_conversion_removes_are_no_reason_to_rewrite_files() -> None:
    by_key = [replace(_sized(300_000, number), delete_seconds=1.0, equality_seconds=1.0) for number in range(3)]
    settings = CompactSettings(is_automatic=True)
    assert choose_groups(by_key, PartitionSpec(0, ()), Costs(), settings) == []
    assert choose_groups(by_key, PartitionSpec(0, ()), Costs(), CompactSettings()) != []


def _sized(size: int, number: int) -> FileDebt:
    """A data file without deletes of so many bytes, by its number."""
    file = DataFile(
        path=str(number), format=FileFormat.PARQUET, spec_id=0, partition=(), record_count=100, file_size_bytes=size,
        data_sequence_number=number,
    )  # fmt: skip
    return FileDebt(FileScanTask(file, 0, size), 0, 0.0)


@pytest.mark.each(3)
@pytest.mark.parametrize("shape", year.UPDATED)
def test_what_is_rewritten_unasked_bounds_scans_and_bytes(shape: str) -> None:
    """A day of simulated commits, one a minute; `benchmarks/year.py` follows a whole year."""
    summary, points = year.follow(shape, 1_500)
    assert max(ratio for _, ratio, _ in points) <= 1.55, summary
    assert points[-1][2] <= 5, summary


def test_a_failure_does_not_stop_a_continuous_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, _ = project_with_updates(tmp_path)
    upkeep = module.Upkeep(load(tmp_path / "nevermore.yaml"))
    upkeep._began -= 1000
    monkeypatch.setattr(module, "compact", lambda *_: (_ for _ in ()).throw(PipelineError("disk on fire")))
    assert list(upkeep.after_commits(["shop.products"])) == [
        f"{name}: was not compacted: disk on fire" for name in ("shop.products", "change_log.shop_products")
    ]
    assert project.rows()
    upkeep._spent = 1000.0
    assert not list(upkeep.after_commits(["shop.products"]))


# Random histories


STEPS = st.one_of(
    st.tuples(st.just("upsert"), st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True)),
    st.tuples(
        st.just("compact"),
        st.sampled_from([EVERYTHING, CompactSettings(), CompactSettings(where="id < 10", rewrite_all=True)]),
    ),
    st.tuples(st.just("during"), st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)),
)


def check_steps(steps: list[tuple[str, Any]], folder: Path) -> None:
    """Any order of commits and compactions, some of which another commit overtakes."""
    catalog = catalog_in(folder)
    new_table(catalog, COLUMNS)
    expected: dict[int, str] = {}
    for number, (what, given_) in enumerate(steps):
        before = reloaded(catalog).metadata.current_snapshot_id
        if what == "compact":
            compact(reloaded(catalog), given_)
            if before is not None:
                assert scan_core.open_table(reloaded(catalog)).scan().changes(before).to_table().num_rows == 0
        elif what == "delete":
            upsert(catalog, [], deleted=given_)
            expected = {i: name for i, name in expected.items() if i not in given_}
        else:
            with pytest.MonkeyPatch.context() as patch:
                if what == "during":
                    between(patch, lambda ids=given_, n=number: upsert(catalog, ids, f"{n}-"))  # type: ignore[misc]
                    compact(reloaded(catalog), EVERYTHING)
                    if before is None:  # an empty table is not committed to
                        continue
                else:
                    upsert(catalog, given_, f"{number}-")
            expected |= {i: f"{number}-{i % 3}" for i in given_}
        assert {row["id"]: row["city"] for row in rows_of(reloaded(catalog))} == expected
        found = scan_core.open_table(reloaded(catalog)).scan().to_table()
        assert dict(zip(found["id"].to_pylist(), found["city"].to_pylist(), strict=True)) == expected
        assert found.num_rows == len(expected) == len(pc.unique(found["id"]))


quick = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@quick
@given(st.lists(STEPS, min_size=2, max_size=8))
def test_random_histories_with_compactions(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    check_steps(steps, tmp_path_factory.mktemp("history"))


@pytest.mark.slow
@settings(quick, max_examples=1000, derandomize=False, print_blob=True)
@given(st.lists(STEPS, min_size=2, max_size=12))
def test_many_random_histories_with_compactions(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    check_steps(steps, tmp_path_factory.mktemp("history"))
