import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from nevermore.scan_core.model.errors import MalformedTableError
from nevermore.scan_core.rows.selection import (
    All,
    Ranges,
    RoaringPositions,
    decode_roaring,
    selected_count,
    sorted_positions,
    surviving,
    to_mask,
)

BASES = [0, 65_536, 3 * 65_536, 1 << 32, (1 << 40) + 5]


@st.composite
def bitmaps(draw: Any) -> BitMap64:
    bitmap = BitMap64()
    for _ in range(draw(st.integers(0, 4))):
        base = draw(st.sampled_from(BASES))
        match draw(st.integers(0, 2)):
            case 0:
                bitmap.add_range(base, base + draw(st.integers(1, 200_000)))
            case 1:
                bitmap.update(base + n for n in draw(st.lists(st.integers(0, 70_000), max_size=20)))
            case _:
                step = draw(st.integers(2, 9))
                bitmap.update(range(base, base + 60_000, step))
    if draw(st.booleans()):
        bitmap.run_optimize()
    return bitmap


def expected(bitmap: Any, first_row: Any, num_rows: Any) -> list[bool]:
    mask = np.ones(num_rows, np.bool_)
    inside = bitmap & BitMap64(range(first_row, first_row + num_rows))
    mask[np.array(inside.to_array(), np.int64) - first_row] = False
    return mask.tolist()


@settings(max_examples=60, deadline=None)
@given(bitmaps(), st.sampled_from([0, 100, 131_065, (1 << 32) - 50]), st.integers(1, 150_000))
def test_roaring_and_sorted_positions_select_what_is_outside(bitmap: Any, first_row: Any, num_rows: Any) -> None:
    decoded = decode_roaring(bitmap.serialize(), "dv")
    assert len(decoded.bitmap) == len(bitmap)
    listed = sorted_positions(np.array(bitmap.to_array() if bitmap else [], np.int64))
    wanted = expected(bitmap, first_row, num_rows)
    for positions in (decoded, listed):
        assert to_mask(surviving(positions, first_row, num_rows)).tolist() == wanted


@settings(max_examples=200, deadline=None)
@given(bitmaps(), st.data())
def test_broken_bitmaps_are_refused_or_decoded_but_never_crash(bitmap: Any, data: Any) -> None:
    raw = bytearray(bitmap.serialize())
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    try:
        decoded = decode_roaring(bytes(raw), "dv")
    except MalformedTableError:
        return
    assert isinstance(decoded, RoaringPositions)
    surviving(decoded, 0, 1000)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        struct.pack("<Q", 1 << 60),
        struct.pack("<QII", 1, 0, 99),
        struct.pack("<QIII", 1, 0, 12346, 1 << 30),
        struct.pack("<QIIIHHI", 1, 1 << 31, 12346, 1, 0, 0, 16) + b"\0\0",
    ],
    ids=["empty", "parts", "cookie", "containers", "beyond 2^63"],
)
def test_bitmap_with_a_lying_header_is_refused(raw: Any) -> None:
    with pytest.raises(MalformedTableError, match="dv"):
        decode_roaring(raw, "dv")


def test_few_deleted_rows_give_ranges_and_none_gives_all() -> None:
    positions = sorted_positions(np.array([7, 3, 3, 900], np.int64))
    assert surviving(positions, 100, 50) == All(50)
    selection = surviving(positions, 0, 10)
    assert isinstance(selection, Ranges)
    assert (selection.starts.tolist(), selection.ends.tolist()) == ([0, 4, 8], [3, 7, 10])


def test_vector_over_billions_of_rows_is_never_expanded() -> None:
    bitmap = BitMap64()
    bitmap.add_range(0, 1 << 32)
    bitmap.run_optimize()
    decoded = decode_roaring(bitmap.serialize(), "dv")
    assert selected_count(surviving(decoded, (1 << 32) - 10, 20)) == 10
