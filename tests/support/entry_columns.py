"""Columns of a data manifest made of statistics at will, as decoding one would make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore.scan_core.metadata.bulk_manifests import (
    LOWER,
    NANS,
    NULL,
    NULLS,
    UPPER,
    VALUES,
    EntryColumns,
)


@dataclass
class Entry:
    """What a manifest says of one data file."""

    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)
    nulls: Mapping[int, int] = field(default_factory=dict)
    nans: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[int, int] = field(default_factory=dict)
    record_count: int = 10
    partition: int = 0


def entry_columns(entries: Sequence[Entry], partitions: Sequence[tuple[Any, ...]] = ((),)) -> EntryColumns:
    """One row per entry; entries name their partition by its index."""
    maps: dict[int, list[bytes]] = {slot: [] for slot in (LOWER, UPPER, VALUES, NULLS, NANS)}
    for entry in entries:
        for slot, pairs in zip(maps, (entry.lower, entry.upper, entry.values, entry.nulls, entry.nans), strict=True):
            maps[slot].append(_encoded(pairs))
    count = len(entries)
    nothing = np.full(count, NULL, np.int64)
    no_longs = pa.array([None] * count, pa.list_(pa.int64()))
    return EntryColumns(
        spec_id=0,
        is_of_deletes=False,
        partitions=list(partitions),
        statistics={slot: pa.array(each, pa.binary()) for slot, each in maps.items()},
        paths=pa.array([f"file-{number}" for number in range(count)], pa.string()),
        formats=np.zeros(count, np.int8),
        partition_codes=np.array([e.partition for e in entries], np.int32),
        record_counts=np.array([e.record_count for e in entries], np.int64),
        file_sizes=np.arange(count, dtype=np.int64) + 100,
        sequence_numbers=np.ones(count, np.int64),
        file_sequence_numbers=np.ones(count, np.int64),
        first_row_ids=nothing,
        keys=pa.array([None] * count, pa.binary()),
        snapshot_ids=nothing,
        sort_orders=nothing,
        split_offsets=no_longs,
        contents=np.zeros(count, np.int8),
        equality_ids=no_longs,
        referenced=pa.array([None] * count, pa.string()),
        content_offsets=nothing,
        content_sizes=nothing,
    )


def _encoded(pairs: Mapping[int, Any]) -> bytes:
    """A map as an Avro array of pairs."""
    block = bytearray(_varint(len(pairs)))
    for key, value in pairs.items():
        block += _varint(key)
        block += _varint(len(value)) + value if isinstance(value, bytes) else _varint(value)
    return bytes(block) + b"\0" * bool(pairs)


def _varint(number: int) -> bytes:
    encoded = (number << 1) ^ (number >> 63)
    out = bytearray()
    while encoded > 127:
        out.append(encoded & 127 | 128)
        encoded >>= 7
    return bytes([*out, encoded])
