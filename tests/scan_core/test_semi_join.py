"""Semi joins of a scan: exactly the rows with a key, and nothing read that no key can be in."""

import datetime as dt
import pickle
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.joins.given_keys import key_table
from nevermore.scan_core.model.errors import ColumnNotFoundError, OptionError
from nevermore.scan_core.semi_join import induced_ranges
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "day", "date")]
FIRST_DAY = dt.date(2026, 1, 1)


def rows(first: int, last: int) -> dict[str, list[Any]]:
    """Ids in order, a name and a day each."""
    ids = list(range(first, last))
    return {"id": ids, "name": [f"n{i}" for i in ids], "day": [FIRST_DAY + dt.timedelta(days=i // 10) for i in ids]}


@pytest.fixture
def builder(tmp_path: Path) -> TableBuilder:
    """Ids 0 to 499 in five files; a few are deleted by id, a few by name."""
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(*(table.data(rows(k * 100, k * 100 + 100)) for k in range(5)))
    table.commit(table.equality_delete({"id": [1, 3, 450]}, ids=[1]))
    table.commit(table.equality_delete({"name": ["n5", "n460"]}, ids=[2]))
    return table


@pytest.fixture
def scan(builder: TableBuilder) -> Scan:
    """All of it."""
    return scan_core.open_table(builder.metadata_path).scan()


def ids(scan: Scan) -> list[int]:
    """In order."""
    return sorted(scan.to_table()["id"].to_pylist())


@pytest.mark.parametrize(
    "keys",
    [
        [1, 2, 2, 450, 451, 999, None],
        pa.array([1, 2, 450, 451, None], pa.int16()),
        pa.chunked_array([[1, 2], [450, 451]], pa.uint64()),
        pa.table({"x": pa.array([2.0, 451.0, 2.5])}),
        pa.table({"other": ["x", "y"], "id": [2, 451]}),
        pa.record_batch({"id": [Decimal("2.00"), Decimal("451.00")]}),
        np.array([2, 451]),
        range(450, 452),
    ],
    ids=["list", "array", "chunked array", "table", "table with other columns", "batch", "NumPy", "range"],
)
def test_keys_of_every_form_leave_their_rows(scan: Scan, keys: Any) -> None:
    expected = [451] if isinstance(keys, range) else [2, 451]
    for options in (ScanOptions(), ScanOptions.without_optimisations()):
        joined = scan.with_options(options).semi_join("id", keys)
        assert ids(joined) == expected
        assert joined.count() == len(expected)


def test_keys_may_be_a_scan_and_joins_and_filters_add_up(scan: Scan) -> None:
    late = scan.where("id >= 440").select("id")
    assert ids(scan.semi_join("id", late).where("id < 455")) == [440, *range(441, 450), *range(451, 455)]
    both = scan.semi_join("id", late).semi_join("name", ["n2", "n444", "n450"])
    assert ids(both) == [444]
    assert both.aggregate(("count", "*"), ("max", "name")) == (1, "n444")
    assert ids(scan.semi_join("name", scan.where("id in (7, 460)"))) == [7]


def test_scans_with_joins_reach_other_processes(scan: Scan) -> None:
    joined = scan.semi_join("id", scan.where("id < 5")).prefilter("id", induced_ranges(scan.where("id < 3"), "id"))
    assert ids(joined) == ids(pickle.loads(pickle.dumps(joined)))  # noqa: S301  our own


def test_keys_of_a_scan_are_held_within_its_memory_limit(scan: Scan) -> None:
    small = scan.with_options(ScanOptions(memory_limit_bytes=24_000))
    assert scan.semi_join("id", small.select("id")).count() == scan.count()
    repeated = scan.with_options(ScanOptions(memory_limit_bytes=8_000)).select("day")
    assert scan.semi_join("day", repeated).count() == scan.count()
    tiny = scan.with_options(ScanOptions(memory_limit_bytes=1_000)).select("name")
    with pytest.raises(OptionError, match="the keys of a semi join on name take more than 125 bytes"):
        scan.semi_join("name", tiny).count()


def test_several_columns_match_together(scan: Scan) -> None:
    keys = [(2, "n2"), (3, "n3"), (6, "n7"), (None, "n8"), (9, None)]
    assert ids(scan.semi_join(["id", "name"], keys)) == [2]
    assert ids(scan.semi_join(["name", "day"], scan.where("id between 10 and 12"))) == [10, 11, 12]


def test_files_and_deletes_without_key_are_not_opened(builder: TableBuilder) -> None:
    builder.commit(builder.equality_delete({"id": [205, 209]}, ids=[1]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    DELETE_CACHE.clear()
    joined = scan.semi_join("id", [210, 211])
    assert ids(joined) == [210, 211]
    assert joined.metrics.data_files_pruned_by_runtime_filters == 4
    assert joined.metrics.delete_files_opened == 1, "that of ids 1 to 450, between which the keys are"
    assert "left out by the keys of the semi join on id: 1 (" in joined.explain().partition("delete files")[2]
    DELETE_CACHE.clear()
    nothing = scan.semi_join(["id", "name"], [(201, "n202"), (202, "n201")])
    assert nothing.count() == 0
    assert nothing.metrics.data_files_read == 1
    odd = scan.with_options(ScanOptions.of(prune_files=False)).semi_join("day", [dt.date(2030, 1, 1)])
    DELETE_CACHE.clear()
    assert odd.count() == 0
    assert (odd.metrics.row_groups_pruned_by_runtime_filters, odd.metrics.delete_files_opened) == (5, 0)


def test_delete_keys_that_no_row_has_are_not_indexed(builder: TableBuilder) -> None:
    names = [f"n{i}" for i in range(0, 500, 2)]
    builder.commit(builder.equality_delete({"name": names}, ids=[2]))
    scan = scan_core.open_table(builder.metadata_path).scan()
    DELETE_CACHE.clear()
    joined = scan.semi_join("name", ["n7", "n8", "n499"])
    assert ids(joined) == [7, 499]
    assert joined.metrics.delete_keys_left_out == len(names) + 2 - 1
    DELETE_CACHE.clear()
    nothing = scan.semi_join("name", ["n7", "n9"])
    assert ids(nothing) == [7, 9]
    assert scan.count() == len(ids(scan))


def test_rows_that_all_have_a_key_are_not_looked_up(scan: Scan) -> None:
    joined = scan.semi_join("id", list(range(-5, 600)))
    everything = scan.count()
    assert joined.count() == everything
    assert joined.metrics.rows_removed_by_runtime_filters == 0
    assert joined.metrics.bytes_read == scan.metrics.bytes_read, "the key is read for the deletes alone"


def test_no_keys_match_no_row(scan: Scan) -> None:
    for keys in ([], [None], pa.array([], pa.string()), pa.nulls(3)):
        assert scan.semi_join("name", keys).count() == 0
    assert scan.semi_join(["id", "name"], []).count() == 0


def test_time_travel_takes_the_keys_along(builder: TableBuilder, scan: Scan) -> None:
    first = builder.snapshots[0]["snapshot-id"]
    assert ids(scan.semi_join("id", [1, 2, 450]).as_of(first)) == [1, 2, 450]


@pytest.mark.parametrize(
    ("column", "transform", "stored"),
    [
        ("id", "bucket[64]", None),
        ("id", "truncate[50]", lambda i: i // 50 * 50),
        ("id", "identity", lambda i: i),
        ("name", "truncate[2]", lambda i: f"n{i}"[:2]),
        ("day", "day", lambda i: FIRST_DAY + dt.timedelta(days=i // 10)),
        ("day", "month", lambda i: 56 * 12 + (FIRST_DAY + dt.timedelta(days=i // 10)).month - 1),
    ],
)
def test_partitions_without_key_are_left_out_by_their_transform(
    tmp_path: Path, column: str, transform: str, stored: Callable[[int], Any] | None
) -> None:
    from nevermore.scan_core.model.schema import parse_type
    from nevermore.scan_core.model.transforms import parse_transform

    number = {c.name: c.id for c in COLUMNS}[column]
    table = TableBuilder(tmp_path / "t", COLUMNS, partitions=[Partition("p", number, transform)])
    files = []
    for i in range(0, 400, 25):
        part = rows(i, i + 1)
        value = stored(i) if stored else parse_transform(transform).apply(pa.array([i]), parse_type("long"))[0].as_py()
        files.append(table.data(part, partition={"p": value}, write_statistics=False))
    for file in files:
        file.record["lower_bounds"] = file.record["upper_bounds"] = None
    table.commit(*files)
    scan = scan_core.open_table(table.metadata_path).scan()
    for options in (ScanOptions(), ScanOptions.of(prune_files=False)):
        joined = scan.with_options(options).semi_join(column, [rows(375, 376)[column][0]])
        assert ids(joined) == [375]
        assert (joined.metrics.data_files_pruned_by_runtime_filters > 0) is options.switches.prune_files


def test_explain_and_metrics_tell_what_the_keys_did(scan: Scan) -> None:
    joined = scan.semi_join("id", [210, 211])
    text = joined.explain()
    assert "left out by the keys of the semi join on id: 4 (" in text
    assert "semi join on id: 2 distinct keys, id from 210 to 211, looked up in a table over close numbers" in text
    assert "expected to keep 2 % of the rows of the files left" in text
    assert "rows (exactly)" in text
    off = joined.with_options(ScanOptions.of(use_runtime_filters=False)).explain()
    assert "use_runtime_filters is off" in off


def test_mistakes_are_told(scan: Scan) -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean id"):
        scan.semi_join("idd", [1]).count()
    with pytest.raises(OptionError, match="keys of type string cannot be compared with column 'id' of type long"):
        scan.semi_join("id", ["1"]).count()
    with pytest.raises(OptionError, match="must be a list, an Arrow array or table, or a scan, not int"):
        scan.semi_join("id", 5)
    with pytest.raises(OptionError, match="not str"):
        scan.semi_join("name", "n1")
    with pytest.raises(OptionError, match="tuples of 2 values"):
        scan.semi_join(["id", "name"], [1, 2])
    with pytest.raises(OptionError, match="keys have 1 columns, but 2 are to be matched"):
        scan.semi_join(["id", "name"], pa.array([1]))
    with pytest.raises(OptionError, match="named twice"):
        scan.semi_join(["id", "id"], [(1, 1)]).count()
    with pytest.raises(OptionError, match="at least one column"):
        scan.semi_join([], [])
    with pytest.raises(OptionError, match="select its key columns"):
        scan.semi_join("nr", scan)
    with pytest.raises(OptionError, match="keys of column 'id'"):
        key_table([1, "a"], ["id"])


def test_uuids_come_as_objects_texts_and_bytes(tmp_path: Path) -> None:
    values = [uuid.UUID(int=i) for i in range(10)]
    table = TableBuilder(tmp_path / "t", [Column(1, "u", "uuid")])
    table.commit(table.data({"u": [v.bytes for v in values]}))
    scan = scan_core.open_table(table.metadata_path).scan()
    for keys in ([values[3]], [str(values[3]), "none"], [values[3].bytes], pa.array([values[3].bytes], pa.uuid())):
        assert scan.semi_join("u", keys).to_table()["u"].to_pylist() == [values[3]]


def test_members_of_structs_are_keys(tmp_path: Path) -> None:
    fields = [{"id": 3, "name": "city", "type": "string", "required": False}]
    table = TableBuilder(
        tmp_path / "t", [Column(1, "id", "long"), Column(2, "address", {"type": "struct", "fields": fields})]
    )
    table.commit(table.data({"id": [1, 2, 3], "address": [{"city": "Bonn"}, None, {"city": None}]}))
    scan = scan_core.open_table(table.metadata_path).scan()
    assert ids(scan.semi_join("address.city", ["Bonn", None])) == [1]
