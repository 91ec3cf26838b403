"""Plain-encoded minimum and maximum values of Parquet statistics as bounds, where their order is the type's.

Used for column chunks and for the pages of a column index alike.
"""

import math
import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from scan_core.read.footer_schema import Leaf
from scan_core.read.thrift import Struct

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
_FORMATS = {BOOLEAN: "<?", INT32: "<i", INT64: "<q", FLOAT: "<f", DOUBLE: "<d"}
_EXACT = Context(prec=76)
"""The default context would round decimals of more than 28 digits."""


def stored_bounds(statistics: Struct, leaf: Leaf, *, has_column_orders: bool) -> tuple[bytes | None, bytes | None]:
    """Raw minimum and maximum of chunk statistics.

    The deprecated pair was written with signed byte order, so it counts for numbers only; the newer pair means
    something only in a file that states column orders.
    """
    numeric = leaf.physical_type in _FORMATS
    lower, upper = statistics.get(6), statistics.get(5)
    if (lower is not None or upper is not None) and (has_column_orders or numeric):
        return _raw(lower), _raw(upper)
    return (_raw(statistics.get(2)), _raw(statistics.get(1))) if numeric else (None, None)


def decode_bounds(lower: bytes | None, upper: bytes | None, leaf: Leaf, arrow_type: pa.DataType) -> tuple[Any, Any]:
    """Bounds as `ColumnStatistics` holds them, in the file's type; None where they tell nothing.

    NaN tells nothing, and a bound of zero may stand for either zero.
    """
    low, high = decode_value(lower, leaf, arrow_type), decode_value(upper, leaf, arrow_type)
    if leaf.physical_type in {FLOAT, DOUBLE}:
        low = None if low is None or math.isnan(low) else (-0.0 if low == 0 else low)
        high = None if high is None or math.isnan(high) else (0.0 if high == 0 else high)
    return low, high


def decode_value(raw: bytes | None, leaf: Leaf, arrow_type: pa.DataType) -> Any:
    """One plain-encoded value; None if it has no order that is known, or is not of the type."""
    if raw is None:
        return None
    if pt.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if pt.is_unsigned_integer(arrow_type) or pt.is_float16(arrow_type):
        return None
    if (form := _FORMATS.get(leaf.physical_type)) is not None:
        if len(raw) != struct.calcsize(form):
            return None
        value = struct.unpack(form, raw)[0]
        return _scaled(value, arrow_type) if pt.is_decimal(arrow_type) else value
    if leaf.physical_type == INT96:
        return None
    if pt.is_decimal(arrow_type):
        return _scaled(int.from_bytes(raw, "big", signed=True), arrow_type) if len(raw) <= 32 else None
    if pt.is_string(arrow_type) or pt.is_large_string(arrow_type):
        return _text(raw)
    return (
        raw
        if pt.is_binary(arrow_type) or pt.is_large_binary(arrow_type) or pt.is_fixed_size_binary(arrow_type)
        else None
    )


def _raw(value: Any) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _scaled(unscaled: int, arrow_type: pa.DataType) -> Decimal:
    return Decimal(unscaled).scaleb(-arrow_type.scale, _EXACT)


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None  # cut inside a character
