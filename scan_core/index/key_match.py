"""Whether pairs of rows are the same key, word by word: what makes a 64-bit hash exact."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scan_core.index.key_columns import (
    LOOP_WORDS,
    BytesColumn,
    Codes,
    DictionaryColumn,
    FixedColumn,
    Flags,
    KeyColumn,
    Rows,
)
from scan_core.index.key_hash import flat_words, tail_masks
from scan_core.native.machine_code import Kernels


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Some rows of some columns."""

    columns: Sequence[KeyColumn]
    rows: Rows


def same_keys(left: KeyRows, right: KeyRows, kernels: Kernels | None = None) -> Flags:
    """For each pair of rows, one of each side, whether all columns are equal (NULL equals NULL)."""
    same = np.ones(len(left.rows), np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        same &= _same_values(one, left.rows, other, right.rows, kernels)
        if not same.any():
            break
    return same


def _same_values(
    left: KeyColumn, left_rows: Codes, right: KeyColumn, right_rows: Codes, kernels: Kernels | None
) -> Flags:
    if isinstance(left, DictionaryColumn):
        return _same_values(left.values, left.codes[left_rows], right, right_rows, kernels)
    if isinstance(right, DictionaryColumn):
        return _same_values(left, left_rows, right.values, right.codes[right_rows], kernels)
    if isinstance(left, FixedColumn) and isinstance(right, FixedColumn):
        same: Flags = np.ones(len(left_rows), np.bool_)
        for one, other in zip(left.words, right.words, strict=True):
            same &= one[left_rows] == other[right_rows]
    elif isinstance(left, BytesColumn) and isinstance(right, BytesColumn):
        if kernels is None:
            pairs = left_rows.astype(np.int64, copy=False), right_rows.astype(np.int64, copy=False)
            same = _same_bytes(left.with_slack(), pairs[0], right.with_slack(), pairs[1])
        else:
            same = _same_bytes_compiled(left, left_rows, right, right_rows, kernels)
    else:
        raise TypeError("byte strings compared with fixed words")
    if left.valid is None and right.valid is None:
        return same
    same &= _valid(left, left_rows) == _valid(right, right_rows)
    return same


def _valid(column: FixedColumn | BytesColumn, rows: Codes) -> Flags:
    return np.ones(len(rows), np.bool_) if column.valid is None else column.valid[rows]


def _same_bytes_compiled(
    left: BytesColumn, left_rows: Codes, right: BytesColumn, right_rows: Codes, kernels: Kernels
) -> Flags:
    same: Flags = np.ones(len(left_rows), np.bool_)
    name = "same_bytes32" if left.offsets.itemsize == 4 else "same_bytes64"
    right = right if right.offsets.itemsize == 8 else right.with_slack()
    one, other = (np.ascontiguousarray(rows, np.int64) for rows in (left_rows, right_rows))
    kernels[name](
        *(left.offsets, left.data, len(left.data), one),
        *(right.offsets, right.data, len(right.data), other),
        len(same),
        same.view(np.uint8),
    )
    return same


def _same_bytes(left: BytesColumn, left_rows: Rows, right: BytesColumn, right_rows: Rows) -> Flags:
    starts, others = left.offsets[left_rows], right.offsets[right_rows]
    lengths = left.offsets[left_rows + 1] - starts
    same: Flags = lengths == right.offsets[right_rows + 1] - others
    open_pairs = np.flatnonzero(same & (lengths > 0))
    for position in range(LOOP_WORDS):
        if not len(open_pairs):
            return same
        differing = left.word_view[starts[open_pairs] + 8 * position]
        differing ^= right.word_view[others[open_pairs] + 8 * position]
        rest = lengths[open_pairs] - 8 * position
        equal = differing & tail_masks(rest) == 0
        same[open_pairs[~equal]] = False
        open_pairs = open_pairs[equal & (rest > 8)]
    if len(open_pairs):
        words, positions = flat_words(left, left_rows[open_pairs], LOOP_WORDS)
        right_words, _ = flat_words(right, right_rows[open_pairs], LOOP_WORDS)
        firsts = np.flatnonzero(positions == LOOP_WORDS)
        same[open_pairs] = np.logical_and.reduceat(words == right_words, firsts)
    return same
