"""Delete keys of close integers (dates, timestamps ...) as a table with one rank per possible value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.deletes.delete_keys import DeleteKeys, Ranks, rank_of, rank_type
from scan_core.deletes.key_summary import KeySummary, summarise
from scan_core.index.key_columns import Flags, key_column, signed_values

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
        """Rows whose key has a rank above the threshold; NumPy is as fast as compiled code here."""
        del use_numba
        (array,) = keys
        values = signed_values(array)
        dead = np.empty(len(values), np.bool_)
        outside = np.uint64(len(self.ranks) - 1)
        lower = np.uint64(self.lower & 0xFFFFFFFFFFFFFFFF)
        for begin in range(0, len(values), _BLOCK_ROWS):
            block = values[begin : begin + _BLOCK_ROWS]
            slots = block.astype(np.int64, copy=False).view(np.uint64) - lower
            np.minimum(slots, outside, out=slots)
            np.greater(self.ranks[slots.view(np.int64)], threshold, out=dead[begin : begin + len(block)])
        if array.null_count:
            dead[array.is_null().to_numpy(zero_copy_only=False)] = self.null_rank > threshold
        return dead

    def covers(self, lower: int, upper: int, threshold: int) -> bool:
        """Whether every integer from `lower` to `upper` is deleted."""
        begin, end = lower - self.lower, upper + 1 - self.lower
        if begin < 0 or end >= len(self.ranks) or begin >= end:
            return False
        return bool((self.ranks[begin:end] > threshold).all())


def build_dense(parts: Sequence[DeleteKeys], sequence_numbers: tuple[int, ...], limit_bytes: int) -> DenseIndex | None:
    """A table over the only key column of the parts, ascending by sequence number; None if they spread too far."""
    ranked: list[tuple[int, npt.NDArray[np.int64]]] = []
    null_rank = 0
    for part in parts:
        rank = rank_of(part.sequence_number, sequence_numbers)
        array = part.columns[0]
        if array.null_count:
            null_rank = rank
            array = array.drop_null()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if len(array):
            ranked.append((rank, signed_values(array).astype(np.int64, copy=False)))
    lower = min((int(v.min()) for _, v in ranked), default=0)
    upper = max((int(v.max()) for _, v in ranked), default=-1)
    slots, kind = upper - lower + 1, rank_type(sequence_numbers)
    allowed = min(limit_bytes, MAX_BYTES)
    if slots > MAX_SLOTS_PER_KEY * sum(len(v) for _, v in ranked) or slots * kind.itemsize > allowed:
        return None
    ranks = np.zeros(slots + 1, kind)
    for rank, values in ranked:  # ascending: the highest rank of a key is written last
        ranks[values - lower] = rank
    summary = summarise([key_column(pa.array(v)) for _, v in ranked], has_null=null_rank > 0, kind=pa.int64())
    return DenseIndex(sequence_numbers, lower, ranks, null_rank, (summary,))
