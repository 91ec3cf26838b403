"""Loops over key columns in C's manner: pointers and 64-bit unsigned numbers, no objects, nothing allocated.

They compute the same hashes and find the same keys as the NumPy code that calls them. Only `machine_code.py` imports
this module, to compile it: importing Numba costs half a second. Every index is unsigned, which spares tests for
wrapping around and lets LLVM merge the loads of bytes.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_u = np.uint64
_BLOCK = _u(2048)
"""Rows handled at a time, so that what is known of them stays in the L2 cache; `hash_table.BLOCK_ROWS`."""
_LOOP_WORDS = _u(8)


def _inline(function: Callable[..., Any]) -> Any:
    return numba.njit(inline="always")(function)


@_inline
def _splitmix(number: Any) -> Any:
    mixed = number + _u(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> _u(30))) * _u(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> _u(27))) * _u(0x94D049BB133111EB)
    return mixed ^ (mixed >> _u(31))


@_inline
def _mix(word: Any, secret: Any, first: Any, multiplier: Any) -> Any:
    mixed = (word ^ secret) * first
    return (mixed ^ (mixed >> _u(32))) * multiplier


@_inline
def _finished(total: Any, first: Any) -> Any:
    mixed = (total ^ (total >> _u(29))) * first
    return mixed ^ (mixed >> _u(32))


@_inline
def _ones(word: Any) -> Any:
    """How many bits are set; LLVM knows this form and makes one instruction of it."""
    word -= (word >> _u(1)) & _u(0x5555555555555555)
    word = (word & _u(0x3333333333333333)) + ((word >> _u(2)) & _u(0x3333333333333333))
    word = (word + (word >> _u(4))) & _u(0x0F0F0F0F0F0F0F0F)
    return (word * _u(0x0101010101010101)) >> _u(56)


@_inline
def _word_at(data: Any, place: Any) -> Any:
    """Eight bytes, little-endian."""
    low = _u(data[place]) | (_u(data[place + _u(1)]) << _u(8))
    low |= (_u(data[place + _u(2)]) << _u(16)) | (_u(data[place + _u(3)]) << _u(24))
    high = _u(data[place + _u(4)]) | (_u(data[place + _u(5)]) << _u(8))
    high |= (_u(data[place + _u(6)]) << _u(16)) | (_u(data[place + _u(7)]) << _u(24))
    return low | (high << _u(32))


@_inline
def _word_of(data: Any, data_end: Any, place: Any, end: Any) -> Any:
    """The word at `place` of a string that ends at `end`, zero-padded; nothing is read behind `data_end`."""
    if place + _u(8) <= data_end:
        word = _word_at(data, place)
        if end - place < _u(8):
            word &= (_u(1) << ((end - place) * _u(8))) - _u(1)
        return word
    word, shift = _u(0), _u(0)
    while place < end and shift < _u(64):
        word |= _u(data[place]) << shift
        place, shift = place + _u(1), shift + _u(8)
    return word


def hash_words(  # noqa: PLR0917  kernels take pointers and numbers, no objects
    words: Any, rows: Any, secret: Any, first: Any, multiplier: Any, total: Any
) -> Any:
    """Add what one word of each row contributes to its hash."""
    for row in range(rows):
        total[row] += _mix(words[row], secret, first, multiplier)
    return rows


def hash_codes(of_values: Any, codes: Any, rows: Any, total: Any) -> Any:
    """Add what the value that each row points at contributes."""
    for row in range(rows):
        total[row] += of_values[_u(codes[row])]
    return rows


def hash_bytes(  # noqa: PLR0917  same
    offsets: Any, data: Any, rows: Any, data_end: Any, first: Any, secrets: Any, roots: Any, total: Any
) -> Any:
    """Add what the byte string of each row contributes (`key_hash._hash_bytes`).

    `secrets` holds, for each word of the loop, its secret, its multiplier and what zeros contribute; `roots` those of
    later words and the multiplier of the length.
    """
    for row in range(rows):
        place, end = _u(offsets[row]), _u(offsets[row + _u(1)])
        added = (end - place) * roots[_u(2)]
        position = _u(0)
        while place < end and position < _LOOP_WORDS:
            word = _word_of(data, data_end, place, end)
            at = position * _u(3)
            added += _mix(word, secrets[at], first, secrets[at + _u(1)]) - secrets[at + _u(2)]
            place, position = place + _u(8), position + _u(1)
        while place < end:
            word = _word_of(data, data_end, place, end)
            secret = _splitmix(roots[_u(0)] + position)
            multiplier = _splitmix(roots[_u(1)] + position) | _u(1)
            added += _mix(word, secret, first, multiplier) - _mix(_u(0), secret, first, multiplier)
            place, position = place + _u(8), position + _u(1)
        total[row] += added
    return rows


def finish(hashes: Any, rows: Any, first: Any) -> Any:
    """Turn sums into hashes."""
    for row in range(rows):
        hashes[row] = _finished(hashes[row], first)
    return rows


def prefixes(offsets: Any, data: Any, rows: Any, data_end: Any, out: Any) -> Any:
    """The first eight bytes of each string as a number that keeps their order."""
    for row in range(rows):
        word, place = _u(0), _u(offsets[row])
        end = min(_u(offsets[row + _u(1)]), place + _u(8))
        if end > place:
            word = _word_of(data, data_end, place, end)
        word = ((word & _u(0x00FF00FF00FF00FF)) << _u(8)) | ((word >> _u(8)) & _u(0x00FF00FF00FF00FF))
        word = ((word & _u(0x0000FFFF0000FFFF)) << _u(16)) | ((word >> _u(16)) & _u(0x0000FFFF0000FFFF))
        out[row] = (word << _u(32)) | (word >> _u(32))
    return rows


def same_bytes(  # noqa: PLR0917  same
    offsets: Any,
    data: Any,
    data_end: Any,
    rows: Any,
    other_offsets: Any,
    other_data: Any,
    other_end: Any,
    other_rows: Any,
    pairs: Any,
    same: Any,
) -> Any:
    """Clear `same` for pairs of rows whose byte strings differ."""
    for pair in range(pairs):
        row, other = _u(rows[pair]), _u(other_rows[pair])
        place, end = _u(offsets[row]), _u(offsets[row + _u(1)])
        other_place, other_stop = _u(other_offsets[other]), _u(other_offsets[other + _u(1)])
        if end - place != other_stop - other_place:
            same[pair] = 0
            continue
        while place < end:
            mine = _word_of(data, data_end, place, end)
            if mine != _word_of(other_data, other_end, other_place, other_stop):
                same[pair] = 0
                break
            place, other_place = place + _u(8), other_place + _u(8)
    return pairs


def set_bits(hashes: Any, count: Any, multiplier: Any, shift: Any, bits: Any) -> Any:
    """Set the bit of each hash in one level of a table."""
    for i in range(count):
        bit = (hashes[i] * multiplier) >> shift
        bits[bit >> _u(6)] |= _u(1) << (bit & _u(63))
    return count


def count_bits(bits: Any, words: Any, first_entry: Any, counts: Any) -> Any:
    """Fill `counts` with the number of bits before each word of a level; returns it for the level's end."""
    entries = first_entry
    for word in range(words):
        counts[word] = entries
        entries += _ones(bits[word])
    return entries


def place(  # noqa: PLR0917  same
    hashes: Any,
    rows: Any,
    count: Any,
    multiplier: Any,
    shift: Any,
    bits: Any,
    counts: Any,
    table: Any,
    table_rows: Any,
    repeats: Any,
) -> Any:
    """Give each bit's entry to the first hash that has it; `table_rows` begins as all ones.

    Hashes that find their entry taken by another are moved to the front of `hashes` and `rows`, their number is
    returned. A repeat of the same hash takes the entry over; `repeats[0]` counts them, followed by both rows of each.
    """
    left = _u(0)
    for i in range(count):
        value = hashes[i]
        bit = (value * multiplier) >> shift
        word = bit >> _u(6)
        entry = _u(counts[word]) + _ones(bits[word] & ((_u(1) << (bit & _u(63))) - _u(1)))
        taken = table_rows[entry]
        if taken == np.uint32(0xFFFFFFFF):
            table[entry] = value
            table_rows[entry] = rows[i]
        elif table[entry] == value:
            at = repeats[_u(0)] * _u(2) + _u(1)
            repeats[at], repeats[at + _u(1)] = _u(taken), _u(rows[i])
            repeats[_u(0)] += _u(1)
            table_rows[entry] = rows[i]
        else:
            hashes[left], rows[left] = value, rows[i]
            left += _u(1)
    return left


@_inline
def _look_up(  # noqa: PLR0917  same
    block: Any, size: Any, levels: Any, num_levels: Any, bits: Any, counts: Any, table: Any, seen: Any, scratch: Any
) -> Any:
    """Those of a block of hashes that are in the table; returns how many.

    `scratch` holds, in this order, a block's worth of each: places found, entries found, places that wait for the next
    level, places whose bit is set. Three passes a level, so that the accesses to memory of many hashes overlap.
    """
    at_entry, waiting, passed = _BLOCK, _BLOCK * _u(2), _BLOCK * _u(3)
    for i in range(size):
        scratch[waiting + i] = i
    found, candidates = _u(0), size
    for level in range(num_levels):
        multiplier, shift = levels[level * _u(3)], levels[level * _u(3) + _u(1)]
        first_word = levels[level * _u(3) + _u(2)]
        count = _u(0)
        for j in range(candidates):
            i = scratch[waiting + j]
            bit = (block[_u(i)] * multiplier) >> shift
            scratch[passed + count] = i
            count += (bits[first_word + (bit >> _u(6))] >> (bit & _u(63))) & _u(1)
        for j in range(count):
            bit = (block[_u(scratch[passed + j])] * multiplier) >> shift
            word = first_word + (bit >> _u(6))
            entry = _u(counts[word]) + _ones(bits[word] & ((_u(1) << (bit & _u(63))) - _u(1)))
            scratch[at_entry + found + j] = entry
            seen[j] = table[entry]
        candidates, hits = _u(0), found
        for j in range(count):
            i, entry = scratch[passed + j], scratch[at_entry + found + j]
            is_hit = _u(seen[j] == block[_u(i)])
            scratch[hits] = i
            scratch[at_entry + hits] = entry
            hits += is_hit
            scratch[waiting + candidates] = i
            candidates += _u(1) - is_hit
        found = hits
        if candidates == _u(0):
            break
    return found


def find(  # noqa: PLR0917  same
    hashes: Any,
    count: Any,
    levels: Any,
    num_levels: Any,
    bits: Any,
    counts: Any,
    table: Any,
    block: Any,
    seen: Any,
    scratch: Any,
    rows: Any,
    entries: Any,
) -> Any:
    """Fill `rows` and `entries` with the hashes found and where (`HashTable.find`); returns how many."""
    total, begin = _u(0), _u(0)
    while begin < count:
        size = min(_BLOCK, count - begin)
        for i in range(size):
            block[i] = hashes[begin + i]
        found = _look_up(block, size, levels, num_levels, bits, counts, table, seen, scratch)
        for j in range(found):
            rows[total + j] = begin + _u(scratch[j])
            entries[total + j] = scratch[_BLOCK + j]
        total += found
        begin += _BLOCK
    return total


def mark_words(  # noqa: PLR0917  same
    words: Any,
    count: Any,
    secret: Any,
    first: Any,
    multiplier: Any,
    levels: Any,
    num_levels: Any,
    bits: Any,
    counts: Any,
    table: Any,
    ranks: Any,
    rank_bytes: Any,
    threshold: Any,
    block: Any,
    seen: Any,
    scratch: Any,
    dead: Any,
) -> Any:
    """Set `dead`, zeros at first, for keys of one word whose rank is above the threshold; returns how many match."""
    total, begin = _u(0), _u(0)
    while begin < count:
        size = min(_BLOCK, count - begin)
        for i in range(size):
            block[i] = _finished(_mix(words[begin + i], secret, first, multiplier), first)
        found = _look_up(block, size, levels, num_levels, bits, counts, table, seen, scratch)
        for j in range(found):
            rank = threshold + _u(1)
            if threshold:
                at = _u(scratch[_BLOCK + j]) * rank_bytes
                rank = _u(ranks[at])
                if rank_bytes > _u(1):
                    rank |= _u(ranks[at + _u(1)]) << _u(8)
                if rank_bytes > _u(2):
                    rank |= (_u(ranks[at + _u(2)]) << _u(16)) | (_u(ranks[at + _u(3)]) << _u(24))
            dead[begin + _u(scratch[j])] = rank > threshold
        total += found
        begin += _BLOCK
    return total


SIGNATURES = {
    "hash_words": (hash_words, "u64* u64 u64 u64 u64 u64*"),
    "hash_codes": (hash_codes, "u64* i32* u64 u64*"),
    "hash_bytes32": (hash_bytes, "i32* u8* u64 u64 u64 u64* u64* u64*"),
    "hash_bytes64": (hash_bytes, "i64* u8* u64 u64 u64 u64* u64* u64*"),
    "finish": (finish, "u64* u64 u64"),
    "prefixes32": (prefixes, "i32* u8* u64 u64 u64*"),
    "prefixes64": (prefixes, "i64* u8* u64 u64 u64*"),
    "same_bytes32": (same_bytes, "i32* u8* u64 i64* i64* u8* u64 i64* u64 u8*"),
    "same_bytes64": (same_bytes, "i64* u8* u64 i64* i64* u8* u64 i64* u64 u8*"),
    "set_bits": (set_bits, "u64* u64 u64 u64 u64*"),
    "count_bits": (count_bits, "u64* u64 u64 u32*"),
    "place": (place, "u64* u32* u64 u64 u64 u64* u32* u64* u32* u64*"),
    "find": (find, "u64* u64 u64* u64 u64* u32* u64* u64* u64* u32* u32* u32*"),
    "mark_words": (
        mark_words,
        "u64* u64 u64 u64 u64 u64* u64 u64* u32* u64* u8* u64 u64 u64* u64* u32* u8*",
    ),
}
"""By name: the function, and its parameters: numbers, and pointers to the values of arrays. All return a number."""
