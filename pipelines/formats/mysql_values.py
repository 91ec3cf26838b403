"""The values of MySQL's binary log as text, as the server writes it: those of a column together, JSON one by one.

Rows of a load, which the server sends as text, and rows of the log have the same text.
"""

import base64
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import mysql_kernels as rows
from nevermore.pipelines.jsonscan.text_kernels import gather_text
from nevermore.scan_core import Mask

MAX_BYTES = 2**31 - 1
NUMPY = {rows.FLOAT: "<f4", rows.DOUBLE: "<f8"}
_GROWTH = 4
"""Bytes of text per byte of a value: up to four in UTF-8 for text of one byte a character, two in hexadecimal digits."""
Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class MysqlColumn:
    """A column of a table at some time.

    Attributes:
        name: its name.
        type: as the server writes it, without what its values do not depend on: `bigint unsigned`, `decimal(10,2)`, `text`, `bytes`.
        stored: how the binary log stores its values; see `mysql_kernels`.
        size: bytes of values that all have as many, of a decimal's digits, or of the length in front of text.
        scale: digits after the point, of decimals and seconds; bytes of BINARY.
        letters: UTF-8 of the 256 characters, for text of one byte a character.
        choices: of an enum or a set.
    """

    name: str
    type: str
    stored: int
    size: int = 0
    scale: int = 0
    letters: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def is_readable(self) -> bool:
        """Whether its values can be read."""
        return self.stored not in {rows.REFUSED, rows.REFUSED_CHOICE}


def texts(column: MysqlColumn, data: Bytes, start: Places, end: Places) -> pa.Array:  # noqa: C901 - one branch per kind of value
    """The text of values of a column at these places, which is NULL for dates without a month or a day.

    Raises:
        SourceError: a value is not JSON as MySQL stores it, or the text takes more than 2 GiB.
    """
    match column.stored:
        case rows.SINGLE | rows.BYTES | rows.FIXED_BYTES:
            return _of_bytes(column, data, start, end)
        case rows.TREE:
            try:
                return pa.array([json_text(data[a:b].tobytes()) for a, b in zip(start, end, strict=True)], pa.binary())
            except (ValueError, IndexError, struct.error) as error:
                raise SourceError(
                    f"a value of {column.name} in the binary log is not JSON as MySQL stores it"
                ) from error
    width = int(end[0] - start[0])
    stored = np.ascontiguousarray(data[start[:, None] + np.arange(width)])
    match column.stored:
        case rows.FLOAT | rows.DOUBLE:
            return pa.array(stored.view(NUMPY[column.stored]).ravel()).cast(pa.string())
        case rows.SIGNED:
            spare = 64 - 8 * width
            return pa.array((_numbers(stored[:, ::-1]) << spare) >> spare).cast(pa.string())
        case rows.UNSIGNED:
            return pa.array(_numbers(stored[:, ::-1]).view(np.uint64)).cast(pa.string())
        case rows.BIT:
            return pa.array(_numbers(stored).view(np.uint64)).cast(pa.string())
        case rows.YEAR:
            years = _numbers(stored)
            return pa.array(np.where(years > 0, years + 1900, 0)).cast(pa.string())
        case rows.DECIMAL:
            return _decimals(stored, column.size, column.scale)
        case rows.CHOICE:
            return pa.array(("", *column.choices), pa.string()).take(pa.array(_numbers(stored[:, ::-1])))
        case rows.CHOICES:
            codes, which = np.unique(_numbers(stored[:, ::-1]).view(np.uint64), return_inverse=True)
            sets = [",".join(c for bit, c in enumerate(column.choices) if code >> bit & 1) for code in codes.tolist()]
            return pa.array(sets, pa.string()).take(pa.array(which.ravel()))
        case _:
            return _times(column.stored, stored, column.scale)


def _of_bytes(column: MysqlColumn, data: Bytes, start: Places, end: Places) -> pa.Array:
    num_bytes, count = int((end - start).sum(dtype=np.int64)), len(start)
    if _GROWTH * num_bytes + column.scale * count > MAX_BYTES:
        raise SourceError(
            f"values of {column.name} that were changed together take more than 2 GiB as text: lower memory_limit"
        )
    offsets, out = np.zeros(count + 1, np.int32), np.empty(num_bytes, np.uint8)
    gather_text(
        data, start, end, np.zeros(count, np.int8), np.ones(count, np.bool_), offsets, out, np.zeros(count, np.bool_)
    )
    if column.stored == rows.SINGLE:
        letters = pa.array(column.letters, pa.string()).take(pa.array(out))
        offsets, content = np.frombuffer(letters.buffers()[1], np.int32)[offsets], letters.buffers()[2]
    else:
        offsets, content = 2 * offsets, pa.py_buffer(out.tobytes().hex().encode())
    found = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), content)
    # zero bytes at the end of BINARY are not stored
    return pc.utf8_rpad(found, 2 * column.scale, "0") if column.stored == rows.FIXED_BYTES else found


def _numbers(stored: Bytes) -> NDArray[np.int64]:
    """The 64 bits of integers of at most eight bytes, the most significant first."""
    padded = np.zeros((len(stored), 8), np.uint8)
    padded[:, 8 - stored.shape[1] :] = stored
    return padded.view(">i8").ravel().astype(np.int64)


def _padded(numbers: Any, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


def _joined(parts: Sequence[Any], separator: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, separator)


def _signed(is_negative: Mask, text: pa.Array) -> pa.Array:
    return _joined([pc.if_else(pa.array(is_negative), "-", ""), text], "")


def _decimals(stored: Bytes, digits: int, scale: int) -> pa.Array:
    """Decimals: groups of up to nine digits, the first bit flipped, and all bits of negative ones."""
    is_negative = stored[:, 0] < 0x80
    plain = stored ^ np.where(is_negative, 0xFF, 0).astype(np.uint8)[:, None]
    plain[:, 0] ^= 0x80
    whole, fraction, at = ["0"], [""], 0
    in_front = divmod(digits - scale, 9)
    behind = divmod(scale, 9)
    for parts, widths in ((whole, (in_front[1], *[9] * in_front[0])), (fraction, (*[9] * behind[0], behind[1]))):
        for width in widths:
            size = (width + 1) // 2 if width < 9 else 4
            if width:
                parts.append(_padded(_numbers(plain[:, at : at + size]), width))
            at += size
    if at > stored.shape[1]:
        raise ValueError(f"a decimal of {digits} digits in {stored.shape[1]} bytes")
    text = pc.utf8_ltrim(_joined([*whole, ""], ""), "0")
    text = pc.if_else(pc.equal(text, ""), "0", text)
    return _signed(is_negative, _joined([text, _joined(fraction, "")], ".") if scale else text)


def _date(year: Any, month: Any, day: Any) -> pa.Array:
    return _joined([_padded(year, 4), _padded(month, 2), _padded(day, 2)], "-")


def _clock(packed: Any, fraction: Any, scale: int) -> pa.Array:
    """A time of day, or a duration, of which minutes and seconds take six bits each."""
    text = _joined([_padded(part, 2) for part in (packed >> 12 & 0x3FF, packed >> 6 & 63, packed & 63)], ":")
    return _joined([text, _padded(fraction, scale)], ".") if scale else text


def _day(packed: Any) -> pa.Array:
    """The date in front of a time of day, of which years and months are one number."""
    return _date((packed >> 5) // 13, (packed >> 5) % 13, packed & 31)


def _times(what: int, stored: Bytes, scale: int) -> pa.Array:
    size = (scale + 1) // 2
    if what == rows.DATE:
        days = _numbers(stored[:, ::-1])
        text = _date(days >> 9, days >> 5 & 15, days & 31)
        return pc.if_else(pa.array((days & 31 > 0) & (days >> 5 & 15 > 0)), text, None)
    unit = 10 if scale % 2 else 1  # fractions are whole bytes
    if what == rows.TIME:
        # Integers of all bytes together, whose order is that of the values: negative ones are below the middle.
        values = _numbers(stored) - (0x800000 << 8 * size)
        packed = abs(values)
        text = _clock(packed >> 8 * size, (packed & (1 << 8 * size) - 1) // unit, scale)
        return _signed(values < 0, text)
    fraction = _numbers(stored[:, stored.shape[1] - size :]) // unit
    whole = _numbers(stored[:, : stored.shape[1] - size])
    if what == rows.TIMESTAMP:
        moment = pa.array(whole.astype("datetime64[s]")).cast(pa.string())
        moment = _joined([moment, _padded(fraction, scale)], ".") if scale else moment
        return pc.if_else(pa.array((whole != 0) | (fraction != 0)), _joined([moment, "+00"], ""), None)
    days, clock = whole >> 17 & 0x3FFFFF, whole & 0x1FFFF
    is_date = pa.array((days & 31 > 0) & ((days >> 5) % 13 > 0))
    return pc.if_else(is_date, _joined([_day(days), _clock(clock, fraction, scale)], " "), None)


_MAX_DEPTH = 101
"""Containers in each other: the server allows 100."""
_LARGE_OBJECT, _LARGE_ARRAY, _LITERAL, _UINT16, _INT32, _UINT32, _DOUBLE, _STRING, _OPAQUE = (
    1,
    3,
    4,
    6,
    7,
    8,
    11,
    12,
    15,
)
_LITERALS = (b"null", b"true", b"false")
_INTEGERS = {5: (2, True), 6: (2, False), 7: (4, True), 8: (4, False), 9: (8, True), 10: (8, False)}
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246
_LINE = 76
"""Characters of base64 after which the server begins a new line."""
_SPECIAL = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES = {bytes([byte]): b"\\u%04x" % byte for byte in range(32)}
_ESCAPES |= {b"\b": b"\\b", b"\t": b"\\t", b"\n": b"\\n", b"\f": b"\\f", b"\r": b"\\r", b'"': b'\\"', b"\\": b"\\\\"}


def json_text(value: bytes) -> bytes:
    """The text of a JSON value, which is stored as a tree of offsets.

    Raises:
        ValueError, IndexError, struct.error: it is none.
    """
    if not value:  # how some statements store null
        return b"null"
    return _Tree(value).value(value[0], 1, len(value), 0)


class _Tree:
    """Reads one value; each member takes three bytes, and offsets that meet must not become more members than these."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = len(data) // 3 + 1

    def value(self, kind: int, at: int, until: int, depth: int) -> bytes:
        """The text of the value of a kind at a position."""
        if kind <= _LARGE_ARRAY:
            return self._container(kind, at, until, depth)
        if kind == _LITERAL:
            return _LITERALS[self._bytes(at, 1, until)[0]]
        if kind in _INTEGERS:
            size, is_signed = _INTEGERS[kind]
            return b"%d" % int.from_bytes(self._bytes(at, size, until), "little", signed=is_signed)
        if kind == _DOUBLE:
            return _double(struct.unpack("<d", self._bytes(at, 8, until))[0])
        if kind == _STRING:
            return _quoted(self._sized(at, until))
        if kind == _OPAQUE:
            return _opaque(self._bytes(at, 1, until)[0], self._sized(at + 1, until))
        raise ValueError(f"a value of kind {kind}")

    def _bytes(self, at: int, size: int, until: int) -> bytes:
        if at + size > until:
            raise ValueError(f"{size} bytes at {at} of {until}")
        return self._data[at : at + size]

    def _number(self, at: int, size: int, until: int) -> int:
        return int.from_bytes(self._bytes(at, size, until), "little")

    def _sized(self, at: int, until: int) -> bytes:
        """Bytes behind their length, of which each byte has seven bits."""
        length = 0
        for k in range(5):
            byte = self._number(at + k, 1, until)
            length |= (byte & 0x7F) << 7 * k
            if byte < 0x80:
                return self._bytes(at + k + 1, length, until)
        raise ValueError("a length of more than five bytes")

    def _container(self, kind: int, at: int, until: int, depth: int) -> bytes:
        width, is_object = 2 + 2 * (kind & 1), kind <= _LARGE_OBJECT
        members, size = self._number(at, width, until), self._number(at + width, width, until)
        of_key, of_value, end = width + 2 if is_object else 0, 1 + width, at + size
        self._budget -= members
        if depth == _MAX_DEPTH or end > until or 2 * width + members * (of_key + of_value) > size or self._budget < 0:
            raise ValueError(f"{members} members at {at} of {until}")
        keys, parts = at + 2 * width, []
        for member in range(members):
            entry = keys + members * of_key + member * of_value
            inner, place = self._data[entry], entry + 1
            is_inline = _LITERAL <= inner <= _UINT16 or (width == 4 and inner in {_INT32, _UINT32})
            if not is_inline:
                place = at + self._number(place, width, end)
            text = self.value(inner, place, end, depth + 1)
            if is_object:
                key = keys + member * of_key
                name = self._bytes(at + self._number(key, width, end), self._number(key + width, 2, end), end)
                text = b"%b: %b" % (_quoted(name), text)
            parts.append(text)
        return (b"{%b}" if is_object else b"[%b]") % b", ".join(parts)


def _quoted(text: bytes) -> bytes:
    return b'"%b"' % _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _double(number: float) -> bytes:
    """A double by the shortest digits that parse back to it."""
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    text, point = "".join(map(str, digits)), len(digits) + int(exponent)
    if not number:
        text = "0.0"
    elif point > 15 or point <= -15:
        text = f"{text[0]}{text[1:] and '.'}{text[1:]}e{point - 1}"
    elif point <= 0:
        text = f"0.{'0' * -point}{text}"
    else:
        text = f"{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    return (sign * "-" + text).encode()


def _opaque(kind: int, data: bytes) -> bytes:
    """A value of a type that JSON has not."""
    if kind == _DECIMAL:
        digits, scale = data[0], data[1]
        if not 1 <= digits <= rows.MAX_DIGITS or scale > digits:
            raise ValueError(f"a decimal of {digits} digits")
        return bytes(_decimals(np.frombuffer(data, np.uint8)[None, 2:], digits, scale)[0].as_py(), "ascii")
    if kind not in {_TIMESTAMP, _DATE, _TIME, _DATETIME}:
        text = base64.b64encode(data)
        lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
        return b'"base64:type%d:%b"' % (kind, b"\\n".join(lines))
    (packed,) = struct.unpack_from("<q", data)
    whole, fraction = np.array([abs(packed) >> 24]), np.array([abs(packed) & 0xFFFFFF])
    if kind == _TIME:
        found = _signed(np.array([packed < 0]), _clock(whole, fraction, 6))
    else:
        found = _day(whole >> 17)
        if kind != _DATE:
            found = _joined([found, _clock(whole & 0x1FFFF, fraction, 6)], " ")
    return b'"%b"' % found[0].as_py().encode()
