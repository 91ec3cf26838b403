"""The footer of a Parquet file as checked facts: row groups, column chunks, statistics, where the page index lies.

pyarrow's own metadata objects end the process on a footer that contradicts itself, so they are not asked; here such a
footer is refused. Decoding pages is pyarrow's, which reports what it cannot read.
"""

import struct
from dataclasses import dataclass
from typing import Any

from scan_core.errors import MalformedTableError, UnsupportedError
from scan_core.read.byte_ranges import ByteSource
from scan_core.read.checksums import Checksums, verified_parts, without_entries
from scan_core.read.footer_fields import read_encoded, row_groups_reader
from scan_core.read.footer_schema import FooterSchema, Leaf, read_schema
from scan_core.read.thrift import Struct, ThriftError, read_struct

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
MAX_FOOTER_BYTES = 512 * 1024**2
"""The largest footers seen are some 100 MB."""
LEAST_TAIL_BYTES = 64 * 1024
"""Read at once from the end of a file: most footers fit."""

PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY = 0, 2, 8
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk; `metadata` is its ColumnMetaData by field id, `pages` its page index by (offset, length)."""

    metadata: Struct
    offset_index: tuple[int, int] | None
    column_index: tuple[int, int] | None
    start: int
    num_bytes: int
    num_values: int

    @property
    def uncompressed_bytes(self) -> int:
        """Of all its pages."""
        return int(self.metadata[6])

    @property
    def dictionary_page_offset(self) -> int | None:
        """Where its dictionary page begins, if it has one."""
        return None if self.start == self.metadata[9] else self.start

    @property
    def bloom_filter(self) -> tuple[int, int | None] | None:
        """Offset of its Bloom filter, and the length if the footer states one."""
        offset, length = self.metadata.get(14), self.metadata.get(15)
        if not isinstance(offset, int) or offset <= 0:
            return None
        return offset, length if isinstance(length, int) and length > 0 else None

    @property
    def null_count(self) -> int | None:
        """Of its statistics, where they tell and it can be."""
        found = (self.statistics or {}).get(3)
        return found if isinstance(found, int) and 0 <= found <= self.num_values else None

    @property
    def has_dictionary(self) -> bool:
        """True if some page is dictionary-encoded."""
        encodings = self.metadata.get(2)
        return isinstance(encodings, list) and (PLAIN_DICTIONARY in encodings or RLE_DICTIONARY in encodings)

    @property
    def statistics(self) -> Struct | None:
        """Statistics by field id."""
        found = self.metadata.get(12)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class RowGroupFacts:
    """A row group: one chunk per leaf of the schema."""

    num_rows: int
    chunks: tuple[Chunk, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Footer:
    """The facts of one file.

    `schema_identity` is equal where schema and key-value metadata are, byte for byte; `checksums` are of the parts that
    Parquet gives none, in files of our writers.
    """

    num_rows: int
    leaves: tuple[Leaf, ...]
    row_groups: tuple[RowGroupFacts, ...]
    has_column_orders: bool
    schema_identity: bytes
    checksums: Checksums | None = None


def read_footer(source: ByteSource, path: str, tail_bytes: int = LEAST_TAIL_BYTES) -> tuple[Footer, bytes]:
    """Read and check the footer; with it come its bytes. `tail_bytes` are asked for before its length is known.

    Raises:
        MalformedTableError: not a Parquet file, or a footer that contradicts itself or the file.
        UnsupportedError: encrypted.
    """
    size = source.size()
    if size < 12:
        raise MalformedTableError(f"{path}: footer: {size} bytes are no Parquet file")
    tail = source.read_tail(tail_bytes)
    if tail[-4:] == ENCRYPTED_MAGIC:
        raise UnsupportedError(f"{path}: encrypted Parquet files are not supported")
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != MAGIC or not 0 < length <= min(size - 12, MAX_FOOTER_BYTES):
        raise MalformedTableError(f"{path}: footer: no Parquet file, or a truncated one")
    data = tail[-8 - length : -8] if length + 8 <= len(tail) else source.read_at(length, size - 8 - length)
    try:
        return parse_footer(bytes(data), size), bytes(data)
    except UnsupportedError as error:
        raise UnsupportedError(f"{path}: footer: {error}") from error
    except (ThriftError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise MalformedTableError(f"{path}: footer: {_reason(error)}") from error


def parse_footer(data: bytes, size: int) -> Footer:
    """The facts of a footer's bytes, in a file of so many bytes; raises what malformed bytes lead to."""
    parts = verified_parts(data, size)
    document, _ = read_struct(data, readers={2: read_schema, 4: row_groups_reader(), 5: read_encoded})
    if 8 in document:
        raise UnsupportedError("encrypted Parquet files are not supported")
    schema: FooterSchema = document[2]
    leaves = schema.leaves
    groups = tuple(_row_group(group, leaves, size, index) for index, group in enumerate(document.get(4, [])))
    num_rows = document[3]
    if num_rows != sum(g.num_rows for g in groups):
        raise ValueError(f"{num_rows} rows, but its row groups have {sum(g.num_rows for g in groups)}")
    identity = schema.encoded + without_entries(document.get(5, b""))
    checksums = None if parts is None else parts(len(groups), len(leaves))
    return Footer(num_rows, leaves, groups, len(document.get(7, ())) == len(leaves), identity, checksums)


def _row_group(group: Struct, leaves: tuple[Leaf, ...], size: int, index: int) -> RowGroupFacts:
    columns, num_rows = group[1], group[3]
    if len(columns) != len(leaves):
        raise ValueError(f"row group {index} has {len(columns)} of {len(leaves)} columns")
    if num_rows < 0:
        raise ValueError(f"row group {index} has {num_rows} rows")
    chunks = tuple(_chunk(column, leaf, size, num_rows, index) for column, leaf in zip(columns, leaves, strict=True))
    return RowGroupFacts(num_rows, chunks, sum(c.uncompressed_bytes for c in chunks))


def _chunk(column: Struct, leaf: Leaf, size: int, num_rows: int, index: int) -> Chunk:
    if 8 in column or 9 in column:
        raise UnsupportedError(f"column {'.'.join(leaf.path)} is encrypted, which is not supported")
    if column.get(1):
        raise UnsupportedError(f"column {'.'.join(leaf.path)} lies in another file, which is not supported")
    metadata = column[3]
    if metadata[1] != leaf.physical_type:
        raise ValueError(f"{_where(leaf, index)} has physical type {metadata[1]}, the schema {leaf.physical_type}")
    data_start, length, num_values = metadata[9], metadata[7], metadata[5]
    dictionary = metadata.get(11)
    start = dictionary if dictionary is not None and 4 <= dictionary < data_start else data_start
    outside = start < 4 or start + length > size
    if length < 0 or metadata[6] < 0 or (outside and num_rows):  # an empty row group has no bytes to point at
        raise ValueError(f"{_where(leaf, index)} at {start}, {length} bytes, lies outside of the file of {size} bytes")
    if num_values < 0 or (leaf.max_repetition_level == 0 and num_values != num_rows):
        raise ValueError(f"{_where(leaf, index)} has {num_values} values in {num_rows} rows")
    return Chunk(metadata, _range(column, 4, 5, size), _range(column, 6, 7, size), start, length, num_values)


def _range(column: Struct, offset_id: int, length_id: int, size: int) -> tuple[int, int] | None:
    """An index outside of the file is as good as none: it only ever saves work."""
    offset, length = column.get(offset_id), column.get(length_id)
    if offset is None or length is None or offset < 4 or length <= 0 or offset + length > size:
        return None
    return offset, length


def _where(leaf: Leaf, row_group: int) -> str:
    return f"row group {row_group}: column {'.'.join(leaf.path)}"


def _reason(error: Exception) -> Any:
    return f"lacks field {error}" if isinstance(error, KeyError) else error
