"""Files of a manifest as a sequence: objects made from columns when one is asked for, or all at once."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar, overload

from scan_core.avro.columns import NULL
from scan_core.avro.pairs import LazyPairs
from scan_core.manifest_columns import (
    FORMATS,
    LOWER,
    NANS,
    NULLS,
    STATISTICS,
    UPPER,
    VALUES,
    EntryColumns,
    Longs,
    Numbers,
    Spans,
)
from scan_core.manifest_entries import DELETE_CONTENTS
from scan_core.snapshot import DataFile, DeleteFile

F = TypeVar("F", DataFile, DeleteFile)
_NOTHING: Mapping[int, Any] = {}


class ManifestFiles(Sequence[F], Generic[F]):
    """Files that stand together in `columns`, in rows [first, last); `made` are the objects of all rows, if they exist."""

    __slots__ = ("columns", "first", "last", "made")

    def __init__(self, columns: EntryColumns, first: int, last: int, made: Sequence[F] | None = None) -> None:
        self.columns = columns
        self.first = first
        self.last = last
        self.made: Sequence[F] | None = made

    def __len__(self) -> int:
        return self.last - self.first

    @overload
    def __getitem__(self, index: int) -> F: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[F]: ...
    def __getitem__(self, index: int | slice) -> F | Sequence[F]:
        rows = range(self.first, self.last)[index]
        return self._file(rows) if isinstance(rows, int) else [self._file(row) for row in rows]

    def __iter__(self) -> Iterator[F]:
        return map(self._file, range(self.first, self.last))

    def _file(self, row: int) -> F:
        return data_file_at(self.columns, row) if self.made is None else self.made[row]  # type: ignore[return-value]


def path_at(columns: EntryColumns, row: int) -> str:
    """The path of one file."""
    start = columns.paths.starts.item(row)
    return columns.block[start : start + columns.paths.lengths.item(row)].decode()


def data_file_at(columns: EntryColumns, row: int) -> DataFile:
    """One data file; what it says of its columns is decoded when it is asked for."""
    return DataFile(
        path_at(columns, row),
        FORMATS[columns.formats.item(row)],
        columns.spec_id,
        columns.partitions[columns.partition_codes.item(row)],
        columns.record_counts.item(row),
        columns.file_sizes.item(row),
        columns.sequence_numbers.item(row),
        _nullable(columns.file_sequence_numbers.item(row)),
        _pairs(columns, LOWER, row),
        _pairs(columns, UPPER, row),
        _pairs(columns, VALUES, row),
        _pairs(columns, NULLS, row),
        _pairs(columns, NANS, row),
        columns.split_offsets.of(row),
        columns.is_encrypted.item(row),
        _nullable(columns.first_row_ids.item(row)),
    )


def delete_files_of(columns: EntryColumns) -> list[DeleteFile]:
    """All delete files of the columns."""
    deletes = columns.deletes
    assert deletes is not None  # noqa: S101 - columns of delete manifests have them
    return list(
        map(
            DeleteFile,
            _texts(columns, columns.paths),
            [FORMATS[code] for code in columns.formats.tolist()],
            [columns.spec_id] * len(columns),
            [columns.partitions[code] for code in columns.partition_codes.tolist()],
            columns.record_counts.tolist(),
            columns.file_sizes.tolist(),
            columns.sequence_numbers.tolist(),
            _all_nullable(columns.file_sequence_numbers),
            *(_all_pairs(columns, slot) for slot in (LOWER, UPPER, VALUES, NULLS, NANS)),
            _tuples(columns.split_offsets),
            columns.is_encrypted.tolist(),
            [DELETE_CONTENTS[content] for content in deletes.contents.tolist()],
            _tuples(deletes.equality_ids),
            _texts(columns, deletes.referenced),
            _all_nullable(deletes.content_offsets),
            _all_nullable(deletes.content_sizes),
        )
    )


def _pairs(columns: EntryColumns, slot: int, row: int) -> Mapping[int, Any]:
    spans = columns.statistics.get(slot)
    if spans is None:
        return _NOTHING
    count = spans.lengths.item(row)
    return LazyPairs(columns.block, spans.starts.item(row), count, STATISTICS[slot]) if count > 0 else _NOTHING


def _all_pairs(columns: EntryColumns, slot: int) -> list[Mapping[int, Any]]:
    spans, block, of_bytes = columns.statistics.get(slot), columns.block, STATISTICS[slot]
    if spans is None:
        return [_NOTHING] * len(columns)
    places = zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    return [LazyPairs(block, start, count, of_bytes) if count > 0 else _NOTHING for start, count in places]


def _texts(columns: EntryColumns, spans: Spans) -> list[str | None]:
    block = columns.block
    places = zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    return [block[a : a + n].decode() if n >= 0 else None for a, n in places]


def _tuples(longs: Longs) -> list[tuple[int, ...]]:
    values = longs.values.tolist()
    return [tuple(values[a:b]) for a, b in pairwise([0, *longs.ends.tolist()])]


def _nullable(number: int) -> int | None:
    return None if number == NULL else number


def _all_nullable(numbers: Numbers) -> list[int | None]:
    return [None if n == NULL else n for n in numbers.tolist()]
