import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.scan_core.rows.selection import (
    All,
    Mask,
    Ranges,
    RowSelection,
    from_ranges,
    intersect,
    nothing,
    refine,
    relative,
    row_count,
    runs,
    select_rows,
    selected_count,
    slice_selection,
    to_indices,
    to_mask,
    without,
)

flags = st.lists(st.booleans(), max_size=200).map(lambda v: np.array(v, dtype=np.bool_))


def as_ranges(mask: np.ndarray) -> Ranges:
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return Ranges(edges[0::2].astype(np.int64), edges[1::2].astype(np.int64), len(mask))


def forms(mask: np.ndarray) -> list[RowSelection]:
    """The same rows in every form that can express them."""
    return [Mask(mask), as_ranges(mask), *([All(len(mask))] if mask.all() else [])]


@given(flags)
def test_every_form_of_a_selection_answers_alike(mask: np.ndarray) -> None:
    for form in forms(mask):
        assert row_count(form) == len(mask)
        assert selected_count(form) == mask.sum()
        assert np.array_equal(to_mask(form), mask)
        assert np.array_equal(to_indices(form), np.flatnonzero(mask))
        starts, ends = runs(form)
        assert np.array_equal(to_mask(Ranges(starts, ends, len(mask))), mask)


@given(flags, st.randoms(use_true_random=False))
def test_refine_selects_a_subset_that_relative_renumbers(mask: np.ndarray, random: object) -> None:
    for form in forms(mask):
        keep = np.array([random.random() < 0.5 for _ in range(int(mask.sum()))], dtype=np.bool_)  # type: ignore[attr-defined]
        narrowed = refine(form, keep)
        assert np.array_equal(to_indices(narrowed), np.flatnonzero(mask)[keep])
        assert np.array_equal(to_mask(relative(narrowed, form)), keep)


@settings(deadline=None)  # the first one loads Arrow's kernels
@given(flags)
def test_select_rows_equals_arrow_filter(mask: np.ndarray) -> None:
    values = [pa.array(range(len(mask)), pa.int64()), pa.array([str(i) for i in range(len(mask))])]
    expected = [v.filter(pa.array(mask)) for v in values]
    for form in forms(mask):
        assert select_rows(values, form) == expected


@given(flags, st.data())
def test_slice_and_intersect_equal_their_masks(mask: np.ndarray, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(mask)))
    length = data.draw(st.integers(0, len(mask) - offset))
    other = np.array(data.draw(st.lists(st.booleans(), min_size=len(mask), max_size=len(mask))), dtype=np.bool_)
    for form in forms(mask):
        assert np.array_equal(to_mask(slice_selection(form, offset, length)), mask[offset : offset + length])
        assert np.array_equal(to_mask(intersect(form, Mask(other))), mask & other)


def test_untouched_and_single_runs_share_buffers_with_the_array() -> None:
    array = pa.array(range(1000), pa.int64())
    mask = np.zeros(1000, dtype=np.bool_)
    mask[10:900] = True
    for selection, first in ((All(1000), 0), (Mask(mask), 10), (from_ranges([(10, 900)], 1000), 10)):
        (selected,) = select_rows([array], selection)
        assert selected.buffers()[1].address == array.buffers()[1].address
        assert selected.offset == first


def test_from_ranges_merges_touching_ranges_and_recognises_all() -> None:
    assert from_ranges([(0, 5), (5, 10)], 10) == All(10)
    merged = from_ranges([(0, 2), (2, 4), (6, 6), (7, 9)], 10)
    assert to_indices(merged).tolist() == [0, 1, 2, 3, 7, 8]


def test_without_drops_positions_and_nothing_drops_all() -> None:
    assert to_indices(without(np.array([3, 1, 3]), 5)).tolist() == [0, 2, 4]
    assert without(np.array([], dtype=np.int64), 5) == All(5)
    assert selected_count(nothing(7)) == 0


def test_selections_over_different_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="over 3 and 4 rows"):
        relative(All(3), All(4))
