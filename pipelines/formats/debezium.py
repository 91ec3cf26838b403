"""Debezium JSON: bare, in the schema envelope, and unwrapped by ExtractNewRecordState; keys and tombstones.

One layout per batch: events with `op` and row images, or flat rows with `__op` / `__deleted`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import ConfigError
from pipelines.formats import connect_schema, text_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.debezium_columns import decode_rows_of_file
from pipelines.formats.envelope import NO_SCHEMA, Payloads, cut_envelopes
from pipelines.formats.events import Declared, Events, distinct, letters, milliseconds, strings, table_names
from pipelines.formats.image import DEFAULT_PLACEHOLDER
from pipelines.formats.image_sources import ImageSource, ObjectImages, ScannedImages
from pipelines.formats.json_events import blank, broken_documents, counted, paths_of, refusal, tombstones
from pipelines.formats.json_scalars import integers
from pipelines.formats.json_scan import scan_nested, scan_objects
from pipelines.formats.json_spans import Documents, Members, Nested, SpanColumn, from_binary, no_documents
from pipelines.formats.unwrapped_names import ADDED, ORIGIN_PREFIXES
from pipelines.formats.value_type import ValueType
from pipelines.sources.raw_events import RawEvents

Mask = NDArray[np.bool_]

_PARTS = ("db", "schema", "table")
_FLAGS = ("__deleted", "__op")
_ENVELOPE = ("before", "after", "source", "op", "ts_ms", "transaction", "ts_us", "ts_ns", *_FLAGS)
_ORIGIN = tuple(prefix + name for prefix in ORIGIN_PREFIXES for name in _PARTS)
_SOURCE = ("ts_ms", "db", "schema", "table")
_OPS = np.zeros(256, np.bool_)
_OPS[[ord(letter) for letter in "rcudt"]] = True


@dataclass(frozen=True)
class DebeziumOptions:
    """Options of the format.

    Attributes:
        placeholder: the connector's `unavailable.value.placeholder`.
        tombstones: `ignore`, or `delete` where they are the only sign of a delete.
        objects: `struct`, or `text` to keep undeclared nested objects as JSON text.
    """

    placeholder: str = DEFAULT_PLACEHOLDER
    tombstones: str = "ignore"
    objects: str = "struct"

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "DebeziumOptions":
        """Options from config.

        Raises:
            ConfigError: a value that the option does not have.
        """
        result = cls(**options)
        result.check()
        return result

    def check(self) -> None:
        """Refuse values that an option does not have.

        Raises:
            ConfigError: names it and the valid ones.
        """
        if self.tombstones not in {"ignore", "delete"}:
            raise ConfigError(f"tombstones must be ignore or delete, not {self.tombstones!r}")
        if self.objects not in {"struct", "text"}:
            raise ConfigError(f"objects must be struct or text, not {self.objects!r}")


def decode_debezium(raw: RawEvents, options: DebeziumOptions) -> Events:
    """The changes of a batch of Debezium JSON, or of rows of a file that hold its events in columns."""
    if raw.rows is not None:
        return decode_rows_of_file(raw.rows)
    documents = from_binary(raw.documents)
    payloads = cut_envelopes(documents)
    keys = cut_envelopes(no_documents(len(documents)) if raw.keys is None else from_binary(raw.keys))
    nested = scan_nested(payloads.documents, _ENVELOPE, ("after", "before"), ("source", _SOURCE))
    members = scan_objects(payloads.documents, _ENVELOPE, learn=False) if nested is None else nested.top
    has_op = members.column("op").of_kind(kernels.STRING)
    has_image = (members.column("after").kind != kernels.MISSING) | (members.column("before").kind != kernels.MISSING)
    # An unwrapped row may have columns of its own that are called op and after.
    flagged = (members.column("__op").kind != kernels.MISSING) | (members.column("__deleted").kind != kernels.MISSING)
    has_source = members.column("source").of_kind(kernels.OBJECT)
    enveloped = members.is_object & ~flagged & has_op & (has_image | has_source)
    control = _control(payloads.documents, members, enveloped)
    if enveloped.any() or not (members.is_object & ~control).any():
        return _enveloped(payloads, keys, members, enveloped=enveloped, control=control, nested=nested)
    return _unwrapped(payloads, keys, control, options)


def _enveloped(
    payloads: Payloads, keys: Payloads, members: Members, *, enveloped: Mask, control: Mask, nested: Nested | None
) -> Events:
    op = np.where(enveloped, letters(members.column("op")), np.uint8(0))
    message = op == ord("m")
    unknown = enveloped & ~_OPS[op] & ~message
    odd = members.is_object & ~enveloped & ~control
    documents = enveloped & members.column("after").of_kind(kernels.STRING, kernels.ESCAPED)
    after: ImageSource
    before: ImageSource
    if nested is None:
        source = scan_objects(members.column("source").documents(kernels.OBJECT), _SOURCE, learn=False)
        after, before = (ObjectImages(members.column(name).documents(kernels.OBJECT)) for name in ("after", "before"))
    else:
        source = nested.origin
        after, before = (ScannedImages(image) for image in nested.rows)
    table_of, tables = table_names([strings(source.column(name)) for name in _PARTS])
    declared_of, declared = _declared(payloads, keys, ("after", "before"))
    return Events(
        raw=np.arange(len(op)),
        op=np.where(_OPS[op] & ~documents, op, np.uint8(0)),
        table_of=table_of,
        tables=tables,
        source_ts=_source_time(source.column("ts_ms"), members.column("ts_ms")),
        after=after,
        before=before,
        key=ObjectImages(keys.documents),
        declared_of=declared_of,
        declared=declared,
        order=paths_of(payloads.documents),
        refusals=(
            *broken_documents(members),
            *refusal(documents, "after is text, as of MongoDB: let ExtractNewDocumentState make rows of it"),
            *refusal(unknown, "unknown op: r, c, u, d, t are known"),
            *refusal(odd, "no change event: neither op with before or after, nor a known control event"),
        ),
        skipped=counted(
            ("blank line", blank(members)),
            ("tombstone", tombstones(members)),
            ("control event", control),
            ("logical decoding message", message),
        ),
    )


def _unwrapped(payloads: Payloads, keys: Payloads, control: Mask, options: DebeziumOptions) -> Events:
    names = (*_FLAGS, *_ORIGIN, "__source_ts_ms", "__ts_ms")
    rows = scan_objects(payloads.documents.where(~control), names, learn=False)
    has_key = scan_objects(keys.documents, (), learn=False).is_object
    flagged = _is_true(rows.column("__deleted"))
    stated = letters(rows.column("__op"))
    op = np.where(_OPS[stated], stated, np.uint8(ord("u")))
    op = np.where(rows.is_object, np.where(flagged, np.uint8(ord("d")), op), np.uint8(0))
    unknown = rows.is_object & rows.column("__op").has_value & ~_OPS[stated]
    empty = tombstones(rows) & ~control
    if options.tombstones == "delete":
        op = np.where(empty & has_key, np.uint8(ord("d")), op)
        empty &= ~has_key
    table_of, tables = table_names(
        [pc.coalesce(*(strings(rows.column(prefix + name)) for prefix in ORIGIN_PREFIXES)) for name in _PARTS]
    )
    declared_of, declared = _declared(payloads, keys, ())
    deleted = op == ord("d")
    documents = payloads.documents.where(rows.is_object)
    return Events(
        raw=np.arange(len(op)),
        op=np.where(unknown, np.uint8(0), op),
        table_of=table_of,
        tables=tables,
        source_ts=_source_time(rows.column("__source_ts_ms"), rows.column("__ts_ms")),
        after=ObjectImages(documents.where(~deleted), ADDED),
        before=ObjectImages(documents.where(deleted), ADDED),
        key=ObjectImages(keys.documents),
        declared_of=declared_of,
        declared=declared,
        order=paths_of(payloads.documents),
        refusals=(*broken_documents(rows), *refusal(unknown, "unknown __op: r, c, u, d, t are known")),
        skipped=counted(("blank line", blank(rows)), ("tombstone", empty), ("control event", control)),
    )


def _control(documents: Documents, members: Members, enveloped: Mask) -> Mask:
    """Schema changes, transaction markers and heartbeats, which share topics and files with change events."""
    rest = members.is_object & ~enveloped
    if not rest.any():
        return rest
    others = scan_objects(documents.where(rest), ("ddl", "status", "id", "event_count", "ts_ms", "op"), learn=True)
    ddl = others.column("ddl").has_value & others.is_object
    marks = others.of_names({"status", "id", "event_count", "ts_ms", "data_collections"}) & (
        others.column("status").kind == kernels.STRING
    )
    heartbeat = others.of_names({"ts_ms"}) & (others.column("ts_ms").kind == kernels.INT)
    mask: Mask = rest & (ddl | marks | heartbeat)
    return mask


def _declared(
    payloads: Payloads, keys: Payloads, images: tuple[str, ...]
) -> tuple[NDArray[np.int32], tuple[Declared, ...]]:
    """What the schemas of value and key together declare, per distinct pair of them."""
    width = len(keys.schemas) + 1
    pair_of = (payloads.schema_of.astype(np.int64) - NO_SCHEMA) * width + (keys.schema_of - NO_SCHEMA)
    declared_of, first = distinct(pair_of)
    declared = []
    for pair in pair_of[first].tolist():
        value, key = pair // width + NO_SCHEMA, pair % width + NO_SCHEMA
        types: dict[str, ValueType] = {}
        if key != NO_SCHEMA:
            types |= connect_schema.row_types(keys.schemas[key])
        names = tuple(types)
        if value != NO_SCHEMA:
            types |= connect_schema.row_types(payloads.schemas[value], *images)
        declared.append(Declared(types, names))
    return declared_of.astype(np.int32), tuple(declared) or (Declared(),)


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
