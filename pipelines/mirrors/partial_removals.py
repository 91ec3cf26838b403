"""Removals by old rows that lack columns, in order: each removes the first existing row that matches.

Which row a removal takes depends on earlier steps, so this is one compiled loop.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return"
# ruff: noqa: C901, PLR0912, PLR0917 - kernels take arrays one by one, and are one loop

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipelines.jsonscan.value_kernels import require
from scan_core.native import kernel

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Removals:
    """Classes of rows that are equal in all columns of the old row of a removal, which removes one row of a class.

    Attributes:
        class_of: class from which each step removes a row, -1 if its row is complete.
        members: rows of each class, in order.
    """

    class_of: Ints
    members: list[Ints] = field(default_factory=list)
    _sizes: list[Ints] = field(default_factory=list)
    _num_classes: int = 0

    def add(self, steps: Ints, wanted: Ints, rows: Ints) -> None:
        """Add the classes of removals that lack the same columns.

        Args:
            steps: the removals.
            wanted: codes of the values that their old rows have.
            rows: codes of the values that all rows have in those columns.
        """
        asked, at = np.unique(wanted, return_inverse=True)
        self.class_of[steps] = self._num_classes + at
        place = np.minimum(np.searchsorted(asked, rows), len(asked) - 1)
        chosen = np.flatnonzero(asked[place] == rows)
        self.members.append(chosen[np.argsort(place[chosen], kind="stable")])
        self._sizes.append(np.bincount(place[chosen], minlength=len(asked)))
        self._num_classes += len(asked)

    def walk(self, signs: Ints, rows: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Apply additions and removals in order.

        Args:
            signs: +1 or -1 for each step.
            rows: the row that each step adds or removes; ignored if the old row lacks columns.
            counts: number of copies of each row.

        Returns:
            The numbers of copies afterwards, and the row that each step added or removed; -1 if a removal found none.
        """
        members, sizes = np.concatenate(self.members), np.concatenate(self._sizes)
        starts = np.r_[0, np.cumsum(sizes)]
        of_row = np.argsort(members, kind="stable")
        row_starts = np.searchsorted(members[of_row], np.arange(len(counts) + 1))
        class_of_member = np.repeat(np.arange(len(sizes)), sizes)
        after, first, taken = counts.astype(np.int64), starts[:-1].copy(), rows.astype(np.int64)
        _walk(signs, taken, after, self.class_of, members, starts, of_row, row_starts, class_of_member, first)
        return after, taken


@kernel("i64[] i64[]= i64[]= i64[] i64[] i64[] i64[] i64[] i64[] i64[]=")
def _walk(
    signs: Ints,
    rows: Ints,
    counts: Ints,
    class_of: Ints,
    members: Ints,
    starts: Ints,
    of_row: Ints,
    row_starts: Ints,
    class_of_member: Ints,
    first: Ints,
) -> None:
    """Write into `rows` which row each step adds or removes; no row of a class exists before its `first`."""
    num_rows, num_classes = len(counts), min(len(first), len(starts) - 1)
    require(len(class_of) >= len(signs) and len(rows) >= len(signs) and len(row_starts) > num_rows)
    for entry in row_starts:
        require(0 <= entry <= len(of_row))
    for member in of_row:
        require(0 <= member < len(class_of_member))
    for other in class_of_member:
        require(0 <= other < num_classes)
    for row in members:
        require(0 <= row < num_rows)
    for at in first:
        require(at >= 0)
    for end in starts:
        require(end <= len(members))
    for step in range(len(signs)):
        own, row = class_of[step], rows[step]
        require(own < num_classes and (0 <= row < num_rows or (own >= 0 and signs[step] <= 0)))
        if signs[step] > 0:
            counts[row] += 1
            for entry in range(row_starts[row], row_starts[row + 1]):
                member = of_row[entry]
                other = class_of_member[member]
                first[other] = min(first[other], member)
        elif own < 0:
            if counts[row] > 0:
                counts[row] -= 1
            else:
                rows[step] = -1
        else:
            at, end = first[own], starts[own + 1]
            while at < end and counts[members[at]] == 0:
                at += 1
            first[own] = at
            rows[step] = members[at] if at < end else -1
            if at < end:
                counts[members[at]] -= 1
