"""Compiled loops over key columns: the same hashes and the same entries as the NumPy code beside them.

Importing this module loads Numba (0.4 s, 2 s more where nothing is cached yet), so only `compiled.py` imports it, when
that pays. All kernels release the GIL, index with unsigned integers, and take read-only arrays: writable ones convert.
"""

from typing import Any

import numba
import numpy as np
from numba import types

_LOOP_WORDS = 8
_BLOCK = 4096
_PART_BITS = 11
"""2,048 partitions: as many places to write to as the cache and the page tables bear."""
_MOST_MOVES = 64
"""Per hash, before sorting by insertion is given up."""

_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_U64_UNALIGNED_IN = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)
_U32_IN = types.Array(types.uint32, 1, "C", readonly=True)
_I64_IN = types.Array(types.int64, 1, "C", readonly=True)
_U8_IN = types.Array(types.uint8, 1, "C", readonly=True)
_I64_OUT = types.Array(types.int64, 1, "C")
_U32_OUT = types.Array(types.uint32, 1, "C")
_U8_OUT = types.Array(types.uint8, 1, "C")
_U64_OUT = types.Array(types.uint64, 1, "C")
_BOOL_OUT = types.Array(types.boolean, 1, "C")


def _compile(function: Any, *signature: Any) -> Any:
    """Compile now, from the cache if there is one; where no folder can hold a cache, compile without."""
    try:
        return numba.njit(list(signature), cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(list(signature), nogil=True)(function)


def _splitmix(number: Any) -> Any:
    mixed = number + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_splitmix = numba.njit(inline="always")(_splitmix)


def _hash_bytes(  # noqa: PLR0917  kernels take arrays and numbers, no objects
    offsets: Any,
    words: Any,
    first: Any,
    secrets: Any,
    multipliers: Any,
    root: Any,
    multiplier_root: Any,
    length_multiplier: Any,
    out: Any,
) -> None:
    """Add to `out` what the byte strings contribute to the hash of each row (`key_hash._hash_bytes`)."""
    zero = np.empty(_LOOP_WORDS, np.uint64)
    for place in range(_LOOP_WORDS):
        mixed = secrets[place] * first
        zero[place] = (mixed ^ (mixed >> np.uint64(32))) * multipliers[place]
    for row in range(np.uint64(len(out))):
        start, end = np.uint64(offsets[row]), np.uint64(offsets[row + np.uint64(1)])
        total = (end - start) * length_multiplier
        position = np.uint64(0)
        while start < end:
            word = words[start]
            rest = end - start
            if rest < np.uint64(8):
                word &= (np.uint64(1) << (rest * np.uint64(8))) - np.uint64(1)
            if position < np.uint64(_LOOP_WORDS):
                secret, multiplier, nothing = secrets[position], multipliers[position], zero[position]
            else:
                secret = _splitmix(root + position)
                multiplier = _splitmix(multiplier_root + position) | np.uint64(1)
                nothing = secret * first
                nothing = (nothing ^ (nothing >> np.uint64(32))) * multiplier
            mixed = (word ^ secret) * first
            total += (mixed ^ (mixed >> np.uint64(32))) * multiplier - nothing
            start += np.uint64(8)
            position += np.uint64(1)
        out[row] += total


def _find(  # noqa: PLR0917  same
    hashes: Any,
    bits: Any,
    filter_shift: Any,
    starts: Any,
    shift: Any,
    table: Any,
    rows: Any,
    entries: Any,
) -> Any:
    """Fill `rows` and `entries` with the hashes found and where (`HashTable.find`); returns how many."""
    one, three, seven = np.uint64(1), np.uint64(3), np.uint64(7)
    last = np.uint64(len(table) - 1)
    survivors = np.empty(_BLOCK, np.uint32)
    places = np.empty(_BLOCK, np.uint64)
    found = np.uint64(0)
    for begin in range(np.uint64(0), np.uint64(len(hashes)), np.uint64(_BLOCK)):
        size = min(np.uint64(_BLOCK), np.uint64(len(hashes)) - begin)
        count = np.uint64(0)
        for i in range(size):
            bit = hashes[begin + i] >> filter_shift
            survivors[count] = i
            count += np.uint64((np.uint64(bits[bit >> three]) >> (bit & seven)) & one)
        for i in range(count):
            places[i] = starts[hashes[begin + np.uint64(survivors[i])] >> shift]
        for i in range(count):
            wanted = hashes[begin + np.uint64(survivors[i])]
            place = places[i]
            while table[place] < wanted:
                place += one
            if table[place] == wanted and place < last:
                rows[found] = begin + np.uint64(survivors[i])
                entries[found] = place
                found += one
    return found


def _hash_words(words: Any, secret: Any, first: Any, multiplier: Any, out: Any) -> None:
    """Add to `out` what one 64-bit word contributes to the hash of each row."""
    for row in range(np.uint64(len(out))):
        mixed = (words[row] ^ secret) * first
        out[row] += (mixed ^ (mixed >> np.uint64(32))) * multiplier


def _finish(hashes: Any, first: Any) -> None:
    for row in range(np.uint64(len(hashes))):
        mixed = hashes[row]
        mixed = (mixed ^ (mixed >> np.uint64(29))) * first
        hashes[row] = mixed ^ (mixed >> np.uint64(32))


def _same_bytes(  # noqa: PLR0917  same
    offsets: Any, words: Any, rows: Any, other_offsets: Any, other_words: Any, other_rows: Any, same: Any
) -> None:
    """Clear `same` for pairs of rows whose byte strings differ."""
    for pair in range(np.uint64(len(rows))):
        row, other = np.uint64(rows[pair]), np.uint64(other_rows[pair])
        start, place = np.uint64(offsets[row]), np.uint64(other_offsets[other])
        rest = np.uint64(offsets[row + np.uint64(1)]) - start
        if rest != np.uint64(other_offsets[other + np.uint64(1)]) - place:
            same[pair] = False
            continue
        while rest >= np.uint64(8) and words[start] == other_words[place]:
            start, place, rest = start + np.uint64(8), place + np.uint64(8), rest - np.uint64(8)
        if rest >= np.uint64(8):
            same[pair] = False
        elif rest:
            mask = (np.uint64(1) << (rest * np.uint64(8))) - np.uint64(1)
            if (words[start] ^ other_words[place]) & mask:
                same[pair] = False


def _partition(hashes: Any, ends: Any, parted: Any, parted_rows: Any) -> Any:
    """Hashes and their rows grouped by the leading bits; fills where groups end, returns the size of the largest."""
    one, shift = np.uint64(1), np.uint64(64 - _PART_BITS)
    for row in range(np.uint64(len(hashes))):
        ends[(hashes[row] >> shift) + one] += 1
    largest = ends[0]
    for part in range(np.uint64(1), np.uint64(len(ends))):
        largest = max(largest, ends[part])
        ends[part] += ends[part - one]
    starts = ends.copy()
    for row in range(np.uint64(len(hashes))):
        part = hashes[row] >> shift
        place = np.uint64(starts[part])
        parted[place] = hashes[row]
        parted_rows[place] = row
        starts[part] += 1
    return largest


def _distribute(  # noqa: PLR0917  same
    hashes: Any, hash_rows: Any, begin: Any, end: Any, shift: Any, inner: Any, ordered: Any, rows: Any
) -> None:
    """Hashes [begin, end) grouped by the bits that follow the leading ones; `inner` is scratch, one entry a group."""
    one, mask = np.uint64(1), np.uint64(len(inner) - 2)
    inner[:] = 0
    for i in range(begin, end):
        inner[((hashes[i] >> shift) & mask) + one] += 1
    inner[0] = np.int64(begin)
    for group in range(np.uint64(1), np.uint64(len(inner))):
        inner[group] += inner[group - one]
    for i in range(begin, end):
        group = (hashes[i] >> shift) & mask
        place = np.uint64(inner[group])
        inner[group] += 1
        ordered[place] = hashes[i]
        rows[place] = hash_rows[i]


def _insert(ordered: Any, rows: Any, begin: Any, end: Any) -> Any:
    """Sort [begin, end), which is nearly in order, by insertion; returns how many moves it took."""
    one = np.uint64(1)
    moves = np.uint64(0)
    for i in range(begin + one, end):
        wanted, row = ordered[i], rows[i]
        k = np.uint64(i)
        while k > begin and ordered[k - one] > wanted:
            ordered[k] = ordered[k - one]
            rows[k] = rows[k - one]
            k -= one
        ordered[k] = wanted
        rows[k] = row
        moves += i - k
        if moves > np.uint64(_MOST_MOVES) * (end - begin):
            break
    return moves


_partition = numba.njit(_partition)
_distribute = numba.njit(_distribute)
_insert = numba.njit(_insert)


def _sort_hashes(hashes: Any, ordered: Any, rows: Any) -> bool:
    """Fill `ordered` and `rows` with the hashes in ascending, stable order and where each came from.

    Partitions by the leading bits, small enough for the cache, then groups inside of each, then insertion. False if
    the hashes are too far from even for that (many repeats of few keys in one group): sort by other means.
    """
    one = np.uint64(1)
    ends = np.zeros((1 << _PART_BITS) + 1, np.int64)
    parted = np.empty(len(hashes), np.uint64)
    parted_rows = np.empty(len(hashes), np.uint32)
    largest = np.uint64(_partition(hashes, ends, parted, parted_rows))
    bits = one
    while (one << bits) < largest and bits < np.uint64(12):
        bits += one
    inner = np.empty((one << bits) + one, np.int64)
    shift = np.uint64(64 - _PART_BITS) - bits
    for part in range(np.uint64(len(ends)) - one):
        begin, end = np.uint64(ends[part]), np.uint64(ends[part + one])
        if begin < end:
            _distribute(parted, parted_rows, begin, end, shift, inner, ordered, rows)
            if _insert(ordered, rows, begin, end) > np.uint64(_MOST_MOVES) * (end - begin):
                return False
    return True


def _fill_table(ordered: Any, shift: Any, filter_shift: Any, starts: Any, bits: Any) -> None:
    """Where the buckets of ascending hashes begin, and their filter (`build_hash_table`); both start as zeros."""
    one, three, seven = np.uint64(1), np.uint64(3), np.uint64(7)
    bucket = np.uint64(0)
    for entry in range(np.uint64(len(ordered))):
        value = ordered[entry]
        while bucket < value >> shift:
            bucket += one
            starts[bucket] = entry
        bit = value >> filter_shift
        bits[bit >> three] |= np.uint8(one << (bit & seven))
    while bucket < np.uint64(len(starts)) - one:
        bucket += one
        starts[bucket] = len(ordered)


_u64 = types.uint64
hash_bytes = _compile(
    _hash_bytes,
    types.void(_I64_IN, _U64_UNALIGNED_IN, _u64, _U64_IN, _U64_IN, _u64, _u64, _u64, _U64_OUT),
)
hash_words = _compile(_hash_words, types.void(_U64_IN, _u64, _u64, _u64, _U64_OUT))
finish = _compile(_finish, types.void(_U64_OUT, _u64))
find = _compile(_find, types.int64(_U64_IN, _U8_IN, _u64, _U32_IN, _u64, _U64_IN, _I64_OUT, _I64_OUT))
same_bytes = _compile(
    _same_bytes,
    types.void(_I64_IN, _U64_UNALIGNED_IN, _I64_IN, _I64_IN, _U64_UNALIGNED_IN, _I64_IN, _BOOL_OUT),
)
sort_hashes = _compile(_sort_hashes, types.boolean(_U64_IN, _U64_OUT, _U32_OUT))
fill_table = _compile(_fill_table, types.void(_U64_IN, _u64, _u64, _U32_OUT, _U8_OUT))
