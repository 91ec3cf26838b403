import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from nevermore.scan_core.bitmaps.column_index import decode_bitmap, decode_directory, encode_directory, row_mask
from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.model.schema import PrimitiveType, arrow_type, parse_type
from nevermore.scan_core.rows.selection import positions_in_mask

VALUES = {
    "boolean": [False, True],
    "int": [-5, 0, 7],
    "long": [-(2**40), 3],
    "float": [-0.0, 0.0, 1.5, float("inf")],
    "double": [float("-inf"), -0.0, 0.0],
    "decimal(9, 2)": [Decimal("-1.50"), Decimal("0.00")],
    "decimal(38, 10)": [Decimal(10) ** 27],
    "date": [0, 19_000],
    "time": [0, 5],
    "timestamp": [-1, 10**15],
    "timestamptz": [10**15],
    "string": ["", "a", "bä", "x" * 500],
    "binary": [b"", b"\0\xff"],
    "fixed[3]": [b"abc", b"ab\0"],
    "uuid": [bytes(16), b"\xff" * 16],
}


def index_of(kind: PrimitiveType, values: pa.Array) -> tuple[bytes, bytes]:
    bitmaps = [(1, BitMap64([k]).serialize()) for k in range(len(values))] + [(0, b""), (0, b"")]
    return encode_directory(values, kind, bitmaps, len(values)), b"".join(data for _, data in bitmaps)


@pytest.mark.parametrize("name", VALUES)
def test_directory_tells_the_values_that_were_written(name: str) -> None:
    kind = parse_type(name)
    assert isinstance(kind, PrimitiveType)
    target = arrow_type(kind)
    values = pa.array(VALUES[name], target)
    directory, bitmaps = index_of(kind, values)
    found = decode_directory(directory, kind, len(directory) + len(bitmaps), "an index")
    assert found.values.equals(values)
    assert found.cardinalities.tolist() == [1] * len(values) + [0, 0]
    assert found.num_bytes == len(directory)
    assert int(found.ends[-1]) == len(directory) + len(bitmaps)


def test_index_of_a_file_without_rows_is_empty() -> None:
    directory, _ = index_of(PrimitiveType("string"), pa.array([], pa.string()))
    assert len(decode_directory(directory, PrimitiveType("string"), len(directory), "an index").values) == 0


def test_every_damaged_byte_of_a_directory_is_noticed() -> None:
    kind = PrimitiveType("string")
    directory, bitmaps = index_of(kind, pa.array(["a", "bb"]))
    for place in range(len(directory)):
        damaged = bytearray(directory)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(MalformedTableError):
            decode_directory(bytes(damaged), kind, len(directory) + len(bitmaps), "an index")


def test_lengths_that_the_bytes_do_not_have_allocate_nothing() -> None:
    header = struct.pack("<4sIIQI", b"NBI1", 2**32 - 1, 2**32 - 1, 2**62, 0)
    for kind in ("string", "long", "boolean"):
        with pytest.raises(MalformedTableError):
            decode_directory(header + bytes(100), PrimitiveType(kind), 124, "an index")


@settings(max_examples=150, deadline=None)
@given(
    rows=st.one_of(
        st.sets(st.integers(0, 300_000), max_size=60),
        st.tuples(st.integers(0, 200_000), st.integers(1, 90_000)).map(lambda r: set(range(r[0], r[0] + r[1], 3))),
        st.tuples(st.integers(0, 200_000), st.integers(1, 90_000)).map(lambda r: set(range(r[0], r[0] + r[1]))),
    ),
    first=st.integers(0, 300_000),
    count=st.integers(0, 150_000),
)
def test_rows_of_a_bitmap_are_marked_in_any_range(rows: set[int], first: int, count: int) -> None:
    bitmap = BitMap64(rows)
    if len(rows) % 2:
        bitmap.run_optimize()
    positions = decode_bitmap(bitmap.serialize(), len(rows), 400_000, "a bitmap")
    for same in (positions, positions_in_mask(row_mask([positions], 0, 400_000))):
        found = np.flatnonzero(row_mask([same], first, count)) + first
        assert found.tolist() == sorted(r for r in rows if first <= r < first + count)


def test_bitmap_of_other_rows_than_stated_is_refused() -> None:
    data = BitMap64([1, 5]).serialize()
    with pytest.raises(MalformedTableError, match="expected 3"):
        decode_bitmap(data, 3, 10, "a bitmap")
    with pytest.raises(MalformedTableError, match="below 5"):
        decode_bitmap(data, 2, 5, "a bitmap")


def test_damaged_bitmaps_are_refused_or_hold_rows_of_the_file() -> None:
    random.seed(3)
    for whole in (BitMap64(range(0, 200_000, 7)), BitMap64(range(500)), BitMap64([3, 70_000])):
        data = whole.serialize()
        for _ in range(150):
            damaged = bytearray(data[: random.randrange(len(data) + 1)] if random.random() < 0.3 else data)
            for _ in range(random.randrange(4)):
                if damaged:
                    damaged[random.randrange(min(len(damaged), 200))] = random.randrange(256)
            try:
                positions = decode_bitmap(bytes(damaged), len(whole), 200_000, "a bitmap")
            except MalformedTableError:
                continue
            assert np.count_nonzero(row_mask([positions], 0, 200_000)) == len(whole)
