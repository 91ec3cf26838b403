"""Avro's spellings of decimals and UUIDs turned into Arrow's, a column at a time."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def uuid_from_text(array: pa.Array) -> pa.Array:
    """The 16 bytes of UUIDs written as text."""
    digits = pc.replace_substring(array.cast(pa.string()), "-", "")
    if not pc.all(pc.equal(pc.binary_length(digits), 32), min_count=0).as_py():
        raise ValueError("a UUID that has not 32 hexadecimal digits")
    raw = bytes.fromhex("".join(digits.fill_null("0" * 32).to_pylist()))
    validity = None if not array.null_count else pc.is_valid(array).buffers()[1]
    return pa.Array.from_buffers(pa.binary(16), len(array), [validity, pa.py_buffer(raw)])


def decimal_from_bytes(array: pa.Array, meant: pa.DataType) -> pa.Array:
    """Big-endian two's complement of any length, sign-extended to the 16 bytes of Arrow."""
    num_rows = len(array)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = np.arange(num_rows, dtype=np.int64) * width
        lengths = np.full(num_rows, width, np.int64)
        data_buffer = array.buffers()[1]
    else:
        offsets = np.frombuffer(array.buffers()[1], np.int32, count=num_rows + 1).astype(np.int64)
        starts, lengths, data_buffer = offsets[:-1], np.diff(offsets), array.buffers()[2]
    data = np.zeros(1, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if array.null_count:
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    longest = int(lengths.max(initial=0))
    if longest > 16:
        raise ValueError(f"a decimal of {longest} bytes")
    result = np.zeros((num_rows, 16), np.uint8)
    first = data[np.minimum(starts, len(data) - 1)] if num_rows else np.zeros(0, np.uint8)
    result[(lengths > 0) & (first >= 0x80)] = 0xFF
    for place in range(longest):
        rows = np.flatnonzero(lengths > place)
        result[rows, place] = data[starts[rows] + lengths[rows] - 1 - place]
    validity = None if not array.null_count else pc.is_valid(array).buffers()[1]
    decimals = pa.Array.from_buffers(meant, num_rows, [validity, pa.py_buffer(result)])
    decimals.validate(full=True)
    return decimals
