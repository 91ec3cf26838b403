"""Net changes: rows deleted and inserted with equal values took no part in any change, and are dropped in pairs.

That is what rewrites of files leave behind, whoever made them and whatever they call themselves. Equality is that of
values: NULL equals NULL, NaN equals NaN, -0.0 differs from 0.0; equal rows are counted.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Codes = npt.NDArray[np.int64]
"""One number per row, equal where values are."""


def net_changes(
    deleted: pa.Table, inserted: pa.Table, compared: Sequence[str]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which of the deleted and which of the inserted rows remain once equal ones have cancelled out.

    Args:
        deleted: rows of one schema.
        inserted: rows of the same schema.
        compared: names of the columns that make rows equal; without any, all rows are.
    """
    both = pa.concat_tables([deleted.select(compared), inserted.select(compared)])
    codes = np.zeros(deleted.num_rows + inserted.num_rows, np.int64)
    if compared:
        codes = _combined([_codes(_flat(column)) for column in both.columns])
    gone, new = codes[: deleted.num_rows], codes[deleted.num_rows :]
    size = int(codes.max(initial=-1)) + 1
    pairs = np.minimum(np.bincount(gone, minlength=size), np.bincount(new, minlength=size))
    return _beyond(gone, pairs), _beyond(new, pairs)


def _beyond(codes: Codes, spent: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """False for the first `spent[code]` rows of each code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    rank = np.arange(len(codes)) - np.searchsorted(ordered, ordered, side="left")
    keep = np.empty(len(codes), np.bool_)
    keep[order] = rank >= spent[ordered]
    return keep


def _codes(array: pa.Array) -> Codes:
    kind = array.type
    if pt.is_null(kind):
        return np.zeros(len(array), np.int64)
    if isinstance(kind, pa.BaseExtensionType):
        return _codes(array.storage)
    if pt.is_floating(kind):
        return _numbered(_float_bits(array))
    if pt.is_struct(kind):
        return _combined([_numbered(array.is_valid()), *(_codes(child) for child in array.flatten())])
    if pt.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _codes(array.cast(pa.list_(pa.field("element", entry))))
    if pt.is_list(kind):
        return _list_codes(array)
    return _numbered(array)


def _list_codes(array: pa.ListArray) -> Codes:
    """Lists are equal where the numbers of their elements, as bytes, are."""
    elements = np.ascontiguousarray(_codes(array.flatten()))
    lengths = pc.fill_null(array.value_lengths(), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]) * elements.itemsize
    as_bytes = pa.Array.from_buffers(
        pa.large_binary(), len(array), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(elements)]
    )
    return _combined([_numbered(array.is_valid()), _numbered(as_bytes)])


def _float_bits(array: pa.Array) -> pa.Array:
    values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).copy()
    values[np.isnan(values)] = np.nan
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values.view(f"i{values.itemsize}"), mask=nulls)


def _combined(columns: Sequence[Codes]) -> Codes:
    """One number for the numbers of several columns, two at a time."""
    result = columns[0]
    for codes in columns[1:]:
        result = _numbered(pa.array(result << 32 | codes))
    return result


def _numbered(array: pa.Array) -> Codes:
    """Numbers from 0 in the order of first occurrence, below 2**31, NULL being one of the values."""
    numbers: Codes = array.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
    return numbers


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, whose offsets may need 64 bits."""
    if pt.is_string(column.type):
        column = column.cast(pa.large_string())
    elif pt.is_binary(column.type):
        column = column.cast(pa.large_binary())
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)
