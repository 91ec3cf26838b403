"""Avro files as a FileReader: runs of blocks as row groups, decoded in bulk by fastavro and turned into columns.

A block's records are decoded by one call, as an array of records. The container's bytes are the business of
`avro_container.py`, what the schema means that of `avro_schema.py`.
"""

import json
from collections.abc import Sequence
from io import BytesIO
from operator import itemgetter
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from scan_core.avro.codecs import MAX_EXPANSION, BlockTooLargeError, decompress
from scan_core.avro.container import Header
from scan_core.errors import MemoryLimitError, UnsupportedError
from scan_core.file_io import open_input
from scan_core.read.avro_container import (
    MAX_BLOCK_BYTES,
    Block,
    encode_long,
    read_block,
    read_header,
    record_bytes,
)
from scan_core.read.avro_schema import parse_record
from scan_core.read.file_reader import ReadCounts, RowGroup, refusing_malformed
from scan_core.read.memory_budget import DecodingLimits
from scan_core.read.whole_columns import WholeColumns
from scan_core.rows.algebra import select_rows
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.split import FileIOConfig

_GROUP_ROWS = 32_768
_GROUP_BYTES = 4 * 1024**2
_MAX_EMPTY_RECORDS = 1 << 24
_DECODED_SHARE = 2
"""What the records of a block may take, beside its bytes: half of the memory limit."""


def open_avro(path: str, io: FileIOConfig) -> "AvroFileReader":
    """Open an Avro file, read its header and find its blocks.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a header or block that contradicts itself.
        UnsupportedError: a codec that is not supported.
    """
    return AvroFileReader(path, open_input(path, io))


class AvroFileReader(WholeColumns):
    """An open Avro file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        self._most_bytes = MAX_BLOCK_BYTES
        with refusing_malformed(path, "header"):
            self._size = source.size()
            header = read_header(source, self._size)
            self._codec = header.codec
            if self._codec not in MAX_EXPANSION:
                raise UnsupportedError(f"{path}: Avro codec {self._codec!r:.40} is not supported")
            self._fields, plain, self._least_bytes = parse_record(json.loads(header.schema))
            self._schema = parse_schema({"type": "array", "items": plain})
            self.arrow_schema: pa.Schema = pa.schema([f.arrow() for f in self._fields])
        with refusing_malformed(path, "blocks"):
            blocks = self._find_blocks(header)
        self.has_field_ids = any(f.field_id is not None for f in self._fields)
        self.num_rows = sum(b.num_rows for b in blocks)
        self._groups = _group(blocks)
        self.row_groups: Sequence[RowGroup] = _row_groups(self._groups)
        self._decoded: tuple[int, list[list[dict[str, Any]]]] | None = None

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Top-level columns by index, only the selected rows.

        Raises:
            MalformedTableError: a block that cannot be decoded; names file and column.
        """
        del window
        if not column_indices or selected_count(selection) == 0:
            return [pa.array([], type=self.arrow_schema.field(i).type) for i in column_indices]
        blocks = self._decode(row_group.index)
        return select_rows([self._column(blocks, i) for i in column_indices], selection)

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """None: a block is decoded as a whole.

        Raises:
            MemoryLimitError: one that is too large for that.
        """
        del column_indices, rows
        self._most_bytes = min(limits.most_bytes, MAX_BLOCK_BYTES)
        for block in self._groups[row_group.index]:
            taken = max(record_bytes(block.num_rows, len(self._fields)), block.num_bytes)
            if taken > _DECODED_SHARE * limits.most_bytes:
                raise MemoryLimitError(
                    f"{self.path}: the block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes, "
                    f"which take about {taken} bytes to decode; raise memory_limit_bytes"
                )
        return None

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Rows are stored as a whole: all bytes, whatever the columns."""
        return row_group.num_bytes if column_indices else 0

    def close(self) -> None:
        """Release the file and the rows last decoded."""
        self._decoded = None
        self._source.close()

    def _find_blocks(self, header: Header) -> list[Block]:
        blocks: list[Block] = []
        offset = header.end
        while offset < self._size:
            block = read_block(self._source, offset, self._size, header.sync)
            most = _MAX_EMPTY_RECORDS
            if self._least_bytes:
                most = min(block.num_bytes * MAX_EXPANSION[self._codec], MAX_BLOCK_BYTES) // self._least_bytes
            if not 0 <= block.num_rows <= most:
                raise ValueError(f"block at {offset} claims {block.num_rows} records in {block.num_bytes} bytes")
            blocks.append(block)
            offset = block.next_offset
        return blocks

    def _decode(self, group: int) -> list[list[dict[str, Any]]]:
        """The records of every block of a row group; kept until another group is asked for."""
        if self._decoded is None or self._decoded[0] != group:
            self._decoded = None
            with refusing_malformed(self.path, f"blocks of row group {group}"):
                self._decoded = (group, [self._decode_block(b) for b in self._groups[group]])
        return self._decoded[1]

    def _decode_block(self, block: Block) -> list[dict[str, Any]]:
        if block.num_rows == 0:
            return []
        try:
            data = decompress(self._source.read_at(block.num_bytes, block.offset), self._codec, self._most_bytes)
        except BlockTooLargeError as error:
            raise MemoryLimitError(
                f"{self.path}: the block at {block.offset} becomes more than {self._most_bytes} bytes; raise "
                "memory_limit_bytes"
            ) from error
        stream = BytesIO(encode_long(block.num_rows) + data + b"\0")
        try:
            records: list[dict[str, Any]] = schemaless_reader(stream, self._schema, None)
        except (EOFError, RecursionError) as error:
            raise ValueError(f"block at {block.offset}: {error}") from error
        if stream.read(1) or len(records) != block.num_rows:
            raise ValueError(f"block at {block.offset} holds more than its {block.num_rows} records")
        return records

    def _column(self, blocks: Sequence[list[dict[str, Any]]], index: int) -> pa.Array:
        field = self._fields[index]
        with refusing_malformed(self.path, f"column {field.name!r}"):
            get = itemgetter(field.key)
            arrays = [pa.array(list(map(get, records)), type=field.type.stored) for records in blocks]
            if field.type.finish is not None:
                arrays = [field.type.finish(a) for a in arrays]
            return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _group(blocks: Sequence[Block]) -> list[list[Block]]:
    """Neighbouring blocks, so that a group has some tens of thousands of rows or some megabytes."""
    groups: list[list[Block]] = []
    rows = stored = 0
    for block in blocks:
        if not groups or rows >= _GROUP_ROWS or stored >= _GROUP_BYTES:
            groups.append([])
            rows = stored = 0
        groups[-1].append(block)
        rows += block.num_rows
        stored += block.num_bytes
    return groups


def _row_groups(groups: Sequence[Sequence[Block]]) -> tuple[RowGroup, ...]:
    result: list[RowGroup] = []
    position = 0
    for index, blocks in enumerate(groups):
        num_rows = sum(b.num_rows for b in blocks)
        result.append(RowGroup(index, position, num_rows, blocks[0].offset, sum(b.num_bytes for b in blocks)))
        position += num_rows
    return tuple(result)
