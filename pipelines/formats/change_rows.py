"""Plain rows with a column that names the operation, in JSON, Parquet, CSV or Avro.

Updates may come as two rows, before and after. AWS DMS is such a format with names of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.decode import casting
from pipelines.decode.avro import types_of_file
from pipelines.decode.batches import Complete, RawEvents
from pipelines.decode.casting import cast_each
from pipelines.decode.events import (
    SQL_SERVER_OPERATION,
    SQL_SERVER_WORDS,
    USUAL_OP_COLUMNS,
    USUAL_WORDS,
    Declared,
    Events,
    Placed,
    blank,
    broken_documents,
    counted,
    of_columns,
    op_codes,
    paths_of,
    refusal,
    strings,
    table_names,
    tombstones,
)
from pipelines.decode.image import EitherImages, ImageSource, Nothing, ObjectImages, PrefixedImages, TableImages
from pipelines.decode.json_columns import decode, json_text
from pipelines.decode.value_types import ValueType
from pipelines.errors import ConfigError, SourceError
from pipelines.jsonscan import value_kernels as kernels
from pipelines.jsonscan.members import scan_objects
from pipelines.jsonscan.spans import Documents, Members, SpanColumn, from_binary
from scan_core import Mask

Ops = NDArray[np.uint8]

BEFORE = ord("b")
"""The row before an update that follows at once: all it can tell is that the key was another."""


def old_rows(op: Ops) -> tuple[NDArray[np.int64], Mask]:
    """Where the row before each change stands, and which changes have one: deletes, and updates behind such a row."""
    places = np.arange(len(op))
    # Blank lines stand between no pair.
    former = np.r_[-1, np.maximum.accumulate(np.where(op != 0, places, -1))][: len(op)]
    paired = (op == ord("u")) & (former >= 0) & (op[former] == BEFORE)
    return np.where(paired, former, places), paired | (op == ord("d"))


def with_retractions(op: Ops) -> Ops:
    """The operations, of several rows before updates in a row all but the last as deletes: their updates follow later."""
    known = np.flatnonzero(op)
    is_before = op[known] == BEFORE
    if not (is_before[1:] & is_before[:-1]).any():
        return op
    places = np.arange(len(known))
    ahead = np.minimum.accumulate(np.where(is_before, len(known), places)[::-1])[::-1]
    is_update = np.r_[op[known] == ord("u"), False][ahead]
    op = op.copy()
    op[known[is_before & (ahead > places + 1) & is_update]] = ord("d")
    return op


def waiting_rows(op: Ops) -> tuple[int, bool]:
    """How many of the last rows wait for what follows, and whether these rows tell: not if all of them wait."""
    known = np.flatnonzero(op)
    others = np.flatnonzero(op[known] != BEFORE)
    waiting = known[others[-1] + 1 :] if len(others) else known
    return (len(op) - int(waiting[0]) if len(waiting) else 0), len(others) > 0


TIMESTAMP = pa.timestamp("us", "UTC")


SEVERAL = (
    "several columns may say what happened (op, operation, _change_type ...): name the one that does with op_column"
)
_LAST_LOOKED_AT = 64
"""More rows before updates and blank lines at the end of a batch are not usual."""


@dataclass(frozen=True)
class RowChangeOptions:
    """Options of the format.

    Attributes:
        op_column: column that holds the operation; None takes the one of each row that has a usual name.
        ops: letter (r, c, u, d, t; b for the row before an update; x to skip) by word; the usual words, in any case,
            are known.
        ts_column: column with the source's time, left in the row.
        no_op: letter for rows of files without the column; None refuses them.
        objects: `struct`, or `text` to keep nested objects as JSON text.
    """

    op_column: str | None = None
    ops: Mapping[str, str] = field(default_factory=dict)
    ts_column: str | None = None
    no_op: str | None = None
    objects: str = "struct"

    def __post_init__(self) -> None:
        letters = {*self.ops.values(), *([self.no_op] if self.no_op else [])}
        if unknown := sorted(letters - set("rcudtbx")):
            raise ConfigError(f"ops: {', '.join(unknown)} is none of r, c, u, d, t, b, x")


def decode_rows(raw: RawEvents, options: RowChangeOptions, before_prefix: str | None = None) -> Events:
    """The changes of a batch of rows.

    In tables, columns whose names are those of others behind `before_prefix` are the row before an update.

    Raises:
        SourceError: no column for the operation.
    """
    return _from_documents(raw, options) if raw.rows is None else _from_table(raw.rows, options, before_prefix)


def complete_pairs(events: pa.BinaryArray | pa.Table, options: RowChangeOptions) -> Complete:
    """How many of the events need none of those that follow: all but the rows before updates that come last."""
    count = len(events)
    for looked_at in (_LAST_LOOKED_AT, count):
        last = events.slice(max(count - looked_at, 0))
        op = _ops_of_rows(last, options) if isinstance(last, pa.Table) else _ops_of_documents(last, options)
        waiting, is_sure = waiting_rows(op)
        if is_sure:
            break
    return Complete(count - waiting, of_transactions=False)


def _from_documents(raw: RawEvents, options: RowChangeOptions) -> Events:
    documents = from_binary(raw.documents)
    names = _op_columns(options)
    extra = (options.ts_column,) if options.ts_column else ()
    rows = scan_objects(documents, (*names, *extra), learn=False)
    told = _told(rows, names)
    _require_column(options, is_there=bool(told.given or not rows.is_object.any()))
    op = with_retractions(_ops(told, rows.is_object, options))
    times = _times(rows.column(extra[0])) if extra else pa.nulls(len(op), TIMESTAMP)
    usable = documents.where(rows.is_object)
    deleted = op == ord("d")
    without = frozenset(names)
    old, has_old = old_rows(op)
    events = _events(
        op, times, ObjectImages(usable.where(~deleted), without), ObjectImages(usable.take(old).where(has_old), without)
    )
    unknown = rows.is_object & (op == 0)
    return Events(
        **events,
        order=paths_of(documents),
        refusals=(
            *broken_documents(rows),
            *refusal(rows.is_object & told.in_doubt, SEVERAL),
            *(
                refused
                for name, given in told.given.items()
                for refused in refusal(unknown & given, f"no operation that is known in {name}", told.words)
            ),
            *refusal(unknown, f"no {names[0] if options.op_column else 'column'} that says what happened"),
        ),
        skipped=counted(
            ("blank line", blank(rows)),
            ("tombstone", tombstones(rows)),
            ("row before an update", op == BEFORE),
            ("left out by ops", op == ord("x")),
        ),
    )


def _from_table(table: pa.Table, options: RowChangeOptions, before_prefix: str | None) -> Events:
    column, told = _told_by_table(table, options)
    _require_column(options, is_there=column is not None or not table.num_rows)
    op = with_retractions(_ops(told, np.ones(table.num_rows, np.bool_), options))
    columns = {name: _single(table.column(name)) for name in table.column_names if name != column}
    times = pa.nulls(len(op), TIMESTAMP)
    if options.ts_column is not None:
        if options.ts_column not in columns:
            raise SourceError(f"no column {options.ts_column}; there are {', '.join(columns)}")
        times = cast_each(columns[options.ts_column], TIMESTAMP)[0]

    def order(path: str) -> Placed:
        return of_columns(path, columns[path]), None

    former = {} if before_prefix is None else _prefixed(columns, before_prefix)
    now = {name: array for name, array in columns.items() if name not in {f"{before_prefix}{n}" for n in former}}
    types = types_of_file(table)
    return Events(
        **_events(op, times, TableImages(now, op != ord("d")), _old_images(op, now, former), types),
        order=order,
        refusals=refusal(
            op == 0,
            f"no operation that is known in {column}",
            None if column is None else _single(table.column(column)),
        ),
        skipped=counted(("row before an update", op == BEFORE), ("left out by ops", op == ord("x"))),
    )


def _op_columns(options: RowChangeOptions) -> tuple[str, ...]:
    return (options.op_column,) if options.op_column else USUAL_OP_COLUMNS


@dataclass(frozen=True)
class _Told:
    """What each row says of its operation.

    Attributes:
        words: NULL where it says nothing.
        given: rows that have each of the columns that may tell.
        is_number: the numbers of SQL Server's change tables.
        in_doubt: rows of which several columns may tell.
    """

    words: pa.StringArray
    given: Mapping[str, Mask]
    is_number: Mask
    in_doubt: Mask


def _told(rows: Members, names: tuple[str, ...]) -> _Told:
    """What objects say, each by the one member of its own that may tell."""
    given = {name: rows.column(name).kind != kernels.MISSING for name in names}
    given = {name: mask for name, mask in given.items() if mask.any()}
    num_given = np.sum([np.zeros(len(rows), np.int64), *given.values()], axis=0)
    words = pa.nulls(len(rows), pa.string())
    for name in given:
        words = pc.coalesce(words, json_text(rows.column(name))[0])
    nothing = np.zeros(len(rows), np.bool_)
    return _Told(words, given, given.get(SQL_SERVER_OPERATION, nothing), num_given > 1)


def _told_by_table(table: pa.Table, options: RowChangeOptions) -> tuple[str | None, _Told]:
    """(the column of a table that tells the operation, what it says).

    Raises:
        SourceError: several may tell.
    """
    given = [name for name in _op_columns(options) if name in table.column_names]
    if len(given) > 1:
        raise SourceError(f"{' and '.join(given)}: {SEVERAL}")
    count, nothing = table.num_rows, np.zeros(table.num_rows, np.bool_)
    if not given:
        return None, _Told(pa.nulls(count, pa.string()), {}, nothing, nothing)
    words = cast_each(_single(table.column(given[0])), pa.string())[0]
    return given[0], _Told(words, {given[0]: ~nothing}, np.full(count, given[0] == SQL_SERVER_OPERATION), nothing)


def _ops_of_documents(documents: pa.BinaryArray, options: RowChangeOptions) -> Ops:
    rows = scan_objects(from_binary(documents), _op_columns(options), learn=False)
    return _ops(_told(rows, _op_columns(options)), rows.is_object, options)


def _ops_of_rows(table: pa.Table, options: RowChangeOptions) -> Ops:
    return _ops(_told_by_table(table, options)[1], np.ones(table.num_rows, np.bool_), options)


def _require_column(options: RowChangeOptions, *, is_there: bool) -> None:
    """Stop where nothing tells what happened: without the option, every row would be refused one by one.

    Raises:
        SourceError: names the options.
    """
    if is_there or options.no_op is not None:
        return
    wanted = options.op_column or f"any of {', '.join(USUAL_OP_COLUMNS[:8])} ..."
    raise SourceError(f"the rows have no column {wanted} that says what happened: op_column, or no_op: u")


def _prefixed(columns: Mapping[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    """The columns that stand for the former values of others, by the names of those."""
    return {name: columns[prefix + name] for name in columns if prefix + name in columns}


def _old_images(op: NDArray[np.uint8], now: Mapping[str, pa.Array], former: Mapping[str, pa.Array]) -> TableImages:
    old, has_old = old_rows(op)
    if not former:
        whole = bool((old == np.arange(len(old))).all())
        return TableImages(now if whole else {name: a.take(pa.array(old)) for name, a in now.items()}, has_old)
    said = (op == ord("u")) & np.any([np.asarray(array.is_valid()) for array in former.values()], axis=0)
    deleted = op == ord("d")
    columns = {name: pc.if_else(pa.array(deleted), now[name], array) for name, array in former.items()}
    rest = {name: pc.if_else(pa.array(deleted), a, pa.scalar(None, a.type)) for name, a in now.items()}
    return TableImages({**rest, **columns}, deleted | said)


def _events(
    op: NDArray[np.uint8],
    times: pa.Array,
    after: ImageSource,
    before: ImageSource,
    types: Mapping[str, ValueType] | None = None,
) -> dict[str, Any]:
    count = len(op)
    return {
        "raw": np.arange(count),
        "op": np.where((op == ord("x")) | (op == BEFORE), np.uint8(0), op),
        "table_of": np.zeros(count, np.int32),
        "tables": ("",),
        "source_ts": times,
        "after": after,
        "before": before,
        "key": Nothing(),
        "declared_of": np.zeros(count, np.int32),
        "declared": (Declared(types or {}),),
    }


def _ops(told: _Told, present: Mask, options: RowChangeOptions) -> Ops:
    words = told.words
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(words))
    usual = op_codes(plain, USUAL_WORDS)
    if told.is_number.any():
        usual = np.where(told.is_number, op_codes(plain, SQL_SERVER_WORDS), usual)
    own = op_codes(words, options.ops)
    codes = np.where(own != 0, own, usual)
    if options.no_op is not None:
        codes = np.where(np.asarray(words.is_null()), np.uint8(ord(options.no_op)), codes)
    return np.where(present & ~told.in_doubt, codes, np.uint8(0))


def _times(column: SpanColumn) -> pa.Array:
    return decode(column, ValueType(TIMESTAMP))[0]


def _single(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


_NAMES = ("data", "metadata", "before", "before-image")
_METADATA = ("timestamp", "record-type", "operation", "schema-name", "table-name")
_OPS = {"load": "r", "insert": "c", "update": "u", "delete": "d", "truncate-table": "t"}
_LETTERS = {"I": "c", "U": "u", "D": "d"}
BEFORE_PREFIX = "BI_"
"""What DMS puts before the names of before-image columns unless told otherwise."""


@dataclass(frozen=True)
class DmsOptions:
    """Options of the format.

    Attributes:
        before_prefix: of before-image columns.
        op_column: of S3 rows; files without it are a full load.
        ts_column: of S3 rows, with the commit time, if there is one.
        objects: `struct`, or `text` to keep nested objects as JSON text.
    """

    before_prefix: str = BEFORE_PREFIX
    op_column: str = "Op"
    ts_column: str | None = None
    objects: str = "text"


def decode_dms(raw: RawEvents, options: DmsOptions) -> Events:
    """The changes of a batch of DMS events.

    Raises:
        SourceError: a file that looks like CSV without a header and is read with one.
    """
    if raw.rows is not None:
        rows = RowChangeOptions(_op_column(raw.rows, options.op_column), _LETTERS, options.ts_column, no_op="r")
        return decode_rows(raw, rows, options.before_prefix)
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _NAMES, learn=False)
    metadata = scan_objects(messages.column("metadata").documents(kernels.OBJECT), _METADATA, learn=False)
    operation = strings(metadata.column("operation"))
    op = op_codes(operation, _OPS)
    is_control = op_codes(strings(metadata.column("record-type")), {"control": "x"}) != 0
    control = messages.is_object & is_control & (op != ord("t"))
    op = np.where(control, np.uint8(0), op)
    unknown = messages.is_object & (op == 0) & ~control
    deleted = op == ord("d")
    data = messages.column("data").documents(kernels.OBJECT)
    table_of, tables = table_names([strings(metadata.column(name)) for name in ("schema-name", "table-name")])
    times, _ = casting.from_text(strings(metadata.column("timestamp")), pa.timestamp("us", "UTC"))
    return Events(
        raw=np.arange(len(op)),
        op=op,
        table_of=table_of,
        tables=tables,
        source_ts=times,
        after=PrefixedImages(data.where(~deleted), options.before_prefix, inside=False),
        before=EitherImages(
            ObjectImages(data.where(deleted)),
            EitherImages(
                ObjectImages(_nested(messages).where(~deleted)),
                PrefixedImages(data.where(~deleted), options.before_prefix, inside=True),
            ),
        ),
        key=Nothing(),
        declared_of=np.zeros(len(op), np.int32),
        declared=(Declared(),),
        order=paths_of(documents),
        refusals=(
            *broken_documents(messages),
            *refusal(unknown, "no DMS change: operation is none of load, insert, update, delete", operation),
        ),
        skipped=counted(
            ("blank line", blank(messages)), ("tombstone", tombstones(messages)), ("control event", control)
        ),
    )


def _op_column(rows: pa.Table, name: str) -> str:
    """The column that says what happened; catalogs of tables write its name in lower case.

    Raises:
        SourceError: see `decode_dms`.
    """
    names: list[str] = rows.column_names
    if name in names:
        return name
    if names and names[0] in _LETTERS:
        raise SourceError(
            f"the first line, {','.join(names[:10])}, is a change and not the names of columns: options: "
            f"{{header: false, columns: [{name}, ...]}}"
        )
    # Its words do not decide: beside one that is none, deletes would be rows of a full load.
    return next((other for other in names if other.lower() == name.lower()), name)


def _nested(messages: Members) -> Documents:
    """The before image where the task writes it as an object of its own, under either name."""
    usual, other = (messages.column(name).documents(kernels.OBJECT) for name in ("before-image", "before"))
    start, end = np.where(usual.present, usual.start, other.start), np.where(usual.present, usual.end, other.end)
    return Documents(usual.data, start, end)
