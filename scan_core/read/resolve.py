"""Deletes resolved to row positions: which rows of a data file are dead, for readers and writers that go by position."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from scan_core.model.arrays import Mask
from scan_core.model.errors import MalformedTableError
from scan_core.model.metrics import ScanMetrics
from scan_core.model.schema import Schema
from scan_core.read.metadata_columns import DELETED
from scan_core.read.split_reader import read_split
from scan_core.split.tasks import FileScanTask, ScanContext, Split


def resolve_deletes(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> Iterator[Mask]:
    """Flags of the dead rows of a whole file, in the order of its rows, a part of the file at a time.

    Only key columns are read, and of those only what statistics, Bloom filters and pages do not exclude. Columns,
    predicate, sample and runtime filters of the scan make no difference.

    Raises:
        MalformedTableError: the task is a part of a file, or a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    if not task.is_whole_file:
        raise MalformedTableError(f"{task.data_file.path}: deletes can be resolved for a whole file only")
    flags_only = replace(
        context,
        projection=Schema(context.projection.schema_id, (DELETED,)),
        predicate=None,
        sample=None,
        runtime_filters=(),
    )
    for batch in read_split(Split(flags_only, (task,)), metrics):
        yield np.asarray(batch.column(0).to_numpy(zero_copy_only=False), dtype=np.bool_)
