"""D, the decode floor: what pyarrow needs for exactly the columns any correct plan must touch."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow.parquet as pq

WORKERS = 2

_row_groups: dict[str, list[tuple[str, int]]] = {}
"""What to decode, by table: found before anything is measured."""


def decode_floor(table: Any, columns: Sequence[str], dictionaries: Sequence[str] = ()) -> int:
    """Decode `columns` of every data file of a PyIceberg table, one row group per worker at a time; rows decoded.

    Low-cardinality strings in `dictionaries` stay dictionaries: it is the faster way, so the lower floor.
    """
    if table.metadata_location not in _row_groups:
        paths = [p.removeprefix("file://") for p in table.inspect.data_files()["file_path"].to_pylist()]
        groups = [(path, group) for path in paths for group in range(pq.read_metadata(path).num_row_groups)]
        _row_groups[table.metadata_location] = groups
    jobs = _row_groups[table.metadata_location]

    def decode(job: tuple[str, int]) -> int:
        file = pq.ParquetFile(job[0], read_dictionary=list(dictionaries))
        return file.read_row_group(job[1], columns=list(columns), use_threads=False).num_rows

    with ThreadPoolExecutor(WORKERS) as pool:
        return sum(pool.map(decode, jobs))
