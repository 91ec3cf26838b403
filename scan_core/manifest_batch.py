"""Many entries of manifests decoded together into columns.

Gives what decoding entry by entry gives, or None for anything wrong or unusual, which that way then decodes or
refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scan_core.avro.columns import NULL, Program
from scan_core.avro.container import AvroError
from scan_core.avro.values import Decoder
from scan_core.manifest_columns import (
    CONTENT,
    CONTENT_OFFSET,
    CONTENT_SIZE,
    EQUALITY_IDS,
    FILE_SEQUENCE,
    FIRST_ROW_ID,
    FORMAT,
    FORMATS,
    KEY_METADATA,
    OFFSETS,
    PARTITION,
    PATH,
    RECORDS,
    REFERENCED,
    SEQUENCE,
    SIZE,
    STATISTICS,
    STATUS,
    DeleteColumns,
    EntryColumns,
    Flags,
    Longs,
    Numbers,
    Spans,
)
from scan_core.manifest_inheritance import ADDED, DELETED, EXISTING, MAX_FIRST_ROW_ID
from scan_core.manifest_list import DATA_MANIFEST, ManifestFile
from scan_core.native.machine_code import Kernels
from scan_core.snapshot import PartitionSpec

_FORMAT_CODES = {text.encode(): i for i, f in enumerate(FORMATS) for text in (f.value, f.value.upper())}
_INT32 = np.iinfo(np.int32).max


class Layout(NamedTuple):
    """Entries of one schema under one partition spec: how all their fields are found, and their partitions decoded."""

    program: Program
    partition: Decoder
    spec: PartitionSpec


def entry_columns(
    blocks: Sequence[tuple[int, bytes]],
    manifests: Sequence[tuple[ManifestFile, int]],
    layout: Layout,
    kernels: Kernels,
) -> tuple[EntryColumns, Numbers] | None:
    """The live entries of some manifests, and how many each manifest has; None if an entry is not plain.

    Args:
        blocks: number of entries and bytes of each block of all manifests, in order.
        manifests: all of one content and layout, each with its number of entries.
        layout: of all of them.
        kernels: compiled code.
    """
    data = b"".join(block for _, block in blocks)
    rows = layout.program.columns(data, [(count, len(block)) for count, block in blocks], kernels)
    if rows is None or STATUS not in layout.program.column_of:
        return None
    status = rows[:, layout.program.column_of[STATUS]]
    if not np.isin(status, (EXISTING, ADDED, DELETED)).all():
        return None
    is_live = status != DELETED
    owners = np.repeat(np.arange(len(manifests)), [count for _, count in manifests])[is_live]
    live = np.ascontiguousarray(rows[is_live].T)
    found = _Builder(data, live, owners, [m for m, _ in manifests], layout.program, kernels).build(layout)
    return None if found is None else (found, np.bincount(owners, minlength=len(manifests)))


@dataclass(frozen=True, slots=True, eq=False)
class _Builder:
    """Checks live entries and completes them by what they inherit; `rows` holds one row per column of the program."""

    _block: bytes
    _rows: Numbers
    _owners: Numbers
    _manifests: Sequence[ManifestFile]
    _program: Program
    _kernels: Kernels

    @property
    def _count(self) -> int:
        return len(self._owners)

    def build(self, layout: Layout) -> EntryColumns | None:
        """The columns; None if an entry is not plain."""
        records, sizes = self._numbers(RECORDS), self._numbers(SIZE)
        is_null = (self._spans(PATH).lengths < 0) | (self._spans(FORMAT).lengths < 0)
        if (is_null | (records < 0) | (sizes < 0)).any():
            return None
        is_added = self._numbers(STATUS) == ADDED
        inherited = np.array([m.sequence_number for m in self._manifests], np.int64)[self._owners]
        sequences = self._sequences(is_added, inherited)
        row_ids = self._row_ids(records)
        partitions = self._partitions(layout)
        formats = [_FORMAT_CODES.get(text, -1) for text in self._texts(FORMAT)]
        is_delete = self._manifests[0].content != DATA_MANIFEST
        deletes = self._deletes() if is_delete else None
        contents = self._numbers(CONTENT, 0)
        if is_delete != (deletes is not None) or (not is_delete and contents.any()):
            return None
        if sequences is None or row_ids is None or partitions is None or -1 in formats or not self._is_text(PATH):
            return None
        file_sequences = self._numbers(FILE_SEQUENCE)
        return EntryColumns(
            block=self._block,
            spec_id=layout.spec.spec_id,
            paths=self._spans(PATH),
            formats=np.array(formats, np.int8),
            partitions=partitions[0],
            partition_codes=partitions[1],
            record_counts=records.copy(),
            file_sizes=sizes.copy(),
            sequence_numbers=sequences,
            file_sequence_numbers=np.where((file_sequences == NULL) & is_added, inherited, file_sequences),
            first_row_ids=row_ids,
            is_encrypted=self._spans(KEY_METADATA).lengths > 0,
            split_offsets=self._longs(OFFSETS),
            statistics={slot: self._spans(slot) for slot in STATISTICS if slot in self._program.column_of},
            deletes=deletes,
        )

    def _numbers(self, slot: int, absent: int = NULL) -> Numbers:
        """A column of numbers; `absent` for those that are NULL, too."""
        at = self._program.column_of.get(slot)
        if at is None:
            return np.full(self._count, absent, np.int64)
        found = self._rows[at]
        return found if absent == NULL else np.where(found == NULL, absent, found)

    def _spans(self, slot: int) -> Spans:
        at = self._program.column_of.get(slot)
        if at is None:
            return Spans(np.zeros(self._count, np.int32), np.full(self._count, -1, np.int32))
        dtype = np.int32 if len(self._block) <= _INT32 else np.int64
        starts, lengths = self._rows[at], self._rows[at + 1]
        return Spans(np.where(lengths < 0, 0, starts).astype(dtype), lengths.astype(dtype))

    def _texts(self, slot: int) -> list[bytes]:
        block, (starts, lengths) = self._block, self._spans(slot)
        return [block[a : a + n] if n > 0 else b"" for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]

    def _is_text(self, slot: int) -> bool:
        """Whether all spans are UTF-8; a character that spans shared would not survive the separator."""
        try:
            b"\n".join(self._texts(slot)).decode()
        except UnicodeDecodeError:
            return False
        return True

    def _longs(self, slot: int) -> Longs:
        starts, counts = (part.astype(np.int64) for part in self._spans(slot))
        ends = np.cumsum(np.maximum(counts, 0))
        values = np.empty(int(ends[-1:].sum()), np.int64)
        data = np.frombuffer(self._block, np.uint8)
        read = self._kernels["read_longs"](data, len(data), starts, counts, len(counts), values, len(values))
        if read < len(values):
            raise AvroError(f"{len(values)} numbers where a manifest holds {read}")
        return Longs(values, ends)

    def _sequences(self, is_added: Flags, inherited: Numbers) -> Numbers | None:
        found = self._numbers(SEQUENCE)
        is_null = found == NULL
        if (is_null & ~is_added & (inherited != 0)).any():
            return None
        filled = np.where(is_null, inherited, found)
        return filled if (filled >= 0).all() else None

    def _row_ids(self, records: Numbers) -> Numbers | None:
        """Explicit ones, or the next of their manifest; they advance by the records of entries without their own."""
        found = self._numbers(FIRST_ROW_ID)
        if all(m.first_row_id is None for m in self._manifests):
            return found if ((found == NULL) | ((found >= 0) & (found <= MAX_FIRST_ROW_ID))).all() else None
        if records.max(initial=0) > MAX_FIRST_ROW_ID // max(self._count, 1):
            return None
        firsts = [NULL if m.first_row_id is None else m.first_row_id for m in self._manifests]
        if not all(f == NULL or 0 <= f <= MAX_FIRST_ROW_ID // 2 for f in firsts):
            return None
        advance = np.where(found == NULL, records, 0)
        before = np.cumsum(advance) - advance
        begins = np.searchsorted(self._owners, np.arange(len(firsts)))
        of_manifest = np.append(before, 0)[begins]
        first = np.array(firsts, np.int64)[self._owners]
        inherits = (found == NULL) & (first != NULL)
        filled = np.where(inherits, np.where(inherits, first, 0) + before - of_manifest[self._owners], found)
        return filled if ((filled == NULL) | ((filled >= 0) & (filled <= MAX_FIRST_ROW_ID))).all() else None

    def _partitions(self, layout: Layout) -> tuple[Sequence[tuple[Any, ...]], Numbers] | None:
        """Equal bytes are decoded once."""
        if not layout.spec.fields:
            return [()], np.zeros(self._count, np.int32)
        at = self._program.column_of.get(PARTITION)
        if at is None:
            return None
        block = self._block
        codes: dict[bytes, int] = {}
        of_entry = [
            codes.setdefault(block[start:end], len(codes))
            for start, end in zip(self._rows[at].tolist(), self._rows[at + 1].tolist(), strict=True)
        ]
        return [layout.partition(stored, 0)[0] for stored in codes], np.array(of_entry, np.int32)

    def _deletes(self) -> DeleteColumns | None:
        contents = self._numbers(CONTENT, 0)
        if ((contents != 1) & (contents != 2)).any() or not self._is_text(REFERENCED):
            return None
        return DeleteColumns(
            contents.astype(np.int8),
            self._longs(EQUALITY_IDS),
            self._spans(REFERENCED),
            self._numbers(CONTENT_OFFSET),
            self._numbers(CONTENT_SIZE),
        )
