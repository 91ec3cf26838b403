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
    mark_rows,
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
        match draw(st.integers(0, 3)):
            case 3:
                step, count = draw(st.integers(2, 15)), draw(st.sampled_from([4094, 4095, 4096, 4097, 4098]))
                bitmap.update(range(base, base + step * count, step))
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


@pytest.mark.parametrize("count", [1, 63, 64, 4095, 4096, 4097, 8192, 65_535, 65_536])
@pytest.mark.parametrize("is_optimized", [False, True])
@pytest.mark.parametrize("first", [0, 65_536, 30_000])
def test_containers_of_all_sizes_are_marked_as_what_they_are(count: int, is_optimized: Any, first: int) -> None:
    """A list of 4,096 positions is as long as a bit set."""
    rows = first + np.arange(count) * 65_536 // count
    bitmap = BitMap64(rows)
    if is_optimized:
        bitmap.run_optimize()
    decoded = decode_roaring(bitmap.serialize(), "dv")
    for others in (0, 20_000):  # of a range that is marked as a whole, and one whose containers are marked one by one
        mask = np.zeros(131_072 + others, np.bool_)
        mark_rows(decoded, 0, mask)
        assert np.array_equal(np.flatnonzero(mask), rows)
    found = to_mask(surviving(decoded, first, 65_536))
    assert np.array_equal(np.flatnonzero(~found), rows - first)


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
