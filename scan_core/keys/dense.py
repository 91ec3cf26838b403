"""Delete keys of close integers (dates, timestamps ...) as a table with one rank per possible value."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.keys.columns import Flags, signed_values
from scan_core.keys.summary import DeleteKeys, KeySummary, Ranks, rank_of, rank_type, summarise_table
from scan_core.native.compiled import kernels_if_worthwhile, measured
from scan_core.native.machine_code import Kernels
from scan_core.rows.buffers import validity

MAX_SLOTS_PER_KEY = 64
"""Above, the table costs more memory and cache misses than hashing saves."""
MAX_BYTES = 256 * 1024**2
_BLOCK_ROWS = 32_768


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DenseIndex:
    """Ranks of the integers `lower`, `lower` + 1, ...; the last slot is 0 and stands for everything outside."""

    sequence_numbers: tuple[int, ...]
    lower: int
    ranks: Ranks
    null_rank: int
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return self.ranks.nbytes + sum(s.num_bytes for s in self.summaries)

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return int(np.count_nonzero(self.ranks)) + int(self.null_rank > 0)

    def deleted(self, keys: Sequence[pa.Array], threshold: int, *, use_numba: bool = True) -> Flags:
        """Rows whose key has a rank above the threshold."""
        (array,) = keys
        values = signed_values(array)
        kernels = kernels_if_worthwhile(use_numba=use_numba)
        with measured(kernels):
            dead = self._dead(values, threshold, kernels)
        if (valid := validity(array)) is not None:
            dead[~valid] = self.null_rank > threshold
        return dead

    def _dead(
        self, values: npt.NDArray[np.int64] | npt.NDArray[np.int32], threshold: int, kernels: Kernels | None
    ) -> Flags:
        dead = np.empty(len(values), np.bool_)
        outside = np.uint64(len(self.ranks) - 1)
        lower = np.uint64(self.lower & 0xFFFFFFFFFFFFFFFF)
        if kernels is not None and self.ranks.itemsize == 1:
            mark = kernels["mark_close_i64" if values.itemsize == 8 else "mark_close_i32"]
            mark(values, len(values), lower, self.ranks, outside, threshold, dead.view(np.uint8))
            return dead
        for begin in range(0, len(values), _BLOCK_ROWS):
            block = values[begin : begin + _BLOCK_ROWS]
            slots = block.astype(np.int64, copy=False).view(np.uint64) - lower
            np.minimum(slots, outside, out=slots)
            np.greater(self.ranks[slots.view(np.int64)], threshold, out=dead[begin : begin + len(block)])
        return dead

    def covers(self, lower: int, upper: int, threshold: int) -> bool:
        """Whether every integer from `lower` to `upper` is deleted."""
        begin, end = lower - self.lower, upper + 1 - self.lower
        if begin < 0 or end >= len(self.ranks) or begin >= end:
            return False
        return bool((self.ranks[begin:end] > threshold).all())


def build_dense(
    parts: Sequence[DeleteKeys], kind: pa.DataType, sequence_numbers: tuple[int, ...], limit_bytes: int
) -> DenseIndex | None:
    """A table over the only key column of the parts, ascending by sequence number; None if they spread too far."""
    kind_of_rank = rank_type(sequence_numbers)
    of_parts = [_values(p) for p in parts]
    rank_of_part = np.array([rank_of(p.sequence_number, sequence_numbers) for p in parts], kind_of_rank)
    values = np.concatenate([np.empty(0, np.int64), *(v for v, _ in of_parts)])
    lower, slots = 0, 0
    if len(values):
        lower = int(values.min())
        slots = int(values.max()) - lower + 1
    if slots > min(MAX_SLOTS_PER_KEY * len(values), min(limit_bytes, MAX_BYTES) // kind_of_rank.itemsize):
        return None
    ranks: Ranks = np.zeros(slots + 1, kind_of_rank)
    values -= lower
    ranks[values] = np.repeat(rank_of_part, [len(v) for v, _ in of_parts])  # of a repeated key the last one stays
    null_rank = max((int(r) for r, (_, has_null) in zip(rank_of_part, of_parts, strict=True) if has_null), default=0)
    summary = summarise_table(ranks[:-1], lower, has_null=null_rank > 0, kind=kind)
    return DenseIndex(sequence_numbers, lower, ranks, null_rank, (summary,))


def build_dense_streamed(
    parts: Iterable[DeleteKeys], kind: pa.DataType, sequence_numbers: tuple[int, ...], limit_bytes: int
) -> DenseIndex | None:
    """The same over parts that are dropped one after the other, however far they spread within the limit."""
    limit_slots = min(limit_bytes, MAX_BYTES) // rank_type(sequence_numbers).itemsize
    lower, upper, null_rank = 0, -1, 0
    ranks: Ranks = np.zeros(1, rank_type(sequence_numbers))
    for part in parts:
        rank = rank_of(part.sequence_number, sequence_numbers)
        values, has_null = _values(part)
        null_rank = rank if has_null else null_rank
        if not len(values):
            continue
        low, high = int(values.min()), int(values.max())
        if lower <= upper:
            low, high = min(low, lower), max(high, upper)
        if high - low + 1 > limit_slots:
            return None
        ranks = _grown(ranks, lower, low, high, limit_slots)
        lower, upper = low, high
        ranks[values - lower] = rank  # ascending: the highest rank of a key is written last
    summary = summarise_table(ranks[:-1], lower, has_null=null_rank > 0, kind=kind)
    return DenseIndex(sequence_numbers, lower, ranks, null_rank, (summary,))


def _values(part: DeleteKeys) -> tuple[npt.NDArray[np.int64], bool]:
    """The values that are not NULL, and whether there are NULLs."""
    array = part.columns[0]
    has_null = array.null_count > 0
    if has_null:
        array = array.drop_null()
    if pa.types.is_dictionary(array.type):
        has_null = has_null or array.dictionary.null_count > 0
        array = array.dictionary_decode().drop_null()
    return signed_values(array).astype(np.int64, copy=False), has_null


def _grown(ranks: Ranks, lower: int, low: int, high: int, limit_slots: int) -> Ranks:
    """The table from `low` to at least `high`; room ahead where it grows, so that it is not copied for each file."""
    slots, needed = len(ranks) - 1, high - low + 1
    if slots and low == lower and needed <= slots:
        return ranks
    grown = np.zeros((max(needed, min(2 * needed, limit_slots)) if slots else needed) + 1, ranks.dtype)
    kept = min(slots, high + 1 - lower)
    grown[lower - low : lower - low + kept] = ranks[:kept]
    return grown
