"""Files of table metadata that would become very much memory: refused by size and counts before they do."""

import json
import os
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from nevermore.scan_core.bitmaps.column_index import read_footer
from nevermore.scan_core.deletes.filter import read_deletion_vector
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.manifest_list import read_manifest_list
from nevermore.scan_core.metadata.table_json import find_metadata_file, read_metadata
from nevermore.scan_core.model.errors import MalformedTableError, MemoryLimitError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.snapshot import DeleteContent, FileFormat
from tests.scan_core.current_manifests import COLUMNS, current, data_files, rows
from tests.scan_core.deletes.files import delete_file
from tests.support.bombs import MIB, run_limited
from tests.support.table_builder import TableBuilder

IO = FileIOConfig()
MANY = 9_000_000
LISTS = b"[" + b"[]," * MANY + b"[]]"
_SUMMARIES = {
    "name": "partitions",
    "field-id": 507,
    "type": {
        "type": "array",
        "items": {
            "type": "record",
            "name": "r508",
            "fields": [{"name": "contains_null", "type": "boolean", "field-id": 509}],
        },
    },
}


def _sparse(path: Path, size: int, beginning: bytes = b"") -> Path:
    path.write_bytes(beginning)
    os.truncate(path, size)
    return path


def _avro(path: Path, schema: Any, blocks: int, count: int, block: bytes, more: Any = None) -> Path:
    """An Avro file of equal blocks, whatever they hold."""
    payload = zlib.compressobj(wbits=-15)
    stored = payload.compress(block) + payload.flush()
    out = BytesIO()
    out.write(b"Obj\x01")
    header = {**(more or {}), "avro.schema": json.dumps(schema).encode(), "avro.codec": b"deflate"}
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, header)
    out.write(b"s" * 16)
    for _ in range(blocks):
        fastavro.schemaless_writer(out, "long", count)
        fastavro.schemaless_writer(out, "bytes", stored)
        out.write(b"s" * 16)
    path.write_bytes(out.getvalue())
    return path


def _list_schema(*more: Any) -> dict[str, Any]:
    fields = [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "partition_spec_id", "type": "int", "field-id": 502},
        *more,
    ]
    return {"type": "record", "name": "manifest_file", "fields": fields}


def _varint(number: int) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


def _puffin(path: Path, payload: bytes) -> Path:
    path.write_bytes(b"PFA1PFA1" + payload + len(payload).to_bytes(4, "little") + b"\0\0\0\0PFA1")
    return path


def _name_mapping(path: Path) -> Path:
    builder = TableBuilder(path.parent / "t", COLUMNS)
    builder.commit(builder.data(rows()))
    text = LISTS.decode()
    builder.edit(lambda document: document.setdefault("properties", {}).update({"schema.name-mapping.default": text}))
    return builder.metadata_path


METADATA: dict[str, tuple[Callable[[Path], Path], str]] = {
    "values": (lambda path: (path.write_bytes(LISTS), path)[1], "about [0-9]+ values, and at most 8388608 are read"),
    "values in gzip": (lambda path: (path.write_bytes(zlib.compress(LISTS, wbits=31)), path)[1], "about [0-9]+ values"),
    "values in a property": (_name_mapping, "about [0-9]+ values"),
    "size": (lambda path: _sparse(path, 1 << 40, b"{"), "1099511627776 bytes, and at most 268435456 are read"),
    "gzip": (
        lambda path: (path.write_bytes(zlib.compress(b" " * (300 * MIB), wbits=31)), path)[1],
        "larger than 268435456 bytes when decompressed",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in {"values", "size"} else pytest.mark.slow) for n in METADATA]
)
def test_table_metadata_is_refused_before_it_is_parsed(tmp_path: Path, name: str) -> None:
    make, message = METADATA[name]
    path = make(tmp_path / "v1.metadata.json")
    with pytest.raises(MalformedTableError, match=rf"{path.name}: .*{message}"):
        read_metadata(str(path), IO)


def test_of_a_hint_only_the_beginning_is_read(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", COLUMNS)
    builder.commit(builder.data(rows()))
    _sparse(builder.metadata_path.parent / "version-hint.text", 1 << 40, b"1")
    assert find_metadata_file(str(tmp_path / "t"), IO) == str(builder.metadata_path)


@pytest.mark.parametrize("payload", [LISTS, pytest.param(b" " * (257 * MIB), marks=pytest.mark.slow)])
def test_a_footer_of_a_puffin_file_is_refused_before_it_is_parsed(tmp_path: Path, payload: bytes) -> None:
    path = _puffin(tmp_path / "a.puffin", payload)
    with pytest.raises(MalformedTableError, match=r"a\.puffin: .*at most [0-9]+ are read"):
        read_footer(str(path), IO)


LISTED: dict[str, tuple[Any, int, int, Callable[[], bytes], str]] = {
    "records": (_list_schema(), 1, MANY, lambda: b"\0" * (2 * MANY), "it holds more than 4194304 records"),
    "records of many blocks": (
        _list_schema(),
        9,
        MANY // 9,
        lambda: b"\0" * (2 * MANY // 9),
        "more than 4194304 records",
    ),
    "bytes": (_list_schema(), 5, 1, lambda: b"\0\0" + b"\0" * (255 * MIB), "bytes"),
    "items": (
        _list_schema(_SUMMARIES),
        1,
        1,
        lambda: b"\0\0" + _varint(MANY) + b"\0" * (MANY + 1),
        "more than 8388608 summaries",
    ),
    "items of many records": (
        _list_schema(_SUMMARIES),
        1,
        9,
        lambda: (b"\0\0" + _varint(1_000_000) + b"\0" * 1_000_001) * 9,
        "more than 8388608 summaries",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in {"records", "items"} else pytest.mark.slow) for n in LISTED]
)
def test_a_manifest_list_is_refused_before_it_is_decoded(tmp_path: Path, name: str) -> None:
    schema, blocks, count, make, message = LISTED[name]
    path = _avro(tmp_path / "snap.avro", schema, blocks, count, make())
    with pytest.raises(MalformedTableError, match=rf"snap\.avro: .*{message}"):
        read_manifest_list(str(path), IO)


def test_a_manifest_of_very_many_records_is_refused(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path, COLUMNS)
    builder.commit(builder.data(rows()))
    _, (manifest,) = current(builder)
    with Path(manifest.path).open("rb") as file:
        found = fastavro.reader(file)
        schema, header = found.writer_schema, {k: str(v).encode() for k, v in found.metadata.items()}
    _avro(Path(manifest.path), schema, 1, MANY, b"\0" * (2 * MANY), header)
    with pytest.raises(MalformedTableError, match="it holds more than 4194304 records"):
        data_files(builder)


@pytest.mark.slow
def test_a_schema_in_a_header_is_counted_before_it_is_parsed(tmp_path: Path) -> None:
    out = BytesIO(b"Obj\x01")
    out.seek(4)
    fastavro.schemaless_writer(out, {"type": "map", "values": "bytes"}, {"avro.schema": LISTS})
    out.write(b"s" * 16)
    (tmp_path / "snap.avro").write_bytes(out.getvalue())
    with pytest.raises(MalformedTableError, match=r"snap\.avro: avro\.schema .*at most 8388608 are read"):
        read_manifest_list(str(tmp_path / "snap.avro"), IO)


@pytest.mark.parametrize(
    ("size", "positions", "error", "message"),
    [
        (1 << 33, 10, MalformedTableError, r"more than 10 positions \(record_count\) can take"),
        (1 << 33, 1 << 40, MemoryLimitError, "at most 536870912 are read; raise memory_limit_bytes"),
        (1 << 41, 1 << 50, MemoryLimitError, "raise memory_limit_bytes"),
    ],
)
def test_a_deletion_vector_is_refused_before_it_is_read(
    tmp_path: Path, size: int, positions: int, error: type[Exception], message: str
) -> None:
    path = _sparse(tmp_path / "dv.puffin", 1 << 40, b"PFA1")
    file = delete_file(
        path,
        FileFormat.PUFFIN,
        content=DeleteContent.POSITION,
        content_offset=4,
        content_size_bytes=size,
        record_count=positions,
    )
    with pytest.raises(error, match=rf"dv\.puffin: deletion vector at 4: {size} bytes.*{message}"):
        read_deletion_vector(file, IO, ScanMetrics())


@pytest.mark.slow
@pytest.mark.parametrize("name", METADATA)
def test_refusing_table_metadata_takes_little_memory(tmp_path: Path, name: str) -> None:
    path = METADATA[name][0](tmp_path / "v1.metadata.json")
    found, grown, seconds = run_limited(
        "from nevermore import scan_core", f"str(scan_core.open_table({str(path)!r}))", 1024 * MIB
    )
    assert found.startswith("MalformedTableError: ")
    assert grown < 600 * MIB
    assert seconds < 20
