"""The keys of data files that have just been written, read back some at a time: other columns are not touched."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.tables.storage import Storage

KEY_BYTES = 64 * 1024**2
"""Of keys in memory."""


def written_keys(
    paths: Iterable[str], storage: Storage, key: Sequence[str], most_bytes: int = KEY_BYTES
) -> Iterator[pa.Table]:
    """The key columns, in tables of whole row groups of any files: as many as fit into `most_bytes`, and one at least.

    Whoever looks them up in a table goes through it once for each of these tables, not for each file.
    """
    gathered: list[pa.Table] = []
    held = 0
    for group in _groups(paths, storage, list(key)):
        if gathered and held + group.nbytes > most_bytes:
            yield pa.concat_tables(gathered)
            gathered, held = [], 0
        gathered.append(group)
        held += group.nbytes
    if gathered:
        yield pa.concat_tables(gathered)


def _groups(paths: Iterable[str], storage: Storage, key: list[str]) -> Iterator[pa.Table]:
    for path in paths:
        with storage.open_input(path) as source:
            parquet = pq.ParquetFile(source)
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, columns=key).replace_schema_metadata(None)
