"""The keys of a data file that has just been written, read back some at a time: its other columns are not touched."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.tables.storage import Storage

KEY_BYTES = 64 * 1024**2
"""Of keys as the file tells their size before compression; in memory they take about as much, dictionaries more."""


def written_keys(path: str, storage: Storage, key: Sequence[str], most_bytes: int = KEY_BYTES) -> Iterator[pa.Table]:
    """The key columns, in tables of whole row groups: as many as fit into `most_bytes`, and one at least."""
    with storage.open_input(path) as source:
        parquet = pq.ParquetFile(source)
        gathered: list[int] = []
        held = 0
        for group in range(parquet.num_row_groups):
            size = _key_bytes(parquet.metadata.row_group(group), frozenset(key))
            if gathered and held + size > most_bytes:
                yield _read(parquet, gathered, key)
                gathered, held = [], 0
            gathered.append(group)
            held += size
        if gathered:
            yield _read(parquet, gathered, key)


def _key_bytes(group: pq.RowGroupMetaData, key: frozenset[str]) -> int:
    columns = (group.column(i) for i in range(group.num_columns))
    return sum(c.total_uncompressed_size for c in columns if c.path_in_schema in key)


def _read(parquet: pq.ParquetFile, groups: Sequence[int], key: Sequence[str]) -> pa.Table:
    return parquet.read_row_groups(list(groups), columns=list(key)).replace_schema_metadata(None)
