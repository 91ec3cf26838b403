"""Rows by partition: the partition tuple of every row, computed on columns, and the rows of each tuple together.

Transforms themselves are scan_core's. Which spec a file is written under is decided by whoever writes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Context
from functools import reduce
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from scan_core.schema import PrimitiveType, Schema, Type
from scan_core.snapshot import PartitionSpec
from scan_core.transforms import parse_transform

_WIDE = Context(prec=76)
_LONGEST_FOLDER_NAME = 80
"""Of one partition value; a longer one is cut, since folders mean nothing to Iceberg."""


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """Rows of one partition. `values` are in the physical form of manifests; `folder` is for people."""

    values: tuple[Any, ...]
    folder: str
    rows: pa.Table


def partition_types(spec: PartitionSpec, types: Mapping[int, Type]) -> tuple[PrimitiveType, ...]:
    """Result types of the fields of a spec; `types` gives the type of each source column by field id."""
    found = []
    for f in spec.fields:
        source = types.get(f.source_id, PrimitiveType("string"))  # a dropped source: only void is left of it
        result = parse_transform(f.transform).result_type(source)
        if not isinstance(result, PrimitiveType):
            raise TypeError(f"partition field {f.name} of type {result}")
        found.append(result)
    return tuple(found)


def split_by_partition(rows: pa.Table, schema: Schema, spec: PartitionSpec) -> Iterator[PartitionedRows]:
    """The rows of each partition of `spec`, in the order in which partitions occur first; row order is kept."""
    if not spec.fields:
        yield PartitionedRows((), "", rows)
        return
    columns = [_partition_column(rows, schema, f.source_id, f.transform) for f in spec.fields]
    codes = _group(columns)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])
    ends = np.r_[starts[1:], len(order)]
    one_group = len(starts) == 1
    for start, end in zip(starts, ends, strict=True):
        row = int(order[start])
        values = tuple(_physical(c[row], c.type) for c in columns)
        part = rows if one_group else rows.take(pa.array(order[start:end]))
        names = (
            f"{quote_plus(f.name)[:_LONGEST_FOLDER_NAME]}={_folder_name(c[row])}"
            for f, c in zip(spec.fields, columns, strict=True)
        )
        yield PartitionedRows(values, "/".join(names), part)


def _partition_column(rows: pa.Table, schema: Schema, source_id: int, transform: str) -> pa.Array:
    name = schema.field(source_id).name
    column = rows.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return parse_transform(transform).apply(column, schema.field(source_id).type)


def _group(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    """A number per row, equal for rows of one partition (NULL = NULL, floats by bits with one NaN)."""
    parts = []
    for column in columns:
        encoded = _hashable(column).dictionary_encode(null_encoding="encode")
        parts.append((encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)))
    codes: npt.NDArray[np.int64] = reduce(_combine, parts)[0]
    return codes


def _combine(
    left: tuple[npt.NDArray[np.int64], int], right: tuple[npt.NDArray[np.int64], int]
) -> tuple[npt.NDArray[np.int64], int]:
    codes = left[0] * right[1] + right[0]
    _, dense = np.unique(codes, return_inverse=True)
    return dense.astype(np.int64), int(dense.max(initial=-1)) + 1


def _hashable(column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type):
        nan = pa.scalar(float("nan"), column.type)
        one_nan = pc.if_else(pc.is_nan(column), nan, column)
        return one_nan.view(pa.int64() if column.type == pa.float64() else pa.int32())
    return column


def _physical(value: pa.Scalar, kind: pa.DataType) -> Any:
    if not value.is_valid:
        return None
    if pa.types.is_date32(kind):
        return value.value
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return value.value
    if pa.types.is_decimal(kind):
        return int(value.as_py().scaleb(kind.scale, _WIDE))
    return value.as_py()


def _folder_name(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    plain = value.as_py()
    text = plain.hex() if isinstance(plain, bytes) else str(plain)
    return quote_plus(text)[:_LONGEST_FOLDER_NAME]
