"""Compiled functions that read Avro values of one type, which are laid out one after the other without any marks.

What to read is a program: a table with one row per step, of its kind, its slot among the results, and two numbers. Each step
reads what it is named after, from where the step before it has ended.
"""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, SIM109 - one compiled loop per kernel, which takes arrays one by one

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan.value_kernels import require
from nevermore.scan_core.native import callee, inlined, kernel

BOOLEAN, INT, LONG, FIXED32, FIXED64, SIZED, FIXED, ENUM, UNION, JUMP, ARRAY, NEXT = range(12)
"""Kinds of steps.

FIXED has the number of bytes, ENUM that of symbols. UNION has the number of branches, and where the steps of these are in a
list of them; JUMP is to the step that follows all branches. ARRAY, which is also a map, has the step that follows the last
item; the steps of an item end with NEXT. An array has two slots.
"""
KIND, SLOT, SIZE, FIRST = range(4)
"""Columns of a program."""
BODY, LEFT, BEGIN, STOP, TOTAL = range(5)
"""Columns of the stack of arrays: the step of an item, items left in the block, where the item begins, where the block must
end or -1, items in all blocks so far."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
Program = NDArray[np.int32]
Words = NDArray[np.int64]
Stack = NDArray[np.int64]


@callee
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(64 bits of the number at a position, the position after it); -1 as position if it is cut or too long."""
    value = np.uint64(0)
    for k in range(10):
        if at + k >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at + k])
        if k == 9 and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        value |= (byte & np.uint64(127)) << np.uint64(7 * k)
        if byte < np.uint64(128):
            return np.int64(value), np.int64(at + k + 1)
    return np.int64(0), np.int64(-1)


@callee
def read_fixed(data: Bytes, at: int, end: int, size: int) -> tuple[int, int]:
    """(the bits of `size` bytes, the position after them); -1 as position if these are cut."""
    if end - at < size:
        return np.int64(0), np.int64(-1)
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return np.int64(value), np.int64(at + size)


@inlined
def read_long(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(the number at a position, the position after it); -1 as position if it is cut or has more than 64 bits."""
    if at < end and data[at] < 128:
        byte = np.int64(data[at])
        return (byte >> 1) ^ -(byte & 1), at + 1
    bits, after = read_varint(data, at, end)
    return np.int64(np.uint64(bits) >> np.uint64(1)) ^ -(bits & 1), after


@callee
def read_block(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """(number of items of a block, where it must end or -1, position of its first item); -1 as position if it is broken."""
    count, first = read_long(data, at, end)
    if first < 0 or count >= 0:
        return count, np.int64(-1), first
    size, first = read_long(data, first, end)
    if first < 0 or size < 0 or size > end - first or count == np.iinfo(np.int64).min:
        return np.int64(0), np.int64(-1), np.int64(-1)
    return -count, first + size, first


@callee
def require_program(program: Program, targets: Places, words: Words, stops: NDArray[np.int32], stack: Stack) -> None:
    """Refuse programs with steps that lead backwards or nowhere, or results for which there is no room."""
    count, slots = np.int64(len(program)), np.int64(words.shape[0])
    require(program.shape[1] > FIRST and stack.shape[1] > TOTAL)
    require(stops.shape[0] >= slots and stops.shape[1] >= words.shape[1])
    for step in range(count):
        kind, slot = np.int64(program[step, KIND]), np.int64(program[step, SLOT])
        size, first = np.int64(program[step, SIZE]), np.int64(program[step, FIRST])
        require(kind >= BOOLEAN and kind <= NEXT and slot >= 0)
        if kind < JUMP:
            require(slot < slots and size >= 0)
        if kind == UNION:
            require(first >= 0 and first + size <= len(targets))
            for place in range(first, first + size):
                require(targets[place] > step and targets[place] <= count)
        elif kind == JUMP:
            require(size > step and size <= count)
        elif kind == ARRAY:
            require(slot + 1 < slots and size > step and size <= count)


@callee
def read_value(
    data: Bytes,
    at: int,
    end: int,
    program: Program,
    targets: Places,
    column: int,
    words: Words,
    stops: NDArray[np.int32],
    stack: Stack,
) -> int:
    """Read one value; returns the position after it, or -1 if it is broken.

    The caller has proven `program`, that `column` is one of the results, and that `at` to `end` are in the data.
    """
    step, depth, steps = np.int64(0), np.int64(0), np.int64(len(program))
    while step < steps:
        kind, slot = program[step, KIND], program[step, SLOT]
        size = np.int64(program[step, SIZE])
        step += 1
        word, stop = np.int64(0), np.int64(0)
        if kind == LONG or kind == INT:
            word, at = read_long(data, at, end)
            if at < 0 or (kind == INT and (word < -(2**31) or word >= 2**31)):
                return np.int64(-1)
        elif kind == SIZED:
            size, word = read_long(data, at, end)
            if word < 0 or size < 0 or size > end - word:
                return np.int64(-1)
            at = stop = word + size
        elif kind == UNION:
            word, at = read_long(data, at, end)
            if at < 0 or word < 0 or word >= size:
                return np.int64(-1)
            step = np.int64(targets[program[step - 1, FIRST] + word])
        elif kind == JUMP:
            step = size
            continue
        elif kind == FIXED64 or kind == FIXED32:
            word, at = read_fixed(data, at, end, np.int64(8) if kind == FIXED64 else np.int64(4))
            if at < 0:
                return np.int64(-1)
        elif kind == ENUM:
            word, at = read_long(data, at, end)
            if at < 0 or word < 0 or word >= size:
                return np.int64(-1)
        elif kind == BOOLEAN:
            if at >= end or data[at] > 1:
                return np.int64(-1)
            word = np.int64(data[at])
            at += 1
        elif kind == FIXED:
            if size > end - at:
                return np.int64(-1)
            word = at
            at = stop = at + size
        elif kind == ARRAY:
            word = at
            items, stop, at = read_block(data, at, end)
            if at < 0:
                return np.int64(-1)
            if items > 0:
                require(depth < len(stack))
                stack[depth, BODY], stack[depth, LEFT], stack[depth, BEGIN] = step, items, at
                stack[depth, STOP], stack[depth, TOTAL] = stop, items
                stop = np.int64(0)  # known at the end
                if depth == 0:
                    words[slot, column] = word
                depth += 1
                continue
            stop = at
            step = size
        else:
            require(depth > 0)
            top = depth - 1
            if at <= stack[top, BEGIN]:
                return np.int64(-1)  # items without bytes: nothing limits their number
            if stack[top, LEFT] > 1:
                stack[top, LEFT] -= 1
                stack[top, BEGIN] = at
                step = stack[top, BODY]
                continue
            if stack[top, STOP] >= 0 and stack[top, STOP] != at:
                return np.int64(-1)
            items, stop, at = read_block(data, at, end)
            if at < 0:
                return np.int64(-1)
            if items > 0:
                stack[top, LEFT], stack[top, BEGIN], stack[top, STOP] = items, at, stop
                stack[top, TOTAL] += items
                step = stack[top, BODY]
                continue
            depth = top
            if depth == 0:
                slot = program[stack[top, BODY] - 1, SLOT]
                words[slot + 1, column] = stack[top, TOTAL]
                stops[slot, column] = at
            continue
        if depth == 0:
            words[slot, column] = word
            stops[slot, column] = stop
    return at if depth == 0 else np.int64(-1)


@kernel("u8[] i32[] i32[] i32[][] i32[] i64[][]= i32[][]= i64[][]= bool[]=")
def read_messages(
    data: Bytes,
    start: Places,
    end: Places,
    program: Program,
    targets: Places,
    words: Words,
    stops: NDArray[np.int32],
    stack: Stack,
    bad: NDArray[np.bool_],
) -> None:
    """Read messages of one value each.

    Args:
        data: bytes of all messages.
        start: begin of each message.
        end: end of each message.
        program: what to read.
        targets: where the branches of unions begin.
        words: receives, per slot and message, a number, the bits of one with a fraction, which branch of a union or symbol
            it is, or where bytes or an array begin; the second slot of an array is the number of its items.
        stops: receives, per slot and message, where bytes or an array end.
        stack: room for arrays within arrays.
        bad: marks broken messages, of which the other results mean nothing.
    """
    count = len(start)
    require(len(end) >= count and len(bad) >= count and words.shape[1] >= count)
    require_program(program, targets, words, stops, stack)
    for row in range(count):
        at, until = np.int64(start[row]), np.int64(end[row])
        require(at >= 0 and at <= until <= len(data))
        if read_value(data, at, until, program, targets, row, words, stops, stack) != until:
            bad[row] = True


@kernel("u8[] i32[] i32[] i64[]= i32[][] i32[] i64[][]= i32[][]= i64[][]=")
def read_blocks(
    data: Bytes,
    end: Places,
    counts: Places,
    place: NDArray[np.int64],
    program: Program,
    targets: Places,
    words: Words,
    stops: NDArray[np.int32],
    stack: Stack,
) -> bool:
    """Read as many values as there is room for of blocks, in which they follow each other; false if one is broken.

    The results are those of `read_messages`. The blocks are `data`, one after the other up to `end` of each, and hold `counts`
    values each and nothing else. `place` is where to go on, and moves: the block, the byte, and the values of it that were read.
    """
    require(len(counts) >= len(end) and len(place) == 3 and len(data) < 2**31)
    require_program(program, targets, words, stops, stack)
    block, at, done = place[0], place[1], place[2]
    require(block >= 0 and at >= 0 and done >= 0)
    found = np.int64(0)
    while block < len(end):
        until = np.int64(end[block])
        require(at <= until <= len(data))
        while done < counts[block] and found < words.shape[1]:
            at = read_value(data, at, until, program, targets, found, words, stops, stack)
            if at < 0:
                return False
            found += 1
            done += 1
        if done < counts[block]:
            break
        if at != until:
            return False
        block, done = block + 1, np.int64(0)
    place[0], place[1], place[2] = block, at, done
    return True


@kernel("u8[] i32[] i32[] i32[][] i32[] i64[][]= i32[][]= i64[][]=")
def read_items(
    data: Bytes,
    start: Places,
    end: Places,
    program: Program,
    targets: Places,
    words: Words,
    stops: NDArray[np.int32],
    stack: Stack,
) -> int:
    """Read the items of arrays, which `read_messages` has found to be right, and return their number.

    The results are those of `read_messages`, per item.
    """
    require(len(end) >= len(start))
    require_program(program, targets, words, stops, stack)
    found = np.int64(0)
    for row in range(len(start)):
        at, until = np.int64(start[row]), np.int64(end[row])
        require(at >= 0 and at <= until <= len(data))
        while True:
            items, _, at = read_block(data, at, until)
            require(at >= 0)
            if items == 0:
                break
            for _ in range(items):
                require(found < words.shape[1])
                at = read_value(data, at, until, program, targets, found, words, stops, stack)
                require(at >= 0)
                found += 1
    return found
