"""Manifests: inheritance, formats v1 to v3, and entries that break the specification."""

from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nevermore.scan_core import MalformedTableError
from nevermore.scan_core.io import cache
from nevermore.scan_core.metadata.manifests import read_data_manifests
from nevermore.scan_core.model.snapshot import DeleteContent, FileFormat
from tests.scan_core.current_manifests import COLUMNS, IO, current, data_files, delete_files, rows
from tests.support.agreed_rows import rows_of
from tests.support.avro_edit import rewrite_avro
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import EXISTING, TableBuilder

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    return TableBuilder(tmp_path, COLUMNS)


def test_everything_an_entry_says_is_kept(table: TableBuilder) -> None:
    data = table.data(rows())
    data.record["split_offsets"] = [4, 99]
    data.record["key_metadata"] = b"k"
    table.commit(data)
    (file,) = data_files(table)
    assert file.path == data.path
    assert file.format is FileFormat.PARQUET
    assert file.record_count == 2
    assert file.file_size_bytes == data.local.stat().st_size
    assert file.lower_bounds[1] == b"\0" * 8
    assert file.upper_bounds[2] == b"n1"
    assert file.value_counts == {1: 2, 2: 2}
    assert file.null_value_counts[2] == 0
    assert file.split_offsets == (4, 99)
    assert file.is_encrypted


def test_delete_files_keep_their_keys_and_references(table: TableBuilder) -> None:
    data = table.data(rows())
    table.commit(data)
    table.commit(table.equality_delete(rows(1), ids=[2, 1]), table.position_delete([(data, 0)], referenced=data))
    equality, position = sorted(delete_files(table), key=lambda f: f.content.value, reverse=True)
    assert equality.content is DeleteContent.EQUALITY
    assert equality.equality_ids == (2, 1)
    assert position.content is DeleteContent.POSITION
    assert position.referenced_data_file == data.path
    assert not position.is_deletion_vector


def test_deletion_vectors_keep_offset_and_size(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    data = table.data(rows())
    table.commit(data)
    vector = table.deletion_vector(data, [1])
    table.commit(vector)
    (file,) = delete_files(table)
    assert file.is_deletion_vector
    assert (file.content_offset, file.content_size_bytes) == (
        vector.record["content_offset"],
        vector.record["content_size_in_bytes"],
    )


def test_rule_03_added_entries_inherit_and_explicit_numbers_stay(table: TableBuilder) -> None:
    table.commit(table.data(rows()))
    compacted = table.data(rows())
    compacted.sequence_number = 1
    table.commit(compacted, table.data(rows()))
    assert sorted((f.data_sequence_number, f.file_sequence_number) for f in data_files(table)) == [
        (1, 1),
        (1, 1),
        (2, 2),
    ]


def test_rule_03_existing_entries_keep_their_numbers(table: TableBuilder) -> None:
    kept, gone = table.data(rows()), table.data(rows())
    table.commit(kept, gone)
    table.commit(remove=[gone])
    (file,) = data_files(table)
    assert (file.path, file.data_sequence_number) == (kept.path, 1)


def test_rule_03_null_under_manifest_number_zero_is_zero_at_any_status(table: TableBuilder) -> None:
    file = table.data(rows())
    file.status = EXISTING
    table.commit(file)
    snapshot = table.snapshots[-1]
    rewrite_avro(snapshot["manifest-list"], lambda found, _: found[0].update(sequence_number=0, min_sequence_number=0))
    assert data_files(table)[0].data_sequence_number == 0


@pytest.mark.parametrize("options", [{}, {"inline_manifests": True}])
def test_rule_03_and_23_v1_manifests_have_number_zero(tmp_path: Path, options: dict[str, Any]) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=1, partitions=[Partition("name", 2, "identity")])
    table.commit(table.data(rows(), partition={"name": "a"}), **options)
    (file,) = data_files(table)
    assert file.data_sequence_number == 0
    assert file.partition == ("a",)


def test_rule_21_null_first_row_ids_inherit_in_order_existing_ones_too(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    table.commit(table.data(rows(3)), table.data(rows(4)), table.data(rows(5)))
    assert [f.first_row_id for f in data_files(table)] == [0, 3, 7]
    _, manifests = current(table)

    def edit(found: list[Any], _: Any) -> None:
        found[0]["data_file"]["first_row_id"] = 100
        found[1].update(status=EXISTING, sequence_number=1)

    rewrite_avro(manifests[0].path, edit)
    assert [f.first_row_id for f in data_files(table)] == [100, 0, 4]


def test_rule_21_before_the_upgrade_there_are_no_row_ids(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    table.commit(table.data(rows()))
    rewrite_avro(table.snapshots[-1]["manifest-list"], lambda found, _: found[0].update(first_row_id=None))
    assert data_files(table)[0].first_row_id is None


def test_manifests_without_key_value_metadata_take_spec_and_content_from_the_list(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("b", 1, "bucket[4]")], manifest_metadata=False)
    data = table.data(rows(), partition={"b": 3})
    table.commit(data, table.equality_delete(rows(1), ids=[1], partition={"b": 3}))
    assert data_files(table)[0].partition == (3,)
    assert delete_files(table)[0].partition == (3,)


def without_ids(schema: Any) -> None:
    if isinstance(schema, dict):
        schema.pop("field-id", None)
        for value in schema.values():
            without_ids(value)
    elif isinstance(schema, list):
        for value in schema:
            without_ids(value)


def test_manifests_without_field_ids_are_read_by_name(table: TableBuilder) -> None:
    table.commit(table.data(rows()))
    _, manifests = current(table)
    before = data_files(table)
    rewrite_avro(manifests[0].path, lambda _, schema: without_ids(schema))
    rewrite_avro(table.snapshots[-1]["manifest-list"], lambda _, schema: without_ids(schema))
    assert data_files(table) == before


def test_deleted_entries_are_not_live(table: TableBuilder) -> None:
    gone = table.data(rows())
    table.commit(gone, table.data(rows()))
    table.commit(remove=[gone])
    assert gone.path not in {f.path for f in data_files(table)}


def test_rule_23_a_snapshot_without_manifests_is_empty(table: TableBuilder) -> None:
    table.commit()
    assert data_files(table) == []


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("string", "x", "x"),
        ("boolean", True, True),
        ("int", 5, 5),
        ("date", 19_000, 19_000),
        ("timestamp", 10**15, 10**15),
        ("binary", b"\0\1", b"\0\1"),
        ("string", None, None),
    ],
)
def test_partition_values_are_decoded_by_type(tmp_path: Path, kind: str, value: Any, stored: Any) -> None:
    table = TableBuilder(tmp_path, [Column(1, "k", kind)], partitions=[Partition("k", 1, "identity")])
    table.commit(table.data({"k": []}, partition={"k": value}))
    assert data_files(table)[0].partition == (stored,)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("decimal(9,2)", Decimal("1.50"), Decimal("-0.05")),
        ("uuid", UUID(int=1), UUID(int=2)),
        ("fixed[2]", b"ab", b"cd"),
    ],
)
def test_partition_fields_of_a_type_named_once(tmp_path: Path, kind: str, first: Any, second: Any) -> None:
    columns = [Column(1, "a", kind), Column(2, "b", kind)]
    table = TableBuilder(tmp_path, columns, partitions=[Partition("a", 1), Partition("b", 2)])
    table.commit(table.data({"a": [first], "b": [second]}, partition={"a": first, "b": second}))
    _, manifests = current(table)

    def name_again(_: list[Any], schema: dict[str, Any]) -> None:
        record = next(f["type"] for f in schema["fields"] if f["name"] == "data_file")
        fields = next(f["type"]["fields"] for f in record["fields"] if f["name"] == "partition")
        fields[1]["type"] = ["null", fields[0]["type"][1]["name"]]

    before = data_files(table)[0].partition
    rewrite_avro(manifests[0].path, name_again)
    assert data_files(table)[0].partition == before
    assert rows_of(table) == [(first, second)]


def test_equal_partitions_are_one_object(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("name", 2, "identity")])
    table.commit(*[table.data(rows(), partition={"name": "same"}) for _ in range(3)])
    assert len({id(f.partition) for f in data_files(table)}) == 1


def test_manifests_are_cached_by_path_and_content(table: TableBuilder) -> None:
    table.commit(table.data(rows()))
    cache.clear()
    metadata, manifests = current(table)
    (first,) = read_data_manifests(manifests, metadata, IO)
    assert read_data_manifests(manifests, metadata, IO)[0] is first
    assert cache.total_bytes() > 0


def test_the_cache_is_bounded_and_forgets_the_least_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 100)
    loads: list[str] = []

    def get(key: str, size: int) -> str:
        def load() -> tuple[str, int]:
            loads.append(key)
            return key, size

        return cache.cached(key, load)

    for key in ("a", "b", "a", "c", "a", "b"):
        get(key, 40)
    assert loads == ["a", "b", "c", "b"]
    assert cache.total_bytes() <= 100
    get("huge", 1000)
    assert cache.total_bytes() <= 100
    cache.clear()


def _without_partition(_: list[Any], schema: dict[str, Any]) -> None:
    file = next(f for f in schema["fields"] if f["name"] == "data_file")["type"]
    file["fields"] = [f for f in file["fields"] if f["name"] != "partition"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_of_unpartitioned_tables_need_no_partition_struct(tmp_path: Path, version: int) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=version)
    table.commit(table.data(rows(3)))
    if version > 1:
        table.commit(table.equality_delete(rows(1), ids=[1]))
    for manifest in current(table)[1]:
        rewrite_avro(manifest.path, _without_partition)
    assert {file.partition for file in (*data_files(table), *delete_files(table))} == {()}
    assert [row[0] for row in rows_of(table)] == ([0, 1, 2] if version == 1 else [1, 2])


def test_manifests_of_partitioned_tables_need_one(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("name", 2)])
    table.commit(table.data(rows(1), partition={"name": "n0"}))
    rewrite_avro(current(table)[1][0].path, _without_partition)
    with pytest.raises(MalformedTableError, match=r"lacks the field partition \(102\), but spec 0 has fields"):
        data_files(table)
