"""Key columns in a form that can be hashed and compared in bulk: 64-bit words, or byte strings.

Two rows are the same key iff every word and every null flag is equal: NULL equals NULL, NaN equals NaN regardless of its
payload, -0.0 differs from 0.0. The hash has a random seed, so that nobody can craft keys that collide. Hashes are looked up in
`lookup.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.model.running import check_running
from nevermore.scan_core.native import kernels as compiled
from nevermore.scan_core.native.compiled import stored_kernels
from nevermore.scan_core.native.machine_code import Kernels
from nevermore.scan_core.rows.buffers import Mask, Rows, numbers, validity

Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.integer]

LOOP_WORDS = 8
"""The secrets of the first words of strings are computed once for all rows."""
SLACK_BYTES = 8
"""Readable bytes after the last byte string, so that its last word can be loaded whole."""

_CANONICAL_NAN = np.uint64(0x7FF8000000000000)
_ONE_WORD_DECIMAL_DIGITS = 18


@dataclass(frozen=True, slots=True, eq=False)
class FixedColumn:
    """Values of a fixed number of 64-bit words; words of NULL are 0. `valid` is None where nothing is NULL."""

    words: tuple[Words, ...]
    valid: Mask | None
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class BytesColumn:
    """Byte strings `data[offsets[i] : offsets[i + 1]]`; NULL has length 0. Offsets have 32 or 64 bits.

    With slack the offsets have 64 bits, and as many bytes can be read after the last string.
    """

    offsets: npt.NDArray[np.signedinteger]
    data: npt.NDArray[np.uint8]
    valid: Mask | None
    num_rows: int
    has_slack: bool = False

    def with_slack(self) -> "BytesColumn":
        """The same strings, with slack; copied unless they have it."""
        if self.has_slack:
            return self
        first, last = int(self.offsets[0]), int(self.offsets[-1])
        data = np.zeros(last - first + SLACK_BYTES, np.uint8)
        data[: last - first] = self.data[first:last]
        return BytesColumn(self.offsets.astype(np.int64) - first, data, self.valid, self.num_rows, has_slack=True)

    @property
    def word_view(self) -> Words:
        """The word that begins at each byte, little-endian, unaligned; of a column with slack."""
        count = len(self.data) - 7
        return np.ndarray((count,), dtype="<u8", buffer=self.data, strides=(1,))


@dataclass(frozen=True, slots=True, eq=False)
class DictionaryColumn:
    """Rows that point into distinct values, which are hashed once each."""

    codes: Codes
    values: FixedColumn | BytesColumn
    num_rows: int


KeyColumn = FixedColumn | BytesColumn | DictionaryColumn


def key_column(array: pa.Array) -> KeyColumn:
    """The canonical form of a leaf array in the engine's type.

    Integers, dates, times and timestamps become their 64-bit value, float and double the bits of the double,
    booleans 0 and 1, decimals of up to 18 digits their unscaled value, wider ones and fixed-length bytes as many words
    as they fill.

    Raises:
        UnsupportedError: a list, map, struct or other type that cannot be a key.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pt.is_dictionary(array.type):
        return _dictionary_column(array)
    if pt.is_null(array.type):
        return FixedColumn((np.zeros(len(array), np.uint64),), np.zeros(len(array), np.bool_), len(array))
    valid = validity(array)
    if _is_byte_string(array.type):
        return _bytes_column(array, valid)
    words = tuple(_words(array))
    if valid is not None:
        words = tuple(np.where(valid, w, np.uint64(0)) for w in words)
    return FixedColumn(words, valid, len(array))


def is_integer_like(kind: pa.DataType) -> bool:
    """Whether values of the type are one signed 64-bit number each."""
    if pt.is_decimal(kind):
        return bool(kind.precision <= _ONE_WORD_DECIMAL_DIGITS)
    return bool(pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_temporal(kind))


def is_one_word(kind: pa.DataType) -> bool:
    """Whether one 64-bit word identifies every value of the type except NULL."""
    return is_integer_like(kind) or bool(pt.is_floating(kind))


def signed_values(array: pa.Array) -> npt.NDArray[np.int64] | npt.NDArray[np.int32]:
    """The numbers of an integer-like array, arbitrary where NULL; int32 where the array stores that."""
    kind = array.type
    stored_signed = pt.is_signed_integer(kind) or pt.is_temporal(kind)
    if stored_signed and kind.bit_width in {32, 64}:
        return numbers(array, np.int64 if kind.bit_width == 64 else np.int32)
    return _words(array)[0].view(np.int64)


def concat(columns: Sequence[KeyColumn]) -> KeyColumn:
    """The rows of all columns, which hold one type, one after the other."""
    if len(columns) == 1:
        return columns[0]
    if any(isinstance(c, DictionaryColumn) for c in columns):
        return _concat_dictionaries(columns)
    num_rows = sum(c.num_rows for c in columns)
    valid = None
    if any(null_flags(c) is not None for c in columns):
        valid = np.concatenate(
            [~flags if (flags := null_flags(c)) is not None else np.ones(c.num_rows, np.bool_) for c in columns]
        )
    fixed = [c for c in columns if isinstance(c, FixedColumn)]
    if fixed:
        words = tuple(np.concatenate(parts) for parts in zip(*(c.words for c in fixed), strict=True))
        return FixedColumn(words, valid, num_rows)
    strings = [c.with_slack() for c in columns if isinstance(c, BytesColumn)]
    shifts = np.cumsum([0, *(len(c.data) - SLACK_BYTES for c in strings)])
    return BytesColumn(
        np.concatenate([*(c.offsets[:-1] + shift for c, shift in zip(strings, shifts[:-1], strict=True)), shifts[-1:]]),
        np.concatenate([*(c.data[: len(c.data) - SLACK_BYTES] for c in strings), np.zeros(SLACK_BYTES, np.uint8)]),
        valid,
        num_rows,
        has_slack=True,
    )


def _concat_dictionaries(columns: Sequence[KeyColumn]) -> DictionaryColumn:
    """Codes shifted behind each other; a plain column is its own dictionary."""
    values = [c.values if isinstance(c, DictionaryColumn) else c for c in columns]
    shifts = np.cumsum([0, *(v.num_rows for v in values)])
    codes = [
        (c.codes if isinstance(c, DictionaryColumn) else np.arange(c.num_rows)) + shift
        for c, shift in zip(columns, shifts[:-1], strict=True)
    ]
    joined = concat(values)
    assert not isinstance(joined, DictionaryColumn)  # noqa: S101 - values are plain columns
    return DictionaryColumn(np.concatenate(codes), joined, sum(len(c) for c in codes))


def null_flags(column: KeyColumn) -> Mask | None:
    """True for NULL; None where nothing is NULL."""
    if isinstance(column, DictionaryColumn):
        return None if column.values.valid is None else ~column.values.valid[column.codes]
    return None if column.valid is None else ~column.valid


def column_bytes(column: KeyColumn) -> int:
    """Memory held."""
    if isinstance(column, DictionaryColumn):
        return column.codes.nbytes + column_bytes(column.values)
    flags = 0 if column.valid is None else column.valid.nbytes
    if isinstance(column, FixedColumn):
        return flags + sum(w.nbytes for w in column.words)
    return flags + column.offsets.nbytes + column.data.nbytes


def _dictionary_column(array: pa.DictionaryArray) -> DictionaryColumn:
    """NULL codes point at one more NULL value, so that a row's nullness is that of its value."""
    values, codes = values_and_codes(array)
    plain = key_column(values)
    if isinstance(plain, DictionaryColumn):
        raise UnsupportedError(f"a key of type {array.type} cannot be matched against deletes")
    return DictionaryColumn(codes, plain, len(array))


def values_and_codes(array: pa.DictionaryArray) -> tuple[pa.Array, Codes]:
    """The values of a dictionary, behind them NULL if some code is, and which of them each row has."""
    values, codes = array.dictionary, array.indices
    if codes.null_count:
        codes = codes.cast(pa.int64()).fill_null(len(values))
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, numbers(codes)


def _is_byte_string(kind: pa.DataType) -> bool:
    return bool(
        pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_string_view(kind)
        or pt.is_binary_view(kind)
    )


def _bytes_column(array: pa.Array, valid: Mask | None, flags: Mask | None = None) -> BytesColumn:
    """Byte strings with the bytes of NULL values removed; `flags` mark the values that are not NULL."""
    if pt.is_string_view(array.type) or pt.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, offset_buffer, data_buffer = array.buffers()
    num_rows = len(array)
    if num_rows == 0:
        return BytesColumn(np.zeros(1, np.int64), np.zeros(SLACK_BYTES, np.uint8), valid, 0, has_slack=True)
    kind = np.dtype(np.int64 if wide else np.int32)
    offsets = np.frombuffer(offset_buffer, kind, count=num_rows + 1, offset=array.offset * kind.itemsize)
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    if valid is not None and np.diff(offsets)[~valid].any():
        is_text = pt.is_string(array.type) or pt.is_large_string(array.type)
        return _bytes_column(array.fill_null("" if is_text else b""), None, valid)
    return BytesColumn(offsets, data, valid if flags is None else flags, num_rows)


def _words(array: pa.Array) -> list[Words]:
    kind = array.type
    if pt.is_boolean(kind):
        return [numbers(array.cast(pa.uint8()), np.uint8).astype(np.uint64)]
    if pt.is_floating(kind):
        doubles = numbers(array if pt.is_float64(kind) else array.cast(pa.float64()), np.float64)
        bits = doubles.view(np.uint64)
        nan = np.isnan(doubles)
        return [np.where(nan, _CANONICAL_NAN, bits) if nan.any() else bits]
    if pt.is_decimal(kind):
        return _decimal_words(array)
    if pt.is_fixed_size_binary(kind):
        return _fixed_binary_words(array)
    if pt.is_unsigned_integer(kind):
        return [numbers(array.cast(pa.uint64()), np.uint64)]
    if pt.is_integer(kind) or pt.is_temporal(kind):
        narrow = pt.is_integer(kind) and kind.bit_width < 64
        if narrow:
            array = array.cast(pa.int64())
        signed = np.int64 if array.type.bit_width == 64 else np.int32
        return [numbers(array, signed).astype(np.int64, copy=False).view(np.uint64)]
    raise UnsupportedError(f"a key of type {kind} cannot be matched against deletes")


def _decimal_words(array: pa.Array) -> list[Words]:
    if not pt.is_decimal128(array.type):
        array = array.cast(pa.decimal128(min(array.type.precision, 38), array.type.scale))
    halves = numbers(array, (np.uint64, 2))
    low, high = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])
    if array.type.precision > _ONE_WORD_DECIMAL_DIGITS:
        return [low, high]
    fits = low.view(np.int64) >> 63 == high.view(np.int64)
    if not fits.all() and (valid := validity(array)) is not None:
        fits |= ~valid
    if not fits.all():
        raise MalformedTableError(f"a key value has more digits than its type {array.type} allows")
    return [low]


def _fixed_binary_words(array: pa.Array) -> list[Words]:
    width = array.type.byte_width
    count = -(-width // 8)
    padded = np.zeros((len(array), count * 8), np.uint8)
    if len(array) and width:
        padded[:, :width] = numbers(array, (np.uint8, width))
    words = padded.view(np.uint64)
    return [np.ascontiguousarray(words[:, i]) for i in range(count)]


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


def first_words(column: BytesColumn, rows: Rows) -> Words:
    """The first word of the given strings, zero-padded; none may be empty."""
    starts = column.offsets[rows]
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
