"""Debezium Avro: messages in Confluent's wire format, whose schemas are asked for by id, and Avro files with a schema.

Messages come as bytes, as base64 text, or as JSON objects with base64 `key` and `value`, as consumers and proxies
dump them. What the decoded events mean is in `debezium_columns.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import ConfigError, SourceError
from pipelines.formats import json_kernels as kernels
from pipelines.formats.avro_messages import read_values, reader_of
from pipelines.formats.casting import cast_each
from pipelines.formats.debezium_columns import EventColumns, decode_columns, decode_rows_of_file
from pipelines.formats.debezium_options import DebeziumOptions
from pipelines.formats.documents import from_binary
from pipelines.formats.events import Events, Refusal
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.span_text import base64_bytes, text, true_mask
from pipelines.formats.value_type import ValueType
from pipelines.sources.raw_events import RawEvents
from pipelines.sources.schema_registry import RegistryConfig, Schemas, UnknownSchemaError, folder, registry

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

_MAGIC = 0
_OPENING_BRACE = 0x7B


@dataclass(frozen=True)
class DebeziumAvroOptions(DebeziumOptions):
    """Options of the format.

    Attributes:
        registry: address of the schema registry.
        registry_user: `name:secret`.
        registry_token: bearer token.
        registry_ca: file of certificates to trust.
        schemas: folder of `<id>.avsc` files, instead of a registry.
        schema_id_bytes: 4, or 8 for Apicurio's own wire format.
    """

    registry: str | None = None
    registry_user: str | None = None
    registry_token: str | None = None
    registry_ca: str | None = None
    schemas: str | None = None
    schema_id_bytes: int = 4

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "DebeziumAvroOptions":
        """Options from config.

        Raises:
            ConfigError: a value that the option does not have.
        """
        if "objects" in options:
            raise ConfigError("objects means nothing for debezium-avro: its schemas say what is nested")
        result = cls(**options)
        result.check()
        if result.registry is not None and result.schemas is not None:
            raise ConfigError("schemas and registry: leave out one of the two")
        if result.registry is not None and not result.registry.startswith(("http://", "https://")):
            raise ConfigError(f"registry must be an http or https address, not {result.registry!r}")
        if result.schema_id_bytes not in {4, 8}:
            raise ConfigError(f"schema_id_bytes must be 4 or 8, not {result.schema_id_bytes!r}")
        return result

    def source(self) -> Schemas:
        """Where schemas come from.

        Raises:
            ConfigError: the options do not say.
        """
        if self.schemas is not None:
            return folder(self.schemas)
        if self.registry is None:
            raise ConfigError("Avro messages name their schema by an id: say where it is, registry or schemas")
        return registry(RegistryConfig(self.registry, self.registry_user, self.registry_token, self.registry_ca))


def decode_debezium_avro(raw: RawEvents, options: DebeziumAvroOptions) -> Events:
    """The changes of a batch of Debezium Avro.

    Raises:
        ConfigError: messages, and no registry.
        SourceError: the registry cannot be asked.
    """
    if raw.rows is not None:
        return decode_rows_of_file(raw.rows)
    values, keys, garbled = _messages(raw)
    source = options.source()
    value = _decoded(values, source, options.schema_id_bytes, "")
    key = _decoded(_framed_only(keys), source, options.schema_id_bytes, "message key: ")
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
    tombstones = int((empty & ~deletes & ~broken).sum())
    refusals = [*value.refusals, *key.refusals]
    if garbled.any():
        refusals.append(
            Refusal(
                np.flatnonzero(garbled), "no Avro message: it does not begin with 0, and is no base64 of one that does"
            )
        )
    return decode_columns(groups, tuple(refusals), {"tombstone": tombstones} if tombstones else {})


@dataclass(frozen=True)
class _Decoded:
    """Messages by schema: `code` is the table of each, NOTHING where there is no message, BROKEN where it is none."""

    code: NDArray[np.int32]
    place: Rows
    tables: tuple[tuple[pa.Table, Mapping[str, ValueType]], ...]
    refusals: tuple[Refusal, ...]

    NOTHING = -1
    BROKEN = -2

    def at(self, rows: Rows) -> tuple[dict[str, pa.Array], Mapping[str, ValueType]]:
        """The columns of messages that are of one schema, and what they mean; none where there is no message."""
        code = int(self.code[rows[0]])
        if code < 0:
            return {}, {}
        table, types = self.tables[code]
        places = self.place[rows]
        if len(places) != table.num_rows or not (places == np.arange(len(places))).all():
            table = table.take(pa.array(places))
        return {name: pa.concat_arrays(table.column(name).chunks) for name in table.column_names}, types


def _decoded(messages: pa.BinaryArray, source: Schemas, id_bytes: int, what: str) -> _Decoded:
    """Messages decoded, each schema at once."""
    count = len(messages)
    header = 1 + id_bytes
    code = np.full(count, _Decoded.NOTHING, np.int32)
    place = np.zeros(count, np.int64)
    tables: list[tuple[pa.Table, Mapping[str, ValueType]]] = []
    refusals: list[Refusal] = []
    heads = pc.binary_slice(messages, 0, header).dictionary_encode()
    of_head = np.asarray(heads.indices.fill_null(-1))
    for number, head in enumerate(heads.dictionary.to_pylist()):
        rows = np.flatnonzero(of_head == number)
        try:
            reader = reader_of(source.document(_schema_id(head, id_bytes)))
        except UnknownSchemaError as error:
            code[rows] = _Decoded.BROKEN
            refusals.append(Refusal(rows, f"{what}{error}"))
            continue
        table, bad = read_values(pc.binary_replace_slice(messages.take(pa.array(rows)), 0, header, b""), reader)
        code[rows] = np.where(bad, _Decoded.BROKEN, len(tables))
        place[rows] = np.arange(len(rows))
        tables.append((table, reader.types))
        if bad.any():
            reason = f"{what}not a value of schema {int.from_bytes(head[1:], 'big')}: too short, too long or broken"
            refusals.append(Refusal(rows[bad], reason))
    return _Decoded(code, place, tuple(tables), tuple(refusals))


def _schema_id(head: bytes, id_bytes: int) -> int:
    if len(head) <= id_bytes or head[0] != _MAGIC:
        raise UnknownSchemaError(f"no Avro message: it does not begin with 0 and a schema id of {id_bytes} bytes")
    return int.from_bytes(head[1:], "big")


def _messages(raw: RawEvents) -> tuple[pa.BinaryArray, pa.BinaryArray, Mask]:
    """(values, keys, which are neither): the bytes of messages, NULL where there is none."""
    documents = raw.documents
    if documents is None:
        raise SourceError("no messages")
    keys = pa.nulls(len(documents), pa.binary()) if raw.keys is None else raw.keys
    # Each by its own first byte: what one message looks like says nothing of its neighbours.
    framed, object_ = (_begins_with(documents, byte) for byte in (_MAGIC, _OPENING_BRACE))
    if framed.all():
        return documents, keys, np.zeros(len(documents), np.bool_)
    values, members, wrong = _of_objects(_only(documents, object_))
    words, no_base64 = _of_base64(_only(documents, ~framed & ~object_))
    values = pc.coalesce(_only(documents, framed), values, words)
    # Beside messages as bytes keys are bytes, too, or what another converter makes of them.
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
        data, bad = base64_bytes(words)
        found.append(data)
        wrong = wrong | broken | bad | (column.has_value & ~column.of_kind(kernels.STRING, kernels.ESCAPED))
    wrong |= members.is_object & (members.column("value").kind == kernels.MISSING)
    return found[0], found[1], wrong


def _of_base64(lines: pa.BinaryArray) -> tuple[pa.BinaryArray, Mask]:
    words, garbled = cast_each(lines, pa.string())
    words = pc.utf8_trim_whitespace(words)
    data, bad = base64_bytes(words)
    nothing = true_mask(pc.equal(pc.binary_length(words), 0))
    return pc.if_else(pa.array(nothing), pa.scalar(None, pa.binary()), data), garbled | (bad & ~nothing)


def _framed_only(keys: pa.BinaryArray) -> pa.BinaryArray:
    """Keys that are Avro; those of other converters (text, JSON) say nothing that the value does not."""
    framed = pc.starts_with(keys, bytes([_MAGIC]))
    return pc.if_else(framed, keys, pa.scalar(None, pa.binary()))
