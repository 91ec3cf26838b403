"""Replaces the old changes of a change log by a base: the last change of each key, with its ordinal and its position.

With soft deletes these are the last row of a key and its delete. A base is itself a change log that leads to the same rows, so
readers of the log treat base and tail alike. It is written next to the old files, compared with them, and takes their place in
one commit; the old files go when their snapshots expire. A log without a key has none: it would hold every row that was added.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.changes.change_arrays import ChangeArrays, UnsentSources, with_sent
from nevermore.pipelines.changes.change_log import ORDINAL, ChangeLog, LogBase, atomic_runs, last_truncate, read_changes
from nevermore.pipelines.changes.change_run import BATCH_SHARE, ChangeRun, SpilledTables, parts_by_key, spread
from nevermore.pipelines.changes.keys import KeySet, num_to_truncate
from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.errors import PipelineError, SourceError, describe
from nevermore.pipelines.iceberg.catalog import expanded, find_table
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.positions import (
    LOG_ORDINAL,
    ORDER_BY,
    ancestors,
    summary_properties,
)
from nevermore.pipelines.iceberg.replacement import Replacement, Swap
from nevermore.pipelines.iceberg.row_shape import with_columns, without_extensions
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.mirrors.fold import squash
from nevermore.pipelines.mirrors.table_shape import ADOPTED, ADOPTED_ORDINAL, ADOPTED_SNAPSHOT
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ContentFile, Mask, Rows, ScanError, ScanMetrics, Split, read_split, run_splits

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

MIN_SHARE = 0.5
"""Replaceable changes per change of the base from which a trim pays: each change is then written about three times in all."""
_SAMPLE_EVERY = 16
"""Of so many changes of a base one tells where its files begin."""


@dataclass(frozen=True, slots=True)
class BaseToCheck:
    """A base that is written, but not committed.

    Attributes:
        log: name of the change log.
        location: its metadata file, with the changes that the base replaces.
        key: columns that identify a row; none if all of them do.
        is_soft: whether rows stay when they are deleted.
        ordinal: the last change that the base stands for.
        old: streams the changes that it replaces.
        new: streams its changes.
    """

    log: str
    location: str
    key: tuple[str, ...]
    is_soft: bool
    ordinal: int
    old: Callable[[], pa.RecordBatchReader]
    new: Callable[[], pa.RecordBatchReader]


CheckBase = Callable[[BaseToCheck], str | None]
"""Compares a base with the changes that it replaces; the answer is what differs."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What became of a change log, or would.

    Attributes:
        table: name of the mirror.
        log: name of its change log.
        ordinal: the last change that the base stands for; 0 without a base.
        replaced: changes that were replaced; in a dry run, those that would be.
        base: changes of the new base; None in a dry run.
        tail: later changes, which are all kept.
        files_before: data files that were replaced.
        files_after: those that replaced them.
        bytes_before: their stored bytes.
        bytes_after: the same of the new ones.
        reason: why nothing was replaced.
        is_dry: whether nothing was changed.
        seconds: time taken.
        error: why it failed; the log is unchanged.
    """

    table: str
    log: str
    ordinal: int = 0
    replaced: int = 0
    base: int | None = None
    tail: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    reason: str | None = None
    is_dry: bool = False
    seconds: float = 0.0
    error: str | None = None

    @property
    def lines(self) -> Iterator[str]:
        """As text."""
        if self.error is not None:
            yield f"{self.log}: failed: {self.error}"
        elif self.reason is not None:
            yield f"{self.log}: nothing to trim; {self.reason}"
        elif self.is_dry:
            yield (
                f"{self.log}: would replace {counted(self.replaced, 'change')} up to ordinal {self.ordinal:,} by the last of each key; "
                f"{counted(self.tail, 'later change')} kept"
            )
        else:
            yield (
                f"{self.log}: {counted(self.replaced, 'change')} up to ordinal {self.ordinal:,} replaced by {self.base:,}; "
                f"{counted(self.tail, 'later change')} kept; {counted(self.files_before, 'file')} of {self.bytes_before:,} bytes became "
                f"{self.files_after:,} of {self.bytes_after:,}, and go when their snapshots expire"
            )


def trim_logs(
    catalog: "Catalog",
    config: Config,
    check: CheckBase,
    names: Sequence[str] | None = None,
    *,
    keep_seconds: float | None = None,
    min_share: float = 0.0,
    is_dry: bool = False,
    show: Callable[[str], None] = lambda _: None,
) -> Iterator[Trimmed]:
    """Trim the change logs of mirrors; an error of one does not stop the others.

    Args:
        catalog: the catalog of the config.
        config: which tables, and how long changes are kept.
        check: compares a base with the changes that it replaces, before it is committed.
        names: only these mirrors; all if empty.
        keep_seconds: how long changes are kept; None is as the config says, and logs without `keep_log` are passed over.
        min_share: trim only logs with so many replaceable changes per change of their base.
        is_dry: change nothing.
        show: receives what is being done.

    Raises:
        ConfigError: an unknown name.
    """
    config = expanded(config, catalog)
    for name in names or ():
        config.table(name)
    for name, entry in config.tables.items():
        keep = entry.maintenance.keep_log if keep_seconds is None else keep_seconds
        if keep is None or (names and name not in names) or find_table(catalog, change_log_name(name)) is None:
            continue
        began = time.monotonic()
        show(f"{change_log_name(name)}: looking for old changes")
        try:
            done = trim_log(catalog, name, entry, check, keep, min_share=min_share, is_dry=is_dry)
        except (PipelineError, ScanError, OSError) as error:
            done = Trimmed(name, change_log_name(name), is_dry=is_dry, error=describe(error))
        yield replace(done, seconds=time.monotonic() - began)


def trim_log(
    catalog: "Catalog",
    name: str,
    config: TableConfig,
    check: CheckBase,
    keep_seconds: float,
    *,
    min_share: float = 0.0,
    is_dry: bool = False,
) -> Trimmed:
    """Replace the changes of one log that are older than a time by the last of each key.

    A change stays as long as the mirror, or one of its snapshots that has not expired, may need it.

    Raises:
        SourceError: the log does not exist.
        PipelineError: the base does not lead to the same rows, or others kept changing the log; it is as it was.
    """
    log = ChangeLog(catalog, change_log_name(name))
    if log.table is None:
        raise SourceError(f"{name} has no change log yet; ingest first")
    mirror, quarantine = (find_table(catalog, table) for table in (name, quarantine_name(name)))
    kept_deletes = _kept_deletes(log, mirror, quarantine)
    if config.identity == "full":
        reason = "without a key every row that was added stays, so that hardly any change could go (identity: full)"
        return Trimmed(name, log.name, reason=reason, is_dry=is_dry)
    ordinal, limit = _last_replaceable(log, mirror, keep_seconds)
    num_new = ordinal - log.base.ordinal
    if config.soft_delete and last_truncate(log.stored, ordinal):
        num_new, limit = 0, "the source was truncated, and the rows of that time stay (soft_delete)"
    report = Trimmed(
        name,
        log.name,
        ordinal,
        replaced=log.base.num_changes + num_new,
        tail=log.last_ordinal - ordinal,
        is_dry=is_dry,
    )
    if num_new <= 0 or num_new < min_share * log.base.num_changes:
        return replace(report, reason=limit if num_new <= 0 else "too few changes are old enough for a rewrite to pay")
    if is_dry:
        return report
    base = _Base(log, config, ordinal, kept_deletes)
    with Replacement(log.stored, "overwrite") as replacement:
        replacement.written += (written := base.write())
        base.check(check, written)
        replacement.commit(partial(base.choose, written))
    return replace(
        report,
        base=base.num_changes,
        files_before=len(base.old),
        files_after=len(written),
        bytes_before=sum(base.old.values()),
        bytes_after=sum(f.file_size_bytes for f in written),
    )


def _last_replaceable(log: ChangeLog, mirror: "CatalogTable | None", keep_seconds: float) -> tuple[int, str]:
    """(the last ordinal that a base may stand for, why not a later one)."""
    since = datetime.now(UTC) - timedelta(seconds=keep_seconds)
    ordinal = log.last_before(since)
    reason = f"no change is older than {timedelta(seconds=keep_seconds)}"
    needed = 0 if mirror is None else _oldest_applied(mirror)
    if needed < ordinal:
        ordinal = needed
        reason = (
            "the mirror does not exist"
            if mirror is None
            else f"a snapshot of the mirror has only the changes up to {needed:,}, and stays until it expires"
        )
    for first, last in atomic_runs(log.stored, 0):
        if first <= ordinal < last:
            ordinal = first - 1
    return max(ordinal, 0), reason


def _oldest_applied(mirror: "CatalogTable") -> int:
    """The last change in the oldest snapshot that leads to the current one without a gap; later changes tell its rows."""
    applied = [summary_properties(s).get(LOG_ORDINAL) for s in ancestors(mirror)]
    return min((int(text) for text in applied if text is not None), default=0)


def _kept_deletes(log: ChangeLog, mirror: "CatalogTable | None", quarantine: "CatalogTable | None") -> str | None:
    """Why the last change of a key must stay even if it is a delete; None if keys without rows need not be known.

    A change that arrives later and belongs before it would bring the row back.
    """
    if log.order_by is not None:
        return ORDER_BY
    if mirror is not None and ADOPTED in mirror.metadata.properties:
        properties = mirror.metadata.properties
        if properties.get(ADOPTED_SNAPSHOT) != "" and last_truncate(log.stored, log.ready_ordinal) <= int(
            properties.get(ADOPTED_ORDINAL, 0)
        ):
            return ADOPTED
    if quarantine is not None and open_current(quarantine).scan().limit(1).to_table().num_rows:
        return "quarantine"
    return None


def last_states(
    changes: pa.Table, key: Sequence[str], *, keep_deletes: bool, from_start: bool, is_soft: bool = False
) -> pa.Table:
    """The last change of each key; columns that it did not send are filled from earlier ones.

    Args:
        changes: rows of a log in order without truncates: all changes of their keys.
        key: columns that identify a row.
        keep_deletes: also the deletes of keys that have no row.
        from_start: whether the table has no rows before these changes.
        is_soft: deleted rows stay: the last row of each key, and its delete if that is later.
    """
    arrays = ChangeArrays(changes, key)
    count = len(arrays)
    sources = UnsentSources(arrays, truncated=from_start)
    alive = sources.alive
    places = np.arange(count)
    written, removed = (np.full(arrays.limit, -1) for _ in range(2))
    puts, removes = alive & arrays.puts, alive & (arrays.moves | ~arrays.puts)
    np.maximum.at(written, arrays.new_code[puts], places[puts])
    np.maximum.at(removed, arrays.old_code[removes], places[removes])
    is_row = puts & (written[arrays.new_code] == places) & (is_soft | (removed[arrays.new_code] <= places))
    is_gone = removes & (removed[arrays.old_code] == places) & (written[arrays.old_code] < places)
    is_gone &= keep_deletes | (is_soft & (written[arrays.old_code] >= 0))
    whole = np.zeros(count, np.bool_)
    if (
        not from_start and arrays.moves.any()
    ):  # their unsent columns may be in the mirror, under a key that they had before
        of_moves = np.zeros(arrays.limit, np.bool_)
        for codes in (arrays.old_code, arrays.new_code):
            of_moves[codes[arrays.moves]] = True
        whole = of_moves[arrays.old_code] | of_moves[arrays.new_code]
    kept = np.flatnonzero(is_row | is_gone | whole)
    found = with_sent(changes.take(pa.array(kept)), arrays, sources, kept, chosen=is_row[kept])
    return _as_deletes(found, ~(is_row | whole)[kept])


def _as_deletes(changes: pa.Table, chosen: Mask) -> pa.Table:
    """The chosen changes as deletes of the rows that they replaced, in the columns that the changes have."""
    mask = pa.array(chosen)
    values: dict[str, Any] = {"op": "d", "before": None, "after": None, "unchanged": []}
    columns = {name: changes.column(name).combine_chunks() for name in values if name in changes.column_names}
    return with_columns(
        changes, {n: pc.if_else(mask, pa.scalar(values[n], column.type), column) for n, column in columns.items()}
    )


@dataclass(slots=True)
class _Base:
    """A base that is being made."""

    log: ChangeLog
    config: TableConfig
    ordinal: int
    deletes: str | None
    num_changes: int = 0
    key: tuple[str, ...] = ()
    old: dict[str, int] = field(default_factory=dict)

    @property
    def limit_bytes(self) -> int:
        """Bytes of changes that are held at once."""
        return self.config.memory_limit_bytes // BATCH_SHARE

    def write(self) -> list[ContentFile]:
        """Write the base, and the later changes of the files that it replaces."""
        table, self.key = self.log.stored, self.config.key or self.log.key
        self.old = {
            task.data_file.path: task.data_file.file_size_bytes
            for task in self.log.scan().where(f"{ORDINAL} <= {self.ordinal}").plan().tasks
        }
        files: list[ContentFile] = []
        with RowDelta(table) as delta, closing(SpilledTables()) as made:
            spec = delta.unpartitioned_spec()
            ordinals = [self._add(part, made) for part in self._changes()]
            self.num_changes = made.num_rows
            sampled = np.sort(np.concatenate([np.zeros(0, np.int64), *(part[::_SAMPLE_EVERY] for part in ordinals)]))
            count = max(1, made.nbytes // self.limit_bytes + 1)
            bounds = sampled[np.linspace(0, len(sampled), count, endpoint=False).astype(np.int64)[1:]]
            in_order = spread(
                made.tables(),
                lambda part: np.searchsorted(bounds, np.asarray(part.column(ORDINAL)), side="right"),
                count,
            )
            for part in chain(in_order, self._later_changes()):
                rows = part.sort_by(ORDINAL)
                files += write_rows(rows, delta.target, spec)
        return files

    def _add(self, part: pa.Table, made: SpilledTables) -> Rows:
        if "before" in part.column_names:  # the old row is of no use any more
            part = with_columns(part, {"before": pa.nulls(part.num_rows, part.schema.field("before").type)})
        made.append(part.combine_chunks())
        return np.asarray(part.column(ORDINAL)).astype(np.int64)

    def _changes(self) -> Iterator[pa.Table]:
        """The changes of the base, in no order.

        Of those that are not needed for the rows, the last of each file of the source stays, without an effect.

        Raises:
            PipelineError: the log lacks changes.
        """
        table, limit = self.log.stored, self.limit_bytes
        places = _last_places(table, self.ordinal)
        marks: list[pa.Table] = []
        num_read = 0

        def read() -> Iterator[pa.Table]:
            nonlocal num_read
            for changes in read_changes(table, 0, self.ordinal, limit):
                num_read += changes.num_rows
                marks.append(_at_places(changes, places))
                yield changes

        with closing(ChangeRun.of(read(), limit)) as run:
            required = self.log.num_required(0, self.ordinal)
            if num_read != required:
                raise PipelineError(
                    f"{self.log.name} holds {num_read:,} of its {required:,} changes up to {self.ordinal:,}"
                )
            marked = pa.concat_tables(marks) if marks else None
            for part in self._states(run):
                if marked is not None and part.num_rows:
                    marked = marked.filter(
                        pc.invert(pc.is_in(marked.column(ORDINAL), part.column(ORDINAL).combine_chunks()))
                    )
                yield part
        if marked is not None and marked.num_rows:
            is_change = np.asarray(pc.not_equal(marked.column("op"), "t"), np.bool_)
            yield _as_deletes(marked.combine_chunks(), is_change)

    def _states(self, run: ChangeRun) -> Iterator[pa.Table]:
        """The last change of each key."""
        key, limit = self.key, self.limit_bytes
        is_whole, keep_deletes = self.deletes != ADOPTED, self.deletes is not None
        if self.config.soft_delete:
            states = partial(last_states, key=key, keep_deletes=keep_deletes, from_start=is_whole, is_soft=True)
            for part in parts_by_key(run, key, limit, states):
                yield states(part.changes)
            return
        for part in parts_by_key(run, key, limit, partial(squash, key=key)):
            first = num_to_truncate(part.changes)
            from_start = is_whole or part.after_truncate or first > 0
            yield last_states(part.changes.slice(first), key, keep_deletes=keep_deletes, from_start=from_start)

    def _later_changes(self) -> Iterator[pa.Table]:
        """The changes after the base in files that have changes of it, too."""
        plan = self.log.scan().where(f"{ORDINAL} > {self.ordinal}").plan()
        splits = [Split(plan.context, (task,)) for task in plan.tasks if task.data_file.path in self.old]
        for batch in run_splits(splits, read_split, ScanMetrics(), 1):
            yield without_extensions(pa.Table.from_batches([batch]))

    def check(self, check: CheckBase, written: Sequence[ContentFile]) -> None:
        """Compare the base with the changes that it replaces.

        Raises:
            PipelineError: it leads to other rows.
        """
        log = self.log
        storage = RowDelta(log.stored).storage

        def new() -> pa.RecordBatchReader:
            import pyarrow.parquet as pq

            schemas = []
            for file in written:
                with storage.open_input(file.path) as source:
                    schemas.append(pq.read_schema(source))
            schema = pa.unify_schemas(schemas, promote_options="permissive")

            def parts() -> Iterator[pa.Table]:
                for file in written:
                    with storage.open_input(file.path) as source, pq.ParquetFile(source) as stored:
                        for batch in stored.iter_batches():
                            rows = pa.concat_tables(
                                [schema.empty_table(), pa.Table.from_batches([batch])], promote_options="permissive"
                            )
                            yield rows.filter(pc.less_equal(rows.column(ORDINAL), self.ordinal))

            return _streamed(schema, parts())

        def old() -> pa.RecordBatchReader:
            found = log.scan().where(f"{ORDINAL} <= {self.ordinal}").to_reader()
            return _streamed(found.schema, (pa.Table.from_batches([batch]) for batch in found))

        location = str(log.stored.metadata_location)
        wrong = check(BaseToCheck(log.name, location, self.key, self.config.soft_delete, self.ordinal, old, new))
        if wrong is not None:
            raise PipelineError(f"{log.name}: its base would lead to other rows, so nothing was replaced: {wrong}")

    def choose(self, written: Sequence[ContentFile], delta: RowDelta) -> Swap:
        """Put the base in the place of the old files, unless somebody else has changed these."""
        table = delta.table
        spec = delta.unpartitioned_spec()
        live = {task.data_file.path for task in open_current(table).scan().plan().tasks}
        if LogBase.of(table) != self.log.base or not live.issuperset(self.old):
            raise PipelineError(
                f"{self.log.name} was rewritten by somebody else meanwhile; nothing was replaced: run it again"
            )
        added = [replace(file, spec_id=spec.spec_id) for file in written]
        return Swap(added, {(path, None) for path in self.old}, LogBase(self.ordinal, self.num_changes).properties)


def _streamed(schema: pa.Schema, parts: Iterator[pa.Table]) -> pa.RecordBatchReader:
    """Changes one batch after the other: a log may be larger than the memory."""
    batches = (batch for part in parts for batch in without_extensions(part).to_batches())
    return pa.RecordBatchReader.from_batches(without_extensions(schema.empty_table()).schema, batches)


def _last_places(table: "CatalogTable", ordinal: int) -> pa.Table:
    """The highest offset of each file of the source: files that come again are known by it."""
    scan = open_current(table).scan().select("source_file", "source_offset").where(f"{ORDINAL} <= {ordinal}")
    last: pa.Table | None = None
    for batch in scan.to_batches():
        both = pa.Table.from_batches([batch])
        both = both if last is None else pa.concat_tables([last, both])
        found = both.group_by(["source_file"]).aggregate([("source_offset", "max")])
        last = found.rename_columns({"source_offset_max": "source_offset"}).select(["source_file", "source_offset"])
    empty = pa.table({"source_file": pa.array([], pa.string()), "source_offset": pa.array([], pa.int64())})
    return empty if last is None else last.drop_null()


def _at_places(changes: pa.Table, places: pa.Table) -> pa.Table:
    """The last truncate of some changes, and those at some places of the source."""
    chosen = KeySet(places.columns).find([changes.column(name) for name in places.column_names]) >= 0
    if (last := num_to_truncate(changes)) > 0:
        chosen[last - 1] = True
    return changes.filter(pa.array(chosen))
