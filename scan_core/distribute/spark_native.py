"""Scans through Spark's own vectorised Parquet reader: deletes as one bit per row, tested where Spark reads.

No row passes through Python, and Catalyst prunes columns and row groups of whatever query follows. Bits come from
`dead_rows.py` and meet their file by its size in bytes, an integer that is constant per file; sizes are unique within
one read, and a row whose file is unknown, or shorter than its own position, fails the query rather than come back.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from scan_core.distribute.dead_rows import DeadRows, dead_rows, has_deletes
from scan_core.distribute.spark_types import spark_type
from scan_core.errors import MissingFileError
from scan_core.file_io import file_size
from scan_core.location import relocate
from scan_core.metrics import ScanMetrics
from scan_core.plan.planner import ScanPlan
from scan_core.read.metadata_columns import METADATA_IDS
from scan_core.read.open_file import open_file
from scan_core.read.projection import Constant, FileProjection
from scan_core.schema import ListType, MapType, NestedField, PrimitiveType, StructType, Type
from scan_core.snapshot import FileFormat
from scan_core.split import FileScanTask, ScanContext

MOST_FILES = 2_000
"""Each footer is read once on the driver to see whether Spark would read the columns as we do."""
MOST_READS = 16
"""Of files of equal size, which need a read each; a table of many such files is read by the python reader."""

_SIZE, _ROWS, _WORDS, _INDEX = "__nevermore_size", "__nevermore_rows", "__nevermore_words", "__nevermore_index"
_KEEP = (
    f"case when {_ROWS} is null or {_INDEX} >= {_ROWS} "
    f"then raise_error(concat('a row of a file of ', {_SIZE}, ' bytes has no delete bits: the file was replaced')) "
    f"else (shiftrightunsigned({_WORDS}[cast(shiftright({_INDEX}, 6) as int)], cast({_INDEX} & 63 as int)) & 1) = 0 end"
)
_READ_OPTIONS = {
    "recursiveFileLookup": "true",  # no columns from names of partition folders
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
_GLOB = re.compile(r"[*?\[\]{}\\]")
"""What Spark expands in paths; names of partition folders may hold it."""
_LARGE = {"string": (pa.large_string(),), "binary": (pa.large_binary(),)}
"""How Arrow holds what is the same in Parquet."""


def why_not_native(plan: ScanPlan) -> str | None:
    """Why Spark's reader would not give the scan's rows; None if it would."""
    context = plan.context
    if context.predicate is not None or context.runtime_filters:
        return "the scan has a predicate, which only scan_core evaluates exactly"
    for column in context.projection.fields:
        if column.field_id in METADATA_IDS:
            return f"metadata column {column.name!r}"
        if _holds_uuid(column.type):
            return f"column {column.name!r} holds UUIDs, which are text in Spark"
    if len(plan.tasks) > MOST_FILES:
        return f"{len(plan.tasks)} data files, more than {MOST_FILES}"
    for task in plan.tasks:
        if task.data_file.format is not FileFormat.PARQUET:
            return f"{task.data_file.path} is {task.data_file.format.value}"
        if not relocate(task.data_file.path, context.io).is_local:
            return f"{task.data_file.path} is remote"
    with ThreadPoolExecutor(context.options.parallelism) as pool:
        reasons = pool.map(lambda task: _why_not_file(task, context), plan.tasks)
        reason = next((r for r in reasons if r is not None), None)
    if reason is None and len(_reads(plan.tasks, context)) > MOST_READS:
        return f"more than {MOST_READS} data files have the same size"
    return reason


def native_dataframe(spark: SparkSession, plan: ScanPlan, schema: st.StructType) -> tuple[DataFrame, ScanMetrics]:
    """The rows of a plan that `why_not_native` accepts, and what was read on the driver to find the dead ones.

    Args:
        spark: a session; reading by field id is switched on in it.
        plan: of whole files.
        schema: of the result.
    """
    metrics = ScanMetrics()
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    context = plan.context
    reading = st.StructType([_with_id(column) for column in context.projection.fields])
    clean = [task for task in plan.tasks if not has_deletes(task)]
    touched = [task for task in plan.tasks if has_deletes(task)]
    bits = dict(zip((t.data_file.path for t in touched), dead_rows(touched, context, metrics), strict=True))
    frames = [_files(spark, clean, context, reading)] if clean else []
    frames += [_without_dead(spark, tasks, context, reading, bits) for tasks in _reads(touched, context)]
    if not frames:
        return spark.createDataFrame([], schema), metrics
    rows = reduce(DataFrame.union, frames)
    return _without_ids(rows, schema), metrics


def _without_dead(
    spark: SparkSession,
    tasks: Sequence[FileScanTask],
    context: ScanContext,
    reading: st.StructType,
    bits: dict[str, DeadRows],
) -> DataFrame:
    sizes = [_actual_size(task, context) for task in tasks]
    dead = [bits[task.data_file.path] for task in tasks]
    words = pa.array([d.words for d in dead], pa.list_(pa.int64()))
    table = pa.table({_SIZE: pa.array(sizes, pa.int64()), _ROWS: [d.num_rows for d in dead], _WORDS: words})
    known = f.broadcast(spark.createDataFrame(table))
    rows = _files(spark, tasks, context, reading)
    sized = rows.select("*", f.col("_metadata.file_size").alias(_SIZE), f.col("_metadata.row_index").alias(_INDEX))
    return sized.join(known, _SIZE, "left").where(f.expr(_KEEP)).select(*(f"`{name}`" for name in reading.names))


def _files(
    spark: SparkSession, tasks: Sequence[FileScanTask], context: ScanContext, reading: st.StructType
) -> DataFrame:
    paths = [_GLOB.sub(r"\\\g<0>", relocate(task.data_file.path, context.io).path) for task in tasks]
    frame = spark.read.schema(reading).options(**_READ_OPTIONS).parquet(*paths)
    if len(frame.inputFiles()) != len(set(paths)):
        raise MissingFileError(
            f"Spark lists {len(frame.inputFiles())} of {len(set(paths))} data files of {context.table}"
        )
    return frame


def _reads(tasks: Sequence[FileScanTask], context: ScanContext) -> list[list[FileScanTask]]:
    """The files that have deletes, so grouped that no two of a group are of equal size."""
    groups: list[list[FileScanTask]] = []
    seen: dict[int, int] = {}
    for task in tasks:
        if has_deletes(task):
            size = _actual_size(task, context)
            number = seen.get(size, 0)
            seen[size] = number + 1
            if number == len(groups):
                groups.append([])
            groups[number].append(task)
    return groups


def _actual_size(task: FileScanTask, context: ScanContext) -> int:
    """As the file system tells, for manifests of some writers are wrong."""
    return file_size(task.data_file.path, context.io)


def _why_not_file(task: FileScanTask, context: ScanContext) -> str | None:
    """Every column must lie in the file under its own name, in the table's own type, or be NULL.

    Spark finds columns by field id, and then confuses those whose names another column has had.
    """
    file = task.data_file
    reader = open_file(file.path, file.format, context.io)
    try:
        if not reader.has_field_ids:
            return f"{file.path} has no field ids"
        schema = reader.arrow_schema
        projection = FileProjection(schema, has_field_ids=True, context=context, file=file)
        for column in context.projection.fields:
            source = projection.column(column)
            namesakes = [i for i, name in enumerate(schema.names) if name.lower() == column.name.lower()]
            if isinstance(source, Constant):
                if source.value.is_valid or namesakes:
                    return f"{file.path} lacks column {column.name!r}, which is not NULL there or was another column"
            elif namesakes != [source.index] or schema.names[source.index] != column.name:
                return f"{file.path} has column {column.name!r} under another name"
            elif not source.is_identity and schema.field(source.index).type not in _LARGE.get(str(column.type), ()):
                return f"{file.path} has column {column.name!r} in another type"
    finally:
        reader.close()
    return None


def _with_id(column: NestedField) -> st.StructField:
    """A Spark field that finds its column by id, at every depth."""
    return st.StructField(column.name, _type_with_ids(column.type), True, {"parquet.field.id": column.field_id})


def _type_with_ids(iceberg_type: Type) -> st.DataType:
    match iceberg_type:
        case StructType(members):
            return st.StructType([_with_id(member) for member in members])
        case ListType(element):
            return st.ArrayType(_type_with_ids(element.type), True)
        case MapType(key, value):
            return st.MapType(_type_with_ids(key.type), _type_with_ids(value.type), True)
        case _:
            return spark_type(iceberg_type, "")


def _without_ids(frame: DataFrame, schema: st.StructType) -> DataFrame:
    """The frame without field ids in its metadata: they would end up in files that the user writes."""
    plain = frame.select(*(frame[f"`{c.name}`"].cast(c.dataType).alias(c.name) for c in schema.fields))
    return reduce(lambda done, name: done.withMetadata(name, {}), schema.names, plain)


def _holds_uuid(iceberg_type: Type) -> bool:
    match iceberg_type:
        case StructType(members):
            return any(_holds_uuid(member.type) for member in members)
        case ListType(element):
            return _holds_uuid(element.type)
        case MapType(key, value):
            return _holds_uuid(key.type) or _holds_uuid(value.type)
        case PrimitiveType(name):
            return name == "uuid"
