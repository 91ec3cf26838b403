"""How one Parquet file is laid out: pages, compression, dictionaries, encodings, Bloom filters.

Which rows and keys go into which file is decided by `table_writer.py`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.tables.storage import Storage
from scan_core.schema import NestedField, PrimitiveType

DEFAULT_FILE_BYTES = 256 * 1024**2
"""Of Arrow data per file: a quarter of that on disk, near Iceberg's split size."""
DEFAULT_ROW_GROUP_ROWS = 1_000_000
DEFAULT_PAGE_ROWS = 10_000
"""Small pages let readers skip what no filter and no delete touches."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How files are laid out.

    Attributes:
        file_bytes: Arrow bytes of the rows of one data file.
        row_group_rows: most rows of a row group.
        page_rows: most rows of a page.
        compression: Parquet codec.
        bloom_filters: write Bloom filters for key columns, of data files and of delete files.
        sort_by: columns by which the rows of a data file are sorted.
        encode_numbers: integers and times without a dictionary as differences, floating-point numbers byte by byte:
            faster and smaller, but not every reader knows these encodings.
        sample_dictionaries: no Parquet dictionary for columns whose values hardly come again; otherwise all try one.
    """

    file_bytes: int = DEFAULT_FILE_BYTES
    row_group_rows: int = DEFAULT_ROW_GROUP_ROWS
    page_rows: int = DEFAULT_PAGE_ROWS
    compression: str = "zstd"
    bloom_filters: bool = False
    sort_by: tuple[str, ...] = ()
    encode_numbers: bool = False
    sample_dictionaries: bool = True


def bloom_filters(
    columns: Sequence[NestedField], num_rows: int, options: WriterOptions
) -> dict[str, dict[str, float]] | None:
    """Options of the Bloom filters of these columns; Parquet has none of booleans."""
    if not options.bloom_filters:
        return None
    chosen = [c.name for c in columns if c.type != PrimitiveType("boolean")]
    return {name: {"ndv": num_rows, "fpp": 0.01} for name in chosen} or None


def delta_encoding(kind: PrimitiveType) -> str | None:
    """The encoding for sorted values of a type; None if there is none."""
    match kind.name:
        case "int" | "long" | "date" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            return "DELTA_BINARY_PACKED"
        case "string" | "binary" | "fixed" | "uuid" | "decimal":
            return "DELTA_BYTE_ARRAY"
        case _:
            return None


def number_encodings(schema: pa.Schema, dictionaries: Collection[str]) -> dict[str, str] | None:
    """Encodings of the numbers that have no dictionary, by path; None if there are none."""
    found = {path: e for f in schema for path, kind in _members(f.name, f.type) if (e := _number_encoding(kind))}
    return {path: encoding for path, encoding in found.items() if path not in dictionaries} or None


def _members(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Columns that are not below a list or map."""
    if not pa.types.is_struct(kind):
        yield path, kind
        return
    for member in kind:
        yield from _members(f"{path}.{member.name}", member.type)


def _number_encoding(kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return "DELTA_BINARY_PACKED"
    return "BYTE_STREAM_SPLIT" if pa.types.is_floating(kind) else None


def write_parquet(
    rows: pa.Table,
    path: str,
    storage: Storage,
    options: WriterOptions,
    *,
    use_dictionary: bool | list[str],
    column_encoding: dict[str, str] | None,
    bloom_filter_options: dict[str, dict[str, float]] | None,
) -> tuple[pq.FileMetaData, int]:
    """Write a file; its footer and size."""
    with storage.open_output(path) as sink:
        with pq.ParquetWriter(
            sink,
            rows.schema,
            compression=options.compression,
            use_dictionary=use_dictionary,
            column_encoding=column_encoding,
            write_page_index=True,
            max_rows_per_page=options.page_rows,
            store_schema=False,
            bloom_filter_options=bloom_filter_options,
        ) as writer:
            writer.write_table(rows, row_group_size=options.row_group_rows)
        footer = writer.writer.metadata
        return footer, sink.tell()
