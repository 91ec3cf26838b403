"""Random arguments for every kernel that takes arrays, in arrays that have exactly the room that they need."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nevermore.pipelines.formats import mysql_json_kernels as json_trees
from nevermore.pipelines.formats import mysql_kernels as mysql
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import MemberNames

Arguments = list[Any]
Random = np.random.Generator

_PIECES = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u00e9", b"\\ud83d\\ude00", b"-", b"0", b"12345678901234567890",
    b"1.5e-7", b"true", b"null", b"NaN", b" ", b"\n", b"\r\n", b"\t", "é".encode(), b"=", b"ab", b"0x", b"\xff",
)  # fmt: skip


def fixed(data: bytes) -> NDArray[np.uint8]:
    """Bytes as callers have them: not to be written."""
    return np.frombuffer(data, np.uint8)


def noise(random: Random, most: int = 40) -> bytes:
    """Bytes that kernels look for, in any order."""
    return b"".join(_PIECES[i] for i in random.integers(0, len(_PIECES), random.integers(0, most)))


def value(random: Random, depth: int = 0) -> Any:
    choice = random.integers(0, 9 if depth < 3 else 7)
    if choice == 0:
        return None
    if choice == 1:
        return bool(random.integers(0, 2))
    if choice == 2:
        return int(random.integers(-(2**62), 2**62)) * (10 if random.random() < 0.1 else 1)
    if choice == 3:
        return float(random.standard_normal() * 10.0 ** random.integers(-300, 300))
    if choice <= 6:
        return "".join(random.choice(list('ab"\\\n\té😀 0'), random.integers(0, 20)))
    if choice == 7:
        return [value(random, depth + 1) for _ in range(random.integers(0, 4))]
    return {name(random): value(random, depth + 1) for _ in range(random.integers(0, 4))}


def name(random: Random) -> str:
    number = int(random.integers(0, 60))
    return "é\n" if number == 0 else f"{'long ' * (number % 4)}column {number}"


def text(random: Random, found: Any) -> bytes:
    """JSON of a value, one time in four damaged."""
    data = json.dumps(found, ensure_ascii=bool(random.integers(0, 2))).encode()
    if random.random() < 0.25:
        at = int(random.integers(0, len(data) + 1))
        data = data[:at] + noise(random, 3) + data[at + int(random.integers(0, 3)) :]
    return data


def spans(parts: Sequence[bytes | None], behind: bytes = b"") -> tuple[NDArray[np.uint8], Any, Any]:
    """(data, starts, ends) of parts that lie one behind the other; None begins at -1."""
    ends = np.cumsum([len(p or b"") for p in parts], dtype=np.int64).astype(np.int32)
    starts = ends - np.array([len(p or b"") for p in parts], np.int32)
    starts[[p is None for p in parts]] = -1
    return fixed(b"".join(p or b"" for p in parts) + behind), starts, ends


def documents(random: Random, make: Callable[[Random], Any]) -> tuple[NDArray[np.uint8], Any, Any]:
    parts = [None if random.random() < 0.1 else text(random, make(random)) for _ in range(random.integers(0, 6))]
    return spans(parts)


def an_object(random: Random) -> Any:
    if random.random() < 0.1:
        return value(random)
    return {name(random): value(random) for _ in range(random.choice([0, 1, 3, 8, 40]))}


def stack() -> NDArray[np.uint8]:
    return np.zeros(kernels.MAX_DEPTH, np.uint8)


def some_names(random: Random) -> MemberNames:
    return MemberNames([name(random) for _ in range(random.integers(0, 40))], 100)


def outputs(columns: int, count: int) -> Arguments:
    """Begin, end and kind of each column and row, and the status of each row."""
    shape = columns, count
    dtypes = np.int32, np.int32, np.int8
    return [*(np.zeros(shape, dtype) for dtype in dtypes), np.zeros(count, np.int8)]


def scan_members(random: Random) -> Arguments:
    data, starts, ends = documents(random, an_object)
    known = some_names(random)
    learn = bool(random.integers(0, 2))
    first = int(random.integers(0, len(starts) + 1))
    return [data, starts, ends, first, *known.tables(), learn, *outputs(len(known), len(starts)), stack()]


def begin_with(random: Random) -> Arguments:
    data, starts, ends = documents(random, an_object)
    joined, offsets, _ = some_names(random).tables()
    return [data, starts, ends, joined, offsets, np.zeros(len(starts), np.bool_)]


def scan_elements(random: Random) -> Arguments:
    def elements(of: Random) -> Any:
        return [value(of) for _ in range(of.integers(0, 6))]

    of_objects = bool(random.integers(0, 2))
    data, starts, ends = documents(random, an_object if of_objects else elements)
    count = len(starts)
    lengths = np.zeros(count, np.int32)
    for row in range(count):
        if starts[row] >= 0:
            try:
                found = json.loads(data[starts[row] : ends[row]].tobytes(), object_pairs_hook=_Pairs)
            except (ValueError, RecursionError):
                found = None
            # a broken array is written as far as it goes; callers leave such out
            is_right = isinstance(found, _Pairs if of_objects else list)
            lengths[row] = len(found) * (1 + of_objects) if is_right else 0
            starts[row] = starts[row] if is_right else -1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    fill = bool(random.integers(0, 2))
    total = int(offsets[-1]) if fill else 0
    places = [np.zeros(total, dtype) for dtype in (np.int32, np.int32, np.int8)]
    opening = ord("{" if of_objects else "[")
    status = np.zeros(count, np.int8)
    return [data, starts, ends, opening, np.zeros(count, np.int32), offsets, *places, status, fill, stack()]


class _Pairs(tuple[Any, ...]):
    """The members of an object."""

    __slots__ = ()


def split_documents(random: Random) -> Arguments:
    parts = [text(random, value(random)) for _ in range(random.integers(0, 6))]
    separated = bool(random.integers(0, 2))
    data = fixed((b"," if separated else b"\n").join(parts) or b" ")
    room = np.zeros((random.integers(0, 7), 2), np.int64)
    return [data, int(random.integers(0, len(data) + 1)), len(data), room, stack(), separated]


def find_separators(random: Random) -> Arguments:
    separator = random.choice([b"\t", b"=", b": "])
    keys = [
        text(random, value(random)) if random.random() < 0.7 else noise(random, 3) for _ in range(random.integers(0, 6))
    ]
    lines = [
        key + random.choice([separator, b""]) + noise(random, 3) + b"\r\n"[random.integers(0, 3) :] for key in keys
    ]
    offsets = np.cumsum([0, *map(len, lines)], dtype=np.int32)
    places = [np.zeros(len(lines), np.int64), np.zeros(len(lines), np.int64)]
    return [fixed(b"".join(lines)), offsets, fixed(bytes(separator)), stack(), *places]


def find_document_line(random: Random) -> Arguments:
    parts = [text(random, value(random)) for _ in range(random.integers(0, 6))]
    data = fixed(b"\n".join([b'{"a": [', *parts]) + b"\n{" * int(random.integers(0, 300)))
    return [data, int(random.integers(0, len(data) + 1)), len(data), stack()]


def split_frames(random: Random) -> Arguments:
    lengths = [int(random.choice([0, 1, 7, 2**32 - 1, 2**31])) for _ in range(random.integers(0, 5))]
    data = b"".join(n.to_bytes(4, "big") + bytes(n if n < 8 else 0) for n in lengths) + noise(random, 2)
    return [fixed(data), np.zeros((random.integers(0, 6), 2), np.int64)]


def string(random: Random) -> tuple[bytes, int]:
    """A string as it stands in JSON, and its kind; surrogates may be alone."""
    found = text_of = json.dumps(value_text(random), ensure_ascii=bool(random.integers(0, 2)))[1:-1]
    if random.random() < 0.2:
        found = text_of + random.choice(["\\ud83d", "\\ude00", "\\ud83dab", "\\ud83d\\u0041"])
    return found.encode(), kernels.ESCAPED if "\\" in found else kernels.STRING


def value_text(random: Random) -> str:
    return "".join(random.choice(list('abcdefgh"\\\n\té😀 0'), random.integers(0, 30)))


def number(random: Random) -> bytes:
    choices = (
        str(random.integers(-(2**62), 2**62)),
        repr(float(random.standard_normal() * 10.0 ** random.integers(-300, 300))),
        "9" * int(random.integers(1, 30)),
        "-0",
        "1e400",
    )
    return str(random.choice(choices)).encode()


def cells(random: Random, columns: int, count: int) -> Arguments:
    """[column, row] data, begin, end and kind of strings and numbers."""
    kinds = np.zeros((columns, count), np.int8)
    parts: list[bytes] = []
    for column in range(columns):
        for row in range(count):
            if random.random() < 0.6:
                part, kinds[column, row] = string(random)
            elif random.random() < 0.8:
                part = number(random)
                kinds[column, row] = kernels.INT if part.lstrip(b"-").isdigit() else kernels.FLOAT
            else:
                part, kinds[column, row] = b"null", kernels.NULL
            parts.append(part)
    data, starts, ends = spans(parts, noise(random, 5))
    return [data, starts.reshape(columns, count), ends.reshape(columns, count), kinds]


def one_column(random: Random) -> tuple[Arguments, NDArray[np.bool_], int]:
    data, start, end, kind = cells(random, 1, count := int(random.integers(0, 40)))
    return [data, start[0].copy(), end[0].copy(), kind[0].copy()], random.integers(0, 2, count).astype(np.bool_), count


def gather_text(random: Random) -> Arguments:
    (data, start, end, kind), wanted, count = one_column(random)
    room = np.zeros(int((end - start)[wanted].sum()), np.uint8)
    return [data, start, end, kind, wanted, np.zeros(count + 1, np.int32), room, np.zeros(count, np.bool_)]


def parse_integers(random: Random) -> Arguments:
    (data, start, end, _), wanted, count = one_column(random)
    return [data, start, end, wanted, np.zeros(count, np.int64), np.zeros(count, np.bool_)]


def binary(random: Random, *, widened: bool = False) -> Arguments:
    alphabet = list(b"ABab01+/-_=xz\xc3\xa9\x5c")
    parts = [bytes(random.choice(alphabet, random.integers(0, 20)).tolist()) for _ in range(random.integers(0, 9))]
    data = fixed(b"".join(parts))
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    count = len(parts)
    valid = random.random(count) < 0.9
    bad = np.zeros(count, np.bool_)
    if widened:
        return [offsets, data, valid, np.zeros((count, 16), np.uint8), bad]
    return [offsets, data, valid, np.zeros(count + 1, np.int32), np.zeros(len(data), np.uint8), bad]


def split_records(random: Random) -> Arguments:
    pieces = [b",", b'"', b"\n", b"\r", b"\r\n", b"a", b'""', b"\xff"]
    data = b"".join(pieces[i] for i in random.integers(0, len(pieces), random.integers(0, 40)))
    room = int(random.integers(0, data.count(b"\n") + data.count(b"\r") + 2))
    found = [np.zeros(room, dtype) for dtype in (np.int64, np.int32, np.int8)]
    return [fixed(data), ord(","), bool(random.integers(0, 2)), *found]


def replication_row(random: Random, columns: int) -> bytes:
    """A row of logical replication."""
    found = columns.to_bytes(2, "big")
    for _ in range(columns):
        state = random.choice(list(b"nutt"))
        found += bytes([state])
        if state == ord("t"):
            content = noise(random, 3)
            found += len(content).to_bytes(4, "big") + content
    return found


def replication(random: Random) -> tuple[list[bytes], int]:
    """(messages of logical replication, one in ten damaged; number of columns of their tables)."""
    columns, parts = int(random.integers(0, 5)), []
    for _ in range(random.integers(0, 9)):
        oid = int(random.integers(1, 4)).to_bytes(4, "big")
        new, old = (letter + replication_row(random, columns) for letter in (b"N", random.choice([b"K", b"O"])))
        part = random.choice(
            [
                b"B" + bytes(8) + random.bytes(12), b"C" + bytes(25), b"T" + oid, b"R" + oid + bytes(4), b"I" + oid + new,
                b"U" + oid + new, b"U" + oid + old + new, b"D" + oid + old,
            ]
        )  # fmt: skip
        content = bytearray(part)
        if random.random() < 0.1:
            content[int(random.integers(len(content)))] = int(random.integers(256))
            del content[len(content) - int(random.integers(0, 4)) :]
        parts.append(bytes(content))
    return parts, columns


def number_messages(random: Random) -> Arguments:
    data, starts, ends = spans(replication(random)[0])
    return [data, starts, ends, int(random.integers(0, 9)), *(np.zeros(len(starts), np.int64) for _ in range(5))]


def read_messages(random: Random) -> Arguments:
    data, starts, ends = spans(replication(random)[0])
    count, oids = len(starts), np.arange(1, 3, dtype=np.int64)
    kinds = (np.int32, np.uint8, np.int32, np.int32, np.uint8, np.bool_)
    return [data, starts, ends, oids, np.zeros(2, np.int64), *(np.zeros(count, kind) for kind in kinds)]


def read_replicated_rows(random: Random) -> Arguments:
    columns, count = int(random.integers(1, 5)), int(random.integers(0, 6))
    data, at = b"u", []
    for _ in range(count):
        is_there = random.random() < 0.8
        at.append(len(data) if is_there else 0)
        data += (
            replication_row(random, int(random.choice([columns, columns, columns + 1, columns - 1])))
            if is_there
            else b""
        )
    spans_of = [np.zeros((columns, count), np.int32) for _ in range(2)]
    return [
        fixed(data[: len(data) - int(random.random() < 0.1)]), np.array(at, np.int32), random.choice(list(b"KO"), count).astype(np.uint8),
        random.integers(0, 7, columns).astype(np.uint8), random.random(columns) < 0.5, 0, 1, *spans_of,
        np.zeros((columns, count), np.int8), np.zeros(count, np.int8),
    ]  # fmt: skip


def read_copy(random: Random) -> Arguments:
    columns, pieces = int(random.integers(1, 4)), [b"a", b"\\N", b"\\t", b"\\\\", b"\\", b"t", b"-1", b"\xff"]
    lines = b""
    for _ in range(random.integers(0, 6)):
        values = [b"".join(pieces[i] for i in random.integers(0, 8, random.integers(0, 4))) for _ in range(columns)]
        lines += b"\t".join(values[: columns - int(random.random() < 0.1)]) + (b"\n" if random.random() < 0.95 else b"")
    room = lines.count(b"\n")
    places = [np.zeros((columns, room), np.int32) for _ in range(2)]
    data = np.frombuffer(lines, np.uint8).copy()
    return [
        data,
        len(data),
        random.integers(0, 7, columns).astype(np.uint8),
        *places,
        np.zeros((columns, room), np.int8),
    ]


def stored_columns(random: Random, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]:
    """How the binary log of MySQL stores columns: kinds, sizes and scales, one time in ten of no server."""
    what = random.integers(0, 21, count).astype(np.uint8)
    size, scale = np.zeros(count, np.int32), np.zeros(count, np.int32)
    for c, kind in enumerate(what.tolist()):
        if kind == mysql.DECIMAL:
            size[c] = random.integers(1, 66)
            scale[c] = random.integers(0, min(size[c], 38) + 1)
        elif kind in {mysql.TEXT, mysql.SINGLE, mysql.BYTES, mysql.FIXED_BYTES, mysql.REFUSED, mysql.TREE}:
            size[c] = random.choice([1, 1, 2, 3, 4])
            scale[c] = random.integers(0, 20) if kind == mysql.FIXED_BYTES else 0
        elif kind in {mysql.TIME, mysql.DATETIME, mysql.TIMESTAMP}:
            scale[c] = random.integers(0, 7)
        else:
            size[c] = 3 if kind == mysql.DATE else random.integers(1, 9)
    if count and random.random() < 0.1:
        chosen = random.choice([size, scale][int(random.integers(0, 2))][:1])
        (size if random.random() < 0.5 else scale)[random.integers(0, count)] = random.choice(
            [-1, 0, 9, 70, 300, chosen]
        )
    return what, size, scale


def packed(flags: Sequence[bool]) -> bytes:
    return np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()


def stored_row(random: Random, columns: tuple[NDArray[np.uint8], ...], present: list[bool]) -> bytes:
    """A row as the binary log has it, now and then with a length that is too large."""
    sent = [c for c, is_sent in enumerate(present) if is_sent]
    nulls = random.random(len(sent)) < 0.2
    values = [] if not sent else [packed(nulls.tolist())]
    for c, is_null in zip(sent, nulls.tolist(), strict=True):
        kind, size, scale = (int(array[c]) for array in columns)
        if is_null:
            continue
        if kind == mysql.DECIMAL:
            length = (
                4 * ((size - scale) // 9) + 4 * (scale // 9) + sum((int(n) % 9 + 1) // 2 for n in (size - scale, scale))
            )
        elif kind in {mysql.TEXT, mysql.SINGLE, mysql.BYTES, mysql.FIXED_BYTES, mysql.REFUSED, mysql.TREE}:
            content = random.bytes(int(random.integers(0, 9)))
            stated = len(content) if random.random() < 0.95 else 255
            values.append(stated.to_bytes(min(max(size, 1), 8), "little") + content)
            continue
        elif kind in {mysql.TIME, mysql.DATETIME, mysql.TIMESTAMP}:
            length = {mysql.TIME: 3, mysql.DATETIME: 5, mysql.TIMESTAMP: 4}[kind] + (scale + 1) // 2
        else:
            length = size
        values.append(random.bytes(max(length, 0)))
    return b"".join(values)


def find_stored_rows(random: Random) -> Arguments:
    counts = random.integers(0, 11, random.integers(1, 4)).tolist()
    first = np.cumsum([0, *counts])[:-1].astype(np.int32)
    columns = stored_columns(random, sum(counts))
    events = []
    for _ in range(random.integers(0, 5)):
        number = int(random.integers(0, len(counts) + int(random.random() < 0.1)))
        op = int(random.choice(list(b"cudt")))
        own = (
            tuple(array[first[number] : first[number] + counts[number]] for array in columns)
            if number < len(counts)
            else ()
        )
        images = [(random.random(len(own[0])) < 0.9).tolist() if own else [] for _ in range(1 + (op == mysql.UPDATE))]
        data = number.to_bytes(4, "little") + random.bytes(4) + bytes([op])
        data += b"".join(packed(present) for present in images)
        if own:
            data += b"".join(stored_row(random, own, p) for _ in range(random.integers(0, 3)) for p in images)
        events.append(data[: len(data) - int(random.random() < 0.1) * int(random.integers(0, 12))])
    data, starts, ends = spans(events)
    room = int(random.integers(0, 8))
    places = [np.zeros(room, np.int32) for _ in range(3)]
    return [data, starts, ends, first, np.array(counts, np.int32), *columns, *places, np.zeros(len(events), np.bool_)]


def read_stored_rows(random: Random) -> Arguments:
    count, num_columns = int(random.integers(0, 5)), int(random.integers(0, 11))
    columns = stored_columns(random, num_columns)
    data, event, at, ops = b"", [], [], random.choice(list(b"cud"), count).astype(np.uint8)
    second = int(random.integers(0, 2))
    for op in ops.tolist():
        event.append(len(data))
        images = [(random.random(num_columns) < 0.9).tolist() for _ in range(1 + (op == mysql.UPDATE))]
        data += random.bytes(mysql.HEADER_BYTES)
        data += b"".join(packed(present) for present in images)
        rows = [stored_row(random, columns, present) for present in images]
        at.append(0 if random.random() < 0.1 else len(data) + (len(rows[0]) if second and len(rows) == 2 else 0))
        data += b"".join(rows)
    data = data[: len(data) - int(random.random() < 0.15) * int(random.integers(0, 12))]
    letters = np.zeros((512, 1 + mysql.GROWTH), np.uint8)
    letters[:, 0] = random.integers(0, mysql.GROWTH + 1, 512)
    room = 0 if random.random() < 0.2 else count * num_columns * (mysql.MAX_CHARACTERS + 64) + mysql.GROWTH * len(data)
    places = [np.zeros((num_columns, count), np.int32) for _ in range(2)]
    return [
        fixed(data), ops, np.array(event, np.int32), np.array(at, np.int32), *columns,
        random.choice([0, 256], num_columns).astype(np.int32), letters, *places, np.zeros((num_columns, count), np.int8),
        np.zeros(count, np.int8), np.zeros(room if random.random() < 0.9 else room // 3, np.uint8), second,
    ]  # fmt: skip


def frame_packets(random: Random) -> Arguments:
    data = b""
    for _ in range(random.integers(0, 6)):
        content = random.choice(list(b"\xff\xfe\x00a"), random.integers(0, 12)).astype(np.uint8).tobytes()
        stated = len(content) if random.random() < 0.9 else int(random.choice([0, 5, 0xFFFFFF]))
        data += stated.to_bytes(3, "little") + b"\0" + content
    size = len(data) - int(random.random() < 0.2) * min(3, len(data))
    return [
        fixed(data),
        int(random.integers(0, min(4, size) + 1)) if random.random() < 0.2 else 0,
        size,
        np.zeros(random.integers(2, 8), np.int64),
    ]


def read_protocol_texts(random: Random) -> Arguments:
    columns, rows = int(random.integers(0, 5)), []
    for _ in range(random.integers(0, 5)):
        row = b""
        for _ in range(columns + int(random.integers(-1, 2)) * int(random.random() < 0.1)):
            content = b"0000-00-00 00:00:00"[: random.integers(0, 20)]
            lengths = (bytes([len(content)]), b"\xfb", b"\xfc" + len(content).to_bytes(2, "little"),
                       b"\xfd" + len(content).to_bytes(3, "little"), b"\xfe" + len(content).to_bytes(8, "little"), b"\xfe" + b"\xff" * 8)  # fmt: skip
            chosen = int(random.choice(6, p=[0.5, 0.2, 0.1, 0.1, 0.07, 0.03]))
            row += lengths[chosen] + (b"" if chosen == 1 else content)
        rows.append(row[: len(row) - int(random.random() < 0.1) * min(3, len(row))])
    data, starts, ends = spans(rows)
    places = [np.zeros((columns, len(rows)), np.int32) for _ in range(2)]
    return [
        data, starts, ends, random.integers(0, 21, columns).astype(np.uint8), *places,
        np.zeros((columns, len(rows)), np.int8),
    ]  # fmt: skip


def stored_tree(random: Random, depth: int) -> bytes:
    """A JSON value as the binary log of MySQL stores it, with its type in front."""
    kind = int(random.choice([0, 2, 1, 3, 4, 5, 8, 10, 11, 12, 15] if depth else [4, 5, 6, 7, 9, 11, 12, 15]))
    if kind == 4:
        return bytes([4, random.integers(0, 4)])
    if 5 <= kind <= 11:
        return bytes([kind]) + random.bytes({5: 2, 6: 2, 7: 4, 8: 4}.get(kind, 8))
    if kind == 12:
        text = random.bytes(random.integers(0, 200))
        return (
            bytes([12])
            + (bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7]))
            + text
        )
    if kind == 15:
        of = int(random.choice([246, 7, 10, 11, 12, 252]))
        content = b"\x14\x04" + random.bytes(10) if of == 246 else random.bytes(random.integers(7, 12))
        return bytes([15, of, len(content)]) + content
    width, is_object = 4 if kind & 1 else 2, kind < 2
    members = [stored_tree(random, depth - 1) for _ in range(random.integers(0, 4))]
    keys = [random.bytes(random.integers(0, 5)) for _ in members] if is_object else []
    at = 2 * width + len(members) * (1 + width) + len(keys) * (width + 2)
    heads, rest = b"", b""
    for key in keys:
        heads += (at + len(rest)).to_bytes(width, "little") + len(key).to_bytes(2, "little")
        rest += key
    for member in members:
        if len(member) - 1 <= width and member[0] in range(4, 9):
            heads += member.ljust(1 + width, b"\0")
        else:
            heads += member[:1] + (at + len(rest)).to_bytes(width, "little")
            rest += member[1:]
    size = at + len(rest)
    return bytes([kind]) + len(members).to_bytes(width, "little") + size.to_bytes(width, "little") + heads + rest


def write_trees(random: Random) -> Arguments:
    values = []
    for _ in range(random.integers(0, 5)):
        value = bytearray(stored_tree(random, int(random.integers(0, 5))))
        for _ in range(random.integers(0, 4) * int(random.random() < 0.4)):
            value[random.integers(0, len(value))] = random.choice([0, 1, 2, 3, 255, random.integers(0, 256)])
        values.append(bytes(value[: len(value) - int(random.random() < 0.1) * min(3, len(value))]))
    data, starts, ends = spans(values)
    texts = ["0.1", "-1e+300", "1e-07", "123456.75", "-0.0", "inf", "", "2.5e22"]
    chosen = [texts[at].encode() for at in random.integers(0, len(texts), random.integers(0, 9))]
    digit_ends = np.cumsum([0, *map(len, chosen)]).astype(np.int32)
    return [
        data, starts, ends, random.random(len(values)) < 0.9, np.zeros(random.choice([0, 50, 5000]), np.uint8),
        np.zeros(len(values) + 1, np.int32), np.zeros(random.integers(0, 9), np.uint64), fixed(b"".join(chosen)),
        digit_ends if random.random() < 0.8 else np.zeros(0, np.int32), np.zeros((json_trees.MAX_DEPTH, json_trees.FRAME), np.int64),
        np.zeros(json_trees.SCRATCH_BYTES, np.uint8),
    ]  # fmt: skip


def write_json(random: Random) -> Arguments:
    pieces = [b"{", b"}", b'"', b"\\", b",", b" ", b"=>", b"=", b"a", b"NULL", b"\x01", b"[0:1]=", b"\0", b"\xff"]
    parts = [b"".join(pieces[i] for i in random.integers(0, len(pieces), random.integers(0, 12))) for _ in range(5)]
    data, starts, ends = spans(parts)
    kind = np.where(random.random(5) < 0.8, kernels.STRING, kernels.NULL).astype(np.int8)
    room = 6 * sum(map(len, parts)) + 8 * 5 + 16
    return [data, starts, ends, kind, bool(random.integers(0, 2)), np.zeros(room, np.uint8), len(data)]


CASES: dict[str, Callable[[Random], Arguments]] = {
    "nevermore.pipelines.formats.mysql_json_kernels.write_trees": write_trees,
    "nevermore.pipelines.formats.mysql_kernels.find_rows": find_stored_rows,
    "nevermore.pipelines.formats.mysql_kernels.frame": frame_packets,
    "nevermore.pipelines.formats.mysql_kernels.read_rows": read_stored_rows,
    "nevermore.pipelines.formats.mysql_kernels.read_texts": read_protocol_texts,
    "nevermore.pipelines.formats.pgoutput_kernels.number_messages": number_messages,
    "nevermore.pipelines.formats.pgoutput_kernels.read_copy": read_copy,
    "nevermore.pipelines.formats.pgoutput_kernels.read_messages": read_messages,
    "nevermore.pipelines.formats.pgoutput_kernels.read_rows": read_replicated_rows,
    "nevermore.pipelines.formats.pgoutput_kernels.write_json": write_json,
    "nevermore.pipelines.jsonscan.text_kernels.decode_bytes": lambda random: [
        int(random.integers(0, 3)),
        *binary(random),
    ],
    "nevermore.pipelines.jsonscan.text_kernels.widen_integers": lambda random: binary(random, widened=True),
    "nevermore.pipelines.jsonscan.object_kernels.find_document_line": find_document_line,
    "nevermore.pipelines.jsonscan.object_kernels.find_separators": find_separators,
    "nevermore.pipelines.jsonscan.object_kernels.scan_elements": scan_elements,
    "nevermore.pipelines.jsonscan.object_kernels.split_documents": split_documents,
    "nevermore.pipelines.jsonscan.object_kernels.split_frames": split_frames,
    "nevermore.pipelines.jsonscan.object_kernels.begin_with": begin_with,
    "nevermore.pipelines.jsonscan.object_kernels.scan_members": scan_members,
    "nevermore.pipelines.jsonscan.text_kernels.gather_text": gather_text,
    "nevermore.pipelines.jsonscan.text_kernels.parse_integers": parse_integers,
    "nevermore.pipelines.sources.csv_file.split_records": split_records,
}
"""By kernel: how to make arguments."""
