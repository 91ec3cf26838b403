"""The records of a CSV file in pieces, from where reading stopped."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import Rejected
from pipelines.errors import SourceError
from pipelines.sources.csv_file import Records, dialect_of, read_records
from pipelines.sources.file_chunks import Chunks
from pipelines.sources.file_documents import Piece
from pipelines.sources.file_layout import SNIFFED_BYTES, Layout
from pipelines.sources.file_options import FileOptions
from pipelines.sources.file_piece import FilePiece, behind, end_of
from pipelines.sources.file_position import ReadFile


def read_csv(chunks: Chunks, head: bytes, known: ReadFile, options: FileOptions, suffix: str) -> Iterator[FilePiece]:
    """The records behind those that are read already; `head` are the first bytes of the file."""
    waits = chunks.seekable and not options.report_incomplete
    dialect = dialect_of(head, suffix, options, is_all=len(head) < SNIFFED_BYTES and not waits)
    if dialect is None:
        if len(head) >= SNIFFED_BYTES:
            raise SourceError(f"no CSV: no record ends within {SNIFFED_BYTES} bytes")
        yield end_of(replace(known, waiting=bool(head.strip()) and waits))
        return
    # Without a byte position (a position of before there were any) records are counted again and left out.
    applied = known.lines if known.layout != Layout.CSV.value else 0
    if known.layout != Layout.CSV.value or known.read_bytes == 0:
        known = replace(known, read_bytes=dialect.first_byte, lines=0, layout=Layout.CSV.value)
    chunks.skip_exactly(known.read_bytes)
    wanted = options.batch_bytes
    while True:
        data, is_last = chunks.some(wanted)
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
        wanted = options.batch_bytes if part.num_bytes else 2 * wanted
        if wanted > options.most_event_bytes:
            raise SourceError(
                f"a CSV record of more than {options.most_event_bytes} bytes behind record {known.lines}: a quote? If not, "
                "raise memory_limit_bytes"
            )
    yield end_of(replace(known, waiting=bool(data.size - part.num_bytes)))


def _csv_piece(part: Records, before: ReadFile, after: ReadFile, applied: int) -> FilePiece:
    rows, numbers, rejected = part.rows, part.numbers, part.rejected.table
    if applied >= before.lines + 1:
        keep = numbers > applied
        rows, numbers = rows.filter(pa.array(keep)), numbers[keep]
        rejected = rejected.filter(pc.greater(rejected.column("source_offset"), applied))
    names = pa.array([after.name] * rejected.num_rows, pa.string())
    rejected = rejected.set_column(0, rejected.schema.field(0), names)
    piece = Piece(pa.nulls(rows.num_rows, pa.binary()), None, numbers, after.read_bytes, after.lines)
    before, after = (replace(behind(f, applied), layout="") if applied > f.lines else f for f in (before, after))
    return FilePiece(piece, rows, before, after, Rejected(rejected))
