"""A table as a DataFrame in which Spark prunes partitions: a union of branches, whose columns of the partition are literals.

Catalyst drops the branches that a condition excludes; the dead rows of the others are found by tasks of the query.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from nevermore.scan_core.expr.literals import literal_text
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.schema import NestedField
from nevermore.scan_core.spark.frames import dataframe, frame_by_source, parallelism_of, read_natively, remember
from nevermore.scan_core.spark.native import (
    KEY,
    KEY_BY_PATH,
    KEY_BY_SIZE,
    MAX_READINGS,
    NativeFile,
    NativeLimits,
    alike_in_size,
    bits_of,
    dead_rows,
    files_without_bits,
    in_table_terms,
    keep,
    keep_by_chunk,
    named_keys,
    plain_path,
    read_files,
    readings_of,
    remembered_dead_rows,
    selects_rows,
    sized_keys,
    spellings,
    why_not_columns,
)
from nevermore.scan_core.spark.package import equip
from nevermore.scan_core.spark.reader_choice import READERS, Reader, ReaderChoice, require_scan, require_session
from nevermore.scan_core.spark.reports import TaskReports, fetching
from nevermore.scan_core.spark.source import prepare_worker, with_shared_indexes
from nevermore.scan_core.spark.types import quoted_name, spark_schema
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext, Split, pack_splits, unpack_split

if TYPE_CHECKING:
    from nevermore.scan_core.plan.planner import ScanPlan
    from nevermore.scan_core.scan import Scan

MAX_BRANCHES = 64
"""Maximum number of branches of a union: Spark analyses and optimises each of them in every query."""
_LITERALS = frozenset({"int", "long", "string", "date", "boolean"})
"""Types of which a value of a partition and a literal of Spark are certainly the same."""

_Literals = tuple[tuple[int, Any], ...]
"""Values of columns by field id."""


def partitioned_dataframe(
    spark: SparkSession, scan: "Scan", reader: Reader = "auto", *, limits: NativeLimits | None = None
) -> DataFrame:
    """The rows of `scan`, such that Spark prunes partitions by the conditions of each query.

    That works for columns by whose values the table is partitioned, for up to 64 combinations of them; of more, only the
    first columns are used. Only queries look for dead rows, and only in partitions that are left. The DataFrame of any
    other scan is that of `dataframe`.

    Args:
        spark: a session, classic or Connect.
        scan: what to read.
        reader: as for `dataframe`.
        limits: as for `dataframe`.

    Raises:
        UnsupportedError: as `dataframe`.
        OptionError: as `dataframe`.
    """
    require_session(spark)
    require_scan(scan)
    parts: Mapping[_Literals, list[FileScanTask]] = {}
    if reader in READERS and not scan.joins and scan.row_limit is None and scan.row_sample is None:
        plan = scan.plan()
        parts = _parts(plan)
    if len(parts) < 2:
        return dataframe(spark, scan, reader, limits=limits)
    context = read_natively(scan, plan)
    if selects_rows(context) and reader == "native":
        return dataframe(spark, scan, reader, limits=limits)
    parallelism = parallelism_of(spark)
    reports = TaskReports.in_folder(None, fetching(spark, parallelism))
    reason = "it was not asked for" if reader == "python" else why_not_columns(context)
    if selects_rows(context):
        reason = "the scan has a predicate, which its tasks apply"
    found: tuple[NativeFile, ...] | str = reason or files_without_bits(
        spark, plan.tasks, context, limits=limits or NativeLimits(), parallelism=parallelism
    )
    if not isinstance(found, str) and len(readings_of(found)) > MAX_READINGS:
        found = "the files have to be read in too many different ways"
    if isinstance(found, str):
        if reader == "native" or () in parts:  # the scan of such a branch would need a condition on files
            return dataframe(spark, scan, reader, limits=limits)
        reports = reports.with_branches(len(parts))
        frames = list(_by_source(spark, scan, parts, parallelism, reports))
        choice = ReaderChoice(reader, "python", found)
    else:
        frames = list(_native(spark, context, dict(zip(map(_path, plan.tasks), found, strict=True)), parts, reports))
        choice = ReaderChoice(reader, "native", bits_found_by="queries")
    frame = reduce(DataFrame.union, frames)
    remember(frame, reports, choice)
    return frame


def _path(task: FileScanTask) -> str:
    return task.data_file.path


def _parts(plan: "ScanPlan") -> dict[_Literals, list[FileScanTask]]:
    """The tasks by values of columns that all rows of their partition have, in at most `MAX_BRANCHES` parts."""
    context = plan.context
    columns = {field.field_id: field for field in context.projection.fields}
    found = [_literals(task, context, columns) for task in plan.tasks]
    order = list(dict.fromkeys(field_id for literals in found for field_id, _ in literals))
    for length in range(len(order), 0, -1):
        parts: dict[_Literals, list[FileScanTask]] = {}
        for task, literals in zip(plan.tasks, found, strict=True):
            used = tuple((field_id, value) for field_id, value in literals if field_id in order[:length])
            parts.setdefault(used, []).append(task)
        if len(parts) <= MAX_BRANCHES:
            return parts
    return {}


def _literals(task: FileScanTask, context: ScanContext, columns: Mapping[int, NestedField]) -> _Literals:
    file = task.data_file
    fields = context.specs[file.spec_id].fields
    found = {}
    for field, value in zip(fields, file.partition, strict=True):
        column = columns.get(field.source_id)
        if field.transform == "identity" and column is not None and str(column.type) in _LITERALS:
            found[field.source_id] = value
    return tuple(sorted(found.items()))


def _by_source(
    spark: SparkSession,
    scan: "Scan",
    parts: Mapping[_Literals, Sequence[FileScanTask]],
    parallelism: int,
    reports: TaskReports,
) -> Iterator[DataFrame]:
    """Each branch is a scan of its own, which is planned where a query leaves it."""
    schema = scan.schema
    for literals, branch in zip(parts, reports.branches, strict=True):
        narrow = scan
        for field_id, value in literals:
            column = next(field for field in schema.fields if field.field_id == field_id)
            name = quoted_name(column.name)
            narrow = narrow.where(
                f"{name} is null" if value is None else f"{name} = {literal_text(value, column.type)}"
            )
        frame = frame_by_source(spark, narrow, parallelism, branch)
        yield _with_literals(frame, literals, schema.fields)


def _native(
    spark: SparkSession,
    context: ScanContext,
    files: Mapping[str, NativeFile],
    parts: Mapping[_Literals, Sequence[FileScanTask]],
    reports: TaskReports,
) -> Iterator[DataFrame]:
    """Each branch is read by Spark's own reader, in one way or several."""
    schema = spark_schema(context.projection)
    for literals, tasks in parts.items():
        for reading in readings_of(files[_path(task)] for task in tasks):
            alike = {files[_path(task)].path: task for task in tasks if files[_path(task)].reading == reading}
            of = [files[_path(task)] for task in alike.values()]
            whole = [file for file in of if not alike[file.path].has_deletes]
            frames = [read_files(spark, whole, reading, context)] if whole else []
            for some in alike_in_size([file for file in of if alike[file.path].has_deletes]):
                rows = read_files(spark, some, reading, context, with_row_index=True)
                frames.append(_drop_when_run(rows, some, [alike[file.path] for file in some], context, reports))
            for frame in frames:
                yield _with_literals(
                    in_table_terms(frame, reading, context, schema), literals, context.projection.fields
                )


def _with_literals(frame: DataFrame, literals: _Literals, columns: Sequence[NestedField]) -> DataFrame:
    """Put the literals in the place of their columns, which Spark then does not read."""
    for field_id, value in literals:
        name = next(column.name for column in columns if column.field_id == field_id)
        kind = frame.schema[name].dataType
        is_day = value is not None and isinstance(kind, st.DateType)
        literal = f.expr(f"date_from_unix_date({value})") if is_day else f.lit(value)
        frame = frame.withColumn(name, literal.cast(kind))
    return frame


def _drop_when_run(
    rows: DataFrame,
    files: Sequence[NativeFile],
    tasks: Sequence[FileScanTask],
    context: ScanContext,
    reports: TaskReports,
) -> DataFrame:
    """Drop the dead rows of the files, which tasks of the query find; files of the same size are distinguished by their paths."""
    packed = pack_splits([Split(context, (task,)) for task in tasks])
    spelled = {}
    if by_path := len({file.size_bytes for file in files}) < len(files):
        spelled = {plain_path(unquote(path)): path for path in rows.inputFiles()}
    work = pa.table(
        {
            "number": pa.array(range(len(files)), pa.int32()),
            "size": pa.array([file.size_bytes for file in files], pa.int64()),
            "path": pa.array([spelled[plain_path(file.path)] if by_path else None for file in files], pa.string()),
            "split": pa.array(packed.splits, pa.binary()),
        }
    )
    find = partial(_find_dead_rows, packed.shared, str(reports.directory), len(files))
    kind = "string" if by_path else "bigint"
    equip(rows.sparkSession)
    bits = rows.sparkSession.createDataFrame(work).mapInArrow(
        find, f"{KEY} {kind}, __nevermore_rows int, __nevermore_words array<bigint>"
    )
    return keep_by_chunk(rows, KEY_BY_PATH if by_path else KEY_BY_SIZE, bits)


def _find_dead_rows(
    shared: bytes, folder: str, num_files: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Find the bits of each file, in a task. A worker keeps them for the next query."""
    prepare_worker()
    for batch in batches:
        for row in batch.to_pylist():
            split = unpack_split(shared, row["split"])
            context, (task,) = with_shared_indexes(split.context), split.tasks
            metrics = ScanMetrics()
            dead = remembered_dead_rows(task, context)
            if dead is None:
                dead = dead_rows(task, context, metrics)
                keep(task, context, dead)
            metrics.data_files_read = 1
            stage = TaskContext.get()
            if stage is not None:
                TaskReports(Path(folder)).write_task(stage.stageId(), row["number"], metrics, num_files)
            bits = bits_of(dead)
            if row["path"] is None:
                keys = [sized_keys(row["size"], dead)]
            else:
                keys = [named_keys(spelling, dead) for spelling in spellings(row["path"])]
            for key in keys:
                yield from bits.add_column(0, KEY, key).to_batches()
