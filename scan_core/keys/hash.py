"""Hashes of key columns, and whether rows with equal hashes have equal keys: the seed makes crafted collisions impossible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nevermore.scan_core.keys.columns import (
    LOOP_WORDS,
    BytesColumn,
    Codes,
    DictionaryColumn,
    FixedColumn,
    KeyColumn,
    Words,
)
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.native import kernels as compiled
from nevermore.scan_core.native.compiled import stored_kernels
from nevermore.scan_core.native.machine_code import Kernels
from nevermore.scan_core.rows.buffers import Mask, Rows

BLOCK_ROWS = 65_536
"""Rows hashed at a time: their words and the intermediate results stay in the L2 cache."""
_WORD_MASK = 0xFFFFFFFFFFFFFFFF
_TAIL_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], np.uint64)
_LENGTH_POSITION = 1 << 40
_NULL_POSITION = 1 << 41
_MULTIPLIERS = 1 << 42
_COLUMN_STRIDE = 1 << 44


@dataclass(frozen=True, slots=True)
class HashSeed:
    """A secret odd multiplier and the root of the per-position secrets."""

    root: int
    first: int

    def secret(self, column: int, position: int) -> np.uint64:
        """The mask of the word at one position of one column."""
        return np.uint64(splitmix(self.root + column * _COLUMN_STRIDE + position))

    def multiplier(self, column: int, position: int) -> np.uint64:
        """The odd number that the masked word is multiplied with."""
        return np.uint64(splitmix(self.root + column * _COLUMN_STRIDE + _MULTIPLIERS + position) | 1)


def hash_seed(number: int) -> HashSeed:
    """The seed derived from a (random) number."""
    return HashSeed(splitmix(number), splitmix(number + 1) | 1)


def hash_rows(columns: Sequence[KeyColumn], seed: HashSeed) -> Words:
    """One hash per row; the same with and without compiled kernels, which hash byte strings alone."""
    columns = [c if isinstance(c, DictionaryColumn) else _with_slack(c) for c in columns]
    total = np.empty(columns[0].num_rows, np.uint64)
    distinct = {
        i: _hash_plain(_with_slack(c.values), i, seed, 0, c.values.num_rows)
        for i, c in enumerate(columns)
        if isinstance(c, DictionaryColumn)
    }
    for begin in range(0, len(total), BLOCK_ROWS):
        check_running()
        end = min(begin + BLOCK_ROWS, len(total))
        parts = (
            distinct[i][c.codes[begin:end]] if isinstance(c, DictionaryColumn) else _hash_plain(c, i, seed, begin, end)
            for i, c in enumerate(columns)
        )
        block = next(parts)
        for part in parts:
            block += part
        _finish(block, seed)
        total[begin:end] = block
    return total


@lru_cache(maxsize=64)
def _byte_secrets(index: int, seed: HashSeed) -> tuple[Words, Words]:
    """Numbers that the compiled kernel mixes words of byte strings with, see `kernels.hash_bytes`."""
    zero, root = np.zeros(1, np.uint64), (seed.root + index * _COLUMN_STRIDE) & _WORD_MASK
    secrets = [
        [seed.secret(index, p), seed.multiplier(index, p), _mix(zero, index, p, seed)[0]] for p in range(LOOP_WORDS)
    ]
    roots = [root, (root + _MULTIPLIERS) & _WORD_MASK, seed.multiplier(index, _LENGTH_POSITION)]
    return np.array(secrets, np.uint64), np.array(roots, np.uint64)


def _with_slack(column: FixedColumn | BytesColumn) -> FixedColumn | BytesColumn:
    return column.with_slack() if isinstance(column, BytesColumn) and stored_kernels() is None else column


def rotate(hashes: Words, bits: int) -> Words:
    """The hashes with their leading bits, which hashes of one partition share, moved to the end."""
    return (hashes << np.uint64(bits)) | (hashes >> np.uint64(64 - bits)) if bits else hashes


def row_words(column: BytesColumn, rows: Rows, position: int) -> Words:
    """Word `position` of the given strings, zero-padded; each must be longer than 8 * position bytes."""
    starts = column.offsets[rows] + 8 * position
    words: Words = column.word_view[starts] & tail_masks(column.offsets[rows + 1] - starts)
    return words


def _flat_words(column: BytesColumn, rows: Rows) -> tuple[Words, Rows]:
    """Split strings that are not empty into words: (the words of all strings, the position of each in its string)."""
    starts, lengths = column.offsets[rows], column.offsets[rows + 1] - column.offsets[rows]
    counts = lengths + 7 >> 3
    ends = np.cumsum(counts)
    positions = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - counts, counts)
    words = column.word_view[np.repeat(starts, counts) + 8 * positions]
    return words & tail_masks(np.repeat(lengths, counts) - 8 * positions), positions


def _hash_plain(column: FixedColumn | BytesColumn, index: int, seed: HashSeed, begin: int, end: int) -> Words:
    """The contribution of one column to the hash of each row, as a fresh array."""
    if isinstance(column, BytesColumn):
        total = _hash_bytes(column, index, seed, begin, end)
    elif column.words:
        total = _mix(column.words[0][begin:end], index, 0, seed)
        for position, words in enumerate(column.words[1:], start=1):
            total += _mix(words[begin:end], index, position, seed)
    else:
        total = np.zeros(end - begin, np.uint64)
    if column.valid is not None:
        total[~column.valid[begin:end]] = seed.secret(index, _NULL_POSITION)
    return total


def _hash_bytes(column: BytesColumn, index: int, seed: HashSeed, begin: int, end: int) -> Words:
    """A word of zeros adds nothing, so short and long strings need not be distinguished."""
    if (kernels := stored_kernels()) is not None:
        total = np.zeros(end - begin, np.uint64)
        data, numbers = column.data, (seed.first, *_byte_secrets(index, seed))
        hash_bytes = kernels["hash_bytes32" if column.offsets.itemsize == 4 else "hash_bytes64"]
        hash_bytes(column.offsets[begin : end + 1], data, end - begin, len(data), *numbers, total)
        return total
    lengths = np.diff(column.offsets[begin : end + 1])
    total = lengths.view(np.uint64) * seed.multiplier(index, _LENGTH_POSITION)
    if len(rows := np.flatnonzero(lengths)):
        words, positions = _flat_words(column, rows + begin)
        mixed = _mix_each(words, index, positions, seed) - _mix_each(np.zeros_like(words), index, positions, seed)
        total[rows] += np.add.reduceat(mixed, np.flatnonzero(positions == 0))
    return total


def tail_masks(rest: Rows) -> Words:
    """Masks of the bytes that belong to strings with `rest` remaining bytes."""
    return np.take(_TAIL_MASKS, rest, mode="clip")


def _mix(words: Words, column: int, position: int, seed: HashSeed) -> Words:
    mixed: Words = words ^ seed.secret(column, position)
    mixed *= np.uint64(seed.first)
    mixed ^= mixed >> np.uint64(32)
    mixed *= seed.multiplier(column, position)
    return mixed


def _mix_each(words: Words, column: int, positions: Rows, seed: HashSeed) -> Words:
    """`_mix` for words at many positions."""
    root = np.uint64((seed.root + column * _COLUMN_STRIDE) & _WORD_MASK)
    numbers = positions.view(np.uint64) + root
    mixed: Words = words ^ _splitmix(numbers)
    mixed *= np.uint64(seed.first)
    mixed ^= mixed >> np.uint64(32)
    mixed *= _splitmix(numbers + np.uint64(_MULTIPLIERS)) | np.uint64(1)
    return mixed


def _finish(block: Words, seed: HashSeed) -> None:
    block ^= block >> np.uint64(29)
    block *= np.uint64(seed.first)
    block ^= block >> np.uint64(32)


_splitmix: Callable[[Words], Words] = compiled.splitmix.function
"""Of arrays, as the compiled kernels compute it of single numbers."""


@lru_cache(maxsize=4_096)
def splitmix(number: int) -> int:
    """A well-mixed number of 64 bits. Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014)."""
    return int(_splitmix(np.array([number & _WORD_MASK], np.uint64))[0])


@dataclass(frozen=True, slots=True)
class KeyRows:
    """A selection of rows of key columns."""

    columns: Sequence[KeyColumn]
    rows: Rows


def same_keys(left: KeyRows, right: KeyRows) -> Mask:
    """For each pair of rows, one of each side, whether all columns are equal (NULL equals NULL)."""
    same = np.ones(len(left.rows), np.bool_)
    for one, other in zip(left.columns, right.columns, strict=True):
        same &= _same_values(one, left.rows, other, right.rows)
        if not same.any():
            break
    return same


def _same_values(left: KeyColumn, left_rows: Codes, right: KeyColumn, right_rows: Codes) -> Mask:
    if isinstance(left, DictionaryColumn):
        return _same_values(left.values, left.codes[left_rows], right, right_rows)
    if isinstance(right, DictionaryColumn):
        return _same_values(left, left_rows, right.values, right.codes[right_rows])
    if isinstance(left, FixedColumn) and isinstance(right, FixedColumn):
        same: Mask = np.ones(len(left_rows), np.bool_)
        for one, other in zip(left.words, right.words, strict=True):
            same &= one[left_rows] == other[right_rows]
    elif isinstance(left, BytesColumn) and isinstance(right, BytesColumn):
        if (kernels := stored_kernels()) is None:
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


def _valid(column: FixedColumn | BytesColumn, rows: Codes) -> Mask:
    return np.ones(len(rows), np.bool_) if column.valid is None else column.valid[rows]


def _same_bytes_compiled(
    left: BytesColumn, left_rows: Codes, right: BytesColumn, right_rows: Codes, kernels: Kernels
) -> Mask:
    same: Mask = np.ones(len(left_rows), np.bool_)
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


def _same_bytes(left: BytesColumn, left_rows: Rows, right: BytesColumn, right_rows: Rows) -> Mask:
    lengths = left.offsets[left_rows + 1] - left.offsets[left_rows]
    same: Mask = lengths == right.offsets[right_rows + 1] - right.offsets[right_rows]
    if len(pairs := np.flatnonzero(same & (lengths > 0))):
        words, positions = _flat_words(left, left_rows[pairs])
        others, _ = _flat_words(right, right_rows[pairs])
        same[pairs] = np.logical_and.reduceat(words == others, np.flatnonzero(positions == 0))
    return same
