"""The reader of a data or delete file, by its format; only the decoder that is needed is imported."""

from typing import assert_never

from nevermore.scan_core.columns.file_reader import FileReader, MemoryBudget
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.snapshot import FileFormat
from nevermore.scan_core.rows.selection import All, from_ranges


def open_file(
    path: str,
    file_format: FileFormat,
    io: FileIOConfig,
    *,
    reads_pages: bool = True,
    parallelism: int = 1,
    whole: bool = False,
    verifies: bool = True,
) -> FileReader:
    """Open a data or delete file by its format.

    Args:
        path: as the manifest writes it; relocated by `file_io`.
        file_format: of its manifest entry.
        io: how to open paths.
        reads_pages: decode only the pages, of ORC the row groups inside stripes, that hold selected rows, where the file has
            an index of them.
        parallelism: threads that may decode columns of a window of rows at a time.
        whole: most of the file will be wanted: read a small one at once, where that saves requests to the system.
        verifies: compare checksums where the file has them, those of Avro and ORC in any case.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: not a readable file of this format; names the file.
        UnsupportedError: encrypted, or in a format that holds no rows.
    """
    match file_format:
        case FileFormat.PARQUET:
            from nevermore.scan_core.files.parquet.reader import open_parquet

            return open_parquet(
                path,
                io,
                reads_pages=reads_pages,
                parallelism=parallelism,
                whole=whole,
                verifies=verifies,
            )
        case FileFormat.ORC:
            from nevermore.scan_core.files.orc import open_orc

            return open_orc(path, io, reads_pages=reads_pages)
        case FileFormat.AVRO:
            from nevermore.scan_core.files.avro import open_avro

            return open_avro(path, io)
        case FileFormat.PUFFIN:
            raise MalformedTableError(f"{path}: a Puffin file contains no rows of a table")
        case _:
            assert_never(file_format)


def decode_column(reader: FileReader, column: int) -> None:
    """Decode one column of a file, as much at a time as fits into memory, and keep nothing of it.

    Raises:
        MalformedTableError: it cannot be decoded.
    """
    limits = MemoryBudget(ScanOptions(parallelism=1)).limits
    for group in reader.row_groups:
        windows = reader.windows(group, [column], range(group.num_rows), limits)
        if windows is None:
            reader.read(group, [column], All(group.num_rows))
        for window in windows or ():
            reader.read(group, [column], from_ranges([(window.start, window.stop)], group.num_rows), window)
