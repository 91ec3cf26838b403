"""Kernels that hash keys and compare them: `index/key_hash.py` and `index/key_match.py`."""

from typing import Any

from scan_core.native.arithmetic import finished, mix, splitmix, u, word_of

_LOOP_WORDS = u(8)
"""`key_columns.LOOP_WORDS`."""


def hash_words(  # noqa: PLR0917  kernels take pointers and numbers, no objects
    words: Any, rows: Any, secret: Any, first: Any, multiplier: Any, total: Any
) -> Any:
    """Add what one word of each row contributes to its hash."""
    for row in range(rows):
        total[row] += mix(words[row], secret, first, multiplier)
    return rows


def hash_codes(of_values: Any, codes: Any, rows: Any, total: Any) -> Any:
    """Add what the value that each row points at contributes."""
    for row in range(rows):
        total[row] += of_values[u(codes[row])]
    return rows


def hash_bytes(  # noqa: PLR0917  same
    offsets: Any, data: Any, rows: Any, data_end: Any, first: Any, secrets: Any, roots: Any, total: Any
) -> Any:
    """Add what the byte string of each row contributes (`key_hash._hash_bytes`).

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


def finish(hashes: Any, rows: Any, first: Any) -> Any:
    """Turn sums into hashes."""
    for row in range(rows):
        hashes[row] = finished(hashes[row], first)
    return rows


def prefixes(offsets: Any, data: Any, rows: Any, data_end: Any, out: Any) -> Any:
    """The first eight bytes of each string as a number that keeps their order."""
    for row in range(rows):
        word, place = u(0), u(offsets[row])
        end = min(u(offsets[row + u(1)]), place + u(8))
        if end > place:
            word = word_of(data, data_end, place, end)
        word = ((word & u(0x00FF00FF00FF00FF)) << u(8)) | ((word >> u(8)) & u(0x00FF00FF00FF00FF))
        word = ((word & u(0x0000FFFF0000FFFF)) << u(16)) | ((word >> u(16)) & u(0x0000FFFF0000FFFF))
        out[row] = (word << u(32)) | (word >> u(32))
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


def occupy(prefixes: Any, rows: Any, base: Any, shift: Any, occupied: Any) -> Any:
    """Flag the buckets that prefixes fall into (`key_summary.summarise`)."""
    for row in range(rows):
        occupied[(prefixes[row] - base) >> shift] = 1
    return rows


_HASH_BYTES = "u8*[data_end] u64 u64 u64 u64*[24] u64*[3] u64*[rows]"
_SAME_BYTES = "u8*[data_end] u64 i64*[pairs] i64*[1] u8*[other_end] u64 i64*[pairs] u64 u8*[pairs]"
SIGNATURES = {
    "hash_words": (hash_words, "u64*[rows] u64 u64 u64 u64 u64*[rows]"),
    "hash_codes": (hash_codes, "u64*[0] i32*[rows] u64 u64*[rows]"),
    "hash_bytes32": (hash_bytes, f"i32*[rows+1] {_HASH_BYTES}"),
    "hash_bytes64": (hash_bytes, f"i64*[rows+1] {_HASH_BYTES}"),
    "finish": (finish, "u64*[rows] u64 u64"),
    "prefixes32": (prefixes, "i32*[rows+1] u8*[data_end] u64 u64 u64*[rows]"),
    "prefixes64": (prefixes, "i64*[rows+1] u8*[data_end] u64 u64 u64*[rows]"),
    "occupy": (occupy, "u64*[rows] u64 u64 u64 u8*[1]"),
    "same_bytes32": (same_bytes, f"i32*[1] {_SAME_BYTES}"),
    "same_bytes64": (same_bytes, f"i64*[1] {_SAME_BYTES}"),
}
"""By name: the function and its parameters, numbers or pointers to the values of arrays. All return a number.

In brackets is how many values an array has at least, in terms of numbers that are passed with it; calls are refused
otherwise. What values point at, the caller proves: codes lie among the values that they stand for, offsets ascend up to
the end of the data (Arrow's arrays), rows have an offset and one behind it, buckets were counted from the lowest prefix
to the highest.
"""
