"""What is loaded of an equality-delete file: its keys, and the sequence number that decides which rows they meet."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
