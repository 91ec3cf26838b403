"""Dead rows flagged instead of dropped, for `_deleted`, and which delete file removed each, for `_delete_file`.

Diagnosis, not the fast path: delete files are tried one at a time, in the order in which they apply.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.deletes.delete_filter import DeleteFilter, open_delete_filter
from scan_core.metrics import ScanMetrics
from scan_core.prune.match import Match
from scan_core.read.file_reader import ColumnStatistics
from scan_core.read.lazy import DeadRows, LazyColumns
from scan_core.read.metadata_columns import names_delete_files
from scan_core.read.projection import FileProjection
from scan_core.read.row_filter import DeleteStep
from scan_core.rows.selection import All, to_mask
from scan_core.split import FileScanTask, ScanContext


def find_dead_rows(
    task: FileScanTask,
    context: ScanContext,
    deletes: DeleteFilter,
    projection: FileProjection,
    columns: LazyColumns,
) -> DeadRows:
    """Which rows of a row group are dead, and why if the scan asks for it."""
    flags = removed_by(deletes, projection, columns)
    if not names_delete_files(context):
        return DeadRows(flags, None)
    paths: list[str] = []
    codes = np.full(len(flags), -1, np.int32)
    for path, single in _one_at_a_time(task):
        hit = removed_by(open_delete_filter(single, context, ScanMetrics()), projection, columns) & (codes < 0)
        if hit.any():
            codes[hit] = len(paths)
            paths.append(path)
    indices = pa.array(codes, mask=codes < 0)
    return DeadRows(flags, pa.DictionaryArray.from_arrays(indices, pa.array(paths, pa.string())).cast(pa.string()))


def removed_by(
    deletes: DeleteFilter,
    projection: FileProjection,
    columns: LazyColumns,
    statistics_of: Callable[[int], ColumnStatistics | None] | None = None,
) -> npt.NDArray[np.bool_]:
    """Which rows of a row group these deletes remove; statistics, where given, spare reading keys that cannot match."""
    group = columns.row_group
    everything = All(group.num_rows)
    dead = ~to_mask(deletes.position_selection(group.first_row_position, group.num_rows))
    for equality in deletes.equality:
        verdict = Match.MAYBE if statistics_of is None else equality.may_touch(statistics_of)
        if verdict is Match.ALWAYS:
            dead[:] = True
        elif verdict is Match.MAYBE:
            step = DeleteStep(equality, [projection.leaf(i) for i in equality.key_ids])
            dead |= ~step.judge(columns, everything).keep
    return dead


def _one_at_a_time(task: FileScanTask) -> Iterator[tuple[str, FileScanTask]]:
    """The task with a single delete file, for each that may touch it; position deletes first, then by age."""
    bare = replace(task, equality_deletes=(), position_deletes=(), deletion_vector=None)
    if task.deletion_vector is not None:
        yield task.deletion_vector.path, replace(bare, deletion_vector=task.deletion_vector)
    for file in sorted(task.position_deletes, key=lambda f: f.data_sequence_number):
        yield file.path, replace(bare, position_deletes=(file,))
    singles = [(file, group) for group in task.equality_deletes for file in group.files]
    for file, group in sorted(singles, key=lambda pair: pair[0].data_sequence_number):
        yield file.path, replace(bare, equality_deletes=(replace(group, files=(file,), covered_by=()),))
