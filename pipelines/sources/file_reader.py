"""Reads a single event file in pieces, continuing where reading stopped.

Detects the kind of file and its compression. Contains the readers of text, framed messages, Parquet and Avro
container files; CSV is in `csv_file.py`. Files are selected in `files.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nevermore.pipelines.decode.avro import AVRO_SCHEMA, AvroReader, reader_of
from nevermore.pipelines.decode.batches import Rejected, lost_events
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.sources.csv_file import read_csv
from nevermore.pipelines.sources.file_documents import (
    SNIFFED_BYTES,
    SPACE,
    Chunks,
    FilePiece,
    Piece,
    Undecided,
    advanced_to,
    after_last_newline,
    comment_length,
    end_of,
    is_complete,
    of_file,
    sniff_layout,
    split_documents,
    split_frames,
    split_keys,
    split_lines,
)
from nevermore.pipelines.sources.file_listing import FileSystem, ListedFile, is_quiet, open_file
from nevermore.pipelines.sources.file_options import EVENT_SHARE, FileOptions, Layout, otherwise
from nevermore.pipelines.sources.file_position import ReadFile
from nevermore.pipelines.workers import ahead
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import ByteRanges
from nevermore.scan_core.metadata import (
    MAX_EXPANSION,
    Block,
    BlockTooLargeError,
    decompress,
    find_blocks,
    read_file_header,
)
from nevermore.scan_core.parts import (
    DecodedSizes,
    DecodingLimits,
    has_wide_differences,
    read_layout,
    read_wide_differences,
    record_bytes,
)

_DECODED_SHARE = 2
"""Maximum memory for the records of a block, in addition to its bytes: half of the memory limit."""


def read_avro(source: Any, options: FileOptions) -> Iterator[pa.Table]:
    """Read the rows of an Avro object container file, by blocks or parts of blocks.

    Raises:
        SourceError: the file is damaged, or its codec or schema is not supported.
    """
    max_bytes = options.max_event_bytes
    try:
        size = source.size()
        header = read_file_header(source, size)
        if header.codec not in MAX_EXPANSION:
            raise SourceError(
                f"Avro codec {header.codec!r:.40} is not supported; supported are {', '.join(MAX_EXPANSION)}"
            )
        document = header.schema.decode()
        reader = reader_of(document)
        claimed: list[int] = []
        num_read = 0
        blocks = _together(_counted(find_blocks(source.read_at, header, size), claimed))
        for some, rows in ahead(partial(_rows_ahead, source, b, header.codec, reader, max_bytes) for b in blocks):
            tables = [rows] if rows is not None else (_rows(source, [b], header.codec, reader, max_bytes) for b in some)
            for table in tables:
                num_read += table.num_rows
                described = table.replace_schema_metadata({AVRO_SCHEMA: document.encode()})
                for first in range(0, table.num_rows, options.batch_rows):
                    yield described.slice(first, options.batch_rows)
        _require_every_row(num_read, sum(claimed))
    except (ValueError, KeyError, IndexError, EOFError) as error:
        raise SourceError(f"unreadable Avro file: {error}") from error


def _counted(blocks: Iterable[Block], claimed: list[int]) -> Iterator[Block]:
    """The blocks, whose numbers of rows are noted as they are found."""
    for block in blocks:
        claimed.append(block.num_rows)
        yield block


def _require_every_row(found: int, stated: int) -> None:
    """As many rows are read as the file states.

    Raises:
        LostEventsError: there are fewer or more.
    """
    if found != stated:
        raise lost_events(f"{found} rows were read of a file that states {stated}")


def _seekable(stream: Any, max_bytes: int) -> Any:
    """The file itself, or in memory if it is compressed as a whole: its records are found from other places in it."""
    if stream.seekable():
        return stream
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise SourceError(
            f"decompressed, the file has more than {max_bytes} bytes, and it has to be in memory as a whole: "
            f"{otherwise(max_bytes, 'decompress it')}"
        )
    return pa.BufferReader(data)


_AHEAD_BYTES = 8 * 1024**2
"""Bytes of blocks that are decoded ahead; larger ones are decoded one at a time."""
_TOGETHER_ROWS, _TOGETHER_BYTES = 32_768, 1024**2
"""Blocks are decoded together up to this: writers make them of 16 KB or more."""


def _together(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Neighbouring blocks, so that a call has many rows."""
    some: list[Block] = []
    rows = stored = 0
    for block in blocks:
        if some and (rows + block.num_rows > _TOGETHER_ROWS or stored + block.num_bytes > _TOGETHER_BYTES):
            yield some
            some, rows, stored = [], 0, 0
        some.append(block)
        rows += block.num_rows
        stored += block.num_bytes
    if some:
        yield some


def _rows_ahead(
    source: Any, blocks: list[Block], codec: str, reader: AvroReader, max_bytes: int
) -> tuple[list[Block], pa.Table | None]:
    """(blocks, their rows; None if they are large or one of them cannot be read)."""
    try:
        return blocks, _rows(source, blocks, codec, reader, min(max_bytes, _AHEAD_BYTES))
    except (SourceError, ValueError):
        return blocks, None


def _rows(source: Any, blocks: Sequence[Block], codec: str, reader: AvroReader, max_bytes: int) -> pa.Table:
    """The rows of blocks; where they cannot be read, the first block is named: errors are those of single ones."""
    first = blocks[0]
    num_rows, num_bytes = sum(b.num_rows for b in blocks), sum(b.num_bytes for b in blocks)
    taken = max(record_bytes(num_rows, len(reader.types)), num_bytes)
    if taken > _DECODED_SHARE * max_bytes or num_bytes > max_bytes:
        raise SourceError(
            f"the block at {first.offset} claims {num_rows} records in {num_bytes} bytes, which take about "
            f"{taken} bytes to decode; {otherwise(max_bytes, 'write smaller blocks')}"
        )
    contents: list[tuple[int, bytes]] = []
    left = max_bytes
    for block in blocks:
        try:
            data = decompress(source.read_at(block.num_bytes, block.offset), codec, left)
        except BlockTooLargeError as error:
            raise SourceError(
                f"the block at {block.offset} becomes more than {max_bytes} bytes; "
                f"{otherwise(max_bytes, 'write smaller blocks')}"
            ) from error
        contents.append((block.num_rows, data))
        left -= len(data)
    table = reader.read_blocks(contents)
    if table is None:
        raise ValueError(f"the block at {first.offset} does not hold the {num_rows} records that it claims")
    return table


def read_parquet(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """Read the rows of a Parquet file."""
    name = "the Parquet file"  # its path is in the caller's message
    try:
        source = ByteRanges(stream)
        layout = read_layout(source, name)
        sizes, leaves = DecodedSizes(name, source, layout), range(len(layout.footer.leaves))
        limits = DecodingLimits.of(options.max_event_bytes * EVENT_SHARE, options.batch_bytes)
        num_read = 0
        with pq.ParquetFile(stream, metadata=layout.metadata) as file:
            _check_names(file.schema_arrow, "")
            for group in layout.row_groups:
                windows = sizes.windows(group, leaves, range(group.num_rows), limits)
                max_rows = options.batch_rows if windows is None else min(options.batch_rows, *map(len, windows))
                columns = range(len(layout.columns.arrow_schema))
                wide = {
                    i: read_wide_differences(name, source, layout, group, i)
                    for i in columns
                    if has_wide_differences(layout, group.index, i)
                }
                kept = [leaf for i in columns if i not in wide for leaf in layout.columns.leaves[i]]
                for start in range(0, group.num_rows if wide and not kept else 0, max_rows):
                    table = pa.table(
                        [wide[i].slice(start, max_rows) for i in columns], layout.columns.arrow_schema.names
                    )
                    num_read += table.num_rows
                    yield table
                start = 0
                for batch in file.reader.iter_batches(max_rows, [group.index], kept, True) if kept else ():
                    table = pa.Table.from_batches([batch]).replace_schema_metadata(None)
                    for i, array in wide.items():
                        table = table.add_column(i, layout.columns.fields[i].name, array.slice(start, len(batch)))
                    start += len(batch)
                    num_read += table.num_rows
                    yield table
            _require_every_row(num_read, layout.metadata.num_rows)
    except ScanError as error:
        raise SourceError(str(error)) from error


def _check_names(fields: Iterable[pa.Field], inside: str) -> None:
    """Refuse a schema in which a column or a member occurs twice: whose values count is not known."""
    names = set()
    for field in fields:
        if field.name in names:
            raise SourceError(f"the Parquet file has {inside}{field.name!r} twice; write it once, or under two names")
        names.add(field.name)
        kind = field.type
        _check_names((kind.field(i) for i in range(kind.num_fields)), f"{inside}{field.name!r} with ")


READERS: Mapping[str, Callable[[Any, FileOptions], Iterator[pa.Table]]] = {
    ".parquet": read_parquet,
    ".avro": read_avro,
}


_TEXT_TABLES = (".csv", ".tsv")
_LINE_LAYOUTS = (Layout.LINES, Layout.KEYED_LINES, Layout.PSQL)


def read_text(chunks: Chunks, known: ReadFile, options: FileOptions, suffix: str) -> Iterator[FilePiece]:
    """Read the events of a text file that are not read yet."""
    head = chunks.peek(SNIFFED_BYTES)
    if _is_csv(head, known, options, suffix):
        options.check_for(Layout.CSV)
        yield from read_csv(chunks, head, known, options, suffix)
        return
    comment_bytes, comment_lines = comment_length(head)
    text = _blanked(head[comment_bytes:], options)
    layout = _layout(known, text, options)
    if isinstance(layout, Undecided):
        if layout is Undecided.NOTHING or not (options.report_incomplete or not chunks.seekable):
            yield end_of(replace(known, waiting=layout is not Undecided.NOTHING))
            return
        layout = _most_likely(layout)
    options.check_for(layout)
    is_same_event = layout is Layout.LINES or (layout is Layout.DOCUMENTS and known.lines == 1)
    if known.read_bytes and not known.layout and not is_same_event:
        raise SourceError(f"its first event was read as a line, before later ones showed {layout.value}; {_SET_LAYOUT}")
    if layout is Layout.FRAMED:
        yield from _read_frames(chunks, known, options)
        return
    if layout in _LINE_LAYOUTS:
        # the rest of the first line may still show that the file does not consist of lines
        is_cut = b"\n" not in text.lstrip(SPACE) and len(head) < SNIFFED_BYTES
        is_settled = bool(known.layout or options.layout) or layout is not Layout.LINES or not is_cut
        comment = (comment_bytes, comment_lines)
        yield from _read_lines(chunks, known, layout, options, comment, is_settled=is_settled)
    else:
        yield from _read_documents(chunks, known, layout, options, comment_bytes)


def _read_lines(
    chunks: Chunks, known: ReadFile, layout: Layout, options: FileOptions, comment: tuple[int, int], *, is_settled: bool
) -> Iterator[FilePiece]:
    # lines without a byte position are known from the change log: they are counted again and skipped
    applied = known.lines if known.read_bytes == 0 else 0
    begin, lines = comment if known.read_bytes == 0 else (known.read_bytes, known.lines)
    known = replace(known, read_bytes=chunks.skip(begin), lines=lines, waiting=False)
    known = replace(known, layout=layout.value if is_settled else "")
    while True:
        data, is_last = chunks.lines(options.batch_bytes, options.max_event_bytes)
        pending = is_last and chunks.seekable and _is_unfinished(data, layout, options.separator)
        # white space after the last newline may be the beginning of a line
        is_blank = is_last and chunks.seekable and not data.slice(after_last_newline(data)).to_pybytes().strip()
        whole = after_last_newline(data) if pending or is_blank else data.size
        begin = 0
        while begin < whole and not 0 < options.last_line <= known.lines:
            rest = data.slice(begin, whole - begin)
            piece = split_lines(rest, known.lines + 1, layout, options.batch_rows, options.separator)
            begin += piece.read_bytes
            before, known = known, replace(known, read_bytes=known.read_bytes + piece.read_bytes, lines=piece.lines)
            yield _lines_piece(
                _chosen(piece, options, applied), advanced_to(before, applied), advanced_to(known, applied)
            )
        if pending and options.report_incomplete:
            rest = split_lines(data.slice(whole), known.lines + 1, layout, 1, options.separator)
            yield _lines_piece(_chosen(rest, options, applied), known, known)
        if pending and not options.report_incomplete:
            known = replace(known, waiting=True)
        if is_last or 0 < options.last_line <= known.lines:
            break
    yield end_of(known)


def _lines_piece(piece: Piece, before: ReadFile, after: ReadFile) -> FilePiece:
    return FilePiece(piece, None, before, after, of_file(piece.rejected, after.name))


def _is_csv(head: bytes, known: ReadFile, options: FileOptions, suffix: str) -> bool:
    """Whether a text is CSV; dumps of `key TAB value` lines may also be named .tsv."""
    if known.layout or options.layout is not None:
        return Layout.CSV.value in {known.layout, options.layout}
    return suffix in _TEXT_TABLES and head.lstrip()[:1] not in {b"{", b"["}


def _read_frames(chunks: Chunks, known: ReadFile, options: FileOptions) -> Iterator[FilePiece]:
    chunks.skip_exactly(known.read_bytes)
    known = replace(known, layout=Layout.FRAMED.value, waiting=False)
    wanted = options.batch_bytes
    while True:
        data, is_last = chunks.read(wanted)
        piece, is_cut = split_frames(data, known.lines + 1, options.batch_rows)
        if len(piece.offsets):
            before, known = known, replace(known, read_bytes=known.read_bytes + piece.read_bytes, lines=piece.lines)
            yield FilePiece(piece, None, before, known)
        if is_last and (is_cut or piece.read_bytes == data.size):
            break
        if not len(piece.offsets) and wanted >= (most := options.max_event_bytes):
            raise SourceError(
                f"a message of more than {most} bytes: is the file framed? If so, {otherwise(most, 'write smaller messages')}"
            )
        # a message may be larger than one read
        wanted = options.batch_bytes if len(piece.offsets) else min(2 * wanted, options.max_event_bytes)
        chunks.give_back(data, piece.read_bytes)
    if is_cut and options.report_incomplete:
        raise SourceError(f"the file ends within message {known.lines + 1}")
    yield end_of(replace(known, waiting=is_cut))


def _read_documents(
    chunks: Chunks, known: ReadFile, layout: Layout, options: FileOptions, skipped_bytes: int
) -> Iterator[FilePiece]:
    data = chunks.read_all(options.max_event_bytes).slice(skipped_bytes)
    if options.comments:
        data = pa.py_buffer(_blanked(data.to_pybytes(), options))
    piece = split_documents(data, layout, known.lines)
    pending, lines = chunks.seekable and piece.may_grow, piece.lines
    if layout is not Layout.KEYED_DOCUMENTS:
        pending = bool(len(piece.documents)) and chunks.seekable and not is_complete(piece.documents[-1].as_py())
        lines -= pending
    known = replace(known, layout=layout.value if lines else "", waiting=False)
    if pending and not options.report_incomplete:
        count = len(piece.documents) - (piece.lines - lines)
        piece = replace(piece.slice(0, count), rejected=Rejected.none())
    for first in range(0, len(piece.offsets), options.batch_rows):
        part = piece.slice(first, options.batch_rows)
        read = min(int(part.offsets[-1]), lines)
        before, known = known, replace(known, lines=max(read, known.lines), read_bytes=known.size)
        yield FilePiece(part, None, before, known)
    waiting = pending and not options.report_incomplete
    read_bytes = known.size if lines else 0
    end = end_of(replace(known, lines=max(lines, known.lines), read_bytes=read_bytes, waiting=waiting))
    yield replace(end, rejected=of_file(piece.rejected, known.name))


def _chosen(piece: Piece, options: FileOptions, applied: int) -> Piece:
    """The lines selected by the options, without the first `applied` ones."""
    comments = 0

    def chosen(numbers: NDArray[np.int64], texts: pa.BinaryArray) -> NDArray[np.bool_]:
        nonlocal comments
        keep: NDArray[np.bool_] = numbers >= max(options.first_line, applied + 1)
        keep &= (numbers <= options.last_line) | (options.last_line == 0)
        for prefix in options.comments:
            is_comment = keep & np.asarray(pc.fill_null(pc.starts_with(texts, prefix), False))
            comments += int(is_comment.sum())
            keep &= ~is_comment
        return keep

    rejected = piece.rejected.table
    if rejected.num_rows:
        kept = chosen(np.asarray(rejected.column("source_offset")), rejected.column("raw").combine_chunks())
        piece = replace(piece, rejected=Rejected(rejected.filter(pa.array(kept))))
    keep = chosen(piece.offsets, piece.documents)
    if comments:
        piece = replace(piece, skipped={**piece.skipped, "comment": comments})
    if keep.all():
        return piece
    mask = pa.array(keep)
    keys = None if piece.keys is None else piece.keys.filter(mask)
    return replace(piece, documents=piece.documents.filter(mask), keys=keys, offsets=piece.offsets[keep])


_SET_LAYOUT = "set it (options: {layout: ...}), such as documents, keyed-documents or lines"


def _blanked(text: bytes, options: FileOptions) -> bytes:
    """The text with blank lines in place of comments."""
    wanted = tuple(prefix.encode() for prefix in options.comments)
    return b"\n".join(b"" if line.lstrip().startswith(wanted) else line for line in text.split(b"\n"))


def _layout(known: ReadFile, head: bytes, options: FileOptions) -> Layout | Undecided:
    """The layout of a file: known already, set by the options, or detected from the first bytes."""
    if chosen := known.layout or options.layout:
        return Layout(chosen)
    layout = sniff_layout(head)
    # these bytes must be enough, even if they contain no whole document
    if isinstance(layout, Undecided) and len(head) >= SNIFFED_BYTES // 2:
        return Layout.LINES if layout is Undecided.NOTHING else _most_likely(layout)
    return layout


def _most_likely(found: Undecided) -> Layout:
    """The layout of an undecided file that will not grow.

    Raises:
        SourceError: an event may be a key, or part of another event.
    """
    if found is Undecided.UNFINISHED_DOCUMENT:
        return Layout.DOCUMENTS
    if found in {Undecided.DOCUMENT_OR_KEY, Undecided.LINE_OR_PART}:
        raise SourceError(f"its layout cannot be detected: {found.value}; {_SET_LAYOUT}")
    return Layout.LINES


def _is_unfinished(data: pa.Buffer, layout: Layout, separator: bytes) -> bool:
    """Whether the last line may still grow: it lacks a newline and is not a complete event."""
    rest = data.slice(after_last_newline(data)).to_pybytes()
    if not rest.strip():
        return False
    if layout is Layout.KEYED_LINES:
        values, _, none = split_keys(pa.array([rest], pa.binary()), separator)
        # without a newline, a value may still follow the separator
        return bool(none[0]) or not values[0].is_valid or not is_complete(values[0].as_py())
    return not is_complete(rest)


MAPPED_BYTES = 4 * 1024**2

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_MAGIC_SUFFIXES = {b"PAR1": ".parquet", b"Obj\x01": ".avro"}
_READABLE = "JSON, CSV, Parquet or Avro, plain or compressed with gzip, zstd, bzip2 or lz4"
_MAGIC_OTHERS = {
    b"\xfd7zX": f"is compressed with xz: write {_READABLE}",
    b"PK\x03\x04": f"is a ZIP archive: write {_READABLE}",
    b"\xff\x06\x00\x00sNaP": f"is compressed with snappy: write {_READABLE}",
    b"ARROW1\x00\x00": f"is an Arrow file: write {_READABLE}",
    b"\xff\xfe": "is text in UTF-16: convert it to UTF-8",
    b"\xfe\xff": "is text in UTF-16: convert it to UTF-8",
}
"""What a file is that cannot be read, by its first bytes, which neither text in UTF-8 nor framed messages have."""


def read_file(
    file: ListedFile,
    known: ReadFile,
    options: FileOptions,
    filesystem: FileSystem | None = None,
    stop: int | None = None,
) -> Iterator[FilePiece]:
    """Read the events of a file that were not read before, up to the byte `stop` of an uncompressed text, or all.

    Raises:
        SourceError: the file cannot be read, or is too large for its layout.
    """
    suffix, compression = _suffixes(file.name)
    asked = options
    # the end of a file that is no longer written to is final
    if not options.report_incomplete and (known.waiting or is_quiet(file)):
        options = replace(options, report_incomplete=True)
    try:
        with _open(file, compression, filesystem) as stream:
            content = stream
            if compression is None:
                suffix, compression = _known_by_magic(stream, suffix)
                content = stream if compression is None else pa.CompressedInputStream(stream, compression)
            if suffix in READERS:
                asked.check_for_columns(suffix.removeprefix(".").capitalize())
                yield from _read_rows(content, known, suffix, options, file.size)
            else:
                chunks = Chunks(content, seekable=compression is None, stop=stop)
                yield from read_text(chunks, known, options, suffix)
    except (OSError, pa.ArrowInvalid, SourceError) as error:
        shown = "" if file.path in str(error) else f"cannot read {file.path}: "
        raise SourceError(f"{shown}{error}{_misnamed(file, filesystem)}") from error


def _misnamed(file: ListedFile, filesystem: FileSystem | None) -> str:
    """What is wrong with the name of a file, if its first bytes are not those of the compression that it names."""
    named = _suffixes(file.name)[1]
    if named is None:
        return ""
    try:
        with open_file(file, filesystem) as stream:
            found = _known_by_magic(stream, "")[1]
    except (OSError, SourceError):
        return ""
    if found == named:
        return ""
    what = "not compressed" if found is None else f"compressed with {found}"
    return f"; its name says that it is compressed with {named}, but it is {what}: give it the right name"


def line_layout(
    file: ListedFile, known: ReadFile, options: FileOptions, filesystem: FileSystem | None = None
) -> Layout | None:
    """The layout of an uncompressed file that may be read from the beginning of any line; None of any other file.

    Raises:
        SourceError: it cannot be read.
    """
    suffix, compression = _suffixes(file.name)
    is_counted = known.lines > 0 and known.read_bytes == 0  # lines known from the change log are counted again
    if compression is not None or is_counted or options.first_line > 1 or options.last_line:
        return None
    try:
        with open_file(file, filesystem) as stream:
            suffix, compression = _known_by_magic(stream, suffix)
            if compression is not None or suffix in READERS:
                return None
            head: bytes = stream.read(SNIFFED_BYTES)
    except (OSError, SourceError) as error:
        raise SourceError(f"cannot read {file.path}: {error}") from error
    if _is_csv(head, known, options, suffix):
        return None
    begin, _ = comment_length(head)
    layout = _layout(known, _blanked(head[begin:], options), options)
    return layout if isinstance(layout, Layout) and layout in _LINE_LAYOUTS else None


_COUNTED_BYTES = 8 * 1024**2


def whole_lines(file: ListedFile, start: int, stop: int, filesystem: FileSystem | None = None) -> tuple[int, int]:
    """(where the first line begins at or after the byte `start`, number of newlines from there to the first line at or after `stop`).

    Raises:
        SourceError: it cannot be read.
    """
    at, begin, count = max(start - 1, 0), -1 if start else 0, 0
    try:
        with open_file(file, filesystem) as stream:
            stream.seek(at)
            while begin < stop and at < file.size:
                block = np.frombuffer(stream.read_buffer(min(_COUNTED_BYTES, file.size - at)), np.uint8)
                if not len(block):
                    break
                ends = np.flatnonzero(block == ord("\n")) + at + 1
                at += len(block)
                if begin < 0 and len(ends):
                    begin, ends = int(ends[0]), ends[1:]
                # the line that reaches `stop` still belongs to this part
                inner = int(np.searchsorted(ends, stop)) if begin < stop else -1
                count += min(inner + 1, len(ends))
                if inner < len(ends):
                    break
    except OSError as error:
        raise SourceError(f"cannot read {file.path}: {error}") from error
    return (file.size if begin < 0 else begin), count


def unreadable_rest(known: ReadFile, reason: str) -> FilePiece:
    """Reject the rest of a file as one event and mark the file as finished."""
    rejected = Rejected.of(1, known.name, known.lines + 1, reason, None, None)
    return replace(end_of(replace(known, waiting=False)), rejected=rejected)


def is_compressed(name: str) -> bool:
    """Whether a file is compressed, by its name."""
    return _suffixes(name)[1] is not None


def _known_by_magic(stream: Any, suffix: str) -> tuple[str, str | None]:
    """(suffix for the kind of file, compression) from the first bytes, since names may be wrong."""
    head: bytes = stream.read(8)
    stream.seek(0)
    if other := next((what for magic, what in _MAGIC_OTHERS.items() if head.startswith(magic)), None):
        raise SourceError(f"it {other}")
    compression = next((c for magic, c in _MAGIC_COMPRESSIONS.items() if head.startswith(magic)), None)
    return next((s for magic, s in _MAGIC_SUFFIXES.items() if head.startswith(magic)), suffix), compression


def _read_rows(content: Any, known: ReadFile, suffix: str, options: FileOptions, size: int) -> Iterator[FilePiece]:
    seen = 0
    known = replace(known, waiting=False)
    content = _seekable(content, options.max_event_bytes)
    # A file without any byte has no header or footer, and no events either: a writer may have opened it only.
    for table in READERS[suffix](content, options) if content.size() else ():
        first, seen = seen, seen + table.num_rows
        if seen <= known.lines:
            continue
        fresh = table.slice(max(known.lines - first, 0))
        numbers = np.arange(seen - fresh.num_rows + 1, seen + 1, dtype=np.int64)
        before, known = known, replace(known, lines=seen, read_bytes=size)
        piece = Piece(pa.nulls(fresh.num_rows, pa.binary()), None, numbers, size, seen)
        yield FilePiece(piece, fresh, before, known)
    yield end_of(known)


def _suffixes(name: str) -> tuple[str, str | None]:
    """(suffix for the kind of file, compression) from a name."""
    lower = name.lower()
    compression = next((_COMPRESSIONS[s] for s in _COMPRESSIONS if lower.endswith(s)), None)
    if compression is not None:
        lower = lower.rsplit(".", 1)[0]
    return "." + lower.rsplit(".", 1)[-1] if "." in lower else "", compression


def _open(file: ListedFile, compression: str | None, filesystem: FileSystem | None) -> Any:
    local = "://" not in file.path
    if compression is None and local and file.size > MAPPED_BYTES and is_quiet(file):
        return pa.memory_map(file.path)
    stream = open_file(file, filesystem)
    return stream if compression is None else pa.CompressedInputStream(stream, compression)
