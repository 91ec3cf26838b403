"""Table metadata of all format versions, time travel, and documents that break the specification."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nevermore.scan_core.metadata.table_json import parse_metadata
from nevermore.scan_core.model.errors import MalformedTableError, SnapshotNotFoundError, UnsupportedError
from nevermore.scan_core.model.table_metadata import TableMetadata
from tests.support.iceberg_json import Column
from tests.support.plans import read
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
FIELDS = [{"id": 1, "name": "id", "required": True, "type": "int"}]


def document(**changes: Any) -> dict[str, Any]:
    base = {
        "format-version": 2,
        "location": "/warehouse/t",
        "schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "snapshots": [],
    }
    return {k: v for k, v in (base | changes).items() if v is not ...}


def parse(**changes: Any) -> TableMetadata:
    return parse_metadata(json.dumps(document(**changes)).encode(), "m.json")


def snapshot(snapshot_id: int, timestamp_ms: int, **more: Any) -> dict[str, Any]:
    return {"snapshot-id": snapshot_id, "timestamp-ms": timestamp_ms, "manifest-list": f"/l{snapshot_id}", **more}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_format_version_is_read(tmp_path: Path, version: int) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=version)
    table.commit(table.data({"id": [1], "name": ["a"]}))
    metadata, _ = read(table.metadata_path)
    assert metadata.format_version == version
    assert metadata.schema.names == ("id", "name")
    assert metadata.current_snapshot is not None
    assert metadata.current_snapshot.operation == "append"
    assert metadata.refs["main"].snapshot_id == metadata.current_snapshot_id


def test_rule_23_v1_has_one_schema_one_spec_and_inline_manifests() -> None:
    metadata = parse(
        **{
            "format-version": 1,
            "schemas": ...,
            "current-schema-id": ...,
            "partition-specs": ...,
            "default-spec-id": ...,
            "schema": {"type": "struct", "fields": FIELDS},
            "partition-spec": [{"source-id": 1, "name": "id_b", "transform": "bucket[4]"}],
            "current-snapshot-id": 7,
            "snapshots": [{"snapshot-id": 7, "timestamp-ms": 1, "manifests": ["/m1", "/m2"]}],
        }
    )
    assert metadata.schema.schema_id == 0
    assert metadata.specs[0].fields[0].field_id == 1000
    assert metadata.snapshots[7].inline_manifests == ("/m1", "/m2")
    assert metadata.snapshots[7].manifest_list is None
    assert metadata.snapshots[7].sequence_number == 0


@pytest.mark.parametrize("current", [..., None, -1])
def test_rule_23_a_table_without_snapshots_has_no_current_one(current: Any) -> None:
    metadata = parse(**{"current-snapshot-id": current})
    assert metadata.snapshot_for() == (None, metadata.schema)
    assert metadata.snapshot_for(ref="main") == (None, metadata.schema)
    with pytest.raises(SnapshotNotFoundError, match="no snapshot at all"):
        metadata.snapshot_for(timestamp_ms=5)


def test_field_paths_take_the_current_schema_for_the_newest() -> None:
    def with_type(schema_id: int, kind: str) -> dict[str, Any]:
        return {"type": "struct", "schema-id": schema_id, "fields": [FIELDS[0] | {"type": kind, "name": kind}]}

    dropped = {
        "type": "struct",
        "schema-id": 2,
        "fields": [
            {
                "id": 8,
                "name": "s",
                "required": False,
                "type": {"type": "struct", "fields": [{"id": 9, "name": "x", "required": False, "type": "date"}]},
            }
        ],
    }
    metadata = parse(**{"schemas": [with_type(0, "int"), with_type(1, "long"), dropped], "current-schema-id": 1})
    paths = metadata.field_paths()
    assert str(paths[1][-1].type) == "long"
    assert [f.name for f in paths[9]] == ["s", "x"]
    assert str(parse(schemas=[with_type(0, "int"), with_type(1, "long")]).field_paths()[1][-1].type) == "int"


@pytest.fixture
def travelled(tmp_path: Path) -> tuple[TableMetadata, int, int]:
    table = TableBuilder(tmp_path, COLUMNS)
    old = table.commit(table.data({"id": [1], "name": ["a"]}), timestamp_ms=1_000)
    table.ref("stable", old, "tag")
    table.ref("dev", old)
    table.evolve(Column(1, "key", "long"))
    new = table.commit(table.data({"key": [2]}), timestamp_ms=2_000)
    return read(table.metadata_path)[0], old, new


def test_rule_22_id_time_and_tag_read_with_the_snapshots_schema(travelled: tuple[TableMetadata, int, int]) -> None:
    metadata, old, _ = travelled
    for found, schema in (
        metadata.snapshot_for(old),
        metadata.snapshot_for(timestamp_ms=1_500),
        metadata.snapshot_for(timestamp_ms=1_000),
        metadata.snapshot_for(ref="stable"),
    ):
        assert found is not None
        assert found.snapshot_id == old
        assert schema.names == ("id", "name")


def test_rule_22_branches_and_the_current_table_read_with_the_current_schema(
    travelled: tuple[TableMetadata, int, int],
) -> None:
    metadata, old, new = travelled
    for (found, schema), expected in (
        (metadata.snapshot_for(ref="dev"), old),
        (metadata.snapshot_for(), new),
        (metadata.snapshot_for(ref="main"), new),
    ):
        assert found is not None
        assert found.snapshot_id == expected
        assert schema.names == ("key",)


def test_rule_22_time_goes_through_the_snapshot_log_not_the_snapshots_own_times() -> None:
    metadata = parse(
        **{
            "snapshots": [snapshot(1, 100), snapshot(2, 200)],
            "current-snapshot-id": 1,
            "snapshot-log": [
                {"timestamp-ms": 100, "snapshot-id": 1},
                {"timestamp-ms": 200, "snapshot-id": 2},
                {"timestamp-ms": 300, "snapshot-id": 1},
            ],
        }
    )
    ids = [found.snapshot_id for t in (100, 250, 300) if (found := metadata.snapshot_for(timestamp_ms=t)[0])]
    assert ids == [1, 2, 1]


def test_rule_22_a_table_without_snapshot_log_has_the_history_of_its_ancestors() -> None:
    metadata = parse(
        **{
            "snapshots": [
                snapshot(1, 100),
                snapshot(2, 150),
                snapshot(3, 200, **{"parent-snapshot-id": 1}),
            ],
            "current-snapshot-id": 3,
        }
    )
    found, _ = metadata.snapshot_for(timestamp_ms=160)
    assert found is not None
    assert found.snapshot_id == 1


def test_unknown_snapshots_name_what_exists(travelled: tuple[TableMetadata, int, int]) -> None:
    metadata, old, new = travelled
    with pytest.raises(SnapshotNotFoundError, match=f"no snapshot 5; it has {new} .*{old} "):
        metadata.snapshot_for(5)
    with pytest.raises(SnapshotNotFoundError, match="no branch or tag 'stabel'; it has dev, main, stable"):
        metadata.snapshot_for(ref="stabel")
    with pytest.raises(SnapshotNotFoundError, match="its history begins at 1970-01-01T00:00:01"):
        metadata.snapshot_for(timestamp_ms=999)


def test_a_time_whose_snapshot_expired_says_so() -> None:
    metadata = parse(
        **{
            "snapshots": [snapshot(2, 200)],
            "current-snapshot-id": 2,
            "snapshot-log": [{"timestamp-ms": 100, "snapshot-id": 1}, {"timestamp-ms": 200, "snapshot-id": 2}],
        }
    )
    with pytest.raises(SnapshotNotFoundError, match=r"snapshot 1, current at .*, has expired"):
        metadata.snapshot_for(timestamp_ms=150)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"location": ...}, r"m\.json: location: expected a string, found nothing"),
        ({"location": 5}, "location: expected a string, found 5"),
        ({"format-version": "two"}, "format-version: expected a signed 64-bit integer"),
        ({"format-version": 0}, "format-version: expected 1, 2 or 3"),
        ({"format-version": True}, "format-version: expected a signed 64-bit integer"),
        ({"schemas": ...}, "schemas: expected a list of schemas, found nothing"),
        ({"schemas": [5]}, r"schemas\[0\]: expected an object, found 5"),
        ({"schemas": [{"type": "struct", "fields": [7]}]}, r"m\.json: schemas: "),
        ({"schemas": [{"type": "struct", "fields": [FIELDS[0] | {"type": "varint"}]}]}, "unknown type 'varint'"),
        ({"schemas": [{"type": "struct", "fields": FIELDS * 2}]}, "field id 1 is used twice"),
        ({"current-schema-id": 4}, r"current-schema-id: expected one of \[0\], found 4"),
        ({"default-spec-id": 4}, r"default-spec-id: expected one of \[0\], found 4"),
        ({"current-snapshot-id": 4}, "current-snapshot-id: expected the id of a snapshot, found 4"),
        ({"snapshots": [{"timestamp-ms": 1}]}, r"snapshots\[0\]\.snapshot-id: expected a signed 64-bit integer"),
        ({"snapshots": {}}, "snapshots: expected a list"),
        ({"snapshots": [snapshot(1, 1, summary={"a": []})]}, r"snapshots\[0\]\.summary\.a: expected a string"),
        ({"partition-specs": [{"spec-id": 0, "fields": [{"name": "x", "transform": "void"}]}]}, "source-id: expected"),
        ({"partition-specs": [{"spec-id": 0}]}, r"partition-specs\[0\]\.fields: expected a list, found nothing"),
        ({"partition-specs": [{"spec-id": 0, "fields": None}]}, r"partition-specs\[0\]\.fields: expected a list"),
        ({"partition-specs": ...}, "partition-specs: expected a list of partition specs, found nothing"),
        ({"schemas": [{"type": "struct"}]}, "a schema without a list of fields"),
        ({"current-snapshot-id": 2**63}, f"current-snapshot-id: expected a signed 64-bit integer, found {2**63}"),
        ({"snapshots": [snapshot(2**63, 1)]}, f"snapshot-id: expected a signed 64-bit integer, found {2**63}"),
        ({"refs": {"x": {"snapshot-id": 2**63, "type": "tag"}}}, "snapshot-id: expected a signed 64-bit integer"),
        ({"refs": {"x": {"snapshot-id": 1, "type": "twig"}}}, r"refs\.x\.type: expected 'branch' or 'tag'"),
        ({"properties": {"schema.name-mapping.default": "{"}}, "name-mapping.default: not a JSON document"),
        ({"properties": {"schema.name-mapping.default": "{}"}}, "name-mapping.default: expected a list"),
        ({"statistics": 3}, "statistics: expected a list"),
    ],
)
def test_malformed_metadata_names_file_and_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedTableError, match=message):
        parse(**changes)


def test_data_file_in_the_place_of_a_table_is_named_as_one() -> None:
    with pytest.raises(
        MalformedTableError, match=r"orders\.parquet is a Parquet file and no table: name a metadata file"
    ):
        parse_metadata(b"PAR1\x15\x04", "orders.parquet")


def test_a_reference_to_a_lost_snapshot_or_schema_fails_only_when_used() -> None:
    metadata = parse(
        **{
            "refs": {"x": {"snapshot-id": 9, "type": "tag"}},
            "snapshots": [snapshot(1, 1, **{"schema-id": 7}), snapshot(2, 2)],
            "current-snapshot-id": 2,
        }
    )
    assert metadata.snapshot_for()[0] is not None
    with pytest.raises(MalformedTableError, match=r"refs\.x: names snapshot 9"):
        metadata.snapshot_for(ref="x")
    with pytest.raises(MalformedTableError, match="snapshot 1 names schema 7"):
        metadata.snapshot_for(1)


def test_a_newer_format_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="format version 4"):
        parse(**{"format-version": 4})


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b'{"a":' * 5000, b"null"])
def test_what_is_no_json_object_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedTableError, match=r"m\.json"):
        parse_metadata(data, "m.json")


def test_a_damaged_gzip_is_malformed() -> None:
    data = gzip.compress(json.dumps(document()).encode())
    assert parse_metadata(data, "m.json").location == "/warehouse/t"
    with pytest.raises(MalformedTableError, match="cannot be decompressed"):
        parse_metadata(data[:2] + b"\0\0" + data[4:], "m.json")
    with pytest.raises(MalformedTableError, match=r"m\.json"):
        parse_metadata(data[: len(data) // 2], "m.json")
