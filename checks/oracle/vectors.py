"""Deletion vectors: the blob in a Puffin file, checked and decoded (rule 6)."""

import struct
import zlib

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from checks.oracle.facts import FileFacts, RefusedError, TableFacts

_MAGIC = b"\xd1\xd3\x39\x64"


def positions(table: TableFacts, vector: FileFacts) -> npt.NDArray[np.int64]:
    """Deleted positions, ascending."""
    where = f"{vector.path}: deletion vector of {vector.referenced_data_file}"
    if vector.content_offset is None or vector.content_size is None or vector.referenced_data_file is None:
        raise RefusedError(f"{where}: offset, size or data file is missing")
    with open(table.local(vector.path), "rb") as file:  # noqa: PTH123 - only a slice of the file is read
        file.seek(vector.content_offset)
        blob = file.read(vector.content_size)
    if len(blob) != vector.content_size or len(blob) < 20:
        raise RefusedError(f"{where}: the blob is truncated")
    (length,) = struct.unpack_from(">i", blob, 0)
    if length != len(blob) - 8 or blob[4:8] != _MAGIC:
        raise RefusedError(f"{where}: wrong length {length} or magic {blob[4:8].hex()}")
    (checksum,) = struct.unpack_from(">I", blob, len(blob) - 4)
    if checksum != zlib.crc32(blob[4:-4]):
        raise RefusedError(f"{where}: the checksum is wrong")
    found = _decode(blob[8:-4])
    if len(found) != vector.record_count:
        raise RefusedError(f"{where}: {len(found)} positions, the manifest says {vector.record_count}")
    return found


def _decode(payload: bytes) -> npt.NDArray[np.int64]:
    (count,) = struct.unpack_from("<q", payload, 0)
    offset, parts = 8, []
    for _ in range(count):
        (high,) = struct.unpack_from("<i", payload, offset)
        bitmap = BitMap.deserialize(payload[offset + 4 :])
        parts.append(np.array(bitmap, dtype=np.int64) + (np.int64(high) << 32))
        offset += 4 + len(bitmap.serialize())
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
