"""Kernels that read values of Avro, which are laid out one after the other without any marks.

What to read is a program: a table with one row per step, of its kind, its slot among the results, and two numbers. Each step
reads what it is named after, from where the step before it has ended.
Python runs the same code where there is no machine code (`compiled.kernel_or_plain`): all numbers here are signed.
"""

# ruff: noqa: ARG001, C901, PLR0912, PLR0915, PLR0917 - one loop over bytes; kernels take pointers, and numbers that bound them

from collections.abc import Callable, Mapping
from typing import Any

from nevermore.scan_core.native.machine_code import callee, declare_pointer_kernels, inlined

LONG, SIZED, FIXED, UNION, JUMP, ARRAY, NEXT, RAW, END = range(9)
"""Kinds of steps.

FIXED has the number of bytes. UNION has the number of branches, and where the steps of these are in a list of them; JUMP is to
the step that follows all branches. ARRAY, which is also a map, has the step that follows the last item; the steps of an item
end with NEXT; if all of these are LONG or SIZED, it has their number. An array has two slots. The steps between RAW and END find where a value ends, and have no results.
"""
KIND, SLOT, SIZE, FIRST, STEP = range(5)
"""Columns of a program, and their number."""
BODY, LEFT, BEGIN, STOP, TOTAL, FRAME = range(6)
"""What the stack holds of each array: the step of an item, items left in the block, where the item begins, where the block
must end or -1, items in all blocks so far; and how many numbers these are.
"""
_MAX = 2**63 - 1


@inlined
def read_number(data: Any, at: Any, end: Any) -> Any:
    """(the 64 bits of a number at a position, the position after it); -1 as position if it is cut or has more."""
    value, shift = 0, 0
    while at < end:
        byte = data[at] + 0
        at += 1
        if shift == 63 and byte > 1:
            return 0, -1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1


@inlined
def read_long(data: Any, at: Any, end: Any) -> Any:
    """The same of a signed number: small ones of either sign are short."""
    value, at = read_number(data, at, end)
    return ((value >> 1) & _MAX) ^ -(value & 1), at


@callee
def read_block(data: Any, at: Any, end: Any) -> Any:
    """(number of items of a block, where it must end or -1, position of its first item); -1 as position if it is broken."""
    count, at = read_long(data, at, end)
    if at < 0 or not at - end <= count <= end - at:
        return 0, -1, -1
    if count >= 0:
        return count, -1, at
    size, at = read_long(data, at, end)
    if at < 0 or size < 0 or size > end - at:
        return 0, -1, -1
    return -count, at + size, at


@inlined
def read_value(
    data: Any, at: Any, end: Any, program: Any, num_steps: Any, targets: Any, column: Any, words: Any, stops: Any,
    room: Any, stack: Any,
) -> Any:  # fmt: skip
    """Read one value; returns the position after it, or -1 if it is broken."""
    step, depth = 0, 0
    while step < num_steps:
        kind, place = program[step * STEP + KIND], program[step * STEP + SLOT] * room + column
        size = program[step * STEP + SIZE]
        step += 1
        word, stop = 0, 0
        if kind == LONG:
            word, at = read_long(data, at, end)
            if at < 0:
                return -1
        elif kind == SIZED:
            size, word = read_long(data, at, end)
            if word < 0 or size < 0 or size > end - word:
                return -1
            at = stop = word + size
        elif kind == UNION:
            word, at = read_long(data, at, end)
            if at < 0 or word < 0 or word >= size:
                return -1
            step = targets[program[(step - 1) * STEP + FIRST] + word]
        elif kind == JUMP:
            step = size
            continue
        elif kind == FIXED:
            if size > end - at:
                return -1
            word = at
            at = stop = at + size
        elif kind == RAW:
            if depth == 0:
                words[place] = at
            depth += 1
            continue
        elif kind == END:
            depth -= 1
            if depth == 0:
                stops[place] = at
            continue
        elif kind == ARRAY:
            word = at
            items, stop, at = read_block(data, at, end)
            if at < 0:
                return -1
            simple, total = program[step * STEP - STEP + FIRST], 0
            while items > 0 and simple > 0:  # half of the time of going through the steps of each item
                for _ in range(items):
                    for part in range(step, step + simple):
                        number, at = read_long(data, at, end)
                        if at >= 0 and program[part * STEP + KIND] == SIZED:
                            at = at + number if number >= 0 and number <= end - at else -1
                        if at < 0:
                            return -1
                if stop >= 0 and stop != at:
                    return -1
                total += items
                items, stop, at = read_block(data, at, end)
                if at < 0:
                    return -1
            if total > 0 and depth == 0:
                words[place + room] = total
            if items > 0:
                top = depth * FRAME
                stack[top + BODY], stack[top + LEFT], stack[top + BEGIN] = step, items, at
                stack[top + STOP], stack[top + TOTAL] = stop, items
                if depth == 0:
                    words[place] = word
                depth += 1
                continue
            stop = at
            step = size
        else:
            top = (depth - 1) * FRAME
            if at <= stack[top + BEGIN]:
                return -1  # items without bytes: nothing limits their number
            if stack[top + LEFT] > 1:
                stack[top + LEFT] -= 1
                stack[top + BEGIN] = at
                step = stack[top + BODY]
                continue
            if stack[top + STOP] >= 0 and stack[top + STOP] != at:
                return -1
            items, stop, at = read_block(data, at, end)
            if at < 0:
                return -1
            if items > 0:
                stack[top + LEFT], stack[top + BEGIN], stack[top + STOP] = items, at, stop
                stack[top + TOTAL] += items
                step = stack[top + BODY]
                continue
            depth -= 1
            if depth == 0:
                place = program[(stack[top + BODY] - 1) * STEP + SLOT] * room + column
                words[place + room] = stack[top + TOTAL]
                stops[place] = at
            continue
        if depth == 0:
            words[place] = word
            stops[place] = stop
    return at


def read_values(
    data: Any, size: Any, starts: Any, ends: Any, counts: Any, num_spans: Any, of_arrays: Any, place: Any, program: Any,
    num_steps: Any, targets: Any, num_targets: Any, words: Any, stops: Any, room: Any, slots: Any, bad: Any, stack: Any,
    depth: Any,
) -> Any:  # fmt: skip
    """Read as many values as there is room for; 0 if a span of several is broken.

    Args:
        data: all bytes.
        size: how many these are.
        starts: where each span of values begins.
        ends: where each ends.
        counts: how many values each holds, and nothing else.
        num_spans: how many spans there are.
        of_arrays: whether spans are arrays, whose items are read, all in one call.
        place: where to go on, and moves: the span, the byte, and the values of it that were read.
        program: what to read.
        num_steps: its steps.
        targets: where the branches of unions begin.
        num_targets: how many branches all unions have.
        words: receives, per slot and value, a number, which branch of a union it is, or where bytes, an array or a raw value
            begin; the second slot of an array is the number of its items.
        stops: receives, per slot and value, where bytes, an array or a raw value end.
        room: how many values to read at most.
        slots: how many results each has.
        bad: marks values that are broken, if they are alone in their span; their other results mean nothing.
        stack: room for arrays within arrays.
        depth: how many these are.
    """
    span, at, done, found = place[0], place[1], place[2], 0
    while span < num_spans:
        end, count, items = ends[span] + 0, counts[span] + 0, 0
        if done == 0:
            at = starts[span] + 0
        if at < 0 or at > end or end > size:
            return 0
        while done < count and found < room and at >= 0:
            if of_arrays:
                if items == 0:
                    items, _, at = read_block(data, at, end)
                items -= 1
            if at >= 0:
                at = read_value(data, at, end, program, num_steps, targets, found, words, stops, room, stack)
            if at >= 0:
                found += 1
                done += 1
        if done < count and at >= 0:
            break
        if at < 0 or (at != end and of_arrays == 0):
            if count != 1:
                return 0
            found += 1 - done
            bad[found - 1] = 1
        span += 1
        done = 0
    place[0], place[1], place[2] = span, at, done
    return 1


def find_in_pairs(
    data: Any, size: Any, starts: Any, ends: Any, num_rows: Any, key: Any, of_bytes: Any, found: Any, lengths: Any
) -> Any:
    """Find `key` in arrays of pairs: its number, or the position of its bytes, and its length.

    The first pair of a key counts. Lengths are -1 where there is none, also in an array that is cut off, and 0 for
    numbers; returns how many have one.
    """
    hits = 0
    for row in range(num_rows):
        lengths[row] = -1
        at, end, items = starts[row] + 0, ends[row] + 0, 0
        while at >= 0 and at < end <= size:
            if items == 0:
                items, _, at = read_block(data, at, end)
                if items == 0 or at < 0:
                    break
            items -= 1
            own, at = read_long(data, at, end)
            if at < 0:
                break
            number, at = read_long(data, at, end)
            if at < 0 or (of_bytes != 0 and (number < 0 or number > end - at)):
                break
            if own == key:
                found[row] = at if of_bytes != 0 else number
                lengths[row] = number if of_bytes != 0 else 0
                hits += 1
                break
            if of_bytes != 0:
                at += number
    return hits


_SPANS = "u8*[size] i64 i64*[num_spans] i64*[num_spans] i64*[num_spans] i64"
_CODE = "i64*[3] i64*[4*num_steps] i64 i64*[num_targets] i64"
SIGNATURES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "read_values": (
        read_values,
        f"{_SPANS} i64 {_CODE} i64*[slots*room] i32*[slots*room] i64 i64 u8*[room] i64*[5*depth] i64",
    ),
    "find_in_pairs": (
        find_in_pairs,
        "u8*[size] i64 i64*[num_rows] i64*[num_rows] i64 i64 i64 i64*[num_rows] i64*[num_rows]",
    ),
}
"""As in `kernels.HASH_SIGNATURES`. These read bytes of files: for any input, nothing outside of `data` is read. The caller proves
that programs are those of `metadata/avro_values.py`.
"""
declare_pointer_kernels(SIGNATURES)
