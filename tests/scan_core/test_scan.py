""""""

import datetime as dt
import pickle
import threading
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import (
    ColumnNotFoundError,
    EvaluationError,
    OptionError,
    Scan,
    ScanError,
    SnapshotNotFoundError,
    col,
)
from nevermore.scan_core.expr.nodes import call, lit
from tests.scan_core.small_scans import COLUMNS, many_row_groups, rows, rows_of, scan_of, with_deletes
from tests.support.iceberg_json import Column, list_of, struct
from tests.support.table_builder import TableBuilder


def test_columns_are_selected_in_the_order_asked(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table).select("qty", "id")
    assert scan.arrow_schema == pa.schema([("qty", pa.int32()), ("id", pa.int64())])
    assert scan.to_table().schema == scan.arrow_schema
    assert rows_of(scan) == sorted([(i % 5, i) for i in [0, 1, 3, 5, 6, 7, 8, 9]], key=repr)


def test_rule_15_key_column_is_neither_needed_nor_returned(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    assert scan_of(table).select("name").to_table().column_names == ["name"]
    assert scan_of(table).select("name").count() == 8


def test_scan_of_no_columns_still_counts_rows(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    assert scan_of(table).select().to_table().num_rows == 8


@pytest.mark.parametrize("name", ["idd", "ID"])
def test_unknown_column_names_the_nearest(tmp_path: Path, name: str) -> None:
    table, _ = with_deletes(tmp_path)
    with pytest.raises(ColumnNotFoundError, match="id"):
        _ = scan_of(table).select(name).schema
    with pytest.raises(ColumnNotFoundError, match="selected twice"):
        scan_of(table).select("id", "id").to_table()


def test_select_takes_a_list_of_names(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    assert scan_of(table).select(["qty", "id"]).arrow_schema.names == ["qty", "id"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda scan: scan.select("idd"), "no column 'idd'"),
        (lambda scan: scan.select("id", "id"), "selected twice"),
        (lambda scan: scan.select(5), "names of columns, not 5 of type int"),
        (lambda scan: scan.select(["id", 5]), "names of columns"),
        (lambda scan: scan.where(5), "not 5 of type int"),
        (lambda scan: scan.where(True), "not True of type bool"),
        (lambda scan: scan.where("idd = 1"), "no column 'idd'"),
        (lambda scan: scan.where("id ="), "syntax error"),
        (lambda scan: scan.where(col("idd") == 1), "no column 'idd'"),
    ],
)
def test_mistakes_fail_where_they_are_made(tmp_path: Path, wrong: Callable[[Scan], Scan], message: str) -> None:
    table, _ = with_deletes(tmp_path)
    with pytest.raises(ScanError, match=message):
        wrong(scan_of(table))


def test_expressions_name_what_they_take() -> None:
    for make, message in (
        (lambda: col(5), "col takes the name of a column, not 5 of type int"),  # type: ignore[arg-type]
        (lambda: call(5), "call takes the name of a function, not 5 of type int"),  # type: ignore[arg-type]
        (lambda: lit([1]), "of type list cannot be used in a filter"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=message):
            make()


def test_columns_of_an_older_schema_may_be_named_before_the_snapshot(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path, [Column(1, "id", "long"), Column(2, "old", "int")])
    first = builder.commit(builder.data({"id": [1, 2], "old": [3, 4]}))
    builder.evolve(Column(1, "id", "long"), Column(3, "new", "int"))
    builder.commit(builder.data({"id": [5], "new": [6]}))
    scan = scan_core.open_table(builder.metadata_path).scan()
    assert rows_of(scan.select("old").where("old > 3").as_of_snapshot(first)) == [(4,)]
    with pytest.raises(ColumnNotFoundError, match="old"):
        scan.select("old").to_table()


def test_a_scan_prints_as_what_it_asks_for(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    text = repr(scan_of(table).select("id").where("qty > 1").limit(3))
    assert text.endswith("columns=['id'], where=qty > 1, row_limit=3)")
    assert len(text) < len(str(tmp_path)) + 150


def test_names_match_without_case_if_asked(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table, case_sensitive=False).select("ID").where("QTY = 1")
    assert rows_of(scan) == [(1,), (6,)]


def test_filters_are_combined_and_may_be_objects(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table).select("id").where("id > 2").where(col("qty") < 2)
    assert rows_of(scan) == [(5,), (6,)]
    assert scan.count() == 2


def test_limit_cuts_rows_and_counts(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table)
    assert scan.limit(3).to_table().num_rows == 3
    assert scan.limit(3).count() == 3
    assert scan.limit(10**20).to_table().num_rows == scan.limit(10**20).count() == scan.count()
    assert scan.limit(100).count() == 8
    assert scan.limit(3).limit(5).row_limit == 3
    assert scan.limit(0).to_table().num_rows == 0
    for limit in (0, 3, 100):
        for run in (scan.limit(limit), scan.changes(None).limit(limit)):
            assert run.to_table().num_rows == run.metrics.rows_out == min(limit, 8)
            assert run.count() == run.metrics.rows_out == min(limit, 8)
    with pytest.raises(OptionError, match="-1"):
        scan.limit(-1)


def test_scans_are_immutable_and_splits_pickle(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    scan = scan_of(table)
    narrowed = scan.where("id = 1").select("id")
    assert scan.count() == 8
    assert narrowed.count() == 1
    for split in narrowed.plan().splits():
        assert pickle.loads(pickle.dumps(split)) == split  # noqa: S301


@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
def test_batches_are_bounded_and_never_empty(tmp_path: Path, batch_rows: int) -> None:
    table, _ = with_deletes(tmp_path)
    sizes = [b.num_rows for b in scan_of(table, batch_rows=batch_rows).to_batches()]
    assert sum(sizes) == 8
    assert min(sizes) > 0
    assert max(sizes) <= batch_rows


def test_rule_22_time_travel_by_id_time_and_ref(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS[:1])
    first = table.commit(table.data({"id": [1]}), timestamp_ms=1_700_000_000_000)
    table.evolve(*COLUMNS[:2])
    table.commit(table.data({"id": [2], "name": ["b"]}), timestamp_ms=1_700_000_100_000)
    table.ref("old", first, "tag")
    table.ref("side", first)
    scan = scan_core.open_table(table.metadata_path).scan()
    at = dt.datetime.fromtimestamp(1_700_000_050, tz=dt.UTC)
    for past in (scan.as_of(first), scan.as_of(at), scan.as_of(1_700_000_050_000), scan.as_of_time(at.isoformat())):
        assert past.to_table().to_pylist() == [{"id": 1}]
    assert scan.at_ref("old").to_table().to_pylist() == [{"id": 1}]
    assert scan.at_ref("side").to_table().to_pylist() == [{"id": 1, "name": None}]
    assert scan.as_of(first).at_ref("main").count() == 2
    with pytest.raises(SnapshotNotFoundError):
        scan.as_of(77).count()
    with pytest.raises(SnapshotNotFoundError, match="is no time"):
        scan.as_of_time("yesterday")


def test_rule_23_empty_tables_have_the_right_schema(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "a", COLUMNS)
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.count() == 0
    assert scan.to_table().schema == scan.arrow_schema
    dead = TableBuilder(tmp_path / "b", COLUMNS)
    dead.commit(dead.data(rows(range(3))), dead.data(rows([])))
    dead.commit(dead.equality_delete({"id": [0, 1, 2]}, ids=[1]))
    scan = scan_core.open_table(dead.metadata_path).scan()
    assert scan.to_table().num_rows == scan.count() == 0


def test_rule_19_count_reads_footers_unless_told_to_trust_the_manifest(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    lying, deleted = table.data(rows(range(10))), table.data(rows(range(100, 110)))
    lying.record["record_count"] = deleted.record["record_count"] = 1
    table.commit(lying, deleted)
    table.commit(table.equality_delete({"id": [103]}, ids=[1]))
    assert scan_of(table).count() == 19
    assert scan_of(table).to_table().num_rows == 19
    trusting = scan_of(table, trust_record_counts=True)
    assert trusting.count() == 1 + 9
    assert trusting.where("id >= 0").count() == 19


def test_struct_members_filter_and_delete(tmp_path: Path) -> None:
    columns = (
        Column(1, "id", "long"),
        Column(2, "s", struct(Column(3, "a", "int"), Column(4, "b", list_of(5, "int")))),
    )
    table = TableBuilder(tmp_path, columns)
    values = [{"a": 1, "b": [1]}, None, {"a": None, "b": None}, {"a": 4, "b": []}]
    table.commit(table.data({"id": [0, 1, 2, 3], "s": values}))
    table.commit(table.equality_delete({"s": [{"a": 4, "b": None}]}, ids=[3]))
    assert rows_of(scan_of(table).select("id").where("s.a = 1")) == [(0,)]
    assert rows_of(scan_of(table).select("id").where("s.a is null")) == [(1,), (2,)]
    table.commit(table.equality_delete({"s": [None]}, ids=[3]))
    assert rows_of(scan_of(table).select("id")) == [(0,)]


def test_failing_expression_spares_rows_that_other_filters_or_deletes_drop(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    for conjuncts in permutations(["10 / qty > 2", "qty <> 0", "id < 9"]):
        scan = scan_of(table).select("id")
        for conjunct in conjuncts:
            scan = scan.where(conjunct)
        assert rows_of(scan) == [(1,), (3,), (6,), (7,), (8,)]
    with pytest.raises(EvaluationError, match="qty"):
        scan_of(table).where("10 / qty > 2").count()
    table.commit(table.equality_delete({"qty": [0]}, ids=[3]))
    assert rows_of(scan_of(table).select("id").where("10 / qty > 2")) == [(1,), (3,), (6,), (7,), (8,), (9,)]


def test_row_group_beyond_the_size_the_manifest_states_is_read(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    file = table.data(rows(range(1000)), row_group_size=100)
    file.record["file_size_in_bytes"] //= 3
    table.commit(file)
    assert scan_of(table).count() == scan_of(table, split_bytes=1).to_table().num_rows == 1000


def test_closing_batches_early_leaves_no_thread(tmp_path: Path) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table, parallelism=4, split_bytes=1, batch_rows=10)
    batches = scan.to_batches()
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("scan-")]
    assert scan.metrics.rows_out > 0
    assert scan.metrics.bytes_read > 0
