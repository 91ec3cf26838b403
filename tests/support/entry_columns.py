"""Columns of a data manifest made of statistics at will, as decoding one would make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nevermore.scan_core.metadata.bulk_manifests import (
    LOWER,
    NANS,
    NULL,
    NULLS,
    UPPER,
    VALUES,
    EntryColumns,
    Longs,
    Spans,
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
    block = bytearray()
    spans: dict[int, list[tuple[int, int]]] = {slot: [] for slot in (LOWER, UPPER, VALUES, NULLS, NANS)}
    paths, records = [], []
    for number, entry in enumerate(entries):
        begin = len(block)
        paths.append((len(block), len(f"file-{number}")))
        block += f"file-{number}".encode()
        maps: dict[int, Mapping[int, Any]] = {LOWER: entry.lower, UPPER: entry.upper}
        maps |= {VALUES: entry.values, NULLS: entry.nulls, NANS: entry.nans}
        for slot, pairs in maps.items():
            spans[slot].append((len(block), len(pairs)))
            for key, value in pairs.items():
                block += _varint(key)
                block += _varint(len(value)) + value if isinstance(value, bytes) else _varint(value)
            block += b"\0"
        records.append((begin, len(block) - begin))
    count = len(entries)
    return EntryColumns(
        block=bytes(block),
        records=_spans(records),
        spec_id=0,
        paths=_spans(paths),
        formats=np.zeros(count, np.int8),
        partitions=list(partitions),
        partition_codes=np.array([e.partition for e in entries], np.int32),
        record_counts=np.array([e.record_count for e in entries], np.int64),
        file_sizes=np.arange(count, dtype=np.int64) + 100,
        sequence_numbers=np.ones(count, np.int64),
        file_sequence_numbers=np.ones(count, np.int64),
        first_row_ids=np.full(count, NULL, np.int64),
        is_encrypted=np.zeros(count, np.bool_),
        split_offsets=Longs(np.zeros(0, np.int64), np.zeros(count, np.int64)),
        statistics={slot: _spans(places) for slot, places in spans.items()},
        deletes=None,
    )


def _spans(places: Sequence[tuple[int, int]]) -> Spans:
    both = np.array(places, np.int32).reshape(-1, 2)
    return Spans(both[:, 0].copy(), both[:, 1].copy())


def _varint(number: int) -> bytes:
    encoded = (number << 1) ^ (number >> 63)
    out = bytearray()
    while encoded > 127:
        out.append(encoded & 127 | 128)
        encoded >>= 7
    return bytes([*out, encoded])
