"""How much of a row group a worker decodes at once, so that a scan stays within its memory limit.

Sizes are estimated from what the file states, corrected by what earlier pieces turned out to hold. The decisions made
here never change the rows.
"""

from dataclasses import dataclass

from scan_core.model.options import ScanOptions
from scan_core.model.running import sharing
from scan_core.rows.selection import RowSelection, from_ranges, intersect, row_count, to_indices

_SHARE = 8
"""Of a worker's part of the limit: decoded columns, what their decoders hold (twice as much), their filtered copy, batches
that are queued, and the delete index."""
_FIXED_BYTES = 8 * 1024**2
"""What a worker needs however little it decodes: pages out of compression, buffers of allocators and threads."""
_LARGEST_SHARE = 4
"""Of the limit for a single row or page: its bytes out of compression, its values, their copy in a batch."""
_MIN_LARGEST_BYTES = 64 * 1024**2
"""Ordinary pages and rows are read regardless of the limit."""
_TOLERANCE = 2
"""Reading a piece again costs as much as it did: a piece that is a little too large is accepted."""
_USUAL_GROWTH = 16
"""What decoded columns take of the bytes that their file states, at most, but for values stored once for many rows."""
_MIN_ROWS = 4_096
"""Smaller pieces read the same pages again and again."""
_MIN_BATCH_ROWS = 1_024


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
        count = self._parts(num_rows, stated_bytes * self._growth)
        size = -(-num_rows // count)
        return [range(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]

    def fits(self, stated_bytes: int) -> bool:
        """Whether columns stated to have so many bytes are one piece however much earlier ones grew."""
        return stated_bytes * max(self._growth, _USUAL_GROWTH) <= self._bytes

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

    def _parts(self, num_rows: int, num_bytes: float) -> int:
        return max(1, min(int(-(-num_bytes // self._bytes)), num_rows // _MIN_ROWS))


def halves(selection: RowSelection) -> list[tuple[RowSelection, range]]:
    """Two selections of half the rows each, and where they lie; none if they are too few to be halved."""
    rows = to_indices(selection)
    if len(rows) < 2 * _MIN_ROWS:
        return []
    middle, num_rows = int(rows[len(rows) // 2]), row_count(selection)
    spans = range(int(rows[0]), middle), range(middle, int(rows[-1]) + 1)
    return [(intersect(selection, from_ranges([(s.start, s.stop)], num_rows)), s) for s in spans]
