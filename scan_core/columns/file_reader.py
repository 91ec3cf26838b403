"""What the engine asks of a reader of data and delete files of any format, and how much a worker may decode at once.

Sizes are estimated from what the file states, and corrected by what earlier pieces turned out to hold. These decisions keep a
scan within its memory limit and never change its rows. Files without field ids get them from the table's name mapping here.
"""

# ruff: noqa: ARG002  the defaults of a protocol use no argument

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.model.errors import MalformedTableError, ScanError, UnsupportedError
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.running import sharing
from nevermore.scan_core.model.schema import FIELD_ID_KEY, MAX_TYPE_DEPTH
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.rows.selection import RowSelection, from_ranges, intersect, row_count, to_indices

StatisticsOf = Callable[[int], ColumnStatistics | None]
"""Field id -> statistics of the column in the requested rows."""

_SHARE = 8
"""Of a worker's part of the limit: decoded columns, what their decoders hold (twice as much), their filtered copy, batches
that are queued, and the delete index."""
_TIGHT_BYTES = 48 * 1024**2
_FIXED_BYTES = 8 * 1024**2
"""What a worker needs however little it decodes: pages out of compression, buffers of allocators and threads."""
_LARGEST_SHARE = 4
"""Of the limit for a single row or page: its bytes out of compression, its values, their copy in a batch."""
_MIN_LARGEST_BYTES = 64 * 1024**2
"""Ordinary pages and rows are read regardless of the limit."""
_TOLERANCE = 2
"""Reading a piece again costs as much as it did: a piece that is a little too large is accepted."""
_FEW_BYTES = 1024**2
"""Size of a piece where the first rows will probably be enough."""
_USUAL_GROWTH = 16
"""What decoded columns take of the bytes that their file states, at most, but for values stored once for many rows."""
_MIN_ROWS = 4_096
"""Smaller pieces read the same pages again and again."""
_MIN_BATCH_ROWS = 1_024


Made = TypeVar("Made")


class OnDemand(Sequence[Made], Generic[Made]):
    """Facts of pages or column chunks, each made when it is first asked for: few are."""

    def __init__(self, count: int, make: Callable[[int], Made]) -> None:
        self._found: list[Made | None] = [None] * count
        self._make = make

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, number: Any) -> Any:
        """Those of one by its number."""
        if (found := self._found[number]) is None:
            found = self._found[number] = self._make(number)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PageStatistics:
    """The pages of one column in a row group: page k holds rows [edges[k], edges[k + 1]).

    `tests` gives, by the number of a page, whether it certainly lacks a value, where the file has Bloom filters of pages.
    """

    edges: npt.NDArray[np.int64]
    statistics: Sequence[ColumnStatistics]
    tests: Callable[[int], Callable[[Any], bool] | None] | None = None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A Parquet row group, ORC stripe, or a whole Avro file. `byte_offset` decides which task reads it."""

    index: int
    first_row_position: int
    num_rows: int
    byte_offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Habits:
    """The columns that were read of a row group, by number and name: as whole chunks, and by page.

    `bounded` are those whose decoded sizes were bounded by `limits` before, for which dictionaries are read.
    """

    whole: frozenset[tuple[int, str]] = frozenset()
    paged: frozenset[tuple[int, str]] = frozenset()
    bounded: frozenset[tuple[int, str]] = frozenset()
    limits: "DecodingLimits | None" = None


@dataclass(slots=True)
class ReadCounts:
    """What a reader left out below the level of column chunks, and where it could not.

    `bytes_left_out` were neither read nor decoded, though their chunk was asked for;
    `bytes_spilled` were decoded into a file, as the pages of all columns exceed the memory limit, and `over_limit` tells
    that even those of one column do. `whole` and `paged` are columns read in these ways.
    """

    pages_read: int = 0
    pages_left_out: int = 0
    bloom_filters_read: int = 0
    bloom_bytes_read: int = 0
    bytes_left_out: int = 0
    bytes_ahead: int = 0
    bytes_in_vain: int = 0
    bytes_spilled: int = 0
    over_limit: bool = False
    fallbacks: int = 0
    whole: set[int] = field(default_factory=set)
    paged: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LeafNeeds:
    """Leaf columns of a column, counted from its first.

    Attributes:
        all_of: to be read.
        any_of: for each of these one is to be read, whichever: what matters is where there are values.
    """

    all_of: frozenset[int]
    any_of: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class DecodingLimits:
    """How much may be decoded at once.

    Attributes:
        target_bytes: what a window of rows should hold.
        max_bytes: what a single row or page must not exceed, or it is refused.
    """

    target_bytes: int
    max_bytes: int

    @property
    def worker_bytes(self) -> int:
        """All that a worker may hold."""
        return _SHARE * self.target_bytes

    @property
    def is_tight(self) -> bool:
        """Whether the limit of a worker is so small that memory which allocators keep is a large part of it."""
        return self.worker_bytes < _TIGHT_BYTES

    @classmethod
    def of(cls, memory_limit_bytes: int, target_bytes: int) -> "DecodingLimits":
        """The limits under a memory limit; `target_bytes` is the part of it for one window."""
        return cls(max(target_bytes, 1), max(memory_limit_bytes // _LARGEST_SHARE, _MIN_LARGEST_BYTES))


class MemoryBudget:
    """The budget of one worker for one split; `reserved_bytes` of the limit are for bytes fetched ahead.

    `limits` apply to data decoded without a size known from earlier pieces.
    """

    def __init__(self, options: ScanOptions, reserved_bytes: int = 0) -> None:
        self._options = options
        self._reserved_bytes = reserved_bytes
        self._growth = 1.0
        self._row_bytes = 0.0

    @property
    def limits(self) -> DecodingLimits:
        """What may be decoded at once now."""
        return DecodingLimits.of(self._options.memory_limit_bytes, self._bytes)

    @property
    def _bytes(self) -> int:
        """What a piece may hold: the limit is shared with the other scans that run in this process now."""
        share = self._options.memory_limit_bytes // sharing() - self._reserved_bytes
        usable = max(share, 0) // self._options.parallelism
        return max(max(usable - _FIXED_BYTES, usable // 2) // _SHARE, 1)

    def pieces(self, num_rows: int, stated_bytes: int) -> list[range]:
        """A row group of `num_rows` cut into row ranges that fit; `stated_bytes` is its size before decoding."""
        most = min(self._bytes, _FEW_BYTES) if self._options.wants_few else self._bytes
        count = max(1, min(int(-(-stated_bytes * self._growth // most)), num_rows // _MIN_ROWS))
        size = -(-num_rows // count)
        return [range(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]

    def fits(self, stated_bytes: int) -> bool:
        """Whether columns stated to have so many bytes are one piece however much earlier ones grew."""
        return not self._options.wants_few and stated_bytes * max(self._growth, _USUAL_GROWTH) <= self._bytes

    def is_exceeded(self, num_bytes: int) -> bool:
        """Whether decoded columns of this size are more than a piece may hold."""
        return num_bytes > _TOLERANCE * self._bytes

    def record(self, stated_bytes: float, num_bytes: int) -> None:
        """Remember what columns stated to have `stated_bytes` held when decoded."""
        if stated_bytes > 0:
            self._growth = max(num_bytes / stated_bytes, 1.0)

    def batch_rows(self) -> int:
        """Rows of a batch, by the width of the batches so far."""
        if not self._row_bytes:
            return self._options.batch_rows
        most = self._options.batch_rows
        return max(min(most, int(self._bytes / self._row_bytes)), min(_MIN_BATCH_ROWS, most))

    def record_batch(self, num_rows: int, num_bytes: int) -> None:
        """Remember how wide rows of the result are."""
        self._row_bytes = num_bytes / num_rows


def halves(selection: RowSelection) -> list[tuple[RowSelection, range]]:
    """Two selections of half the rows each, and where they lie; none if they are too few to be halved."""
    rows = to_indices(selection)
    if len(rows) < 2 * _MIN_ROWS:
        return []
    middle, num_rows = int(rows[len(rows) // 2]), row_count(selection)
    spans = range(int(rows[0]), middle), range(middle, int(rows[-1]) + 1)
    return [(intersect(selection, from_ranges([(s.start, s.stop)], num_rows)), s) for s in spans]


class FileReader(Protocol):
    """An open file.

    `arrow_schema` carries field ids at every depth as field metadata `PARQUET:field_id` (also for ORC and Avro;
    fields without id have none). `has_field_ids` is False when the file knows none. `counts` grows with every read.
    """

    arrow_schema: pa.Schema
    has_field_ids: bool
    num_rows: int
    row_groups: Sequence[RowGroup]
    counts: ReadCounts

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Columns by their index in `arrow_schema`, or members by their number, only the selected rows, in file types.

        `window` is the part of the row group that all selected rows lie in, where it is read in parts from top to
        bottom. Each array has `selected_count(selection)` values. Raises MalformedTableError with file and column.
        """
        ...

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of these columns in the row group."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...

    # Defaults for formats that decode columns as a whole, without members, pages, Bloom filters and dictionaries.

    def field(self, column_index: int) -> pa.Field:
        """The Arrow field of a top-level column or member."""
        return self.arrow_schema.field(column_index)

    def member(self, way: tuple[int, ...]) -> int | None:
        """The column number under which a struct member can be read alone, NULL where a struct above it is.

        `way` is a top-level column, then the place of a child in each struct; None if the file has no such column.
        """
        return None

    def part(self, column_index: int, needs: LeafNeeds) -> tuple[int, frozenset[int]] | None:
        """The column number under which a part of a column can be read, and its leaf columns, counted from the column's first.

        None if the column can only be read as a whole.
        """
        return None

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Statistics of a primitive column; None where unknown or where the stored type has no known order."""
        return None

    def page_statistics(self, row_group: RowGroup, column_index: int) -> PageStatistics | None:
        """Statistics of the pages of a primitive column; None where the file has no page index."""
        return None

    def exclusion_test(self, row_group: RowGroup, column_index: int) -> Callable[[Any], bool] | None:
        """Whether a value, as statistics represent it in the file's type, is certainly not in a primitive column.

        None where the file has no such test, or one that costs more to read than the column.
        """
        return None

    def has_exclusion_test(self, row_group: RowGroup, column_index: int) -> bool:
        """Whether the file states such a test; nothing is read."""
        return False

    def windows(
        self, row_group: RowGroup, column_indices: Sequence[int], rows: range, limits: DecodingLimits
    ) -> list[range] | None:
        """Rows of a row group cut so that each part fits when decoded; None if all of it does.

        Raises MemoryLimitError where a single row does not, MalformedTableError where pages contradict the file.
        """
        return None

    def reads_ranges(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Whether a range of rows of these columns costs about its share of the row group."""
        return False

    def reads_apart(self, row_group: RowGroup, column_indices: Sequence[int]) -> bool:
        """Whether a range of rows can be read without the rows before it."""
        return False

    @property
    def is_remote(self) -> bool:
        """Whether bytes can be fetched before they are asked for, and fetching them ahead pays: the file is on an object store."""
        return False

    @property
    def num_bytes_ahead(self) -> int:
        """Bytes that were fetched ahead, or are on their way, and were not read yet."""
        return 0

    def expect(self, row_group: RowGroup, habits: Habits, max_bytes: int) -> None:
        """Begin to fetch these columns of a row group, those that fit into `max_bytes`."""
        return

    def release(self, row_group: RowGroup) -> None:
        """Drop what was fetched of a row group and not read."""
        return


BROKEN_BYTES = (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, MemoryError, TypeError)
"""Exceptions that decoders raise on damaged bytes."""


class refusing_malformed:  # noqa: N801  reads as what it does; a generator would cost a microsecond per small file
    """Turn what decoders raise on broken bytes into errors that name the file and the part of it."""

    __slots__ = ("_path", "_what")

    def __init__(self, path: str, what: str | Callable[[], str]) -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, ScanError) or not isinstance(error, BROKEN_BYTES):
            return
        what = self._what if isinstance(self._what, str) else self._what()
        if isinstance(error, pa.ArrowNotImplementedError):
            raise UnsupportedError(f"{self._path}: {what}: {error}") from error
        raise MalformedTableError(f"{self._path}: {what}: {error or type(error).__name__}") from error


def field_id_of(field: pa.Field) -> int | None:
    """The id that a file's field carries, None if it has none."""
    raw = (field.metadata or {}).get(FIELD_ID_KEY)
    if raw is None:
        return None
    try:
        return int(raw)
    except ValueError as error:
        raise MalformedTableError(f"field {field.name!r} has the field id {raw!r}") from error


def apply_name_mapping(schema: pa.Schema, mapping: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The schema with the mapping's ids as field metadata, at every depth; unmapped fields stay without.

    Raises:
        MalformedTableError: a mapping that is not of the form the specification gives.
    """
    try:
        return pa.schema(_mapped_fields(list(schema), mapping, 0))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MalformedTableError(f"schema.name-mapping.default is malformed: {error!r}") from error


def _mapped_fields(
    fields: Sequence[pa.Field], mapping: Sequence[Mapping[str, Any]] | None, depth: int
) -> list[pa.Field]:
    if depth > MAX_TYPE_DEPTH:
        raise MalformedTableError(f"schema.name-mapping.default nests deeper than {MAX_TYPE_DEPTH} levels")
    by_name = {name: entry for entry in mapping or () for name in entry.get("names", ())}
    return [_mapped_field(field, by_name.get(field.name), depth) for field in fields]


def _mapped_field(field: pa.Field, entry: Mapping[str, Any] | None, depth: int) -> pa.Field:
    nested = entry.get("fields") if entry else None
    result = field.with_type(_mapped_type(field.type, nested, depth + 1))
    if entry is None or (field_id := entry.get("field-id")) is None:
        return result.with_metadata(None)
    return result.with_metadata({FIELD_ID_KEY: str(int(field_id)).encode()})


def _mapped_type(data_type: pa.DataType, mapping: Sequence[Mapping[str, Any]] | None, depth: int) -> pa.DataType:
    if pt.is_struct(data_type):
        return pa.struct(_mapped_fields(list(data_type), mapping, depth))
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        element = _mapped_fields([data_type.value_field.with_name("element")], mapping, depth)[0]
        element = element.with_name(data_type.value_field.name)
        return pa.large_list(element) if pt.is_large_list(data_type) else pa.list_(element)
    if pt.is_map(data_type):
        key, value = _mapped_fields(
            [data_type.key_field.with_name("key"), data_type.item_field.with_name("value")], mapping, depth
        )
        return pa.map_(key.with_name(data_type.key_field.name), value.with_name(data_type.item_field.name))
    return data_type
