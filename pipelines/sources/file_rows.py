"""Event files that hold columns: Parquet and Avro as tables, batch by batch."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.sources import avro_file
from pipelines.sources.file_options import FileOptions


def read_parquet(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of a Parquet file."""
    with pq.ParquetFile(stream) as file:
        for batch in file.iter_batches(batch_size=options.batch_rows):
            yield pa.Table.from_batches([batch]).replace_schema_metadata(None)


def read_avro(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of an Avro object container file."""
    yield from avro_file.read_avro(stream, options.batch_rows)


READERS: Mapping[str, Callable[[Any, FileOptions], Iterator[pa.Table]]] = {
    ".parquet": read_parquet,
    ".avro": read_avro,
}
