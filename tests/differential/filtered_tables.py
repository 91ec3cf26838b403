"""Random tables for filters: the rows of `random_predicates` in several files with pages of a few rows, and deletes.

Partitioned or not, in all formats, with and without statistics, dictionaries and Bloom filters: whatever prunes is there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from nevermore.scan_core.model.transforms import normalise_value, parse_transform
from tests.support.iceberg_json import Column, Partition
from tests.support.random_predicates import FIELDS, SCHEMA, tables
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(100, "id", "long"), *(Column(f["id"], f["name"], f["type"]) for f in FIELDS)]
PARTITIONS = {
    "i": ["identity", "bucket[4]", "truncate[3]"],
    "l": ["identity", "bucket[3]", "truncate[10]"],
    "s": ["identity", "bucket[4]", "truncate[1]"],
    "dt": ["identity", "year", "month", "bucket[4]"],
    "ts": ["year", "day", "hour"],
    "dec": ["identity", "truncate[100]"],
    "b": ["identity"],
}
BLOOM = {name: {"ndv": 16, "fpp": 0.01} for name in ("i", "l", "s", "dt", "dec")}


@dataclass(frozen=True)
class FilteredTable:
    """A table, and the rows of it that no delete removes, in the order of `id`."""

    metadata_path: str
    rows: pa.Table


def draw_filtered_table(draw: Callable[..., Any], folder: Path, max_rows: int = 40) -> FilteredTable:
    """Build a table under `folder`."""
    rows = draw(tables(max_rows))
    rows = rows.add_column(0, "id", pa.array(range(rows.num_rows), pa.int64()))
    name, transform = draw(st.sampled_from([("", ""), *((n, t) for n, ts in PARTITIONS.items() for t in ts)]))
    partitions = [Partition("p", SCHEMA.find(name).field_id, transform)] if name else []
    table = TableBuilder(folder / "t", COLUMNS, partitions=partitions)
    files = []
    for partition, part in _by_partition(rows, name, transform):
        options, file_format = draw_file(draw)
        files.append(table.data(part, file_format=file_format, partition=partition, **options))
    table.commit(*files)
    ids = st.sets(st.integers(0, rows.num_rows - 1), max_size=4)
    dead, by_position = draw(ids), draw(ids)
    if dead:
        unpartitioned = table.repartition() if name else 0
        delete = table.equality_delete({"id": sorted(dead)}, ids=[100], spec_id=unpartitioned, columns=COLUMNS[:1])
        table.commit(delete)
    if by_position and not name:  # rows of a partitioned table lie in other places
        table.commit(table.position_delete([(files[0], k) for k in sorted(by_position)]))
        dead |= by_position
    alive = np.array([k not in dead for k in range(rows.num_rows)])
    return FilteredTable(str(table.metadata_path), rows.filter(pa.array(alive)))


def draw_file(draw: Callable[..., Any]) -> tuple[dict[str, Any], str]:
    """Options of the writer of one file, and its format."""
    file_format = draw(st.sampled_from(["parquet", "parquet", "parquet", "parquet", "orc", "avro"]))
    if file_format != "parquet":
        return {}, file_format
    options: dict[str, Any] = {
        "row_group_size": draw(st.sampled_from([7, 1000])),
        "max_rows_per_page": draw(st.sampled_from([2, 1000])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_statistics": draw(st.integers(0, 4)) > 0,
        "write_page_index": draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["bloom_filter_options"] = BLOOM
    return options, file_format


def _by_partition(rows: pa.Table, name: str, transform: str) -> list[tuple[dict[str, Any], pa.Table]]:
    if not name:
        return [({}, rows)]
    source = SCHEMA.find(name)
    parsed = parse_transform(transform)
    values = parsed.apply(rows.column(name).combine_chunks(), source.type)
    kind = parsed.result_type(source.type)
    is_number = pa.types.is_temporal(values.type)
    keys = [None if not v.is_valid else normalise_value(v.value if is_number else v.as_py(), kind) for v in values]
    stored = dict(zip(keys, values.to_pylist(), strict=True))
    return [({"p": stored[k]}, rows.filter(pa.array([other == k for other in keys]))) for k in dict.fromkeys(keys)]
