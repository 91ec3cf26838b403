"""Reads CSV files into text columns, accounting for every record.

An invalid record is rejected together with its bytes. Reading continues where it stopped before.

A kernel of our own finds the ends of records; Arrow's reader only parses them. Its `invalid_row_handler` cannot
replace the kernel: it gives the number of a row only without threads, never the offset; no Arrow reader reports how many
bytes the rows of a batch took, which is where the next run continues; text after a closing quote becomes part of the value
without an error, and a quote that is never closed takes the rest of the file into one value.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from nevermore.pipelines.decode.arrow_columns import single
from nevermore.pipelines.decode.batches import Rejected
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.jsonscan.value_kernels import require
from nevermore.pipelines.sources.file_documents import (
    SNIFFED_BYTES,
    Chunks,
    FilePiece,
    Piece,
    advanced_to,
    end_of,
    from_spans,
    of_file,
)
from nevermore.pipelines.sources.file_options import FileOptions, Layout, otherwise
from nevermore.pipelines.sources.file_position import ReadFile
from nevermore.scan_core import Mask
from nevermore.scan_core.native import kernel

GOOD, BLANK, BAD_QUOTE, UNCLOSED = range(4)
"""Status of a record: valid, an empty line, text after a closing quote, a quote that is never closed."""

_NEWLINE, _RETURN, _QUOTE = 0x0A, 0x0D, 0x22


@kernel("u8[] i64 bool i64[]= i32[]= i8[]=")
def split_records(  # noqa: C901, PLR0912, PLR0917 - one compiled loop; Numba inlines no generators
    data: NDArray[np.uint8],
    delimiter: int,
    is_all: bool,  # noqa: FBT001
    ends: NDArray[np.int64],
    widths: NDArray[np.int32],
    status: NDArray[np.int8],
) -> int:
    """Write the end of each record (after its newline), its number of fields and its status; return the number of records.

    A last record without a newline counts only if `is_all`; otherwise it may continue.
    """
    require(len(widths) >= len(ends) and len(status) >= len(ends))
    found = 0
    size = len(data)
    p = 0
    while p < size and found < len(ends):
        begin = p
        width = 1
        state = GOOD
        at_start = True
        quoted = False
        closed = False
        ended = False
        while p < size:
            byte = data[p]
            if quoted:
                if byte == _QUOTE:
                    if p + 1 < size and data[p + 1] == _QUOTE:
                        p += 1
                    else:
                        quoted = False
                        closed = True
            elif byte in (_NEWLINE, _RETURN):
                ended = True
                break
            elif byte == delimiter:
                width += 1
                at_start = True
                closed = False
                p += 1
                continue
            elif byte == _QUOTE and at_start:
                quoted = True
            elif closed:
                state = BAD_QUOTE
            at_start = False
            p += 1
        if not ended and not is_all:
            return found
        if quoted:
            state = UNCLOSED
        if p == begin:
            state = BLANK
        if ended:
            if data[p] == _RETURN and p + 1 == size and not is_all:
                return found  # the second byte of a CR LF may follow
            p += 2 if data[p] == _RETURN and p + 1 < size and data[p + 1] == _NEWLINE else 1
        ends[found] = p
        widths[found] = width
        status[found] = state
        found += 1
    return found


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DELIMITERS = (",", ";", "\t", "|")
LOAD_WITHOUT = ("Op", "op", "OP")
"""AWS DMS omits its first column in the files of a full load."""
MAX_RAW_BYTES = 1024 * 1024
_REASONS = {BAD_QUOTE: "text after a closing quote", UNCLOSED: "unclosed quote"}


@dataclass(frozen=True)
class Dialect:
    """The format of the records of one file.

    Attributes:
        names: names of the columns.
        delimiter: the delimiter, one byte.
        first_byte: offset of the first record that is not a header.
        null_value: text that means NULL in addition to the empty text, or None.
    """

    names: tuple[str, ...]
    delimiter: str
    first_byte: int
    null_value: str | None


@dataclass(frozen=True)
class Records:
    """A run of records of a file.

    Attributes:
        rows: valid records, as columns of text.
        numbers: numbers of these rows among all records.
        rejected: invalid records, without the name of the file.
        count: number of both.
        num_bytes: size of both, including blank lines.
    """

    rows: pa.Table
    numbers: NDArray[np.int64]
    rejected: Rejected
    count: int
    num_bytes: int


def dialect_of(head: bytes, suffix: str, options: FileOptions, *, is_all: bool) -> Dialect | None:
    """Detect the dialect of a file from its first bytes; None if it has no complete record yet.

    Raises:
        SourceError: the header is invalid, or the delimiter ambiguous.
    """
    if head[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        raise SourceError("the file is UTF-16; CSV must be UTF-8")
    begin = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    text = head[begin:]
    # The delimiter only affects where a quoted value may begin; a comma finds the same ends of records as any other.
    delimiter = options.delimiter or ("\t" if suffix == ".tsv" else _delimiter(text))
    ends, widths, status = np.empty(64, np.int64), np.empty(64, np.int32), np.empty(64, np.int8)
    found = split_records(np.frombuffer(text, np.uint8), ord(delimiter), is_all, ends, widths, status)
    first = next((i for i in range(found) if status[i] != BLANK), None)
    if first is None:
        return None
    record = text[ends[first - 1] if first else 0 : ends[first]]
    names: Sequence[str] = options.columns
    if not options.header:
        names = names or [f"f{i}" for i in range(int(widths[first]))]
        if len(names) == widths[first] + 1 and names[0] in LOAD_WITHOUT:
            names = names[1:]
        return Dialect(tuple(names), delimiter, begin, options.null_value)
    names = names or _header(record, delimiter)
    return Dialect(tuple(names), delimiter, begin + int(ends[first]), options.null_value)


def read_records(data: pa.Buffer, dialect: Dialect, first: int, max_rows: int, *, is_all: bool) -> Records:
    """Read the complete records at the beginning of the bytes; `first` is the number of the first record."""
    view = np.frombuffer(data, np.uint8)
    most = min(max_rows, max(len(view), 1))
    ends, widths, status = np.empty(most, np.int64), np.empty(most, np.int32), np.empty(most, np.int8)
    found = split_records(view, ord(dialect.delimiter), is_all, ends, widths, status)
    ends, widths, status = ends[:found], widths[:found], status[:found]
    begins = np.concatenate([[0], ends[:-1]]) if found else ends
    used = int(ends[-1]) if found else 0
    is_record = status != BLANK
    begins, ends, widths, status = (array[is_record] for array in (begins, ends, widths, status))
    numbers = first + np.arange(len(ends), dtype=np.int64)
    good = (status == GOOD) & (widths == len(dialect.names))
    chosen = data.slice(0, used) if good.all() else from_spans(data, begins[good], ends[good]).buffers()[2]
    table = _parsed(chosen, dialect)
    if table.num_rows != int(good.sum()):
        raise SourceError(f"CSV whose records cannot be separated after record {first}: check delimiter and quotes")
    table, garbled = _as_text(table)
    reasons: dict[int, str] = {}
    for row in np.flatnonzero(~good).tolist():
        width, wanted = int(widths[row]), len(dialect.names)
        reasons[row] = _REASONS.get(int(status[row]), f"{width} values for {wanted} columns")
    reasons |= dict.fromkeys(np.flatnonzero(good)[garbled].tolist(), "not UTF-8")
    rows = table.filter(pa.array(~garbled)) if garbled.any() else table
    rejected = [
        (int(numbers[row]), reasons[row], view[begins[row] : ends[row]][:MAX_RAW_BYTES].tobytes())
        for row in sorted(reasons)
    ]
    return Records(rows, numbers[good][~garbled], _rejected(rejected), len(numbers), used)


def _header(record: bytes, delimiter: str) -> list[str]:
    try:
        (names,) = csv.reader(StringIO(record.decode(), newline=""), delimiter=delimiter, strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise SourceError(f"no CSV header in {record[:80]!r}: {error}") from error
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(f"the CSV header names {', '.join(twice)!r} twice; give other names with columns: [...]")
    if "" in names:
        raise SourceError(f"the CSV header has no name for column {names.index('') + 1}; give them with columns: [...]")
    return names


def _delimiter(text: bytes) -> str:
    line = text.lstrip(b"\r\n").partition(b"\n")[0]
    found = [mark for mark in _DELIMITERS if mark.encode() in line]
    if len(found) > 1 and "," not in found:
        shown = " and ".join(repr(mark) for mark in found)
        raise SourceError(f"the first line holds {shown}: set the delimiter (delimiter: ...)")
    return "," if "," in found or not found else found[0]


def _parsed(data: pa.Buffer, dialect: Dialect) -> pa.Table:
    if not data.size:
        return pa.table({name: pa.array([], pa.binary()) for name in dialect.names})
    nulls = ["", *([dialect.null_value] if dialect.null_value is not None else [])]
    try:
        return pa.csv.read_csv(
            pa.BufferReader(data),
            pa.csv.ReadOptions(block_size=int(data.size) + 1, column_names=list(dialect.names)),
            pa.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(dialect.names, pa.binary()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=nulls,
            ),
        )
    except pa.ArrowInvalid as error:
        raise SourceError(f"not CSV: {error}") from error


def _as_text(table: pa.Table) -> tuple[pa.Table, Mask]:
    """Decode a table's bytes to text; also return the mask of rows that are not valid UTF-8."""
    garbled = np.zeros(table.num_rows, np.bool_)
    columns = []
    for column in table.columns:
        array, bad = cast_each(single(column), pa.string())
        columns.append(array)
        garbled |= bad
    return pa.table(columns, names=table.column_names), garbled


def _rejected(found: list[tuple[int, str, bytes]]) -> Rejected:
    if not found:
        return Rejected.none()
    numbers, reasons, raw = zip(*found, strict=True)
    return Rejected.of(len(found), None, pa.array(numbers), pa.array(reasons), pa.array(raw, pa.binary()), None)


def read_csv(chunks: Chunks, head: bytes, known: ReadFile, options: FileOptions, suffix: str) -> Iterator[FilePiece]:
    """Read the records that are not read yet; `head` holds the first bytes of the file."""
    waits = chunks.seekable and not options.report_incomplete
    dialect = dialect_of(head, suffix, options, is_all=len(head) < SNIFFED_BYTES and not waits)
    if dialect is None:
        if len(head) >= SNIFFED_BYTES:
            raise SourceError(f"not CSV: no record ends within {SNIFFED_BYTES} bytes")
        yield end_of(replace(known, waiting=bool(head.strip()) and waits))
        return
    # Records that are known from the change log alone have no byte position: they are counted again and skipped.
    applied = known.lines if known.layout != Layout.CSV.value else 0
    if known.layout != Layout.CSV.value or known.read_bytes == 0:
        known = replace(known, read_bytes=dialect.first_byte, lines=0, layout=Layout.CSV.value)
    chunks.skip_exactly(known.read_bytes)
    wanted = options.batch_bytes
    while True:
        data, is_last = chunks.read(wanted)
        is_all = is_last and not waits
        part = read_records(data, dialect, known.lines + 1, options.batch_rows, is_all=is_all)
        chunks.give_back(data, part.num_bytes)
        if part.num_bytes:
            before, known = (
                known,
                replace(known, read_bytes=known.read_bytes + part.num_bytes, lines=known.lines + part.count),
            )
            yield _csv_piece(part, before, known, applied)
        if is_last and part.num_bytes in {data.size, 0}:
            break
        if not part.num_bytes and wanted >= (most := options.max_event_bytes):
            raise SourceError(
                f"a CSV record of more than {most} bytes after record {known.lines}: an unclosed quote? If not, "
                f"{otherwise(most, 'shorten it')}"
            )
        wanted = options.batch_bytes if part.num_bytes else min(2 * wanted, options.max_event_bytes)
    yield end_of(replace(known, waiting=bool(data.size - part.num_bytes)))


def _csv_piece(part: Records, before: ReadFile, after: ReadFile, applied: int) -> FilePiece:
    rows, numbers, rejected = part.rows, part.numbers, part.rejected.table
    if applied >= before.lines + 1:
        keep = numbers > applied
        rows, numbers = rows.filter(pa.array(keep)), numbers[keep]
        rejected = rejected.filter(pc.greater(rejected.column("source_offset"), applied))
    piece = Piece(pa.nulls(rows.num_rows, pa.binary()), None, numbers, after.read_bytes, after.lines)
    before, after = (replace(advanced_to(f, applied), layout="") if applied > f.lines else f for f in (before, after))
    return FilePiece(piece, rows, before, after, of_file(Rejected(rejected), after.name))
