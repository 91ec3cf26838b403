"""Event files that hold columns: Parquet, CSV and Avro as tables, batch by batch."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipelines.errors import SourceError
from pipelines.sources import avro_file
from pipelines.sources.file_options import FileOptions


def read_parquet(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of a Parquet file."""
    with pq.ParquetFile(stream) as file:
        for batch in file.iter_batches(batch_size=options.batch_rows):
            yield pa.Table.from_batches([batch]).replace_schema_metadata(None)


def read_csv(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of a CSV file, every value as text: types are the decoder's business."""
    names = list(options.columns) or None
    read_options = pa.csv.ReadOptions(
        block_size=min(options.batch_bytes, 16 * 1024**2),
        column_names=names,
        skip_rows=1 if names and options.header else 0,
    )
    if names is None and not options.header:
        read_options.autogenerate_column_names = True
    parse_options = pa.csv.ParseOptions(delimiter=options.delimiter, newlines_in_values=True)
    try:
        header = names if names is not None else _names(stream, read_options, parse_options)
        convert_options = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["", *([options.null_value] if options.null_value is not None else [])],
        )
        with pa.csv.open_csv(stream, read_options, parse_options, convert_options) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise SourceError(f"no CSV: {error}") from error


def read_avro(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of an Avro object container file."""
    yield from avro_file.read_avro(stream, options.batch_rows)


def _names(stream: Any, read_options: Any, parse_options: Any) -> list[str]:
    start = stream.tell()
    with pa.csv.open_csv(stream, read_options, parse_options) as reader:
        names: list[str] = reader.schema.names
    stream.seek(start)
    return names


READERS: Mapping[str, Callable[[Any, FileOptions], Iterator[pa.Table]]] = {
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".avro": read_avro,
}
