"""Plain rows with a column for the operation, in JSON, Parquet, CSV or Avro.

Updates may come as two rows, before and after. AWS DMS is such a format with its own column names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode import casting
from nevermore.pipelines.decode.arrow_columns import single
from nevermore.pipelines.decode.avro import types_of_file
from nevermore.pipelines.decode.batches import Complete, RawEvents
from nevermore.pipelines.decode.casting import cast_each
from nevermore.pipelines.decode.events import (
    SQL_SERVER_OPERATION,
    SQL_SERVER_WORDS,
    USUAL_OP_COLUMNS,
    USUAL_WORDS,
    Declared,
    Events,
    Placed,
    events_of,
    of_columns,
    op_codes,
    paths_of,
    refusal,
    skip_counts,
    strings,
    table_names,
    with_others,
)
from nevermore.pipelines.decode.image import ArrowMembers, EitherImages, ImageSource, ObjectImages, PrefixedImages
from nevermore.pipelines.decode.json_columns import decode, json_text
from nevermore.pipelines.decode.value_types import ValueType
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.options import DmsOptions, RowChangeOptions
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import Documents, Members, SpanColumn, from_binary
from nevermore.scan_core import Mask

Ops = NDArray[np.uint8]

BEFORE = ord("b")
"""The row before an update, directly followed by it: its only new information is the old key."""


def old_rows(op: Ops) -> tuple[NDArray[np.int64], Mask]:
    """The row before each change, and which changes have one: deletes, and updates directly after such a row."""
    places = np.arange(len(op))
    # Blank lines do not separate pairs.
    former = np.r_[-1, np.maximum.accumulate(np.where(op != 0, places, -1))][: len(op)]
    paired = (op == ord("u")) & (former >= 0) & (op[former] == BEFORE)
    return np.where(paired, former, places), paired | (op == ord("d"))


def with_retractions(op: Ops) -> Ops:
    """Treat all but the last of several rows before updates as deletes: their updates follow later."""
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
    """The number of last rows that wait for later ones, and whether earlier rows exist."""
    known = np.flatnonzero(op)
    others = np.flatnonzero(op[known] != BEFORE)
    waiting = known[others[-1] + 1 :] if len(others) else known
    return (len(op) - int(waiting[0]) if len(waiting) else 0), len(others) > 0


TIMESTAMP = pa.timestamp("us", "UTC")


SEVERAL = (
    "several columns may contain the operation (op, operation, _change_type ...): name the right one with op_column"
)
_LAST_LOOKED_AT = 64
"""Maximum of rows before updates and blank lines at the end of a batch; more are unusual."""


def decode_rows(raw: RawEvents, options: RowChangeOptions, before_prefix: str | None = None) -> Events:
    """Decode a batch of rows to changes.

    In tables, columns with the names of others after `before_prefix` form the row before an update.

    Raises:
        SourceError: no column for the operation.
    """
    return _from_documents(raw, options) if raw.rows is None else _from_table(raw.rows, options, before_prefix)


def complete_pairs(events: pa.BinaryArray | pa.Table, options: RowChangeOptions) -> Complete:
    """The number of leading events that depend on no later ones: all but trailing rows before updates."""
    count = len(events)
    for looked_at in (_LAST_LOOKED_AT, count):
        last = events.slice(max(count - looked_at, 0))
        op = _ops_of_rows(last, options) if isinstance(last, pa.Table) else _ops_of_documents(last, options)
        waiting, is_sure = waiting_rows(op)
        if is_sure:
            break
    return Complete(count - waiting)


def _from_documents(raw: RawEvents, options: RowChangeOptions) -> Events:
    documents = from_binary(raw.documents)
    names = _op_columns(options)
    extra = (options.ts_column,) if options.ts_column else ()
    rows = scan_objects(documents, (*names, *extra), learn=False)
    stated = _stated_ops(rows, names)
    _require_column(options, is_there=bool(stated.given or not rows.is_object.any()))
    op = with_retractions(_ops(stated, rows.is_object, options))
    times = _times(rows.column(extra[0])) if extra else pa.nulls(len(op), TIMESTAMP)
    usable = documents.where(rows.is_object)
    deleted = op == ord("d")
    without = frozenset(names)
    old, has_old = old_rows(op)
    unknown = rows.is_object & (op == 0)
    events = _events(
        op,
        times,
        ObjectImages(usable.where(~deleted), without),
        ObjectImages(usable.take(old).where(has_old), without),
        order=paths_of(documents),
        refusals=(
            *refusal(rows.is_object & stated.in_doubt, SEVERAL),
            *(
                refused
                for name, given in stated.given.items()
                for refused in refusal(unknown & given, f"no operation that is known in {name}", stated.words)
            ),
            *refusal(unknown, f"no {names[0] if options.op_column else 'column'} with the operation"),
        ),
    )
    return with_others(events, rows)


def _from_table(table: pa.Table, options: RowChangeOptions, before_prefix: str | None) -> Events:
    column, stated = _stated_ops_of_table(table, options)
    _require_column(options, is_there=column is not None or not table.num_rows)
    op = with_retractions(_ops(stated, np.ones(table.num_rows, np.bool_), options))
    columns = {name: single(table.column(name)) for name in table.column_names if name != column}
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
    return _events(
        op,
        times,
        ArrowMembers(now, op != ord("d")),
        _old_images(op, now, former),
        order=order,
        declared=(np.zeros(len(op), np.int32), (Declared(types, is_whole=bool(types)),)),
        refusals=refusal(
            op == 0,
            f"no operation that is known in {column}",
            None if column is None else single(table.column(column)),
        ),
    )


def _op_columns(options: RowChangeOptions) -> tuple[str, ...]:
    return (options.op_column,) if options.op_column else USUAL_OP_COLUMNS


@dataclass(frozen=True)
class _StatedOps:
    """The operation that each row states.

    Attributes:
        words: the operation; NULL where there is none.
        given: rows that have each of the possible columns.
        is_number: rows with the numbers of SQL Server's change tables.
        in_doubt: rows with several possible columns.
    """

    words: pa.StringArray
    given: Mapping[str, Mask]
    is_number: Mask
    in_doubt: Mask


def _stated_ops(rows: Members, names: tuple[str, ...]) -> _StatedOps:
    """Operations of objects, each from the only one of its members that can contain it."""
    given = {name: rows.column(name).kind != kernels.MISSING for name in names}
    given = {name: mask for name, mask in given.items() if mask.any()}
    num_given = np.sum([np.zeros(len(rows), np.int64), *given.values()], axis=0)
    words = pa.nulls(len(rows), pa.string())
    for name in given:
        words = pc.coalesce(words, json_text(rows.column(name))[0])
    nothing = np.zeros(len(rows), np.bool_)
    return _StatedOps(words, given, given.get(SQL_SERVER_OPERATION, nothing), num_given > 1)


def _stated_ops_of_table(table: pa.Table, options: RowChangeOptions) -> tuple[str | None, _StatedOps]:
    """(column of a table with the operation, its content).

    Raises:
        SourceError: several columns could contain it.
    """
    given = [name for name in _op_columns(options) if name in table.column_names]
    if len(given) > 1:
        raise SourceError(f"{' and '.join(given)}: {SEVERAL}")
    count, nothing = table.num_rows, np.zeros(table.num_rows, np.bool_)
    if not given:
        return None, _StatedOps(pa.nulls(count, pa.string()), {}, nothing, nothing)
    words = cast_each(single(table.column(given[0])), pa.string())[0]
    return given[0], _StatedOps(words, {given[0]: ~nothing}, np.full(count, given[0] == SQL_SERVER_OPERATION), nothing)


def _ops_of_documents(documents: pa.BinaryArray, options: RowChangeOptions) -> Ops:
    rows = scan_objects(from_binary(documents), _op_columns(options), learn=False)
    return _ops(_stated_ops(rows, _op_columns(options)), rows.is_object, options)


def _ops_of_rows(table: pa.Table, options: RowChangeOptions) -> Ops:
    return _ops(_stated_ops_of_table(table, options)[1], np.ones(table.num_rows, np.bool_), options)


def _require_column(options: RowChangeOptions, *, is_there: bool) -> None:
    """Stop where no column has the operation: without the option, every row would be rejected one by one.

    Raises:
        SourceError: there is no such column; names the options.
    """
    if is_there or options.no_op is not None:
        return
    wanted = options.op_column or f"any of {', '.join(USUAL_OP_COLUMNS[:8])} ..."
    raise SourceError(
        f"the rows have no column {wanted} with the operation: set options: {{op_column: NAME}} of the source, or {{no_op: u}}"
    )


def _prefixed(columns: Mapping[str, pa.Array], prefix: str) -> dict[str, pa.Array]:
    """Columns with the former values of others, by the names of those."""
    return {name: columns[prefix + name] for name in columns if prefix + name in columns}


def _old_images(op: NDArray[np.uint8], now: Mapping[str, pa.Array], former: Mapping[str, pa.Array]) -> ArrowMembers:
    old, has_old = old_rows(op)
    if not former:
        whole = bool((old == np.arange(len(old))).all())
        return ArrowMembers(now if whole else {name: a.take(pa.array(old)) for name, a in now.items()}, has_old)
    said = (op == ord("u")) & np.any([np.asarray(array.is_valid()) for array in former.values()], axis=0)
    deleted = op == ord("d")
    columns = {name: pc.if_else(pa.array(deleted), now[name], array) for name, array in former.items()}
    rest = {name: pc.if_else(pa.array(deleted), a, pa.scalar(None, a.type)) for name, a in now.items()}
    return ArrowMembers({**rest, **columns}, deleted | said)


def _events(op: Ops, times: pa.Array, after: ImageSource, before: ImageSource, **others: Any) -> Events:
    skipped = skip_counts(("row before an update", op == BEFORE), ("left out by ops", op == ord("x")))
    changes = np.where((op == ord("x")) | (op == BEFORE), np.uint8(0), op)
    return events_of(changes, None, after, before, source_ts=times, skipped=skipped, **others)


def _ops(stated: _StatedOps, present: Mask, options: RowChangeOptions) -> Ops:
    words = stated.words
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(words))
    usual = op_codes(plain, USUAL_WORDS)
    if stated.is_number.any():
        usual = np.where(stated.is_number, op_codes(plain, SQL_SERVER_WORDS), usual)
    own = op_codes(words, options.ops)
    codes = np.where(own != 0, own, usual)
    if options.no_op is not None:
        codes = np.where(np.asarray(words.is_null()), np.uint8(ord(options.no_op)), codes)
    return np.where(present & ~stated.in_doubt, codes, np.uint8(0))


def _times(column: SpanColumn) -> pa.Array:
    return decode(column, ValueType(TIMESTAMP))[0]


_NAMES = ("data", "metadata", "before", "before-image")
_METADATA = ("timestamp", "record-type", "operation", "schema-name", "table-name")
_OPS = {"load": "r", "insert": "c", "update": "u", "delete": "d", "truncate-table": "t"}
_LETTERS = {"I": "c", "U": "u", "D": "d"}


def decode_dms(raw: RawEvents, options: DmsOptions) -> Events:
    """Decode a batch of DMS events to changes.

    Raises:
        SourceError: a file looks like CSV without a header but is read with one.
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
    times, _ = casting.from_text(strings(metadata.column("timestamp")), pa.timestamp("us", "UTC"))
    events = events_of(
        op,
        table_names([strings(metadata.column(name)) for name in ("schema-name", "table-name")]),
        PrefixedImages(data.where(~deleted), options.before_prefix, inside=False),
        EitherImages(
            ObjectImages(data.where(deleted)),
            EitherImages(
                ObjectImages(_nested(messages).where(~deleted)),
                PrefixedImages(data.where(~deleted), options.before_prefix, inside=True),
            ),
        ),
        source_ts=times,
        order=paths_of(documents),
        refusals=refusal(unknown, "not a DMS change: operation is none of load, insert, update, delete", operation),
        skipped=skip_counts(("control event", control)),
    )
    return with_others(events, messages)


def _op_column(rows: pa.Table, name: str) -> str:
    """The column with the operation; catalogs write its name in lower case.

    Raises:
        SourceError: see `decode_dms`.
    """
    names: list[str] = rows.column_names
    if name in names:
        return name
    if names and names[0] in _LETTERS:
        raise SourceError(
            f"the first line, {','.join(names[:10])}, is a change, not a header: options: "
            f"{{header: false, columns: [{name}, ...]}}"
        )
    # Its content does not decide: if one word were unknown, deletes would become rows of a full load.
    return next((other for other in names if other.lower() == name.lower()), name)


def _nested(messages: Members) -> Documents:
    """The before image where the task writes it as a separate object, under either name."""
    usual, other = (messages.column(name).documents(kernels.OBJECT) for name in ("before-image", "before"))
    start, end = np.where(usual.present, usual.start, other.start), np.where(usual.present, usual.end, other.end)
    return Documents(usual.data, start, end)
