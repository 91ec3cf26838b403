"""Compiled functions that read row events of MySQL's binary log, and rows of its text protocol."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, SIM109 - one compiled loop per kernel, which takes arrays one by one

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.value_kernels import big_endian, require
from nevermore.scan_core.native import callee, kernel

SIGNED, UNSIGNED, FLOAT, DOUBLE, DECIMAL, YEAR, BIT, BOOLEAN = range(8)
DATE, TIME, DATETIME, TIMESTAMP, TEXT, SINGLE, BYTES, FIXED_BYTES, CHOICE, CHOICES, REFUSED, REFUSED_CHOICE, TREE = (
    range(8, 21)
)
"""How the values of a column are stored: SINGLE is text of one byte a character, CHOICE an enum, CHOICES a set, REFUSED what cannot be read, with
a length or as a choice, TREE the JSON of MySQL (see `mysql_json_kernels`)."""
_WITH_LENGTH = (TEXT, SINGLE, BYTES, FIXED_BYTES, REFUSED, TREE)

INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "cudt")
HEADER_BYTES = 9
"""Before the rows of an event: the number of its description, in 4 bytes, its time in seconds, in 4, and a letter of what it does."""
_MISSING, _IS_NULL, _FALSE, _TRUE = kernels.MISSING, kernels.NULL, kernels.FALSE, kernels.TRUE
_INT, _FLOAT, _STRING, _OK, _ABSENT = kernels.INT, kernels.FLOAT, kernels.STRING, kernels.OK, kernels.ABSENT
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
"""Bytes of so many decimal digits."""

MAX_SCALE = 255
MAX_DIGITS = 65
"""Of a decimal; `scale` is also the length of binary columns of fixed length."""

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]


@callee
def little(data: Bytes, at: int, size: int) -> int:
    """The unsigned integer of `size` bytes, least significant first; the caller has checked the bounds."""
    value = np.uint64(0)
    for k in range(size):
        value |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return value


@callee
def decimal_bytes(digits: int, scale: int) -> int:
    """Bytes of a decimal."""
    whole = digits - scale
    return 4 * (whole // 9) + _DIGIT_BYTES[whole % 9] + 4 * (scale // 9) + _DIGIT_BYTES[scale % 9]


@callee
def is_sound(what: int, size: int, scale: int) -> bool:
    """Whether values can be stored so; a value of a sound column is never read or written beyond its bytes and its room."""
    if scale < 0 or scale > MAX_SCALE:
        return False
    if what == DECIMAL:
        return scale <= size and size >= 1 and size <= MAX_DIGITS
    if what in _WITH_LENGTH:
        return size >= 1 and size <= 4
    if what == TIME or what == DATETIME or what == TIMESTAMP:
        return scale <= 6
    if what == DATE:
        return size == 3
    return size >= 1 and size <= 8


@callee
def end_of_value(data: Bytes, at: int, end: int, what: int, size: int, scale: int) -> int:
    """The position after a value; -1 if it exceeds the event.

    `size` is the number of bytes of values that all have as many, of digits of a decimal, or of the length in front of text.
    """
    if what == DECIMAL:
        at += decimal_bytes(size, scale)
    elif what in _WITH_LENGTH:
        if at + size > end:
            return -1
        length = np.int64(little(data, at, size))
        if length > end - at:
            return -1
        at += size + length
    elif what == TIME:
        at += 3 + (scale + 1) // 2
    elif what == DATETIME:
        at += 5 + (scale + 1) // 2
    elif what == TIMESTAMP:
        at += 4 + (scale + 1) // 2
    else:
        at += size
    return at if at <= end else -1


@callee
def end_of_row(
    data: Bytes, present: int, at: int, end: int, columns: int, first: int, what: Bytes, size: Places, scale: Places
) -> int:
    """The position after a row that begins at `at`; -1 if it exceeds the event."""
    count = 0
    for c in range(columns):
        count += (data[present + c // 8] >> (c % 8)) & 1
    p = at + (count + 7) // 8
    if p > end:
        return -1
    bit = 0
    for c in range(columns):
        if (data[present + c // 8] >> (c % 8)) & 1 == 0:
            continue
        is_null = (data[at + bit // 8] >> (bit % 8)) & 1
        bit += 1
        if is_null == 0:
            p = end_of_value(data, p, end, what[first + c], size[first + c], scale[first + c])
            if p < 0:
                return -1
    return p


@kernel("u8[] i32[] i32[] i32[] i32[] u8[] i32[] i32[] i32[]= i32[]= i32[]= bool[]=")
def find_rows(
    data: Bytes,
    start: Places,
    end: Places,
    first: Places,
    columns: Places,
    what: Bytes,
    size: Places,
    scale: Places,
    event: Places,
    old: Places,
    new: Places,
    broken: NDArray[np.bool_],
) -> int:
    """Find the rows of each event; return their number, also if there is no room for them.

    Args:
        data: bytes of all events.
        start: begin of each event.
        end: end of each event.
        first: per description, the place of its first column in the three arrays below.
        columns: per description, its number of columns.
        what: how values are stored, per column.
        size: see `end_of_value`.
        scale: digits after the point, of decimals and seconds.
        event: receives the event of each change.
        old: receives the position of the old row, 0 without one.
        new: receives the position of the new row, 0 without one.
        broken: receives whether an event cannot be read, per event.
    """
    count = len(start)
    room = len(event)
    require(len(end) >= count and len(broken) >= count and len(old) >= room and len(new) >= room)
    require(len(columns) >= len(first) and len(size) >= len(what) and len(scale) >= len(what))
    for c in range(len(what)):
        require(is_sound(what[c], size[c], scale[c]))
    found = 0
    for row in range(count):
        at, until = start[row], end[row]
        require(at >= 0 and at <= until <= len(data))
        broken[row] = False
        if until - at < HEADER_BYTES:
            continue
        number = np.int64(little(data, at, 4))
        op = data[at + 8]
        if number >= len(first):
            broken[row] = True
            continue
        if op == TRUNCATE:
            if found < room:
                event[found] = row
                old[found] = new[found] = 0
            found += 1
            continue
        of = columns[number]
        base = first[number]
        require(base >= 0 and of >= 0 and base + of <= len(what))
        bitmap = (of + 7) // 8
        images = 2 if op == UPDATE else 1
        present = at + HEADER_BYTES
        p = np.int64(present + images * bitmap)
        if p > until:
            broken[row] = True
            continue
        while p < until:
            begin = p
            p = end_of_row(data, present, p, until, of, base, what, size, scale)
            second = p
            if images == 2 and p >= 0:
                p = end_of_row(data, present + bitmap, p, until, of, base, what, size, scale)
            if p <= begin:
                broken[row] = True
                break
            if found < room:
                event[found] = row
                old[found] = 0 if op == INSERT else begin
                new[found] = begin if op == INSERT else second if op == UPDATE else 0
            found += 1
    return found


@callee
def put_number(out: Bytes, at: int, value: int, width: int) -> int:
    """Write digits of an unsigned number, at least `width`; return the position after them."""
    digits = 1
    rest = value // np.uint64(10)
    while rest > 0:
        digits += 1
        rest //= np.uint64(10)
    digits = max(digits, width)
    for k in range(digits):
        out[at + digits - 1 - k] = np.uint64(0x30) + value % np.uint64(10)
        value //= np.uint64(10)
    return at + digits


@callee
def put_decimal(data: Bytes, at: int, digits: int, scale: int, out: Bytes, to: int) -> int:
    """Write a decimal; return the position after it."""
    is_negative = data[at] & 0x80 == 0
    flip = np.int64(0xFF) if is_negative else np.int64(0)
    if is_negative:
        out[to] = 0x2D
        to += 1
    begin = to
    whole = digits - scale
    p = at
    for part in range(2):
        count = whole if part == 0 else scale
        if part == 1:
            if to == begin:
                out[to] = 0x30
                to += 1
            if scale == 0:
                break
            out[to] = 0x2E
            to += 1
        short = count % 9
        groups = count // 9
        for k in range(groups + 1):
            # the group that has less than nine digits is the first of the whole part and the last of the other
            is_short = k == (0 if part == 0 else groups)
            width = short if is_short else 9
            if width == 0:
                continue
            bytes_ = _DIGIT_BYTES[width]
            value = np.int64(0)
            for b in range(bytes_):
                byte = np.int64(data[p + b])
                if p + b == at:
                    byte ^= 0x80
                value = (value << np.int64(8)) | (byte ^ flip)
            p += bytes_
            if part == 0 and to == begin:
                if value > 0:
                    to = put_number(out, to, np.uint64(value), 1)
            else:
                to = put_number(out, to, np.uint64(value), width)
    return to


@callee
def put_clock(out: Bytes, to: int, hours: int, minutes: int, seconds: int, fraction: int, scale: int) -> int:
    """Write a time of day; return the position after it."""
    to = put_number(out, to, np.uint64(hours), 2)
    out[to] = 0x3A
    to = put_number(out, to + 1, np.uint64(minutes), 2)
    out[to] = 0x3A
    to = put_number(out, to + 1, np.uint64(seconds), 2)
    if scale > 0:
        out[to] = 0x2E
        to = put_number(out, to + 1, np.uint64(fraction), scale)
    return to


@callee
def put_date(out: Bytes, to: int, year: int, month: int, day: int) -> int:
    """Write a date; return the position after it."""
    to = put_number(out, to, np.uint64(year), 4)
    out[to] = 0x2D
    to = put_number(out, to + 1, np.uint64(month), 2)
    out[to] = 0x2D
    return put_number(out, to + 1, np.uint64(day), 2)


@callee
def digits_of(fraction: int, scale: int) -> int:
    """A fraction that is stored in whole bytes as a number of `scale` digits."""
    return fraction // 10 if scale % 2 == 1 else fraction


@callee
def put_time(data: Bytes, at: int, scale: int, out: Bytes, to: int) -> int:
    """Write a TIME, which may be negative and longer than a day; return the position after it."""
    size = (scale + 1) // 2
    # Integers of all bytes together, whose order is that of the values: negative ones are below the middle.
    value = big_endian(data, at, 3 + size) - (np.int64(0x800000) << np.int64(8 * size))
    if value < 0:
        out[to] = 0x2D
        to += 1
        value = -value
    fraction = value & ((np.int64(1) << np.int64(8 * size)) - 1)
    clock = value >> np.int64(8 * size)
    return put_clock(
        out, to, (clock >> 12) & 0x3FF, (clock >> 6) & 0x3F, clock & 0x3F, digits_of(fraction, scale), scale
    )


@callee
def put_moment(days: int, seconds: int, fraction: int, scale: int, out: Bytes, to: int) -> int:
    """Write the time of so many days since 1970, in UTC; return the position after it."""
    # Days since 0000-03-01, in eras of 400 years.
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    to = put_date(out, to, year + era * 400 + (1 if month <= 2 else 0), month, day)
    out[to] = 0x20
    to = put_clock(out, to + 1, seconds // 3600, seconds // 60 % 60, seconds % 60, fraction, scale)
    out[to] = 0x2B
    out[to + 1] = out[to + 2] = 0x30
    return to + 3


MAX_CHARACTERS = 88
"""The longest text of a value other than text and bytes: a decimal of 65 digits."""
GROWTH = 4
"""Bytes of text per byte of a value: one in UTF-8 for text of one byte a character, two in hexadecimal digits."""


@kernel("u8[] u8[] i32[] i32[] u8[] i32[] i32[] i32[] u8[][] i32[][]= i32[][]= i8[][]= i8[]= u8[]= i64")
def read_rows(
    data: Bytes,
    op: Bytes,
    event: Places,
    at: Places,
    what: Bytes,
    size: Places,
    scale: Places,
    characters: Places,
    letters: Bytes,
    start: Places,
    end: Places,
    kind: NDArray[np.int8],
    status: NDArray[np.int8],
    out: Bytes,
    second: int,
) -> int:
    """Find the values of rows that were checked by `find_rows`, and write those that are not text as text.

    Args:
        data: bytes of all events.
        op: what each row's event does.
        event: begin of each row's event.
        at: position of each row, 0 without one.
        what: how values are stored, per column.
        size: see `end_of_value`.
        scale: digits after the point.
        characters: for text of one byte a character, its row of `letters` times 256.
        letters: UTF-8 of each character: its length, and its bytes.
        start: receives the begin of each value: [column, row].
        end: receives the end of each value. FLOAT, DOUBLE, CHOICE, CHOICES and TREE keep their own bytes.
        kind: receives the kind of each value.
        status: receives whether there is a row.
        out: receives text, which follows `data`; if it is empty, only the room is counted.
        second: 1 to read the new rows of updates.

    Returns:
        The size of the text, or the room that it may need.
    """
    columns, count = kind.shape
    require(len(at) >= count and len(op) >= count and len(event) >= count and len(status) >= count)
    require(len(what) >= columns and len(size) >= columns and len(scale) >= columns and len(characters) >= columns)
    require(start.shape[0] >= columns and start.shape[1] >= count and end.shape[0] >= columns and end.shape[1] >= count)
    require(letters.shape[1] > GROWTH)
    for c in range(columns):
        require(is_sound(what[c], size[c], scale[c]))
    for letter in range(letters.shape[0]):
        require(letters[letter, 0] <= GROWTH)
    is_counting = len(out) == 0
    base = len(data)
    to = np.int64(0)
    for row in range(count):
        begin = np.int64(at[row])
        if begin == 0:
            status[row] = _ABSENT
            for c in range(columns):
                start[c, row] = end[c, row] = 0
                kind[c, row] = _MISSING
            continue
        status[row] = _OK
        bitmap = (columns + 7) // 8
        present = event[row] + HEADER_BYTES
        if op[row] == UPDATE and second == 1:
            present += bitmap
        require(present >= 0 and present + bitmap <= begin <= len(data))
        sent = 0
        for c in range(columns):
            sent += (data[present + c // 8] >> (c % 8)) & 1
        p = begin + (sent + 7) // 8
        require(p <= len(data))
        bit = 0
        for c in range(columns):
            start[c, row] = end[c, row] = 0
            kind[c, row] = _MISSING
            if (data[present + c // 8] >> (c % 8)) & 1 == 0:
                continue
            is_null = (data[begin + bit // 8] >> (bit % 8)) & 1
            bit += 1
            if is_null == 1:
                kind[c, row] = _IS_NULL
                continue
            stored = what[c]
            value = p
            p = end_of_value(data, p, len(data), stored, size[c], scale[c])
            require(p >= 0)
            if stored == TEXT or stored == TREE:
                start[c, row] = value + size[c]
                end[c, row] = p
                kind[c, row] = _STRING
                continue
            if stored == FLOAT or stored == DOUBLE or stored == CHOICE or stored == CHOICES:
                start[c, row] = value
                end[c, row] = p
                kind[c, row] = _FLOAT if stored == FLOAT or stored == DOUBLE else _STRING
                continue
            if stored == REFUSED or stored == REFUSED_CHOICE:
                continue
            if is_counting:
                to += MAX_CHARACTERS + GROWTH * (p - value) + (2 * scale[c] if stored == FIXED_BYTES else 0)
                continue
            first = to
            kind[c, row] = _STRING
            require(to + MAX_CHARACTERS + GROWTH * (p - value) <= len(out))
            if stored == SIGNED or stored == UNSIGNED:
                number = little(data, value, size[c])
                if stored == SIGNED and data[p - 1] >= 0x80:
                    out[to] = 0x2D
                    to += 1
                    limit = np.uint64(1) << np.uint64(8 * size[c] - 1)
                    number = limit - (number & (limit - np.uint64(1)))
                to = put_number(out, to, number, 1)
                kind[c, row] = _INT
            elif stored == BIT:
                to = put_number(out, to, np.uint64(big_endian(data, value, size[c])), 1)
                kind[c, row] = _INT
            elif stored == BOOLEAN:
                kind[c, row] = _TRUE if data[value] & 1 == 1 else _FALSE
            elif stored == YEAR:
                to = put_number(out, to, np.uint64(data[value]) + np.uint64(1900 if data[value] > 0 else 0), 1)
                kind[c, row] = _INT
            elif stored == DECIMAL:
                to = put_decimal(data, value, size[c], scale[c], out, to)
            elif stored == DATE:
                day = np.int64(little(data, value, 3))
                if day & 31 == 0 or (day >> 5) & 15 == 0:
                    kind[c, row] = _IS_NULL
                else:
                    to = put_date(out, to, day >> 9, (day >> 5) & 15, day & 31)
            elif stored == TIME:
                to = put_time(data, value, scale[c], out, to)
            elif stored == DATETIME:
                whole = big_endian(data, value, 5) & np.int64(0x7FFFFFFFFF)
                day, clock = whole >> 17, whole & 0x1FFFF
                fraction = digits_of(big_endian(data, value + 5, (scale[c] + 1) // 2), scale[c])
                if day & 31 == 0 or (day >> 5) % 13 == 0:
                    kind[c, row] = _IS_NULL
                else:
                    to = put_date(out, to, (day >> 5) // 13, (day >> 5) % 13, day & 31)
                    out[to] = 0x20
                    to = put_clock(out, to + 1, clock >> 12, (clock >> 6) & 63, clock & 63, fraction, scale[c])
            elif stored == TIMESTAMP:
                seconds = big_endian(data, value, 4)
                fraction = digits_of(big_endian(data, value + 4, (scale[c] + 1) // 2), scale[c])
                if seconds == 0 and fraction == 0:
                    kind[c, row] = _IS_NULL
                else:
                    to = put_moment(seconds // 86_400, seconds % 86_400, fraction, scale[c], out, to)
            elif stored == SINGLE:
                for k in range(value + size[c], p):
                    letter = characters[c] + np.int64(data[k])
                    require(letter >= 0 and letter < letters.shape[0])
                    for b in range(letters[letter, 0]):
                        out[to] = letters[letter, 1 + b]
                        to += 1
            else:
                for k in range(value + size[c], p):
                    out[to] = _HEX[data[k] >> 4]
                    out[to + 1] = _HEX[data[k] & 15]
                    to += 2
                if stored == FIXED_BYTES:  # zero bytes at the end are not stored
                    missing = 2 * (scale[c] - (p - value - size[c]))
                    require(to + missing <= len(out))
                    for _ in range(missing):
                        out[to] = 0x30
                        to += 1
            start[c, row] = base + first
            end[c, row] = base + to
    return to


@kernel("u8[] i64 i64 i64[]=")
def frame(data: Bytes, at: int, size: int, places: NDArray[np.int64]) -> int:
    """Find packets: places of their contents, up to one that ends the rows or is not complete; return their number.

    Args:
        data: what the server sent.
        at: begin of the first packet.
        size: number of bytes.
        places: receives the begin of each packet's content, and after the last the begin of the next packet. The last
            entry is 1 if the packet there is complete but is no row: it ends the rows, is an error or part of a large row.
    """
    require(0 <= at <= size <= len(data) and len(places) >= 3)
    count = 0
    p = np.int64(at)
    places[len(places) - 1] = 0
    while p + 4 <= size and count < len(places) - 2:
        length = np.int64(little(data, p, 3))
        if p + 4 + length > size:
            break
        # 0xFE begins the length of a value of 8 bytes, too: no row of less than 9 bytes has one
        first = data[p + 4] if length > 0 else np.uint8(0xFF)
        if first == 0xFF or (first == 0xFE and length < 9) or length == 0xFFFFFF:
            places[len(places) - 1] = 1
            break
        places[count] = p + 4
        count += 1
        p += 4 + length
    places[count] = p
    return count


@kernel("u8[] i32[] i32[] u8[] i32[][]= i32[][]= i8[][]=")
def read_texts(
    data: Bytes, begin: Places, until: Places, what: Bytes, start: Places, end: Places, kind: NDArray[np.int8]
) -> bool:
    """Find the values of rows of the text protocol; return whether all have the number of columns.

    Args:
        data: bytes of the rows.
        begin: begin of each row.
        until: end of each row.
        what: how values are stored in the binary log, per column, which decides of what kind they are.
        start: receives the begin of each value: [column, row].
        end: receives the end of each value.
        kind: receives the kind of each value.
    """
    columns, count = kind.shape
    require(len(begin) >= count and len(until) >= count and len(what) >= columns)
    require(start.shape[0] >= columns and start.shape[1] >= count and end.shape[0] >= columns and end.shape[1] >= count)
    for row in range(count):
        p, stop = np.int64(begin[row]), np.int64(until[row])
        require(p >= 0 and p <= stop <= len(data))
        for c in range(columns):
            start[c, row] = end[c, row] = 0
            if p >= stop:
                return False
            length = np.int64(data[p])
            p += 1
            if length == 0xFB:
                kind[c, row] = _IS_NULL
                continue
            if length > 0xFB:
                size = 2 if length == 0xFC else 3 if length == 0xFD else 8
                if p + size > stop:
                    return False
                length = np.int64(little(data, p, size))
                p += size
            if length < 0 or length > stop - p:
                return False
            stored = what[c]
            start[c, row] = p
            end[c, row] = p + length
            kind[c, row] = _STRING
            if stored <= UNSIGNED or stored == YEAR or stored == BIT:
                kind[c, row] = _INT
            elif stored == FLOAT or stored == DOUBLE:
                kind[c, row] = _FLOAT
            elif stored == BOOLEAN:
                kind[c, row] = _TRUE if length > 0 and data[p] == 0x31 else _FALSE
            elif (stored == DATE or stored == DATETIME or stored == TIMESTAMP) and length >= 10:
                # YYYY-MM-DD without a month or a day
                no_month = data[p + 5] == 0x30 and data[p + 6] == 0x30
                no_day = data[p + 8] == 0x30 and data[p + 9] == 0x30
                kind[c, row] = _IS_NULL if no_month or no_day else _STRING
            p += length
        if p != stop:
            return False
    return True
