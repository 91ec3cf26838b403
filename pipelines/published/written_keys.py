"""The keys of a data file that has just been written, read back some rows at a time: its other columns are not touched."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.tables.storage import Storage

KEY_ROWS = 4_000_000
"""Keys in memory at a time: a hundred megabytes, twice that for text."""


def written_keys(path: str, storage: Storage, key: Sequence[str], most_rows: int = KEY_ROWS) -> Iterator[pa.Table]:
    """The key columns, in tables of whole row groups with at least one and about `most_rows` rows."""
    with storage.open_input(path) as source:
        parquet = pq.ParquetFile(source)
        gathered: list[int] = []
        num_rows = 0
        for group in range(parquet.num_row_groups):
            gathered.append(group)
            num_rows += parquet.metadata.row_group(group).num_rows
            if num_rows >= most_rows or group == parquet.num_row_groups - 1:
                yield parquet.read_row_groups(gathered, columns=list(key)).replace_schema_metadata(None)
                gathered, num_rows = [], 0
