"""Debezium events in JSON: plain, in the schema envelope, or unwrapped by ExtractNewRecordState.

Also handles message keys and tombstones. The schema envelope is removed by comparing bytes, without parsing it in each
event. JSON Schemas of messages are translated to Kafka Connect's form, from which `feed_schemas.py` takes value types. The rules
of the format are in `debezium.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode import feed_schemas
from nevermore.pipelines.decode.batches import RawEvents
from nevermore.pipelines.decode.events import (
    TOMBSTONE,
    TWICE,
    Declared,
    Events,
    Refusal,
    distinct,
    events_of,
    letters,
    milliseconds,
    paths_of,
    refusal,
    skip_counts,
    strings,
    table_names,
    tombstones,
    with_others,
)
from nevermore.pipelines.decode.image import EitherImages, ImageSource, ObjectImages, is_one_of
from nevermore.pipelines.decode.json_columns import integers
from nevermore.pipelines.decode.schema_registry import RegisteredSchema, SchemaKind, Schemas, UnknownSchemaError
from nevermore.pipelines.decode.value_types import ValueType
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats import debezium as rules
from nevermore.pipelines.formats.debezium import ADDED, ORIGIN_PREFIXES, decode_rows_of_file, layouts_of
from nevermore.pipelines.formats.options import DebeziumJsonOptions, DebeziumOptions
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import first_member_is, scan_objects
from nevermore.pipelines.jsonscan.spans import Documents, Members, SpanColumn, from_binary
from nevermore.scan_core import Mask

MAX_COMPARED_SCHEMAS = 64
"""Limit of schemas compared by bytes; events of further ones are scanned one by one, which then costs less."""
_MAX_DEPTH = kernels.MAX_DEPTH + 1
"""The limit is that of the payload: where an envelope is recognised by its bytes, its own level is not counted."""
NO_SCHEMA = -1

_MAX_SCHEMA_DEPTH = 64
_TYPES: Mapping[str, str] = {"integer": "int64", "number": "float64", "boolean": "boolean", "string": "string"}
_FORMATS: Mapping[str, str] = {
    "date-time": "io.debezium.time.ZonedTimestamp",
    "date": "io.debezium.time.IsoDate",
    "uuid": "io.debezium.data.Uuid",
}
_ANY: Mapping[str, Any] = {"type": "any"}
"""A value of any kind, which becomes its own JSON text."""


@dataclass(frozen=True)
class Payloads:
    """Events without their envelopes.

    Attributes:
        documents: the payload of each event, or the event itself where it has no envelope.
        schema_of: schema of each event as an index into `schemas`, NO_SCHEMA where it has none.
        schemas: distinct schema documents, in order of appearance.
    """

    documents: Documents
    schema_of: NDArray[np.int32]
    schemas: tuple[bytes, ...]


def cut_envelopes(events: pa.BinaryArray, *, apart: Mask | None = None) -> Payloads:
    """Return the payloads of events with an envelope, and other events as they are; those `apart` are not compared with others."""
    documents = from_binary(events)
    start, end = documents.start.copy(), documents.end.copy()
    schema_of = np.full(len(documents), NO_SCHEMA, np.int32)
    schemas: dict[bytes, int] = {}
    pending = first_member_is(documents, "schema", "payload")
    compared = pending & (True if apart is None else ~apart)
    for _ in range(MAX_COMPARED_SCHEMAS):
        if not compared.any():
            break
        first = int(np.argmax(compared))
        cut = envelope_of(events[first].as_py())
        if cut is None:
            break
        prefix, suffix, _ = cut
        begin, stop = start + np.int32(len(prefix)), end - np.int32(len(suffix))
        matched = compared & (begin < stop)
        for begins, text in ((pc.starts_with, prefix), (pc.ends_with, suffix)):
            matched &= np.asarray(pc.fill_null(begins(events, text), False))
        rows = np.flatnonzero(matched)
        # an empty payload is no blank line, and what follows an object no part of it
        rows = rows[(documents.data[begin[rows]] == ord("{")) & (documents.data[stop[rows] - 1] == ord("}"))]
        start[rows], end[rows] = begin[rows], stop[rows]
        schema_of[rows] = schemas.setdefault(cut[2], len(schemas))
        compared[rows] = pending[rows] = False
    if pending.any():
        members = scan_objects(documents.where(pending), ("schema", "payload"), learn=False, max_depth=_MAX_DEPTH)
        schema, payload = members.column("schema"), members.column("payload")
        has_payload = members.is_object & ((payload.kind == kernels.OBJECT) | (payload.kind == kernels.NULL))
        # Some writers omit the schema. If there are other members, `payload` is a column of a row.
        alone = np.flatnonzero(has_payload & (schema.kind == kernels.MISSING))
        if len(alone):
            alone = alone[scan_objects(documents.take(alone), ("payload",)).of_names({"payload"})]
            start[alone], end[alone] = payload.start[alone], payload.end[alone]
        enveloped = np.flatnonzero(has_payload & ((schema.kind == kernels.OBJECT) | (schema.kind == kernels.NULL)))
        start[enveloped], end[enveloped] = payload.start[enveloped], payload.end[enveloped]
        texts = [
            documents.data[b:e].tobytes() for b, e in zip(schema.start[enveloped], schema.end[enveloped], strict=True)
        ]
        schema_of[enveloped] = [schemas.setdefault(text, len(schemas)) for text in texts]
    return Payloads(Documents(documents.data, start, end), schema_of, tuple(schemas))


def envelope_of(event: bytes) -> tuple[bytes, bytes, bytes] | None:
    """(bytes before the payload, bytes after it, schema) of one event; None if it has no envelope."""
    document = from_binary(pa.array([event], pa.binary()))
    one = scan_objects(document, ("schema", "payload"), learn=False, max_depth=_MAX_DEPTH)
    schema, payload = one.column("schema"), one.column("payload")
    is_schema = schema.kind[0] in (kernels.OBJECT, kernels.NULL)
    if not one.is_object[0] or payload.kind[0] != kernels.OBJECT or not is_schema:
        return None
    return event[: payload.start[0]], event[payload.end[0] :], event[schema.start[0] : schema.end[0]]


BROKEN_SCHEMA = "not a schema envelope of Kafka Connect: parts are missing or of another kind"

_MEMBERS = ("before", "after", "source", "op", "ts_ms", "transaction", "ts_us", "ts_ns", *rules.FLAGS)
_ORIGIN = tuple(prefix + name for prefix in ORIGIN_PREFIXES for name in rules.PARTS)
_OF_ROW = (*rules.FLAGS, *_ORIGIN, "__source_ts_ms", "__ts_ms")
_SOURCE = ("ts_ms", *rules.PARTS, rules.SERVER)


def _with_registered(payloads: Payloads, ids: pa.Int64Array, source: Schemas) -> tuple[Payloads, tuple[Refusal, ...]]:
    """Payloads with the schemas that their messages name by an id, and refusals of those that name an unknown one."""
    schema_of = payloads.schema_of.copy()
    schemas = {text: at for at, text in enumerate(payloads.schemas)}
    refusals: list[Refusal] = []
    numbers = np.asarray(ids.fill_null(-1))
    for number in np.unique(numbers[numbers >= 0]).tolist():
        rows = np.flatnonzero((numbers == number) & (payloads.schema_of == NO_SCHEMA))
        try:
            text = connect_schema(source.schema(number, SchemaKind.JSON))
        except UnknownSchemaError as error:
            refusals.append(Refusal(rows, str(error)))
            continue
        schema_of[rows] = schemas.setdefault(text, len(schemas))
    return Payloads(payloads.documents, schema_of, tuple(schemas)), tuple(refusals)


def decode_debezium(raw: RawEvents, options: DebeziumJsonOptions, *, apart: Mask | None = None) -> Events:
    """Decode a batch of Debezium JSON, or of file rows that hold its events in columns, to changes; for `apart` see `cut_envelopes`."""
    if raw.rows is not None:
        return decode_rows_of_file(raw.rows)
    payloads = cut_envelopes(raw.documents, apart=apart)
    keys = cut_envelopes(pa.nulls(raw.num_events, pa.binary()) if raw.keys is None else raw.keys)
    unknown: tuple[Refusal, ...] = ()
    if raw.schema_ids is not None and (options.registry is not None or options.schemas is not None):
        payloads, unknown = _with_registered(payloads, raw.schema_ids[0], options.source())
        keys, _ = _with_registered(keys, raw.schema_ids[1], options.source())
    members = scan_objects(payloads.documents, _MEMBERS, learn=False)
    odd = (members.status == kernels.BROKEN) & (payloads.schema_of != NO_SCHEMA)
    if apart is None and odd.any():
        # By its bytes, an envelope also ends like another one where a further member that is an object follows the payload.
        return decode_debezium(raw, options, apart=odd)
    kind = layouts_of(payloads.documents, members)
    changes = _envelopes(members, kind.enveloped)
    if kind.row.any() or options.tombstones == "delete":
        changes = changes.merged_with(_rows(payloads.documents, keys.documents, members, kind.row, options))
    declared_of, declared, broken_schema, repeated = _declared(payloads, keys, kind.row)
    for refused in unknown:
        broken_schema[refused.rows] = True
    known_broken = broken_schema & ~np.isin(np.arange(raw.num_events), np.concatenate([[], *(r.rows for r in unknown)]))
    server = changes.server
    events = events_of(
        np.where(broken_schema | repeated, np.uint8(0), changes.op),
        table_names(list(changes.names)),
        changes.after,
        changes.before,
        source_ts=changes.source_ts,
        key=ObjectImages(keys.documents),
        declared=(declared_of, declared),
        order=paths_of(payloads.documents),
        refusals=(
            *changes.refusals,
            *refusal(kind.odd, rules.NO_CHANGE),
            *unknown,
            *refusal(known_broken, BROKEN_SCHEMA),
            *refusal(repeated, f"the schema envelope: {TWICE}"),
        ),
        skipped=skip_counts(("control event", kind.control), ("logical decoding message", changes.message)),
        servers=None if server is None else lambda: strings(server),
    )
    events = with_others(events, members)
    is_skipped = options.tombstones == "ignore"
    return (
        events if is_skipped else replace(events, skipped={n: c for n, c in events.skipped.items() if n != TOMBSTONE})
    )


@dataclass(frozen=True)
class _Changes:
    """Changes of one layout; documents of other layouts have op 0 and NULL."""

    op: rules.Ops
    names: tuple[pa.StringArray, ...]
    source_ts: pa.Array
    after: ImageSource
    before: ImageSource
    refusals: tuple[Refusal, ...]
    message: Mask
    server: SpanColumn | None = None

    def merged_with(self, other: "_Changes") -> "_Changes":
        """Combine with the changes of other documents."""
        return _Changes(
            op=np.where(self.op != 0, self.op, other.op),
            names=tuple(pc.coalesce(*both) for both in zip(self.names, other.names, strict=True)),
            source_ts=pc.coalesce(self.source_ts, other.source_ts),
            after=EitherImages(self.after, other.after),
            before=EitherImages(self.before, other.before),
            refusals=(*self.refusals, *other.refusals),
            message=self.message,
            server=self.server,
        )


def _envelopes(members: Members, enveloped: Mask) -> _Changes:
    if not enveloped.all():
        members = members.where(enveloped)
    op, message, unknown = rules.of_envelope(letters(members.column("op")))
    source = scan_objects(members.column("source").documents(kernels.OBJECT), _SOURCE, learn=False)
    of_mongodb = _of_mongodb(members, enveloped)
    return _Changes(
        op=np.where(enveloped & ~of_mongodb, op, np.uint8(0)),
        names=tuple(strings(source.column(name)) for name in rules.PARTS),
        source_ts=_source_time(source.column("ts_ms"), members.column("ts_ms")),
        after=ObjectImages(members.column("after").documents(kernels.OBJECT)),
        before=ObjectImages(members.column("before").documents(kernels.OBJECT)),
        refusals=(
            *refusal(source.status == kernels.REPEATED, TWICE),
            *refusal(of_mongodb, rules.MONGODB),
            *refusal(enveloped & unknown, rules.UNKNOWN_OP, members.column("op")),
        ),
        message=enveloped & message,
        server=source.column(rules.SERVER),
    )


def _of_mongodb(members: Members, enveloped: Mask) -> Mask:
    """Events whose rows are text, or whose origin is such a feed if they have no row."""
    after = members.column("after")
    result: Mask = enveloped & after.of_kind(kernels.STRING, kernels.ESCAPED)
    bare = np.flatnonzero(
        enveloped & ~after.of_kind(kernels.OBJECT) & ~members.column("before").of_kind(kernels.OBJECT)
    )
    if len(bare):
        origins = members.column("source").documents(kernels.OBJECT).take(bare)
        connector = scan_objects(origins, ("connector",), learn=False).column("connector")
        result[bare] |= is_one_of(connector, "mongodb")
    return result


def _rows(documents: Documents, keys: Documents, members: Members, row: Mask, options: DebeziumOptions) -> _Changes:
    documents = documents.where(row)
    rows = scan_objects(documents, _OF_ROW, learn=False)
    stated = rows.column("__op")
    op, unknown = rules.of_row(letters(stated), stated.has_value, _is_true(rows.column("__deleted")))
    op = np.where(row, op, np.uint8(0))
    keyless = np.zeros_like(row)
    if options.tombstones == "delete":
        has_key = scan_objects(keys, (), learn=False).is_object
        keyless = tombstones(members) & ~has_key
        op = np.where(tombstones(members) & has_key, np.uint8(rules.DELETE), op)
    deleted = op == rules.DELETE
    return _Changes(
        op=op,
        names=tuple(
            pc.coalesce(*(strings(rows.column(prefix + name)) for prefix in ORIGIN_PREFIXES)) for name in rules.PARTS
        ),
        source_ts=_source_time(rows.column("__source_ts_ms"), rows.column("__ts_ms")),
        after=ObjectImages(documents.where(~deleted), ADDED),
        before=ObjectImages(documents.where(deleted), ADDED),
        refusals=(*refusal(row & unknown, rules.UNKNOWN_ROW_OP, stated), *refusal(keyless, rules.KEYLESS)),
        message=np.zeros_like(row),
    )


def _declared(
    payloads: Payloads, keys: Payloads, row: Mask
) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask, Mask]:
    """Declarations of the schemas of value and key together, per distinct pair of them and layout.

    The masks mark events whose schema is broken, and events whose schema has a name twice.
    """
    width = len(keys.schemas) + 1
    pair_of = (payloads.schema_of.astype(np.int64) - NO_SCHEMA) * width + (keys.schema_of - NO_SCHEMA)
    declared_of, first = distinct(pair_of * 2 + row if payloads.schemas else pair_of * 2)
    declared: list[Declared] = []
    broken: list[int] = []
    repeated: list[int] = []
    for at in first.tolist():
        value, key = int(payloads.schema_of[at]), int(keys.schema_of[at])
        types: dict[str, ValueType] = {}
        names: tuple[str, ...] = ()
        try:
            if key != NO_SCHEMA:
                types |= feed_schemas.row_types(keys.schemas[key])
            names = tuple(types)
            if value != NO_SCHEMA:
                types |= feed_schemas.row_types(payloads.schemas[value], *(() if row[at] else ("after", "before")))
        except ValueError as error:
            (repeated if isinstance(error, feed_schemas.RepeatedNameError) else broken).append(len(declared))
            types, names = {}, ()
        declared.append(Declared(types, names, is_whole=value != NO_SCHEMA and bool(types)))
    masks = np.isin(declared_of, broken), np.isin(declared_of, repeated)
    return declared_of.astype(np.int32), tuple(declared) or (Declared(),), *masks


def _source_time(source: SpanColumn, event: SpanColumn) -> pa.Array:
    """The source's time in milliseconds, or the connector's if the source has none (snapshots write 0)."""
    of_source = milliseconds(*integers(source))
    return pc.coalesce(of_source, milliseconds(*integers(event))) if of_source.null_count else of_source


def _is_true(column: SpanColumn) -> Mask:
    """Rows with true, as a boolean or as text."""
    return column.of_kind(kernels.TRUE) | is_one_of(column, "true")


@lru_cache(maxsize=1024)
def connect_schema(schema: RegisteredSchema) -> bytes:
    """A JSON Schema as a schema of Kafka Connect in JSON.

    Raises:
        SourceError: not a JSON Schema, one that contains itself, or one that refers to what it does not have.
    """
    try:
        documents = {name: json.loads(text) for name, text in (("", schema.text), *schema.references)}
        return json.dumps(_converted(documents[""], "", documents, 0)).encode()
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SourceError(f"a JSON Schema that cannot be used: {error}; it begins {schema.text[:120]!r}") from error


def _converted(node: Any, of: str, documents: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    """A part of the document `of` as a schema of Connect."""
    if depth > _MAX_SCHEMA_DEPTH:
        raise SourceError(f"a JSON Schema that is nested deeper than {_MAX_SCHEMA_DEPTH} levels, or contains itself")
    if not isinstance(node, Mapping):
        return _ANY
    if "$ref" in node:
        target, document = _referenced(str(node["$ref"]), of, documents)
        return _converted(target, document, documents, depth + 1)
    for word in ("oneOf", "anyOf", "allOf"):
        if word in node:
            kept = [branch for branch in node[word] if branch != {"type": "null"}]
            return _converted(kept[0], of, documents, depth + 1) if len(kept) == 1 else _ANY
    kind = node.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    found = _of_kind(node, kind, of, documents, depth)
    name = node.get("title") or (_FORMATS.get(str(node.get("format"))) if kind == "string" else None)
    return {**found, "name": name, "parameters": node.get("connect.parameters") or {}}


def _of_kind(
    node: Mapping[str, Any], kind: str | None, of: str, documents: Mapping[str, Any], depth: int
) -> Mapping[str, Any]:
    match kind:
        case "object" if node.get("properties"):
            members = sorted(node["properties"].items(), key=lambda member: member[1].get("connect.index", 0))
            fields = [{**_converted(part, of, documents, depth + 1), "field": name} for name, part in members]
            return {"type": "struct", "fields": fields}
        case "object" if isinstance(node.get("additionalProperties"), Mapping):
            values = _converted(node["additionalProperties"], of, documents, depth + 1)
            return {"type": "map", "keys": {"type": "string"}, "values": values}
        case "array" if isinstance(node.get("items"), Mapping):
            return {"type": "array", "items": _converted(node["items"], of, documents, depth + 1)}
        case "string" if node.get("contentEncoding") == "base64":
            return {"type": "bytes"}
        case str() if kind in _TYPES:
            return {"type": node.get("connect.type", _TYPES[kind])}
        case _:
            return _ANY


def _referenced(reference: str, of: str, documents: Mapping[str, Any]) -> tuple[Any, str]:
    """(what a reference leads to, the document that it is in)."""
    name, _, path = reference.partition("#")
    document = name or of
    if document not in documents:
        raise KeyError(f"it refers to {document}, which the registry does not give with it")
    node = documents[document]
    for step in path.strip("/").split("/") if path.strip("/") else ():
        node = node[step.replace("~1", "/").replace("~0", "~")]
    return node, document
