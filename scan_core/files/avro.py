"""Avro data files as a FileReader: runs of blocks as row groups, decoded in bulk (`metadata/avro_values.py`)."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from nevermore.scan_core.columns.file_reader import (
    DecodingLimits,
    FileReader,
    ReadCounts,
    RowGroup,
    refusing_malformed,
)
from nevermore.scan_core.io.files import open_input
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.avro_container import (
    MAX_EXPANSION,
    Block,
    BlockTooLargeError,
    Header,
    decompress,
    find_blocks,
    parse_avro_schema,
    read_file_header,
)
from nevermore.scan_core.metadata.avro_values import AvroReader, Found, parse_record
from nevermore.scan_core.model.errors import MemoryLimitError, UnsupportedError
from nevermore.scan_core.rows.selection import RowSelection, select_rows, selected_count

MAX_BLOCK_BYTES = 512 * 1024**2
"""Of a decompressed block; writers use 16 KB to 16 MB."""
_RECORD_BYTES, _FIELD_BYTES = 120, 64
"""Records are Python dicts for a moment."""


def record_bytes(num_rows: int, num_fields: int) -> int:
    """About how much the records of a block take while they are decoded."""
    return num_rows * (_RECORD_BYTES + _FIELD_BYTES * num_fields)


_GROUP_ROWS = 32_768
_GROUP_BYTES = 4 * 1024**2
_MAX_EMPTY_RECORDS = 1 << 24
_DECODED_SHARE = 2
"""Maximum memory for the records of a block, in addition to its bytes: half of the memory limit."""


def open_avro(path: str, io: FileIOConfig) -> "AvroFileReader":
    """Open an Avro file, read its header and find its blocks.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a header or block that contradicts itself.
        UnsupportedError: a codec that is not supported.
    """
    return AvroFileReader(path, open_input(path, io))


class AvroFileReader(FileReader):
    """An open Avro file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        self._max_bytes = MAX_BLOCK_BYTES
        with refusing_malformed(path, "header"):
            self._size = source.size()
            header = read_file_header(source, self._size)
            self._codec = header.codec
            if self._codec not in MAX_EXPANSION:
                raise UnsupportedError(f"{path}: Avro codec {self._codec!r:.40} is not supported")
            self._reader = AvroReader.of(parse_record(parse_avro_schema(header.schema)))
            self.arrow_schema: pa.Schema = self._reader.schema
        with refusing_malformed(path, "blocks"):
            blocks = self._find_blocks(header)
        self.has_field_ids = any(f.field_id is not None for f in self._reader.fields)
        self.num_rows = sum(b.num_rows for b in blocks)
        self._groups = _group(blocks)
        self.row_groups: Sequence[RowGroup] = _row_groups(self._groups)
        self._decoded: tuple[int, list[Found]] | None = None

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
        found = self._decode(row_group.index)
        return select_rows([self._column(found, i) for i in column_indices], selection)

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """None: a block is decoded as a whole.

        Raises:
            MemoryLimitError: a block is too large to be decoded as a whole.
        """
        del column_indices, rows
        self._max_bytes = min(limits.max_bytes, MAX_BLOCK_BYTES)
        for block in self._groups[row_group.index]:
            taken = max(record_bytes(block.num_rows, len(self._reader.fields)), block.num_bytes)
            if taken > _DECODED_SHARE * limits.max_bytes:
                raise MemoryLimitError(
                    f"{self.path}: the block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes, "
                    f"which take about {taken} bytes to decode; raise memory_limit_bytes"
                )
        return None

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """All bytes, for any columns: rows are stored as a whole."""
        return row_group.num_bytes if column_indices else 0

    def close(self) -> None:
        """Release the file and the rows last decoded."""
        self._decoded = None
        self._source.close()

    def _find_blocks(self, header: Header) -> list[Block]:
        blocks: list[Block] = []
        for block in find_blocks(self._source.read_at, header, self._size):
            most = _MAX_EMPTY_RECORDS
            if least := self._reader.min_bytes:
                most = min(block.num_bytes * MAX_EXPANSION[self._codec], MAX_BLOCK_BYTES) // least
            if block.num_rows > most:
                raise ValueError(f"block at {block.offset} claims {block.num_rows} records in {block.num_bytes} bytes")
            blocks.append(block)
        return blocks

    def _decode(self, group: int) -> list[Found]:
        """What was found in a row group; kept until another group is asked for."""
        if self._decoded is None or self._decoded[0] != group:
            self._decoded = None
            with refusing_malformed(self.path, f"blocks of row group {group}"):
                self._decoded = (group, self._reader.blocks(list(self._plain_blocks(group))))
        return self._decoded[1]

    def _plain_blocks(self, group: int) -> Iterator[tuple[int, bytes]]:
        for block in self._groups[group]:
            data = self._source.read_at(block.num_bytes, block.offset)
            try:
                yield block.num_rows, decompress(data, self._codec, self._max_bytes)
            except BlockTooLargeError as error:
                raise MemoryLimitError(
                    f"{self.path}: the block at {block.offset} becomes more than {self._max_bytes} bytes; raise "
                    "memory_limit_bytes"
                ) from error

    def _column(self, found: Sequence[Found], index: int) -> pa.Array:
        with refusing_malformed(self.path, f"column {self._reader.fields[index].name!r}"):
            return self._reader.column(found, index)


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
