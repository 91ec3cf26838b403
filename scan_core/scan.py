"""Scan: a request for rows of a table, and the public ways to get them. `open_table` opens the table.

Binding of names is in `plan/planner.py`, semi joins in `semi_join.py`, planning in `plan/`, reading in `read/`.
"""

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from numbers import Real
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, get_args
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa

from nevermore.scan_core.columns.conversion import public_batch, public_schema
from nevermore.scan_core.io.catalog import load_table, table_facts
from nevermore.scan_core.io.files import is_folder
from nevermore.scan_core.io.location import FileIOConfig, parse_location
from nevermore.scan_core.io.location import relocate as relocate_path
from nevermore.scan_core.metadata.table_json import read_metadata
from nevermore.scan_core.model.errors import (
    ColumnNotFoundError,
    MalformedTableError,
    OptionError,
    PredicateError,
    SnapshotNotFoundError,
    TableNotFoundError,
    UnsupportedError,
    require_package,
)
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.running import Running, sharing
from nevermore.scan_core.model.schema import PrimitiveType, Schema
from nevermore.scan_core.model.snapshot import DeleteFile, Snapshot
from nevermore.scan_core.model.table_metadata import LogEntry, TableMetadata
from nevermore.scan_core.plan.planner import Binding, ScanPlan, plan_scan, readable
from nevermore.scan_core.read.output import Call, Function, Partial, combine_all
from nevermore.scan_core.read.read_ahead import OPENED_AT_A_TIME, FilesAhead
from nevermore.scan_core.read.split_reader import aggregate_split, count_split, read_split
from nevermore.scan_core.rows.selection import RowSample, take_rows
from nevermore.scan_core.run import run_splits
from nevermore.scan_core.split.tasks import ScanContext, Split

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from nevermore.scan_core.diff import Changes
    from nevermore.scan_core.expr.nodes import BoundPredicate, Expr
    from nevermore.scan_core.foreign.dataset import ScanDataset
    from nevermore.scan_core.joins.column_keys import KeyField
    from nevermore.scan_core.semi_join import SemiJoin


_ADDABLE = frozenset({"int", "long", "float", "double", "decimal"})


def run_aggregates(scan: "Scan", wanted: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """The answer to each (function, column), in order; see `Scan.aggregate`."""
    names = tuple(dict.fromkeys(name for _, name in wanted if name != "*"))
    narrow = scan.select(*names)
    calls = [_call(narrow, function, name, names) for function, name in wanted]
    found = scan.run(narrow.plan(), partial(_aggregate_one, calls=calls))
    answers = combine_all(calls, found)
    kinds = narrow.arrow_schema.types
    return tuple(_public(a, call, kinds) for a, call in zip(answers, calls, strict=True))


def _call(scan: "Scan", function: str, name: str, names: Sequence[str]) -> Call:
    known: dict[str, Function] = {f: f for f in get_args(Function)}
    if function not in known:
        raise OptionError(f"unknown aggregate {function!r}; there are {', '.join(known)}")
    if name == "*":
        if function != "count":
            raise OptionError(f"{function}(*): only count takes *; name a column")
        return Call("count", None)
    column = scan.schema.fields[names.index(name)]
    if function == "sum" and not (isinstance(column.type, PrimitiveType) and column.type.name in _ADDABLE):
        raise UnsupportedError(f"sum({name}): values of type {column.type} cannot be added")
    if function != "count" and not isinstance(column.type, PrimitiveType):
        raise UnsupportedError(f"{function}({name}): values of type {column.type} have no order")
    return Call(known[function], names.index(name))


def _public(answer: Partial, call: Call, kinds: Sequence[pa.DataType]) -> Any:
    """The value as a Python object; a UUID is stored as 16 bytes. A date or time beyond Python's years is text."""
    if not isinstance(answer, pa.Scalar):
        return answer
    try:
        found = answer.as_py()
    except OverflowError:
        found = answer.cast(pa.string()).as_py()
    return UUID(bytes=found) if call.column is not None and kinds[call.column] == pa.uuid() else found


def _aggregate_one(
    split: Split, metrics: ScanMetrics, ahead: FilesAhead, calls: Sequence[Call]
) -> Iterator[tuple[Partial, ...]]:
    yield from aggregate_split(split, calls, metrics, ahead)


_EARLIEST_MILLISECONDS, _LATEST_MILLISECONDS = 10**11, 10**14


def is_plausible_time(number: int) -> bool:
    """Years 1973 to 5138: an integer in between that is no snapshot id is a time; snapshot ids are mostly larger."""
    return _EARLIEST_MILLISECONDS <= number < _LATEST_MILLISECONDS


def milliseconds(when: int | str | datetime) -> int:
    """Milliseconds since the epoch; text and datetimes without a zone are UTC.

    Raises:
        SnapshotNotFoundError: text that is no time.
    """
    if isinstance(when, str):
        text = when.strip()
        if text.lstrip("-").isdigit():
            return int(text)
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            raise SnapshotNotFoundError(
                f"{text!r} is no time: write 2026-01-31, 2026-01-31T12:00:00+01:00 or epoch milliseconds"
            ) from error
    if isinstance(when, datetime):
        moment = when if when.tzinfo else when.replace(tzinfo=UTC)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        elapsed = moment - epoch
        return (elapsed.days * 86_400 + elapsed.seconds) * 1000 + elapsed.microseconds // 1000
    return when


@dataclass(frozen=True, repr=False)
class ScanRequest:
    """A request for rows of one table. Immutable: every method that narrows it returns a copy.

    Attributes:
        table: what is read.
        columns: names of the result's columns, in order; None for all of the schema in force.
        predicates: SQL texts or expressions, all of which rows must fulfil.
        snapshot_id: read this snapshot; None for the current one.
        timestamp_ms: read what was current at this time, in milliseconds since the epoch.
        ref: read this branch or tag.
        options: limits and switches.
        row_limit: most rows of the result, None for all.
        row_sample: which rows to look at, None for all.
        joins: keys that rows must have, all of them, in addition to the predicates.
    """

    table: "Table"
    columns: tuple[str, ...] | None = None
    predicates: "tuple[str | Expr, ...]" = ()
    snapshot_id: int | None = None
    timestamp_ms: int | None = None
    ref: str | None = None
    options: ScanOptions = field(default_factory=ScanOptions)
    row_limit: int | None = None
    row_sample: RowSample | None = None
    joins: "tuple[SemiJoin, ...]" = ()

    def __repr__(self) -> str:
        parts = [repr(self.table.location)]
        if self.columns is not None:
            parts.append(f"columns={list(self.columns)}")
        parts += [f"where={predicate!s:.80}" for predicate in self.predicates]
        parts += [
            f"{name}={value!r:.80}"
            for name in ("snapshot_id", "timestamp_ms", "ref", "row_limit", "row_sample")
            if (value := getattr(self, name)) is not None
        ]
        parts += [f"joined on {', '.join(join.columns)}" for join in self.joins]
        return f"{type(self).__name__}({', '.join(parts)})"

    def select(self, *names: str | Sequence[str]) -> Self:
        """These columns, in this order: `select("id", "city")` or `select(["id", "city"])`.

        Of a struct, `address.city` reads and gives that member alone; so do `tags['k']` of a map, `items[0].price` of a
        list, and `items.price` the members of all elements. Metadata columns such as `_file` and `_pos` are chosen by name.

        Raises:
            ColumnNotFoundError: no schema of the table has such a column; names the nearest.
            OptionError: something other than names.
        """
        columns: list[str] = []
        for name in names:
            if isinstance(name, str):
                columns.append(name)
            elif isinstance(name, Sequence) and all(isinstance(part, str) for part in name):
                columns.extend(name)
            else:
                raise OptionError(f"select takes names of columns, not {name!r:.80} of type {type(name).__name__}")
        self._bind_in_any_schema(lambda binding: binding.projection(columns))
        return self._with(columns=tuple(columns))

    def where(self, predicate: "str | Expr") -> Self:
        """Only rows for which `predicate` is true, too: SQL text such as `qty > 5`, or `col("qty") > 5`.

        Raises:
            PredicateError: the predicate is wrong for every schema of the table, or is neither text nor an expression.
        """
        from nevermore.scan_core.expr.nodes import Expr

        if not isinstance(predicate, str | Expr):
            raise PredicateError(
                f'where takes SQL text or an expression such as col("qty") > 5, not {predicate!r:.80} '
                f"of type {type(predicate).__name__}"
            )
        self._bind_in_any_schema(lambda binding: binding.predicate((predicate,)))
        return self._with(predicates=(*self.predicates, predicate))

    def semi_join(self, columns: str | Sequence[str], keys: Any) -> Self:
        """Rows whose values of `columns` are among `keys`: exactly those, each once; NULL is never among them.

        What has no key is excluded as early as possible: files, row groups, pages, keys of deletes, then single rows.

        Args:
            columns: one column or struct member, or several that are matched together.
            keys: values (of several columns tuples of them), an Arrow array or table or any object that exports one, or
                another scan, which is read when this one first runs. Keys may repeat; those that the column's type
                cannot hold match nothing.

        Raises:
            OptionError: no keys, or not as many columns of keys as names.
        """
        return self._joined(columns, keys, is_exact=True)

    def prefilter(self, columns: str | Sequence[str], keys: Any) -> Self:
        """Rows without key may be left out wherever that is cheap, and need not be: for callers who join again.

        Args:
            columns: see `semi_join`.
            keys: as in `semi_join`; or `induced_ranges` of the other side's key, which are known without reading it.

        Raises:
            OptionError: see `semi_join`.
        """
        return self._joined(columns, keys, is_exact=False)

    def _joined(self, columns: str | Sequence[str], keys: Any, *, is_exact: bool) -> Self:
        from nevermore.scan_core.semi_join import semi_join, semi_join_with_scan

        join = semi_join_with_scan if isinstance(keys, Scan) else semi_join
        return self._with(joins=(*self.joins, join(columns, keys, is_exact=is_exact)))

    def as_of(self, when: int | datetime) -> Self:
        """The snapshot with this id, or what was current at this time (a datetime, or milliseconds since the epoch).

        Raises:
            SnapshotNotFoundError: neither an id of the table nor plausible as milliseconds.
        """
        if isinstance(when, int) and (when in self.table.metadata.snapshots or not is_plausible_time(when)):
            return self.as_of_snapshot(when)
        return self.as_of_time(when)

    def as_of_snapshot(self, snapshot_id: int) -> Self:
        """The snapshot with this id, read with its own schema.

        Raises:
            OptionError: not a whole number.
        """
        return self._with(snapshot_id=_whole(snapshot_id, "a snapshot id"), timestamp_ms=None, ref=None)

    def as_of_time(self, when: int | str | datetime) -> Self:
        """What was current at a time: a datetime, ISO 8601 text (UTC where it names no zone), or milliseconds.

        Raises:
            SnapshotNotFoundError: text that is no time.
        """
        return self._with(snapshot_id=None, timestamp_ms=milliseconds(when), ref=None)

    def at_ref(self, name: str) -> Self:
        """A branch (read with the table's current schema) or a tag (with its snapshot's).

        Raises:
            OptionError: no text.
        """
        if not isinstance(name, str):
            raise OptionError(
                f"the name of a branch or tag must be text, not {name!r:.80} of type {type(name).__name__}"
            )
        return self._with(snapshot_id=None, timestamp_ms=None, ref=name)

    def with_options(self, options: ScanOptions) -> Self:
        """The same rows, found in another way.

        Raises:
            OptionError: these are not `ScanOptions`.
        """
        if not isinstance(options, ScanOptions):
            raise OptionError(
                f"with_options takes ScanOptions(...), not {options!r:.80} of type {type(options).__name__}"
            )
        return self._with(options=options)

    def limit(self, num_rows: int) -> Self:
        """At most `num_rows` rows, whichever come first.

        Raises:
            OptionError: negative, or not a whole number.
        """
        if (num_rows := _whole(num_rows, "limit")) < 0:
            raise OptionError(f"limit must not be negative, not {num_rows}")
        return self._with(row_limit=num_rows if self.row_limit is None else min(num_rows, self.row_limit))

    def sample(self, fraction: float, seed: int = 0) -> Self:
        """A random part of the rows: each with probability `fraction`, decided before any column is read.

        The same seed takes the same rows of a data file, even if rows are deleted later. Filters apply to the rows
        taken. Large files are sampled by block of rows, then by row, so that only some of their pages are read.

        Raises:
            OptionError: a fraction outside of 0 to 1, a negative seed, or a scan that is sampled already.
        """
        if self.row_sample is not None:
            raise OptionError("this scan is sampled already; give one fraction")
        return self._with(row_sample=RowSample(_fraction(fraction), _whole(seed, "seed")))

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that will be read; None for a table without snapshots."""
        return self._resolve()[0]

    @property
    def schema(self) -> Schema:
        """The columns of the result.

        Raises:
            ColumnNotFoundError: an unknown column; names the nearest.
        """
        return self._binding(self._resolve()[1]).projection(self.columns)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the result, uuid columns as `pa.uuid()`.

        Raises:
            UnsupportedError: a selected column has a type that cannot be read.
        """
        return public_schema(readable(self.schema))

    @property
    def applied_filters(self) -> tuple[str, ...]:
        """What every row of the result is sure to fulfil, as SQL, in the form that is evaluated; all must be true.

        Readers of the rows need not apply any of it again. `push_filters` finds out what of an engine's filters can
        be applied.

        Raises:
            PredicateError: a predicate is wrong or not supported.
        """
        predicate = self.predicate
        if predicate is None:
            return ()
        from nevermore.scan_core.expr.nodes import bound_text

        return tuple(map(bound_text, predicate.conjuncts))

    @property
    def predicate(self) -> "BoundPredicate | None":
        """All predicates as one, bound to field ids; None without any. Errors are those of `applied_filters`."""
        return self._binding(self._resolve()[1]).predicate(self.predicates)

    def key_fields(self, names: Sequence[str]) -> "tuple[KeyField, ...]":
        """The columns or struct members with these names, as keys of a join.

        Raises:
            ColumnNotFoundError: an unknown column.
            OptionError: one that cannot be a key.
        """
        return self._binding(self._resolve()[1]).key_fields(names)

    def _with(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def _resolve(self) -> tuple[Snapshot | None, Schema]:
        return self.table.metadata.snapshot_for(
            snapshot_id=self.snapshot_id, timestamp_ms=self.timestamp_ms, ref=self.ref
        )

    def _bind_in_any_schema(self, bind: Callable[[Binding], object]) -> None:
        """Raise errors of a predicate immediately, although snapshot and options may be chosen later."""
        schema = self._resolve()[1]
        try:
            bind(self._binding(schema))
        except (ColumnNotFoundError, PredicateError):
            for other in (schema, *self.table.metadata.schemas.values()):
                try:
                    bind(Binding(self.table.metadata, other, replace(self.options, case_sensitive=False)))
                except (ColumnNotFoundError, PredicateError):
                    continue
                return
            raise

    def _binding(self, schema: Schema) -> Binding:
        return Binding(self.table.metadata, schema, self.options)

    def _context(self, schema: Schema) -> ScanContext:
        metadata, binding = self.table.metadata, self._binding(schema)
        return ScanContext(
            table=self.table.location,
            projection=readable(binding.projection(self.columns)),
            predicate=binding.predicate(self.predicates),
            field_paths=metadata.field_paths(),
            specs=metadata.specs,
            name_mapping=metadata.name_mapping,
            io=self.table.io,
            options=self.options,
            sample=self.row_sample,
            runtime_filters=tuple(join.bind(binding.key_fields(join.columns)) for join in self.joins),
            parts=binding.parts(self.columns),
        )


T = TypeVar("T")

_MIN_SPLIT_BYTES = 1024**2
_MAX_LOCAL_SPLIT_BYTES = 32 * 1024**2
_LOCAL_SPLITS = 16
"""Enough to keep a few threads busy to the end; how many splits there are does not depend on the threads."""


@dataclass(slots=True)
class _LastRun:
    """The only mutable part of a scan: what its last run counted, and what runs now."""

    metrics: ScanMetrics = field(default_factory=ScanMetrics)
    running: set[Running] = field(default_factory=set)

    @contextmanager
    def begun(self) -> Iterator[Running]:
        """Begin a run that `Scan.cancel` can stop."""
        with Running() as running:
            self.running.add(running)
            try:
                yield running
            finally:
                self.running.discard(running)

    def __reduce__(self) -> tuple[Any, ...]:
        return _LastRun, (self.metrics,)  # nothing runs in another process


@dataclass(frozen=True, repr=False)
class Scan(ScanRequest):
    """A request for rows of one table, and how to get them. Immutable but for what its last run counted."""

    _last: _LastRun = field(default_factory=_LastRun, repr=False, compare=False)

    @property
    def metrics(self) -> ScanMetrics:
        """What the last finished run of this scan did, planning included."""
        return self._last.metrics

    def plan(self, uncommitted: Sequence[DeleteFile] = ()) -> ScanPlan:
        """The files to read, and the deletes that may touch each; `uncommitted` are deletes that the snapshot lacks."""
        snapshot, schema = self._resolve()
        with self._last.begun() as running, running.at_work():
            return plan_scan(self.table.metadata, snapshot, self._context(schema), uncommitted)

    def cancel(self) -> None:
        """Stop what this very scan runs, in whichever threads: its methods and iterators raise `ScanCancelledError`.

        Those that wait, for rows of other threads or for an object store, raise it at once, those that read in their own thread
        after the columns at hand. Later runs are not affected.
        """
        for running in list(self._last.running):
            running.cancel()

    def changes(
        self, from_snapshot: int | None, to_snapshot: int | None = None, *, trust_rewrites: bool = False
    ) -> "Changes":
        """The rows of this scan inserted and deleted between two snapshots, in the schema of the later one.

        Args:
            from_snapshot: id of the earlier snapshot; None stands for the table before its first snapshot.
            to_snapshot: id of the later one, which descends from it; by default the snapshot that this scan reads.
            trust_rewrites: believe `replace` snapshots (compactions) that they changed no row, and read nothing of what
                they rewrote. By default old and new files are compared: some rewrites bring deleted rows back.

        Raises:
            SnapshotNotFoundError: there is no such snapshot, or the later one does not descend from the earlier one.
        """
        if self.row_sample is not None:
            raise OptionError("changes between snapshots cannot be sampled: rewritten rows have other places")
        from nevermore.scan_core.diff import Changes, earlier_snapshot

        scan = self if to_snapshot is None else self.as_of_snapshot(to_snapshot)
        later, schema = scan._resolve()  # noqa: SLF001  its own class
        earlier = earlier_snapshot(self.table.metadata, from_snapshot, later)
        context = scan._context(schema)  # noqa: SLF001  its own class
        exact = tuple(f for f in context.runtime_filters if f.is_exact)  # rows may not be there by chance
        return Changes(
            self.table.metadata,
            replace(context, runtime_filters=exact),
            schema,
            earlier,
            later,
            trust_rewrites=trust_rewrites,
            row_limit=self.row_limit,
        )

    def explain(self) -> str:
        """Describe in plain text what is read, what was pruned and why, and which deletes apply."""
        return self.plan().explain()

    def _repr_html_(self) -> str:
        from nevermore.scan_core.model.html import Html, escaped, fragment, grid

        fewest = min(_MAX_SHOWN_ROWS, self.row_limit) if self.row_limit is not None else _MAX_SHOWN_ROWS
        rows = self.limit(fewest).to_table()
        null = Html("<i class=muted>NULL</i>")
        cells = [[null if value is None else f"{value!s:.200}" for value in row.values()] for row in rows.to_pylist()]
        note = f"<p class=muted>the first {len(cells)} rows at most; nothing is kept</p>"
        return fragment(f"<b>{escaped(self)}</b>", grid(rows.column_names, cells), note)

    def count(self) -> int:
        """Rows of the result, without building any."""
        plan = self.plan()
        total = sum(self.run(plan, _count_one))
        if self.row_limit is not None:
            total = self._last.metrics.rows_out = min(total, self.row_limit)
        return total

    def aggregate(self, *wanted: tuple[str, str]) -> tuple[Any, ...]:
        """The answers to `("sum", "price")`, `("count", "*")`, `("min", "day")` ..., without building rows.

        NULLs do not count; without any value min, max and sum are None. Sums of integers and decimals are exact, those
        of floats are added up row group by row group in the order of the plan. NaN is larger than every number.

        Args:
            wanted: functions (count, min, max, sum), each with the name of a column, or `*` for count.

        Raises:
            OptionError: an unknown function, no pair of a function and a column, or a row limit, which aggregates do not know.
            UnsupportedError: a column whose type has no order or cannot be added.
        """
        if self.row_limit is not None:
            raise OptionError("aggregates do not know limits; aggregate what to_table() gives")
        for pair in wanted:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise OptionError(f'aggregate takes pairs such as ("sum", "price"), not {pair!r:.80}')
        return run_aggregates(self, wanted)

    def to_table(self) -> pa.Table:
        """All rows as one table."""
        schema = self.arrow_schema
        return pa.Table.from_batches(list(self.to_batches()), schema=schema)

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows as record batches of at most `options.batch_rows` rows, none empty.

        They come in the order of the plan, or, with `options.keep_order` off, as they are read.

        Closing the iterator early stops the workers.
        """
        return self._run(self.plan(), self.arrow_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, read while it is consumed. Closing or dropping the reader stops the workers."""
        return pa.RecordBatchReader.from_batches(self.arrow_schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as a stream for any library that reads Arrow data, in bounded memory; each call reads again.

        Args:
            requested_schema: a PyCapsule of the schema that the consumer prefers; see the Arrow PyCapsule interface.
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_pandas(self, **options: Any) -> "pd.DataFrame":
        """All rows as a pandas DataFrame, in the types that PyArrow chooses.

        Args:
            options: those of `pyarrow.Table.to_pandas`, such as `types_mapper=pandas.ArrowDtype`.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        require_package("pandas", "to_pandas", "pandas")
        return cast("pd.DataFrame", self.to_table().to_pandas(**options))

    def to_polars(self) -> "pl.DataFrame":
        """All rows as a Polars DataFrame. `nevermore.scan_core.polars.scan_iceberg` gives a LazyFrame, which reads less.

        Raises:
            MissingPackageError: Polars is not installed.
        """
        polars = require_package("polars", "to_polars", "nevermore-iceberg[polars]")
        return cast("pl.DataFrame", polars.from_arrow(self.to_table()))

    def to_dataset(self) -> "ScanDataset[Scan]":
        """This scan as a `pyarrow.dataset.Dataset`, into which readers push columns and filters."""
        from nevermore.scan_core.foreign.dataset import ScanDataset

        return ScanDataset(self)

    def to_duckdb(self, name: str, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """This scan as a view of a DuckDB connection; queries read only the columns and rows that they need.

        Args:
            name: of the view; a view that already has it is replaced.
            connection: by default that of the module `duckdb`.

        Raises:
            MissingPackageError: DuckDB is not installed.
        """
        library = require_package("duckdb", "to_duckdb", "nevermore-iceberg[sql]")
        target = library.default_connection() if connection is None else connection
        target.register(name, self.to_dataset())
        return target.table('"' + name.replace('"', '""') + '"')

    def _run(self, plan: ScanPlan, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
        taken = 0
        try:
            with closing(self.run(plan, read_split, keep_order=self.options.keep_order)) as batches:
                for batch in take_rows((public_batch(batch, schema) for batch in batches), self.row_limit):
                    taken += batch.num_rows
                    yield batch
        finally:
            self._last.metrics.rows_out = taken  # rows beyond a limit were read, but are not in the result

    def run(
        self,
        plan: ScanPlan,
        read: Callable[[Split, ScanMetrics, FilesAhead], Iterator[T]],
        *,
        keep_order: bool = True,
    ) -> Generator[T, None, None]:
        """Yield what `read` yields for each split of a plan, in this process; sets `metrics` at the end.

        `keep_order` is that of `run_splits`.
        """
        metrics = ScanMetrics()
        with self._last.begun() as running:
            ahead = FilesAhead(self.options, running)

            def run(splits: Sequence[Split], ahead: FilesAhead) -> Generator[T, None, None]:
                return run_splits(
                    splits,
                    lambda split, own: running.stepped(read(split, own, ahead)),
                    metrics,
                    max(self.options.parallelism // sharing(), 1),
                    keep_order=keep_order,
                    expect=ahead.expect,
                    num_expected=OPENED_AT_A_TIME,
                    running=running,
                )

            splits = _local_splits(plan)
            try:
                options = self.options
                if options.wants_few or (self.row_limit is not None and self.row_limit <= options.batch_rows):
                    # probably the first split has enough rows
                    few = replace(options, read_ahead_bytes=0, wants_few=True)
                    first = [replace(split, context=replace(plan.context, options=few)) for split in splits[:1]]
                    rest = replace(plan.context, options=replace(options, wants_few=False))
                    splits = [replace(split, context=rest) for split in splits[1:]]
                    yield from run(first, FilesAhead(few, running))
                yield from run(splits, ahead)
            finally:
                running.stop()  # deletes that are loaded ahead, and that nobody asks for any more, need not be completed
                ahead.close(wait=not running.is_cancelled)
                metrics.add(ahead.unasked)
                self._last.metrics = plan.metrics + metrics

    def _with(self, **changes: Any) -> Self:
        return super()._with(**changes, _last=_LastRun())


def _count_one(split: Split, metrics: ScanMetrics, ahead: FilesAhead) -> Iterator[int]:
    yield count_split(split, metrics, ahead)


def _local_splits(plan: ScanPlan) -> Sequence[Split]:
    size = min(max(plan.total_bytes // _LOCAL_SPLITS, _MIN_SPLIT_BYTES), _MAX_LOCAL_SPLIT_BYTES)
    return plan.splits(min(size, plan.context.options.split_bytes))


_SHOWN_TOTALS = {"records": "rows in files", "data-files": "data files", "equality-deletes": "keys in equality deletes"}
_MAX_SHOWN_ROWS = 10
"""Rows of a scan that a notebook shows."""
_IDENTIFIER = re.compile(r"[^/\\:.\s]+(\.[^/\\:.\s]+)+")
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties by which a table keeps files outside of its location."""
Relocation = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """An open table: the facts of one metadata file, and how to open what they name.

    Attributes:
        metadata: as read when the table was opened; later commits are not seen.
        metadata_path: the file it was read from.
        io: relocation and FileIO properties of every file of the table.
        options: with which scans of the table start.
    """

    metadata: TableMetadata
    metadata_path: str
    io: FileIOConfig
    options: ScanOptions = field(default_factory=ScanOptions)

    def __repr__(self) -> str:
        return f"Table({self.location!r}, format v{self.metadata.format_version}, {len(self.metadata.snapshots)} snapshots)"

    def _repr_html_(self) -> str:
        from nevermore.scan_core.model.html import escaped, facts, fragment, grid

        metadata = self.metadata
        current = metadata.current_snapshot
        keys = metadata.schema.identifier_field_ids
        columns = [(f.name, str(f.type), "key" * (f.field_id in keys), f.doc or "") for f in self.schema.fields]
        totals = {} if current is None else current.summary
        counts = [(f"total-{name}", label) for name, label in _SHOWN_TOTALS.items()]
        state = [("snapshot", "none" if current is None else str(current.snapshot_id))]
        state += [(label, f"{int(totals[name]):,}") for name, label in counts if str(totals.get(name, "")).isdigit()]
        return fragment(
            f"<b>Table</b> {escaped(self.location)}",
            facts([("format version", metadata.format_version), ("snapshots", len(metadata.snapshots)), *state]),
            grid(("column", "type", "", "comment"), columns),
        )

    @property
    def location(self) -> str:
        """The table's base location as its metadata states it, before relocation."""
        return self.metadata.location

    @property
    def schema(self) -> Schema:
        """The table's current schema."""
        return self.metadata.schema

    def scan(self) -> Scan:
        """All rows and columns of the current snapshot, to be narrowed."""
        return Scan(self, options=self.options)

    def history(self) -> tuple[LogEntry, ...]:
        """Which snapshot was current from when on, oldest first."""
        return self.metadata.history()


def open_table(
    table: str | os.PathLike[str] | Any,
    *,
    relocate: Relocation | None = None,
    properties: Mapping[str, str] | None = None,
    options: ScanOptions | None = None,
) -> Table:
    """Open a table to read.

    Args:
        table: a metadata file of any name, a table's folder, a URI of either, `catalog.namespace.table` as PyIceberg's
            configuration knows it, or a PyIceberg `Table`.
        relocate: old path prefix -> new path prefix, for tables that were moved; the longest old prefix wins. Files outside
            of the table's folder are opened only below a new prefix: `{place: place}` allows a place as it is.
        properties: FileIO and catalog properties (`s3.endpoint`, `uri`, ...), over those of the catalog.
        options: with which scans of the table start; default: `ScanOptions()`.

    Raises:
        TableNotFoundError: there is no such table.
        MalformedTableError: its metadata breaks the specification.
    """
    opened = _open_any(table, relocate, dict(properties or {}))
    return opened if options is None else replace(opened, options=options)


def _open_any(table: str | os.PathLike[str] | Any, relocate: Relocation | None, own: dict[str, str]) -> Table:
    pairs = _longest_first(relocate)
    facts = None if isinstance(table, str | os.PathLike) else table_facts(table)
    if facts is not None:
        location, inherited = facts
        return _open(location, FileIOConfig(pairs, inherited | own), is_registered=True)
    if not isinstance(table, str | os.PathLike):
        raise TableNotFoundError(f"{type(table).__name__} is no location, identifier or PyIceberg table")
    text = os.fspath(table)
    io = FileIOConfig(pairs, own)
    try:
        return _open(text, io)
    except TableNotFoundError:
        if text.lower().startswith("file:") and unquote(text) != text:
            return _open(unquote(text), io)  # how URIs of paths with spaces are printed
        if not _IDENTIFIER.fullmatch(text):
            raise
    facts = table_facts(load_table(text, own))
    if facts is None:
        raise TableNotFoundError(f"catalog table {text!r} has no metadata file")
    location, inherited = facts
    return _open(location, FileIOConfig(pairs, inherited | own), is_registered=True)


def _open(location: str, io: FileIOConfig, *, is_registered: bool = False) -> Table:
    metadata, path = read_metadata(location, io)
    moved = _moved(metadata.location, _table_folder(path), io)
    places = places_of(metadata, path, io, is_registered=is_registered)
    return Table(metadata, path, replace(io, moved=moved, places=places))


def places_of(metadata: TableMetadata, path: str, io: FileIOConfig, *, is_registered: bool) -> tuple[str, ...]:
    """Folders that files of a table may lie in: where its metadata was found, and what the caller relocates to.

    Of a table that a catalog has registered, also the places that its metadata states: those who may commit to the catalog
    decide about them.
    """
    folder = _table_folder(path)
    found = parse_location(folder) if parse_location(folder).is_local else relocate_path(folder, io)
    places = [str(Path(found.path).absolute()) if found.is_local else str(found), *(new for _, new in io.relocate)]
    if is_registered:
        stated = (metadata.location, *(metadata.properties.get(name) for name in _PLACES))
        places += [str(relocate_path(place, io)) for place in stated if place]
    return tuple(dict.fromkeys(places))


def _whole(value: Any, what: str) -> int:
    """An integer, given in any integer type."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise OptionError(f"{what} must be a whole number, not {value!r:.80} of type {type(value).__name__}")


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(f"a sample takes a fraction between 0 and 1 of the rows, not {value!r:.80}")
    return float(value)


def _moved(stated: str, found: str, io: FileIOConfig) -> tuple[str, str] | None:
    try:
        is_there = relocate_path(stated, io).may_equal(relocate_path(found, io))
    except MalformedTableError:  # nothing lies at the location itself: it only helps in messages
        return None
    return None if is_there else (stated, found)


def _table_folder(metadata_path: str) -> str:
    folder = metadata_path.rpartition("/")[0]
    above, _, name = folder.rpartition("/")
    return above if name == "metadata" else folder


def _longest_first(relocate: Relocation | None) -> tuple[tuple[str, str], ...]:
    pairs = relocate.items() if isinstance(relocate, Mapping) else relocate or ()
    return tuple(sorted(((str(o), _decoded(str(n))) for o, n in pairs), key=lambda pair: -len(pair[0])))


def _decoded(folder: str) -> str:
    """A file URI as URIs are printed, spaces as %20, means the folder of that name, unless there is one with a %."""
    plain = unquote(folder)
    if plain == folder or not folder.lower().startswith("file:") or is_folder(folder, FileIOConfig()):
        return folder
    return plain
