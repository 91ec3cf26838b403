"""Debezium events: the rules for all of its formats, events in columns, and Avro messages.

Contains the rules that make an event a change, the layouts and the options. Debezium's JSON is decoded in
`debezium_json.py` by the same rules.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.arrow_columns import single
from nevermore.pipelines.decode.avro import AvroMessages, types_of_file
from nevermore.pipelines.decode.batches import RawEvents
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.events import (
    Declared,
    Events,
    Placed,
    Refusal,
    distinct_columns,
    events_of,
    merged,
    milliseconds,
    of_columns,
    op_codes,
    skip_counts,
    table_names,
)
from nevermore.pipelines.decode.image import ArrowMembers
from nevermore.pipelines.decode.json_columns import text, text_bytes, true_mask
from nevermore.pipelines.decode.protobuf import ProtobufMessages
from nevermore.pipelines.decode.schema_registry import (
    RegisteredSchema,
    SchemaKind,
    Schemas,
    UnknownSchemaError,
)
from nevermore.pipelines.decode.value_types import ValueType
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.options import DebeziumMessageOptions
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import Documents, Members, from_binary
from nevermore.scan_core import Mask, Rows

ORIGIN_PREFIXES = ("__", "__source_")
"""Prefix of `db`, `schema` and `table`, as `add.fields` is written with or without `source.`."""

_OF_SOURCE = (
    *("db", "schema", "table", "ts_ms", "ts_us", "ts_ns", "lsn", "txId", "connector", "name", "version", "file", "pos"),
    *("row", "snapshot", "gtid", "server_id", "thread", "sequence", "xmin", "scn", "commit_scn", "change_lsn"),
    *("commit_lsn", "event_serial_no"),
)
_OF_EVENT = ["deleted", "op", "transaction_id", "transaction_total_order", "transaction_data_collection_order"]

ADDED = frozenset([f"__{name}" for name in _OF_EVENT] + [p + name for p in ORIGIN_PREFIXES for name in _OF_SOURCE])
"""Members that are not part of the row."""


Ops = NDArray[np.uint8]

LETTERS = "rcudt"
MESSAGE = ord("m")
DELETE, UPDATE = ord("d"), ord("u")

PARTS = ("db", "schema", "table")
"""Parts of a table's name in the origin of an event."""
SERVER = "name"
"""Member of `source`: the `topic.prefix` of the connector, which is another one for each server."""
FLAGS = ("__deleted", "__op")
"""Members that occur only in rows of ExtractNewRecordState."""
ENVELOPE_MEMBERS = frozenset(
    {"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction"}
    | {"schema", "payload", "message", "updateDescription", "patch", "filter"}
)
"""An object with only these members is not a row but an incomplete envelope."""

NO_CHANGE = "not a change event: neither op with before or after, nor a row, nor a known control event"
KEYLESS = "a tombstone is to delete a row, and its key is not an object of columns"
UNKNOWN_OP = f"op is none of {', '.join(LETTERS)}"
UNKNOWN_ROW_OP = f"__op is none of {', '.join(LETTERS)}"
MONGODB = "after is text or missing, as in events of MongoDB: use ExtractNewDocumentState to convert them to rows"

TIMES = frozenset({"ts_ms", "ts_us", "ts_ns"})
MARKER = frozenset({"status", "id", "event_count", "data_collections"}) | TIMES
NOTIFICATION = frozenset({"id", "type", "aggregate_type", "additional_data", "timestamp"}) | TIMES
_IS_OP = np.zeros(256, np.bool_)
_IS_OP[[ord(letter) for letter in LETTERS]] = True


def is_control_message(names: Collection[str]) -> bool:
    """Whether events with exactly these members are heartbeats, schema changes, transactions or notifications."""
    given = set(names)
    heartbeat = "ts_ms" in given and given <= TIMES
    # A row may well have columns named status, type or ddl.
    marker = {"status", "id", "event_count"} <= given <= MARKER
    notification = {"aggregate_type", "type"} <= given <= NOTIFICATION
    schema_change = "ddl" in given and not given.isdisjoint({"databaseName", "tableChanges"})
    return heartbeat or marker or notification or schema_change


def is_row_schema(names: Collection[str]) -> bool:
    """Whether an object with these members may be a row; none of the members is an image."""
    return not set(names) <= ENVELOPE_MEMBERS


def of_envelope(stated: Ops) -> tuple[Ops, Mask, Mask]:
    """(operation, logical decoding messages, unknown operations) from `op`; 0 where there is no operation."""
    message = stated == MESSAGE
    known = _IS_OP[stated]
    return np.where(known, stated, np.uint8(0)), message, ~known & ~message


def of_row(stated: Ops, given: Mask, deleted: Mask) -> tuple[Ops, Mask]:
    """(operation, unknown operations) of rows from `__op` and `__deleted`; rows without either are upserted."""
    known = _IS_OP[stated]
    unknown = given & ~known
    op = np.where(deleted, np.uint8(DELETE), np.where(known, stated, np.uint8(UPDATE)))
    return np.where(unknown, np.uint8(0), op), unknown


@dataclass(frozen=True)
class Layouts:
    """Layout of each document; documents that are not objects have none."""

    enveloped: Mask
    row: Mask
    control: Mask
    odd: Mask


def layouts_of(documents: Documents, members: Members) -> Layouts:
    """Find the layout of each document; `members` are those that identify envelopes and rows."""
    given = {name: members.column(name).kind != kernels.MISSING for name in ("before", "after", *FLAGS)}
    # A row may have its own columns named op and after.
    flagged = members.is_object & (given["__op"] | given["__deleted"])
    has_source = members.column("source").of_kind(kernels.OBJECT)
    enveloped = members.is_object & ~flagged & members.column("op").of_kind(kernels.STRING)
    enveloped &= given["before"] | given["after"] | has_source
    rest = np.flatnonzero(members.is_object & ~flagged & ~enveloped)
    row, control, odd = flagged, np.zeros_like(flagged), np.zeros_like(flagged)
    if len(rest):
        others = scan_objects(documents.take(rest))
        # The set of members determines the layout, so it is evaluated once per set.
        shape, first = distinct_columns(others.kind != kernels.MISSING)
        sets = [[n for n, kind in zip(others.names, others.kind[:, at], strict=True) if kind] for at in first]
        is_control, is_row = (np.array([rule(names) for names in sets]) for rule in (is_control_message, is_row_schema))
        image = members.column("after").of_kind(kernels.OBJECT) | members.column("before").of_kind(kernels.OBJECT)
        control[rest] = is_control[shape]
        odd[rest] = ~is_control[shape] & (~is_row[shape] | image[rest])
        row = row.copy()
        row[rest] = ~control[rest] & ~odd[rest]
    return Layouts(enveloped, row, control, odd)


def is_envelope(columns: Mapping[str, pa.Array] | pa.Table) -> bool:
    """Whether these are the columns of Debezium's envelope."""
    names = columns.column_names if isinstance(columns, pa.Table) else columns
    if "op" not in names:
        return False
    return any(n in names and pa.types.is_struct(columns[n].type) for n in ("before", "after"))


def is_unwrapped(rows: pa.Table) -> bool:
    """Whether these are rows of ExtractNewRecordState: with its flag, or with the letters of its operations."""
    if "__deleted" in rows.column_names:
        return True
    if "__op" not in rows.column_names:
        return False
    letters = pc.unique(cast_each(rows.column("__op").combine_chunks(), pa.string())[0]).drop_null()
    return len(letters) > 0 and bool(pc.all(pc.is_in(letters, pa.array([*LETTERS]))).as_py())


_OPS = {letter: letter for letter in (*LETTERS, chr(MESSAGE))}


@dataclass(frozen=True)
class EventColumns:
    """Events of one schema.

    Attributes:
        raw: raw event of each event.
        columns: columns of the value by name; empty for messages without a value that mean a delete.
        types: value types of the columns, where the schema declares them.
        key: columns of the message key.
        key_types: value types of those.
    """

    raw: Rows
    columns: Mapping[str, pa.Array]
    types: Mapping[str, ValueType] = field(default_factory=dict)
    key: Mapping[str, pa.Array] = field(default_factory=dict)
    key_types: Mapping[str, ValueType] = field(default_factory=dict)


def decode_columns(
    groups: Sequence[EventColumns], refusals: tuple[Refusal, ...] = (), skipped: Mapping[str, int] | None = None
) -> Events:
    """Decode events in columns to changes; `refusals` and `skipped` are for raw events outside of all groups."""
    events = merged([_envelope(g) if is_envelope(g.columns) else _flat(g) for g in groups])
    return replace(events, refusals=(*refusals, *events.refusals), skipped={**events.skipped, **(skipped or {})})


def _changes(
    group: EventColumns,
    op: Ops,
    after: ArrowMembers,
    before: ArrowMembers,
    *,
    names: list[pa.Array] | None = None,
    types: Mapping[str, ValueType] | None = None,
    refused: Mask | None = None,
    **others: Any,
) -> Events:
    """Changes of a group; without `names`, its events name no table."""
    count, types = len(group.raw), types or {}
    declared = Declared({**group.key_types, **types}, tuple(group.key_types), bool(types))
    rows = group.raw if refused is None else group.raw[refused]
    return events_of(
        op,
        table_names(names) if names else None,
        after,
        before,
        raw=group.raw,
        key=ArrowMembers(group.key, np.full(count, bool(group.key))),
        declared=(np.zeros(count, np.int32), (declared,)),
        order=partial(_placed, group),
        refusals=() if refused is None or not len(rows) else (Refusal(rows, NO_CHANGE),),
        **others,
    )


def decode_rows_of_file(rows: pa.Table) -> Events:
    """Decode rows of a file to changes; an Avro file's schema has the value types of its columns."""
    columns = {name: single(rows.column(name)) for name in rows.column_names}
    return decode_columns([EventColumns(np.arange(rows.num_rows), columns, types_of_file(rows))])


def _envelope(group: EventColumns) -> Events:
    count = len(group.raw)
    op, message, unknown = of_envelope(op_codes(_text(group.columns["op"]), _OPS))
    source = group.columns.get("source")
    origin = _members(source) if source is not None and _is_struct(source.type) else {}
    of_event = _millis(group.columns.get("ts_ms"), count)
    images = {}
    types: dict[str, ValueType] = {}
    for name in ("before", "after"):
        column = group.columns.get(name)
        if column is None or not _is_struct(column.type):
            images[name] = ArrowMembers({}, np.zeros(count, np.bool_))
            continue
        images[name] = ArrowMembers(_members(column), np.asarray(column.is_valid()))
        if name in group.types:
            types |= dict(group.types[name].members)
    return _changes(
        group,
        op,
        images["after"],
        images["before"],
        names=[_text_or_null(origin.get(name), count) for name in PARTS],
        types=types,
        refused=unknown,
        source_ts=pc.coalesce(_millis(origin.get("ts_ms"), count), of_event),
        skipped=skip_counts(("logical decoding message", message)),
        servers=lambda: _text_or_null(origin.get(SERVER), count),
    )


def _flat(group: EventColumns) -> Events:
    count = len(group.raw)
    columns = group.columns
    nothing, every = ArrowMembers({}, np.zeros(count, np.bool_)), np.ones(count, np.bool_)
    if not columns:
        return _changes(group, np.full(count, DELETE, np.uint8), nothing, nothing)
    if not set(FLAGS) & set(columns):
        is_control = is_control_message(columns)
        has_image = any(name in columns and _is_struct(columns[name].type) for name in ("before", "after"))
        if is_control or has_image or not is_row_schema(columns):
            skipped = {"control event": count} if is_control else {}
            refused = None if is_control else every
            return _changes(group, np.zeros(count, np.uint8), nothing, nothing, refused=refused, skipped=skipped)
    stated = op_codes(_text_or_null(columns.get("__op"), count), _OPS)
    given = np.asarray(columns["__op"].is_valid()) if "__op" in columns else ~every
    flagged = np.asarray(pc.fill_null(pc.equal(_text_or_null(columns.get("__deleted"), count), "true"), False))
    op, unknown = of_row(stated, given, flagged)
    row = {name: array for name, array in columns.items() if name not in ADDED}
    deleted = op == DELETE
    return _changes(
        group,
        op,
        ArrowMembers(row, ~deleted),
        ArrowMembers(row, deleted),
        names=[
            pc.coalesce(*(_text_or_null(columns.get(f"{prefix}{name}"), count) for prefix in ORIGIN_PREFIXES))
            for name in PARTS
        ],
        types={name: t for name, t in group.types.items() if name in row},
        refused=unknown,
        source_ts=pc.coalesce(_millis(columns.get("__source_ts_ms"), count), _millis(columns.get("__ts_ms"), count)),
    )


def _placed(group: EventColumns, path: str) -> Placed:
    found = _at(group.columns, path.removeprefix("payload.").split("."), len(group.raw))
    if found is None or pa.types.is_null(found.type):
        raise KeyError(path)
    return of_columns(path, found), None


def _at(columns: Mapping[str, pa.Array], steps: Sequence[str], count: int) -> pa.Array | None:
    array = columns.get(steps[0])
    for step in steps[1:]:
        if array is None or not _is_struct(array.type):
            return None
        array = _members(array).get(step)
    return array if array is None or len(array) == count else None


def _members(array: pa.StructArray) -> dict[str, pa.Array]:
    return {array.type.field(i).name: member for i, member in enumerate(array.flatten())}


def _is_struct(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_struct(arrow))


def _text(array: pa.Array) -> pa.Array:
    return cast_each(array, pa.string())[0]


def _text_or_null(array: pa.Array | None, count: int) -> pa.Array:
    if array is None or pa.types.is_nested(array.type):
        return pa.nulls(count, pa.string())
    return _text(array)


def _millis(array: pa.Array | None, count: int) -> pa.Array:
    if array is None or not pa.types.is_integer(array.type):
        return pa.nulls(count, pa.timestamp("us", "UTC"))
    values = np.asarray(array.fill_null(0).cast(pa.int64()))
    return milliseconds(values, np.asarray(array.is_valid()))


_MAGIC = 0
_OPENING_BRACE = 0x7B


def decode_debezium_avro(raw: RawEvents, options: DebeziumMessageOptions) -> Events:
    """Decode a batch of Debezium Avro to changes.

    Raises:
        ConfigError: there are messages but no registry.
        SourceError: the registry cannot be reached.
    """
    if raw.rows is not None:
        return decode_rows_of_file(raw.rows)
    return _decode_messages(raw, options, AvroMessages())


def decode_debezium_protobuf(raw: RawEvents, options: DebeziumMessageOptions) -> Events:
    """Decode a batch of Debezium Protobuf to changes.

    Raises:
        ConfigError: there is no registry.
        SourceError: the registry cannot be reached.
    """
    return _decode_messages(raw, options, ProtobufMessages())


class _Reader(Protocol):
    """Reads the values of one schema."""

    @property
    def types(self) -> Mapping[str, ValueType]:
        """The value type of each field."""
        ...

    def read(self, values: pa.BinaryArray) -> tuple[pa.Table, Mask]:
        """Read the values as rows, and the mask of invalid ones."""
        ...


class _Language(Protocol):
    """How messages are written: what precedes a value, and who reads it."""

    @property
    def kind(self) -> SchemaKind:
        """The language of the schemas."""
        ...

    def prefix_lengths(self, messages: pa.BinaryArray, header: int, /) -> NDArray[np.int64]:
        """Bytes in front of each value, `header` of them up to the id of its schema; 0 where they are broken."""
        ...

    def reader(self, schema: RegisteredSchema, position: bytes, /, *, is_key: bool) -> _Reader | None:
        """The reader of a schema and what follows its id; None for keys that name no column."""
        ...


def _decode_messages(raw: RawEvents, options: DebeziumMessageOptions, language: _Language) -> Events:
    values, keys, garbled = _messages(raw)
    source = options.source()
    value = _decoded(values, source, language, options.schema_id_bytes, "")
    key = _decoded(_framed_only(keys), source, language, options.schema_id_bytes, "message key: ", is_key=True)
    broken = garbled | (value.code == _Decoded.BROKEN) | (key.code == _Decoded.BROKEN)
    empty = np.asarray(values.is_null()) & ~garbled
    deletes = empty & (key.code >= 0) if options.tombstones == "delete" else np.zeros(len(values), np.bool_)
    usable = ~broken & (~empty | deletes)
    pair = value.code.astype(np.int64) * (len(key.tables) + 1) + key.code
    groups = []
    for code in np.unique(pair[usable]).tolist():
        rows = np.flatnonzero(usable & (pair == code))
        columns, types = value.at(rows)
        key_columns, key_types = key.at(rows)
        groups.append(EventColumns(rows, columns, types, key_columns, key_types))
    refusals = [*value.refusals, *key.refusals]
    keyless = empty & ~deletes & ~broken
    tombstones = int(keyless.sum()) if options.tombstones == "ignore" else 0
    if options.tombstones == "delete" and keyless.any():
        refusals.append(Refusal(np.flatnonzero(keyless), KEYLESS))
    if garbled.any():
        refusals.append(
            Refusal(
                np.flatnonzero(garbled),
                f"not {_MESSAGE[language.kind]}: it does not begin with 0, and is not base64 of one that does",
            )
        )
    return decode_columns(groups, tuple(refusals), {"tombstone": tombstones} if tombstones else {})


@dataclass(frozen=True)
class _Decoded:
    """Messages by schema: `code` is the table of each, NOTHING for no message, BROKEN for an invalid one."""

    code: NDArray[np.int32]
    place: Rows
    tables: tuple[tuple[pa.Table, Mapping[str, ValueType]], ...]
    refusals: tuple[Refusal, ...]

    NOTHING = -1
    BROKEN = -2

    def at(self, rows: Rows) -> tuple[dict[str, pa.Array], Mapping[str, ValueType]]:
        """Columns of messages with one schema, and their value types; empty where there is no message."""
        code = int(self.code[rows[0]])
        if code < 0:
            return {}, {}
        table, types = self.tables[code]
        places = self.place[rows]
        if len(places) != table.num_rows or not (places == np.arange(len(places))).all():
            table = table.take(pa.array(places))
        return {name: single(table.column(name)) for name in table.column_names}, types


def _decoded(
    messages: pa.BinaryArray, source: Schemas, language: _Language, id_bytes: int, what: str, *, is_key: bool = False
) -> _Decoded:
    """Decode messages, those of one schema together; keys that are a plain value name no column and count as none."""
    count, header = len(messages), 1 + id_bytes
    code = np.full(count, _Decoded.NOTHING, np.int32)
    place = np.zeros(count, np.int64)
    tables: list[tuple[pa.Table, Mapping[str, ValueType]]] = []
    refusals: list[Refusal] = []
    for head, rows in _by_head(messages, language, header):
        try:
            schema = source.schema(_schema_id(head, header, language), language.kind)
            reader = language.reader(schema, head[header:], is_key=is_key)
        except UnknownSchemaError as error:
            code[rows] = _Decoded.BROKEN
            refusals.append(Refusal(rows, f"{what}{error}"))
            continue
        if reader is None:
            continue
        table, bad = reader.read(pc.binary_replace_slice(messages.take(pa.array(rows)), 0, len(head), b""))
        code[rows] = np.where(bad, _Decoded.BROKEN, len(tables))
        place[rows] = np.arange(len(rows))
        tables.append((table, reader.types))
        if bad.any():
            number = int.from_bytes(head[1:header], "big")
            refusals.append(Refusal(rows[bad], f"{what}not a value of schema {number}: {_BROKEN[language.kind]}"))
    return _Decoded(code, place, tuple(tables), tuple(refusals))


_MESSAGE = {SchemaKind.AVRO: "an Avro message", SchemaKind.PROTOBUF: "a Protobuf message"}
_BROKEN = {
    SchemaKind.AVRO: "too short, too long or broken",
    SchemaKind.PROTOBUF: (
        "broken, or without a required field, with two members of a oneof, two map entries of one key, or a time that "
        "does not exist"
    ),
}


def _by_head(messages: pa.BinaryArray, language: _Language, header: int) -> Iterator[tuple[bytes, Rows]]:
    """What precedes the values of messages, and the rows of each; too short ones are returned as they are."""
    lengths = language.prefix_lengths(messages, header)
    given = np.asarray(messages.is_valid())
    for length in np.unique(lengths[given]).tolist():
        rows = np.flatnonzero(given & (lengths == length))
        heads = pc.binary_slice(messages.take(pa.array(rows)), 0, length or header - 1).dictionary_encode()
        of_head = np.asarray(heads.indices)
        for number, head in enumerate(heads.dictionary.to_pylist()):
            yield head, rows[of_head == number]


def _schema_id(head: bytes, header: int, language: _Language) -> int:
    if len(head) < header or head[0] != _MAGIC:
        raise UnknownSchemaError(
            f"not {_MESSAGE[language.kind]}: it does not begin with 0 and a schema id of {header - 1} bytes"
        )
    return int.from_bytes(head[1:header], "big")


def _messages(raw: RawEvents) -> tuple[pa.BinaryArray, pa.BinaryArray, Mask]:
    """(values, keys, mask of neither): the bytes of messages, NULL where there is none."""
    documents = raw.documents
    if documents is None:
        raise SourceError("no messages")
    keys = pa.nulls(len(documents), pa.binary()) if raw.keys is None else raw.keys
    # Each is judged by its own first byte, regardless of its neighbours.
    framed, object_ = (_begins_with(documents, byte) for byte in (_MAGIC, _OPENING_BRACE))
    if framed.all():
        return documents, keys, np.zeros(len(documents), np.bool_)
    values, members, wrong = _of_objects(_only(documents, object_))
    words, no_base64 = _of_base64(_only(documents, ~framed & ~object_))
    values = pc.coalesce(_only(documents, framed), values, words)
    # If messages are bytes, so are keys, or they come from another converter.
    if framed.any() or _begins_with(keys, _MAGIC).any():
        return values, pc.coalesce(members, keys), wrong | no_base64
    names, no_key = _of_base64(_only(keys, ~object_))
    return values, pc.coalesce(members, names), wrong | no_base64 | no_key


def _begins_with(messages: pa.BinaryArray, byte: int) -> Mask:
    return true_mask(pc.starts_with(messages, bytes([byte])))


def _only(messages: pa.BinaryArray, chosen: Mask) -> pa.BinaryArray:
    return pc.if_else(pa.array(chosen), messages, pa.scalar(None, pa.binary()))


def _of_objects(documents: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray, Mask]:
    members = scan_objects(from_binary(documents), ("key", "value"), learn=False)
    blank = members.status == kernels.EMPTY
    wrong = ~members.is_object & ~blank & ~np.asarray(documents.is_null())
    found = []
    for name in ("value", "key"):
        column = members.column(name)
        words, broken = text(column, column.of_kind(kernels.STRING, kernels.ESCAPED))
        data, bad = text_bytes(words)
        found.append(data)
        wrong = wrong | broken | bad | (column.has_value & ~column.of_kind(kernels.STRING, kernels.ESCAPED))
    wrong |= members.is_object & (members.column("value").kind == kernels.MISSING)
    return found[0], found[1], wrong


def _of_base64(lines: pa.BinaryArray) -> tuple[pa.BinaryArray, Mask]:
    words, garbled = cast_each(lines, pa.string())
    words = pc.utf8_trim_whitespace(words)
    data, bad = text_bytes(words)
    nothing = true_mask(pc.equal(pc.binary_length(words), 0))
    return pc.if_else(pa.array(nothing), pa.scalar(None, pa.binary()), data), garbled | (bad & ~nothing)


def _framed_only(keys: pa.BinaryArray) -> pa.BinaryArray:
    """Keys that are Avro; keys of other converters (text, JSON) contain nothing that the value does not."""
    framed = pc.starts_with(keys, bytes([_MAGIC]))
    return pc.if_else(framed, keys, pa.scalar(None, pa.binary()))
