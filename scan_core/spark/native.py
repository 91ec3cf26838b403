"""Scans through Spark's own vectorised Parquet reader: one bit per row for deletes, tested where Spark reads.

Decides per data file whether Spark's reader gives the same rows, where Spark finds the file, and how it has to be read.
"""

import hashlib
import os
import pickle
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import partial
from uuid import UUID
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from nevermore.scan_core.columns.file_reader import field_id_of
from nevermore.scan_core.files import open_file
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.io.files import file_size, locate
from nevermore.scan_core.io.location import FileIOConfig, Location, relocate
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError, OptionError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import (
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    Schema,
    StructType,
    Type,
    arrow_type,
)
from nevermore.scan_core.model.snapshot import DeleteFile, FileFormat
from nevermore.scan_core.read.projection import METADATA_IDS, POS, Constant, FileProjection
from nevermore.scan_core.read.split_reader import read_split, resolve_deletes
from nevermore.scan_core.run import run_splits
from nevermore.scan_core.spark.package import SPARK_FAILURES, equip
from nevermore.scan_core.spark.source import prepare_worker, with_shared_indexes
from nevermore.scan_core.spark.types import spark_type
from nevermore.scan_core.split.tasks import (
    EqualityDeleteGroup,
    FileScanTask,
    ScanContext,
    Split,
    pack_splits,
    unpack_split,
)
from nevermore.scan_core.sql.query import quoted_name

CACHE_BYTES = 256 * 1024**2
"""Enough for the bits of two billion rows."""
CHUNK_SHIFT = 16
CHUNK_ROWS = 1 << CHUNK_SHIFT
"""8 KiB of bits: small enough that chunks without dead rows are left out, large enough that many rows share a look-up."""
_CHUNK_WORDS = CHUNK_ROWS // 64
_ENTRY_BYTES = 1024
"""Approximate size of the path and objects of an entry; files without any dead row are kept too."""


@dataclass(frozen=True, slots=True, eq=False)
class DeadRows:
    """Which rows of a file are dead.

    Attributes:
        num_rows: rows in the file.
        num_dead: dead rows among them.
        chunks: numbers of the chunks with a dead row, ascending.
        words: one row of little-endian words per such chunk; those of the last chunk are padded with zeros.
    """

    num_rows: int
    num_dead: int
    chunks: npt.NDArray[np.int32]
    words: npt.NDArray[np.int64]

    @property
    def num_chunks(self) -> int:
        """Number of chunks in the file, with or without dead rows."""
        return -(-self.num_rows // CHUNK_ROWS)

    @property
    def num_bytes(self) -> int:
        """Memory held, including the overhead of a cache entry."""
        return int(self.words.nbytes + self.chunks.nbytes) + _ENTRY_BYTES


_NONE_DEAD = DeadRows(0, 0, np.zeros(0, np.int32), np.zeros((0, _CHUNK_WORDS), np.int64))
"""For a file that no delete applies to, whose rows have not been counted."""


def dead_rows(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeadRows:
    """The deleted rows of a whole file, independent of the scan's columns and predicate."""
    return pack(np.concatenate([np.zeros(0, np.bool_), *resolve_deletes(task, context, metrics)]))


def selects_rows(context: ScanContext) -> bool:
    """Whether rows that no delete removes may be missing in the scan: it has a predicate, semi joins or a sample."""
    has_joins = any(filter_.is_exact for filter_ in context.runtime_filters)
    return has_joins or context.predicate is not None or context.sample is not None


def rows_left_out(task: FileScanTask, context: ScanContext, metrics: ScanMetrics) -> DeadRows:
    """The rows of a whole file that are not in the scan, because they are deleted or because it does not select them.

    Only the columns of deletes, predicate and runtime filters are read.
    """
    if not selects_rows(context):
        return dead_rows(task, context, metrics)
    only_positions = replace(context, projection=Schema(context.projection.schema_id, (POS,)), parts={})
    with closing(open_file(task.data_file.path, task.data_file.format, context.io)) as reader:
        is_left_out = np.ones(reader.num_rows, np.bool_)
    for batch in read_split(Split(only_positions, (task,)), metrics):
        is_left_out[batch.column(0).to_numpy()] = False
    return pack(is_left_out)


def pack(dead: npt.NDArray[np.bool_]) -> DeadRows:
    """Pack flags into bits."""
    num_chunks = -(-len(dead) // CHUNK_ROWS)
    words = np.zeros((num_chunks, _CHUNK_WORDS), dtype="<i8")
    packed = np.packbits(dead, bitorder="little")
    words.reshape(-1).view(np.uint8)[: len(packed)] = packed
    chunks = np.flatnonzero(words.any(axis=1)).astype(np.int32)
    return DeadRows(len(dead), int(np.count_nonzero(dead)), chunks, words[chunks])


def remembered_dead_rows(task: FileScanTask, context: ScanContext) -> DeadRows | None:
    """The dead rows of a file if they are cached."""
    return _CACHE.find(_key(task, context))


def keep(task: FileScanTask, context: ScanContext, found: DeadRows) -> None:
    """Cache the dead rows of a file for later scans under the same deletes."""
    _CACHE.put(_key(task, context), found, CACHE_BYTES)


def forget() -> None:
    """Clear the cache; the next scan finds the dead rows again."""
    _CACHE.clear()


def _key(task: FileScanTask, context: ScanContext) -> tuple[Hashable, ...]:
    """Cache key: everything the bits depend on, which is the file and each delete file with its sequence number and location."""
    single = (*task.position_deletes, *((task.deletion_vector,) if task.deletion_vector else ()))
    deletes = tuple(sorted(_digest(group) for group in task.equality_deletes))
    file = task.data_file
    return (file.path, file.data_sequence_number, context.io.relocate, deletes, tuple(sorted(map(_name, single))))


def _name(file: DeleteFile) -> tuple[str, int, int]:
    return file.path, file.data_sequence_number, file.content_offset or 0


def _digest(group: EqualityDeleteGroup) -> bytes:
    """Digest that identifies a delete set, computed once for the thousands of files it may apply to."""

    def find() -> tuple[EqualityDeleteGroup, bytes]:
        names = repr((group.key_ids, sorted(map(_name, group.files))))
        return group, hashlib.sha256(names.encode()).digest()

    return _DIGESTS.get(id(group), find, _REMEMBERED_GROUPS)[1]


_REMEMBERED_GROUPS = 256
_DIGESTS: BoundedCache[int, tuple[EqualityDeleteGroup, bytes]] = BoundedCache()
"""Look up by `id()`, which stays unique because the cache keeps the group alive."""
os.register_at_fork(after_in_child=_DIGESTS.forget_threads)
_CACHE: BoundedCache[tuple[Hashable, ...], DeadRows] = BoundedCache(lambda rows: rows.num_bytes)
os.register_at_fork(after_in_child=_CACHE.forget_threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLimits:
    """Limits of the native reader; none of them changes a result.

    Attributes:
        driver_files: the driver inspects up to this many data files; beyond that, a Spark job does.
        driver_bytes: the driver finds dead rows while the data files that deletes may apply to have at most this
            many stored bytes in total; beyond that, a Spark job does.
        bits_bytes: maximum memory for the bits of one scan, on the driver and on every executor; a scan that may
            need more is read by the python reader.
    """

    driver_files: int = 500
    driver_bytes: int = 4 * 1024**3
    bits_bytes: int = 512 * 1024**2

    def __post_init__(self) -> None:
        for name in (option.name for option in fields(self)):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")


_SCHEMES = {"s3": ("s3a", "s3"), "gcs": ("gs",)}
"""URI schemes under which Hadoop may know each store."""


def spark_schemes(spark: SparkSession, tasks: Sequence[FileScanTask], io: FileIOConfig) -> Mapping[str, str] | str:
    """Map each non-local scheme of the files to one that Spark can open; the reason if there is none."""
    examples: dict[tuple[str, str], Location] = {}
    for task in tasks:
        location = relocate(task.data_file.path, io)
        if not location.is_local:
            examples.setdefault((location.scheme, location.authority), location)
    found: dict[str, str] = {}
    for (scheme, authority), location in examples.items():
        reason = ""
        for name in (found[scheme],) if scheme in found else _SCHEMES.get(scheme, (scheme,)):
            try:
                spark.read.schema("x int").parquet(f"{name}://{authority}{location.path}").inputFiles()
            except SPARK_FAILURES as error:
                reason = reason or next((line for line in str(error).splitlines() if "Exception" in line), str(error))
            else:
                found[scheme] = name
                break
        else:
            return f"Spark does not open {scheme}://{authority} ({reason[:200]})"
    return found


def spark_path(path: str, io: FileIOConfig, schemes: Mapping[str, str]) -> str:
    """The path of a data file as Spark opens it."""
    location = locate(path, io)
    if location.is_local:
        return location.path
    return f"{schemes[location.scheme]}://{location.authority}{location.path}"


_LARGE = {"string": (pa.large_string(),), "binary": (pa.large_binary(),)}
"""Arrow types that Parquet stores unchanged."""
_LITERALS = frozenset({"boolean", "int", "long", "float", "double", "string", "decimal", "binary", "fixed", "uuid"})
_EPOCH = date(1970, 1, 1)
_DAYS = ((date.min - _EPOCH).days, (date.max - _EPOCH).days)
_MICROSECONDS = 24 * 3600 * 10**6


def _has_literal(value: pa.Scalar, kind: Type) -> bool:
    """Whether every Spark version accepts a constant as a literal: times only in years that its texts can have."""
    match kind:
        case PrimitiveType("date"):
            return bool(_DAYS[0] <= value.value <= _DAYS[1])
        case PrimitiveType("timestamp" | "timestamptz"):
            return bool(_DAYS[0] <= value.value // _MICROSECONDS <= _DAYS[1])
        case PrimitiveType(name):
            return name in _LITERALS
        case _:
            return False


def _literal(value: pa.Scalar, kind: Type) -> Column:
    """A constant in Spark, whatever the time zone of its session is."""
    if kind == _UUID:
        return f.lit(str(UUID(bytes=value.as_py())))
    if pt.is_timestamp(value.type):
        text = str(np.datetime64(value.value, "us")).replace("T", " ")
        return f.expr(f"timestamp_ntz '{text}'" if value.type.tz is None else f"timestamp_ltz '{text}+00:00'")
    if pt.is_binary(value.type) or pt.is_large_binary(value.type) or pt.is_fixed_size_binary(value.type):
        return f.expr(f"X'{value.as_py().hex()}'")
    if pt.is_date(
        value.type
    ):  # java.sql.Date, which `lit` makes, needs four digits of the year and another calendar before 1582
        return f.expr(f"date '{value.as_py().isoformat()}'")
    return f.lit(value.as_py())


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """How a file stores a column of the table.

    Attributes:
        field_id: field id of the column.
        name: name in the file; if the file lacks the column, a name that no column of the file has.
        type: type in the file if it is narrower than the table's; else None.
    """

    field_id: int
    name: str
    type: Type | None = None


@dataclass(frozen=True, slots=True)
class FileReading:
    """How Spark has to read a file; it finds columns by name.

    Reading by field id would have to be enabled for the whole session, which affects all other tables it reads.

    Attributes:
        stored: columns whose name or type in the file differs from the table's.
        constants: non-NULL values of columns that the file lacks, by field id.
    """

    stored: tuple[StoredColumn, ...] = ()
    constants: tuple[tuple[int, pa.Scalar], ...] = ()


def why_not_columns(context: ScanContext) -> str | None:
    """The reason why Spark cannot read any file of the scan; None if it depends on the file."""
    for column in context.projection.fields:
        if column.field_id in METADATA_IDS:
            return f"metadata column {column.name!r}"
        if column.name.lower() in _TAKEN:
            return f"column {column.name!r} has a name that reading with Spark needs for itself"
        if column.field_id in context.parts or len(context.field_paths.get(column.field_id, ())) > 1:
            return f"column {column.name!r} is a part of a struct, list or map"
    return None


def how_to_read(task: FileScanTask, context: ScanContext) -> FileReading | str:
    """How Spark has to read the file to return the same rows as the engine, or the reason why it cannot.

    Raises:
        MissingFileError: the file is gone.
        MalformedTableError: it is not a readable file of its format.
    """
    file = task.data_file
    if file.format is not FileFormat.PARQUET:
        return f"{file.path} is {file.format.value}"
    if file.is_encrypted:
        return f"{file.path} is encrypted"
    reader = open_file(file.path, file.format, context.io)
    try:
        if not reader.has_field_ids:
            return f"{file.path} has no field ids"
        schema = reader.arrow_schema
        projection = FileProjection(schema, has_field_ids=True, context=context, file=file)
        constants = []
        for column in context.projection.fields:
            found = _constant_or_why_not(column, schema, projection)
            if isinstance(found, str):
                return f"{file.path} {found}"
            if found is not None:
                constants.append((column.field_id, found))
    finally:
        reader.close()
    stored = _stored_columns(file.path, schema, context.projection.fields)
    return stored if isinstance(stored, str) else FileReading(stored, tuple(constants))


def _constant_or_why_not(column: NestedField, schema: pa.Schema, projection: FileProjection) -> pa.Scalar | str | None:
    """The value of a column that a file lacks, if it is not NULL, or why Spark does not read the column as the table has it."""
    source = projection.column(column)
    if isinstance(source, Constant):
        if not source.value.is_valid:
            return None
        if not _has_literal(source.value, column.type):
            return f"lacks column {column.name!r}, which has a {column.type} value there"
        return source.value
    kept = schema.field(source.index)
    if (source.is_identity and isinstance(column.type, PrimitiveType)) or _is_read_as(kept.type, column.type):
        return None
    return f"has column {column.name!r} as {kept.type}, which Spark does not read as {column.type}"


def _stored_columns(path: str, schema: pa.Schema, wanted: Sequence[NestedField]) -> tuple[StoredColumn, ...] | str:
    """Columns stored differently from the table's schema, or why Spark would not find one of them by name."""
    times = Counter(field.name.lower() for field in schema)
    by_id = {field_id_of(field): field for field in schema}
    stored = []
    for column in wanted:
        field = by_id.get(column.field_id)
        if field is None:
            if times[column.name.lower()]:
                stored.append(StoredColumn(column.field_id, f"__nevermore_{column.field_id}"))
            continue
        if times[field.name.lower()] > 1:
            return f"{path} has several columns that Spark finds under the name {field.name!r}"
        narrower = _narrower(field.type, column.type)
        if narrower is not None or field.name != column.name:
            stored.append(StoredColumn(column.field_id, field.name, narrower))
    hidden = [field.name for field in schema if field.name.lower() == ROW_INDEX]  # Spark would read it
    if taken := next((x for x in (*hidden, *(c.name for c in stored)) if x.lower() in _TAKEN), None):
        return f"{path} has a column {taken!r}, a name that reading with Spark needs for itself"
    return tuple(stored)


def _is_read_as(stored: pa.DataType, kind: Type) -> bool:
    """Whether Spark reads a stored type with the table's values, after a cast if the table has widened it."""
    if not isinstance(kind, PrimitiveType):
        return _is_as_stated(stored, kind)
    wanted = arrow_type(kind)
    if stored == wanted or stored in _LARGE.get(kind.name, ()):
        return True
    if pt.is_decimal(stored) and pt.is_decimal(wanted):
        return bool(stored.scale == wanted.scale and stored.precision <= wanted.precision)
    return (stored, wanted) in {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def _is_as_stated(stored: pa.DataType, kind: Type) -> bool:
    """Whether names, ids and types within a nested column are those of the table, so that Spark can read it as it is."""
    match kind:
        case StructType(members):
            own = [stored.field(i) for i in range(stored.num_fields)] if pt.is_struct(stored) else []
            names = [member.name for member in members]
            return (
                0 < len({name.lower() for name in names}) == len(names)
                and [field.name for field in own] == names
                and all(
                    field_id_of(f) == m.field_id and _is_as_stated(f.type, m.type)
                    for f, m in zip(own, members, strict=True)
                )
            )
        case ListType(element):
            return (pt.is_list(stored) or pt.is_large_list(stored)) and _is_as_stated(stored.value_type, element.type)
        case MapType(key, value):
            return (
                pt.is_map(stored)
                and _is_as_stated(stored.key_type, key.type)
                and _is_as_stated(stored.item_type, value.type)
            )
        case PrimitiveType(name):
            return name != "uuid" and (stored == arrow_type(kind) or stored in _LARGE.get(name, ()))


def _narrower(stored: pa.DataType, kind: Type) -> Type | None:
    """The type of a file's column if the table has widened it since.

    Spark reads the stored type and then casts, because it compares literals in filters with the file's statistics as stored.
    """
    if not isinstance(kind, PrimitiveType) or stored == arrow_type(kind) or stored in _LARGE.get(kind.name, ()):
        return None
    if pt.is_decimal(stored):
        return PrimitiveType("decimal", (stored.precision, stored.scale))
    return PrimitiveType("int" if stored == pa.int32() else "float")


_TASK_BYTES = 256 * 1024**2
"""Stored bytes of the files per task, which reads only their key columns."""
_TASK_FILES = 500
"""Maximum number of footers that one task reads."""


@dataclass(frozen=True, slots=True)
class NativeFile:
    """A data file as Spark's reader needs it: `path` is the one that Spark opens."""

    path: str
    size_bytes: int
    reading: FileReading
    dead: DeadRows


@dataclass(frozen=True, slots=True)
class NativeFiles:
    """Every data file of a plan, in its order.

    Attributes:
        files: facts about each file.
        found_by: what found the dead rows: "driver", "job", or "cache" if all of them were cached.
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
    """Inspect every file of a plan; return the reason instead if Spark cannot read one of them.

    The driver does this itself within the limits; beyond them, a Spark job does.
    """
    schemes = spark_schemes(spark, tasks, context.io)
    if isinstance(schemes, str):
        return schemes
    is_selective = selects_rows(context)
    if (reason := _why_not_bits(tasks, limits, is_selective=is_selective)) is not None:
        return reason
    touched = [index for index, task in enumerate(tasks) if task.has_deletes or is_selective]
    known = {index: None if is_selective else remembered_dead_rows(tasks[index], context) for index in touched}
    missing = [index for index in touched if known[index] is None]
    by_job = len(tasks) > limits.driver_files or sum(tasks[i].length for i in missing) > limits.driver_bytes
    if by_job:
        facts = _inspect_by_job(spark, tasks, context, parallelism, metrics)
    else:
        with ThreadPoolExecutor(context.options.parallelism) as pool:
            facts = list(pool.map(lambda task: _facts(task, context, None), tasks))
    if (reason := next((reading for _, reading, _ in facts if isinstance(reading, str)), None)) is not None:
        return reason
    if by_job:
        known |= {index: facts[index][2] for index in touched}
    elif missing:
        splits = [Split(context, (tasks[index],)) for index in missing]
        computed = run_splits(splits, _rows_left_out, metrics, parallelism=context.options.parallelism)
        known |= dict(zip(missing, computed, strict=True))
    for index in missing:
        if (dead := known[index]) is None:
            raise MalformedTableError(f"{tasks[index].data_file.path}: no task reported which of its rows are deleted")
        if not is_selective:
            keep(tasks[index], context, dead)
    readings = [reading for _, reading, _ in facts if isinstance(reading, FileReading)]
    paths = [spark_path(task.data_file.path, context.io, schemes) for task in tasks]
    files = tuple(
        NativeFile(path, size, reading, known.get(index) or _NONE_DEAD)
        for index, (path, (size, _, _), reading) in enumerate(zip(paths, facts, readings, strict=True))
    )
    return NativeFiles(files, "job" if by_job else "driver" if missing else "cache")


def _why_not_bits(tasks: Sequence[FileScanTask], limits: NativeLimits, *, is_selective: bool = False) -> str | None:
    most = sum(task.data_file.record_count for task in tasks if task.has_deletes or is_selective) // 8
    if most <= limits.bits_bytes:
        return None
    return f"the bits of rows that are left out may take {most:,} bytes, more than bits_bytes={limits.bits_bytes:,}"


def given_to_spark(
    tasks: Sequence[FileScanTask], files: Sequence[NativeFile], looked_up: ScanMetrics, *, is_selective: bool
) -> ScanMetrics:
    """Upper bound of what Spark reads; it may skip columns, row groups and pages that a query does not need.

    If both kinds of deletes apply to a file, its dead rows are counted as removed by equality deletes.

    Args:
        tasks: tasks of the plan.
        files: one per task, in the same order.
        looked_up: metrics of finding the dead rows, of which bytes and delete files are added.
        is_selective: whether the scan selects rows; then `looked_up` tells why rows are left out.
    """
    live = sum(task.data_file.record_count - file.dead.num_dead for task, file in zip(tasks, files, strict=True))
    found = replace(
        looked_up,
        data_files_read=len(files),
        rows_in_files=sum(task.data_file.record_count for task in tasks),
        rows_out=live,
        bytes_read=looked_up.bytes_read + sum(file.size_bytes for file in files),
    )
    if is_selective:
        return found
    by_keys = sum(f.dead.num_dead for t, f in zip(tasks, files, strict=True) if t.equality_deletes)
    by_position = sum(file.dead.num_dead for file in files) - by_keys
    return replace(found, rows_removed_by_equality_deletes=by_keys, rows_removed_by_position_deletes=by_position)


def _rows_left_out(split: Split, metrics: ScanMetrics) -> Iterator[DeadRows]:
    (task,) = split.tasks
    yield rows_left_out(task, split.context, metrics)


_Facts = tuple[int, FileReading | str, DeadRows | None]


def _inspect_by_job(
    spark: SparkSession,
    tasks: Sequence[FileScanTask],
    context: ScanContext,
    parallelism: int,
    metrics: ScanMetrics,
) -> list[_Facts]:
    """Inspect the files in a Spark job: each input row describes the work of one task, each output row an answer."""
    splits = _splits(tasks, context, parallelism)
    packed = pack_splits(splits)
    work = pa.table({"number": pa.array(range(len(splits)), pa.int32()), "split": pa.array(packed.splits, pa.binary())})
    equip(spark)
    rows = spark.createDataFrame(work).repartition(len(splits))
    answers = rows.mapInArrow(partial(_inspect_in_task, packed.shared), "number int, facts binary").toArrow()
    facts: dict[int, list[_Facts]] = {}
    for number, answer in zip(answers["number"].to_pylist(), answers["facts"].to_pylist(), strict=True):
        facts[number], counted = pickle.loads(answer)  # noqa: S301 - from our own tasks, by the channel Spark itself trusts
        metrics.add(counted)
    return [fact for number in range(len(splits)) for fact in facts[number]]


def _inspect_in_task(shared: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        for number, packed in zip(batch["number"].to_pylist(), batch["split"].to_pylist(), strict=True):
            split = unpack_split(shared, packed)
            metrics = ScanMetrics()
            facts = [_facts(task, with_shared_indexes(split.context), metrics) for task in split.tasks]
            yield pa.RecordBatch.from_pydict(
                {"number": pa.array([number], pa.int32()), "facts": pa.array([pickle.dumps((facts, metrics))])}
            )


def _facts(task: FileScanTask, context: ScanContext, metrics: ScanMetrics | None) -> _Facts:
    """Size and way of reading; the rows to leave out too if metrics are given and Spark can read the file."""
    size = file_size(task.data_file.path, context.io)
    reading = how_to_read(task, context)
    if metrics is None or isinstance(reading, str) or not (task.has_deletes or selects_rows(context)):
        return size, reading, None
    return size, reading, rows_left_out(task, context, metrics)


def _splits(tasks: Sequence[FileScanTask], context: ScanContext, parallelism: int) -> list[Split]:
    """Pack whole files into tasks, in order."""
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


ROW_INDEX = "_tmp_metadata_row_index"
"""Spark's Parquet reader fills a long of this name with the number of the row in its file.

`_metadata.row_index` has the same number, but Spark then boxes it in a struct that it makes for each row.
"""
KEY, _ROWS, _WORDS = "__nevermore_key", "__nevermore_rows", "__nevermore_words"
_TAKEN = frozenset({"_metadata", KEY, _ROWS, _WORDS, ROW_INDEX})
"""Columns that locate a row: Spark's hidden `_metadata` is available unless the data has a column of that name."""
_KEEP = (
    f"case when {_ROWS} is null or ({ROW_INDEX} & {CHUNK_ROWS - 1}) >= {_ROWS} "
    f"then raise_error(concat('a row of the file ', _metadata.file_path, ' has no delete bits: the file was replaced')) "
    f"else {_WORDS} is null or (shiftrightunsigned({_WORDS}[cast(shiftright({ROW_INDEX}, 6) & 1023 as int)], "
    f"cast({ROW_INDEX} & 63 as int)) & 1) = 0 end"
)
_WORD_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))
_BITS = pa.schema([pa.field(_ROWS, pa.int32(), nullable=False), pa.field(_WORDS, _WORD_LIST)])
_CHUNKS_SHIFT = 20
"""A file of 2**20 chunks has 68 billion rows."""
_KEY_OF_ROW = (
    f"shiftleft(crc32(cast(_metadata.file_name as binary)), {_CHUNKS_SHIFT}) | shiftright({ROW_INDEX}, {CHUNK_SHIFT})"
)
"""The checksum of the file's name and the number of the row's chunk: numbers are looked up faster than text."""


def _checksum(file: NativeFile) -> int:
    return crc32(file.path.rpartition("/")[2].encode())


def apart(files: Iterable[NativeFile]) -> list[list[NativeFile]]:
    """Files in as few lists as possible; the names of the files in one list have different checksums."""
    found: list[dict[int, NativeFile]] = []
    for file in files:
        checksum = _checksum(file)
        own = next((layer for layer in found if checksum not in layer), None)
        if own is None:
            found.append(own := {})
        own[checksum] = file
    return [list(layer.values()) for layer in found]


def drop_dead_rows(rows: DataFrame, files: Sequence[NativeFile]) -> DataFrame:
    """Drop the rows that a bit marks as dead, and the row index; the names of the files have different checksums."""
    keys = [(_checksum(f) << _CHUNKS_SHIFT) | np.arange(f.dead.num_chunks, dtype=np.int64) for f in files]
    bits = pa.concat_tables([bits_of(file.dead) for file in files])
    bits = bits.add_column(0, pa.field(KEY, pa.int64()), pa.array(np.concatenate(keys)))
    placed = rows.selectExpr("*", f"{_KEY_OF_ROW} as {KEY}")
    joined = placed.join(rows.sparkSession.createDataFrame(bits).hint("broadcast"), KEY, "left")
    return joined.where(_KEEP).drop(KEY, ROW_INDEX, _ROWS, _WORDS)


def bits_of(dead: DeadRows) -> pa.Table:
    """One row per chunk of a file: its number of rows, and its words if any row is dead."""
    num_chunks = dead.num_chunks
    rows = np.full(num_chunks, CHUNK_ROWS, dtype=np.int32)
    if num_chunks:
        rows[-1] = dead.num_rows - (num_chunks - 1) * CHUNK_ROWS
    is_whole = np.ones(num_chunks, dtype=np.bool_)
    is_whole[dead.chunks] = False
    offsets = np.concatenate([[0], np.cumsum(np.where(is_whole, 0, dead.words.shape[1]))]).astype(np.int32)
    words = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(dead.words.reshape(-1)), type=_WORD_LIST, mask=pa.array(is_whole)
    )
    return pa.table([pa.array(rows), words], schema=_BITS)


MAX_READINGS = 64
"""Maximum number of different ways of reading, each a scan in Spark's plan; beyond it the python reader is used."""

_READ_OPTIONS = {
    "recursiveFileLookup": "true",  # do not infer columns from partition folder names
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
_GLOB = re.compile(r"[*?\[\]{}\\]")
"""Glob characters that Spark expands in paths and that partition folder names may contain."""


def native_frames(
    spark: SparkSession,
    files: Sequence[NativeFile],
    context: ScanContext,
    schema: st.StructType,
) -> list[DataFrame]:
    """Frames that together have the rows of `files` without the dead ones; one for each way of reading, at least one."""
    frames: list[DataFrame] = []
    for reading in readings_of(files):
        alike = [file for file in files if file.reading == reading]
        whole = [file for file in alike if not file.dead.num_dead]
        touched = [file for file in alike if file.dead.num_dead]
        parts = [
            drop_dead_rows(read_files(spark, some, reading, context, with_row_index=True), some)
            for some in apart(touched)
        ]
        parts += [read_files(spark, whole, reading, context)] if whole else []
        frames += [in_table_terms(part, reading, context, schema) for part in parts]
    return frames or [spark.createDataFrame([], schema)]


def readings_of(files: Iterable[NativeFile]) -> list[FileReading]:
    """The distinct ways in which these files have to be read."""
    return list(dict.fromkeys(file.reading for file in files))


def read_files(
    spark: SparkSession,
    files: Sequence[NativeFile],
    reading: FileReading,
    context: ScanContext,
    *,
    with_row_index: bool = False,
) -> DataFrame:
    """Read the columns that the files have, and `ROW_INDEX` if it is asked for, including dead rows."""
    absent = {field_id for field_id, _ in reading.constants}
    stored = {column.field_id: column for column in reading.stored}
    schema = st.StructType([_file_field(c, stored) for c in context.projection.fields if c.field_id not in absent])
    if with_row_index:
        schema.add(ROW_INDEX, st.LongType())
    paths = [_GLOB.sub(r"\\\g<0>", file.path) for file in files]
    frame = spark.read.schema(schema).options(**_READ_OPTIONS).parquet(*paths)
    if (listed := _num_listed(frame)) != len(set(paths)):
        raise MissingFileError(f"Spark lists {listed} of {len(set(paths))} data files of {context.table}")
    return frame


def _num_listed(frame: DataFrame) -> int:
    """How many files Spark found; counted in the JVM because classic sessions would fetch each name with a call of its own."""
    return len(frame._jdf.inputFiles() if hasattr(frame, "_jdf") else frame.inputFiles())  # noqa: SLF001 - no other way


def in_table_terms(rows: DataFrame, reading: FileReading, context: ScanContext, schema: st.StructType) -> DataFrame:
    """The result's columns, renamed, cast and ordered, including columns that the files lack."""
    columns = context.projection.fields
    if not reading.stored and not reading.constants and all(column.type != _UUID for column in columns):
        return rows
    constants = dict(reading.constants)
    names = {column.field_id: column.name for column in reading.stored}
    values = []
    for column, wanted in zip(columns, schema, strict=True):
        if column.field_id in constants:
            value = _literal(constants[column.field_id], column.type)
        else:
            value = f.col(quoted_name(names.get(column.field_id, column.name)))
            value = _uuid_text(value) if column.type == _UUID else value
        values.append(value.cast(wanted.dataType).alias(wanted.name))
    return rows.select(*values)


_UUID = PrimitiveType("uuid")


def _file_field(column: NestedField, stored: Mapping[int, StoredColumn]) -> st.StructField:
    """A column as Spark has to read it from a file."""
    found = stored.get(column.field_id, StoredColumn(column.field_id, column.name))
    kind = found.type or column.type
    return st.StructField(found.name, st.BinaryType() if kind == _UUID else spark_type(kind, column.name), True)


def _uuid_text(value: Column) -> Column:
    """The text of a UUID in place of its bytes."""
    digits = f.lower(f.hex(value))
    first, *others = (f.substring(digits, first, length) for first, length in _UUID_DIGITS)
    return f.concat(first, *(part for group in others for part in (f.lit("-"), group)))


_UUID_DIGITS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
"""First digit and number of digits of each group in the text of a UUID."""
