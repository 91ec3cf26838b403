"""Avro object container files as tables of physical columns, with the writer's schema in their metadata.

What the columns mean is decided by the decoders, event by event: a date that does not fit is no damaged file.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.errors import SourceError
from pipelines.formats.avro_messages import AvroReader, read_records, reader_of
from pipelines.formats.avro_types import AVRO_SCHEMA
from scan_core.avro.codecs import MAX_EXPANSION, BlockTooLargeError, decompress
from scan_core.read.avro_container import Block, read_block, read_header, record_bytes

_DECODED_SHARE = 2
"""What the records of a block may take, beside its bytes: half of the memory limit."""


def read_avro(stream: Any, batch_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """The rows of an Avro file, a block or part of one at a time; a block must not take more than `most_bytes`.

    Raises:
        SourceError: damaged, compressed in an unknown way, or of a schema that no columns hold.
    """
    source = stream if stream.seekable() else pa.BufferReader(stream.read())
    try:
        size = source.size()
        header = read_header(source, size)
        if header.codec not in MAX_EXPANSION:
            raise SourceError(f"Avro codec {header.codec!r:.40} is not supported; {', '.join(MAX_EXPANSION)} are")
        document = header.schema.decode()
        reader = reader_of(document)
        offset = header.end
        while offset < size:
            block = read_block(source, offset, size, header.sync)
            table = _rows(source, block, header.codec, reader, most_bytes)
            offset = block.next_offset
            table = table.replace_schema_metadata({AVRO_SCHEMA: document.encode()})
            for first in range(0, table.num_rows, batch_rows):
                yield table.slice(first, batch_rows)
    except (ValueError, KeyError, IndexError, EOFError) as error:
        raise SourceError(f"no Avro file that can be read: {error}") from error


def _rows(source: Any, block: Block, codec: str, reader: AvroReader, most_bytes: int) -> pa.Table:
    if block.num_rows < 0:
        raise ValueError(f"the block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes")
    taken = max(record_bytes(block.num_rows, len(reader.fields)), block.num_bytes)
    if taken > _DECODED_SHARE * most_bytes or block.num_bytes > most_bytes:
        raise SourceError(
            f"the block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes, which take about "
            f"{taken} bytes to decode; raise memory_limit_bytes, or write smaller blocks"
        )
    try:
        data = decompress(source.read_at(block.num_bytes, block.offset), codec, most_bytes)
    except BlockTooLargeError as error:
        raise SourceError(
            f"the block at {block.offset} becomes more than {most_bytes} bytes; raise memory_limit_bytes, or write "
            "smaller blocks"
        ) from error
    table = read_records(data, block.num_rows, reader)
    if table is None:
        raise ValueError(f"the block at {block.offset} does not hold the {block.num_rows} records that it claims")
    return table
