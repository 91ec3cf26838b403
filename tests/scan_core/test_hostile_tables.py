"""What hostile tables try is refused, with the file and the field: one test each, end to end."""

import json
import shutil
import struct as binary
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import RefusedError, live_rows
from nevermore.scan_core import MalformedTableError, MissingFileError, ScanError
from tests.scan_core.trapped_tables import COLUMNS, KEY, Build, every_format, scan_of, three_rows
from tests.support.avro_edit import rewrite_avro
from tests.support.iceberg_json import Column, list_of
from tests.support.table_builder import TableBuilder


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return lambda columns=COLUMNS, **options: TableBuilder(tmp_path / "t", columns, **options)


def refusal(table: TableBuilder) -> str:
    with pytest.raises(MalformedTableError) as caught:
        scan_of(table).to_table()
    return str(caught.value)


@pytest.mark.parametrize("ids", [None, []])
def test_hostile_equality_ids_missing_or_empty(build: Build, ids: list[int] | None) -> None:
    table = build()
    table.commit(three_rows(table))
    delete = table.equality_delete({"id": [1]}, ids=ids, columns=KEY)
    table.commit(delete)
    assert delete.path in refusal(table)
    assert "equality_ids" in refusal(table)
    _refused_by_the_reference_too(table)


@every_format
def test_hostile_equality_ids_that_the_file_lacks(build: Build, file_format: str) -> None:
    table = build()
    table.commit(three_rows(table))
    delete = table.equality_delete({"id": [1]}, ids=[1, 2], columns=KEY, file_format=file_format)
    table.commit(delete)
    assert delete.path in refusal(table)
    assert "name" in refusal(table)
    _refused_by_the_reference_too(table)


def test_hostile_equality_ids_that_no_schema_knows(build: Build) -> None:
    table = build()
    table.commit(three_rows(table))
    delete = table.equality_delete({"id": [1]}, ids=[77], columns=KEY)
    table.commit(delete)
    assert delete.path in refusal(table)
    assert "77" in refusal(table)


def test_hostile_key_inside_of_a_list(build: Build) -> None:
    table = build([*COLUMNS, Column(3, "l", list_of(4, "int"))])
    table.commit(table.data({"id": [1], "name": ["a"], "l": [[1]]}))
    delete = table.equality_delete({"l": [[1]]}, ids=[4], columns=[Column(3, "l", list_of(4, "int"))])
    table.commit(delete)
    assert delete.path in refusal(table)


def test_hostile_two_deletion_vectors_for_one_file(build: Build) -> None:
    table = build(version=3)
    data = three_rows(table)
    table.commit(data)
    table.commit(table.deletion_vector(data, [0]), table.deletion_vector(data, [1]))
    assert data.path in refusal(table)
    assert "two deletion vectors" in refusal(table)
    _refused_by_the_reference_too(table)


@pytest.mark.parametrize("hole", [(None, 0), ("path", None)])
def test_hostile_null_in_a_position_delete(build: Build, hole: tuple[str | None, int | None]) -> None:
    table = build()
    data = three_rows(table)
    table.commit(data)
    delete = table.position_delete([(data, 0), (data, 1)])
    names = pq.read_schema(delete.local)
    nullable = pa.schema([f.with_nullable(True) for f in names])
    rows = {"file_path": [data.path, data.path if hole[0] else None], "pos": [0, hole[1]]}
    pq.write_table(pa.table(rows, schema=nullable), delete.local, store_schema=False)
    delete.record["file_size_in_bytes"] = delete.local.stat().st_size
    table.commit(delete)
    assert delete.path in refusal(table)
    assert "NULL in file_path or pos" in refusal(table)


def _vector_frame(blob: bytes) -> bytes:
    return binary.pack(">i", len(blob)) + blob + binary.pack(">I", zlib.crc32(blob))


BROKEN_VECTORS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "magic": (lambda b: _vector_frame(b"\xd1\xd3\x39\x65" + b[8:-4]), "magic"),
    "checksum": (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "CRC-32"),
    "length": (lambda b: binary.pack(">i", 9999) + b[4:], "length"),
    "no bitmap": (lambda b: _vector_frame(b[4:8] + b"\xff" * (len(b) - 12)), "bitmap"),
}


@pytest.mark.parametrize("broken", BROKEN_VECTORS)
def test_hostile_deletion_vector(build: Build, broken: str) -> None:
    change, message = BROKEN_VECTORS[broken]
    table = build(version=3)
    data = three_rows(table)
    table.commit(data)
    vector = table.deletion_vector(data, [0, 2])
    content, begin = vector.local.read_bytes(), vector.record["content_offset"]
    end = begin + vector.record["content_size_in_bytes"]
    vector.local.write_bytes(content[:begin] + change(content[begin:end]) + content[end:])
    table.commit(vector)
    assert vector.path in refusal(table)
    assert message in refusal(table)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("record_count", 1),
        ("content_offset", None),
        ("content_offset", 10**12),
        ("content_size_in_bytes", 2**62),
        ("content_size_in_bytes", 3),
        ("content_size_in_bytes", -1),
        ("referenced_data_file", None),
    ],
)
def test_hostile_facts_of_a_deletion_vector(build: Build, field: str, value: int | None) -> None:
    table = build(version=3)
    data = three_rows(table)
    table.commit(data)
    vector = table.deletion_vector(data, [0, 2])
    vector.record[field] = value
    table.commit(vector)
    assert vector.path in refusal(table)


def test_hostile_manifest_or_list_is_gone(build: Build) -> None:
    table = build()
    table.commit(three_rows(table))
    manifest = next(p for p in (table.location / "metadata").glob("*-manifest.avro"))
    manifest.unlink()
    with pytest.raises(MissingFileError, match=manifest.name):
        scan_of(table).to_table()
    shutil.rmtree(table.location / "data")
    gone = next((table.location / "metadata").glob("snap-*.avro"))
    gone.unlink()
    with pytest.raises(MissingFileError, match=gone.name):
        scan_of(table).to_table()


@pytest.mark.parametrize("path", ["../../secret.parquet", "a/../../secret.parquet", "./../../secret.parquet"])
def test_hostile_path_traversal_through_relocation(tmp_path: Path, path: str) -> None:
    table = TableBuilder(tmp_path / "warehouse" / "t", COLUMNS, written_location="s3://bucket/t")
    data = three_rows(table)
    shutil.copy(data.local, tmp_path / "secret.parquet")
    data.record["file_path"] = f"s3://bucket/t/{path}"
    table.commit(data)
    relocated = scan_core.open_table(table.metadata_path, relocate={"s3://bucket/t": str(table.location)})
    with pytest.raises(MalformedTableError, match="climbs out"):
        relocated.scan().to_table()


@pytest.mark.parametrize("depth", [70, 400, 900, 20_000])
@pytest.mark.parametrize("kind", ["list", "struct", "map"])
def test_hostile_very_deep_schema(build: Build, depth: int, kind: str) -> None:
    table = build()
    table.commit(three_rows(table))
    opened, closed = {
        "list": ('{"type": "list", "element-id": %d, "element-required": false, "element": ', "}"),
        "struct": ('{"type": "struct", "fields": [{"id": %d, "name": "x", "required": false, "type": ', "}]}"),
        "map": (
            '{"type": "map", "key-id": 1%d, "key": "int", "value-id": %d, "value-required": false, "value": ',
            "}",
        ),
    }[kind]
    parts = [opened.replace("%d", str(1000 + level)) for level in range(depth)]
    text = json.dumps(table.document()).replace('"string"', "".join(parts) + '"string"' + closed * depth)
    table.metadata_path.write_text(text)
    with pytest.raises(ScanError, match=table.metadata_path.name):
        scan_of(table).to_table()


@every_format
def test_hostile_truncated_file(build: Build, file_format: str) -> None:
    table = build()
    data = table.data({"id": list(range(50)), "name": ["x"] * 50}, file_format=file_format)
    table.commit(data)
    content = data.local.read_bytes()
    for size in (0, 3, len(content) // 2, len(content) - 1):
        data.local.write_bytes(content[:size])
        assert data.path in refusal(table)


@every_format
def test_hostile_file_of_another_format(build: Build, file_format: str) -> None:
    table = build()
    data = three_rows(table, file_format=file_format)
    data.record["file_format"] = {"parquet": "ORC", "orc": "AVRO", "avro": "PARQUET"}[file_format]
    table.commit(data)
    assert data.path in refusal(table)


@pytest.mark.parametrize(("name", "value"), [("content", 7), ("sequence_number", -5), ("partition_spec_id", 99)])
def test_hostile_manifest_list(build: Build, name: str, value: int) -> None:
    table = build()
    table.commit(three_rows(table))
    path = next((table.location / "metadata").glob("snap-*.avro"))

    def change(rows: list[Any], schema: dict[str, Any]) -> None:
        rows[0][name] = value

    rewrite_avro(str(path), change)
    found = refusal(table)
    assert path.name in found or "manifest.avro" in found


def _refused_by_the_reference_too(table: TableBuilder) -> None:
    with pytest.raises(RefusedError):
        live_rows(table.metadata_path)
