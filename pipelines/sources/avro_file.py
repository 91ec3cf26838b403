"""Avro object container files as tables of physical columns, with the writer's schema in their metadata.

What the columns mean is decided by the decoders, event by event: a date that does not fit is no damaged file.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.errors import SourceError
from pipelines.formats.avro_messages import AvroReader, read_block, reader_of
from pipelines.formats.avro_types import AVRO_SCHEMA
from scan_core.read.avro_container import MAX_BLOCK_BYTES, SYNC_BYTES, decompress, read_header, read_long

_CODECS = ("null", "deflate", "bzip2", "xz", "zstandard", "snappy")
_PREFIX_BYTES = 20
"""Two numbers of at most ten bytes: records of a block and its length."""


def read_avro(stream: Any, batch_rows: int) -> Iterator[pa.Table]:
    """The rows of an Avro file, a block or part of one at a time.

    Raises:
        SourceError: damaged, compressed in an unknown way, or of a schema that no columns hold.
    """
    source = stream if stream.seekable() else pa.BufferReader(stream.read())
    try:
        size = source.size()
        metadata, sync, offset = read_header(source, size)
        codec = metadata.get("avro.codec", b"null").decode()
        if codec not in _CODECS:
            raise SourceError(f"Avro codec {codec!r:.40} is not supported; {', '.join(_CODECS)} are")
        document = metadata["avro.schema"].decode()
        reader = reader_of(document)
        while offset < size:
            table, offset = _block(source, offset, size=size, codec=codec, sync=sync, reader=reader)
            table = table.replace_schema_metadata({AVRO_SCHEMA: document.encode()})
            for first in range(0, table.num_rows, batch_rows):
                yield table.slice(first, batch_rows)
    except (ValueError, KeyError, IndexError, EOFError) as error:
        raise SourceError(f"no Avro file that can be read: {error}") from error


def _block(source: Any, offset: int, *, size: int, codec: str, sync: bytes, reader: AvroReader) -> tuple[pa.Table, int]:
    """The rows of the block at an offset, and where the next one begins."""
    prefix = source.read_at(min(_PREFIX_BYTES, size - offset), offset)
    count, used = read_long(prefix, 0)
    length, used = read_long(prefix, used)
    start, end = offset + used, offset + used + length
    if count < 0 or not 0 <= length <= MAX_BLOCK_BYTES or end + SYNC_BYTES > size:
        raise ValueError(f"the block at {offset} of {length} bytes ends outside of the file")
    if source.read_at(SYNC_BYTES, end) != sync:
        raise ValueError(f"the block at {offset} does not end with the file's sync marker")
    data = decompress(source.read_at(length, start), codec)
    table = read_block(data, count, reader)
    if table is None:
        raise ValueError(f"the block at {offset} does not hold the {count} records that it claims")
    return table, end + SYNC_BYTES
