"""Loaded delete keys, and where the keys of an index lie on a line.

A summary is enough to prove that a range of values contains no key; exact lookups are in
`keys/lookup.py`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.keys.columns import BytesColumn, DictionaryColumn, KeyColumn, Words, null_flags
from nevermore.scan_core.keys.hash import row_words
from nevermore.scan_core.model.statistics import ColumnStatistics

Ranks = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
"""1-based positions of sequence numbers among those of the group, ascending; 0 is no delete."""


@dataclass(frozen=True, slots=True, eq=False)
class DeleteKeys:
    """Keys of one delete file: one array per key column, in the table's current types."""

    sequence_number: int
    columns: tuple[pa.Array, ...]

    @property
    def num_rows(self) -> int:
        """Keys, repeats included."""
        return len(self.columns[0])


def rank_of(sequence_number: int, sequence_numbers: Sequence[int]) -> int:
    """The rank of a delete; for a data file the threshold that ranks must exceed: strictly greater (rule 1)."""
    return bisect_right(sequence_numbers, sequence_number)


def rank_type(sequence_numbers: Sequence[int]) -> np.dtype[np.unsignedinteger]:
    """The narrowest type that holds all ranks."""
    return np.min_scalar_type(len(sequence_numbers))


def ranks_of(parts: Sequence[DeleteKeys], sequence_numbers: Sequence[int]) -> Ranks:
    """The rank of every key of the parts, one after the other."""
    kind = rank_type(sequence_numbers)
    of_parts = np.array([rank_of(p.sequence_number, sequence_numbers) for p in parts], kind)
    ranks: Ranks = np.repeat(of_parts, [p.num_rows for p in parts]).astype(kind, copy=False)
    return ranks


MAX_BUCKETS = 65_536
SIGN_BIT = 1 << 63
"""Added to signed numbers, so that their order is that of unsigned ones."""
_MASK = (1 << 64) - 1
_EXACT = Context(prec=76)


@dataclass(frozen=True, slots=True, eq=False)
class KeySummary:
    """Occupied buckets of one key column: bucket = (prefix - base) >> shift; None if nothing is known."""

    kind: pa.DataType
    has_null: bool
    base: int
    shift: int
    buckets: Words | None

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return 0 if self.buckets is None else self.buckets.nbytes

    def meets(self, statistics: ColumnStatistics | None) -> bool:
        """False only if no value described by the statistics can be one of the keys."""
        if statistics is None:
            return True
        if self.has_null and statistics.null_count != 0:
            return True
        if statistics.value_count is not None and statistics.null_count == statistics.value_count:
            return False
        return self.meets_range(statistics.lower, statistics.upper)

    def meets_range(self, lower: Any, upper: Any) -> bool:
        """False only if no key lies between the bounds; None is no bound."""
        if self.buckets is None:
            return True
        if len(self.buckets) == 0:
            return False
        if lower is None or upper is None:
            return True
        low, high = prefix_of(lower, self.kind), prefix_of(upper, self.kind)
        if low is None or high is None or low > high:  # the wrong way round: not to be believed
            return True
        if high < self.base:
            return False
        begin = np.searchsorted(self.buckets, np.uint64(max(low - self.base, 0) >> self.shift))
        end = np.searchsorted(self.buckets, np.uint64((high - self.base) >> self.shift), side="right")
        return bool(begin < end)


def summarise(columns: Sequence[KeyColumn], *, has_null: bool, kind: pa.DataType) -> KeySummary:
    """The summary of all values of the columns, which are parts of one key column of type `kind`."""
    parts = [_prefixes(c, kind) for c in columns]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return KeySummary(kind, has_null, 0, 0, None)
    filled = [p for p in known if len(p)]
    if not filled:
        return KeySummary(kind, has_null, 0, 0, np.empty(0, np.uint64))
    base, top = min(int(p.min()) for p in filled), max(int(p.max()) for p in filled)
    if sum(len(p) for p in filled) <= MAX_BUCKETS:
        return KeySummary(kind, has_null, base, 0, np.unique(np.concatenate(filled)) - np.uint64(base))
    shift = max((top - base).bit_length() - (MAX_BUCKETS - 1).bit_length(), 0)
    occupied = np.zeros(((top - base) >> shift) + 1, np.bool_)
    for part in filled:
        occupied[((part - np.uint64(base)) >> np.uint64(shift)).view(np.int64)] = True
    return KeySummary(kind, has_null, base, shift, np.flatnonzero(occupied).astype(np.uint64))


def merge_summaries(parts: Sequence[KeySummary]) -> KeySummary:
    """The summary of all keys of parts of one column; coarser than any of them."""
    kind, has_null = parts[0].kind, any(p.has_null for p in parts)
    filled = [p for p in parts if p.buckets is None or len(p.buckets)]
    if any(p.buckets is None for p in filled):
        return KeySummary(kind, has_null, 0, 0, None)
    if not filled:
        return KeySummary(kind, has_null, 0, 0, np.empty(0, np.uint64))
    spans = [(p, p.buckets) for p in filled if p.buckets is not None]
    base = min(p.base for p, _ in spans)
    top = max(p.base + (int(b[-1]) << p.shift) for p, b in spans)
    shift = max((top - base).bit_length() - (MAX_BUCKETS - 1).bit_length(), *(p.shift for p, _ in spans), 0)
    occupied = np.zeros(((top - base) >> shift) + 2, np.bool_)
    for part, buckets in spans:
        first = ((buckets << np.uint64(part.shift)) + np.uint64(part.base - base)) >> np.uint64(shift)
        occupied[first.view(np.int64)] = True
        occupied[first.view(np.int64) + 1] = True  # a bucket of a part may reach into the next one of the whole
    return KeySummary(kind, has_null, base, shift, np.flatnonzero(occupied).astype(np.uint64))


def summarise_table(
    occupied: npt.NDArray[np.unsignedinteger], lower: int, *, has_null: bool, kind: pa.DataType
) -> KeySummary:
    """The summary of the integers `lower` + i for which `occupied[i]` is not 0."""
    shift = max(len(occupied).bit_length() - (MAX_BUCKETS - 1).bit_length(), 0)
    width = 1 << shift
    whole = len(occupied) // width * width
    any_in = occupied[:whole].reshape(-1, width).max(axis=1) > 0 if whole else np.zeros(0, np.bool_)
    if whole < len(occupied):
        any_in = np.append(any_in, occupied[whole:].any())
    return KeySummary(kind, has_null, lower + SIGN_BIT, shift, np.flatnonzero(any_in).astype(np.uint64))


def prefix_of(value: Any, kind: pa.DataType) -> int | None:
    """The order-preserving prefix of a bound; None where the value or type has none."""
    if pa.types.is_decimal(kind):
        if not isinstance(value, Decimal):
            return None
        unscaled = int(value.scaleb(kind.scale, _EXACT).to_integral_value(ROUND_FLOOR, _EXACT))
        return (unscaled + SIGN_BIT if kind.precision <= 18 else (unscaled >> 64) + SIGN_BIT) & _MASK
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big")
    if isinstance(value, int):
        return min(max(value + SIGN_BIT, 0), _MASK)
    return None


def _prefixes(column: KeyColumn, kind: pa.DataType) -> Words | None:
    if isinstance(column, DictionaryColumn):
        return _prefixes(column.values, kind)
    flags = null_flags(column)
    if isinstance(column, BytesColumn):
        column = column.with_slack()
        rows = np.arange(column.num_rows) if flags is None else np.flatnonzero(~flags)
        prefixes = np.zeros(len(rows), np.uint64)
        filled = np.flatnonzero(column.offsets[rows + 1] > column.offsets[rows])
        prefixes[filled] = row_words(column, rows[filled], 0).byteswap()
        return prefixes
    if pa.types.is_floating(kind) or not column.words:
        return None
    is_binary = pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind)
    words = column.words[0 if is_binary else -1]
    words = words if flags is None else words[~flags]
    return words.byteswap() if is_binary else words ^ np.uint64(SIGN_BIT)
