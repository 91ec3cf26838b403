"""Kernels that build and search tables of hashes: `index/hash_table.py`."""

from typing import Any

import numpy as np

from scan_core.native.arithmetic import finished, mix, ones, u
from scan_core.native.machine_code import inlined

_BLOCK = u(2048)
"""Rows handled at a time, so that what is known of them stays in the L2 cache; `hash_table.BLOCK_ROWS`."""
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
    """Those of a block of hashes that are in the table; returns how many.

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
    """Of hashes whose bit is set those that have its entry are found, the others wait."""
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
    total, begin = u(0), u(0)
    while begin < count:
        size = min(_BLOCK, count - begin)
        for i in range(size):
            block[i] = finished(mix(words[begin + i], secret, first, multiplier), first)
        found = _look_up(block, size, levels, num_levels, bits, counts, table, seen, scratch)
        for j in range(found):
            rank = threshold + u(1)
            if threshold:
                at = u(scratch[_BLOCK + j]) * rank_bytes
                rank = u(ranks[at])
                if rank_bytes > u(1):
                    rank |= u(ranks[at + u(1)]) << u(8)
                if rank_bytes > u(2):
                    rank |= (u(ranks[at + u(2)]) << u(16)) | (u(ranks[at + u(3)]) << u(24))
            dead[begin + u(scratch[j])] = rank > threshold
        total += found
        begin += _BLOCK
    return total


_SCRATCH = "u64*[2048] u64*[2048] u32*[8192]"
SIGNATURES = {
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
    "mark_words": (
        mark_words,
        f"u64*[count] u64 u64 u64 u64 u64*[3*num_levels] u64 u64*[1] u32*[1] u64*[0] u8*[0] u64 u64 {_SCRATCH} u8*[count]",
    ),
}
"""As in `hashes.py`. Of a table the caller proves that each level has 2**(64 - shift) bits, and that there are as many
entries, and ranks, as bits are set: `hash_table.build_hash_table` makes no others.
"""
