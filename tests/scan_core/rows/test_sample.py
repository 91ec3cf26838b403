from itertools import pairwise

import numpy as np
import pytest

from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.rows.selection import BLOCK_ROWS, All, RowSample, selected_count, to_indices, to_mask

SMALL, LARGE = 20_000, 200 * BLOCK_ROWS


def taken(sample: RowSample, file_rows: int, data_file: str = "a.parquet") -> np.ndarray:
    return to_indices(sample.rows(data_file, file_rows, 0, file_rows))


@pytest.mark.each(5)
@pytest.mark.parametrize("file_rows", [SMALL, LARGE])
@pytest.mark.parametrize("fraction", [0.003, 0.1, 0.7])
def test_every_row_is_taken_with_the_same_probability(fraction: float, file_rows: int) -> None:
    seeds = 40
    per_tenth = np.zeros(10)
    for seed in range(seeds):
        rows = taken(RowSample(fraction, seed), file_rows)
        per_tenth += np.bincount(rows * 10 // file_rows, minlength=10)
    expected = seeds * file_rows * fraction
    rows_taken_together = 1 if file_rows == SMALL else BLOCK_ROWS * fraction
    deviation = np.sqrt(expected * max(rows_taken_together, 1))
    assert abs(per_tenth.sum() - expected) < 5 * deviation
    assert (abs(per_tenth - expected / 10) < 5 * np.sqrt(expected / 10 * max(rows_taken_together, 1))).all()


def test_samples_of_other_seeds_and_files_are_independent() -> None:
    first, second, third = (
        set(taken(sample, SMALL, name).tolist())
        for sample, name in ((RowSample(0.2, 1), "a"), (RowSample(0.2, 2), "a"), (RowSample(0.2, 1), "b"))
    )
    for other in (second, third):
        assert abs(len(first & other) - SMALL * 0.04) < 5 * np.sqrt(SMALL * 0.04)


@pytest.mark.parametrize("file_rows", [SMALL, LARGE])
def test_same_rows_are_taken_however_the_file_is_cut(file_rows: int) -> None:
    sample = RowSample(0.02, 9)
    edges = [0, 1, 7_000, BLOCK_ROWS, BLOCK_ROWS + 5, file_rows]
    parts = [to_mask(sample.rows("f", file_rows, begin, end - begin)) for begin, end in pairwise(edges)]
    assert (np.concatenate(parts) == to_mask(sample.rows("f", file_rows, 0, file_rows))).all()


def test_a_small_sample_of_a_large_file_leaves_most_blocks_out() -> None:
    blocks = np.unique(taken(RowSample(0.001), LARGE) // BLOCK_ROWS)
    assert 4 <= len(blocks) <= 10


def test_all_and_nothing() -> None:
    assert RowSample(1.0).rows("a", 10, 0, 10) == All(10)
    assert selected_count(RowSample(0.0).rows("a", 10, 0, 10)) == 0
    assert selected_count(RowSample(5e-324).rows("a", LARGE, 0, LARGE)) == 0


@pytest.mark.parametrize(("fraction", "seed"), [(-0.1, 0), (1.1, 0), (float("nan"), 0), (0.5, -1), (0.5, 2**64)])
def test_impossible_samples_are_refused(fraction: float, seed: int) -> None:
    with pytest.raises(OptionError):
        RowSample(fraction, seed)
