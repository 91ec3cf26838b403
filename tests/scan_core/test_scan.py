import datetime as dt
import pickle
import threading
import uuid
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scan_core
from scan_core import (
    ColumnNotFoundError,
    EvaluationError,
    MalformedTableError,
    OptionError,
    Scan,
    ScanOptions,
    SnapshotNotFoundError,
    UnsupportedError,
    col,
)
from scan_core.read import conjunct_order
from tests.iceberg_json import Column, Partition, list_of, struct
from tests.table_builder import BuiltFile, TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "qty", "int"))


def rows_of(scan: Scan) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in scan.to_table().to_pylist()), key=repr)


def scan_of(table: TableBuilder, **options: Any) -> Scan:
    return scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions(**options))


def rows(ids: range | list[int]) -> dict[str, list[Any]]:
    return {"id": list(ids), "name": [f"n{i % 3}" for i in ids], "qty": [i % 5 for i in ids]}


def with_deletes(path: Path, **options: Any) -> tuple[TableBuilder, BuiltFile]:
    """Rows 0..9; 2 dies by position, 4 and 5 by key, 5 is written again."""
    table = TableBuilder(path, COLUMNS, **options)
    first = table.data(rows(range(10)))
    table.commit(first)
    table.commit(table.position_delete([(first, 2)]))
    table.commit(table.data(rows([5])), table.equality_delete({"id": [4, 5]}, ids=[1]))
    return table, first


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
    assert scan.limit(100).count() == 8
    assert scan.limit(3).limit(5).row_limit == 3
    assert scan.limit(0).to_table().num_rows == 0
    with pytest.raises(OptionError, match="-1"):
        scan.limit(-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_limit_bytes": "1GB"}, "memory_limit_bytes must be a whole number, not '1GB'"),
        ({"parallelism": 2.5}, "parallelism must be a whole number, not 2.5"),
        ({"keep_order": "no"}, "keep_order must be True or False, not 'no'"),
    ],
)
def test_option_of_the_wrong_type_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ScanOptions(**options)


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


def test_metadata_columns_tell_where_a_row_lies(tmp_path: Path) -> None:
    table, first = with_deletes(tmp_path)
    scan = scan_of(table).select("id", "_file", "_pos", "_spec_id", "_partition").where("id < 4")
    assert scan.to_table().to_pylist() == [
        {"id": i, "_file": first.path, "_pos": i, "_spec_id": 0, "_partition": {}} for i in (0, 1, 3)
    ]
    assert rows_of(scan_of(table).select("id").where(f"_file = '{first.path}' and _pos >= 8")) == [(8,), (9,)]


def test_metadata_columns_give_partitions_of_every_spec(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("qty", 3)])
    table.commit(table.data(rows([1]), partition={"qty": 1}))
    table.repartition(Partition("b", 1, "bucket[4]"))
    table.commit(table.data(rows([2]), partition={"b": 3}))
    scan = scan_of(table).select("id", "_partition", "_spec_id")
    assert sorted(scan.to_table().to_pylist(), key=lambda r: r["id"]) == [
        {"id": 1, "_partition": {"b": None, "qty": 1}, "_spec_id": 0},
        {"id": 2, "_partition": {"b": 3, "qty": None}, "_spec_id": 1},
    ]
    assert rows_of(scan_of(table).select("id").where("_partition.b = 3")) == [(2,)]


def test_rule_21_row_ids_follow_positions_and_stored_ones_win(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    first = table.data(rows(range(4)))
    table.commit(first)
    lineage = (
        *COLUMNS,
        Column(2147483540, "_row_id", "long"),
        Column(2147483539, "_last_updated_sequence_number", "long"),
    )
    moved = {**rows([10, 11]), "_row_id": [77, None], "_last_updated_sequence_number": [None, 1]}
    table.commit(table.data(moved, columns=lineage), table.deletion_vector(first, [1]))
    scan = scan_of(table).select("id", "_row_id", "_last_updated_sequence_number", "_pos")
    assert rows_of(scan) == sorted([(0, 0, 1, 0), (2, 2, 1, 2), (3, 3, 1, 3), (10, 77, 2, 0), (11, 5, 1, 1)], key=repr)
    assert rows_of(scan_of(table).select("id").where("_row_id = 5")) == [(11,)]


def test_dead_rows_are_flagged_with_the_delete_file_that_removed_them(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data = table.data(rows(range(6)))
    table.commit(data)
    by_position = table.position_delete([(data, 2)])
    table.commit(by_position)
    by_key = table.equality_delete({"id": [4, 2]}, ids=[1])
    table.commit(by_key)
    later = table.equality_delete({"id": [4]}, ids=[1])
    table.commit(later)
    scan = scan_of(table).select("id", "_deleted", "_delete_file")
    by_id = {r["id"]: (r["_deleted"], r["_delete_file"]) for r in scan.to_table().to_pylist()}
    alive = (False, None)
    assert by_id == {0: alive, 1: alive, 2: (True, by_position.path), 3: alive, 4: (True, by_key.path), 5: alive}
    assert scan.count() == 6
    assert rows_of(scan_of(table).select("id").where("_deleted")) == [(2,), (4,)]
    assert rows_of(scan_of(table).select("id", "_deleted").where("id > 3")) == [(4, True), (5, False)]


def test_table_column_wins_over_metadata_column_of_its_name(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "_pos", "string")])
    table.commit(table.data({"_pos": ["mine"]}))
    assert scan_of(table).select("_pos").to_table().to_pylist() == [{"_pos": "mine"}]


def test_uuids_are_arrow_uuids_at_every_depth(tmp_path: Path) -> None:
    value = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    columns = (Column(1, "u", "uuid"), Column(2, "f", "fixed[16]"), Column(3, "s", struct(Column(4, "x", "uuid"))))
    table = TableBuilder(tmp_path, columns)
    stored = pa.table(
        {
            "u": pa.array([value.bytes], pa.binary(16)),
            "f": pa.array([value.bytes], pa.binary(16)),
            "s": pa.array([{"x": value.bytes}], pa.struct([("x", pa.binary(16))])),
        }
    )
    table.commit(table.data(stored))
    scan = scan_of(table)
    assert scan.to_table().to_pylist() == [{"u": value, "f": value.bytes, "s": {"x": value}}]
    assert scan.arrow_schema.field("u").type == pa.uuid()
    assert scan.to_table().schema == scan.arrow_schema


@pytest.mark.parametrize("kind", ["variant", "geometry", "geography"])
def test_unsupported_types_are_named_and_other_columns_readable(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path, [Column(1, "id", "long")], version=3)
    table.commit(table.data({"id": [1, 2]}))
    document = table.document()
    document["schemas"][0]["fields"].append({"id": 2, "name": "odd", "type": kind, "required": False})
    table.metadata_path.write_text(__import__("json").dumps(document))
    scan = scan_of(table)
    with pytest.raises(UnsupportedError, match=rf"column 'odd': type {kind} is not supported; select others \(id\)"):
        scan.to_table()
    assert rows_of(scan.select("id")) == [(1,), (2,)]
    assert scan.select("id").count() == 2


def test_name_mapping_reads_files_without_ids(tmp_path: Path) -> None:
    mapping = '[{"field-id": 1, "names": ["old_id"]}, {"field-id": 2, "names": ["name"]}]'
    table = TableBuilder(tmp_path, COLUMNS, properties={"schema.name-mapping.default": mapping})
    stored = pa.table({"old_id": [1, 2], "name": ["a", "b"]})
    named = (Column(1, "old_id", "long"), Column(2, "name", "string"))
    table.commit(table.data(stored, columns=named, field_ids=False))
    table.commit(table.equality_delete({"id": [1]}, ids=[1]))
    assert rows_of(scan_of(table)) == [(2, "b", None)]


def test_rule_16_migrated_partition_column_and_defaults(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3, partitions=[Partition("qty", 3)])
    table.commit(table.data({"id": [1], "name": ["a"]}, partition={"qty": 7}))
    table.evolve(*COLUMNS, Column(4, "added", "string", required=True, initial_default="x"))
    assert rows_of(scan_of(table)) == [(1, "a", 7, "x")]
    assert scan_of(table).where("qty = 7 and added = 'x'").count() == 1
    assert scan_of(table).where("qty = 8").count() == 0


def test_deletes_by_a_key_that_a_file_lacks_use_its_constant(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data({"id": [1, 2], "name": ["a", "b"]}))
    table.commit(table.equality_delete({"qty": [None]}, ids=[3]))
    assert scan_of(table).count() == 0


def test_rule_13_keys_and_predicates_of_promoted_columns(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "id", "int"), Column(2, "day", "date")], version=3)
    table.commit(table.data({"id": [1, 2], "day": [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]}))
    promoted = (Column(1, "id", "long"), Column(2, "day", "timestamp"))
    table.evolve(*promoted)
    table.commit(table.equality_delete({"id": [2**32 + 1, 2]}, ids=[1]))
    assert rows_of(scan_of(table)) == [(1, dt.datetime(2020, 1, 1))]  # noqa: DTZ001
    assert scan_of(table).where("day >= timestamp_ntz '2020-01-01 00:00:00' and id = 1").count() == 1


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


def many_row_groups(path: Path) -> TableBuilder:
    table = TableBuilder(path, COLUMNS)
    first = table.data(rows(range(4000)), row_group_size=500, write_page_index=True, data_page_size=256)
    table.commit(first)
    table.commit(
        table.equality_delete({"id": list(range(0, 4000, 3))}, ids=[1]),
        table.equality_delete({"name": ["n1"], "qty": [2]}, ids=[2, 3]),
        table.position_delete([(first, p) for p in range(700, 2100)]),
    )
    return table


EXPECTED = [
    i for i in range(4000) if i % 3 and not (i % 3 == 1 and i % 5 == 2) and not 700 <= i < 2100 and i % 5 > 0 and i > 90
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parallelism": 5, "split_bytes": 1},
        {"lazy_columns": False},
        {"prune_row_groups": False, "prune_deletes": False, "prune_pages": False},
        {"adaptive_order": False, "batch_rows": 7},
    ],
    ids=str,
)
def test_options_change_no_row(tmp_path: Path, options: dict[str, Any]) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table, **options).where("qty > 0").where("id > 90")
    assert sorted(scan.to_table().column("id").to_pylist()) == EXPECTED
    assert scan.count() == len(EXPECTED)
    plain = scan.with_options(ScanOptions.without_optimisations())
    assert rows_of(plain) == rows_of(scan)


def test_every_order_of_filters_and_delete_sets_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many_row_groups(tmp_path)
    for order in permutations(range(4)):

        def permuted(_: Any, steps: Any, order: tuple[int, ...] = order) -> list[int]:
            return [i for i in order if i < len(steps)]

        monkeypatch.setattr(conjunct_order.ConjunctOrder, "order", permuted)
        scan = scan_of(table, prune_row_groups=False, prune_deletes=False).where("qty > 0").where("id > 90")
        assert sorted(scan.to_table().column("id").to_pylist()) == EXPECTED


@pytest.mark.parametrize("parallelism", [1, 3])
def test_metrics_add_up_over_splits(tmp_path: Path, parallelism: int) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table, split_bytes=1, parallelism=parallelism).where("qty > 0")
    num_rows = scan.to_table().num_rows
    found = scan.metrics
    assert found.rows_out == num_rows
    assert found.rows_in_files == 4000
    assert found.rows_in_files - num_rows == (
        found.rows_removed_by_position_deletes + found.rows_removed_by_equality_deletes + found.rows_removed_by_filter
    )
    assert found.rows_removed_by_position_deletes == 1400
    assert found.data_files_read == 1
    assert found.row_groups_read + found.row_groups_pruned == 8
    assert found.delete_indexes_built <= 2
    assert found.bytes_read > 0


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table).where("id = 3998")
    assert scan.count() == 1
    assert scan.metrics.row_groups_read == 1
    assert scan.metrics.row_groups_pruned == 7


def test_payload_of_row_groups_without_survivors_is_not_read(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    values = {"id": list(range(1000)), "name": [f"{i:0500d}" for i in range(1000)], "qty": [0] * 1000}
    table.commit(table.data(values, row_group_size=100, compression="none", use_dictionary=False))
    table.commit(table.equality_delete({"id": list(range(1, 1000, 2))}, ids=[1]))
    all_columns, needle = scan_of(table, prune_row_groups=False), scan_of(table, prune_row_groups=False).where("id = 8")
    all_columns.to_table()
    assert needle.to_table().num_rows == 1
    assert needle.metrics.bytes_read < all_columns.metrics.bytes_read / 5
    assert needle.metrics.bytes_read + needle.metrics.bytes_skipped == all_columns.metrics.bytes_read


def test_row_group_beyond_the_size_the_manifest_states_is_read(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    file = table.data(rows(range(1000)), row_group_size=100)
    file.record["file_size_in_bytes"] //= 3
    table.commit(file)
    assert scan_of(table).count() == scan_of(table, split_bytes=1).to_table().num_rows == 1000


def test_missing_required_column_and_truncated_files_name_the_file(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "a", COLUMNS)
    table.commit(table.data({"id": [1]}))
    table.evolve(*COLUMNS[:2], Column(9, "must", "string", required=True))
    with pytest.raises(MalformedTableError, match=r"00001-data\.parquet: lacks the required column 'must'"):
        scan_of(table).to_table()
    other = TableBuilder(tmp_path / "b", COLUMNS)
    file = other.data(rows(range(100)))
    other.commit(file)
    file.local.write_bytes(file.local.read_bytes()[:-20])
    with pytest.raises(MalformedTableError, match=r"data\.parquet"):
        scan_of(other).count()


def test_missing_data_file_is_named_and_stops_all_threads(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    files = [table.data(rows(range(100 * i, 100 * i + 100))) for i in range(6)]
    table.commit(*files)
    files[3].local.unlink()
    with pytest.raises(scan_core.MissingFileError, match=files[3].local.name):
        scan_of(table, parallelism=4, split_bytes=1).to_table()
    assert not [t for t in threading.enumerate() if t.name.startswith("scan-")]


def test_closing_batches_early_leaves_no_thread(tmp_path: Path) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table, parallelism=4, split_bytes=1, batch_rows=10)
    batches = scan.to_batches()
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("scan-")]
    assert scan.metrics.rows_out > 0


def test_untouched_row_groups_are_not_copied(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "v", "double")])
    table.commit(table.data({"v": np.arange(5000) / 2}))
    batches = list(scan_of(table, batch_rows=1000).to_batches())
    addresses = {b.column(0).buffers()[1].address for b in batches}
    assert len(batches) == 5
    assert len(addresses) == 1


def test_explain_tells_what_will_be_read(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    text = scan_of(table).where("id > 3").explain()
    assert "id > 3" in text


def test_filters_are_evaluated_in_their_own_shape_unless_cnf_is_asked_for(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "qty", "long")])
    table.commit(table.data({"id": [1, 2, 3, 4], "qty": [10, 20, 30, 40]}))
    scan = scan_core.open_table(table.metadata_path).scan().where("id = 1 and qty = 10 or id = 4 and qty = 40")
    multiplied = scan.with_options(ScanOptions(normalize="cnf"))
    assert scan.count() == multiplied.count() == 2
    assert "id = 1 and qty = 10 or id = 4 and qty = 40" in scan.explain()
    assert "      id in (1, 4)\n" in multiplied.explain()
    with pytest.raises(OptionError, match="normalize must be compact or cnf, not 'dnf'"):
        ScanOptions(normalize="dnf")  # type: ignore[arg-type]
