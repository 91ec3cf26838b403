"""Rows that programs hand over as DataFrames: upserts and deletes by key, decoded and applied as the changes of any other source.

A batch is one commit of the change log, and one of the mirror. Its name is kept with the position, so that the same batch
is applied once, however often it is sent. Only tables with `source: {type: python}` take batches.

Tables without a project take rows, too: without a change log, and their columns and types stay as they are.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_run import BATCH_SHARE, ChangeRun, key_hashes, parts_by_key, repeated
from nevermore.pipelines.changes.keys import KeySet, check_key_types
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.sources import PythonSource
from nevermore.pipelines.config.tables import DEFAULT_MEMORY_LIMIT_BYTES, TableConfig
from nevermore.pipelines.decode.batches import (
    BatchEnd,
    ChangeBatch,
    RawEvents,
    Rejected,
    key_texts,
    one_text,
)
from nevermore.pipelines.decode.feed import POSITION, FeedConfig, TableFeed
from nevermore.pipelines.errors import AnotherIngesterError, ConfigError, SchemaConflictError, SourceError
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.iceberg.checked_catalog import open_for_writing
from nevermore.pipelines.iceberg.commit import retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import check_writable, current_schema, open_current, refresh
from nevermore.pipelines.iceberg.positions import summary_properties
from nevermore.pipelines.iceberg.row_shape import single_array, with_leaves, without_extensions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import check_key
from nevermore.pipelines.ingest.feeds import table_feed
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.ingest.spark_run import FrameRows
from nevermore.pipelines.ingest.table_ingest import PendingChanges, TableIngest, changed_columns
from nevermore.pipelines.mirrors.fold import DELETED
from nevermore.pipelines.mirrors.mirror import apply_changes
from nevermore.pipelines.sources.table_position import parse_position
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ListType, MapType, NestedField, PrimitiveType, Schema, StructType, arrow_type
from nevermore.scan_core.io import load_table
from nevermore.scan_core.parts import net_changes, rows_where

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable
    from nevermore.scan_core import Expr

MAX_KNOWN = 1_000
"""Number of batches whose names are kept. Older ones would be applied again."""
ATTEMPTS = 100
"""Writers of one table take turns: each tries again when another one has committed."""
_SHOWN = 5
_NO_COLUMN = "\0"
"""Every row has the same operation, also where a column has the name that feeds use for it."""
_NO_TYPE = re.compile(
    r"duration\[|_interval\b(?!:)|_union<|run_end_encoded<|extension<(?!arrow\.(uuid|json)>)|struct<>|binary\[0\]"
    r"|(?<!['\"])\b(?:Object|BIT|TIME WITH TIME ZONE)\b(?![:'\" ])"  # no names of members, no quoted values
    r"|(?:^|[:<,])(?:variant|geo(?:metry|graphy)\(\w+\)|interval[a-z ]*)(?=[,>]|$)"
)
"""Types of Arrow, and of Polars, DuckDB and Spark whose Arrow form is something else: addresses, packed bits, structs of bytes."""
Keep = Literal["last"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """What a table has of the batches of programs.

    Attributes:
        number: how many there were.
        known: names of the last ones.
    """

    number: int = 0
    known: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> "BatchPosition":
        """The position in a change log.

        Raises:
            PositionLostError: it is that of another source.
        """
        if text is None:
            return cls()
        return parse_position(text, "python", "batches of programs", 1, lambda d: cls(d["number"], tuple(d["known"])))

    def after(self, batch: str | None) -> str:
        """The text of the position after another batch, which may have no name."""
        known = [name for name in (*self.known, batch) if name is not None][-MAX_KNOWN:]
        return json.dumps({"source": "python", "version": 1, "number": self.number + 1, "known": known})


def write(
    config: Config,
    name: str,
    data: Any,
    op: Literal["c", "u", "d"],
    *,
    where: "str | Expr | None" = None,
    batch_id: str | None = None,
    keep: Keep | None = None,
) -> TableReport:
    """Apply rows to a table, as one commit.

    Args:
        config: of the project.
        name: the table.
        data: rows: a DataFrame of pandas, Polars or Spark, a relation of DuckDB, a list of dicts, or anything with
            `__arrow_c_stream__`. For deletes, only columns of the key and of `order_by` are read.
        op: `u` for upserts, `d` for deletes, `c` for inserts into a table without a key.
        where: with `u`: rows of the table for which it is true, and that are not in the data, are deleted.
        batch_id: name of the batch; one that was applied before is not applied again.
        keep: `last` if only the last of several rows with a key counts; without it, they are refused.

    Returns:
        Its status is `nothing new` if the batch was applied before.

    Raises:
        ConfigError: no such table, or one that is filled from another source.
        SourceError: rows that do not fit the table; nothing was written.
        SchemaConflictError: a column changes its type or is new, and the config does not allow it.
    """
    if not isinstance(batch_id, str | None):
        raise SourceError(f"batch_id is {batch_id!r}: it must be a text, the name of the batch; nothing was written")
    settings = _settings(config, name, op, where)
    written: list[TableReport] = []
    catalog = open_for_writing(config)
    with closing(_rows(data, settings.memory_limit_bytes // BATCH_SHARE)) as rows:

        def attempt() -> TableReport:
            report = TableReport(name)
            with closing(TableIngest(catalog, name, settings, report)) as table:
                try:
                    table.start()
                    position = BatchPosition.of(table.position)
                    if batch_id not in position.known and not written:
                        _Batch(rows, op, batch_id, keep, where).add_to(table, position)
                finally:
                    if report.log_commits:  # the mirror follows in another attempt if another writer came in between
                        written.append(report)
            return written[0] if written else report

        return _in_turn(attempt)


def _in_turn(attempt: Callable[[], Result]) -> Result:
    """Run `attempt` until no other writer comes in between: what it writes is still here."""

    def again() -> Result:
        try:
            return attempt()
        except AnotherIngesterError as error:
            error.may_retry = True
            raise

    return retry_conflicts(again, ATTEMPTS)


def create(config: Config, name: str, schema: Any) -> None:
    """Make the change log and the mirror of a table, without rows; nothing if they exist with these columns.

    Raises:
        ConfigError: the catalog cannot be opened.
        SourceError: a column has no type in Iceberg.
        SchemaConflictError: the table has other columns, or the key is not among these.
    """
    settings, catalog = config.table(name), open_for_writing(config)
    columns = without_extensions(_reader(pa.schema(schema).empty_table()).read_all()).schema
    nothing = pa.Table.from_pylist([{}], columns)  # a row of NULLs tells the types, as every row does

    def attempt() -> None:
        with closing(TableIngest(catalog, name, settings, TableReport(name))) as table:
            table.start()
            feed = table_feed(name, settings)
            _wanted(feed, columns.names, "d")
            row = _Decoder(feed, "c", None).changes(nothing, 1, "the data")
            if odd := [f.name for f in row.row_type if pa.types.is_null(f.type)]:
                raise SourceError(f"{name}: {', '.join(odd)} has no type: declare one")
            if not table.known_types:
                empty = ChangeBatch(row.table.slice(0, 0), row.row_type, row.key, row.sent)
                table.add(empty, Rejected.none(), BatchPosition().after(None), BatchEnd.TRANSACTION)
                table.flush()
            elif changed := changed_columns(table.known_types, row.row_type):
                raise SchemaConflictError(
                    f"{name} exists with other columns: {changed}. Upserts add columns, and widen types"
                )

    _in_turn(attempt)


def _settings(config: Config, name: str, op: str, where: object) -> TableConfig:
    try:
        settings = config.table(name)
    except ConfigError as error:
        named = name if "." in name else f"NAMESPACE.{name}"
        own = (
            "" if named == name else " (an asset of Dagster is named by key_prefix, or by metadata dagster/table_name)"
        )
        entry = f"{named}: {{source: {{type: python}}, key: [COLUMN]}}"
        raise ConfigError(f"{error}; a table for rows of programs is an entry of tables: {entry}{own}") from error
    if not isinstance(settings.source, PythonSource):
        raise ConfigError(
            f"{name} is filled from {settings.source.title}, so programs cannot write to it: only tables with "
            "source: {type: python} take rows of programs"
        )
    if op != "c" and not settings.key:
        raise ConfigError(
            f"{name} has no key by which rows are replaced or deleted: add key: [column, ...] to {config.path}"
        )
    if where is not None and settings.order_by != "position":
        raise ConfigError(
            f"{name} has order_by, by which a row may win that replace does not give: call upsert and delete"
        )
    if op == "c" and settings.identity != "full":
        raise ConfigError(
            f"{name} has a key, so rows are upserted: call upsert, or set identity: full instead of key in {config.path}"
        )
    return settings


def _rows(data: Any, limit_bytes: int) -> ChangeRun | FrameRows:
    if hasattr(data, "toArrow"):
        _check_types(data.dtypes)
        _reader(data.limit(0).toArrow())
        return FrameRows(data, limit_bytes)
    return ChangeRun.of(map(_valid, _reader(data)), limit_bytes)


def _valid(batch: pa.RecordBatch) -> pa.Table:
    """The rows, checked where Arrow checks nothing by itself: UTF-8, digits of decimals, times of a day, codes of dictionaries."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SourceError(f"the data is not valid: {error}; nothing was written") from error
    return pa.Table.from_batches([batch])


def _reader(data: Any) -> pa.RecordBatchReader:
    index = getattr(getattr(data, "index", None), "names", ())  # of pandas
    try:
        if index == [None] and (data.empty or data.index.dtype.kind == "i"):
            data = data.reset_index(drop=True)  # numbers of the rows that a filter left are no column
        elif index and {None, *data.columns}.intersection(index) and type(data.index).__name__ != "RangeIndex":
            # Arrow makes no column of a range, and would call other ones __index_level_0__
            raise ValueError("name its index unlike its columns, or drop it with reset_index(drop=True)")  # noqa: TRY301  reported below
        if isinstance(data, list):  # PyArrow itself would take the columns of the first row
            data = pa.table(
                {name: [row.get(name) for row in data] for name in dict.fromkeys(chain.from_iterable(data))}
            )
        reader = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, AttributeError, OverflowError, TypeError, ValueError) as error:
        # errors of Python itself say nothing of rows
        why = "" if type(error) in {AttributeError, TypeError} else f": {'; '.join(map(str, error.args))}"
        raise SourceError(
            f"rows cannot be read from {type(data).__name__}{why}. Rows are a DataFrame of pandas, Polars or Spark, a relation of "
            "DuckDB, a list of dicts with names of columns, or an Arrow table or reader"
        ) from error
    own = zip(getattr(data, "columns", ()), getattr(data, "dtypes", ()), strict=False)
    _check_types(chain(own, ((f.name, f.type) for f in reader.schema)))
    if twice := _repeated_names(pa.struct([*reader.schema])):
        raise SourceError(f"the data has {', '.join(dict.fromkeys(twice))} more than once: rename or drop all but one")
    return reader


def _check_types(kinds: Iterable[tuple[str, Any]]) -> None:
    if lost := [f"{name} ({kind})" for name, kind in kinds if _NO_TYPE.search(str(kind))]:
        raise SourceError(
            f"Iceberg has no type for {', '.join(lost)}: cast it to another type, such as text or a number"
        )


def _repeated_names(kind: pa.DataType) -> list[str]:
    members = [kind.field(at) for at in range(kind.num_fields)]
    times = Counter(member.name for member in members)
    return [*(n for n in times if times[n] > 1), *chain.from_iterable(_repeated_names(m.type) for m in members)]


@dataclass(frozen=True, slots=True)
class _Decoder:
    """How rows become changes of a table; pickled to tasks of Spark.

    Attributes:
        table: the table.
        op: `u`, `d` or `c`.
        name: of the batch.
    """

    table: TableFeed
    op: str
    name: str | None

    def __call__(self, tables: Iterable[pa.Table], part: int | None = None) -> Iterator[ChangeBatch]:
        """All rows, or those of a part of them, as changes.

        Raises:
            SourceError: a row does not fit the table, its key is NULL, or columns are missing.
        """
        at, place = 1, "the data" if part is None else f"partition {part} of the data"
        for rows in tables:
            changes = self.changes(rows.select(_wanted(self.table, rows.schema.names, self.op)), at, place)
            keys = _keys(changes.table)
            if self.table.key and (
                nulls := [name for name, key in zip(changes.key, keys, strict=True) if key.null_count]
            ):
                raise SourceError(
                    f"{self.table.name}: {', '.join(nulls)} is NULL in rows of the data, and a key; nothing was written"
                )
            check_key_types(keys)
            yield changes
            at += rows.num_rows

    def changes(self, rows: pa.Table, at: int, place: str) -> ChangeBatch:
        """Rows from number `at` on."""
        config = FeedConfig(tables=(self.table,), format="rows", options={"op_column": _NO_COLUMN, "no_op": self.op})
        count = rows.num_rows
        origin, numbers = one_text(self.name or "unnamed batch", count), pa.array(np.arange(at, at + count))
        decoded = decode(RawEvents(origin, numbers, rows=without_extensions(rows)), config)
        if decoded.rejected.num_rows:
            first = decoded.rejected.table.slice(0, 1).to_pylist()[0]
            raise SourceError(
                f"{self.table.name}: row {first['source_offset']:,} of {place} does not fit: {first['reason']} "
                f"({decoded.rejected.num_rows:,} such rows); nothing was written"
            )
        return decoded.tables[self.table.name]


@dataclass(frozen=True, slots=True)
class _Batch:
    rows: ChangeRun | FrameRows
    op: str
    name: str | None
    keep: Keep | None
    where: "str | Expr | None"

    def add_to(self, table: TableIngest, before: BatchPosition) -> None:
        """Commit the batch."""
        position, feed = before.after(self.name), table_feed(table.name, table.config, table)
        if isinstance(self.rows, FrameRows) and self.where is None:
            changes = self.rows.changes(_Decoder(feed, self.op, self.name), feed.order_by)
            if self.keep != "last":
                self._refuse_repeated(feed, self.rows.repeated())
            table.report.engine = "spark"
            table.add_remote(changes, Rejected.none(), position, (), is_atomic=True)
        else:
            given = self.checked(feed)
            for part in given if self.where is None else self._replacing(table, given, self.where):
                table.add(part, Rejected.none(), position, BatchEnd.WITHIN_TRANSACTION)
            table.add(ChangeBatch.empty(pa.struct([]), ()), Rejected.none(), position, BatchEnd.TRANSACTION)
            table.flush()
        table.convert_deletes()

    def checked(self, table: TableFeed) -> Iterator[ChangeBatch]:
        """The rows as changes of the table.

        Raises:
            SourceError: as the decoder, or a key occurs twice.
        """
        hashes = [np.zeros(0, np.uint64)]
        for changes in self._changes(table):
            hashes.append(key_hashes(_keys(changes.table)))
            yield changes
        if self.keep != "last":
            self._refuse_repeated(table, repeated(np.concatenate(hashes)))

    def _replacing(
        self, table: TableIngest, given: Iterator[ChangeBatch], where: "str | Expr"
    ) -> Iterator[ChangeBatch]:
        """The given upserts that change a row, and deletes of the rows of the table that match a condition and are not given.

        Raises:
            SourceError: given rows do not match it.
        """
        limit = table.config.memory_limit_bytes // BATCH_SHARE
        all_rows = PendingChanges(limit)
        try:
            for changes in chain(map(partial(_matching, where, table), given), self._rows_where(table, where)):
                all_rows.add(changes)
                if all_rows.run.held_bytes > limit:
                    all_rows.run.spill()
            for part in parts_by_key(all_rows.uniform(), table.key, limit):
                is_old = pc.equal(part.changes.column("op"), "d")
                old, new = part.changes.filter(is_old), part.changes.filter(pc.invert(is_old))
                before, after = pa.table({"row": old.column("before")}), pa.table({"row": new.column("after")})
                is_gone, is_new = net_changes(before, after, ["row"])
                gone, came = old.filter(pa.array(is_gone)), new.filter(pa.array(is_new))
                is_updated = KeySet(_keys(came)).find(_keys(gone)) >= 0
                for rest in (gone.filter(pa.array(~is_updated)), came):
                    yield ChangeBatch(rest, rest.schema.field("after").type, table.key)
        finally:
            all_rows.clear()

    def _rows_where(self, table: TableIngest, where: "str | Expr") -> Iterator[ChangeBatch]:
        """The rows of the table that match a condition, as deletes."""
        mirror = table.check()
        if mirror is None:
            return
        columns = [f.name for f in mirror.schema().fields]
        scan = open_current(mirror).scan().where(where)
        if DELETED in columns and DELETED not in table.known_types:  # otherwise it is a column of the user
            columns.remove(DELETED)
            scan = scan.where(f"not coalesce({DELETED}, false)")
        scan = scan.select(columns)
        as_named = replace(
            table_feed(table.name, table.config, table), rename={}, cast={}, types={}, include=(), exclude=()
        )
        for batch in scan.to_batches():
            yield _Decoder(as_named, "d", self.name).changes(pa.Table.from_batches([batch]), 1, "the table")

    def _changes(self, table: TableFeed) -> Iterator[ChangeBatch]:
        """The rows as changes of the table; the errors are those of the decoder."""
        decoder = _Decoder(table, self.op, self.name)
        if isinstance(self.rows, ChangeRun):
            yield from decoder(self.rows.tables())
        elif changes := self.rows.changes(decoder, POSITION):
            for rows in changes.tables():
                yield ChangeBatch(rows, changes.row_type, changes.key)

    def _refuse_repeated(self, table: TableFeed, hashes: Any) -> None:
        if not len(hashes):
            return
        texts = []
        for changes in self._changes(table):
            may_repeat = pa.array(np.isin(key_hashes(_keys(changes.table)), hashes))
            texts.append(key_texts(single_array(changes.table.column("key")).filter(may_repeat)))
        found = pc.value_counts(pa.chunked_array(texts))
        twice = found.filter(pc.greater(found.field("counts"), 1)).field("values").to_pylist()
        if twice:
            raise SourceError(
                f"{table.name}: {counted(len(twice), 'key')} more than once in the data, such as "
                f"{'; '.join(twice[:_SHOWN])}: keep one row of each, or pass keep='last'; nothing was written"
            )


def _matching(where: "str | Expr", table: TableIngest, changes: ChangeBatch) -> ChangeBatch:
    """The changes.

    Raises:
        SourceError: a new row does not match the condition.
    """
    rows = pa.Table.from_struct_array(single_array(changes.table.column("after")))
    matches = rows_where(where, Schema(0, iceberg_fields(changes.row_type)), rows)
    if not matches.all():
        outside = changes.table.filter(pa.array(~matches))
        texts = key_texts(single_array(outside.column("key"))).slice(0, _SHOWN).to_pylist()
        raise SourceError(
            f"{table.name}: {outside.num_rows:,} rows of the data do not match {where}, such as "
            f"{'; '.join(texts)}: leave them out, or upsert them; nothing was written"
        )
    return changes


def _keys(changes: pa.Table) -> list[pa.Array]:
    return single_array(changes.column("key")).flatten()  # type: ignore[no-any-return]


def _wanted(table: TableFeed, given: list[str], op: str) -> list[str]:
    """The columns of the data to read.

    Raises:
        SourceError: one is missing: the rows would lose its value.
    """
    targets, order = {*map(table.target_name, given)}, () if table.order_by == POSITION else table.order_by
    known = table.key if op == "d" else (*table.key, *table.known_types)
    if missing := [*(name for name in known if name not in targets), *(name for name in order if name not in given)]:
        raise SourceError(
            f"{table.name}: the data lacks {', '.join(dict.fromkeys(missing))}; it has {', '.join(given)}. Rows are replaced as a whole, and deleted by "
            "key and order_by; nothing was written"
        )
    return [name for name in given if op != "d" or name in order or table.target_name(name) in table.key]


def write_table(
    table: "CatalogTable | str", data: Any, key: str | Sequence[str], op: Literal["u", "d"], keep: Keep | None
) -> int | None:
    """Apply rows to a table without a project, as one commit; see `project.upsert` and `project.delete`."""
    found, key = _table_of_catalog(table), (key,) if isinstance(key, str) else tuple(key)
    with closing(_rows(data, DEFAULT_MEMORY_LIMIT_BYTES // BATCH_SHARE)) as rows:
        return retry_conflicts(partial(_attempt_table, found, _Batch(rows, op, None, keep, None), key), ATTEMPTS)


def _table_of_catalog(table: Any) -> Any:
    """A table that can be written to.

    Raises:
        SourceError: it is not in a catalog.
        TableNotFoundError: the catalog does not have it.
    """
    place = table if isinstance(table, str) else getattr(table, "metadata_location", type(table).__name__)
    if isinstance(table, str) and re.fullmatch(r"[^/\\:]+\.[^/\\:]+", table):
        table = load_table(table, {})
    if type(getattr(table, "catalog", None)).__name__ in {"NoneType", "NoopCatalog"}:
        raise SourceError(
            f"{place} is not a table of a catalog, and only a catalog can commit: pass what its load_table returns, or "
            "catalog.namespace.table of PyIceberg's configuration; catalog.register_table adds a table to one"
        )
    return table


def _attempt_table(table: "CatalogTable", batch: _Batch, key: tuple[str, ...]) -> int | None:
    refresh(table)
    name, schema = ".".join(table.name()), current_schema(table)
    check_writable(table)
    carried = chain(table.properties, *(summary_properties(one) for one in table.metadata.snapshots))
    if any(one.startswith("nevermore.") for one in carried):
        raise SourceError(
            f"{name} belongs to a project, which would not know of the rows: use open_project(...).upsert"
        )
    if "encryption.key-id" in table.properties:
        raise SourceError(f"{name} is encrypted, and encrypted files cannot be written: write it with another engine")
    if odd := [f.name for spec in table.specs().values() for f in spec.fields if str(f.transform) == "unknown"]:
        raise SourceError(f"{name}: the transform of partition field {odd[0]} is unknown: write it with another engine")
    if not key:
        raise SourceError(f"{name}: the key is empty: name the columns that identify a row: key=[...]")
    check_key(schema, key)
    known = {f.name: with_leaves(arrow_type(f.type)) for f in schema.fields}
    types = {f.name: str(f.type) for f in schema.fields if isinstance(f.type, PrimitiveType)}
    config = TableConfig(source=PythonSource(type="python"), key=key)
    if table.format_version > 2:
        config = config.model_copy(update={"format_version": 3, "deletes": "vectors"})

    def changes() -> Iterator[pa.Table]:
        for part in batch.checked(TableFeed(name=name, key=key, known_key=key, types=types, known_types=known)):
            if odd := [f"{f.name} ({f.type})" for f in part.row_type if known.get(f.name) != f.type]:
                raise SourceError(
                    f"{name} has no columns {', '.join(odd)}: leave them out, cast them, or change the table first; nothing "
                    "was written"
                )
            changed = part.in_row_type(pa.struct(known)).table
            rows = single_array(changed.column("after")).flatten() if batch.op == "u" else ()
            if lacking := [f.name for f, column in zip(schema.fields, rows, strict=False) if _lacks_value(f, column)]:
                raise SourceError(
                    f"{name}: column {lacking[0]!r} is required, or a member of it, but a row has NULL there; nothing was written"
                )
            yield changed

    with closing(ChangeRun.of(changes(), config.memory_limit_bytes // BATCH_SHARE)) as run:
        return apply_changes(table, run, key, config) if run.num_rows else table.metadata.current_snapshot_id


def _lacks_value(field: NestedField, values: pa.Array) -> bool:
    """Whether a required field or member is NULL, which Arrow's casts of lists and maps do not tell."""
    if field.required and values.null_count:
        return True
    there = values.drop_null()
    match field.type:
        case StructType(members):
            return any(_lacks_value(inner, there.field(i)) for i, inner in enumerate(members))
        case ListType(element):
            return _lacks_value(element, there.flatten())
        case MapType(_, value):
            first, end = there.offsets[0].as_py(), there.offsets[-1].as_py()
            return _lacks_value(value, there.items[first:end])
    return False
