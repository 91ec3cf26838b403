"""Debezium JSON: bare, in the schema envelope, and unwrapped by ExtractNewRecordState; keys and tombstones.

What an event is, envelope, row or control, is decided for each by itself (`debezium_rules.py`).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats import connect_schema, text_kernels
from pipelines.formats import debezium_rules as rules
from pipelines.formats import json_kernels as kernels
from pipelines.formats.debezium_columns import decode_rows_of_file
from pipelines.formats.debezium_layouts import layouts_of
from pipelines.formats.debezium_options import DebeziumOptions
from pipelines.formats.documents import Documents, from_binary, no_documents
from pipelines.formats.envelope import NO_SCHEMA, Payloads, cut_envelopes
from pipelines.formats.events import (
    Declared,
    Events,
    Refusal,
    distinct,
    letters,
    milliseconds,
    strings,
    table_names,
)
from pipelines.formats.image_sources import EitherImages, ImageSource, ObjectImages, ScannedImages
from pipelines.formats.json_events import blank, broken_documents, counted, paths_of, refusal, tombstones
from pipelines.formats.json_scalars import integers
from pipelines.formats.json_scan import scan_nested, scan_objects
from pipelines.formats.json_spans import Members, Nested, SpanColumn
from pipelines.formats.unwrapped_names import ADDED, ORIGIN_PREFIXES
from pipelines.formats.value_type import ValueType
from pipelines.sources.raw_events import RawEvents

Mask = NDArray[np.bool_]

BROKEN_SCHEMA = "the schema envelope is none of Connect's: its parts are missing or of another kind"

_MEMBERS = ("before", "after", "source", "op", "ts_ms", "transaction", "ts_us", "ts_ns", *rules.FLAGS)
_ORIGIN = tuple(prefix + name for prefix in ORIGIN_PREFIXES for name in rules.PARTS)
_OF_ROW = (*rules.FLAGS, *_ORIGIN, "__source_ts_ms", "__ts_ms")
_SOURCE = ("ts_ms", *rules.PARTS)


def decode_debezium(raw: RawEvents, options: DebeziumOptions) -> Events:
    """The changes of a batch of Debezium JSON, or of rows of a file that hold its events in columns."""
    if raw.rows is not None:
        return decode_rows_of_file(raw.rows)
    documents = from_binary(raw.documents)
    payloads = cut_envelopes(documents)
    keys = cut_envelopes(no_documents(len(documents)) if raw.keys is None else from_binary(raw.keys))
    nested = scan_nested(payloads.documents, _MEMBERS, ("after", "before"), ("source", _SOURCE))
    members = scan_objects(payloads.documents, _MEMBERS, learn=False) if nested is None else nested.top
    kind = layouts_of(payloads.documents, members)
    changes = _envelopes(members, kind.enveloped, nested)
    if kind.row.any() or options.tombstones == "delete":
        changes = changes.beside(_rows(payloads.documents, keys.documents, members, kind.row, options))
    table_of, tables = table_names(list(changes.names))
    declared_of, declared, broken_schema = _declared(payloads, keys, kind.row)
    empty = tombstones(members) & (changes.op == 0)
    return Events(
        raw=np.arange(len(documents)),
        op=np.where(broken_schema, np.uint8(0), changes.op),
        table_of=table_of,
        tables=tables,
        source_ts=changes.source_ts,
        after=changes.after,
        before=changes.before,
        key=ObjectImages(keys.documents),
        declared_of=declared_of,
        declared=declared,
        order=paths_of(payloads.documents),
        refusals=(
            *broken_documents(members),
            *changes.refusals,
            *refusal(kind.odd, rules.NO_CHANGE),
            *refusal(broken_schema, BROKEN_SCHEMA),
        ),
        skipped=counted(
            ("blank line", blank(members)),
            ("tombstone", empty),
            ("control event", kind.control),
            ("logical decoding message", changes.message),
        ),
    )


@dataclass(frozen=True)
class _Changes:
    """What one layout makes of its documents; the other documents have op 0 and NULL."""

    op: rules.Ops
    names: tuple[pa.StringArray, ...]
    source_ts: pa.Array
    after: ImageSource
    before: ImageSource
    refusals: tuple[Refusal, ...]
    message: Mask

    def beside(self, other: "_Changes") -> "_Changes":
        """Both, which have no document in common."""
        return _Changes(
            op=np.where(self.op != 0, self.op, other.op),
            names=tuple(pc.coalesce(*both) for both in zip(self.names, other.names, strict=True)),
            source_ts=pc.coalesce(self.source_ts, other.source_ts),
            after=EitherImages(self.after, other.after),
            before=EitherImages(self.before, other.before),
            refusals=(*self.refusals, *other.refusals),
            message=self.message,
        )


def _envelopes(members: Members, enveloped: Mask, nested: Nested | None) -> _Changes:
    if not enveloped.all():
        members = members.where(enveloped)
    op, message, unknown = rules.of_envelope(letters(members.column("op")))
    images: list[ImageSource]
    if nested is None:
        source = scan_objects(members.column("source").documents(kernels.OBJECT), _SOURCE, learn=False)
        images = [ObjectImages(members.column(name).documents(kernels.OBJECT)) for name in ("after", "before")]
    elif enveloped.all():
        source, images = nested.origin, [ScannedImages(image) for image in nested.rows]
    else:
        source = nested.origin.where(enveloped)
        images = [ScannedImages(image.where(enveloped)) for image in nested.rows]
    of_mongodb = _of_mongodb(members, enveloped)
    return _Changes(
        op=np.where(enveloped & ~of_mongodb, op, np.uint8(0)),
        names=tuple(strings(source.column(name)) for name in rules.PARTS),
        source_ts=_source_time(source.column("ts_ms"), members.column("ts_ms")),
        after=images[0],
        before=images[1],
        refusals=(
            *refusal(of_mongodb, rules.MONGODB),
            *refusal(enveloped & unknown, rules.UNKNOWN_OP, members.column("op")),
        ),
        message=enveloped & message,
    )


def _of_mongodb(members: Members, enveloped: Mask) -> Mask:
    """Events whose rows are text, or that say that they are of such a feed where they have no row."""
    after = members.column("after")
    result: Mask = enveloped & after.of_kind(kernels.STRING, kernels.ESCAPED)
    bare = np.flatnonzero(
        enveloped & ~after.of_kind(kernels.OBJECT) & ~members.column("before").of_kind(kernels.OBJECT)
    )
    if len(bare):
        origins = members.column("source").documents(kernels.OBJECT).take(bare)
        connector = scan_objects(origins, ("connector",), learn=False).column("connector")
        found = np.zeros(len(bare), np.bool_)
        pattern = np.frombuffer(b"mongodb", np.uint8)
        text_kernels.match_bytes(
            connector.data, connector.start, connector.end, connector.kind == kernels.STRING, pattern, found
        )
        result[bare] |= found
    return result


def _rows(documents: Documents, keys: Documents, members: Members, row: Mask, options: DebeziumOptions) -> _Changes:
    documents = documents.where(row)
    rows = scan_objects(documents, _OF_ROW, learn=False)
    stated = rows.column("__op")
    op, unknown = rules.of_row(letters(stated), stated.has_value, _is_true(rows.column("__deleted")))
    op = np.where(row, op, np.uint8(0))
    if options.tombstones == "delete":
        has_key = scan_objects(keys, (), learn=False).is_object
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
        refusals=refusal(row & unknown, rules.UNKNOWN_ROW_OP, stated),
        message=np.zeros_like(row),
    )


def _declared(payloads: Payloads, keys: Payloads, row: Mask) -> tuple[NDArray[np.int32], tuple[Declared, ...], Mask]:
    """What the schemas of value and key together declare, per distinct pair of them and layout; whose are broken."""
    width = len(keys.schemas) + 1
    pair_of = (payloads.schema_of.astype(np.int64) - NO_SCHEMA) * width + (keys.schema_of - NO_SCHEMA)
    declared_of, first = distinct(pair_of * 2 + row if payloads.schemas else pair_of * 2)
    declared: list[Declared] = []
    broken: list[int] = []
    for at in first.tolist():
        value, key = int(payloads.schema_of[at]), int(keys.schema_of[at])
        types: dict[str, ValueType] = {}
        names: tuple[str, ...] = ()
        try:
            if key != NO_SCHEMA:
                types |= connect_schema.row_types(keys.schemas[key])
            names = tuple(types)
            if value != NO_SCHEMA:
                types |= connect_schema.row_types(payloads.schemas[value], *(() if row[at] else ("after", "before")))
        except ValueError:
            broken.append(len(declared))
            types, names = {}, ()
        declared.append(Declared(types, names))
    return declared_of.astype(np.int32), tuple(declared) or (Declared(),), np.isin(declared_of, broken)


def _source_time(source: SpanColumn, event: SpanColumn) -> pa.Array:
    """The source's time in milliseconds, or the connector's where the source has none (snapshots write 0)."""
    of_source = milliseconds(*integers(source))
    return pc.coalesce(of_source, milliseconds(*integers(event))) if of_source.null_count else of_source


def _is_true(column: SpanColumn) -> Mask:
    """Rows that say true, as a boolean or as text."""
    result: Mask = column.kind == kernels.TRUE
    pattern = np.frombuffer(b"true", np.uint8)
    text_kernels.match_bytes(column.data, column.start, column.end, column.kind == kernels.STRING, pattern, result)
    return result
