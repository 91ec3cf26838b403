"""Semi joins and prefilters of a scan: the keys that rows are matched with, and the ranges that one table's filter implies for another."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from nevermore.scan_core.files import open_file
from nevermore.scan_core.foreign.pushdown import Request
from nevermore.scan_core.joins.column_keys import (
    MAX_RANGES,
    KeyField,
    KeyRanges,
    engine_array,
    engine_values,
    merge_ranges,
)
from nevermore.scan_core.joins.given_keys import distinct_keys, from_text, key_table, to_text
from nevermore.scan_core.joins.key_set import KeySet
from nevermore.scan_core.joins.request import FilterKeys, RuntimeFilter
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.running import ProcessLock
from nevermore.scan_core.model.snapshot import FileFormat
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.plan.file_pruner import file_statistics
from nevermore.scan_core.plan.planner import ScanPlan
from nevermore.scan_core.prune.verdicts import Match, domain_from_statistics
from nevermore.scan_core.read.file_statistics import FileStatistics
from nevermore.scan_core.read.projection import FileProjection
from nevermore.scan_core.split.tasks import FileScanTask

MAX_FOOTERS = 64
"""Files whose row groups are looked at; reading more footers takes longer than they save."""
_COMPARABLE = (
    frozenset({"int", "long"}),
    frozenset({"float", "double"}),
    frozenset({"timestamp"}),
    frozenset({"timestamptz"}),
)


class KeyScan(Request, Protocol):
    """The part of a scan that another scan's keys need; `nevermore.scan_core.scan.Scan` is one."""

    @property
    def table(self) -> Any:
        """The table that is read."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns of the result; None for all."""

    @property
    def options(self) -> ScanOptions:
        """Limits and switches."""

    def plan(self) -> ScanPlan:
        """The files and deletes to read."""

    def key_fields(self, names: Sequence[str]) -> tuple[KeyField, ...]:
        """The columns with these names, as keys."""


@dataclass(frozen=True)
class KeyRangeSource:
    """The ranges of a column of a scan, found when the first plan of the other side needs them."""

    scan: KeyScan
    column: str
    most_ranges: int = MAX_RANGES
    _known: dict[str, KeyRanges] = field(default_factory=dict, repr=False, compare=False)
    _lock: ProcessLock = field(default_factory=ProcessLock, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the request alone: the lock belongs to its process."""
        return KeyRangeSource, (self.scan, self.column, self.most_ranges)

    def ranges(self, of: KeyField) -> KeyRanges:
        """The ranges in the type of a column of the other side.

        Raises:
            OptionError: the two columns' values cannot be compared by their bounds.
        """
        with self._lock:
            if "ranges" not in self._known:
                self._known["ranges"] = key_ranges(self.scan, self.column, self.most_ranges)
            found = self._known["ranges"]
        if not are_comparable(found.field, of):
            raise OptionError(f"ranges of {found.field.type} {self.column!r} do not tell of {of.type} {of.name!r}")
        return KeyRanges(of, found.ranges)


@dataclass(frozen=True)
class GivenRanges:
    """Ranges that another process found: a table of `low` and `high`; None if nothing is known."""

    bounds: pa.Table | None

    @classmethod
    def of(cls, found: KeyRanges) -> "GivenRanges":
        """Ranges as a table."""
        if found.ranges is None:
            return cls(None)
        ends = [engine_array([r[side] for r in found.ranges], found.field.type) for side in (0, 1)]
        return cls(pa.table(ends, names=["low", "high"]))

    def ranges(self, of: KeyField) -> KeyRanges:
        """The inverse of `of`, for a column of the type for which they were found."""
        if self.bounds is None:
            return KeyRanges(of, None)
        low, high = (engine_values(self.bounds.column(side).combine_chunks()) for side in (0, 1))
        return KeyRanges(of, tuple(zip(low, high, strict=True)))


def induced_ranges(scan: KeyScan, column: str, most_ranges: int = MAX_RANGES) -> KeyRangeSource:
    """Ranges that contain all values of a column of a scan, for `prefilter` of the other side of a join.

    Args:
        scan: with the predicate that leaves some files and row groups.
        column: the join key.
        most_ranges: neighbours are merged until no more are left.

    Raises:
        OptionError: fewer than one range.
    """
    if most_ranges < 1:
        raise OptionError(f"most_ranges must be at least 1, not {most_ranges}")
    return KeyRangeSource(scan, column, most_ranges)


def are_comparable(one: KeyField, other: KeyField) -> bool:
    """Whether bounds of one column mean the same in the other."""
    if one.type == other.type:
        return True
    names = {str(one.type), str(other.type)}
    return any(names <= family for family in _COMPARABLE)


def key_ranges(scan: KeyScan, column: str, most_ranges: int = MAX_RANGES) -> KeyRanges:
    """The ranges of a column over what statistics leave of a scan; unknown if nothing tells."""
    plan = scan.plan()
    key = scan.key_fields([column])[0]
    bounds: list[tuple[Any, Any]] = []
    for known in _survivors(plan, scan, key):
        found = _range(known, key)
        if found is None:
            return KeyRanges(key, None)
        bounds += found
    return KeyRanges(key, merge_ranges(bounds, most_ranges))


def _range(known: ColumnStatistics | None, key: KeyField) -> list[tuple[Any, Any]] | None:
    """The range of the values: none for NULLs alone, None if they are unknown."""
    domain = domain_from_statistics(known, key.type)
    if domain.may_be_nan:
        return None
    if not domain.may_be_value:
        return []
    return None if domain.lower is None or domain.upper is None else [(domain.lower, domain.upper)]


def _survivors(plan: ScanPlan, scan: KeyScan, key: KeyField) -> Iterator[ColumnStatistics | None]:
    """Statistics of the key in every file, or row group where footers are read, that the plan leaves."""
    schema = scan.table.metadata.schemas[plan.context.projection.schema_id]
    reads_footers = len(plan.tasks) <= MAX_FOOTERS and plan.context.predicate is not None
    for task in plan.tasks:
        if reads_footers and task.data_file.format is FileFormat.PARQUET and not task.data_file.is_encrypted:
            yield from _row_groups(plan, task, key)
        else:
            yield file_statistics(task.data_file, schema)(key.field_id)


def _row_groups(plan: ScanPlan, task: FileScanTask, key: KeyField) -> Iterator[ColumnStatistics | None]:
    from nevermore.scan_core.read.predicate import open_conjuncts

    context, file = plan.context, task.data_file
    reader = open_file(file.path, file.format, context.io)
    try:
        projection = FileProjection(
            reader.arrow_schema,
            has_field_ids=reader.has_field_ids,
            context=context,
            file=file,
            reader=reader,
        )
        statistics = FileStatistics(reader, projection)
        conjuncts = open_conjuncts(context, file, projection, statistics)
        for row_group in reader.row_groups:
            if all(c.match(statistics.of(row_group, c.types)) is not Match.NEVER for c in conjuncts):
                yield statistics.of(row_group, {key.field_id: key.type})(key.field_id)
    finally:
        reader.close()


_KEYS_SHARE = 4
"""Keys read from a scan may take this part of its memory limit before repeats are dropped, half of it afterwards."""


@dataclass(frozen=True)
class SemiJoin:
    """Rows of a scan that have a partner among keys.

    Attributes:
        columns: names of the scan's columns.
        keys: a table of key rows, a scan that gives them, or ranges that another scan's statistics give.
        is_exact: the result has no row without partner; otherwise it may have some.
    """

    columns: tuple[str, ...]
    keys: pa.Table | KeyScan | KeyRangeSource | GivenRanges
    is_exact: bool
    _known: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _lock: ProcessLock = field(default_factory=ProcessLock, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the request alone: the lock and the keys read from a scan belong to their process."""
        return SemiJoin, (self.columns, self.keys, self.is_exact)

    def bind(self, fields: tuple[KeyField, ...]) -> RuntimeFilter:
        """The filter on these columns.

        Raises:
            OptionError: keys of another kind than their column.
        """
        return RuntimeFilter(fields, self._bound(fields), self.is_exact)

    def key_rows(self) -> pa.Table | None:
        """The keys as a table, read now if they are a scan; None if they are ranges."""
        if isinstance(self.keys, KeyRangeSource | GivenRanges):
            return None
        if isinstance(self.keys, pa.Table):
            return self.keys
        with self._lock:
            if "rows" not in self._known:
                self._known["rows"] = _rows_of(self.keys, self.columns)
            rows: pa.Table = self._known["rows"]
        return rows

    def _bound(self, fields: tuple[KeyField, ...]) -> FilterKeys:
        if isinstance(self.keys, KeyRangeSource | GivenRanges):
            return self.keys.ranges(fields[0])
        rows = self.key_rows()
        assert rows is not None  # noqa: S101  only the kinds above have none
        with self._lock:
            known: KeySet | None = self._known.get("keys")
            if known is None or known.fields != fields:
                known = KeySet(fields, distinct_keys(rows, fields, self.columns))
                self._known["keys"] = known
        return known


def semi_join(columns: str | Sequence[str], keys: Any, *, is_exact: bool) -> SemiJoin:
    """Build a semi join from its request.

    Args:
        columns: one name or several.
        keys: all that `Scan.semi_join` and `Scan.prefilter` take, except scans.
        is_exact: whether the result depends on it.

    Raises:
        OptionError: no columns, something that is not keys, or another number of key columns than of names.
    """
    names = _names(columns)
    if isinstance(keys, KeyRangeSource | GivenRanges):
        if len(names) > 1 or is_exact:
            raise OptionError("ranges are for prefilter() on one column: they do not identify single keys")
        return SemiJoin(names, keys, is_exact)
    return SemiJoin(names, key_table(keys, names), is_exact)


def semi_join_with_scan(columns: str | Sequence[str], keys: KeyScan, *, is_exact: bool) -> SemiJoin:
    """A join with the rows of another scan, which is read when the join first needs its keys.

    Args:
        columns: one name or several.
        keys: a scan of the key columns: those it selects, or those with the names in `columns`.
        is_exact: whether the result depends on it.

    Raises:
        OptionError: no columns, or a scan with another number of columns.
    """
    names = _names(columns)
    return SemiJoin(names, _only_keys(keys, names), is_exact)


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise OptionError("a semi join needs at least one column")
    return names


def _only_keys(keys: KeyScan, names: tuple[str, ...]) -> KeyScan:
    """The scan of the key columns alone: those it selects, or those with the names of the other side."""
    if keys.columns is None and set(names) <= set(keys.schema.names):
        return keys.select(*names)
    selected = keys.schema.names
    if len(selected) != len(names):
        raise OptionError(
            f"the scan of keys has {len(selected)} columns, but {len(names)} are to be matched ({', '.join(names)}): "
            "select its key columns"
        )
    return keys


def _rows_of(keys: KeyScan, names: tuple[str, ...]) -> pa.Table:
    """The distinct rows of a scan of keys, which must fit into a part of its memory limit.

    Raises:
        OptionError: they do not.
    """
    limit = keys.options.memory_limit_bytes // _KEYS_SHARE
    labels = [f"k{i}" for i in range(len(names))]
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in keys.to_batches():
        arrays = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in batch.columns]
        held.append(pa.RecordBatch.from_arrays(arrays, names=labels))
        size += batch.nbytes
        if size > limit:
            held = pa.Table.from_batches(held).group_by(labels).aggregate([]).to_batches()
            size = sum(b.nbytes for b in held)
            if size > limit // 2:
                raise OptionError(
                    f"the keys of a semi join on {', '.join(names)} take more than {limit // 2} bytes; raise "
                    f"memory_limit_bytes ({keys.options.memory_limit_bytes}), or join the other way round"
                )
    if held:
        return pa.Table.from_batches(held)
    schema = keys.arrow_schema
    kinds = [f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type for f in schema]
    return pa.table([pa.array([], kind) for kind in kinds], names=labels)


def joins_as_text(joins: Sequence[SemiJoin]) -> str:
    """JSON, the keys in it as compressed Arrow."""
    return json.dumps([_document(join) for join in joins])


def joins_from_text(text: str) -> tuple[SemiJoin, ...]:
    """The inverse.

    Raises:
        OptionError: not such text.
    """
    try:
        return tuple(_join(document) for document in json.loads(text))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"option 'joins' is not what a scan writes: {error}") from error


def _document(join: SemiJoin) -> dict[str, Any]:
    document: dict[str, Any] = {"columns": list(join.columns), "exact": join.is_exact}
    keys = join.keys
    if isinstance(keys, KeyRangeSource):
        keys = GivenRanges.of(key_ranges(keys.scan, keys.column, keys.most_ranges))
    if isinstance(keys, GivenRanges):
        return document | {"ranges": None if keys.bounds is None else to_text(keys.bounds)}
    rows = join.key_rows()
    assert rows is not None  # noqa: S101  only the kinds above have none
    return document | {"keys": to_text(rows)}


def _join(document: dict[str, Any]) -> SemiJoin:
    columns, is_exact = tuple(document["columns"]), bool(document["exact"])
    if "ranges" in document:
        text = document["ranges"]
        return SemiJoin(columns, GivenRanges(None if text is None else from_text(text)), is_exact)
    return SemiJoin(columns, from_text(document["keys"]), is_exact)
