"""The kernels of the engine: hashing and comparing keys, hash tables, footers of Parquet files.

Their callers also contain the same computations in NumPy. Kernels of change events are in `pipelines/jsonscan/`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nevermore.scan_core.native.avro_kernels import read_long, read_number
from nevermore.scan_core.native.machine_code import declare_pointer_kernels, inlined

u = np.uint64


@inlined
def splitmix(number: Any) -> Any:
    """`keys.columns.splitmix`."""
    mixed = number + u(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> u(30))) * u(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> u(27))) * u(0x94D049BB133111EB)
    return mixed ^ (mixed >> u(31))


@inlined
def mix(word: Any, secret: Any, first: Any, multiplier: Any) -> Any:
    """The contribution of a word to its row's hash."""
    mixed = (word ^ secret) * first
    return (mixed ^ (mixed >> u(32))) * multiplier


@inlined
def ones(word: Any) -> Any:
    """The number of bits that are set; LLVM recognises this form and emits a single instruction."""
    word -= (word >> u(1)) & u(0x5555555555555555)
    word = (word & u(0x3333333333333333)) + ((word >> u(2)) & u(0x3333333333333333))
    word = (word + (word >> u(4))) & u(0x0F0F0F0F0F0F0F0F)
    return (word * u(0x0101010101010101)) >> u(56)


@inlined
def word_at(data: Any, place: Any) -> Any:
    """Eight bytes, little-endian."""
    low = u(data[place]) | (u(data[place + u(1)]) << u(8))
    low |= (u(data[place + u(2)]) << u(16)) | (u(data[place + u(3)]) << u(24))
    high = u(data[place + u(4)]) | (u(data[place + u(5)]) << u(8))
    high |= (u(data[place + u(6)]) << u(16)) | (u(data[place + u(7)]) << u(24))
    return low | (high << u(32))


@inlined
def word_of(data: Any, data_end: Any, place: Any, end: Any) -> Any:
    """The word at `place` of a string that ends at `end`, zero-padded; nothing is read behind `data_end`."""
    if place + u(8) <= data_end:
        word = word_at(data, place)
        if end - place < u(8):
            word &= (u(1) << ((end - place) * u(8))) - u(1)
        return word
    word, shift = u(0), u(0)
    while place < end and shift < u(64):
        word |= u(data[place]) << shift
        place, shift = place + u(1), shift + u(8)
    return word


_LOOP_WORDS = u(8)
"""`keys.columns.LOOP_WORDS`."""


def hash_bytes(  # noqa: PLR0917  same
    offsets: Any, data: Any, rows: Any, data_end: Any, first: Any, secrets: Any, roots: Any, total: Any
) -> Any:
    """Add the contribution of the byte string of each row (`keys.columns._hash_bytes`).

    `secrets` holds, for each word of the loop, its secret, its multiplier and what zeros contribute; `roots` those of
    later words and the multiplier of the length.
    """
    for row in range(rows):
        place, end = u(offsets[row]), u(offsets[row + u(1)])
        added = (end - place) * roots[u(2)]
        position = u(0)
        while place < end and position < _LOOP_WORDS:
            word = word_of(data, data_end, place, end)
            at = position * u(3)
            added += mix(word, secrets[at], first, secrets[at + u(1)]) - secrets[at + u(2)]
            place, position = place + u(8), position + u(1)
        while place < end:
            word = word_of(data, data_end, place, end)
            secret = splitmix(roots[u(0)] + position)
            multiplier = splitmix(roots[u(1)] + position) | u(1)
            added += mix(word, secret, first, multiplier) - mix(u(0), secret, first, multiplier)
            place, position = place + u(8), position + u(1)
        total[row] += added
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
        row, other = u(rows[pair]), u(other_rows[pair])
        place, end = u(offsets[row]), u(offsets[row + u(1)])
        other_place, other_stop = u(other_offsets[other]), u(other_offsets[other + u(1)])
        if end - place != other_stop - other_place:
            same[pair] = 0
            continue
        while place < end:
            mine = word_of(data, data_end, place, end)
            if mine != word_of(other_data, other_end, other_place, other_stop):
                same[pair] = 0
                break
            place, other_place = place + u(8), other_place + u(8)
    return pairs


_HASH_BYTES = "u8*[data_end] u64 u64 u64 u64*[24] u64*[3] u64*[rows]"
_SAME_BYTES = "u8*[data_end] u64 i64*[pairs] i64*[1] u8*[other_end] u64 i64*[pairs] u64 u8*[pairs]"
HASH_SIGNATURES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "hash_bytes32": (hash_bytes, f"i32*[rows+1] {_HASH_BYTES}"),
    "hash_bytes64": (hash_bytes, f"i64*[rows+1] {_HASH_BYTES}"),
    "same_bytes32": (same_bytes, f"i32*[1] {_SAME_BYTES}"),
    "same_bytes64": (same_bytes, f"i64*[1] {_SAME_BYTES}"),
}
"""By name: the function and its parameters, numbers or pointers to the values of arrays. All return a number.

In brackets is how many values an array has at least, in terms of numbers that are passed with it; calls are refused
otherwise. What values point at, the caller proves: codes lie among the values that they stand for, offsets ascend up to
the end of the data (Arrow's arrays); rows have an offset and one behind it.
"""


_BYTE_T, _DOUBLE_T, _BINARY_T, _LIST_T, _SET_T, _STRUCT_T = 3, 7, 8, 9, 10, 12
"""Wire types of Thrift's compact protocol; 1 and 2 are booleans, 4 to 6 integers (`files/parquet/thrift.py`)."""
_MAX_THRIFT_DEPTH = 32


@inlined
def _list_header(data: Any, size: Any, at: Any) -> Any:
    """(number of elements, wire type of elements, where they begin); -1 as position if the header is cut off."""
    if at >= size:
        return 0, 0, -1
    header = data[at] + 0
    count, kind, at = header >> 4, header & 15, at + 1
    if count == 15:
        count, at = read_number(data, at, size)
    return count, kind, at


@inlined
def _skip(  # noqa: C901, PLR0912  one loop over bytes
    data: Any, size: Any, at: Any, kind: Any, stack: Any
) -> Any:
    """The position behind a Thrift value; -1 if it is cut off, a map, or nested too deeply.

    `stack` holds two numbers for each open value: elements left and their type; (0, struct) for structs.
    """
    depth, in_list = 0, False
    while True:
        if kind in (1, 2):
            if in_list:
                at += 1
        elif kind == _BYTE_T:
            at += 1
        elif kind >= 4 and kind <= 6:
            _, at = read_number(data, at, size)
        elif kind == _DOUBLE_T:
            at += 8
        elif kind == _BINARY_T:
            length, at = read_number(data, at, size)
            if at < 0 or length < 0 or length > size - at:
                return -1
            at += length
        elif kind in (_LIST_T, _SET_T):
            count, element, at = _list_header(data, size, at)
            if at < 0 or count < 0 or count > size - at or depth >= _MAX_THRIFT_DEPTH:
                return -1
            if count > 0:
                stack[depth * 2], stack[depth * 2 + 1] = count, element
                depth += 1
        elif kind == _STRUCT_T:
            if depth >= _MAX_THRIFT_DEPTH:
                return -1
            stack[depth * 2], stack[depth * 2 + 1] = 0, _STRUCT_T
            depth += 1
        else:
            return -1
        if at < 0 or at > size:
            return -1
        # the next value of the innermost list or struct that is not at its end
        is_found = False
        while depth > 0 and not is_found:
            left, element = stack[depth * 2 - 2], stack[depth * 2 - 1]
            if left > 0:
                kind, in_list, is_found = element, True, True
                if left > 1:
                    stack[depth * 2 - 2] = left - 1
                else:
                    depth -= 1
            else:
                if at >= size:
                    return -1
                header = data[at] + 0
                at += 1
                if header == 0:
                    depth -= 1
                else:
                    kind, in_list, is_found = header & 15, False, True
                    if header >> 4 == 0:
                        _, at = read_number(data, at, size)
                        if at < 0:
                            return -1
        if not is_found:
            return at


def find_column_chunks(  # noqa: C901, PLR0912, PLR0917  one pass over bytes; kernels take no objects
    data: Any, size: Any, at: Any, num_groups: Any, num_leaves: Any, stack: Any, groups: Any, places: Any
) -> Any:
    """Find where the column chunks of a Parquet footer are described, and the bytes and rows that its row groups state.

    Returns the position behind them; 0 if something is damaged or unusual, which `files/parquet/thrift.py` reads.
    """
    for group in range(num_groups):
        field, found = 0, 0
        while True:
            if at >= size:
                return 0
            header = data[at] + 0
            at += 1
            if header == 0:
                break
            kind = header & 15
            field += header >> 4
            if header >> 4 == 0:
                return 0
            if field == 1:
                if kind != _LIST_T:
                    return 0
                count, element, at = _list_header(data, size, at)
                if at < 0 or count != num_leaves or (count > 0 and element != _STRUCT_T):
                    return 0
                for leaf in range(num_leaves):
                    places[group * num_leaves + leaf] = at
                    at = _skip(data, size, at, _STRUCT_T, stack)
                    if at < 0:
                        return 0
            elif field in (2, 3):
                if kind < 4 or kind > 6:
                    return 0
                groups[group * 2 + field - 2], at = read_long(data, at, size)
                if at < 0:
                    return 0
            else:
                at = _skip(data, size, at, kind, stack)
                if at < 0:
                    return 0
            if field < 4:
                found |= 1 << field
        if found != 14:
            return 0
    return at


RECORD_SIGNATURES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "find_column_chunks": (
        find_column_chunks,
        "u8*[size] i64 i64 i64 i64 i64*[64] i64*[2*num_groups] i64*[num_groups*num_leaves]",
    ),
}
"""As in `HASH_SIGNATURES`. These read bytes of files: for any input, nothing outside of `data` is read."""


_BLOCK = u(2048)
"""Rows handled at a time, so that their data stays in the L2 cache; `keys.lookup.BLOCK_ROWS`."""
_PART_SHIFT = u(56)
"""256 partitions, by the leading bits: as many places to write to as the first level of the page tables bears."""


def partition(hashes: Any, count: Any, ends: Any, parted: Any, rows: Any) -> Any:
    """Group hashes by their leading bits, in their order, so that placing them stays in the cache; fills `rows`.

    `ends` are 257 zeros.
    """
    for row in range(count):
        ends[(hashes[row] >> _PART_SHIFT) + u(1)] += u(1)
    for part in range(u(1), u(257)):
        ends[part] += ends[part - u(1)]
    for row in range(count):
        part = hashes[row] >> _PART_SHIFT
        at = ends[part]
        ends[part] = at + u(1)
        parted[at] = hashes[row]
        rows[at] = row
    return count


def set_bits(hashes: Any, count: Any, multiplier: Any, shift: Any, bits: Any) -> Any:
    """Set the bit of each hash in one level of a table."""
    for i in range(count):
        bit = (hashes[i] * multiplier) >> shift
        bits[bit >> u(6)] |= u(1) << (bit & u(63))
    return count


def count_bits(bits: Any, words: Any, first_entry: Any, counts: Any) -> Any:
    """Fill `counts` with the number of bits before each word of a level; returns it for the level's end."""
    entries = first_entry
    for word in range(words):
        counts[word] = entries
        entries += ones(bits[word])
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
    left = u(0)
    for i in range(count):
        value = hashes[i]
        bit = (value * multiplier) >> shift
        word = bit >> u(6)
        entry = u(counts[word]) + ones(bits[word] & ((u(1) << (bit & u(63))) - u(1)))
        taken = table_rows[entry]
        if taken == np.uint32(0xFFFFFFFF):
            table[entry] = value
            table_rows[entry] = rows[i]
        elif table[entry] == value:
            at = repeats[u(0)] * u(2) + u(1)
            repeats[at], repeats[at + u(1)] = u(taken), u(rows[i])
            repeats[u(0)] += u(1)
            table_rows[entry] = rows[i]
        else:
            hashes[left], rows[left] = value, rows[i]
            left += u(1)
    return left


@inlined
def _look_up(  # noqa: PLR0917  same
    block: Any, size: Any, levels: Any, num_levels: Any, bits: Any, counts: Any, table: Any, seen: Any, scratch: Any
) -> Any:
    """Find a block of hashes in the table; returns how many are in it.

    `scratch` holds, in this order, a block's worth of each: places found, entries found, places that wait for the next
    level, places whose bit is set. Three passes a level, so that the accesses to memory of many hashes overlap.
    """
    waiting, passed = _BLOCK * u(2), _BLOCK * u(3)
    shift, count = levels[u(1)], u(0)
    for i in range(size):
        bit = block[i] >> shift
        scratch[passed + count] = i
        count += (bits[bit >> u(6)] >> (bit & u(63))) & u(1)
    found = _resolve(block, count, u(1), shift, u(0), bits, counts, table, seen, scratch, u(0))
    candidates = count - found
    for level in range(u(1), num_levels):
        if candidates == u(0):
            break
        multiplier, shift = levels[level * u(3)], levels[level * u(3) + u(1)]
        first_word = levels[level * u(3) + u(2)]
        count = u(0)
        for j in range(candidates):
            i = scratch[waiting + j]
            bit = (block[u(i)] * multiplier) >> shift
            scratch[passed + count] = i
            count += (bits[first_word + (bit >> u(6))] >> (bit & u(63))) & u(1)
        before = found
        found = _resolve(block, count, multiplier, shift, first_word, bits, counts, table, seen, scratch, found)
        candidates = count - (found - before)
    return found


@inlined
def _resolve(  # noqa: PLR0917  same
    block: Any,
    count: Any,
    multiplier: Any,
    shift: Any,
    first_word: Any,
    bits: Any,
    counts: Any,
    table: Any,
    seen: Any,
    scratch: Any,
    found: Any,
) -> Any:
    """Split the hashes whose bit is set: those that own the entry are found, the others wait for the next level."""
    at_entry, waiting, passed = _BLOCK, _BLOCK * u(2), _BLOCK * u(3)
    for j in range(count):
        bit = (block[u(scratch[passed + j])] * multiplier) >> shift
        word = first_word + (bit >> u(6))
        entry = u(counts[word]) + ones(bits[word] & ((u(1) << (bit & u(63))) - u(1)))
        scratch[at_entry + found + j] = entry
        seen[j] = table[entry]
    candidates, hits = u(0), found
    for j in range(count):
        i, entry = scratch[passed + j], scratch[at_entry + found + j]
        is_hit = u(seen[j] == block[u(i)])
        scratch[hits] = i
        scratch[at_entry + hits] = entry
        hits += is_hit
        scratch[waiting + candidates] = i
        candidates += u(1) - is_hit
    return hits


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
    total, begin = u(0), u(0)
    while begin < count:
        size = min(_BLOCK, count - begin)
        for i in range(size):
            block[i] = hashes[begin + i]
        found = _look_up(block, size, levels, num_levels, bits, counts, table, seen, scratch)
        for j in range(found):
            rows[total + j] = begin + u(scratch[j])
            entries[total + j] = scratch[_BLOCK + j]
        total += found
        begin += _BLOCK
    return total


_SCRATCH = "u64*[2048] u64*[2048] u32*[8192]"
TABLE_SIGNATURES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "partition": (partition, "u64*[count] u64 u64*[257] u64*[count] u32*[count]"),
    "set_bits": (set_bits, "u64*[count] u64 u64 u64 u64*[1]"),
    "count_bits": (count_bits, "u64*[words] u64 u64 u32*[words]"),
    "place": (
        place,
        "u64*[count] u32*[count] u64 u64 u64 u64*[1] u32*[1] u64*[count] u32*[count] u64*[2*count+1]",
    ),
    "find": (
        find,
        f"u64*[count] u64 u64*[3*num_levels] u64 u64*[1] u32*[1] u64*[0] {_SCRATCH} u32*[count] u32*[count]",
    ),
}
"""As in `HASH_SIGNATURES`. Of a table the caller proves that each level has 2**(64 - shift) bits, and that there are as many
entries as bits are set: `keys.lookup.build_hash_table` makes no others.
"""

for _table in (HASH_SIGNATURES, TABLE_SIGNATURES, RECORD_SIGNATURES):
    declare_pointer_kernels(_table)
