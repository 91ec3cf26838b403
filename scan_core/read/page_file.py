"""The small Parquet file that chosen pages of a column chunk are decoded from.

It is a dictionary page, which may be absent, and data pages, copied byte for byte, under a footer that describes just
them. One is written for every column of every row group that rows are picked from, so what never changes is kept.
"""

from collections.abc import Sequence
from functools import lru_cache

from scan_core.read.footer import MAGIC, Chunk
from scan_core.read.footer_schema import Leaf
from scan_core.read.page_body import Raw
from scan_core.read.thrift import BINARY, I32, STRUCT
from scan_core.read.thrift_writer import I32Value, ListValue, RawStruct, write_struct

_REMEMBERED_COLUMNS = 4_096
_ROW_GROUPS = b"\x19\x1c\x19\x1c\x26\x08\x1c"
"""A list of one row group, whose first field is a list of one column chunk, at 4, whose next field is its metadata."""
_I64, _I64_AFTER_NEXT = b"\x16", b"\x26"
"""Headers of the field after the last one, and of the one after that."""
_END = b"\x00"


def page_file(chunk: Chunk, leaf: Leaf, content: tuple[Raw, Sequence[Raw]], num_values: int, num_rows: int) -> bytes:
    """A Parquet file of one column and one row group.

    Args:
        chunk: that the pages are from.
        leaf: its leaf column, the only one of its top-level column.
        content: the dictionary page, which may be empty, and the data pages.
        num_values: in the data pages.
        num_rows: in the data pages.
    """
    dictionary, pages = content
    schema, column = _unchanging(leaf, tuple(chunk.metadata[2]), chunk.metadata[4])
    size, rows = _integer(len(dictionary) + sum(map(len, pages))), _integer(num_rows)
    footer = b"".join(
        (
            *(schema, _I64, rows, _ROW_GROUPS),
            *(
                column,
                _I64,
                _integer(num_values),
                _I64,
                size,
                _I64,
                size,
                _I64_AFTER_NEXT,
                _integer(4 + len(dictionary)),
            ),
            *((_I64_AFTER_NEXT, _integer(4)) if dictionary else ()),
            *(_END, _END, _I64, size, _I64, rows, _END, _END),
        )
    )
    return b"".join((MAGIC, dictionary, *pages, footer, len(footer).to_bytes(4, "little"), MAGIC))


@lru_cache(maxsize=_REMEMBERED_COLUMNS)
def _unchanging(leaf: Leaf, encodings: tuple[int, ...], codec: int) -> tuple[bytes, bytes]:
    """The beginnings of the footer, up to its schema, and of the column's metadata, up to its codec."""
    schema = write_struct(
        {
            1: I32Value(2),
            2: ListValue(STRUCT, [{4: b"schema", 5: I32Value(1)}, *map(RawStruct, leaf.elements)]),
        }
    )
    column = write_struct(
        {
            1: I32Value(leaf.physical_type),
            2: ListValue(I32, [I32Value(encoding) for encoding in encodings]),
            3: ListValue(BINARY, [part.encode() for part in leaf.path]),
            4: I32Value(codec),
        }
    )
    return schema[:-1], column[:-1]  # without their ends: more fields follow


def _integer(value: int) -> bytes:
    """A number that is not negative, as an i64 is written."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
