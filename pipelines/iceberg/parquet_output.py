"""Lays out Parquet files: pages, compression, encodings, dictionaries and Bloom filters.

A sample decides which columns get a dictionary. Rows come from `table_writer.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, log, log2
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nevermore.pipelines.iceberg.storage import Storage, writing
from nevermore.scan_core import NestedField, PrimitiveType

SAMPLE_RUNS = 16
SAMPLE_RUN_ROWS = 64
"""Sampled rows per run: runs instead of single rows, as slices are not copied. Columns whose rows repeat their
neighbours keep a dictionary.
"""
MIN_ROWS = 4 * SAMPLE_RUNS * SAMPLE_RUN_ROWS
"""Minimum rows of a file to be sampled."""
MIN_VALUES = 32
"""Minimum values in a sample to be meaningful."""
MIN_REPEATS = 4
"""Minimum average number of occurrences of a value: its index in a dictionary takes up to half of its own bytes."""
MAX_DICTIONARY_BYTES = 1024**2
"""Size at which Parquet's writer abandons a dictionary."""

_GOLDEN = 0.6180339887


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """Paths of the columns that get a dictionary; True for all."""
    if rows.num_rows < MIN_ROWS:
        return True
    step = rows.num_rows // SAMPLE_RUNS
    # At irregular distances, so that values that recur at regular intervals are sampled neither always nor never.
    starts = (int((number + number * _GOLDEN % 1) * step) for number in range(SAMPLE_RUNS))
    sample = pa.concat_tables([rows.slice(start, SAMPLE_RUN_ROWS) for start in starts]).combine_chunks()
    share = rows.num_rows / sample.num_rows
    return [
        path
        for field, column in zip(sample.schema, sample.columns, strict=True)
        for path, leaf in _leaves(field.name, column.combine_chunks())
        if _repeats(leaf, share)
    ]


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The Parquet columns of an Arrow column, by their paths."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_struct(kind):
        for member, values in zip(kind, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{member.name}", values)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(f"{path}.list.element", array.flatten())
    else:
        yield path, array


def _repeats(sample: pa.Array, share: float) -> bool:
    """Whether the values of a column repeat often enough; the sample is one in `share` of them.

    Two values drawn from d distinct ones are equal with a probability of 1 / d, so m values have m * m / 2d equal pairs.
    """
    values = sample.drop_null()
    given = len(values)
    if given < MIN_VALUES or pa.types.is_boolean(values.type):
        return True
    repeated = given - len(pc.unique(values))
    if repeated == 0:
        return False
    distinct = given * given / (2 * repeated)
    return bool(distinct * MIN_REPEATS <= given * share and distinct * values.nbytes <= MAX_DICTIONARY_BYTES * given)


DEFAULT_FILE_BYTES = 256 * 1024**2
"""Arrow bytes per file: about a quarter of that on disk, near Iceberg's split size."""
DEFAULT_ROW_GROUP_BYTES = 128 * 1024**2
"""Determines the memory of a task while it writes."""
DEFAULT_ROW_GROUP_ROWS = 1_000_000
DEFAULT_PAGE_ROWS = 10_000
"""Small pages let readers skip rows that no filter and no delete selects."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How files are laid out.

    Attributes:
        file_bytes: Arrow bytes of the rows of one data file.
        row_group_rows: maximum number of rows of a row group.
        page_rows: maximum number of rows of a page.
        compression: Parquet codec.
        bloom_filters: write Bloom filters for key columns, of data files and of delete files.
        bloom_columns: other columns of data files that get Bloom filters, as far as they exist.
        sort_by: columns by which the rows of a data file are sorted.
        sample_dictionaries: write no Parquet dictionary for columns whose values rarely repeat; otherwise every column
            tries one.
    """

    file_bytes: int = DEFAULT_FILE_BYTES
    row_group_rows: int = DEFAULT_ROW_GROUP_ROWS
    page_rows: int = DEFAULT_PAGE_ROWS
    compression: str = "zstd"
    bloom_filters: bool = False
    bloom_columns: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    sample_dictionaries: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How files are laid out.

    Attributes:
        target_file_bytes: size at which a file is finished.
        row_group_bytes: Arrow bytes of the rows that are collected for a row group.
        row_group_rows: maximum number of rows of a row group.
        page_rows: maximum number of rows of a page.
        compression: Parquet codec.
        bloom_filters: columns with Bloom filters.
        sample_dictionaries: write no Parquet dictionary for columns whose values rarely repeat in the first rows of a file.
    """

    target_file_bytes: int
    row_group_bytes: int = DEFAULT_ROW_GROUP_BYTES
    row_group_rows: int = DEFAULT_ROW_GROUP_ROWS
    page_rows: int = DEFAULT_PAGE_ROWS
    compression: str = "zstd"
    bloom_filters: tuple[str, ...] = ()
    sample_dictionaries: bool = False


BLOOM_FILTER_ERRORS = 0.001
"""Share of absent values for which a filter may err: 15 to 29 bits a value, as sizes are powers of two. With 0.01 there were 10 to 19
bits, and in the worst case a search for 50 absent keys read every second row group in vain. For a million values, the default row group, both give the same size."""


def bloom_filters(columns: Sequence[NestedField], num_rows: int) -> dict[str, dict[str, float]] | None:
    """Options for Bloom filters of those of these columns that can have one, in row groups of so many rows."""
    chosen = [c.name for c in columns if can_have_bloom_filter(c)]
    return {name: {"ndv": num_rows, "fpp": BLOOM_FILTER_ERRORS} for name in chosen} or None


def bloom_filter_capacity(num_rows: int) -> int:
    """Values for which a filter of so many rows errs no more often than wanted: sizes are powers of two, of at least 256 bits."""
    bits_per_value = -8 / log(1 - BLOOM_FILTER_ERRORS ** (1 / 8))
    return int(2 ** max(8, ceil(log2(max(num_rows, 1) * bits_per_value))) / bits_per_value)


def can_have_bloom_filter(column: NestedField) -> bool:
    """Whether Parquet has Bloom filters for a column: not for booleans, structs, lists and maps."""
    return isinstance(column.type, PrimitiveType) and column.type != PrimitiveType("boolean")


def delta_encoding(kind: PrimitiveType) -> str | None:
    """The encoding for sorted values of a type; None if there is none."""
    match kind.name:
        case "int" | "long" | "date" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            return "DELTA_BINARY_PACKED"
        case "string" | "binary" | "fixed" | "uuid" | "decimal":
            return "DELTA_BYTE_ARRAY"
        case _:
            return None


class ParquetOutput:
    """A Parquet file being written.

    Args:
        path: path of the file.
        storage: where it is; nothing is left of it if it cannot be begun.
        schema: schema of the rows.
        layout: its layout.
        options: further options of `pyarrow.parquet.ParquetWriter`.
    """

    def __init__(
        self, path: str, storage: Storage, schema: pa.Schema, layout: "WriterOptions | FileLayout", **options: Any
    ) -> None:
        self.path = path
        self._storage = storage
        self._row_group_rows = layout.row_group_rows
        try:
            with writing(path):
                self._sink = storage.open_output(path)
                self._writer = pq.ParquetWriter(
                    self._sink,
                    schema,
                    write_page_index=True,
                    write_page_checksum=True,
                    store_schema=False,
                    compression=layout.compression,
                    max_rows_per_page=layout.page_rows,
                    **options,
                )
        except BaseException:
            storage.remove([path])
            raise

    @property
    def num_bytes(self) -> int:
        """Number of bytes written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows, in row groups of the layout."""
        with writing(self.path):
            self._writer.write_table(rows, row_group_size=self._row_group_rows)

    def finish(self) -> tuple[pq.FileMetaData, int]:
        """Complete the file; return its footer and size."""
        with writing(self.path):
            self._writer.close()
            size = self.num_bytes
            self._sink.close()
        return self._writer.writer.metadata, size

    def write_whole(self, rows: pa.Table) -> tuple[pq.FileMetaData, int]:
        """Write all rows of the file and complete it; nothing is left of it if that fails."""
        try:
            self.write(rows)
            return self.finish()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove the file, which is incomplete."""
        for part in (self._writer, self._sink):
            with suppress(OSError, pa.ArrowException):  # a full disk does not take the end of the file either
                part.close()
        self._storage.remove([self.path])
