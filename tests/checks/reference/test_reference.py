"""The oracle itself is right: on every fixture table, and on built tables rule by rule."""

import decimal
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.checks.reference.candidates import read_file
from nevermore.checks.reference.expected_rows import RefusedError, fold_changes, live_rows
from nevermore.checks.reference.facts import TableFacts
from tests.support.fixture_tables import fixture_tables, snapshots
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.rendering import differences
from tests.support.table_builder import BuiltFile, TableBuilder

ID_NAME = [Column(1, "id", "long"), Column(2, "name", "string")]


@pytest.mark.each(9)
@pytest.mark.parametrize(("name", "snapshot"), snapshots())
def test_reference_reads_fixture_snapshot_as_expected(shared_dir: Path, name: str, snapshot: str) -> None:
    table = fixture_tables()[name]
    rows = live_rows(table.metadata, snapshot_id=int(snapshot), relocate=table.relocate)
    assert rows.column_names == table.columns(snapshot)
    assert differences(rows, table.facts["rows_by_snapshot"][snapshot]) == []


def test_reference_reads_refs_of_fixture_with_branches(shared_dir: Path) -> None:
    table = fixture_tables()["branch_tag"]
    for ref, snapshot in table.facts["refs"].items():
        rows = live_rows(table.metadata, ref=ref, relocate=table.relocate)
        assert differences(rows, table.facts["rows_by_snapshot"][snapshot]) == []


def test_reference_gives_row_lineage_of_v3_fixture(shared_dir: Path) -> None:
    table = fixture_tables()["v3_dv_and_eq"]
    columns = ["id", "_row_id", "_last_updated_sequence_number"]
    rows = live_rows(table.metadata, columns=columns, relocate=table.relocate)
    assert differences(rows, table.facts["row_lineage"]) == []


def ids(rows: pa.Table) -> list[int | None]:
    return sorted(rows.column("id").to_pylist(), key=lambda v: (v is None, v))


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    return TableBuilder(tmp_path / "t", ID_NAME)


def two_rows(table: TableBuilder, **options: Any) -> BuiltFile:
    return table.data({"id": [1, 2], "name": ["a", "b"]}, **options)


def test_rule_01_reference_spares_rows_of_the_deleting_commit(table: TableBuilder) -> None:
    table.commit(two_rows(table))
    table.commit(table.data({"id": [1], "name": ["new"]}), table.equality_delete({"id": [1]}, ids=[1]))
    assert live_rows(table.metadata_path).sort_by("id").to_pylist() == [
        {"id": 1, "name": "new"},
        {"id": 2, "name": "b"},
    ]


def test_rule_02_reference_applies_position_deletes_of_the_same_commit(table: TableBuilder) -> None:
    data = two_rows(table)
    table.commit(data, table.position_delete([(data, 0)]))
    assert ids(live_rows(table.metadata_path)) == [2]


def test_rule_03_reference_takes_explicit_older_sequence_number(table: TableBuilder) -> None:
    table.commit(two_rows(table))
    table.commit(table.equality_delete({"id": [1]}, ids=[1]))
    old = table.data({"id": [1, 3], "name": ["a", "c"]})
    old.sequence_number = 1
    table.commit(old)
    assert ids(live_rows(table.metadata_path)) == [2, 3]


def test_rule_03_reference_refuses_existing_entry_without_sequence_number(table: TableBuilder) -> None:
    data = two_rows(table)
    data.status = 0
    table.commit(data)
    with pytest.raises(RefusedError, match="no sequence number"):
        live_rows(table.metadata_path)


def test_rule_04_reference_applies_scoped_delete_in_its_partition_and_global_one_everywhere(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", ID_NAME, partitions=[Partition("name", 2)])
    for name in ("a", "b"):
        rows = {"id": [1, 2], "name": [name] * 2}
        table.commit(table.data(rows, partition={"name": name}))
    table.commit(table.equality_delete({"id": [1]}, ids=[1], partition={"name": "a"}))
    assert ids(live_rows(table.metadata_path)) == [1, 2, 2]
    void = table.repartition(Partition("name", 2, "void"))
    table.commit(table.equality_delete({"id": [2]}, ids=[1], spec_id=void, partition={"name": None}))
    assert ids(live_rows(table.metadata_path)) == [1]


def test_rule_06_reference_lets_vector_replace_position_delete_files(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", ID_NAME, version=3)
    data = two_rows(table)
    table.commit(data, table.position_delete([(data, 0)]))
    table.commit(table.deletion_vector(data, [1]))
    assert ids(live_rows(table.metadata_path)) == [1]


@pytest.mark.parametrize("damage", ["two", "older", "crc", "magic", "count"])
def test_rule_06_reference_refuses_malformed_vectors(tmp_path: Path, damage: str) -> None:
    table = TableBuilder(tmp_path / "t", ID_NAME, version=3)
    data = two_rows(table)
    vector = table.deletion_vector(data, [1])
    files = [data, vector]
    if damage == "two":
        files.append(table.deletion_vector(data, [0]))
    elif damage == "older":
        data.sequence_number = 5
    elif damage == "count":
        vector.record["record_count"] = 2
    else:
        raw = bytearray(vector.local.read_bytes())
        at = vector.record["content_offset"] + (4 if damage == "magic" else vector.record["content_size_in_bytes"] - 1)
        raw[at] ^= 0xFF
        vector.local.write_bytes(raw)
    table.commit(*files)
    with pytest.raises(RefusedError):
        live_rows(table.metadata_path)


@pytest.mark.parametrize(
    ("named", "left"), [("/warehouse/t", 1), ("hdfs:/warehouse/t", 1), ("s3://bucket/warehouse/t", 2)]
)
def test_rule_07_reference_matches_positions_across_missing_scheme(tmp_path: Path, named: str, left: int) -> None:
    written = "hdfs://host:8020/warehouse/t"
    table = TableBuilder(tmp_path / "t", ID_NAME, written_location=written)
    data = two_rows(table)
    table.commit(data, table.position_delete([(data.path.replace(written, named), 0)], partition={}))
    relocate = {written: str(tmp_path / "t")}
    assert live_rows(table.metadata_path, relocate=relocate).num_rows == left
    assert scan_core.open_table(table.metadata_path, relocate=relocate).scan().count() == left


@pytest.mark.parametrize("ids_given", [None, [], [2], [9]])
def test_rule_11_reference_refuses_wrong_equality_ids(table: TableBuilder, ids_given: list[int] | None) -> None:
    table.commit(two_rows(table))
    table.commit(table.equality_delete({"id": [1]}, ids=ids_given))
    with pytest.raises(RefusedError):
        live_rows(table.metadata_path)


def test_rule_08_reference_ignores_malformed_delete_that_meets_no_file(table: TableBuilder) -> None:
    table.commit(table.equality_delete({"id": [1]}, ids=None), two_rows(table))
    assert ids(live_rows(table.metadata_path)) == [1, 2]


def test_rule_09_reference_null_equals_null_and_nothing_else(table: TableBuilder) -> None:
    table.commit(table.data({"id": [1, None, 3], "name": ["a", None, None]}))
    table.commit(table.equality_delete({"id": [1, 3], "name": [None, None]}, ids=[1, 2]))
    assert ids(live_rows(table.metadata_path)) == [1, None]


def test_rule_11_reference_takes_null_struct_as_null_key(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "s", struct(Column(3, "a", "int")))])
    table.commit(table.data({"id": [1, 2, 3], "s": [None, {"a": None}, {"a": 1}]}))
    table.commit(table.equality_delete({"s": [{"a": None}]}, ids=[3]))
    assert ids(live_rows(table.metadata_path)) == [3]


def test_rule_12_reference_matches_floats_as_java_does(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long"), Column(2, "x", "double")])
    table.commit(table.data({"id": [1, 2, 3, 4], "x": [0.0, -0.0, float("nan"), None]}))
    table.commit(table.equality_delete({"x": [-0.0, float("nan")]}, ids=[2]))
    assert ids(live_rows(table.metadata_path)) == [1, 4]


def test_rule_13_14_reference_compares_promoted_and_dropped_keys(table: TableBuilder) -> None:
    table.schemas[0] = (Column(1, "id", "int"), Column(2, "name", "string"))
    table.commit(two_rows(table))
    table.evolve(Column(1, "key", "long"), Column(3, "name", "string"))
    table.commit(table.data({"key": [2**32 + 1, 5], "name": ["x", "y"]}))
    old = [Column(1, "id", "int"), Column(2, "name", "string")]
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=old))
    assert sorted(live_rows(table.metadata_path).column("key").to_pylist()) == [2, 5, 2**32 + 1]
    table.commit(table.equality_delete({"name": ["b"]}, ids=[2], columns=old))
    assert sorted(live_rows(table.metadata_path).column("key").to_pylist()) == [5, 2**32 + 1]


def test_rule_16_reference_projects_missing_columns(tmp_path: Path) -> None:
    columns = [Column(1, "id", "long"), Column(2, "cat", "string"), Column(3, "n", "int", initial_default=7)]
    table = TableBuilder(tmp_path / "t", columns, version=3, partitions=[Partition("cat", 2)])
    table.commit(table.data({"id": [1]}, partition={"cat": "it's"}))
    assert live_rows(table.metadata_path).to_pylist() == [{"id": 1, "cat": "it's", "n": 7}]


def test_rule_16_reference_uses_name_mapping_for_files_without_ids(tmp_path: Path) -> None:
    mapping = json.dumps([{"field-id": 1, "names": ["old_id"]}, {"field-id": 2, "names": ["name", "nm"]}])
    table = TableBuilder(tmp_path / "t", ID_NAME, properties={"schema.name-mapping.default": mapping})
    columns = [Column(1, "old_id", "long"), Column(2, "nm", "string")]
    table.commit(table.data({"old_id": [1], "nm": ["a"]}, columns=columns, field_ids=False))
    assert live_rows(table.metadata_path).to_pylist() == [{"id": 1, "name": "a"}]


def test_rule_22_reference_reads_snapshot_in_its_own_schema(table: TableBuilder) -> None:
    first = table.commit(two_rows(table))
    table.evolve(Column(1, "key", "long"))
    assert live_rows(table.metadata_path, snapshot_id=first).column_names == ["id", "name"]
    assert live_rows(table.metadata_path).column_names == ["key"]


def test_rule_23_reference_reads_v1_inline_and_empty_tables(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", ID_NAME, version=1)
    assert live_rows(table.metadata_path).num_rows == 0
    table.commit(two_rows(table), table.data({"id": [], "name": []}), inline_manifests=True)
    assert ids(live_rows(table.metadata_path)) == [1, 2]


def test_reference_reads_avro_types_that_are_named_once(tmp_path: Path) -> None:
    price = {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    fields = [{"name": "a", "type": ["null", price]}, {"name": "b", "type": ["null", "decimal_9_2"]}]
    schema = {"type": "record", "name": "row", "fields": fields}
    row = {"a": decimal.Decimal("1.50"), "b": decimal.Decimal("-0.01")}
    with (tmp_path / "rows.avro").open("wb") as out:
        fastavro.writer(out, schema, [row])
    assert read_file((tmp_path / "rows.avro").read_bytes(), "rows.avro", "avro").to_pylist() == [row]


def test_reference_takes_file_uris_literally_as_hadoop_does(tmp_path: Path) -> None:
    table = TableFacts(tmp_path, {}, ())
    assert table.local("file:/t/at=10%3A00/f.orc") == table.local("file:///t/at=10%3A00/f.orc") == "/t/at=10%3A00/f.orc"


ROW = pa.struct([("id", pa.int64()), ("a", pa.string()), ("big", pa.string())])
KEY = pa.struct([("id", pa.int64())])


def changes(*events: Any) -> pa.Table:
    """Changes of (op, old key, after as (id, a, big), unchanged columns...)."""
    ops, keys, afters, unchanged = [], [], [], []
    for op, key, after, *rest in events:
        ops.append(op)
        keys.append(None if key is None else {"id": key})
        afters.append(None if after is None else dict(zip(("id", "a", "big"), after, strict=True)))
        unchanged.append(rest)
    return pa.table(
        {
            "ordinal": pa.array(range(len(ops)), pa.int64()),
            "op": ops,
            "key": pa.array(keys, KEY),
            "after": pa.array(afters, ROW),
            "unchanged": pa.array(unchanged, pa.list_(pa.string())),
        }
    )


def folded(*events: Any) -> tuple[list[Any], list[Any]]:
    found = fold_changes(changes(*events), ["id"])
    rows = sorted(tuple(r.values()) for r in found.rows.to_pylist())
    return rows, sorted(r["id"] for r in found.deleted_keys.to_pylist())


def test_rule_26_fold_keeps_the_last_change_of_each_key() -> None:
    rows, gone = folded(("c", 1, (1, "x", "b")), ("u", 1, (1, "y", "c")), ("c", 2, (2, "z", "d")), ("d", 2, None))
    assert (rows, gone) == ([(1, "y", "c")], [2])


def test_rule_26_fold_takes_unchanged_column_across_key_changes() -> None:
    rows, gone = folded(
        ("c", 1, (1, "x", "kept")),
        ("u", 1, (1, "y", None), "big"),
        ("u", 1, (2, "z", None), "big"),
        ("u", 2, (2, "w", None), "big"),
    )
    assert (rows, gone) == ([(2, "w", "kept")], [1])


def test_rule_26_fold_ignores_unchanged_column_of_a_row_that_is_gone() -> None:
    rows, gone = folded(
        ("c", 1, (1, "x", "lost")), ("d", 1, None), ("u", 1, (1, "y", None), "big"), ("u", 7, (8, "q", None), "big")
    )
    assert (rows, gone) == ([], [1])


def test_rule_28_fold_reuses_the_old_key_and_truncates_only_what_came_before() -> None:
    rows, gone = folded(
        ("c", 1, (1, "x", "")),
        ("t", None, None),
        ("c", 2, (2, "y", "")),
        ("u", 2, (3, "y", "")),
        ("c", 2, (2, "n", "")),
    )
    assert (rows, gone) == ([(2, "n", ""), (3, "y", "")], [1])


def test_rule_28_fold_without_a_key_counts_equal_rows() -> None:
    events = changes(
        ("d", 1, None),
        ("c", None, (1, "x", "b")),
        ("c", None, (1, "x", "b")),
        ("c", None, (2, "y", None)),
        ("d", 1, None),
    )
    whole = pa.array([{"id": 1, "a": "x", "big": "b"} if op == "d" else None for op in events["op"].to_pylist()], ROW)
    found = fold_changes(events.set_column(events.schema.get_field_index("key"), "key", whole), [])
    assert sorted(tuple(r.values()) for r in found.rows.to_pylist()) == [(1, "x", "b"), (2, "y", None)]
