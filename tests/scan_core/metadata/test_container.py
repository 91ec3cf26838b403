"""Avro container files: codecs, and lengths that lie."""

import io
from typing import Any

import fastavro
import pytest

from nevermore.scan_core.metadata.avro_container import AvroError, read_blocks, read_header, read_long

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}


def file(codec: str = "null", rows: int = 1000) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, [{"a": i} for i in range(rows)], codec=codec, sync_interval=500, sync_marker=b"s" * 16)
    return out.getvalue()


def values(data: bytes) -> list[int]:
    found = []
    for count, block in read_blocks(data, read_header(data)):
        position = 0
        for _ in range(count):
            value, position = read_long(block, position)
            found.append(value)
    return found


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_every_codec_is_read(codec: str) -> None:
    try:
        data = file(codec)
    except ValueError as error:
        pytest.skip(f"fastavro cannot write {codec} here: {error}")
    assert values(data) == list(range(1000))


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\x00", 0), (b"\x01", -1), (b"\x02", 1), (b"\x80\x01", 64), (b"\xff" * 9 + b"\x01", -(2**63))],
)
def test_varints_are_zig_zag(data: bytes, value: int) -> None:
    assert read_long(data, 0) == (value, len(data))


def broken(change: Any) -> bytes:
    data = bytearray(file("deflate"))
    change(data)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Obj\x02",
        b"PAR1" + b"\0" * 40,
        b"Obj\x01",
        b"Obj\x01\x02",
        b"Obj\x01\x02\xfe\xff\xff\xff\x0f",  # a key of a gigabyte
        b"Obj\x01" + b"\xff" * 12,
        b"Obj\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # billions of metadata entries
        file("deflate")[:-3],
        file("deflate")[:-20],
        file()[:200],
        broken(lambda d: d.__setitem__(slice(-16, None), b"x" * 16)),
        broken(lambda d: d.__setitem__(slice(-30, -20), b"x" * 10)),
    ],
)
def test_damaged_files_are_refused(data: bytes) -> None:
    with pytest.raises((AvroError, IndexError)):
        values(data)


def test_an_unknown_codec_is_named() -> None:
    data = file().replace(b"\x08null", b"\x08lzzz")
    with pytest.raises(AvroError, match="unknown codec 'lzzz'"):
        values(data)


def test_a_block_that_claims_more_records_than_bytes_is_refused() -> None:
    data = file(rows=1)
    header = read_header(data)
    payload = b"\xfe\xff\xff\xff\x0f" + b"\x02\x00" + header.sync
    with pytest.raises(AvroError, match="claims"):
        list(read_blocks(data[: header.end] + payload, header))


def test_a_deflate_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.scan_core.metadata.avro_container.MAX_METADATA_BLOCK_BYTES", 100)
    with pytest.raises(AvroError, match="larger than 100 bytes"):
        values(file("deflate"))
