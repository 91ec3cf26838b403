"""Splits too large for one task, because a row group is, cut into shares of its rows.

The driver knows no row counts, so a share is a fraction; which rows that are, and whether they can be read apart, each
task finds in the footer, all of them alike.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from scan_core.snapshot import FileFormat
from scan_core.split import Split

LEAST_SHARES = 3
"""A third of a row group is read by page; of larger parts whole columns are decoded."""


def share_row_groups(splits: Iterable[Split], split_bytes: int) -> Iterator[Split]:
    """The splits, those of a single part of a Parquet file that is longer than two splits in shares.

    Args:
        splits: of a plan, cut at row groups already.
        split_bytes: what a split should weigh.
    """
    for split in splits:
        (task, *others) = split.tasks
        is_large = task.length > 2 * split_bytes and task.data_file.format is FileFormat.PARQUET
        if others or not is_large or not split.context.options.split_row_groups:
            yield split
            continue
        of = max(LEAST_SHARES, -(-task.length // split_bytes))
        for number in range(of):
            yield Split(split.context, (replace(task, row_share=(number, of)),))
