"""The result of every format: one entry per change, before tables, types and keys are known.

Contains the operation, the order and the row images of a change, and code shared by formats. The changes of one table
are assembled in `assemble.py`.
"""

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode.batches import RawEvents, Reasons, Rejected, with_value
from nevermore.pipelines.decode.casting import cast_each, per_second, rescale
from nevermore.pipelines.decode.image import ImageSource, Nothing, StackedImages
from nevermore.pipelines.decode.json_columns import NUMBER_KINDS, TEXT_KINDS, decode, text, text_bytes, whole_numbers
from nevermore.pipelines.decode.schema_registry import framed
from nevermore.pipelines.decode.value_types import Encoding, ValueType, from_arrow, plain_type
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import MAX_COLUMNS, scan_objects
from nevermore.pipelines.jsonscan.spans import Documents, Members, SpanColumn, from_binary
from nevermore.scan_core import Mask, Rows

SQL_SERVER_OPERATION = "__$operation"
USUAL_OP_COLUMNS = (
    *("op", "_op", "__op", "Op", "OP", "operation", "_operation", "Operation", "OPERATION"),
    *("op_type", "cdc_op", "cdc_operation", "_cdc_operation", "change_type", "_change_type", "_CHANGE_TYPE"),
    *("row_kind", "rowkind", "_row_kind", "METADATA$ACTION", SQL_SERVER_OPERATION),
)
SQL_SERVER_WORDS: Mapping[str, str] = {"1": "d", "2": "c", "3": "b", "4": "u", "5": "u"}
"""Operation codes of SQL Server's change tables: 3 is the row before an update, 5 a merge."""
USUAL_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("r", "read", "snapshot", "load", "initial", "bootstrap-insert"), "r"),
    **dict.fromkeys(("c", "i", "create", "created", "insert", "inserted", "ins", "new", "+i"), "c"),
    **dict.fromkeys(("u", "update", "updated", "upd", "upsert", "upserted", "modify", "modified"), "u"),
    **dict.fromkeys(("merge", "replace", "update_postimage", "update_after", "+u"), "u"),
    **dict.fromkeys(("d", "delete", "deleted", "del", "remove", "removed", "-d"), "d"),
    **dict.fromkeys(("t", "truncate", "truncated"), "t"),
    **dict.fromkeys(("-u", "update_preimage", "update_before"), "b"),
}


def op_codes(words: pa.StringArray, letters: Mapping[str, str]) -> NDArray[np.uint8]:
    """The ASCII code of each word's letter; 0 for NULL and for words that are not in `letters`."""
    encoded = words.dictionary_encode(null_encoding="encode")
    known = [letters.get(word, "\0") if word is not None else "\0" for word in encoded.dictionary.to_pylist()]
    codes = np.array([ord(letter) for letter in known] or [0], np.uint8)
    return codes[np.asarray(encoded.indices)] if len(words) else np.zeros(0, np.uint8)


SCHEMA = "__columns"
"""Member that identifies the columns: TEXT, or their Arrow schema in base64."""
TEXT = "text"


def documents_of(rows: pa.Table) -> pa.BinaryArray:
    """Encode each row as a JSON object with the schema of its columns."""
    schema = rows.schema.remove_metadata()
    plain = all(field.type == pa.string() and not field.metadata for field in schema)
    mark = TEXT if plain else base64.b64encode(schema.serialize().to_pybytes()).decode()
    values = zip(*map(_values, rows.columns), strict=True)
    named = (dict(zip(schema.names, row, strict=True)) for row in values)
    return pa.array([orjson.dumps({**_finite(row), SCHEMA: mark}, default=_plain) for row in named], pa.binary())


def _values(column: pa.ChunkedArray) -> Any:
    """Values of Python; dates and times are the numbers that the column holds if one is outside of Python's years 1 to 9999."""
    try:
        return column.to_pylist()
    except OverflowError:
        return column.combine_chunks().view(_number_of(column.type)).to_pylist()


def _number_of(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def schema_of(document: bytes | None) -> tuple[str, tuple[str, ...]] | None:
    """The schema that rows of one table share; None for a document that is not such a row."""
    try:
        row = orjson.loads(document or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get(SCHEMA), str):
        return None
    return row[SCHEMA], tuple(name for name in row if name != SCHEMA)


def rows_of(documents: Sequence[bytes], schema: tuple[str, tuple[str, ...]]) -> pa.Table:
    """Decode the documents of one schema to rows.

    Raises:
        ValueError: a document was not written by `documents_of`.
    """
    mark, names = schema
    columns = scan_objects(from_binary(pa.array(documents, pa.binary())), names, learn=False)
    given = pa.schema([(name, pa.string()) for name in names]) if mark == TEXT else _read(mark)
    arrays = []
    for wanted in given:
        # Decimals of more than 38 digits fit no plain type; they were written as text.
        kind = pa.string() if pa.types.is_decimal256(wanted.type) else plain_type(wanted.type)
        column = columns.column(wanted.name)
        array, bad = decode(column, from_arrow(kind))
        array, lost = (array, bad) if array.type == wanted.type else cast_each(array, wanted.type)
        if pa.types.is_temporal(kind) and (far := column.of_kind(kernels.INT)).any():
            numbers, _ = decode(column.without(~far), from_arrow(_number_of(wanted.type)))
            array, bad, lost = pc.if_else(pa.array(far), numbers.cast(wanted.type), array), bad & ~far, lost & ~far
        if (bad | lost).any():
            raise ValueError(f"column {wanted.name} of a row in quarantine has a value that is not {wanted.type}")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=given)


def shown(document: bytes) -> bytes:
    """A document for people to read: without its schema."""
    if schema_of(document) is None:
        return document
    row = orjson.loads(document)
    del row[SCHEMA]
    return orjson.dumps(row)


def _read(mark: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(mark)))


def _finite(value: Any) -> Any:
    """The value with NaN and infinity as text: JSON does not have them, and orjson writes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return [_finite(member) for member in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    return format(value, "f") if isinstance(value, Decimal) else str(value)


MAX_RAW_BYTES = 1024 * 1024
"""Maximum of bytes kept of a rejected event: quarantine is read by people."""


@dataclass(frozen=True)
class Declared:
    """Declarations of a feed about the rows of some changes.

    Attributes:
        types: value type by source column.
        key: names of the key columns; empty if the feed does not declare them.
        is_whole: whether rows have no other columns than those of `types`.
    """

    types: Mapping[str, ValueType] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    is_whole: bool = False

    def completed(self, others: "Iterable[Declared]") -> "Declared":
        """Add what only others declare of the same table, the first of them that do.

        They may describe another version of the table: a type int taken from them accepts longs, too.
        """
        types, key = dict(self.types), self.key
        for other in others:
            borrowed = {name: replace(t, widens=t.arrow == pa.int32()) for name, t in other.types.items()}
            types = {**borrowed, **types}
            key = key or other.key
        return replace(self, types=types, key=key)


Placed = tuple[pa.StringArray, pa.StringArray | None]
"""The place of each change, NULL where it has none, and the reasons for these; None if all have one."""


@dataclass(frozen=True)
class Refusal:
    """Raw events that a format cannot interpret, with one reason for all or one each."""

    rows: Rows
    reason: Reasons


def each_once(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Remove repeats: an event with several reasons is refused for the first."""
    result: list[Refusal] = []
    seen: Rows = np.zeros(0, np.int64)
    for refusal in refusals:
        fresh = ~np.isin(refusal.rows, seen)
        rows, reason = refusal.rows[fresh], refusal.reason
        if len(rows):
            result.append(Refusal(rows, reason if isinstance(reason, str) else reason.filter(pa.array(fresh))))
            seen = np.union1d(seen, rows)
    return result


@dataclass(frozen=True)
class Events:
    """The changes of one batch of raw events.

    All arrays have one entry per change; `raw` is the raw event that it came from (Canal puts several in one).

    Attributes:
        op: ASCII codes of the letters in `batches.OPS`.
        table_of: table of each change, as an index into `tables`.
        tables: table names in the feed, `[db.][schema.]table`; "" where the feed has none.
        declared_of: declaration of each change, as an index into `declared`.
        after: new rows.
        before: old rows, as far as known.
        key: message keys.
        sparse_updates: a column that an update's `after` lacks was not sent (wal2json), rather than being NULL.
        order: gives the places by a path of `order_by`, and why events have none; raises KeyError for a path the
            format does not have.
        refusals: raw events that are not a change but should have been one.
        skipped: number of raw events that are legitimately not a change, by reason.
        places: place of each change in the configured order, as text; None where the feed's own order counts.
        placeholder: stands for values that were not sent, where the format itself defines it.
        servers: gives the server that each change comes from, NULL if it is not stated; None where the format does not tell servers
            apart.
    """

    raw: Rows
    op: NDArray[np.uint8]
    table_of: NDArray[np.int32]
    tables: tuple[str, ...]
    source_ts: pa.Array
    after: ImageSource
    before: ImageSource
    key: ImageSource
    declared_of: NDArray[np.int32]
    declared: tuple[Declared, ...]
    order: Callable[[str], Placed]
    sparse_updates: bool = False
    refusals: tuple[Refusal, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    places: pa.StringArray | None = None
    placeholder: bytes = b""
    servers: Callable[[], pa.StringArray] | None = None

    def __len__(self) -> int:
        return len(self.op)


def events_of(
    op: NDArray[np.uint8],
    tables: tuple[NDArray[np.int32], tuple[str, ...]] | None,
    after: ImageSource,
    before: ImageSource,
    *,
    order: Callable[[str], Placed],
    raw: Rows | None = None,
    source_ts: pa.Array | None = None,
    key: ImageSource | None = None,
    declared: tuple[NDArray[np.int32], tuple[Declared, ...]] | None = None,
    **others: Any,
) -> Events:
    """Changes of `tables`, see `table_names`; by default one for each raw event, without times, keys and declarations."""
    count = len(op)
    table_of, names = tables or (np.zeros(count, np.int32), ("",))
    declared_of, declarations = declared or (np.zeros(count, np.int32), ())
    return Events(
        raw=np.arange(count) if raw is None else raw,
        op=op,
        table_of=table_of,
        tables=names,
        source_ts=pa.nulls(count, pa.timestamp("us", "UTC")) if source_ts is None else source_ts,
        after=after,
        before=before,
        key=Nothing() if key is None else key,
        declared_of=declared_of.astype(np.int32),
        declared=declarations or (Declared(),),
        order=order,
        **others,
    )


def no_events() -> Events:
    """No changes at all."""
    op, codes = np.zeros(0, np.uint8), np.zeros(0, np.int32)
    return events_of(op, (codes, ()), Nothing(), Nothing(), order=no_order)


def merged(parts: Sequence[Events]) -> Events:
    """Merge changes of several layouts, in the order of their raw events; each raw event has a single layout."""
    if len(parts) < 2:
        return parts[0] if parts else no_events()
    raw = np.concatenate([part.raw for part in parts])
    order = np.argsort(raw, kind="stable")
    places, counts = pa.array(order), [len(part) for part in parts]
    part_of = np.repeat(np.arange(len(parts), dtype=np.int32), counts)[order]
    place_of = np.concatenate([np.arange(count) for count in counts])[order]
    tables = tuple(dict.fromkeys(name for part in parts for name in part.tables))
    codes = [np.array([tables.index(name) for name in part.tables], np.int32)[part.table_of] for part in parts]
    firsts = np.cumsum([0, *(len(part.declared) for part in parts)], dtype=np.int32)
    declared_of = [first + part.declared_of for first, part in zip(firsts, parts, strict=False)]
    skipped = Counter[str]()
    for part in parts:
        skipped.update(part.skipped)

    def joined(arrays: Iterable[pa.Array]) -> pa.Array:
        return pa.concat_arrays(arrays).take(places)

    def placed(path: str) -> Placed:
        found: list[Placed | None] = []
        for part in parts:
            found.append(None)
            with suppress(KeyError):
                found[-1] = part.order(path)
        if not any(found):
            raise KeyError(path)
        nothing = [(pa.repeat(_MISSING, len(part)).cast(pa.string()), None) for part in parts]
        each = [at or none for at, none in zip(found, nothing, strict=True)]
        reasons = [pa.nulls(len(at), pa.string()) if why is None else why for at, why in each]
        return joined(at for at, _ in each), joined(reasons)

    after, before, key = (
        StackedImages(tuple(getattr(part, side) for part in parts), part_of, place_of)
        for side in ("after", "before", "key")
    )
    return Events(
        raw=raw[order],
        op=np.concatenate([part.op for part in parts])[order],
        table_of=np.concatenate(codes)[order],
        tables=tables,
        source_ts=joined(part.source_ts for part in parts),
        after=after,
        before=before,
        key=key,
        declared_of=np.concatenate(declared_of)[order],
        declared=tuple(declared for part in parts for declared in part.declared),
        order=placed,
        sparse_updates=parts[0].sparse_updates,
        refusals=tuple(refused for part in parts for refused in part.refusals),
        skipped=skipped,
        servers=lambda: joined(
            pa.nulls(len(part), pa.string()) if part.servers is None else part.servers() for part in parts
        ),
    )


def without_refused(events: Events) -> Events:
    """Remove changes of refused raw events: an event is applied or refused as a whole, never both.

    Members before the point where a document breaks off are still found, and look like a change.
    """
    refused = [refusal.rows for refusal in events.refusals]
    if not refused:
        return events
    return replace(events, op=np.where(np.isin(events.raw, np.concatenate(refused)), np.uint8(0), events.op))


def letters(column: SpanColumn) -> NDArray[np.uint8]:
    """The character of each one-character string, 0 for all others."""
    single = (column.kind == 6) & (column.end - column.start == 1)
    return (
        np.where(single, column.data[np.where(single, column.start, 0)], np.uint8(0))
        if len(column.data)
        else (np.zeros(len(column), np.uint8))
    )


def strings(column: SpanColumn) -> pa.StringArray:
    """The strings of a column, NULL where the value is not a string."""
    return text(column, column.of_kind(6, 7))[0]


def codes_of(texts: pa.StringArray) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """(index of each text, -1 for NULL and empty ones; distinct texts)."""
    encoded = pc.if_else(pc.equal(texts, ""), None, texts).dictionary_encode()
    return np.asarray(encoded.indices.fill_null(-1)), tuple(encoded.dictionary.to_pylist())


def table_names(parts: "list[pa.StringArray]") -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """(index per change, distinct names) of the names `part.part...`, without parts that are NULL or empty."""
    encoded = [part.fill_null("").dictionary_encode() for part in parts]
    code = np.zeros(len(parts[0]), np.int64)
    for part in encoded:
        code = code * len(part.dictionary) + np.asarray(part.indices)
    index, first = distinct(code)
    names = [".".join(text for part in encoded if (text := part[int(at)].as_py())) for at in first]
    return index.astype(np.int32), tuple(names) or ("",)


def distinct(code: NDArray[Any]) -> tuple[Rows, Rows]:
    """(dense code per entry, first entry of each) in order of appearance."""
    if len(code) == 0 or (code == code[0]).all():
        return np.zeros(len(code), np.int64), np.zeros(min(len(code), 1), np.int64)
    encoded = pa.array(code).dictionary_encode()
    index = np.asarray(encoded.indices).astype(np.int64)
    first = np.zeros(len(encoded.dictionary), np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return index, first


def distinct_columns(mask: Mask) -> tuple[Rows, Rows]:
    """`distinct` for the columns of a boolean matrix."""
    if not mask.size:
        return distinct(np.zeros(mask.shape[1]))
    packed = np.ascontiguousarray(np.packbits(mask, axis=0).T)
    return distinct(packed.view(f"S{packed.shape[1]}").ravel())


def milliseconds(values: NDArray[np.int64], valid: Mask) -> pa.Array:
    """Timestamps from milliseconds since the epoch; NULL where not positive (snapshots write 0) or out of range."""
    usable = valid & (values > 0) & (values < 253_402_300_800_000)
    return (
        pa.array(np.where(usable, values, 0) * 1000, mask=~usable)
        .view(pa.timestamp("us"))
        .cast(pa.timestamp("us", "UTC"), safe=False)
    )


def reject(raw: RawEvents, rows: Rows, reason: str | pa.Array, table_name: str | None = None) -> Rejected:
    """Reject the raw events at `rows`, for one reason or one each."""
    count = len(rows)
    if count == 0:
        return Rejected.none()
    places = pa.array(rows)
    files, offsets = raw.source_file.take(places).cast(pa.string()), raw.source_offset.take(places)
    return Rejected.of(count, files, offsets, reason, _raw_bytes(raw, places), table_name)


def _raw_bytes(raw: RawEvents, places: pa.Array) -> pa.Array:
    if raw.rows is not None:
        return documents_of(raw.rows.take(places))
    raw = raw.take(places)
    if raw.documents is None:
        return pa.nulls(len(places), pa.binary())
    found = []
    for number, documents in enumerate((raw.documents, *(() if raw.keys is None else (raw.keys,)))):
        some = pc.binary_slice(documents, 0, MAX_RAW_BYTES)
        found.append(some if raw.schema_ids is None else framed(some, raw.schema_ids[number]))
    return pc.coalesce(*found)


_MISSING, _NUMBER, _TEXT = "0", "1", "2"
"""Prefixes of values, in order: events without a value, as those of snapshots, come first."""
_END = "\x01"
"""Ends each of several values; sorts below all characters that can follow."""
_POSITIVE, _NEGATIVE = "1", "0"
_BEHIND_DIGITS = "~"
"""Ends digits that count downwards, so that fewer of them sort higher."""
_WHOLE_DIGITS = 38
_EXACT = pa.decimal256(75, 75 - _WHOLE_DIGITS)
"""Type that numbers must fit; others have no place."""
_UNITS = pa.decimal256(76, 0)
_LARGEST_FLOAT, _SMALLEST_FLOAT = 1e37, 1e-20
"""Floats beyond are as good as infinite or zero."""
_IN_DIGITS = r"^[+-]?([0-9]{1,38}(\.[0-9]{0,37})?|\.[0-9]{1,37})$"
_MOMENT = (
    r"^(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]+))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?$"
)
_LSN = r"^(?P<high>[0-7]?[0-9A-Fa-f]{1,7})/(?P<low>[0-9A-Fa-f]{1,8})$"


def no_order(path: str) -> Placed:
    """The places by a path, of events that have no paths.

    Raises:
        KeyError: always.
    """
    raise KeyError(path)


def loaded_rows(table: str, declared: Declared, members: Members) -> Events:
    """Rows that were read from a table of a database, as snapshot reads."""
    op = np.full(len(members), ord("r"), np.uint8)
    return described_rows([(table, declared)], np.zeros(len(members), np.int32), op, members, Nothing())


def described_rows(
    tables: Sequence[tuple[str, Declared]],
    description: NDArray[np.int32],
    op: NDArray[np.uint8],
    after: ImageSource,
    before: ImageSource,
    **others: Any,
) -> Events:
    """Changes of tables of a database, whose source describes each of them by number: its name, types and key at some time."""
    names = tuple(dict.fromkeys(name for name, _ in tables))
    declared = (description, tuple(declared for _, declared in tables))
    places = np.array([names.index(name) for name, _ in tables] or [0], np.int32)
    of_table = places[description], names or ("",)
    return events_of(op, of_table, after, before, order=no_order, declared=declared, **others)


def places(events: Events, order_by: Sequence[str]) -> Placed:
    """The place of each change, as text, from the values at these paths; NULL with a reason where there is none.

    Raises:
        ConfigError: the events do not have a path by which to order them.
    """
    parts, reasons = [], []
    for path in order_by:
        try:
            of_path, why = events.order(path)
        except KeyError as error:
            raise ConfigError(
                f"order_by: events of this format have no {path}: name a path in the event, such as source.lsn or "
                "after.updated_at, or a column where events are plain rows"
            ) from error
        parts.append(of_path)
        reasons += [] if why is None else [why]
    # NULL in one part makes the whole NULL.
    joined = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _END)
    return joined, pc.coalesce(*reasons) if reasons else None


_POSITIONS = ("lsn", "scn", "change_lsn", "pos")
_OF_POSITIONS = ("txId", "commit_scn", "commit_lsn", "file")
"""Members of `source` that are equal in all events of one change: where it is in the log, and what that is in."""


def changes_in_source(events: Events, rows: Rows) -> NDArray[np.int64]:
    """The change of the source that each event is of, as a code; -1 where the event does not state it."""

    def find(names: Iterable[str]) -> Iterator[pa.StringArray]:
        for name in names:
            for path in (f"source.{name}", f"__{name}", f"__source_{name}"):
                with suppress(KeyError):
                    found = events.order(path)[0]
                    yield pc.if_else(pc.equal(found, _MISSING), pa.scalar(None, pa.string()), found)
                    break

    position = pc.coalesce(*find(_POSITIONS), pa.nulls(len(events), pa.string()))
    whole = pc.binary_join_element_wise(position, *(pc.fill_null(part, "") for part in find(_OF_POSITIONS)), _END)
    return np.asarray(whole.take(pa.array(rows)).dictionary_encode().indices.fill_null(-1)).astype(np.int64)


def in_order(rows: Rows, order: pa.StringArray) -> Rows:
    """Sort `rows` by their places; rows with the same place keep their order."""
    return rows[np.asarray(pc.sort_indices(order.take(pa.array(rows)))).astype(np.int64)]


def of_columns(path: str, values: pa.Array) -> pa.StringArray:
    """Places from the values of a column.

    Raises:
        ConfigError: a column of this type cannot order events.
    """
    if not _has_order(values.type):
        raise ConfigError(f"order_by: {path} is {values.type}; only numbers, times and text order events")
    return _comparable(values)


def of_json(path: str, column: SpanColumn) -> Placed:
    """Places from JSON values, each by itself; objects, lists and numbers with too many digits have none."""
    bad = column.of_kind(kernels.OBJECT, kernels.ARRAY)
    values, whole, _ = whole_numbers(column, truth=True)
    found = pc.if_else(pa.array(whole), _numbers(pa.array(values)), _MISSING)
    rest = column.of_kind(*NUMBER_KINDS) & ~whole
    if rest.any():
        exact, none = cast_each(text(column, rest)[0], _EXACT)
        bad |= none
        found = pc.if_else(pa.array(rest), pc.fill_null(_numbers(exact), _MISSING), found)
    rest = column.of_kind(*TEXT_KINDS) & ~whole
    if rest.any():
        words, broken = text(column, rest)
        bad |= broken
        found = pc.if_else(pa.array(rest), _texts(pc.fill_null(words, "")), found)
    if not bad.any():
        return found, None
    reason = f"order_by: {path} is neither text nor a number with at most 38 digits before and 37 after the point"
    return pc.if_else(pa.array(bad), pa.scalar(None, pa.string()), found), with_value(reason, column, bad)


def _has_order(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision - kind.scale <= _WHOLE_DIGITS)
    is_bytes = any(of(kind) for of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))
    return not is_bytes and not pa.types.is_nested(kind)


def _comparable(values: pa.Array) -> pa.StringArray:
    """Values as sortable text: NULL, then numbers, then everything else as written."""
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    kind = values.type
    if pa.types.is_null(kind):
        return pa.repeat(_MISSING, len(values)).cast(pa.string())
    if pa.types.is_timestamp(kind):
        values = _micros(values)
    elif pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.int32()) if getattr(kind, "bit_width", 64) == 32 else values.cast(pa.int64())
    elif pa.types.is_floating(kind):
        numbers = np.nan_to_num(np.asarray(values.fill_null(0)).astype(np.float64)).clip(
            -_LARGEST_FLOAT, _LARGEST_FLOAT
        )
        numbers = np.where(np.abs(numbers) < _SMALLEST_FLOAT, 0.0, numbers)
        values = cast_each(pa.array(numbers, mask=np.asarray(values.is_null())), _EXACT)[0]
    is_number = pa.types.is_decimal(values.type) or pa.types.is_integer(values.type)
    return pc.fill_null(_numbers(values) if is_number else _texts(values.cast(pa.string())), _MISSING)


def _micros(values: pa.Array) -> pa.Array:
    """Timestamps in microseconds; those that do not fit 64 bits become the first or the last of all."""
    counts = rescale(np.asarray(pc.fill_null(values.view(pa.int64()), 0)), per_second(values.type), 1_000_000)
    return pa.array(counts, mask=np.asarray(values.is_null()))


def _texts(values: pa.StringArray) -> pa.StringArray:
    """Values as written, except numbers and PostgreSQL log sequence numbers as numbers, and times in UTC."""
    text = pc.binary_join_element_wise(_TEXT, values, "")
    is_number = pc.match_substring_regex(values, _IN_DIGITS)
    if pc.any(is_number).as_py():
        exact = pc.if_else(is_number, pc.utf8_ltrim(values, "+"), "0").cast(_EXACT)
        text = pc.if_else(is_number, _numbers(exact), text)
    is_moment = pc.match_substring_regex(values, _MOMENT)
    if pc.any(is_moment).as_py():
        text = pc.coalesce(_moments(values), text)
    is_lsn = pc.match_substring_regex(values, _LSN)
    if pc.any(is_lsn).as_py():
        parts = pc.extract_regex(values.filter(is_lsn), _LSN)
        halves = (pc.utf8_lpad(pc.struct_field(parts, name), 8, "0") for name in ("high", "low"))
        written = text_bytes(pc.binary_join_element_wise(*halves, ""), Encoding.HEX)[0]
        numbers = np.frombuffer(written.buffers()[2], ">i8").astype(np.int64)
        text = pc.replace_with_mask(text, is_lsn, _numbers(pa.array(numbers)))
    return text


def _moments(values: pa.StringArray) -> pa.StringArray:
    """Dates with times in UTC, without trailing zeros in a fraction; UTC is the default zone. NULL for other text."""
    parts = pc.extract_regex(values, _MOMENT)
    day, time, fraction, zone = (pc.struct_field(parts, name) for name in ("day", "time", "fraction", "zone"))
    zone = pc.if_else(pc.equal(zone, ""), "Z", zone)
    seconds = cast_each(pc.binary_join_element_wise(day, "T", time, zone, ""), pa.timestamp("s", "UTC"))[0]
    digits = pc.utf8_rtrim(fraction, "0")
    text = pc.binary_join_element_wise(_TEXT, seconds.cast(pa.timestamp("s")).cast(pa.string()), "")
    return pc.if_else(pc.equal(digits, ""), text, pc.binary_join_element_wise(text, digits, "."))


def _numbers(values: pa.Array) -> pa.StringArray:
    """Integers and decimals as digits, as many before the point in all; those of negative numbers count downwards."""
    exact = values.cast(_EXACT, safe=False)
    units = pa.Array.from_buffers(_UNITS, len(exact), exact.buffers(), offset=exact.offset).cast(pa.string())
    negative = pc.starts_with(units, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(units, "-"), _EXACT.precision, "0")
    upwards = pc.binary_join_element_wise(_NUMBER + _POSITIVE, pc.utf8_rtrim(digits, "0"), "")
    if not pc.any(negative).as_py():
        return upwards
    falling = pc.utf8_rtrim(_complement(digits), "9")
    return pc.if_else(negative, pc.binary_join_element_wise(_NUMBER + _NEGATIVE, falling, _BEHIND_DIGITS, ""), upwards)


def _complement(digits: pa.StringArray) -> pa.StringArray:
    """Nine minus each digit: reverses the order of texts of one length."""
    digits = pa.concat_arrays([digits])
    _, offsets, data = digits.buffers()
    turned = np.uint8(2 * ord("0") + 9) - np.frombuffer(data, np.uint8)
    return pa.StringArray.from_buffers(len(digits), offsets, pa.py_buffer(turned), offset=digits.offset)


TWICE = "an object gives a member twice"
TOMBSTONE = "tombstone"
_STATUS_REASONS: Mapping[int, str] = {
    kernels.BROKEN: "not JSON",
    kernels.NOT_CONTAINER: "JSON, but no object",
    kernels.TOO_MANY: f"more than {MAX_COLUMNS:,} columns: names of its members seem to be data",
    kernels.REPEATED: TWICE,
    kernels.TOO_DEEP: f"nested too deeply: more than {kernels.MAX_DEPTH} levels of objects and arrays",
}


def refusal(mask: Mask, reason: str, values: SpanColumn | pa.Array | None = None) -> tuple[Refusal, ...]:
    """The refusal of these events; empty if there are none. `values`, one per event, are appended to the reason."""
    if not mask.any():
        return ()
    reasons = reason if values is None else with_value(reason, values, mask).filter(pa.array(mask))
    return (Refusal(np.flatnonzero(mask), reasons),)


def broken_documents(members: Members) -> tuple[Refusal, ...]:
    """Refusals of documents that are not a JSON object."""
    if members.is_object.all():
        return ()
    return tuple(r for status, reason in _STATUS_REASONS.items() for r in refusal(members.status == status, reason))


def with_others(events: Events, members: Members) -> Events:
    """The events of documents; those that are no object are refused, blank lines and tombstones are skipped."""
    refusals = (*broken_documents(members), *events.refusals)
    skipped = skip_counts(("blank line", blank(members)), (TOMBSTONE, tombstones(members)))
    return replace(events, refusals=refusals, skipped={**skipped, **events.skipped})


def blank(members: Members) -> Mask:
    """Documents of only white space: lines between events."""
    mask: Mask = members.status == kernels.EMPTY
    return mask


def tombstones(members: Members) -> Mask:
    """Events without a value: a missing document, or null."""
    mask: Mask = (members.status == kernels.ABSENT) | (members.status == kernels.IS_NULL)
    return mask


def skip_counts(*masks: tuple[str, Mask]) -> dict[str, int]:
    """Number of events per reason, without those that do not occur."""
    return {reason: int(mask.sum()) for reason, mask in masks if mask.any()}


def paths_of(documents: Documents, rows: NDArray[np.int64] | None = None) -> Callable[[str], Placed]:
    """Create a function that returns the places by the values at a dotted path of the documents.

    Log sequence numbers such as `0/24EE3C8` sort as numbers. `rows` is the document of each change where a document
    holds several changes.
    """

    def placed(path: str) -> Placed:
        steps = path.removeprefix("payload.").split(".")
        inner, twice = documents, np.zeros(len(documents), np.bool_)
        for step in steps:
            members = scan_objects(inner, (step,), learn=False)
            twice |= members.status == kernels.REPEATED
            column = members.column(step)
            inner = column.documents(kernels.OBJECT)
        # NULL means that the path exists: events of a snapshot may have no place in the log.
        if not column.has_value.any() and not column.of_kind(kernels.NULL).any() and not twice.any():
            raise KeyError(path)
        if rows is not None:
            column, twice = column.take(rows), twice[rows]
        found, reasons = of_json(path, column)
        if not twice.any():
            return found, reasons
        # Without a place it would come first, as events of a snapshot do.
        is_twice = pa.array(twice)
        why = pc.if_else(is_twice, f"order_by: {path}: {TWICE}", pa.scalar(None, pa.string()))
        found = pc.if_else(is_twice, pa.scalar(None, pa.string()), found)
        return found, why if reasons is None else pc.coalesce(why, reasons)

    return placed
