"""Scans through Spark's own vectorised Parquet reader: deletes as one bit per row, tested where Spark reads.

No row passes through Python, and Catalyst prunes columns and row groups of whatever query follows. How bits meet their
rows is told in `native_bits.py`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from scan_core.distribute.native_bits import alike_in_size, living
from scan_core.distribute.native_files import NativeFile
from scan_core.distribute.native_limits import NativeLimits
from scan_core.distribute.native_reading import FileReading
from scan_core.distribute.spark_types import spark_type
from scan_core.errors import MissingFileError
from scan_core.schema import ListType, MapType, NestedField, StructType, Type
from scan_core.split import ScanContext

MOST_READINGS = 16
"""Ways of reading files, each of them a scan in Spark's plan; a table that needs more is read by the python reader."""

_READ_OPTIONS = {
    "recursiveFileLookup": "true",  # no columns from names of partition folders
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
_GLOB = re.compile(r"[*?\[\]{}\\]")
"""What Spark expands in paths; names of partition folders may hold it."""


def native_dataframe(
    spark: SparkSession,
    files: Sequence[NativeFile],
    context: ScanContext,
    schema: st.StructType,
    limits: NativeLimits,
) -> DataFrame:
    """The rows of `files` without the dead ones.

    Args:
        spark: a session; reading by field id is switched on in it if names do not tell columns.
        files: what `inspect_files` found.
        context: of the scan.
        schema: of the result.
        limits: how many bits are part of the plan.
    """
    readings = readings_of(files)
    if not all(reading.by_name for reading in readings):
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    frames = []
    for reading in readings:
        alike = [file for file in files if file.reading == reading]
        whole = [file for file in alike if file.dead is None or file.dead.num_dead == 0]
        touched = [file for file in alike if file.dead is not None and file.dead.num_dead]
        parts = [_read(spark, whole, reading, context)] if whole else []
        parts += [living(_read(spark, some, reading, context), some, limits) for some in alike_in_size(touched)]
        frames += [_in_table_terms(part, reading, context, schema) for part in parts]
    if not frames:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.union, frames)


def readings_of(files: Iterable[NativeFile]) -> list[FileReading]:
    """The different ways in which these files have to be read."""
    return list(dict.fromkeys(file.reading for file in files))


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
