"""Keys as small integers: equal keys get equal codes, over several key columns, with NULL equal to NULL."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import SchemaConflictError

Codes = NDArray[np.int64]


def encode_keys(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[Codes, int]:
    """(code per row, upper limit of the codes) of rows of key columns.

    Raises:
        SchemaConflictError: a column of a type that no key may have (float, double, struct, list, map).
    """
    check_key_types(columns)
    codes: Codes | None = None
    limit = 1
    for column in columns:
        own, own_limit = _encode_column(column)
        if codes is None:
            codes, limit = own, own_limit
            continue
        if limit * own_limit >= 2**62:
            codes, limit = _dense(codes)
        codes, limit = codes * own_limit + own, limit * own_limit
        if limit > max(4 * len(codes), 1_000_000):
            codes, limit = _dense(codes)
    if codes is None:
        raise SchemaConflictError("a key needs at least one column")
    return codes, limit


def check_key_types(columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
    """Refuse types that no key may have.

    Raises:
        SchemaConflictError: float, double, struct, list or map.
    """
    for column in columns:
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            raise SchemaConflictError(f"a key column cannot be of type {column.type}")


def _encode_column(column: pa.ChunkedArray | pa.Array) -> tuple[Codes, int]:
    arrow = column.type
    if pa.types.is_null(arrow):
        return np.zeros(len(column), np.int64), 1
    if pa.types.is_integer(arrow) and column.null_count == 0 and len(column):
        values = np.asarray(column)
        low, high = int(values.min()), int(values.max())
        # Dense integers are their own codes: no hashing.
        if high - low < max(4 * len(values), 1024):
            return (values - low).astype(np.int64), high - low + 1
    if pa.types.is_temporal(arrow):
        column = column.cast(pa.int32() if arrow.bit_width == 32 else pa.int64())
    encoded = column.dictionary_encode(null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks else pa.array([], encoded.type)
        encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    return np.asarray(encoded.indices).astype(np.int64), max(len(encoded.dictionary), 1)


def _dense(codes: Codes) -> tuple[Codes, int]:
    encoded = pa.array(codes).dictionary_encode()
    return np.asarray(encoded.indices).astype(np.int64), max(len(encoded.dictionary), 1)


def same_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Where two sequences of columns agree in every column, NULL equal to NULL."""
    same = np.ones(len(left[0]), np.bool_)
    for a, b in zip(left, right, strict=True):
        if pa.types.is_null(a.type):
            continue
        equal = pc.equal(a, b)
        if equal.null_count:
            both_null = pc.and_(pc.is_null(a), pc.is_null(b))
            equal = pc.or_(pc.fill_null(equal, False), both_null)
        same &= np.asarray(equal, np.bool_)
    return same
