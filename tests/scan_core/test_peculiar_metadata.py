"""What metadata and manifests of real tables leave out, add or spell in their own way, read end to end."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import MalformedTableError, UnsupportedError
from tests.support.agreed_rows import rows_of
from tests.support.avro_edit import rewrite_avro
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]
KEY = COLUMNS[:1]
BY_NAME = [Partition("name", 2)]
Change = Callable[[list[Any], dict[str, Any]], None]


def data_and_deletes(table: TableBuilder, **partition: Any) -> None:
    """Rows 1 to 3, of which 1 is deleted by its key and 2 by its position."""
    data = table.data({"id": [1, 2, 3], "name": ["a", "a", "a"]}, **partition)
    table.commit(data)
    table.commit(
        table.equality_delete({"id": [1]}, ids=[1], columns=KEY, **partition),
        table.position_delete([(data, 1)], **partition),
    )


def manifests(table: TableBuilder) -> list[Path]:
    return sorted((table.location / "metadata").glob("*-manifest.avro"))


def manifest_lists(table: TableBuilder) -> list[Path]:
    return sorted((table.location / "metadata").glob("snap-*.avro"))


def without_header(path: Path, *keys: str, **others: str) -> None:
    """Take key-value metadata out of a manifest's header, and put others in."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        rows, schema = list(reader), json.loads(reader.metadata["avro.schema"])
        kept = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.") and k not in keys}
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, metadata=kept | others)


def test_v1_metadata_with_nothing_but_what_v1_requires(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=1)
    table.commit(table.data({"id": [1], "name": ["a"]}), inline_manifests=True)
    table.commit(table.data({"id": [2], "name": ["b"]}))

    def strip(document: dict[str, Any]) -> None:
        for name in ("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id"):
            document.pop(name, None)
        for name in ("table-uuid", "sort-orders", "default-sort-order-id", "refs", "metadata-log", "snapshot-log"):
            document.pop(name, None)
        for snapshot in document["snapshots"]:
            snapshot.pop("schema-id", None)

    table.edit(strip)
    assert rows_of(table) == [(1, "a"), (2, "b")]
    assert scan_core.open_table(table.metadata_path).scan().as_of_snapshot(1001).count() == 1


def test_v1_ids_of_schema_and_spec_mean_nothing_where_there_is_no_list_of_them(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=1)
    table.commit(table.data({"id": [1], "name": ["a"]}))

    def strip(document: dict[str, Any]) -> None:
        del document["schemas"], document["partition-specs"]
        document.update({"default-spec-id": 3, "current-schema-id": 5})

    table.edit(strip)
    assert rows_of(table) == [(1, "a")]


def test_members_that_are_null_count_as_absent(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data({"id": [1], "name": ["a"]}))
    absent = ("refs", "statistics", "properties", "snapshot-log", "metadata-log", "sort-orders", "table-uuid")
    table.edit(lambda document: document.update(dict.fromkeys(absent)))
    assert rows_of(table) == [(1, "a")]


def test_members_that_nobody_knows_are_ignored(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data({"id": [1], "name": ["a"]}))

    def add(document: dict[str, Any]) -> None:
        document["made-up"] = {"x": [1]}
        document["partition-statistics"] = [{"snapshot-id": 1001, "statistics-path": "gone", "file-size-in-bytes": 1}]
        document["encryption-keys"] = [{"key-id": "k", "encrypted-key-metadata": "eA=="}]  # of no snapshot
        document["schemas"][0]["made-up"] = document["snapshots"][0]["made-up"] = None
        document["refs"]["main"]["max-ref-age-ms"] = 5

    table.edit(add)
    assert rows_of(table) == [(1, "a")]


def test_encrypted_manifest_list_is_unsupported_and_named(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    table.commit(table.data({"id": [1], "name": ["a"]}))
    table.edit(lambda document: document["snapshots"][0].update({"key-id": "master"}))
    with pytest.raises(UnsupportedError, match="snapshot 1001: its manifest list is encrypted"):
        scan_core.open_table(table.metadata_path).scan().count()


@pytest.mark.parametrize("whole", [False, True], ids=["fields", "whole spec"])
def test_inline_manifest_without_spec_id_is_of_the_spec_with_its_fields(tmp_path: Path, *, whole: bool) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=1, partitions=BY_NAME)
    table.repartition(Partition("id", 1))
    table.commit(table.data({"id": [1, 1], "name": ["a", "b"]}, partition={"id": 1}), inline_manifests=True)
    fields = [{"source-id": 1, "transform": "identity", "name": "renamed"}]  # early writers gave no field ids
    stated = json.dumps({"spec-id": 9, "fields": fields} if whole else fields)
    for path in manifests(table):
        without_header(
            path, "partition-spec-id", "schema-id", "format-version", "content", **{"partition-spec": stated}
        )
    assert rows_of(table) == [(1, "a"), (1, "b")]
    found = scan_core.open_table(table.metadata_path).scan().select("_spec_id").to_table()
    assert found["_spec_id"].to_pylist() == [1, 1]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"partition-spec": '[{"source-id": 1, "transform": "bucket[4]"}]'}, "that of no spec of the table"),
        ({"partition-spec": "17"}, "no list of fields"),
        ({"partition-spec": "["}, "not a JSON document"),
        ({"partition-spec-id": "7"}, "no partition spec 7"),
        ({"partition-spec-id": "-1"}, "partition-spec-id in its header"),
    ],
)
def test_inline_manifest_of_no_spec_of_the_table_is_refused(
    tmp_path: Path, stated: dict[str, str], message: str
) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=1, partitions=BY_NAME)
    table.commit(table.data({"id": [1], "name": ["a"]}, partition={"name": "a"}), inline_manifests=True)
    (path,) = manifests(table)
    without_header(path, "partition-spec-id", "partition-spec", **stated)
    with pytest.raises(MalformedTableError, match=message) as caught:
        scan_core.open_table(table.metadata_path).scan().count()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("is_null", [False, True], ids=["value", "null"])
@pytest.mark.parametrize("partitions", [(), tuple(BY_NAME)], ids=["unpartitioned", "partitioned"])
def test_partition_struct_that_is_optional(tmp_path: Path, partitions: tuple[Partition, ...], *, is_null: bool) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=partitions)
    data_and_deletes(table, partition={"name": "a"} if partitions else {})

    def optional(rows: list[Any], schema: dict[str, Any]) -> None:
        data_file = next(f["type"] for f in schema["fields"] if f["name"] == "data_file")
        field = next(f for f in data_file["fields"] if f["name"] == "partition")
        field["type"] = ["null", field["type"]]
        for row in rows if is_null else ():
            row["data_file"]["partition"] = None

    for path in manifests(table):
        rewrite_avro(str(path), optional)
    if is_null and partitions:
        with pytest.raises(MalformedTableError, match=r"partition \(102\)"):
            scan_core.open_table(table.metadata_path).scan().count()
    else:
        assert rows_of(table) == [(3, "a")]


@pytest.mark.parametrize(
    "absent",
    [
        ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds", "column_sizes"),
        ("key_metadata", "split_offsets", "sort_order_id", "referenced_data_file", "content_offset"),
        ("file_sequence_number", "snapshot_id", "first_row_id", "content_size_in_bytes"),
    ],
)
def test_manifests_whose_schema_lacks_optional_fields(tmp_path: Path, absent: tuple[str, ...]) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data_and_deletes(table)

    def strip(_: list[Any], schema: dict[str, Any]) -> None:
        record = next(f["type"] for f in schema["fields"] if f["name"] == "data_file")
        record["fields"] = [f for f in record["fields"] if f["name"] not in absent]
        schema["fields"] = [f for f in schema["fields"] if f["name"] not in absent]

    for path in manifests(table):
        rewrite_avro(str(path), strip)
    assert rows_of(table) == [(3, "a")]


@pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
def test_manifest_lists_with_nothing_but_what_is_required(tmp_path: Path, *, null: bool) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data_and_deletes(table)
    required = ("manifest_path", "partition_spec_id", "content", "sequence_number")

    def strip(rows: list[Any], schema: dict[str, Any]) -> None:
        if not null:
            schema["fields"] = [f for f in schema["fields"] if f["name"] in required]
            return
        for field in schema["fields"]:
            if field["name"] not in required:
                field["type"] = field["type"] if isinstance(field["type"], list) else ["null", field["type"]]
                for row in rows:
                    row[field["name"]] = None

    for path in manifest_lists(table):
        rewrite_avro(str(path), strip)
    assert rows_of(table) == [(3, "a")]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_manifests_in_every_codec(tmp_path: Path, codec: str) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    data_and_deletes(table)
    for path in (*manifests(table), *manifest_lists(table)):
        _compress(path, codec)
    assert rows_of(table) == [(3, "a")]


@pytest.mark.parametrize("name", ["00007-x.gz.metadata.json", "00007-x.metadata.json.gz"])
def test_gzipped_metadata_under_both_names(tmp_path: Path, name: str) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data({"id": [1], "name": ["a"]}))
    content = table.metadata_path.read_bytes()
    for path in (tmp_path / "metadata").glob("v*"):
        path.unlink()
    (tmp_path / "metadata" / name).write_bytes(gzip.compress(content))
    assert scan_core.open_table(tmp_path).scan().to_table().to_pylist() == [{"id": 1, "name": "a"}]


def test_deletes_in_a_table_that_was_of_v1_reach_its_older_manifests(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=1)
    data = table.data({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    table.commit(data)
    table.version = 2
    table.commit(table.equality_delete({"id": [1]}, ids=[1], columns=KEY), table.position_delete([(data, 1)]))
    assert rows_of(table) == [(3, "c")]


def test_partition_values_of_fields_that_metadata_no_longer_lists_are_skipped(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("id", 1), Partition("name", 2)])
    data_and_deletes_of_one = {"id": 1, "name": "a"}
    table.commit(table.data({"id": [1], "name": ["a"]}, partition=data_and_deletes_of_one))
    table.edit(lambda document: document["partition-specs"][0]["fields"].pop(0))
    assert rows_of(table) == [(1, "a")]


def _compress(path: Path, codec: str) -> None:
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        rows, schema = list(reader), json.loads(reader.metadata["avro.schema"])
        kept = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    if codec != "zstandard":
        with path.open("wb") as file:
            fastavro.writer(file, schema, rows, codec=codec, metadata=kept)
        return
    with path.open("wb") as file:  # fastavro lacks this codec here: write the block as it is, then compress it
        fastavro.writer(file, schema, rows, codec="null", metadata=kept | {"made-up": "x"}, sync_marker=b"s" * 16)
    plain = path.read_bytes()
    header_end = plain.index(b"s" * 16) + 16
    with path.open("rb") as file:
        payload = next(iter(fastavro.block_reader(file))).bytes_.getvalue()
    packed = pa.Codec("zstd").compress(payload, asbytes=True)
    header = plain[:header_end].replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x12zstandard")
    path.write_bytes(header + _long(len(rows)) + _long(len(packed)) + packed + b"s" * 16)


def _long(number: int) -> bytes:
    number <<= 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
