"""Many data-file entries of a manifest at once: facts as columns first, one object per live file at the end.

Gives what decoding entry by entry gives, or None for a block with anything wrong or unusual in it, which that way then
decodes or refuses. Partition values and statistics stay bytes until they are asked for.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scan_core.avro.columns import FIRST_LONGS, NULL, Program
from scan_core.avro.container import read_long
from scan_core.avro.pairs import LazyPairs
from scan_core.avro.values import Decoder
from scan_core.manifest_inheritance import ADDED, DELETED, EXISTING, MAX_FIRST_ROW_ID, Inheritance
from scan_core.native.machine_code import Kernels
from scan_core.snapshot import DataFile, FileFormat

Numbers = npt.NDArray[np.int64]

STATUS, SEQUENCE, FILE_SEQUENCE, CONTENT, PATH, FORMAT = range(6)
PARTITION, RECORDS, SIZE, VALUES, NULLS, NANS, LOWER, UPPER, KEY_METADATA, OFFSETS = range(7, 17)
FIRST_ROW_ID = 18
"""Slots of `manifests.ENTRY_FIELDS`."""
_FORMATS = {text.encode(): f for f in FileFormat for text in (f.value, f.value.upper())}
_NOTHING: Mapping[int, Any] = {}


def data_files(
    blocks: Sequence[tuple[int, bytes]],
    program: Program,
    partition: Decoder,
    inheritance: Inheritance,
    kernels: Kernels,
) -> list[DataFile] | None:
    """The live data files of blocks of so many entries each, or None; row ids advance only if there is an answer."""
    block = b"".join(block for _, block in blocks)
    rows = program.columns(block, [(count, len(part)) for count, part in blocks], kernels)
    if rows is None:
        return None
    status = _column(program, rows, STATUS)
    if status is None or not np.isin(status, (EXISTING, ADDED, DELETED)).all():
        return None
    entries = _Entries(block, program, np.ascontiguousarray(rows[status != DELETED].T), partition)
    return entries.files(inheritance)


class _Entries:
    """The live entries of a block; `columns` holds one row of numbers per column of the program."""

    def __init__(self, block: bytes, program: Program, columns: Numbers, partition: Decoder) -> None:
        self._block = block
        self._program = program
        self._columns = columns
        self._partition = partition
        self._count = columns.shape[1]

    def files(self, inheritance: Inheritance) -> list[DataFile] | None:
        """One object per entry; None if an entry is not plain."""
        content, records, sizes = self._numbers(CONTENT, 0), self._numbers(RECORDS), self._numbers(SIZE)
        status = self._numbers(STATUS)
        is_plain = not content.any() and (records >= 0).all() and (sizes >= 0).all()
        sequences, file_sequences = self._sequences(SEQUENCE, inheritance), self._numbers(FILE_SEQUENCE)
        formats = [_FORMATS.get(text) for text in self._spans(FORMAT)]
        row_ids = self._row_ids(records, inheritance)
        partitions = self._partitions(inheritance)
        if not is_plain or sequences is None or row_ids is None or partitions is None or None in formats:
            return None
        file_sequences = np.where(
            (file_sequences == NULL) & (status == ADDED), inheritance.sequence_number, file_sequences
        )
        columns: Sequence[Any] = (
            [path.decode() for path in self._spans(PATH)],
            formats,
            [inheritance.spec_id] * self._count,
            partitions,
            records.tolist(),
            sizes.tolist(),
            sequences.tolist(),
            _nullable(file_sequences),
            self._pairs(LOWER, of_bytes=True),
            self._pairs(UPPER, of_bytes=True),
            self._pairs(VALUES, of_bytes=False),
            self._pairs(NULLS, of_bytes=False),
            self._pairs(NANS, of_bytes=False),
            self._offsets(),
            [length > 0 for length in self._lengths(KEY_METADATA)],
            row_ids,
        )
        return list(map(DataFile, *columns))

    def _numbers(self, slot: int, absent: int = NULL) -> Numbers:
        """A column of numbers; `absent` for those that are NULL, too."""
        at = self._program.column_of.get(slot)
        if at is None:
            return np.full(self._count, absent, np.int64)
        found = self._columns[at]
        return found if absent == NULL else np.where(found == NULL, absent, found)

    def _lengths(self, slot: int) -> list[int]:
        at = self._program.column_of.get(slot)
        return [-1] * self._count if at is None else self._columns[at + 1].tolist()

    def _spans(self, slot: int) -> list[bytes]:
        block, at = self._block, self._program.column_of[slot]
        starts, lengths = self._columns[at].tolist(), self._columns[at + 1].tolist()
        return [block[start : start + length] for start, length in zip(starts, lengths, strict=True)]

    def _sequences(self, slot: int, inheritance: Inheritance) -> Numbers | None:
        found = self._numbers(slot)
        is_null = found == NULL
        if inheritance.sequence_number != 0 and (is_null & (self._numbers(STATUS) != ADDED)).any():
            return None
        filled = np.where(is_null, inheritance.sequence_number, found)
        return filled if (filled >= 0).all() else None

    def _row_ids(self, records: Numbers, inheritance: Inheritance) -> list[int | None] | None:
        found = self._numbers(FIRST_ROW_ID)
        is_null = found == NULL
        if inheritance.next_row_id is not None:
            if records.max(initial=0) > MAX_FIRST_ROW_ID // max(self._count, 1):
                return None
            advance = np.where(is_null, records, 0)
            ends = np.cumsum(advance)
            first = inheritance.next_row_id
            if not 0 <= first <= MAX_FIRST_ROW_ID // 2 or int(ends[-1:].sum()) > MAX_FIRST_ROW_ID // 2:
                return None
            found = np.where(is_null, first + ends - advance, found)
            inheritance.next_row_id = first + int(ends[-1:].sum())
            is_null = found == NULL
        if ((found < 0) & ~is_null).any() or (found > MAX_FIRST_ROW_ID).any():
            return None
        return _nullable(found)

    def _partitions(self, inheritance: Inheritance) -> list[tuple[Any, ...]] | None:
        """Equal bytes are decoded once."""
        if not inheritance.is_partitioned:
            return [()] * self._count
        at = self._program.column_of.get(PARTITION)
        if at is None:
            return None
        block = self._block
        known: dict[bytes, tuple[Any, ...]] = {}
        partitions = []
        for start, end in zip(self._columns[at].tolist(), self._columns[at + 1].tolist(), strict=True):
            stored = block[start:end]
            if stored not in known:
                known[stored] = self._partition(stored, 0)[0]
            partitions.append(known[stored])
        return partitions

    def _pairs(self, slot: int, *, of_bytes: bool) -> list[Mapping[int, Any]]:
        at = self._program.column_of.get(slot)
        if at is None:
            return [_NOTHING] * self._count
        block = self._block
        starts, counts = self._columns[at].tolist(), self._columns[at + 1].tolist()
        return [
            LazyPairs(block, start, count, of_bytes) if count > 0 else _NOTHING
            for start, count in zip(starts, counts, strict=True)
        ]

    def _offsets(self) -> list[tuple[int, ...]]:
        at = self._program.column_of.get(OFFSETS)
        if at is None:
            return [()] * self._count
        starts, counts = self._columns[at].tolist(), self._columns[at + 1].tolist()
        firsts = zip(*(self._columns[at + 2 + i].tolist() for i in range(FIRST_LONGS)), strict=True)
        return [
            values[: max(count, 0)] if count <= FIRST_LONGS else _longs(self._block, start, count)
            for start, count, values in zip(starts, counts, firsts, strict=True)
        ]


def _longs(block: bytes, position: int, count: int) -> tuple[int, ...]:
    values = []
    for _ in range(count):
        value, position = read_long(block, position)
        values.append(value)
    return tuple(values)


def _nullable(numbers: Numbers) -> list[int | None]:
    values: list[int | None] = numbers.tolist()
    return [None if value == NULL else value for value in values] if (numbers == NULL).any() else values


def _column(program: Program, rows: Numbers, slot: int) -> Numbers | None:
    at = program.column_of.get(slot)
    return None if at is None else rows[:, at]
