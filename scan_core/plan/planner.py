"""Planning: a snapshot and a scan's context -> the data files to read, each with the deletes that may touch it.

`Binding` resolves the names of a scan to fields of the schema in force: its columns, its predicate, the key columns of its joins.
`plan_scan` reads manifests, never data: files that cannot hold a row of the result are excluded by partition and file statistics,
then deletes are matched to the remaining files.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nevermore.scan_core.bitmaps.column_index import with_bitmap_indexes
from nevermore.scan_core.metadata.bulk_manifests import ManifestFiles
from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST, ManifestFile, snapshot_manifests
from nevermore.scan_core.metadata.manifests import read_data_manifests, read_delete_manifests
from nevermore.scan_core.model.errors import ColumnNotFoundError, OptionError, PredicateError, UnsupportedError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.running import awaited, check_running, current
from nevermore.scan_core.model.schema import (
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    Schema,
    StructType,
    arrow_type,
)
from nevermore.scan_core.model.snapshot import DataFile, DeleteFile, Snapshot
from nevermore.scan_core.model.table_metadata import TableMetadata
from nevermore.scan_core.plan.delete_index import DeleteFileIndex, DeleteReach, build_delete_index
from nevermore.scan_core.plan.file_pruner import BY_SUMMARY, FilePruner, PlanTrace, total
from nevermore.scan_core.plan.file_set import OPEN_FILE_COST_BYTES, ColumnPart, FileSet, make_splits, parts_of
from nevermore.scan_core.read.projection import METADATA_IDS, metadata_fields
from nevermore.scan_core.split.tasks import FileScanTask, ScanContext, Split

if TYPE_CHECKING:
    from nevermore.scan_core.expr.bound import BoundExpr
    from nevermore.scan_core.expr.nodes import BoundPredicate, Expr
    from nevermore.scan_core.joins.column_keys import KeyField
    from nevermore.scan_core.model.html import Html
    from nevermore.scan_core.plan.runtime_pruning import PlanFilters


@dataclass(frozen=True, slots=True)
class Binding:
    """The names of one schema.

    Attributes:
        metadata: of the table, whose partition specs add to the metadata columns.
        schema: in force.
        options: say how names and predicates are read.
    """

    metadata: TableMetadata
    schema: Schema
    options: ScanOptions

    def projection(self, names: Sequence[str] | None) -> Schema:
        """The columns of a result, in order; None for all of the schema.

        Raises:
            ColumnNotFoundError: an unknown column, one that is selected twice, or in part and as a whole.
        """
        if names is None:
            return self.schema
        ids = count(-1, -1)
        chosen = [self._column(name, ids) for name in names]
        for index, column in enumerate(chosen):
            if column in chosen[:index] or (column.field_id < 0 and column.name in {c.name for c in chosen[:index]}):
                raise ColumnNotFoundError(f"column {column.name!r} is selected twice")
            above = {f.field_id for f in self._way_to(column)}
            if (whole := next((c for c in chosen if c.field_id in above - {column.field_id}), None)) is not None:
                raise ColumnNotFoundError(f"{column.name!r} is part of {whole.name!r}, which is selected as a whole")
        return Schema(self.schema.schema_id, tuple(chosen), self.schema.identifier_field_ids)

    def parts(self, names: Sequence[str] | None) -> "dict[int, BoundExpr]":
        """The columns of a result that are parts of lists and maps, by the ids that `projection` gives them."""
        ids = count(-1, -1)
        chosen = [(self._column(name, ids).field_id, name) for name in names or ()]
        return {i: part for i, name in chosen if i < 0 and (part := self._part(name)) is not None}

    def predicate(self, predicates: "Sequence[str | Expr]") -> "BoundPredicate | None":
        """All predicates as one, bound to field ids; None without any.

        Raises:
            PredicateError: a predicate is wrong or not supported.
        """
        if not predicates:
            return None
        bound = [self._predicate(predicate) for predicate in predicates]
        if len(bound) == 1:
            return bound[0]
        from nevermore.scan_core.expr.nodes import BoundPredicate

        return BoundPredicate(
            " and ".join(f"({b.sql})" for b in bound), tuple(conjunct for b in bound for conjunct in b.conjuncts)
        )

    def key_fields(self, names: Sequence[str]) -> "tuple[KeyField, ...]":
        """Columns or struct members that a join compares.

        Raises:
            ColumnNotFoundError: an unknown column.
            OptionError: a column twice, or one whose values are no keys.
        """
        from nevermore.scan_core.joins.column_keys import KeyField

        found = [self.schema.find(name, case_sensitive=self.options.case_sensitive) for name in names]
        for name, column in zip(names, found, strict=True):
            path = self._way_to(column)
            if not all(isinstance(above.type, StructType) for above in path[:-1]):
                raise OptionError(f"key column {name!r} lies inside a list or map")
            if not isinstance(column.type, PrimitiveType) or column.type.name == "unknown":
                raise OptionError(f"column {name!r} of type {column.type} cannot be a key; keys are single values")
            arrow_type(column.type)
        if len({column.field_id for column in found}) < len(found):
            raise OptionError(f"a key column is named twice: {', '.join(names)}")
        return tuple(KeyField(c.field_id, name, c.type) for name, c in zip(names, found, strict=True))

    def _column(self, name: str, ids: Iterator[int]) -> NestedField:
        """The field of a result's column; `ids` are for parts of lists and maps, which have none of the table's."""
        try:
            found = self.schema.find(name, case_sensitive=self.options.case_sensitive)
        except ColumnNotFoundError:
            if (known := self._metadata_fields().get(name)) is not None:
                return known
            if (part := self._part(name)) is None:
                raise
            return _with_new_ids(NestedField(0, name, part.type), ids)
        path = self._way_to(found)
        if len(path) == 1:
            return found
        if not all(isinstance(above.type, StructType) for above in path[:-1]):
            raise ColumnNotFoundError(f"{name!r} lies inside a list or map: select the column {path[0].name!r}")
        return replace(found, name=".".join(field.name for field in path), required=False, initial_default=None)

    def _part(self, name: str) -> "BoundExpr | None":
        """The part of a list or map that a text stands for; None if it does not."""
        if not any(sign in name for sign in ".[("):
            return None
        from nevermore.scan_core.expr.bind import bind_access

        try:
            return bind_access(name, self.schema, case_sensitive=self.options.case_sensitive)
        except PredicateError as error:
            raise ColumnNotFoundError(str(error)) from error

    def _way_to(self, column: NestedField) -> tuple[NestedField, ...]:
        return self.schema.path(column.field_id) if column.field_id in self.schema else (column,)

    def _metadata_fields(self) -> Mapping[str, NestedField]:
        return metadata_fields(self.metadata.specs, self.metadata.field_paths())

    def _predicate(self, predicate: "str | Expr") -> "BoundPredicate":
        from nevermore.scan_core.expr.bind import bind

        schema, options = self.schema, self.options
        try:
            return bind(predicate, schema, options.case_sensitive)
        except (PredicateError, ColumnNotFoundError):
            extra = tuple(f for f in self._metadata_fields().values() if f.name not in schema.names)
            if not any(f.name in str(predicate) for f in extra):
                raise
            widened = Schema(schema.schema_id, (*schema.fields, *extra))
            return bind(predicate, widened, options.case_sensitive)


def _with_new_ids(field: NestedField, ids: Iterator[int]) -> NestedField:
    """The field, and those below it, under new ids, so that each id is used once: `l[0]` and `l[1]` have the same members."""
    kind = field.type
    match kind:
        case StructType(fields):
            kind = StructType(tuple(_with_new_ids(f, ids) for f in fields))
        case ListType(element):
            kind = ListType(_with_new_ids(element, ids))
        case MapType(key, value):
            kind = MapType(_with_new_ids(key, ids), _with_new_ids(value, ids))
        case PrimitiveType():
            pass
    return replace(field, field_id=next(ids), type=kind)


def readable(schema: Schema) -> Schema:
    """The schema itself.

    Raises:
        UnsupportedError: a column has a type that cannot be read; names the others.
    """
    for column in schema.fields:
        try:
            arrow_type(column.type)
        except UnsupportedError as error:
            names = [f.name for f in schema.fields if f is not column and f.field_id not in METADATA_IDS]
            raise UnsupportedError(
                f"column {column.name!r}: type {column.type} is not supported; select others ({', '.join(names)})"
            ) from error
    return schema


@dataclass(frozen=True)
class ScanPlan:
    """What a scan will read. Tasks are whole files, in the order of the manifests; `splits` cuts and combines them.

    Tasks and splits are made when they are asked for.
    """

    context: ScanContext
    snapshot: Snapshot | None
    tasks: Sequence[FileScanTask]
    metrics: ScanMetrics
    index: DeleteFileIndex = field(repr=False)
    trace: PlanTrace = field(repr=False)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all data files."""
        return int(self.index.tasks.data_files.sizes.sum())

    @property
    def total_weight(self) -> int:
        """Total bytes, where each file counts at least as many as opening it costs."""
        return int(np.maximum(self.index.tasks.data_files.sizes, OPEN_FILE_COST_BYTES).sum())

    def splits(self, split_bytes: int | None = None) -> Sequence[Split]:
        """The units of work, of about `split_bytes` of stored data each (default: the scan's option); see `make_splits`."""
        return make_splits(self.tasks, self.context, split_bytes or self.context.options.split_bytes)

    def explain(self) -> str:
        """Describe in plain text what is read, what was excluded and why, which deletes apply and how they are matched."""
        from nevermore.scan_core.plan.explain import explain_plan

        lines = explain_plan(
            self.context, self.snapshot, self.index, self.trace, tasks=self.tasks, num_splits=len(self.splits())
        )
        return "\n".join(lines)

    def to_html(self) -> str:
        """The same as a page of HTML that loads nothing: bytes, files, what excluded them, and their deletes."""
        from nevermore.scan_core.model.html import page

        return page(f"Plan of a scan of {self.context.table}", *self._drawn())

    def _repr_html_(self) -> str:
        from nevermore.scan_core.model.html import fragment

        return fragment(*self._drawn())

    def _drawn(self) -> "Iterator[Html]":
        from nevermore.scan_core.plan.explain import draw_plan

        return draw_plan(self.context, self.snapshot, self.index, self.trace, tasks=self.tasks, text=self.explain())


def plan_scan(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    context: ScanContext,
    uncommitted: Sequence[DeleteFile] = (),
) -> ScanPlan:
    """Plan a scan of one snapshot; None is a table without snapshots, whose plan is empty.

    Args:
        metadata: of the table.
        snapshot: what is read.
        context: the scan.
        uncommitted: deletes that are to apply in addition to those of the snapshot.

    Raises:
        MissingFileError: a manifest is gone.
        MalformedTableError: a manifest, or a delete that applies to a data file, breaks the specification.
    """
    manifests = snapshot_manifests(snapshot, context.io) if snapshot is not None else ()
    planner = FileFinder(metadata, context, FilePruner(metadata, context), PlanTrace())
    filters = _open_filters(metadata, context)
    if filters is not None:
        manifests = filters.manifests_left(manifests, planner.trace)
    data_files = planner.data_files([m for m in manifests if m.content == DATA_MANIFEST])
    if filters is not None:
        data_files = FileSet.of(filters.files_left(data_files, planner.trace))
        context = filters.decided(data_files)
    with_deletes = [m for m in manifests if m.content != DATA_MANIFEST]
    delete_files = planner.delete_files(with_deletes, data_files)
    if uncommitted:
        delete_files = FileSet.of([*delete_files, *uncommitted])
    if filters is not None:
        delete_files = FileSet.of(filters.deletes_left(delete_files, planner.trace))
    index = build_delete_index(data_files, delete_files, context)
    trace = planner.trace
    for reason, files in index.pruned.items():
        for file in files:
            trace.delete_files[reason].add(file.path)
    metrics = ScanMetrics(
        manifests_read=trace.manifests_read,
        manifests_pruned=total(trace.manifests),
        data_files_planned=len(data_files),
        data_files_pruned=total(trace.data_files),
        delete_files_planned=index.num_delete_files,
        delete_files_pruned=total(trace.delete_files),
        data_files_pruned_by_runtime_filters=0 if filters is None else filters.num_pruned(trace),
        bytes_skipped=sum(pruned.num_bytes for pruned in trace.data_files.values()),
        relocated_position_matches=index.relocated_matches,
    )
    tasks = with_bitmap_indexes(index.tasks, metadata, snapshot, context, metrics)
    return ScanPlan(context, snapshot, tasks, metrics, index, trace)


F = TypeVar("F", DataFile, DeleteFile)
_PIECE_FILES = 100_000
"""Files of manifests that are read before most of them are dropped: some 50 MB."""
_UNKNOWN_ENTRIES = 10_000
"""Of a manifest of which the list does not tell: what fits into 8 MB."""
_MOST_WORKERS = 4
"""Of each manifest a third of the work is not in compiled code."""
PRUNED_EARLY_FROM = 2_000
"""Delete files that are compared with the scan before they become objects; fewer cost little."""


@dataclass(frozen=True, slots=True)
class FileFinder:
    """Collects the files of one plan from manifests; `trace` records what it excluded."""

    metadata: TableMetadata
    context: ScanContext
    pruner: FilePruner
    trace: PlanTrace

    def data_files(self, manifests: Sequence[ManifestFile]) -> FileSet[DataFile]:
        """Data files that may hold rows of the result."""
        wanted = []
        for manifest in manifests:
            if self.pruner.may_hold_rows(manifest):
                wanted.append(manifest)
            else:
                self.trace.manifests[BY_SUMMARY].add(manifest.path)
        self.trace.manifests_read += len(wanted)
        kept: list[ColumnPart[DataFile]] = []
        for parts in self._in_pieces(wanted, read_data_manifests):
            self.trace.data_files_seen += sum(map(len, parts))
            kept += [self.pruner.prune(part, self.trace) for part in parts] if self.pruner.is_active else parts
        return FileSet(kept)

    def delete_files(self, manifests: Sequence[ManifestFile], data_files: Sequence[DataFile]) -> FileSet[DeleteFile]:
        """Delete files of the manifests that may hold one for these data files."""
        wanted = []
        files = FileSet.of(data_files)
        oldest = int(files.sequence_numbers.min()) if len(files) else None
        specs_in_use = {spec_id for spec_id, _ in files.partitions} if manifests else set()
        for manifest in manifests:
            reason = self._reason_to_skip(manifest, oldest, specs_in_use)
            if reason is None:
                wanted.append(manifest)
            else:
                self.trace.manifests[reason].add(manifest.path)
        self.trace.manifests_read += len(wanted)
        kept: list[ColumnPart[DeleteFile]] = []
        reach = DeleteReach(files, self.context) if sum(map(_num_entries, wanted)) > PRUNED_EARLY_FROM else None
        for parts in self._in_pieces(wanted, read_delete_manifests):
            self.trace.delete_files_seen += sum(map(len, parts))
            kept += parts if reach is None else [reach.prune(part, self.trace) for part in parts]
        return FileSet(kept)

    def _in_pieces(
        self, manifests: Sequence[ManifestFile], read: Callable[..., Iterable[ManifestFiles[F]]]
    ) -> Iterator[list[ColumnPart[F]]]:
        """The files of manifests, in their order, some manifests at a time: of most files only few are kept."""
        running = current()

        def parts(piece: Sequence[ManifestFile]) -> list[ColumnPart[F]]:
            with nullcontext() if running is None else running.at_work():
                check_running()
                return parts_of(read(piece, self.metadata, self.context.io))

        pieces = _pieces(manifests)
        if len(pieces) <= 1 or self.context.options.parallelism == 1:
            yield from map(parts, pieces)
            return
        workers = min(self.context.options.parallelism, _MOST_WORKERS)
        with ThreadPoolExecutor(workers, "planning") as pool:
            waiting: deque[Future[list[ColumnPart[F]]]] = deque()
            for piece in pieces:
                waiting.append(pool.submit(parts, piece))
                if len(waiting) > workers:
                    yield awaited(waiting.popleft())
            while waiting:
                yield awaited(waiting.popleft())

    def _reason_to_skip(self, manifest: ManifestFile, oldest: int | None, specs_in_use: set[int]) -> str | None:
        """Why none of a manifest's deletes matters.

        The filter counts only through the partitions that it reaches: deletes of a partition meet data files of that
        partition alone (SEMANTICS rules 4 and 8b).
        """
        if oldest is None:
            return "no data file to touch"
        if manifest.sequence_number < oldest and self.metadata.format_version < 3:  # v3: an old vector is malformed
            return "sequence number, older than all data"
        spec = self.metadata.specs.get(manifest.spec_id) if manifest.spec_id is not None else None
        if spec is None or spec.is_unpartitioned:
            return None
        if spec.spec_id not in specs_in_use:
            return "partition spec, which no data file has"
        if not self.pruner.may_hold_rows(manifest):
            return BY_SUMMARY
        return None


def _num_entries(manifest: ManifestFile) -> int:
    return _UNKNOWN_ENTRIES if manifest.live_files is None else manifest.live_files


def _pieces(manifests: Sequence[ManifestFile]) -> list[list[ManifestFile]]:
    """Manifests that are read together, as many as have about `_PIECE_FILES` files."""
    pieces: list[list[ManifestFile]] = []
    room = 0
    for manifest in manifests:
        if room <= 0:
            pieces.append([])
            room = _PIECE_FILES
        pieces[-1].append(manifest)
        room -= _num_entries(manifest)
    return pieces


def _open_filters(metadata: TableMetadata, context: ScanContext) -> "PlanFilters | None":
    if not context.runtime_filters:
        return None
    from nevermore.scan_core.plan.runtime_pruning import PlanFilters

    return PlanFilters(context, metadata.schemas[context.projection.schema_id], metadata.specs)
