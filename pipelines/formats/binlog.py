"""The binary logs of MySQL and MariaDB as changes: their row events, and the feeds of Canal and Maxwell in JSON.

Rows of their text protocol, which a load reads, are decoded like row events. The source describes each table
(`RawEvents.tables`). Values become text as the servers write it, and columns of the declared types. JSON itself is read in
`jsonscan/`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.events import (
    TWICE,
    Declared,
    Events,
    described_rows,
    events_of,
    loaded_rows,
    milliseconds,
    op_codes,
    paths_of,
    refusal,
    skip_counts,
    strings,
    table_names,
    with_others,
)
from nevermore.pipelines.decode.feed_schemas import RepeatedNameError, load, mysql_type, once
from nevermore.pipelines.decode.image import Columns, ObjectImages, OverlaidImages
from nevermore.pipelines.decode.json_columns import integers, json_text, text
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import mysql_json_kernels as trees
from nevermore.pipelines.formats import mysql_kernels as rows
from nevermore.pipelines.formats.options import CanalOptions, MaxwellOptions, MysqlRowsOptions
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects
from nevermore.pipelines.jsonscan.spans import Documents, Members, from_binary
from nevermore.scan_core import Mask, Rows

_CANAL_NAMES = (
    "data", "database", "es", "id", "isDdl", "mysqlType", "old", "pkNames", "sql", "sqlType", "table", "ts", "type",
)  # fmt: skip
_NO_ROWS = dict.fromkeys(
    ("CREATE", "ALTER", "ERASE", "QUERY", "RENAME", "CINDEX", "DINDEX", "GTID", "XACOMMIT", "XAROLLBACK", "MHEARTBEAT", "INIT-DDL"),
    "x",
)  # fmt: skip
"""Canal's other event types: DDL, and events without rows."""
_CANAL_OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"}

MAX_BYTES = 2**31 - 1
PACKET_HEADER_BYTES = 4
"""Of a row that was selected, in front of its values."""
_DOUBLE_BYTES = 9
_NUMPY = {rows.FLOAT: "<f4", rows.DOUBLE: "<f8"}
"""Of a double in JSON: its own, and at least one for its type."""


def decode_canal(raw: RawEvents, _options: CanalOptions) -> Events:
    """Decode a batch of Canal JSON to changes, one per row of a message."""
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _CANAL_NAMES, learn=False)
    kinds = strings(messages.column("type"))
    op_of_message = op_codes(kinds, _CANAL_OPS)
    said = messages.column("isDdl").kind == kernels.TRUE
    ddl = messages.is_object & ((said & (op_of_message == 0)) | (op_codes(kinds, _NO_ROWS) != 0))
    contradictory = messages.is_object & said & (op_of_message != 0) & (op_of_message != ord("t"))
    data = scan_arrays(messages.column("data").documents(kernels.ARRAY))
    old = scan_arrays(messages.column("old").documents(kernels.ARRAY))
    truncate = messages.is_object & (op_of_message == ord("t"))
    count = np.where(truncate, 1, np.diff(data.offsets))
    declared_of, declared, repeated, broken = _canal_declared(messages)
    row_change = messages.is_object & ~ddl & ~contradictory & ~repeated & ~broken & (op_of_message != 0)
    count = np.where(row_change, count, 0)
    raw_of = np.repeat(np.arange(len(count)), count)
    rows = _elements(data.values.documents(kernels.OBJECT), data.offsets, raw_of, count)
    former = _elements(old.values.documents(kernels.OBJECT), old.offsets, raw_of, count)
    op = op_of_message[raw_of]
    names_of, tables = table_names([strings(messages.column(name)) for name in ("database", "table")])
    empty = row_change & ~truncate & (count == 0)
    unknown = messages.is_object & ~ddl & (op_of_message == 0)
    deleted = op == ord("d")
    events = events_of(
        op,
        (names_of[raw_of], tables),
        ObjectImages(rows.where(~deleted)),
        OverlaidImages(rows.where(deleted | former.present), former.where(~deleted)),
        raw=raw_of,
        source_ts=milliseconds(*integers(messages.column("es"))).take(pa.array(raw_of)),
        declared=(declared_of[raw_of], declared),
        order=paths_of(documents, raw_of),
        refusals=(
            *refusal(
                unknown,
                "not a Canal change: type is none of INSERT, UPDATE, DELETE, TRUNCATE, and isDdl not true",
                kinds,
            ),
            *refusal(contradictory, "isDdl is true, but type is that of a row change", kinds),
            *refusal(empty, "a change without rows: data is missing"),
            *refusal(repeated, f"mysqlType, sqlType or pkNames: {TWICE}"),
            *refusal(broken, f"mysqlType, sqlType or pkNames: {_BROKEN}"),
        ),
        skipped=skip_counts(("DDL", ddl)),
    )
    return with_others(events, messages)


def _elements(
    elements: Documents, offsets: NDArray[np.int32], raw_of: NDArray[np.int64], count: NDArray[np.int64]
) -> Documents:
    """Per change, the element at its place in the array of its message; missing where the array is shorter."""
    number = np.arange(len(raw_of)) - np.repeat(np.cumsum(count) - count, count)
    inside = number < np.diff(offsets)[raw_of]
    at = np.where(inside, offsets[:-1][raw_of] + number, 0)
    if not len(elements):
        nothing = np.full(len(raw_of), -1, np.int32)
        return Documents(elements.data, nothing, nothing)
    return elements.take(at).where(inside)


_BROKEN = "not names and types: it contains a number out of range"
_BETWEEN = "\x1d"
"""A character that JSON text cannot contain."""


def _canal_declared(messages: Any) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    """Column types from `mysqlType` and key from `pkNames`, per distinct set of texts; see `_parsed`."""
    texts = [json_text(messages.column(name))[0].fill_null("") for name in ("mysqlType", "pkNames", "sqlType")]
    encoded = pc.binary_join_element_wise(*texts, _BETWEEN).dictionary_encode()
    return _parsed(encoded, lambda text: _canal_types(*text.split(_BETWEEN)))


def _parsed(
    encoded: pa.DictionaryArray, parse: Callable[[str], Declared]
) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    """Parse declarations: codes per message, declarations, messages that repeat a name, and unreadable messages."""
    declared: list[Declared] = []
    repeated: list[int] = []
    broken: list[int] = []
    for written in encoded.dictionary.to_pylist():
        found = Declared()
        try:
            found = parse(written)
        except RepeatedNameError:
            repeated.append(len(declared))
        except ValueError:  # numbers that no JSON parser accepts, such as 1e999
            broken.append(len(declared))
        declared.append(found)
    codes = np.asarray(encoded.indices).astype(np.int32)
    return codes, tuple(declared), np.isin(codes, repeated), np.isin(codes, broken)


def _canal_types(types: str, keys: str, codes: str) -> Declared:
    columns = load(types) if types.startswith("{") else {}
    if codes.startswith("{"):
        load(codes)  # JDBC types: less specific than the names, but also checked for repeated names
    return Declared({name: mysql_type(str(text)) for name, text in columns.items()}, _key(keys))


def _key(text: str) -> tuple[str, ...]:
    key = load(text) if text.startswith("[") else []
    return once(key) if all(isinstance(name, str) for name in key) else ()


_MAXWELL_NAMES = ("database", "table", "type", "ts", "xid", "data", "old", "primary_key_columns", "encrypted")
_MAXWELL_OPS = {"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"}
_CONTROL = dict.fromkeys(
    (
        *("bootstrap-start", "bootstrap-complete", "heartbeat", "table-create", "table-alter", "table-drop"),
        *("database-create", "database-alter", "database-drop"),
    ),
    "x",
)


def decode_maxwell(raw: RawEvents, _options: MaxwellOptions) -> Events:
    """Decode a batch of Maxwell JSON to changes."""
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _MAXWELL_NAMES, learn=False)
    kinds = strings(messages.column("type"))
    encrypted = messages.column("encrypted").has_value
    op = np.where(encrypted, np.uint8(0), op_codes(kinds, _MAXWELL_OPS))
    control = messages.is_object & (op_codes(kinds, _CONTROL) != 0)
    rows = messages.column("data").documents(kernels.OBJECT)
    former = messages.column("old").documents(kernels.OBJECT)
    unknown = messages.is_object & (op == 0) & ~control & ~encrypted
    deleted = op == ord("d")
    seconds, given = integers(messages.column("ts"))
    declared_of, declared, repeated, broken = _maxwell_declared(messages)
    events = events_of(
        op,
        table_names([strings(messages.column(name)) for name in ("database", "table")]),
        ObjectImages(rows.where(~deleted)),
        OverlaidImages(rows.where(deleted | former.present), former.where(~deleted)),
        source_ts=milliseconds(seconds * 1000, given),
        declared=(declared_of, declared),
        order=paths_of(documents),
        refusals=(
            *refusal(encrypted, "encrypted: only Maxwell's own key can decrypt it; run Maxwell without encryption"),
            *refusal(unknown, "not a Maxwell change: type is none of insert, update, delete, bootstrap-insert", kinds),
            *refusal(repeated, f"primary_key_columns: {TWICE}"),
            *refusal(broken, f"primary_key_columns: {_BROKEN}"),
        ),
        skipped=skip_counts(("control event", control)),
    )
    return with_others(events, messages)


def _maxwell_declared(messages: Members) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    encoded = json_text(messages.column("primary_key_columns"))[0].fill_null("").dictionary_encode()
    return _parsed(encoded, lambda text: Declared(key=_key(text)))


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


@dataclass(frozen=True, slots=True)
class MysqlTable:
    """The description of a table at some time: its name as `database.table`, columns in order, and columns of its primary key."""

    name: str
    columns: tuple[MysqlColumn, ...]
    key: tuple[str, ...] = ()

    @property
    def declared(self) -> Declared:
        """Types and key of the table; columns that cannot be read have none."""
        return Declared({c.name: column_type(c.type) for c in self.columns if c.is_readable}, self.key, is_whole=True)


@lru_cache(maxsize=4096)
def column_type(name: str) -> ValueType:
    """The value type of a column; text for times, which may be negative and longer than a day."""
    base, _, arguments = name.partition("(")
    if base == "bytes":
        return ValueType(pa.binary(), Encoding.HEX)
    if base == "float":
        return ValueType(pa.float32())
    if base == "time":
        return ValueType(pa.string())
    if base == "bit" and arguments != "1)":
        return ValueType(pa.decimal128(20, 0) if arguments == "64)" else pa.int64())
    if base == "timestamp":
        return ValueType(pa.timestamp("us", "UTC"))
    return mysql_type(name)


def event(number: int, seconds: int, what: bytes, body: bytes | memoryview = b"") -> bytes:
    """A document of a batch: what an event does (`c`, `u`, `d`, `t`) to a table with the description of this number, and when."""
    return b"".join((number.to_bytes(4, "little"), seconds.to_bytes(4, "little"), what, body))


@dataclass(frozen=True)
class _Layout:
    """Descriptions of tables as arrays: by table, its number of columns and the place of the first; then over all columns.

    See `find_rows`; `characters` is the place of a column's set in `letters`, the UTF-8 of each character: its length, and its bytes.
    """

    tables: tuple[MysqlTable, ...]
    columns: NDArray[np.int32]
    first: NDArray[np.int32]
    what: NDArray[np.uint8]
    size: NDArray[np.int32]
    scale: NDArray[np.int32]
    characters: NDArray[np.int32]
    letters: NDArray[np.uint8]


@lru_cache(maxsize=64)
def _layout(tables: tuple[MysqlTable, ...]) -> _Layout:
    every = [column for table in tables for column in table.columns]
    counts = np.array([len(table.columns) for table in tables], np.int32)
    sets = list(dict.fromkeys(column.letters for column in every if column.letters))
    letters = np.zeros((256 * len(sets) or 1, 1 + rows.GROWTH), np.uint8)
    for at, letter in enumerate(letter.encode() for own in sets for letter in own):
        letters[at, : 1 + len(letter)] = [len(letter), *letter]
    numbers = [(c.stored, c.size, c.scale, 256 * sets.index(c.letters) if c.letters else 0) for c in every]
    what, size, scale, characters = np.array(numbers, np.int32).reshape(-1, 4).T.copy()
    return _Layout(
        tables,
        counts,
        np.cumsum(counts, dtype=np.int32) - counts,
        what.astype(np.uint8),
        size,
        scale,
        characters,
        letters,
    )


@dataclass(frozen=True)
class _RowImages:
    """Old or new rows of changes of several tables; changes that are taken together are of one description.

    Attributes:
        data: bytes of the events.
        layout: descriptions.
        version: description of each change.
        op: what the event of each change does.
        event: begin of the event of each change.
        at: position of the row of each change, 0 without one.
        is_new: whether these are the new rows.
    """

    data: NDArray[np.uint8]
    layout: _Layout
    version: NDArray[np.int64]
    op: NDArray[np.uint8]
    event: NDArray[np.int32]
    at: NDArray[np.int32]
    is_new: bool

    def take(self, wanted: Rows) -> Columns:
        """See `ImageSource`."""
        numbers = np.unique(self.version[wanted])
        number = int(numbers[0]) if len(numbers) else 0
        layout, table = self.layout, self.layout.tables[number] if len(numbers) else MysqlTable("", ())
        columns = slice(int(layout.first[number]), int(layout.first[number]) + len(table.columns))
        shape = len(table.columns), len(wanted)
        start, end, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int8)
        status = np.empty(len(wanted), np.int8)

        def read(out: NDArray[np.uint8]) -> int:
            return int(
                rows.read_rows(
                    self.data, self.op[wanted], self.event[wanted], self.at[wanted],
                    layout.what[columns], layout.size[columns], layout.scale[columns], layout.characters[columns],
                    layout.letters, start, end, kind, status, out, int(self.is_new),
                )
            )  # fmt: skip

        room = read(np.zeros(0, np.uint8))
        if len(self.data) + room > MAX_BYTES:
            raise SourceError(
                f"rows of {table.name} that were changed together take more than 2 GiB as text: lower memory_limit"
            )
        out = np.empty(room + 1, np.uint8)
        parts = [self.data, out[: read(out)]]
        for at, column in enumerate(table.columns):
            if column.stored in {rows.FLOAT, rows.DOUBLE, rows.CHOICE, rows.CHOICES}:
                _with_texts(parts, column, start[at], end[at], kind[at])
            elif column.stored == rows.TREE:
                _with_json(parts, f"{table.name}.{column.name}", start[at], end[at], kind[at])
        return Members(np.concatenate(parts), tuple(c.name for c in table.columns), start, end, kind, status)


def _with_texts(
    parts: list[NDArray[np.uint8]],
    column: MysqlColumn,
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    kind: NDArray[np.int8],
) -> None:
    """Add the text of numbers with a fraction, enums and sets, to which their spans point then."""
    given = np.flatnonzero(kind > kernels.NULL)
    if not len(given):
        return
    stored = parts[0][start[given][:, None] + np.arange(column.size)]
    if column.stored in {rows.FLOAT, rows.DOUBLE}:
        texts = pa.array(np.ascontiguousarray(stored).view(_NUMPY[column.stored]).ravel()).cast(pa.string())
    else:
        whole = np.zeros((len(given), 8), np.uint8)
        whole[:, : column.size] = stored
        codes = whole.view("<u8").ravel()
        if column.stored == rows.CHOICE:
            texts = pa.array(("", *column.choices), pa.string()).take(pa.array(codes))
        else:
            distinct, inverse = np.unique(codes, return_inverse=True)
            sets = [
                ",".join(c for bit, c in enumerate(column.choices) if code >> bit & 1) for code in distinct.tolist()
            ]
            texts = pa.array(sets, pa.string()).take(pa.array(inverse.ravel()))
    _point_to(texts, parts, given, start, end)


def _point_to(
    texts: pa.StringArray,
    parts: list[NDArray[np.uint8]],
    given: NDArray[np.int64],
    start: NDArray[np.int32],
    end: NDArray[np.int32],
) -> None:
    """Add texts, to which the spans of these rows point then."""
    found, base = from_binary(texts), sum(map(len, parts))
    start[given], end[given] = base + found.start, base + found.end
    parts.append(found.data)


def _with_json(
    parts: list[NDArray[np.uint8]],
    name: str,
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    kind: NDArray[np.int8],
) -> None:
    """Add the text of JSON values, to which their spans point then.

    Raises:
        SourceError: a value is none of JSON.
    """
    given = kind == kernels.STRING
    frames = np.zeros((trees.MAX_DEPTH, trees.FRAME), np.int64)
    scratch = np.zeros(trees.SCRATCH_BYTES, np.uint8)
    ends = np.zeros(len(start) + 1, np.int32)

    def write(
        out: NDArray[np.uint8], doubles: NDArray[np.uint64], digits: NDArray[np.uint8], digit_ends: NDArray[np.int32]
    ) -> int:
        size = trees.write_trees(parts[0], start, end, given, out, ends, doubles, digits, digit_ends, frames, scratch)
        if size < 0:
            raise SourceError(f"a value of {name} in the binary log is not JSON as MySQL stores it")
        return int(size)

    nothing = np.zeros(0, np.uint8)
    doubles = np.zeros(int((end[given] - start[given]).sum()) // _DOUBLE_BYTES + 1, np.uint64)
    write(nothing, doubles, nothing, np.zeros(0, np.int32))
    if ends[-1] > len(doubles):
        raise SourceError(f"a value of {name} in the binary log is not JSON as MySQL stores it")
    texts = pa.array(doubles[: ends[-1]].view(np.float64)).cast(pa.string())
    _, offsets, data = texts.buffers()
    digits = np.frombuffer(data, np.uint8) if data is not None and len(data) else nothing
    places = np.frombuffer(offsets, np.int32)[: len(texts) + 1] if len(texts) else np.zeros(0, np.int32)
    out = np.zeros(write(nothing, doubles, digits, places), np.uint8)
    write(out, doubles, digits, places)
    base = sum(map(len, parts))
    start[given] = base + np.concatenate([np.zeros(1, np.int32), ends[:-2]])[given] if len(start) else 0
    end[given] = base + ends[:-1][given]
    parts.append(out)


def decode_mysql_rows(raw: RawEvents, _options: MysqlRowsOptions) -> Events:
    """Decode a batch of row events.

    Raises:
        SourceError: no source describes the tables.
    """
    if raw.tables is None:
        raise SourceError(
            "mysql-rows is what MySQL sends to a replication client, not a format of files: source: {type: mysql}"
        )
    documents, layout = from_binary(raw.documents), _layout(raw.tables)
    data, count = documents.data, len(documents)
    start, end = np.ascontiguousarray(documents.start), np.ascontiguousarray(documents.end)
    if raw.is_load:
        return _selected_rows(layout, data, start + PACKET_HEADER_BYTES, end)
    broken = np.zeros(count, np.bool_)

    def find(room: int) -> tuple[int, list[NDArray[np.int32]]]:
        found = [np.zeros(room, np.int32) for _ in range(3)]
        what, size, scale = layout.what, layout.size, layout.scale
        return (
            int(rows.find_rows(data, start, end, layout.first, layout.columns, what, size, scale, *found, broken)),
            found,
        )

    num_rows, _ = find(0)
    _, (of, old, new) = find(num_rows)
    begin = start[of]
    op = data[begin + rows.HEADER_BYTES - 1] if num_rows else np.zeros(0, np.uint8)
    header = np.ascontiguousarray(data[begin[:, None] + np.arange(8)]).view("<u4") if num_rows else np.zeros((0, 2))
    version = header[:, 0].astype(np.int64)
    times = pa.array(header[:, 1].astype(np.int64) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    return described_rows(
        [(t.name, t.declared) for t in layout.tables],
        header[:, 0].astype(np.int32),
        op,
        _RowImages(data, layout, version, op, begin, new, is_new=True),
        _RowImages(data, layout, version, op, begin, old, is_new=False),
        raw=of.astype(np.int64),
        source_ts=times,
        refusals=refusal(broken, "a row event of the binary log that cannot be read"),
    )


def values_change(table: MysqlTable, body: bytes | memoryview, names: Collection[str]) -> bool:
    """Whether some rows of an event with updates have other values in these columns than before, or columns that cannot be read."""
    readable = {column.name for column in table.columns if column.is_readable}
    if not readable.issuperset(names):
        return True
    raw = replace(from_documents([event(0, 0, b"u", body)]), tables=(table,))
    events = decode_mysql_rows(raw, MysqlRowsOptions())
    every = np.arange(len(events.op))
    old, new = (images.take(every) for images in (events.before, events.after))
    pairs = ((old.column(name), new.column(name)) for name in names)
    return any(not text(a, a.has_value)[0].equals(text(b, b.has_value)[0]) for a, b in pairs)


def _selected_rows(
    layout: _Layout, data: NDArray[np.uint8], begin: NDArray[np.int32], until: NDArray[np.int32]
) -> Events:
    """Rows that were selected, as snapshot reads."""
    table, count = layout.tables[0], len(begin)
    shape = len(table.columns), count
    start, end, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int8)
    if not rows.read_texts(data, begin, until, layout.what, start, end, kind):
        raise SourceError(f"rows selected from {table.name} cannot be read")
    members = Members(data, tuple(c.name for c in table.columns), start, end, kind, np.full(count, kernels.OK, np.int8))
    parts = [data]
    for at, column in enumerate(table.columns):
        given = np.flatnonzero(kind[at] > kernels.NULL)
        if column.stored in _NUMPY and len(given):
            # As text, a float must be that of the log, where it identifies a row.
            found = text(members.column(column.name), kind[at] > kernels.NULL)[0].take(pa.array(given))
            numbers = np.asarray(found.cast(pa.float64())).astype(_NUMPY[column.stored])
            _point_to(pa.array(numbers).cast(pa.string()), parts, given, start[at], end[at])
    members = replace(members, data=np.concatenate(parts))
    return loaded_rows(table.name, table.declared, members)
