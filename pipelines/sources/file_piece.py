"""What reading an event file yields: some of its events, and how far the file is read before and after them."""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from pipelines.changes.change_batch import Rejected
from pipelines.sources.file_documents import Piece
from pipelines.sources.file_position import ReadFile

_NO_DOCUMENTS, _NO_LINES = pa.array([], pa.binary()), np.zeros(0, np.int64)


@dataclass(frozen=True)
class FilePiece:
    """Events of a part of a file, or columns of some of its rows, and how far the file is read after them.

    Attributes:
        piece: documents; `rows` is set instead for Parquet, CSV and Avro.
        before: the file as far as read before this piece.
        after: the same after it; `finished` says whether that was all.
        rejected: records that are none.
    """

    piece: Piece
    rows: pa.Table | None
    before: ReadFile
    after: ReadFile
    rejected: Rejected = field(default_factory=Rejected.none)


def end_of(known: ReadFile) -> FilePiece:
    """No events, and the file read to its end."""
    nothing = Piece(_NO_DOCUMENTS, None, _NO_LINES, known.read_bytes, known.lines)
    return FilePiece(nothing, None, known, replace(known, finished=True))


def behind(file: ReadFile, applied: int) -> ReadFile:
    """The file, read at least so many lines far: where their bytes end is not known."""
    return file if file.lines >= applied else replace(file, lines=applied, read_bytes=0)
