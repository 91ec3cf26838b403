"""NumPy views of Arrow arrays, and Arrow arrays over NumPy's memory, by their buffers; names of the usual arrays.

`to_numpy`, `np.asarray` and `pa.array` do the same but import pandas wherever it is installed, which takes longer than
counting millions of rows.
"""

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
"""One flag per row. The selection of rows that wraps such an array is `nevermore.scan_core.rows.selection.Mask`."""
Rows = NDArray[np.int64]
"""Row numbers."""


def numbers(array: pa.Array, dtype: Any = None) -> NDArray[Any]:
    """The values of an array of fixed width as they are stored, garbage under NULL included.

    Args:
        array: of integers, unless `dtype` says how to see what is stored.
        dtype: of one element.
    """
    kind = np.dtype(dtype or array.type.to_pandas_dtype())
    if len(array) == 0 or (buffer := array.buffers()[1]) is None:  # nothing but NULLs may have no buffer
        return np.zeros(len(array), kind)
    return np.frombuffer(buffer, kind, count=len(array), offset=array.offset * kind.itemsize)


def bits(buffer: pa.Buffer, offset: int, length: int) -> Mask:
    """One byte per bit of an Arrow bitmap."""
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8]
    skipped = offset - 8 * first
    return np.unpackbits(packed, count=skipped + length, bitorder="little")[skipped:].view(np.bool_)


def validity(array: pa.Array) -> Mask | None:
    """True for rows that are not NULL; None if no row is NULL."""
    if array.null_count == 0:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None or pt.is_null(array.type):  # NULL by its type, or by what it points to
        flags: Mask = np.asarray(array.is_valid())
        return flags
    return bits(bitmap, array.offset, len(array))


def validity_bitmap(present: Mask | None) -> pa.Buffer | None:
    """The buffer of an array that is NULL where there is no value; None stands for a value everywhere."""
    return None if present is None or present.all() else boolean_array(present).buffers()[1]


def boolean_values(array: pa.BooleanArray) -> Mask:
    """The values of a Boolean array; values of NULL rows are arbitrary."""
    buffer = array.buffers()[1]
    return np.zeros(len(array), np.bool_) if buffer is None else bits(buffer, array.offset, len(array))


def true_flags(array: pa.BooleanArray) -> Mask:
    """A mask of the rows in which a Boolean array is true, neither false nor NULL."""
    flags, valid = boolean_values(array), validity(array)
    return flags if valid is None else flags & valid


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A constant of a type, as `pa.scalar` makes it, which imports pandas too."""
    if isinstance(value, str) and kind == pa.string():
        stored = value.encode()
        buffers = [None, pa.py_buffer(np.array([0, len(stored)], np.int32)), pa.py_buffer(stored)]
        return pa.Array.from_buffers(kind, 1, buffers, null_count=0)[0]
    plain = _plain_dtype(value, kind)
    if plain is not None:
        number = np.array([value], plain)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number)], null_count=0)[0]
    return pa.scalar(value, kind)


def _plain_dtype(value: Any, kind: pa.DataType) -> Any:
    """The stored form of a number; None for other values and numbers that do not fit."""
    if type(value) is float and pt.is_float64(kind):
        return np.float64
    is_integral = pt.is_signed_integer(kind) or pt.is_date32(kind) or pt.is_time64(kind)
    if type(value) is not int or not (is_integral or pt.is_timestamp(kind)):
        return None
    limit = 1 << (kind.bit_width - 1)
    return np.dtype(f"i{kind.bit_width // 8}") if -limit <= value < limit else None


def boolean_array(flags: Mask) -> pa.BooleanArray:
    """The flags as an Arrow array without NULLs."""
    packed = np.packbits(flags, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(packed)], null_count=0)


def index_array(places: Rows) -> pa.Int64Array:
    """The places as an Arrow array over the same memory."""
    plain = np.ascontiguousarray(places, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(plain), [None, pa.py_buffer(plain)], null_count=0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Returns the free heap of the C library to the system. Only on Linux; Arrow's `release_unused` does not, and 10 MB stay after ten windows."""


def release_unused(window: int = 0, *, trims: bool = True) -> None:
    """Give back freed memory that allocators keep; the heap, where `trims`, after every second window, as that costs CPU."""
    pa.default_memory_pool().release_unused()
    if trims and window % 2 == 0 and _trim is not None:
        _trim(0)


def byte_spans(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """(offsets, the bytes that they point into) of a binary array."""
    if not len(array):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return places, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def byte_slices(data: NDArray[np.uint8], begins: Any, ends: Any) -> pa.BinaryArray:
    """The byte strings from `begins` to `ends` in `data`, copied; they may lie in any order."""
    # every other element of an array over the same bytes; Arrow guesses the size of the copy by the first and last offset
    offsets = np.zeros(2 * len(begins) + 2, np.int32)
    offsets[1:-1:2], offsets[2::2] = begins, ends
    offsets[-1] = offsets.max()
    whole = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return whole.take(index_array(np.arange(1, len(offsets) - 1, 2)))
