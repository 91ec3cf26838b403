import json
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.pipelines.errors import CommitConflictError, ConfigError, SourceError
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, PuffinWriter, build_indexes
from nevermore.pipelines.iceberg.commit import RowDelta, commit, everything
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.scan_core.bitmaps.column_index import BLOB_TYPE, DATA_FILE, PuffinBlob, read_footer
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.schema import arrow_type, parse_type
from tests.pipelines.iceberg_tables import catalog_in, new_table, reloaded
from tests.support.bitmap_indexes import PathTarget, bitmaps_for_nothing, index_columns
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

THETA = PuffinBlob("apache-datasketches-theta-v1", (1,), 1001, 1, 0, 0, None, {"ndv": "3"})


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return catalog_in(tmp_path)


@pytest.fixture
def table(catalog: Any) -> Any:
    return new_table(catalog, {"id": "long", "city": "string", "x": "double"})


def append(table: Any, ids: list[int], cities: list[str | None]) -> None:
    delta = RowDelta(table)
    rows = pa.table({"id": ids, "city": pa.array(cities, pa.string()), "x": [float(i) for i in ids]})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {})


def count(table: Any, where: str) -> tuple[int, int]:
    """Rows, and indexes used."""
    scan = scan_core.open_table(table).scan().where(where)
    with bitmaps_for_nothing():
        return scan.count(), scan.metrics.bitmap_indexes_used


def blobs_of(report: Any) -> list[PuffinBlob]:
    return list(read_footer(report.path, FileIOConfig()).blobs)


def test_index_is_registered_and_pyiceberg_still_opens_the_table(catalog: Any, table: Any) -> None:
    append(table, [1, 2, 3], ["a", "b", "a"])
    report = build_indexes(CatalogTarget(table), ["city", "id"])
    assert (report.built, report.kept, report.skipped) == (2, 0, ())
    known = reloaded(catalog)
    (entry,) = known.metadata.statistics
    assert entry.snapshot_id == report.snapshot_id == known.metadata.current_snapshot_id
    path = Path(entry.statistics_path.removeprefix("file://"))
    assert path.stat().st_size == entry.file_size_in_bytes == report.size_bytes
    assert read_footer(str(path), FileIOConfig()).num_bytes == entry.file_footer_size_in_bytes
    assert [p.name for p in path.parent.glob("*.puffin")] == [path.name]
    assert count(known, "city = 'a'") == (2, 1)
    append(known, [4], ["a"])
    assert count(reloaded(catalog), "city = 'a'") == (3, 1)


@pytest.mark.parametrize("can_swap", [True, False])
def test_indexes_are_never_registered_over_those_of_another_writer(
    catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch, *, can_swap: bool
) -> None:
    append(table, [1, 2], ["a", "b"])
    if not can_swap:
        monkeypatch.setattr("nevermore.pipelines.iceberg.commit.can_swap", lambda _: False)
    report = build_indexes(CatalogTarget(table), ["city"])
    (entry,) = reloaded(catalog).metadata.statistics
    assert entry.statistics_path == report.path
    stale = scan_core.open_table(reloaded(catalog))
    build_indexes(CatalogTarget(reloaded(catalog)), ["id"])
    with pytest.raises(CommitConflictError, match="changed the statistics"):
        CatalogTarget(reloaded(catalog)).set_statistics(stale, {"snapshot-id": report.snapshot_id})
    assert count(reloaded(catalog), "city = 'a' and id = 1") == (1, 2)


def test_second_run_builds_what_is_missing_and_carries_what_is_alive(catalog: Any, table: Any) -> None:
    append(table, [1, 2], ["a", "b"])
    build_indexes(CatalogTarget(table), ["city"])
    append(reloaded(catalog), [3], ["a"])
    report = build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
    assert (report.built, report.kept, report.data_files) == (1, 1, 2)
    assert len({blob.properties[DATA_FILE] for blob in blobs_of(report)}) == 2
    assert count(reloaded(catalog), "city = 'a'") == (2, 2)
    again = build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
    assert (again.path, again.built, again.kept) == (None, 0, 2)
    assert [s.statistics_path for s in reloaded(catalog).metadata.statistics] == [
        report.path
    ]  # a copy is in the new file


def test_large_files_of_indexes_stay_and_those_of_gone_files_are_removed(
    catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nevermore.pipelines.iceberg.bitmap_indexes._ALWAYS_COPIED_BYTES", 0)
    append(table, list(range(500)), ["a", "b", "c", "d", None] * 100)
    first = build_indexes(CatalogTarget(table), ["city"])
    append(reloaded(catalog), [500], ["a"])
    second = build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
    assert (second.built, second.kept, len(blobs_of(second))) == (1, 1, 1)
    assert {s.statistics_path for s in reloaded(catalog).metadata.statistics} == {first.path, second.path}
    assert count(reloaded(catalog), "city = 'a'") == (101, 2)
    delta = RowDelta(reloaded(catalog))
    rows = pa.table({"id": [1, 2], "city": ["a", "b"], "x": [1.0, 2.0]})
    delta.commit(write_rows(rows, delta.target, delta.default_spec), {}, remove=everything)
    third = build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
    assert (third.built, third.kept) == (1, 0)
    assert [s.statistics_path for s in reloaded(catalog).metadata.statistics] == [third.path]
    assert not Path(str(first.path).removeprefix("file://")).exists()


def test_unsuitable_file_is_not_read_again_before_the_limit_is_larger(
    catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, list(range(50)), ["a"] * 50)
    first = build_indexes(CatalogTarget(table), ["id"], max_values=10)
    assert (first.built, [s.reason for s in first.skipped]) == (0, ["more than 10 distinct values"])
    with monkeypatch.context() as patch:
        patch.setattr(
            "nevermore.pipelines.iceberg.bitmap_indexes.column_batches", lambda *_: pytest.fail("was read again")
        )
        again = build_indexes(CatalogTarget(reloaded(catalog)), ["id"], max_values=10)
    assert (again.path, again.skipped) == (None, first.skipped)
    assert build_indexes(CatalogTarget(reloaded(catalog)), ["id"], max_values=50).built == 1
    assert count(reloaded(catalog), "id = 7") == (1, 1)


def test_indexes_outlive_their_snapshots_and_are_carried_on(catalog: Any, table: Any) -> None:
    append(table, [1, 2], ["a", "b"])
    build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
    for number in (3, 4):
        append(reloaded(catalog), [number], ["a"])
    now = reloaded(catalog)
    older = [s.snapshot_id for s in now.metadata.snapshots[:-1]]
    commit(now, [], [{"action": "remove-snapshots", "snapshot-ids": older}])
    assert len(reloaded(catalog).metadata.snapshots) == 1
    assert count(reloaded(catalog), "city = 'a'") == (3, 1)
    report = build_indexes(CatalogTarget(reloaded(catalog)), ["city"])
    assert (report.built, report.kept) == (2, 1)
    (entry,) = reloaded(catalog).metadata.statistics
    assert entry.snapshot_id == reloaded(catalog).metadata.current_snapshot_id
    assert count(reloaded(catalog), "city = 'a'") == (3, 3)


def test_damaged_file_is_built_anew(catalog: Any, table: Any) -> None:
    append(table, [1, 2], ["a", "b"])
    path = build_indexes(CatalogTarget(reloaded(catalog)), ["city"]).path
    assert path is not None
    Path(path.removeprefix("file://")).write_bytes(b"PFA1 no index")
    assert build_indexes(CatalogTarget(reloaded(catalog)), ["city"]).built == 1
    assert count(reloaded(catalog), "city = 'a'") == (1, 1)


def test_statistics_of_other_engines_are_kept(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    table.commit(table.data({"id": [1, 1, 2]}))
    foreign = tmp_path / "t" / "metadata" / "by-spark.stats"
    with PuffinWriter(str(foreign), Storage()) as writer:
        writer.write_blob(THETA, [b"sketch"])
        writer.close({})
    listed = {"type": THETA.type, "snapshot-id": 1001, "sequence-number": 1, "fields": [1], "properties": {"ndv": "3"}}
    entry = {
        "snapshot-id": 1001,
        "statistics-path": str(foreign),
        "file-size-in-bytes": writer.size_bytes,
        "file-footer-size-in-bytes": writer.footer_size_bytes,
        "blob-metadata": [listed],
    }
    table.edit(lambda document: document.update(statistics=[entry]))
    report = index_columns(tmp_path / "t", ["id"])
    theta, bitmap = blobs_of(report)
    assert (theta.type, theta.properties, bitmap.type) == (THETA.type, {"ndv": "3"}, BLOB_TYPE)
    assert Path(str(report.path)).read_bytes()[theta.offset : theta.offset + theta.length] == b"sketch"
    (registered,) = scan_core.open_table(tmp_path / "t").metadata.statistics
    assert registered["blob-metadata"] == [listed]
    assert registered["statistics-path"] == report.path


def test_file_with_too_many_values_is_left_out_and_reported(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "city", "string")])
    table.commit(
        table.data({"id": list(range(50)), "city": ["a"] * 50}), table.data({"id": [1] * 50, "city": ["a", "b"] * 25})
    )
    report = index_columns(tmp_path / "t", ["id", "city"], max_values=10)
    (skipped,) = report.skipped
    assert (skipped.column, skipped.reason) == ("id", "more than 10 distinct values")
    assert report.built == 3


def test_lists_rows_and_nulls_are_counted_as_they_are(tmp_path: Path) -> None:
    columns = [Column(1, "t", {"type": "list", "element-id": 2, "element": "int", "element-required": False})]
    table = TableBuilder(tmp_path / "t", columns)
    table.commit(table.data({"t": [[1, 1, 2], [], None, [None, 2]]}, row_group_size=2))
    (blob,) = blobs_of(index_columns(tmp_path / "t", ["t"]))
    assert blob.properties["distinct-values"] == "2"
    assert blob.properties["is-list"] == "true"


def test_conflicting_writer_is_merged_with_at_the_next_attempt(
    catalog: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, [1, 2], ["a", "b"])
    target = CatalogTarget(table)
    original = CatalogTarget.set_statistics
    interfered: list[str] = []

    def interfere(self: CatalogTarget, base: Any, entry: Any, superseded: Any) -> None:
        if not interfered:
            interfered.append(entry["statistics-path"])
            build_indexes(CatalogTarget(reloaded(catalog)), ["id"])
        original(self, base, entry, superseded)

    monkeypatch.setattr(CatalogTarget, "set_statistics", interfere)
    report = build_indexes(target, ["city"])
    assert (report.built, report.kept) == (0, 2)
    assert not Path(interfered[0].removeprefix("file://")).exists()
    assert count(reloaded(catalog), "city = 'a' and id = 1") == (1, 2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["x"], "of type list<double> cannot have a bitmap index"),
        (["m.value"], "is inside a list or map"),
        ([], "choose the columns"),
    ],
)
def test_columns_that_cannot_be_indexed_are_named(tmp_path: Path, columns: list[str], message: str) -> None:
    mapping = {
        "type": "map", "key-id": 3, "key": "string", "value-id": 4, "value": "int", "value-required": False,
    }  # fmt: skip
    doubles = {"type": "list", "element-id": 5, "element": "double", "element-required": False}
    table = TableBuilder(tmp_path / "t", [Column(1, "x", doubles), Column(2, "m", mapping)])
    table.commit(table.data({"x": [[1.0]]}))
    with pytest.raises((ConfigError, scan_core.ColumnNotFoundError), match=message):
        index_columns(tmp_path / "t", columns)


def test_table_without_snapshots_has_nothing_to_index(table: Any) -> None:
    with pytest.raises(SourceError, match="has no snapshot"):
        build_indexes(CatalogTarget(table), ["city"])


@pytest.mark.parametrize("is_statistics", [False, True])
def test_indexes_and_deletion_vectors_never_lie_in_one_file(tmp_path: Path, *, is_statistics: bool) -> None:
    """Readers of deletion vectors take every blob of their file for one; even where its writer calls it statistics."""
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "city", "string")], version=3)
    first = builder.data({"id": [1, 2, 3], "city": ["a", "b", "a"]})
    second = builder.data({"id": [4, 5, 6], "city": ["a", "b", "c"]})
    builder.commit(first, second)
    vectors = builder.deletion_vectors({first: [0], second: [1, 2]})
    builder.commit(*vectors)
    vector_files = {Path(vector.path.removeprefix("file://")) for vector in vectors}
    before = {path: path.read_bytes() for path in vector_files}
    if is_statistics:
        target = PathTarget(str(builder.location))
        table = target.load()
        (path,) = vector_files
        entry = {
            "snapshot-id": table.metadata.current_snapshot_id,
            "statistics-path": str(path),
            "file-size-in-bytes": path.stat().st_size,
            "file-footer-size-in-bytes": read_footer(str(path), FileIOConfig()).num_bytes,
            "blob-metadata": [],
        }
        target.set_statistics(table, entry)
    for columns in (["id"], ["id", "city"]):
        assert index_columns(builder.location, columns).built == 2
        kinds = {
            path: {blob.type for blob in read_footer(str(path), FileIOConfig()).blobs}
            for path in builder.location.rglob("*.puffin")
        }
        assert vector_files < kinds.keys()
        for path, found in kinds.items():
            assert found == {"deletion-vector-v1" if path in vector_files else BLOB_TYPE}
    assert {path: path.read_bytes() for path in vector_files} == before
    scan = scan_core.open_table(builder.location).scan()
    with bitmaps_for_nothing():
        assert sorted(scan.where("city = 'a'").to_table()["id"].to_pylist()) == [3, 4]


NUMBERS = [0.0, -0.0, math.nan, struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0], math.inf, 1.5, None]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_floating_point_numbers_are_told_apart_by_their_bytes_and_compared_as_values(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "x", kind)])
    table.commit(table.data({"id": list(range(14)), "x": NUMBERS * 2}, row_group_size=5))
    (blob,) = blobs_of(index_columns(tmp_path / "t", ["x"]))
    assert int(blob.properties["distinct-values"]) in {5, 6}  # 32 bits lose the payload of a NaN
    conditions = {
        "x = 0": [0, 1, 7, 8],
        "x in (-0.0D, 1.5)": [0, 1, 5, 7, 8, 12],
        "x = double('NaN')": [2, 3, 9, 10],
        "x > 1.5": [2, 3, 4, 9, 10, 11],
        "x <> 0": [2, 3, 4, 5, 9, 10, 11, 12],
        "not (x < 2)": [2, 3, 4, 9, 10, 11],
        "x is null": [6, 13],
    }
    for where, wanted in conditions.items():
        scan = scan_core.open_table(str(tmp_path / "t")).scan().where(where).select("id")
        with bitmaps_for_nothing():
            assert scan.to_table()["id"].to_pylist() == wanted, where
        assert scan.metrics.bitmap_indexes_used == 1
        without = scan.with_options(scan_core.ScanOptions.of(use_bitmap_indexes=False))
        assert without.to_table()["id"].to_pylist() == wanted, where


@pytest.mark.parametrize(
    ("before", "now", "values", "where"),
    [
        ("float", "double", [0.1, 1.5, None, -0.0], "x = 1.5 or x = 0"),
        ("decimal(9, 2)", "decimal(38, 2)", [Decimal("1.50"), Decimal("-0.01"), None, Decimal(0)], "x = 1.5 or x = 0"),
    ],
)
def test_index_of_a_column_serves_its_promoted_type(
    tmp_path: Path, before: str, now: str, values: list[Any], where: str
) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "x", before)])
    table.commit(table.data({"id": [0, 1, 2, 3], "x": values}))
    path = index_columns(tmp_path / "t", ["x"]).path
    document = json.loads(Path(scan_core.open_table(str(tmp_path / "t")).metadata_path).read_text())
    document["schemas"][-1]["fields"][1]["type"] = now
    newest = Path(scan_core.open_table(str(tmp_path / "t")).metadata_path)
    newest.write_text(json.dumps(document))
    assert path is not None
    scan = scan_core.open_table(str(newest)).scan().where(where).select("id")
    with bitmaps_for_nothing():
        assert len(scan.to_table()) == 2
    assert (scan.metrics.bitmap_indexes_used, scan.metrics.bitmap_indexes_refused) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "values", "keys"),
    [
        ("double", [0.0, -0.0, math.nan, 1.5, None], [0.0, 1.5]),
        ("double", [0.0, -0.0, math.nan, 1.5, None], [-0.0]),
        ("double", [0.0, -0.0, math.nan, 1.5, None], [math.nan, 1.5]),
        ("float", [0.0, -0.0, math.nan, 1.5, None], [-0.0, 1.5]),
        (
            "decimal(9, 2)",
            [Decimal("0.00"), Decimal("-1.50"), Decimal("1.50"), None],
            [Decimal("1.50"), Decimal("0.00")],
        ),
        ("decimal(30, 4)", [Decimal("0.0000"), Decimal(10) ** 25, None], [Decimal(10) ** 25]),
    ],
)
def test_semi_joins_match_the_same_rows_with_an_index(
    tmp_path: Path, kind: str, values: list[Any], keys: list[Any]
) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "x", kind)])
    table.commit(table.data({"id": list(range(len(values))), "x": values}))
    index_columns(tmp_path / "t", ["x"])
    scan = scan_core.open_table(str(tmp_path / "t")).scan().select("id")
    wanted = [i for i, v in enumerate(values) if v is not None and any(v == k or (v != v and k != k) for k in keys)]  # noqa: PLR0124
    for options in (scan_core.ScanOptions(), scan_core.ScanOptions.of(use_bitmap_indexes=False)):
        joined = scan.with_options(options).semi_join(
            ["x"], pa.table({"x": pa.array(keys, arrow_type(parse_type(kind)))})
        )
        with bitmaps_for_nothing():
            assert joined.to_table()["id"].to_pylist() == wanted
