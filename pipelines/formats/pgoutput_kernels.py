"""Compiled functions that read messages of PostgreSQL's logical replication (pgoutput) and rows of COPY in text format."""

# mypy: disable-error-code="untyped-decorator,no-any-return,assignment,return-value"
# ruff: noqa: C901, PLR0912, PLR0915, PLR0917, PLR1714, SIM109, FBT001 - one compiled loop per kernel, which takes arrays one by one

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.value_kernels import big_endian, require
from nevermore.scan_core.native import callee, kernel

TEXT, INTEGER, REAL, BOOLEAN, LIST, MAP, JSON_LIST = range(7)
"""How the values of a column are marked for decoding."""

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "BCRIUDT")
_OLD_KEY, _OLD_ROW, _NEW_ROW = ord("K"), ord("O"), ord("N")
_NULL, _UNCHANGED, _VALUE = ord("n"), ord("u"), ord("t")
_MISSING, _IS_NULL, _FALSE, _TRUE = kernels.MISSING, kernels.NULL, kernels.FALSE, kernels.TRUE
_INT, _FLOAT, _STRING = kernels.INT, kernels.FLOAT, kernels.STRING
_OBJECT, _ARRAY = kernels.OBJECT, kernels.ARRAY
_OK, _ABSENT = kernels.OK, kernels.ABSENT

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]


@callee
def end_of_tuple(data: Bytes, at: int, end: int) -> int:
    """The position after the row that begins at `at`; -1 if it exceeds the message."""
    if at + 2 > end:
        return -1
    columns = big_endian(data, at, 2)
    p = at + 2
    for _ in range(columns):
        if p >= end:
            return -1
        state = data[p]
        p += 1
        if state == _VALUE:
            if p + 4 > end:
                return -1
            size = big_endian(data, p, 4)
            if size < 0 or p + 4 + size > end:
                return -1
            p += 4 + size
        elif state != _NULL and state != _UNCHANGED:
            return -1
    return p


@kernel("u8[] i32[] i32[] i64 i64[]= i64[]= i64[]= i64[]= i64[]=")
def number_messages(
    data: Bytes,
    start: Places,
    end: Places,
    first: int,
    transaction: NDArray[np.int64],
    index: NDArray[np.int64],
    lsn: NDArray[np.int64],
    time: NDArray[np.int64],
    xid: NDArray[np.int64],
) -> int:
    """Number the messages within their transactions; return the number of transactions, -1 for a broken message.

    Args:
        data: bytes of all messages.
        start: begin of each message.
        end: end of each message.
        first: number of changes that precede these messages in the first transaction.
        transaction: receives, per message, the number of its transaction; -1 before the first.
        index: receives, per change, its number in its transaction, from 1.
        lsn: receives, per transaction, the position of its commit.
        time: receives, per transaction, its time in microseconds since 2000.
        xid: receives, per transaction, its identifier.
    """
    count = len(start)
    require(len(end) >= count and len(transaction) >= count and len(index) >= count)
    require(len(lsn) >= count and len(time) >= count and len(xid) >= count)
    found = 0
    number = first
    for row in range(count):
        at, until = start[row], end[row]
        require(at >= 0 and at <= until <= len(data))
        index[row] = 0
        if until > at:
            what = data[at]
            if what == BEGIN:
                if until - at < 21:
                    return -1
                lsn[found] = big_endian(data, at + 1, 8)
                time[found] = big_endian(data, at + 9, 8)
                xid[found] = big_endian(data, at + 17, 4)
                if found > 0:
                    number = 0
                found += 1
            elif what == INSERT or what == UPDATE or what == DELETE or what == TRUNCATE:
                number += 1
                index[row] = number
        transaction[row] = found - 1
    return found


@kernel("u8[] i32[] i32[] i64[] i64[]= i32[]= u8[]= i32[]= i32[]= u8[]= bool[]=")
def read_messages(
    data: Bytes,
    start: Places,
    end: Places,
    oids: NDArray[np.int64],
    current: NDArray[np.int64],
    version: Places,
    what: Bytes,
    old: Places,
    new: Places,
    old_kind: Bytes,
    broken: NDArray[np.bool_],
) -> None:
    """Find the table and the rows of each message.

    Args:
        data: bytes of all messages.
        start: begin of each message.
        end: end of each message.
        oids: identifiers of the tables, sorted.
        current: working memory: the number of the current description of each table.
        version: receives the number of the description of each change's table, -1 for other messages.
        what: receives the kind of each message.
        old: receives the position of the old row, 0 without one.
        new: receives the position of the new row, 0 without one.
        old_kind: receives K if the old row is a key, O if it is whole.
        broken: receives whether a change cannot be read.
    """
    count = len(start)
    require(len(end) >= count and len(version) >= count and len(what) >= count and len(old) >= count)
    require(len(new) >= count and len(old_kind) >= count and len(broken) >= count and len(current) >= len(oids))
    for k in range(len(oids)):
        current[k] = -1
    last = np.int64(-1)
    slot = -1
    for row in range(count):
        at, until = start[row], end[row]
        require(at >= 0 and at <= until <= len(data))
        version[row] = -1
        old[row] = new[row] = 0
        old_kind[row] = 0
        broken[row] = False
        what[row] = 0
        if until == at:
            continue
        kind = data[at]
        what[row] = kind
        if kind != RELATION and kind != INSERT and kind != UPDATE and kind != DELETE and kind != TRUNCATE:
            continue
        if until - at < 5:
            broken[row] = True
            continue
        oid = big_endian(data, at + 1, 4)
        if oid != last or slot < 0:
            last = oid
            slot = np.searchsorted(oids, oid)
            if slot >= len(oids) or oids[slot] != oid:
                slot = -1
        if slot < 0:
            broken[row] = True
            continue
        if kind == RELATION:
            if until - at < 9:
                broken[row] = True
                continue
            current[slot] = big_endian(data, at + 5, 4)
            continue
        version[row] = current[slot]
        if kind == TRUNCATE:
            continue
        p = at + 5
        if p < until and (data[p] == _OLD_KEY or data[p] == _OLD_ROW):
            old_kind[row] = data[p]
            old[row] = p + 1
            p = end_of_tuple(data, p + 1, until)
        if p >= 0 and kind != DELETE:
            if p < until and data[p] == _NEW_ROW:
                new[row] = p + 1
                p = end_of_tuple(data, p + 1, until)
            else:
                p = -1
        broken[row] = p != until or version[row] < 0


@callee
def kind_of_value(data: Bytes, at: int, end: int, what: int) -> Any:
    """The kind of a value, by the type of its column."""
    if what == INTEGER:
        return _INT
    if what == BOOLEAN:
        return _TRUE if end > at and data[at] == 0x74 else _FALSE
    if what == REAL:
        first = data[at] if end > at else np.uint8(0)
        if first == 0x2D and end > at + 1:
            first = data[at + 1]
        return _FLOAT if 0x30 <= first <= 0x39 else _STRING
    return _ARRAY if what == JSON_LIST else _STRING


@kernel("u8[] i32[] u8[] u8[] bool[] i64 i64 i32[][]= i32[][]= i8[][]= i8[]=")
def read_rows(
    data: Bytes,
    at: Places,
    part: Bytes,
    what: Bytes,
    in_key: NDArray[np.bool_],
    unchanged: int,
    unchanged_end: int,
    start: Places,
    end: Places,
    kind: NDArray[np.int8],
    status: NDArray[np.int8],
) -> bool:
    """Find the values of rows that were checked by `read_messages`; return whether all have the number of columns.

    Args:
        data: bytes of all messages.
        at: position of each row, 0 without one.
        part: K for rows that have only the columns of the key.
        what: how values are marked, per column.
        in_key: columns of the key.
        unchanged: begin of the mark for values that were not sent.
        unchanged_end: its end.
        start: receives the begin of each value: [column, row].
        end: receives the end of each value.
        kind: receives the kind of each value.
        status: receives whether there is a row.
    """
    columns, count = kind.shape
    require(len(at) >= count and len(part) >= count and len(status) >= count)
    require(len(what) >= columns and len(in_key) >= columns)
    require(start.shape[0] >= columns and start.shape[1] >= count and end.shape[0] >= columns and end.shape[1] >= count)
    is_whole = True
    for row in range(count):
        p = np.int64(at[row])
        if p == 0:
            status[row] = _ABSENT
            for c in range(columns):
                start[c, row] = end[c, row] = 0
                kind[c, row] = _MISSING
            continue
        status[row] = _OK
        require(p > 0 and p + 2 <= len(data))
        given = big_endian(data, p, 2)
        p += 2
        is_whole &= given == columns
        for c in range(columns):
            start[c, row] = end[c, row] = 0
            kind[c, row] = _MISSING
            if c >= given:
                continue
            require(p < len(data))
            state = data[p]
            p += 1
            if state == _VALUE:
                require(p + 4 <= len(data))
                size = big_endian(data, p, 4)
                p += 4
                require(p + size <= len(data))
                start[c, row] = p
                end[c, row] = p + size
                kind[c, row] = kind_of_value(data, p, p + size, what[c])
                p += size
            elif state == _NULL:
                if part[row] != _OLD_KEY or in_key[c]:
                    kind[c, row] = _IS_NULL
            else:
                start[c, row] = unchanged
                end[c, row] = unchanged_end
                kind[c, row] = _STRING
    return is_whole


@kernel("u8[]= i64 u8[] i32[][]= i32[][]= i8[][]=")
def read_copy(
    data: Bytes,
    size: int,
    what: Bytes,
    start: Places,
    end: Places,
    kind: NDArray[np.int8],
) -> int:
    """Find the values of COPY in text format; values with a backslash are unescaped in place.

    Args:
        data: lines, each with its newline.
        size: number of bytes.
        what: how values are marked, per column.
        start: receives the begin of each value: [column, row].
        end: receives the end of each value.
        kind: receives the kind of each value.

    Returns:
        The number of rows, or -1 if a line has another number of values.
    """
    columns, room = kind.shape
    require(0 <= size <= len(data) and len(what) >= columns > 0)
    require(start.shape[0] >= columns and start.shape[1] >= room and end.shape[0] >= columns and end.shape[1] >= room)
    row = 0
    c = 0
    p = 0
    while p < size:
        require(row < room)
        begin = p
        q = p
        is_null = False
        while p < size and data[p] != 0x09 and data[p] != 0x0A:
            byte = data[p]
            if byte != 0x5C:
                if q != p:
                    data[q] = byte
                q += 1
                p += 1
                continue
            if p + 1 >= size:
                return -1
            letter = data[p + 1]
            p += 2
            if letter == 0x4E:
                is_null = True
                continue
            if letter == 0x62:
                letter = np.uint8(0x08)
            elif letter == 0x66:
                letter = np.uint8(0x0C)
            elif letter == 0x6E:
                letter = np.uint8(0x0A)
            elif letter == 0x72:
                letter = np.uint8(0x0D)
            elif letter == 0x74:
                letter = np.uint8(0x09)
            elif letter == 0x76:
                letter = np.uint8(0x0B)
            data[q] = letter
            q += 1
        if p >= size or c >= columns:
            return -1
        separator = data[p]
        start[c, row] = begin
        end[c, row] = q
        kind[c, row] = _IS_NULL if is_null else kind_of_value(data, begin, q, what[c])
        p += 1
        c += 1
        if separator == 0x0A:
            if c != columns:
                return -1
            c = 0
            row += 1
    return row if c == 0 else -1


_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = 0x22, 0x5C, 0x2C, 0x7B, 0x7D
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
MAX_GROWTH = 6
"""Bytes of JSON per byte of an array or hstore: a control character becomes six."""


@callee
def put_character(out: Bytes, at: int, byte: int) -> int:
    """Write a byte as part of a JSON string; return the position after it."""
    if byte == _QUOTE or byte == _BACKSLASH:
        out[at] = _BACKSLASH
        out[at + 1] = byte
        return at + 2
    if byte >= 0x20:
        out[at] = byte
        return at + 1
    out[at] = _BACKSLASH
    out[at + 1] = 0x75
    out[at + 2] = out[at + 3] = 0x30
    out[at + 4] = _HEX[byte >> 4]
    out[at + 5] = _HEX[byte & 15]
    return at + 6


@callee
def is_null_word(data: Bytes, at: int, end: int) -> bool:
    """Whether this is NULL, in any case, as PostgreSQL writes elements that are null."""
    if end - at != 4:
        return False
    return (
        (data[at] | 0x20) == 0x6E
        and (data[at + 1] | 0x20) == 0x75
        and (data[at + 2] | 0x20) == 0x6C
        and (data[at + 3] | 0x20) == 0x6C
    )


@callee
def put_word(data: Bytes, at: int, end: int, out: Bytes, to: int) -> int:
    """Write an element without quotes as a JSON string, or null; return the position after it."""
    if is_null_word(data, at, end):
        out[to] = 0x6E
        out[to + 1] = 0x75
        out[to + 2] = out[to + 3] = 0x6C
        return to + 4
    out[to] = _QUOTE
    to += 1
    for k in range(at, end):
        to = put_character(out, to, data[k])
    out[to] = _QUOTE
    return to + 1


@kernel("u8[] i32[]= i32[]= i8[]= bool u8[]= i64")
def write_json(
    data: Bytes, start: Places, end: Places, kind: NDArray[np.int8], is_map: bool, out: Bytes, base: int
) -> int:
    """Write arrays and hstores as JSON, elements as strings, and let the spans point to it; return the number of bytes.

    The JSON of arrays of several dimensions is text.

    Args:
        data: bytes of the values.
        start: begin of each value; replaced.
        end: end of each value; replaced.
        kind: kinds of the values; replaced.
        is_map: whether the values are hstores.
        out: receives the JSON.
        base: place of `out` behind the other bytes, which is added to the spans.
    """
    require(len(end) >= len(start) and len(kind) >= len(start))
    to = 0
    for row in range(len(start)):
        if kind[row] != _STRING:
            continue
        p, until = np.int64(start[row]), np.int64(end[row])
        require(p >= 0 and p <= until <= len(data) and to + MAX_GROWTH * (until - p) + 16 <= len(out))
        if p + 1 < until and data[p] == 0x00:  # the mark of a value that was not sent
            continue
        begin = to
        is_nested = False
        if is_map:
            out[to] = _OPEN
            to += 1
        elif p < until and data[p] == 0x5B:  # [0:2]={...}: bounds other than the usual ones
            while p < until and data[p] != _OPEN:
                p += 1
        while p < until:
            byte = data[p]
            if byte == _QUOTE:
                out[to] = _QUOTE
                to += 1
                p += 1
                while p < until and data[p] != _QUOTE:
                    if data[p] == _BACKSLASH and p + 1 < until:
                        p += 1
                    to = put_character(out, to, data[p])
                    p += 1
                out[to] = _QUOTE
                to += 1
                p += 1
            elif is_map and byte == 0x3D:  # =>
                out[to] = 0x3A
                to += 1
                p += 2
            elif byte == 0x20:
                p += 1
            elif byte == _COMMA:
                out[to] = _COMMA
                to += 1
                p += 1
            elif not is_map and (byte == _OPEN or byte == _CLOSE):
                is_nested |= byte == _OPEN and to > begin
                out[to] = 0x5B if byte == _OPEN else 0x5D
                to += 1
                p += 1
            else:
                first = p
                p += 1  # whatever it is: a loop that stays where it is would write without end
                while p < until and data[p] != _COMMA and (is_map or data[p] != _CLOSE):
                    p += 1
                to = put_word(data, first, p, out, to)
        if is_map:
            out[to] = _CLOSE
            to += 1
        start[row] = base + begin
        end[row] = base + to
        # Lists have one dimension: more of them are text, and no list of texts.
        kind[row] = _OBJECT if is_map else _STRING if is_nested else _ARRAY
    return to
