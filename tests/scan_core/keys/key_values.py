"""Key columns for tests: strategies of awkward values by type, and an oracle of Python dictionaries."""

import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from nevermore.scan_core.keys.lookup import DeleteKeys

_EXACT = Context(prec=76)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    top = 10**precision - 1
    unscaled = st.sampled_from([0, 1, -1, 2**63 % (top + 1), top, -top]) | st.integers(-5, 5)
    return unscaled.map(lambda u: Decimal(u).scaleb(-scale, _EXACT))


_TEXTS = ["", "a", "a\0", "\0", "ab" * 4, "ab" * 4 + "c", "é" * 5, "x" * 64, "x" * 65, "x" * 72 + "y", "x" * 72 + "z"]
KEY_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-4, 4) | st.sampled_from([-(2**31), 2**31 - 1]),
    pa.int64(): st.integers(-4, 4) | st.sampled_from([-(2**63), 2**63 - 1, 2**32, 2**62]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf")]),
    pa.float64(): st.sampled_from([0.0, -0.0, 0.1, float("nan"), float("inf"), 5e-324]),
    pa.date32(): st.integers(-3, 3),
    pa.time64("us"): st.integers(0, 3),
    pa.timestamp("us"): st.integers(-3, 3) | st.just(253402300799999999),
    pa.timestamp("ns", "UTC"): st.integers(-3, 3) | st.just(2**63 - 1),
    pa.string(): st.sampled_from(_TEXTS),
    pa.large_string(): st.sampled_from(_TEXTS),
    pa.binary(): st.sampled_from([t.encode() for t in _TEXTS] + [b"\xff" * 9, b"\xff" * 8 + b"\xfe"]),
    pa.binary(16): st.sampled_from([bytes(16), b"\xff" * 16, bytes(15) + b"\1", b"\1" + bytes(15)]),
    pa.binary(3): st.sampled_from([bytes(3), b"abc", b"ab\0", b"\xff\xff\xff"]),
    pa.decimal128(9, 2): _decimals(9, 2),
    pa.decimal128(18, 0): _decimals(18, 0),
    pa.decimal128(38, 10): _decimals(38, 10),
    pa.null(): st.none(),
}

Row = tuple[Any, ...]


@st.composite
def cases(draw: Any) -> tuple[list[pa.DataType], list[tuple[int, list[Row]]], list[Row], bool]:
    """Key types, (sequence number, rows) of delete files, rows to look up, and whether to encode dictionaries."""
    kinds = draw(st.lists(st.sampled_from(list(KEY_VALUES)), min_size=1, max_size=3))
    row = st.tuples(*(st.none() | KEY_VALUES[k] for k in kinds))
    # columns that have one value in all keys, as those of one partition do
    shared = [draw(st.none() | KEY_VALUES[k].map(lambda v: (v,))) for k in kinds]
    row_of_keys = st.tuples(
        *(st.none() | KEY_VALUES[k] if s is None else st.just(s[0]) for k, s in zip(kinds, shared, strict=True))
    )
    parts = draw(st.lists(st.tuples(st.integers(1, 6), st.lists(row_of_keys, max_size=8)), max_size=5))
    known = [r for _, rows in parts for r in rows]
    probe = draw(st.lists(row | st.sampled_from(known) if known else row, max_size=30))
    return kinds, parts, probe, draw(st.booleans())


def arrays(kinds: Sequence[pa.DataType], rows: Sequence[Row], *, encode: bool = False) -> list[pa.Array]:
    """One array per key column."""
    columns = [pa.array([r[i] for r in rows], type=k) for i, k in enumerate(kinds)]
    return [c.dictionary_encode() if encode and not pa.types.is_null(c.type) else c for c in columns]


def delete_keys(kinds: Sequence[pa.DataType], parts: Sequence[tuple[int, list[Row]]]) -> list[DeleteKeys]:
    return [DeleteKeys(number, tuple(arrays(kinds, rows))) for number, rows in parts]


def oracle(parts: Sequence[tuple[int, list[Row]]]) -> dict[Row, int]:
    """The highest sequence number that deletes each key."""
    highest: dict[Row, int] = {}
    for number, rows in parts:
        for row in rows:
            key = canonical(row)
            highest[key] = max(highest.get(key, 0), number)
    return highest


def canonical(row: Row) -> Row:
    """NaN equals NaN, -0.0 differs from 0.0."""
    return tuple(_canonical_float(v) if isinstance(v, float) else v for v in row)


def _canonical_float(value: float) -> Any:
    return "NaN" if math.isnan(value) else struct.pack("<d", value)
