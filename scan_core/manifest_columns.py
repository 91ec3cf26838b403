"""Live entries of manifests as columns: numbers as arrays, text and statistics as places in the bytes they came in.

How they are found is in `manifest_batch.py`, what entries mean as files in `manifest_files.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scan_core.snapshot import FileFormat

Numbers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

STATUS, SEQUENCE, FILE_SEQUENCE, CONTENT, PATH, FORMAT, CONTENT_SIZE = range(7)
PARTITION, RECORDS, SIZE, VALUES, NULLS, NANS, LOWER, UPPER, KEY_METADATA, OFFSETS, EQUALITY_IDS = range(7, 18)
FIRST_ROW_ID, REFERENCED, CONTENT_OFFSET = range(18, 21)
"""Slots of `manifest_entries.ENTRY_FIELDS`."""
STATISTICS = {LOWER: True, UPPER: True, VALUES: False, NULLS: False, NANS: False}
"""Slots of maps by field id, and whether they hold bytes."""
FORMATS = tuple(FileFormat)


class Spans(NamedTuple):
    """Where things lie in the bytes, and how many bytes or items they have; -1 for NULL."""

    starts: Numbers
    lengths: Numbers

    def at(self, rows: Any) -> "Spans":
        """Those of some rows."""
        return Spans(self.starts[rows], self.lengths[rows])


class Longs(NamedTuple):
    """Lists of integers, one after the other; that of row i ends at `ends[i]`."""

    values: Numbers
    ends: Numbers

    def of(self, row: int) -> tuple[int, ...]:
        """One list."""
        begin = self.ends.item(row - 1) if row else 0
        return tuple(self.values[begin : self.ends.item(row)].tolist())


class DeleteColumns(NamedTuple):
    """What only delete files have."""

    contents: Numbers
    equality_ids: Longs
    referenced: Spans
    content_offsets: Numbers
    content_sizes: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class EntryColumns:
    """Live entries of manifests of one schema and one partition spec, one value per entry in each column.

    `block` is what spans point into. Partitions are codes of `partitions`. Numbers that may be NULL are `NULL` then.
    """

    block: bytes
    spec_id: int
    paths: Spans
    formats: Numbers
    partitions: Sequence[tuple[Any, ...]]
    partition_codes: Numbers
    record_counts: Numbers
    file_sizes: Numbers
    sequence_numbers: Numbers
    file_sequence_numbers: Numbers
    first_row_ids: Numbers
    is_encrypted: Flags
    split_offsets: Longs
    statistics: Mapping[int, Spans]
    deletes: DeleteColumns | None

    def __len__(self) -> int:
        return len(self.record_counts)

    @property
    def num_bytes(self) -> int:
        """Memory held, about."""
        return len(self.block) + _BYTES_PER_ENTRY * len(self)


_BYTES_PER_ENTRY = 130
