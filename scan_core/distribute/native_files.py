"""What Spark's own reader has to know of each data file of a plan: how to read it, its size, and its dead rows.

Few files are looked at by threads of the driver, many by a Spark job whose tasks take some files each. The answers are
equal; dead rows found either way are kept.
"""

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from scan_core.distribute import dead_rows
from scan_core.distribute.dead_rows import DeadRows, has_deletes
from scan_core.distribute.index_sharing import with_shared_indexes
from scan_core.distribute.local import run_splits
from scan_core.distribute.native_limits import NativeLimits
from scan_core.distribute.native_paths import spark_path, spark_schemes
from scan_core.distribute.native_reading import FileReading, agreed, how_to_read
from scan_core.distribute.split_packing import pack_splits, unpack_split
from scan_core.distribute.worker_archives import keep_archives_of_spark
from scan_core.errors import MalformedTableError
from scan_core.file_io import file_size
from scan_core.metrics import ScanMetrics
from scan_core.split import FileScanTask, ScanContext, Split

_TASK_BYTES = 256 * 1024**2
"""Stored bytes of the files of one task: it reads their keys alone."""
_TASK_FILES = 500
"""Footers that one task reads."""


@dataclass(frozen=True, slots=True)
class NativeFile:
    """A data file as Spark's reader needs it: its path there; `dead` is None where no delete may touch the file."""

    path: str
    size_bytes: int
    reading: FileReading
    dead: DeadRows | None


@dataclass(frozen=True, slots=True)
class NativeFiles:
    """Every data file of a plan, in its order.

    Attributes:
        files: what is known of them.
        found_by: who found the dead rows: "driver", "job", or "cache" where all of them were kept.
    """

    files: tuple[NativeFile, ...]
    found_by: str


def inspect_files(
    spark: SparkSession,
    tasks: Sequence[FileScanTask],
    context: ScanContext,
    metrics: ScanMetrics,
    *,
    limits: NativeLimits,
    parallelism: int,
) -> NativeFiles | str:
    """Look at every file of a plan; the reason, if one of them cannot be read by Spark.

    Args:
        spark: runs the job.
        tasks: whole files.
        context: of the scan.
        metrics: receives what was read.
        limits: how much the driver may do.
        parallelism: tasks that Spark runs at once.
    """
    schemes = spark_schemes(spark, tasks, context.io)
    if isinstance(schemes, str):
        return schemes
    tasks = tuple(tasks)
    touched = [index for index, task in enumerate(tasks) if has_deletes(task)]
    if (most := sum(tasks[i].data_file.record_count for i in touched) // 8) > limits.bits_bytes:
        return f"the bits of dead rows may take {most:,} bytes, more than bits_bytes={limits.bits_bytes:,}"
    known = {index: dead_rows.known(tasks[index], context) for index in touched}
    missing = [index for index in touched if known[index] is None]
    found_by = "driver" if missing else "cache"
    if len(tasks) > limits.driver_files or sum(tasks[i].length for i in missing) > limits.driver_bytes:
        found_by = "job"
        sizes, readings, found = zip(*_inspect_by_job(spark, tasks, context, parallelism, metrics), strict=True)
    else:
        with ThreadPoolExecutor(context.options.parallelism) as pool:
            sizes = tuple(pool.map(lambda task: file_size(task.data_file.path, context.io), tasks))
            readings = tuple(pool.map(lambda task: how_to_read(task, context), tasks))
    if (reason := next((r for r in readings if isinstance(r, str)), None)) is not None:
        return reason
    if found_by == "job":
        known |= {index: found[index] for index in touched}
    elif missing:
        splits = [Split(context, (tasks[index],)) for index in missing]
        computed = run_splits(splits, _dead_rows_of, metrics, parallelism=context.options.parallelism)
        known |= dict(zip(missing, computed, strict=True))
    for index in missing:
        if (dead := known[index]) is None:
            raise MalformedTableError(f"{tasks[index].data_file.path}: nobody told which of its rows are dead")
        dead_rows.keep(tasks[index], context, dead)
    readings = agreed(readings)
    files = tuple(
        NativeFile(
            spark_path(task.data_file.path, context.io, schemes), sizes[index], readings[index], known.get(index)
        )
        for index, task in enumerate(tasks)
    )
    return NativeFiles(files, found_by)


def _dead_rows_of(split: Split, metrics: ScanMetrics) -> Iterator[DeadRows]:
    (task,) = split.tasks
    yield dead_rows.dead_rows(task, split.context, metrics)


_Facts = tuple[int, FileReading | str, DeadRows | None]


def _inspect_by_job(
    spark: SparkSession,
    tasks: Sequence[FileScanTask],
    context: ScanContext,
    parallelism: int,
    metrics: ScanMetrics,
) -> list[_Facts]:
    """The same by a Spark job: every row it starts from is the work of one task, every row it ends with the answer."""
    splits = _splits(tasks, context, parallelism)
    packed = pack_splits(splits)
    work = pa.table({"number": pa.array(range(len(splits)), pa.int32()), "split": pa.array(packed.splits, pa.binary())})
    rows = spark.createDataFrame(work).repartition(len(splits))
    answers = rows.mapInArrow(partial(_inspect_in_task, packed.shared), "number int, facts binary").toArrow()
    facts: dict[int, list[_Facts]] = {}
    for number, answer in zip(answers["number"].to_pylist(), answers["facts"].to_pylist(), strict=True):
        facts[number], counted = pickle.loads(answer)  # noqa: S301 - from our own tasks, by the channel Spark itself trusts
        metrics.add(counted)
    return [fact for number in range(len(splits)) for fact in facts[number]]


def _inspect_in_task(shared: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    keep_archives_of_spark()
    for batch in batches:
        for number, packed in zip(batch["number"].to_pylist(), batch["split"].to_pylist(), strict=True):
            split = unpack_split(shared, packed)
            metrics = ScanMetrics()
            facts = [_facts(task, with_shared_indexes(split.context), metrics) for task in split.tasks]
            yield pa.RecordBatch.from_pydict(
                {"number": pa.array([number], pa.int32()), "facts": pa.array([pickle.dumps((facts, metrics))])}
            )


def _facts(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> _Facts:
    size = file_size(task.data_file.path, context.io)
    reading = how_to_read(task, context)
    if isinstance(reading, str) or not has_deletes(task):
        return size, reading, None
    return size, reading, dead_rows.dead_rows(task, context, metrics)


def _splits(tasks: Sequence[FileScanTask], context: ScanContext, parallelism: int) -> list[Split]:
    """Whole files, some to a task, in their order."""
    total = sum(task.length for task in tasks)
    share = min(_TASK_BYTES, -(-total // (2 * parallelism)))
    most_files = min(_TASK_FILES, -(-len(tasks) // (2 * parallelism)))
    splits: list[Split] = []
    current: list[FileScanTask] = []
    weight = 0
    for task in tasks:
        if current and (weight + task.length > share or len(current) >= most_files):
            splits.append(Split(context, tuple(current)))
            current, weight = [], 0
        current.append(task)
        weight += task.length
    if current:
        splits.append(Split(context, tuple(current)))
    return splits
