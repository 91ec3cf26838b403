"""Kernels over masked numbers: `read/aggregate.py`, and ranks of close integers: `deletes/dense_index.py`.

A float sum is kept in as many lanes as its NumPy counterpart has, so that both add in the same order.
"""

from typing import Any

from scan_core.native.arithmetic import u

_LANES = u(64)
"""`aggregate.LANES`."""


def sum_floats(values: Any, mask: Any, count: Any, lanes: Any) -> Any:
    """Add the values under the mask to the lanes, value i to lane i % 64."""
    whole = count - count % _LANES
    begin = u(0)
    while begin < whole:
        for lane in range(_LANES):
            value = values[begin + lane]
            lanes[lane] += value if mask[begin + lane] else 0.0
        begin += _LANES
    for i in range(whole, count):
        lanes[i - whole] += values[i] if mask[i] else 0.0
    return count


def sum_integers(values: Any, mask: Any, count: Any, parts: Any) -> Any:
    """Add the values under the mask to two parts: upper halves, which are signed, and lower halves."""
    high, low = parts[u(0)], parts[u(1)]
    for i in range(count):
        value = values[i]
        value = value if mask[i] else 0
        high += value >> 32
        low += value & 0xFFFFFFFF
    parts[u(0)], parts[u(1)] = high, low
    return count


def extremes(values: Any, mask: Any, count: Any, found: Any) -> Any:
    """Lower and raise the two numbers found so far to those of the values under the mask."""
    lowest, highest = found[u(0)], found[u(1)]
    for i in range(count):
        value = values[i]
        lowest = min(lowest, value if mask[i] else lowest)
        highest = max(highest, value if mask[i] else highest)
    found[u(0)], found[u(1)] = lowest, highest
    return count


def mark_close(  # noqa: PLR0917  kernels take pointers and numbers, no objects
    values: Any, count: Any, lower: Any, ranks: Any, outside: Any, threshold: Any, dead: Any
) -> Any:
    """Set `dead` where the rank of value - lower is above the threshold; slots from `outside` on have rank 0."""
    for i in range(count):
        slot = min(u(values[i]) - lower, outside)
        dead[i] = ranks[slot] > threshold
    return count


SIGNATURES = {
    "sum_f64": (sum_floats, "f64*[count] u8*[count] u64 f64*[64]"),
    "sum_i64": (sum_integers, "i64*[count] u8*[count] u64 i64*[2]"),
    "sum_i32": (sum_integers, "i32*[count] u8*[count] u64 i64*[2]"),
    "extremes_i64": (extremes, "i64*[count] u8*[count] u64 i64*[2]"),
    "extremes_i32": (extremes, "i32*[count] u8*[count] u64 i64*[2]"),
    "mark_close_i64": (mark_close, "i64*[count] u64 u64 u8*[outside+1] u64 u64 u8*[count]"),
    "mark_close_i32": (mark_close, "i32*[count] u64 u64 u8*[outside+1] u64 u64 u8*[count]"),
}
"""As in `hashes.py`."""
