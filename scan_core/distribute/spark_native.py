"""Scans through Spark's own vectorised Parquet reader: deletes as one bit per row, tested where Spark reads.

No row passes through Python, and Catalyst prunes columns and row groups of whatever query follows. Bits meet their
rows by a number that Spark knows of every row: size of its file and chunk within it; files of one size go by their
path instead. A row whose chunk is unknown, or shorter than its own position, fails the query rather than come back.
"""

import re
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from typing import cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from scan_core.distribute.dead_rows import CHUNK_ROWS, CHUNK_SHIFT, DeadRows
from scan_core.distribute.native_files import NativeFile
from scan_core.distribute.native_reading import FileReading
from scan_core.distribute.spark_types import spark_type
from scan_core.errors import MissingFileError
from scan_core.schema import ListType, MapType, NestedField, StructType, Type
from scan_core.split import ScanContext

MOST_READINGS = 16
"""Ways of reading files, each of them a scan in Spark's plan; a table that needs more is read by the python reader."""

_KEY, _ROWS, _WORDS, _INDEX = "__nevermore_key", "__nevermore_rows", "__nevermore_words", "__nevermore_index"
_KEEP = (
    f"case when {_ROWS} is null or ({_INDEX} & {CHUNK_ROWS - 1}) >= {_ROWS} "
    f"then raise_error(concat('a row of the file ', {_KEY}, ' has no delete bits: the file was replaced')) "
    f"else {_WORDS} is null or (shiftrightunsigned({_WORDS}[cast(shiftright({_INDEX}, 6) & 1023 as int)], "
    f"cast({_INDEX} & 63 as int)) & 1) = 0 end"
)
_BITS = pa.schema(
    [
        pa.field(_ROWS, pa.int32(), nullable=False),
        pa.field(_WORDS, pa.list_(pa.field("element", pa.int64(), nullable=False))),
    ]
)
_CHUNKS_SHIFT = 20
"""A file of 2**20 chunks has 68 billion rows."""
_READ_OPTIONS = {
    "recursiveFileLookup": "true",  # no columns from names of partition folders
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
_GLOB = re.compile(r"[*?\[\]{}\\]")
"""What Spark expands in paths; names of partition folders may hold it."""


def native_dataframe(
    spark: SparkSession, files: Sequence[NativeFile], context: ScanContext, schema: st.StructType
) -> DataFrame:
    """The rows of `files` without the dead ones.

    Args:
        spark: a session; reading by field id is switched on in it if names do not tell columns.
        files: what `inspect_files` found.
        context: of the scan.
        schema: of the result.
    """
    readings = readings_of(files)
    if not all(reading.by_name for reading in readings):
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    frames = []
    for reading in readings:
        alike = [file for file in files if file.reading == reading]
        whole = [file for file in alike if file.dead is None or file.dead.num_dead == 0]
        touched = [file for file in alike if file.dead is not None and file.dead.num_dead]
        by_size, by_path = _apart(touched)
        parts = [_read(spark, whole, reading, context)] if whole else []
        if by_size:
            parts.append(_living_by_size(spark, by_size, reading, context))
        if by_path:
            parts.append(_living_by_path(spark, by_path, reading, context))
        frames += [_in_table_terms(part, reading, context, schema) for part in parts]
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.union, frames)


def readings_of(files: Iterable[NativeFile]) -> list[FileReading]:
    """The different ways in which these files have to be read."""
    return list(dict.fromkeys(file.reading for file in files))


def _apart(files: Sequence[NativeFile]) -> tuple[list[NativeFile], list[NativeFile]]:
    """Files that their size tells apart, and the others."""
    ordered = sorted(files, key=lambda file: file.size_bytes)
    groups = [list(group) for _, group in groupby(ordered, key=lambda file: file.size_bytes)]
    return [g[0] for g in groups if len(g) == 1], [file for g in groups if len(g) > 1 for file in g]


def _living_by_size(
    spark: SparkSession, files: Sequence[NativeFile], reading: FileReading, context: ScanContext
) -> DataFrame:
    rows = _read(spark, files, reading, context)
    key = f"shiftleft(_metadata.file_size, {_CHUNKS_SHIFT}) | shiftright(_metadata.row_index, {CHUNK_SHIFT})"
    keys = [(file.size_bytes << _CHUNKS_SHIFT) | np.arange(_num_chunks(file), dtype=np.int64) for file in files]
    return _living(spark, rows, key, pa.array(np.concatenate(keys), pa.int64()), files)


def _living_by_path(
    spark: SparkSession, files: Sequence[NativeFile], reading: FileReading, context: ScanContext
) -> DataFrame:
    """Spark spells local paths in two ways, so that both are known; whatever else it did would fail the query."""
    rows = _read(spark, files, reading, context)
    spelled = {_plain(unquote(path)): path for path in rows.inputFiles()}
    twice = [(file, spelling) for file in files for spelling in _spellings(spelled[_plain(file.path)])]
    keys = [f"{spelling}#{chunk}" for file, spelling in twice for chunk in range(_num_chunks(file))]
    key = f"concat_ws('#', _metadata.file_path, shiftright(_metadata.row_index, {CHUNK_SHIFT}))"
    return _living(spark, rows, key, pa.array(keys), [file for file, _ in twice])


def _living(spark: SparkSession, rows: DataFrame, key: str, keys: pa.Array, files: Sequence[NativeFile]) -> DataFrame:
    """`rows` that no bit marks, looked up by `key`. In SQL's text: classic sessions ask Java once per Column they make."""
    bits = pa.concat_tables([_bits(file) for file in files]).add_column(0, pa.field(_KEY, keys.type), keys)
    known = spark.createDataFrame(bits).hint("broadcast")
    placed = rows.selectExpr("*", f"{key} as {_KEY}", f"_metadata.row_index as {_INDEX}")
    return placed.join(known, _KEY, "left").where(_KEEP).drop(_KEY, _INDEX, _ROWS, _WORDS)


def _bits(file: NativeFile) -> pa.Table:
    """A row per chunk of the file: how many rows it has, and the words if one of them is dead."""
    dead = cast(DeadRows, file.dead)
    num_chunks = _num_chunks(file)
    rows = np.full(num_chunks, CHUNK_ROWS, dtype=np.int32)
    if num_chunks:
        rows[-1] = dead.num_rows - (num_chunks - 1) * CHUNK_ROWS
    is_whole = np.ones(num_chunks, dtype=np.bool_)
    is_whole[dead.chunks] = False
    offsets = np.concatenate([[0], np.cumsum(np.where(is_whole, 0, dead.words.shape[1]))]).astype(np.int32)
    words = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(dead.words.reshape(-1)), type=_BITS.field(_WORDS).type, mask=pa.array(is_whole)
    )
    return pa.table([pa.array(rows), words], schema=_BITS)


def _num_chunks(file: NativeFile) -> int:
    return 0 if file.dead is None else -(-file.dead.num_rows // CHUNK_ROWS)


def _read(spark: SparkSession, files: Sequence[NativeFile], reading: FileReading, context: ScanContext) -> DataFrame:
    """The columns that the files have, dead rows too."""
    absent = {field_id for field_id, _ in reading.constants}
    columns = [column for column in context.projection.fields if column.field_id not in absent]
    if reading.by_name:
        schema = st.StructType([st.StructField(c.name, spark_type(c.type, c.name), True) for c in columns])
    else:
        schema = st.StructType([_with_id(column, hides_name=reading.hides_names) for column in columns])
    paths = [_GLOB.sub(r"\\\g<0>", file.path) for file in files]
    frame = spark.read.schema(schema).options(**_READ_OPTIONS).parquet(*paths)
    if (listed := _num_listed(frame)) != len(set(paths)):
        raise MissingFileError(f"Spark lists {listed} of {len(set(paths))} data files of {context.table}")
    return frame


def _num_listed(frame: DataFrame) -> int:
    """How many files Spark found; classic sessions would fetch each name from Java by itself."""
    return len(frame._jdf.inputFiles() if hasattr(frame, "_jdf") else frame.inputFiles())  # noqa: SLF001 - no other way


def _in_table_terms(rows: DataFrame, reading: FileReading, context: ScanContext, schema: st.StructType) -> DataFrame:
    """The columns of the result by name, type and place, what the files lack among them."""
    if reading.by_name and not reading.constants:
        return rows
    constants = dict(reading.constants)
    columns = []  # field ids in their metadata would end up in files that the user writes
    for column, wanted in zip(context.projection.fields, schema, strict=True):
        if column.field_id in constants:
            value = f.lit(constants[column.field_id].as_py())
        else:
            value = f.col(f"`{_hidden(column) if reading.hides_names else column.name}`")
        columns.append(value.cast(wanted.dataType).alias(wanted.name, metadata={}))
    return rows.select(*columns)


def _with_id(column: NestedField, *, hides_name: bool) -> st.StructField:
    """A Spark field that finds its column by id, at every depth."""
    kind = _type_with_ids(column.type, hides_names=hides_name)
    return st.StructField(
        _hidden(column) if hides_name else column.name, kind, True, {"parquet.field.id": column.field_id}
    )


def _type_with_ids(iceberg_type: Type, *, hides_names: bool) -> st.DataType:
    match iceberg_type:
        case StructType(members):
            return st.StructType([_with_id(member, hides_name=hides_names) for member in members])
        case ListType(element):
            return st.ArrayType(_type_with_ids(element.type, hides_names=hides_names), True)
        case MapType(key, value):
            keys, values = (_type_with_ids(part.type, hides_names=hides_names) for part in (key, value))
            return st.MapType(keys, values, True)
        case _:
            return spark_type(iceberg_type, "")


def _hidden(column: NestedField) -> str:
    """A name that no file has."""
    return f"__nevermore_{column.field_id}"


def _spellings(path: str) -> tuple[str, ...]:
    """As Spark lists a file, and as it says of a row where it is from."""
    local = re.match(r"file:/+", path)
    return (path,) if local is None else (f"file:///{path[local.end() :]}", f"file:/{path[local.end() :]}")


def _plain(path: str) -> str:
    """A path without scheme and authority's slashes, as both sides may spell it."""
    return re.sub(r"/+", "/", re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:", "", path))
