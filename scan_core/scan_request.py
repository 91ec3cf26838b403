"""ScanRequest: which rows of a table are asked for; every way to narrow one returns a copy.

What it means is resolved here and in `binding.py` (columns, predicate, snapshot, joins). The ways to get the rows are in
`scan.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from scan_core.binding import Binding, readable
from scan_core.errors import ColumnNotFoundError, OptionError, PredicateError
from scan_core.options import ScanOptions
from scan_core.point_in_time import is_plausible_time, milliseconds
from scan_core.read.public_types import public_schema
from scan_core.rows.sample import RowSample
from scan_core.schema import Schema
from scan_core.snapshot import Snapshot
from scan_core.split import ScanContext

if TYPE_CHECKING:
    from scan_core.expr.nodes import BoundPredicate, Expr
    from scan_core.runtime_filter.column_keys import KeyField
    from scan_core.runtime_filter.semi_join import SemiJoin
    from scan_core.table import Table


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
        joins: keys that rows must have, all of them, beside the predicates.
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

        Of a struct, `address.city` reads and gives that member alone. Metadata columns such as `_file` and `_pos` are
        chosen by name.

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
        """Rows that also fulfil `predicate`: SQL text such as `qty > 5`, or `col("qty") > 5`.

        Raises:
            PredicateError: it is wrong for every schema of the table, or neither text nor an expression.
        """
        from scan_core.expr.nodes import Expr

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
            keys: values (of several columns tuples of them), an Arrow array or table or whatever exports one, or
                another scan, which is read when this one first runs. Keys may repeat; those that the column's type
                cannot hold match nothing.

        Raises:
            OptionError: no keys, or not as many columns of keys as names.
        """
        from scan_core.runtime_filter.semi_join import semi_join

        return self._with(joins=(*self.joins, semi_join(columns, keys, is_exact=True)))

    def prefilter(self, columns: str | Sequence[str], keys: Any) -> Self:
        """Rows without key may be left out wherever that is cheap, and need not be: for callers who join again.

        Args:
            columns: see `semi_join`.
            keys: as in `semi_join`; or `LateKeys`, which are filled while the scan runs; or `induced_ranges` of the
                other side's key, which are known without reading it.

        Raises:
            OptionError: see `semi_join`.
        """
        from scan_core.runtime_filter.semi_join import semi_join

        return self._with(joins=(*self.joins, semi_join(columns, keys, is_exact=False)))

    def as_of(self, when: int | datetime) -> Self:
        """The snapshot with this id, or what was current at this time (a datetime, or milliseconds since the epoch).

        Raises:
            SnapshotNotFoundError: neither an id of the table nor plausible as milliseconds.
        """
        if isinstance(when, int) and (when in self.table.metadata.snapshots or not is_plausible_time(when)):
            return self.as_of_snapshot(when)
        return self.as_of_time(when)

    def as_of_snapshot(self, snapshot_id: int) -> Self:
        """The snapshot with this id, read with its own schema."""
        return self._with(snapshot_id=snapshot_id, timestamp_ms=None, ref=None)

    def as_of_time(self, when: int | str | datetime) -> Self:
        """What was current at a time: a datetime, ISO 8601 text (UTC where it names no zone), or milliseconds.

        Raises:
            SnapshotNotFoundError: text that is no time.
        """
        return self._with(snapshot_id=None, timestamp_ms=milliseconds(when), ref=None)

    def at_ref(self, name: str) -> Self:
        """A branch (read with the table's current schema) or a tag (with its snapshot's)."""
        return self._with(snapshot_id=None, timestamp_ms=None, ref=name)

    def with_options(self, options: ScanOptions) -> Self:
        """The same rows, found in another way."""
        return self._with(options=options)

    def limit(self, num_rows: int) -> Self:
        """At most `num_rows` rows, whichever come first.

        Raises:
            OptionError: negative.
        """
        if num_rows < 0:
            raise OptionError(f"limit must not be negative, not {num_rows}")
        return self._with(row_limit=num_rows if self.row_limit is None else min(num_rows, self.row_limit))

    def sample(self, fraction: float, seed: int = 0) -> Self:
        """A random part of the rows: each with probability `fraction`, decided before any column is read.

        The same seed takes the same rows of a data file, whatever is deleted from it later. Filters apply to the rows
        taken. Large files are sampled by block of rows, then by row, so that only some of their pages are read.

        Raises:
            OptionError: a fraction outside of 0 to 1, a negative seed, or a scan that is sampled already.
        """
        if self.row_sample is not None:
            raise OptionError("this scan is sampled already; give one fraction")
        return self._with(row_sample=RowSample(fraction, seed))

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

        Whoever reads the rows need not apply any of it again. `push_filters` finds out what of an engine's filters can
        be applied.

        Raises:
            PredicateError: a predicate is wrong or not supported.
        """
        predicate = self.predicate
        if predicate is None:
            return ()
        from scan_core.expr.text import bound_text

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
        """Let a mistake fail at once, also where the snapshot and the options are chosen later."""
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
        )
