"""Event files that hold columns: Parquet and Avro as tables, batch by batch."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import SourceError
from pipelines.sources import avro_file
from pipelines.sources.file_options import EVENT_SHARE, FileOptions
from scan_core.errors import ScanError
from scan_core.read.byte_ranges import ByteRanges
from scan_core.read.decoded_size import DecodedSizes
from scan_core.read.memory_budget import DecodingLimits
from scan_core.read.parquet_layout import read_layout


def read_parquet(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of a Parquet file."""
    name = "the Parquet file"  # its path is in the caller's message
    try:
        source = ByteRanges(stream)
        layout = read_layout(source, name)
        sizes, leaves = DecodedSizes(name, source, layout), range(len(layout.footer.leaves))
        limits = DecodingLimits.of(options.most_event_bytes * EVENT_SHARE, options.batch_bytes)
        with pq.ParquetFile(stream, metadata=layout.metadata) as file:
            for group in layout.row_groups:
                windows = sizes.windows(group, leaves, range(group.num_rows), limits)
                most_rows = options.batch_rows if windows is None else min(options.batch_rows, *map(len, windows))
                for batch in file.iter_batches(batch_size=most_rows, row_groups=[group.index]):
                    yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
    except ScanError as error:
        raise SourceError(str(error)) from error


def read_avro(stream: Any, options: FileOptions) -> Iterator[pa.Table]:
    """The rows of an Avro object container file."""
    yield from avro_file.read_avro(stream, options.batch_rows, options.most_event_bytes)


READERS: Mapping[str, Callable[[Any, FileOptions], Iterator[pa.Table]]] = {
    ".parquet": read_parquet,
    ".avro": read_avro,
}
