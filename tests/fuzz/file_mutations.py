"""Damage to a file of a table, by what the file is: bytes anywhere, or values inside of its structure.

Checksums and compression keep random bytes away from most of a parser; where a format has them, they are made right
again after the damage.
"""

import gzip
import io
import json
import struct
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

import fastavro

from tests.fuzz.byte_mutations import mutate_bytes, mutate_in_place
from tests.fuzz.value_mutations import mutate_values

_VECTOR_FRAME = 8
"""Length and magic before the bitmap of a deletion vector; a checksum of four bytes follows it."""


def mutate_file(path: str, data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Other content for the file at `path`.

    Args:
        path: its name tells what it is.
        data: its content.
        others: contents of other files of the table, one of which may take its place.
        random: where damage comes from.
    """
    if random.random() < 0.01:
        return random.choice(others)
    structured = _structured(path)
    if structured is not None and random.random() < 0.75:
        try:
            changed = structured(data, random)
        except Exception:  # noqa: BLE001  whatever the writers say of values that they cannot store
            changed = data
        if changed != data:
            return changed
    return mutate_bytes(data, random)


def _structured(path: str) -> Any:
    if path.endswith(".gz.metadata.json"):
        return _gzipped_json
    if path.endswith(".json"):
        return _json
    if path.endswith(".puffin"):
        return _puffin
    if path.endswith(".avro"):
        return _avro_values
    if path.endswith((".parquet", ".parq")):
        return _parquet_footer
    return _orc_tail if path.endswith(".orc") else None


def _json(data: bytes, random: Random) -> bytes:
    return json.dumps(mutate_values(json.loads(data), random)).encode()


def _gzipped_json(data: bytes, random: Random) -> bytes:
    return gzip.compress(_json(gzip.decompress(data), random), mtime=0)


def _avro_values(data: bytes, random: Random) -> bytes:
    """Other records under the same schema, or the same records under another schema."""
    reader = fastavro.reader(io.BytesIO(data))
    rows, schema = list(reader), json.loads(reader.metadata["avro.schema"])
    kept = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    match random.randrange(6):
        case 0:
            return _with_schema(data, json.dumps(mutate_values(schema, random)).encode())
        case 1:
            kept = {k: random.choice(("", "-1", "deletes", "data", "999999999999", v)) for k, v in kept.items()}
        case _:
            rows = mutate_values(rows, random)
    target = io.BytesIO()
    codec = random.choice(("null", "deflate"))
    fastavro.writer(target, schema, rows, codec=codec, metadata=kept, sync_marker=b"0123456789abcdef")
    changed = target.getvalue()
    return changed if codec == "deflate" or random.random() < 0.5 else mutate_in_place(changed, random)


def _with_schema(data: bytes, schema: bytes) -> bytes:
    """The container with other text as `avro.schema`, its blocks untouched."""
    at = data.index(b"avro.schema") + len(b"avro.schema")
    length, begin = _read_long(data, at)
    return data[:at] + _write_long(len(schema)) + schema + data[begin + length :]


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position


def _write_long(number: int) -> bytes:
    number <<= 1
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes(found) + bytes([number])


def _puffin(data: bytes, random: Random) -> bytes:
    """A bitmap that is damaged under a checksum that is right."""
    (length,) = struct.unpack("<i", data[-12:-8])
    blobs = json.loads(data[-12 - length : -12])["blobs"]
    blob = random.choice(blobs)
    begin, end = blob["offset"], blob["offset"] + blob["length"]
    frame = data[begin:end]
    bitmap = mutate_in_place(frame[_VECTOR_FRAME:-4], random)
    body = frame[4:_VECTOR_FRAME] + bitmap
    return data[:begin] + frame[:4] + body + struct.pack(">I", zlib.crc32(body)) + data[end:]


def _parquet_footer(data: bytes, random: Random) -> bytes:
    """A footer damaged in place or in length, with its length made right again."""
    (length,) = struct.unpack("<I", data[-8:-4])
    body, footer = data[: -8 - length], data[-8 - length : -8]
    if random.random() < 0.3:
        return mutate_in_place(body, random) + data[-8 - length :]
    changed = mutate_bytes(footer, random) if random.random() < 0.5 else mutate_in_place(footer, random)
    return body + changed + struct.pack("<I", len(changed)) + data[-4:]


def _orc_tail(data: bytes, random: Random) -> bytes:
    """Footer, metadata and postscript damaged in place: the last bytes of a small file."""
    size = min(len(data) - 8, random.choice((20, 200, 1000)))
    return data[:-size] + mutate_in_place(data[-size:], random)
