"""Columns of one row group, decoded on first use and only for the rows that remain by then.

What was decoded for a filter is narrowed, not read again, when a later step or the result needs fewer rows.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.columns.file_reader import FileReader, RowGroup
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.rows.selection import All, RowSelection, relative, select_rows, selected_count

_FEW_ROWS = 1_024
"""So few survivors of the filters are fetched while their keys are looked up among the deletes."""


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A decoded array with the rows of `selection`."""

    array: pa.Array
    selection: RowSelection


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Rows of a row group that a delete removes: one flag per row and, if asked for, the path of its delete file."""

    flags: npt.NDArray[np.bool_]
    delete_files: pa.Array | None


class LazyColumns:
    """Top-level columns of one row group by their index in the file. Selections may only narrow over time.

    `reads` counts how often each column was read, views included; `window` holds all rows that may be asked for, None if that
    is any row of the row group. `survivors_expected` begins to fetch columns of the result, but for those that are read anyway.
    """

    def __init__(self, reader: FileReader, row_group: RowGroup, window: range | None = None) -> None:
        self._reader = reader
        self.row_group = row_group
        self.window = window
        self.dead: DeadRows | None = None
        self.reads: Counter[int] = Counter()
        self.survivors_expected: Callable[[Collection[int], RowSelection], None] | None = None
        self._decoded: dict[int, _Decoded] = {}

    def copy(self) -> "LazyColumns":
        """A view for requests of other rows: it uses data decoded here, but its own decoded data is not kept."""
        other = LazyColumns(self._reader, self.row_group, self.window)
        other._decoded = self._decoded.copy()
        other.reads, other.dead = self.reads, self.dead
        return other

    def undecoded(self, window: range | None = None) -> "LazyColumns":
        """A view without decoded data, for requests of rows in `window` only."""
        other = LazyColumns(self._reader, self.row_group, window)
        other.reads, other.dead = self.reads, self.dead
        other.survivors_expected = self.survivors_expected if window is None else None
        return other

    @property
    def is_of_whole_group(self) -> bool:
        """True if any row of the row group may be asked for."""
        return self.window is None

    @property
    def num_bytes(self) -> int:
        """Bytes held by decoded columns."""
        return sum(decoded.array.nbytes for decoded in self._decoded.values())

    def is_untouched(self, indices: Sequence[int]) -> bool:
        """True if each of these columns can still be loaded for all rows without reading it twice."""
        return all(isinstance(self._decoded[i].selection, All) for i in indices if i in self._decoded)

    def expect_survivors(self, selection: RowSelection, keys: Collection[int]) -> None:
        """Begin to fetch the result's columns for these rows, if they are few and their `keys` have to be waited for."""
        is_wait = any(key not in self._decoded for key in keys)
        if self.survivors_expected is not None and is_wait and selected_count(selection) <= _FEW_ROWS:
            expect, self.survivors_expected = self.survivors_expected, None
            expect({*self._decoded, *keys}, selection)

    def load(self, indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
        """The rows of `selection`, which must lie within every earlier one, in the file's types.

        Low-cardinality strings may come dictionary-encoded.
        """
        absent = [i for i in dict.fromkeys(indices) if i not in self._decoded]
        if absent:
            check_running()
            arrays = self._reader.read(self.row_group, absent, selection, self.window)
            self.reads.update(absent)
            self._decoded.update(
                {i: _Decoded(array, selection) for i, array in zip(absent, arrays, strict=True)},
            )
        self._narrow([i for i in dict.fromkeys(indices) if self._decoded[i].selection is not selection], selection)
        return [self._decoded[i].array for i in indices]

    def _narrow(self, indices: Sequence[int], selection: RowSelection) -> None:
        """Narrow decoded columns to `selection`, with one mask for those that were decoded together."""
        by_selection: dict[int, list[int]] = {}
        for index in indices:
            by_selection.setdefault(id(self._decoded[index].selection), []).append(index)
        for together in by_selection.values():
            within = self._decoded[together[0]].selection
            arrays = select_rows([self._decoded[i].array for i in together], relative(selection, within))
            for index, array in zip(together, arrays, strict=True):
                self._decoded[index] = _Decoded(array, selection)
