"""Which rows a random sample takes: by data file and row position alone, so before any column is read.

The same seed takes the same rows of a file for any splits, threads and options, and after any later deletes.
Every row is taken with the same probability. Small files are sampled row by row; of large ones whole blocks are left
out first, one block of each stretch kept, so that only some of the pages are read.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scan_core.model.errors import OptionError
from scan_core.rows.selection import All, Mask, RowSelection, nothing

BLOCK_ROWS = 16_384
"""About a page: taking single rows of every page would read them all."""
_BLOCKS_FROM_ROWS = 64 * BLOCK_ROWS
"""A smaller file is read sooner than its blocks would be a fair sample of it."""
_MOST_STRIDE = 64
"""A sample of fewer blocks than one in that many would say too much of single places of the table."""
_BITS = 64


@dataclass(frozen=True, slots=True)
class RowSample:
    """Take each row with probability `fraction`.

    Raises:
        OptionError: a fraction outside of 0 to 1, or a seed that is no 64-bit integer.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fraction <= 1.0:
            raise OptionError(f"a sample takes a fraction between 0 and 1 of the rows, not {self.fraction}")
        if not 0 <= self.seed < 1 << _BITS:
            raise OptionError(f"the seed of a sample is an integer from 0 to 2**64 - 1, not {self.seed}")

    def rows(self, data_file: str, file_rows: int, first_row: int, num_rows: int) -> RowSelection:
        """Which of the rows [first_row, first_row + num_rows) of a file are taken, numbered from 0.

        Args:
            data_file: its path as the manifest writes it.
            file_rows: of the whole file, as its manifest states.
            first_row: position in the file.
            num_rows: rows to decide on.
        """
        if self.fraction == 1.0:
            return All(num_rows)
        if self.fraction == 0.0 or num_rows == 0:
            return nothing(num_rows)
        stride = int(min(math.sqrt(1.0 / self.fraction), _MOST_STRIDE)) if file_rows >= _BLOCKS_FROM_ROWS else 1
        key = self._key(data_file)
        threshold = np.uint64(min(int(self.fraction * stride * 2.0**_BITS), 2**_BITS - 1))
        mask = np.zeros(num_rows, np.bool_)
        for block in range(first_row // BLOCK_ROWS, (first_row + num_rows - 1) // BLOCK_ROWS + 1):
            if stride > 1 and _draw(key, 1, block // stride, 1)[0] % np.uint64(stride) != block % stride:
                continue
            taken = _draw(key, 0, block, BLOCK_ROWS) < threshold
            begin = block * BLOCK_ROWS - first_row
            part = taken[max(-begin, 0) : num_rows - begin]
            mask[max(begin, 0) : max(begin, 0) + len(part)] = part
        return Mask(mask) if mask.any() else nothing(num_rows)

    def _key(self, data_file: str) -> int:
        digest = hashlib.blake2b(data_file.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "little") | self.seed << _BITS


def _draw(key: int, purpose: int, block: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` random words that belong to a block: Philox is a function of key and counter."""
    generator = np.random.Philox(key=key, counter=[0, 0, purpose, block])
    return generator.random_raw(count)
