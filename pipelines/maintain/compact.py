"""Compaction: rewrites small data files and files with many dead rows, and drops delete files that nothing needs.

A rewrite applies every delete of the snapshot that it reads, and its files get the sequence number of that snapshot, so
that later deletes still apply and re-inserted rows stay (rule 30). What to rewrite is decided by the seconds that every
scan loses, not by numbers of files. Rows are streamed; finished groups of files are committed while others are rewritten.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nevermore.pipelines.changes.change_run import in_groups
from nevermore.pipelines.changes.row_order import AS_THEY_ARE, Order
from nevermore.pipelines.config import Engine
from nevermore.pipelines.config.project import Config, SparkConfig, change_log_name, quarantine_name
from nevermore.pipelines.config.tables import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    DEFAULT_SPARK_ABOVE_BYTES,
    DEFAULT_TARGET_FILE_BYTES,
)
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import Operation, RowDelta
from nevermore.pipelines.iceberg.conversion import check_keys_stored, check_listed_once, convert
from nevermore.pipelines.iceberg.index_upkeep import keep_mirror_indexes
from nevermore.pipelines.iceberg.loaded_table import open_current, refresh
from nevermore.pipelines.iceberg.manifests import FileName, name_of
from nevermore.pipelines.iceberg.parquet_output import DEFAULT_ROW_GROUP_BYTES
from nevermore.pipelines.iceberg.positions import ancestors
from nevermore.pipelines.iceberg.replacement import Replacement, State, Swap, position_deletes
from nevermore.pipelines.iceberg.row_shape import check_order, parquet_schema
from nevermore.pipelines.iceberg.table_writer import FileLayout
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.rewrite import Drops, Rewrite, Rewritten, SparkRewrites, count_dead_rows
from nevermore.pipelines.mirrors.table_shape import ADOPTED, KEY
from nevermore.pipelines.wording import counted
from nevermore.scan_core import (
    ROW_LINEAGE,
    ContentFile,
    DeleteContent,
    DeleteFile,
    FileScanTask,
    PartitionSpec,
    ScanContext,
    ScanMetrics,
    ScanOptions,
    ScanPlan,
    Split,
    Table,
    read_split,
)
from nevermore.scan_core.io import parse_location

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

WRITTEN_VERSIONS = (2, 3)
"""Format versions of the tables that are compacted: version 1 has no sequence numbers."""
_log = logging.getLogger(__name__)

READ_SECONDS = 1 / 280e6
"""Seconds to scan a stored byte of a data file on one core, all columns; `benchmarks/compact.py` measures these figures."""
OPEN_SECONDS = 0.003
"""Seconds to open a local data file."""
REMOTE_OPEN_SECONDS = 0.03
"""Seconds to open a file of an object store: two requests."""
DELETE_SECONDS = 0.0012
"""Seconds to load a local delete file, without its keys."""
KEY_SECONDS = 60e-9
"""Seconds to load a deleted key."""
PROBE_SECONDS = 12e-9
"""Seconds to look up the key of a row of a data file to which an equality delete may apply."""

MIN_GAIN = 0.05
"""A rewrite that was asked for must save at least this part of the seconds that a scan of the files takes."""
MIN_AUTO_GAIN = 0.25
"""The same for a rewrite that nobody asked for: rewriting a byte costs as much as reading it several times."""
MIN_CONVERT_GAIN = 0.07
"""Equality deletes are converted unasked if they cost this part of the seconds that a scan of the table takes."""
MIN_CONVERT_SECONDS = 0.01
"""Less than this is not worth a commit."""
MIN_AUTO_SECONDS = 0.02
"""Below these seconds nothing is rewritten unasked."""
MIN_NOTICED_SECONDS = 0.05
"""Seconds that nobody notices: below them nobody is warned. Unasked, rewrites begin earlier, so that a warning means that there are none."""
FAN_IN = 8
"""Files of about one size that are merged unasked: each byte is rewritten once for each power of it up to the target."""
SMALL_SHARE = 0.75
"""Files below this part of the target size are merged with others."""
GROUP_FILES = 4
"""Target files in a group, which is rewritten as a whole."""
COMMIT_BYTES = 1024**3
"""Stored bytes that are rewritten before a commit, so that an interruption loses no more."""
MAX_ROUNDS = 3
"""How often files that another writer has changed meanwhile are planned again."""
SORT_SHARE = 8
"""Divides the memory limit for rows that are sorted; the others are for reading, copies and the writer."""
GROUPS_PER_SLOT = 4
"""Groups for each task that Spark runs at once, after which they may be committed, so that an interruption loses no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """What to rewrite, and how.

    Attributes:
        target_file_bytes: size of new files.
        order: order of rows, within each partition if `rewrite_all`, otherwise within each group of files.
        rewrite_all: rewrite all files, whether it pays or not.
        is_automatic: rewrite only what pays soon, and only if scans lose much at all.
        where: only data files that may contain rows that match.
        bloom_columns: columns with Bloom filters in new files.
        compression: Parquet codec of new files.
        key: columns whose bounds are stored in full length.
        memory_limit_bytes: maximum memory for reading, sorting and writing.
        max_seconds: no group is begun after this time.
        is_dry: report what would be rewritten, and change nothing.
        engine: `local` rewrites in this process, `spark` by tasks of Spark, `auto` by these if Spark is configured and at
            least `spark_above_bytes` are to be rewritten.
        spark_above_bytes: stored bytes of data files from which `auto` takes Spark.
        spark: the session.
    """

    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    order: Order = AS_THEY_ARE
    rewrite_all: bool = False
    is_automatic: bool = False
    where: str | None = None
    bloom_columns: tuple[str, ...] = ()
    compression: str = "zstd"
    key: tuple[str, ...] = ()
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    max_seconds: float = np.inf
    is_dry: bool = False
    engine: Engine = "local"
    spark_above_bytes: int = DEFAULT_SPARK_ABOVE_BYTES
    spark: SparkConfig = field(default_factory=SparkConfig)

    def takes_spark(self, num_bytes: int) -> bool:
        """Whether tasks of Spark work on so many stored bytes."""
        if self.engine != "auto":
            return self.engine == "spark"
        is_configured = self.spark.master is not None or self.spark.remote is not None
        return is_configured and num_bytes >= self.spark_above_bytes

    @classmethod
    def of(cls, table: "CatalogTable", config: Config | None = None, **asked: Any) -> "CompactSettings":
        """The settings for a table: as asked for, else as its config says, else as its Iceberg properties say."""
        properties = table.metadata.properties
        key = tuple(filter(None, properties.get(KEY, "").split(",")))
        found: dict[str, Any] = {
            "key": key,
            "bloom_columns": tuple(
                name.removeprefix(_BLOOM_PROPERTY)
                for name, value in properties.items()
                if name.startswith(_BLOOM_PROPERTY) and value.lower() == "true"
            ),
        }
        if (size := properties.get("write.target-file-size-bytes", "")).isdecimal():
            found["target_file_bytes"] = max(int(size), 1)
        if (codec := properties.get("write.parquet.compression-codec", "")) in _CODECS:
            found["compression"] = codec
        name = ".".join(table.name())
        mirror = None if config is None else config.tables.get(name)
        published = None if config is None else config.published.get(name)
        if config is not None:
            upkeep = config.maintenance if mirror is None else mirror.maintenance
            found |= {"engine": upkeep.compact_engine, "spark_above_bytes": upkeep.spark_above_bytes}
            found["spark"] = config.spark
        if mirror is not None:
            found |= {"order": Order(mirror.sort_by), "memory_limit_bytes": mirror.memory_limit_bytes}
            found["target_file_bytes"] = mirror.maintenance.target_file_size
            indexed = () if mirror.index is None else mirror.index.bloom
            found["bloom_columns"] = tuple(dict.fromkeys((*(key if mirror.bloom_filters else ()), *indexed)))
        elif published is not None:
            options = published.options
            found |= {"order": Order(published.sort_by), "compression": options.compression}
            found |= {"bloom_columns": options.bloom_filters, "target_file_bytes": options.target_file_bytes}
        return cls(**(found | {name: value for name, value in asked.items() if value is not None}))


@dataclass(slots=True)
class CompactReport:
    """What was rewritten. Mutable while it runs.

    Attributes:
        table: name of the table.
        snapshot_id: the current snapshot after it; None for an empty table.
        commits: number of snapshots.
        files_before: data files that were replaced.
        files_after: data files that replaced them; planned ones of a dry run.
        bytes_before: their stored bytes.
        bytes_after: the same of the new ones; those of live rows in a dry run.
        rows: rows of the new files.
        dead_rows_removed: deleted rows of the old files.
        delete_files_dropped: delete files that no data file needs any more.
        deletes_converted: delete files that were replaced by the positions of deleted rows, because scans lost much by them.
        manifests_rewritten: manifests that were sorted by partition, because plans of scans read too many of them.
        replanned: files that another writer changed meanwhile, and that were planned again.
        given_up: files that other writers kept changing.
        debt_seconds: seconds that a scan loses by estimate, before; on one core.
        scan_seconds: estimated seconds of the same scan if everything was compacted.
        seconds: time taken.
        is_dry: whether nothing was changed.
        engine: what rewrote: `local`, this process, or `spark`.
        indexes: what was done for the indexes of the table.
    """

    table: str
    snapshot_id: int | None = None
    commits: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    dead_rows_removed: int = 0
    delete_files_dropped: int = 0
    deletes_converted: int = 0
    manifests_rewritten: int = 0
    replanned: int = 0
    given_up: int = 0
    debt_seconds: float = 0.0
    scan_seconds: float = 0.0
    seconds: float = 0.0
    is_dry: bool = False
    engine: str = "local"
    indexes: tuple[str, ...] = ()

    @property
    def has_changed(self) -> bool:
        """Whether anything was, or in a dry run would be, changed."""
        return any((self.files_before, self.delete_files_dropped, self.deletes_converted, self.manifests_rewritten))

    @property
    def lines(self) -> Iterator[str]:
        """The report as text."""
        loses = f"scans lose about {self.debt_seconds:.3g} s of {self.debt_seconds + self.scan_seconds:.3g} s"
        if not self.has_changed:
            yield f"{self.table}: nothing to compact; {loses}"
        else:
            verb = "would rewrite" if self.is_dry else "rewrote"
            about = "about " if self.is_dry else ""
            yield (
                f"{self.table}: {verb} {counted(self.files_before, 'data file')} of {self.bytes_before:,} bytes as {about}"
                f"{self.files_after:,} of {about}{self.bytes_after:,}; {counted(self.dead_rows_removed, 'dead row')} removed, "
                f"{counted(self.delete_files_dropped, 'delete file')} dropped"
            )
            on_spark = " on Spark" if self.engine == "spark" else ""
            commits = f"{counted(self.commits, 'commit')}"
            if self.deletes_converted:
                yield f"  {counted(self.deletes_converted, 'delete file')} converted to the positions of deleted rows"
            if self.manifests_rewritten:
                yield f"  {counted(self.manifests_rewritten, 'manifest')} sorted by partition"
            yield f"  before: {loses}; {commits} in {self.seconds:.1f} s{on_spark}, snapshot {self.snapshot_id}"
        if self.replanned:
            yield f"  {counted(self.replanned, 'file')} changed by another writer meanwhile and planned again"
        if self.given_up:
            yield f"  {counted(self.given_up, 'file')} left unchanged, because other writers kept changing them"
        yield from (f"  {line}" for line in self.indexes)


Progress = Callable[[int, int, str], None]
"""Called with the bytes rewritten, the bytes to rewrite, and what is rewritten."""


_CODECS = "zstd", "snappy", "gzip", "lz4"
_BLOOM_PROPERTY = "write.parquet.bloom-filter-enabled.column."


def compact(table: "CatalogTable", settings: CompactSettings, progress: Progress | None = None) -> CompactReport:
    """Rewrite what costs scans more than the rewrite, and commit it as `replace` snapshots. No row changes.

    Args:
        table: table of a catalog; updated to show the last snapshot.
        settings: what to rewrite, and how.
        progress: called after each file that was read.

    Raises:
        SourceError: the table has a format version that is not written, or a data file lacks the column of a delete.
        SchemaConflictError: the columns to sort by do not exist, or a row does not fit the table's schema.
        CommitUnknownError: it is unknown whether a commit has happened.
        MalformedTableError: a data or delete file breaks its specification.
        MissingFileError: a file is gone.
    """
    if table.format_version not in WRITTEN_VERSIONS:
        raise SourceError(
            f"{'.'.join(table.name())} has format version {table.format_version} and cannot be compacted: only versions 2 and 3 "
            "are written, as version 1 has no sequence numbers"
        )
    began = time.monotonic()
    report = CompactReport(".".join(table.name()), is_dry=settings.is_dry)
    run = _Run(table, settings, report, progress or (lambda *_: None), began)
    left: frozenset[str] | None = None
    for _ in range(MAX_ROUNDS):
        left = run.round(left)
        if not left:
            break
        report.replanned += len(left)
    report.given_up = len(left or ())
    report.snapshot_id = table.metadata.current_snapshot_id
    report.seconds = time.monotonic() - began
    return report


def rewrite_without(
    table: "CatalogTable",
    settings: CompactSettings,
    paths: Collection[str],
    drops: Drops,
    properties: Mapping[str, str],
) -> tuple[CompactReport, frozenset[str]]:
    """Rewrite some data files without their dead rows and without others, in one commit that names no old file any more.

    Args:
        table: table of a catalog; updated to show the last snapshot.
        settings: what the new files are like.
        paths: the data files; those that are not live any more are passed over.
        drops: the rows that must not be in the new files.
        properties: entries for the snapshot's summary.

    Returns:
        What was rewritten, and the files that another writer has changed meanwhile, which are as they were.

    Raises:
        PipelineError: see `compact`.
    """
    report = CompactReport(".".join(table.name()))
    settings = replace(settings, rewrite_all=True)
    run = _Run(table, settings, report, lambda *_: None, time.monotonic(), drops=drops, properties=properties)
    lost = run.round(paths)
    report.snapshot_id = table.metadata.current_snapshot_id
    return report, lost


def tables_of(mirror: str) -> tuple[str, str, str]:
    """The tables that grow with a mirror: it, its change log and its quarantine."""
    return mirror, change_log_name(mirror), quarantine_name(mirror)


def compact_mirror(
    config: Config, name: str, max_seconds: float = np.inf, *, own: str | None = None
) -> CompactReport | None:
    """Compact a mirror as its config says, then update its indexes; None if there is nothing that may be compacted.

    Args:
        config: config of the project.
        name: a mirror.
        max_seconds: nothing further is begun after this time.
        own: another of `tables_of` it, which is compacted instead.

    Raises:
        PipelineError: see `compact`.
    """
    entry = config.table(name)
    if entry.maintenance.compact == "off":
        return None
    table = find_table(open_catalog(config), own or name)
    if table is None or table.format_version not in WRITTEN_VERSIONS:
        return None
    report = compact(
        table,
        CompactSettings.of(
            table, config, is_automatic=True, max_seconds=max_seconds, memory_limit_bytes=entry.memory_limit_bytes
        ),
    )
    if own not in {None, name}:
        return report
    if report.commits and (update := keep_mirror_indexes(table, entry)) is not None:
        report.indexes = (*update.lines, *update.warnings)
    arranged = arrange_manifests(table, is_automatic=True)
    if arranged.snapshot_id is not None:
        report.commits += 1
        report.manifests_rewritten = arranged.manifests_before
        report.snapshot_id = arranged.snapshot_id
    return report


MAX_TIME_SHARE = 0.2
"""Part of the time of a continuous run that may go into compaction."""


class Upkeep:
    """Compacts mirrors, their change logs and their quarantines between the rounds of a continuous run, in a bounded part of its time. A failure stops nothing."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._spent = 0.0

    def after_commits(self, tables: Iterable[str]) -> Iterator[CompactReport | str]:
        """Compact those of these mirrors that need it; yield what was done, or why it failed."""
        for name, own in [(mirror, own) for mirror in tables for own in tables_of(mirror)]:
            began = time.monotonic()
            left = MAX_TIME_SHARE * (began - self._began) - self._spent
            if left <= 0:
                return
            try:
                report = compact_mirror(self._config, name, left, own=own)
                if report is not None and report.has_changed:
                    yield report
            except Exception as error:  # noqa: BLE001 - the changes are applied, whatever happens to the layout of the files
                _log.warning("%s was not compacted", own, exc_info=error)
                yield f"{own}: was not compacted: {error}"
            finally:
                self._spent += time.monotonic() - began


@dataclass(frozen=True, slots=True)
class FileDebt:
    """A data file, and what scans lose by its dead rows and by the deletes that apply to it.

    `equality_seconds` is the part of `delete_seconds` that equality deletes cost.
    """

    task: FileScanTask
    dead_rows: int
    delete_seconds: float
    equality_seconds: float = 0.0

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self.task.data_file.file_size_bytes

    @property
    def live_bytes(self) -> float:
        """Stored bytes of live rows."""
        rows = self.task.data_file.record_count
        return self.size * (1 - min(self.dead_rows, rows) / rows) if rows else 0.0

    def without_keys(self) -> "FileDebt":
        """The debt that a conversion leaves."""
        return replace(self, delete_seconds=self.delete_seconds - self.equality_seconds, equality_seconds=0.0)

    @property
    def lost_seconds(self) -> float:
        """Seconds that a scan of all columns loses by deletes."""
        return (self.size - self.live_bytes) * READ_SECONDS + self.delete_seconds


@dataclass(frozen=True, slots=True)
class Costs:
    """What opening files of a table costs."""

    open_seconds: float = OPEN_SECONDS
    delete_seconds: float = DELETE_SECONDS

    @classmethod
    def at(cls, location: str) -> "Costs":
        """The costs of local files, or of those of an object store."""
        return cls() if parse_location(location).is_local else cls(REMOTE_OPEN_SECONDS, REMOTE_OPEN_SECONDS)

    def saved_seconds(self, files: Sequence[FileDebt], target_bytes: int) -> float:
        """Seconds that each scan saves once these files are rewritten together."""
        fewer = len(files) - ceil(sum(f.live_bytes for f in files) / target_bytes)
        return fewer * self.open_seconds + sum(f.lost_seconds for f in files)

    def scan_seconds(self, files: Sequence[FileDebt], target_bytes: int) -> float:
        """Seconds of a scan of these files once they are rewritten."""
        live = sum(f.live_bytes for f in files)
        return live * READ_SECONDS + ceil(live / target_bytes) * self.open_seconds


def debts_of(
    plan: ScanPlan, costs: Costs, dead_rows: Callable[[Sequence[FileScanTask]], Sequence[int]]
) -> list[FileDebt]:
    """What scans lose by each data file of a plan; `dead_rows` counts those of files with deletes."""
    tasks = list(plan.tasks)
    touched = [task for task in tasks if task.has_deletes]
    dead = dict(zip((t.data_file.path for t in touched), dead_rows(touched), strict=True))
    users: dict[int, int] = defaultdict(int)
    load: dict[int, float] = {}
    for task in touched:
        for group in task.equality_deletes:
            users[id(group)] += task.data_file.file_size_bytes
            if id(group) not in load:
                load[id(group)] = sum(costs.delete_seconds + f.record_count * KEY_SECONDS for f in group.files)
        for file in position_deletes(task):
            users[id(file)] += task.data_file.file_size_bytes
            load[id(file)] = costs.delete_seconds + file.record_count * KEY_SECONDS
    found = []
    for task in tasks:
        # A delete is loaded once per scan, and until all files that need it are rewritten: so its cost is divided among
        # them by size, which makes all of them worth a rewrite at the same time.
        by_key, by_position = (
            sum(load[id(one)] * task.data_file.file_size_bytes / max(users[id(one)], 1) for one in deletes)
            for deletes in (task.equality_deletes, position_deletes(task))
        )
        if task.equality_deletes:
            by_key += task.data_file.record_count * PROBE_SECONDS
        found.append(FileDebt(task, dead.get(task.data_file.path, 0), by_key + by_position, by_key))
    return found


def choose_groups(
    debts: Sequence[FileDebt], spec: PartitionSpec, costs: Costs, settings: CompactSettings
) -> list[list[FileDebt]]:
    """Files to rewrite together: those of one partition, or of any partitions of older specs.

    Unasked, small files are merged in full tiers. If scans would still lose too much, all of the smallest tiers are merged, as few as
    are needed.
    """
    if not settings.is_automatic:
        return _grouped(debts, spec, costs, settings, lambda small: small)
    # What equality deletes cost, a conversion saves: files that new ones keep meeting would be rewritten for them again and again.
    debts = [debt.without_keys() for debt in debts]
    target = settings.target_file_bytes
    scan, lost = costs.scan_seconds(debts, target), costs.saved_seconds(debts, target)

    def pays(files: Sequence[FileDebt]) -> bool:
        return _pays(files, costs, settings)

    groups = _grouped(debts, spec, costs, settings, partial(_full_tiers, pays=pays))
    for tier in sorted({_tier(debt) for debt in debts}):
        if not pays_unasked(lost - sum(costs.saved_seconds(files, target) for files in groups), scan):
            break
        groups = _grouped(debts, spec, costs, settings, partial(_full_tiers, pays=pays, least=tier))
    return groups


Choose = Callable[[list[FileDebt]], list[FileDebt]]
"""Chooses of the small files of a partition those that are merged."""


def _grouped(
    debts: Sequence[FileDebt], spec: PartitionSpec, costs: Costs, settings: CompactSettings, choose: Choose
) -> list[list[FileDebt]]:
    by_partition: dict[Any, list[FileDebt]] = defaultdict(list)
    for debt in debts:
        file = debt.task.data_file
        by_partition[file.partition if file.spec_id == spec.spec_id else None].append(debt)
    groups = []
    for members in by_partition.values():
        members.sort(key=lambda debt: debt.task.data_file.data_sequence_number)
        chosen = _candidates(members, costs, settings, choose)
        most = settings.target_file_bytes * (GROUP_FILES if not settings.is_automatic else 1)
        is_whole = settings.rewrite_all and bool(settings.order.columns)
        bins = [chosen] if is_whole else in_groups(chosen, lambda debt: debt.size, most)
        groups += [files for files in bins if files and (settings.rewrite_all or _pays(files, costs, settings))]
    return groups


def _candidates(members: Sequence[FileDebt], costs: Costs, settings: CompactSettings, choose: Choose) -> list[FileDebt]:
    """The files of a partition that are worth a rewrite, in their order."""
    if settings.rewrite_all:
        return list(members)
    small = choose([f for f in members if f.size < SMALL_SHARE * settings.target_file_bytes])
    wanted = {id(f) for f in small}
    for debt in members:
        if _pays([debt], costs, settings):
            wanted.add(id(debt))
    return [f for f in members if id(f) in wanted]


def _tier(debt: FileDebt) -> int:
    """A tier holds files of sizes within a factor of `FAN_IN`."""
    return int(np.log2(max(debt.size, 1)) / np.log2(FAN_IN))


def _full_tiers(
    small: Sequence[FileDebt], pays: Callable[[Sequence[FileDebt]], bool], least: int = -1
) -> list[FileDebt]:
    """The files of the tiers up to `least`, and of further ones as far as there are enough of each for one of the next size.

    Merging only full tiers rewrites each byte once per tier. It must pay for a tier alone: large files would be rewritten with every
    few small ones otherwise.
    """
    tiers: dict[int, list[FileDebt]] = defaultdict(list)
    for debt in small:
        tiers[_tier(debt)].append(debt)
    chosen: list[FileDebt] = []
    for tier in sorted(tiers):
        # What the lower tiers become counts as one file of this one.
        becomes = bool(chosen) and sum(f.size for f in chosen) >= FAN_IN**tier
        if tier <= least or (len(tiers[tier]) + becomes >= FAN_IN and pays(tiers[tier])):
            chosen += tiers[tier]
    return chosen


def _pays(files: Sequence[FileDebt], costs: Costs, settings: CompactSettings) -> bool:
    share = MIN_AUTO_GAIN if settings.is_automatic else MIN_GAIN
    target = settings.target_file_bytes
    saved = costs.saved_seconds(files, target)
    return saved > 0 and saved >= share * costs.scan_seconds(files, target)


def pays_conversion(debts: Sequence[FileDebt]) -> bool:
    """Whether equality deletes cost scans so much that they are converted to positions though nobody asked for it.

    That reads key columns and writes few bytes, while deletes of many data files would leave only once all of these are rewritten.
    """
    whole = sum(debt.size for debt in debts) * READ_SECONDS
    return sum(debt.equality_seconds for debt in debts) > max(MIN_CONVERT_SECONDS, MIN_CONVERT_GAIN * whole)


def pays_unasked(lost_seconds: float, scan_seconds: float) -> bool:
    """Whether scans lose so much that files are rewritten though nobody asked for it."""
    return lost_seconds > max(MIN_AUTO_SECONDS, MIN_AUTO_GAIN * scan_seconds)


def needless_deletes(
    plan: ScanPlan,
    deletes: Sequence[DeleteFile],
    replaced: Collection[str],
    sequence_number: int,
    *,
    trust_bounds: bool = False,
) -> frozenset[FileName]:
    """Names of the delete files that no data file needs once some data files are replaced.

    Args:
        plan: all data files of the snapshot.
        deletes: all delete files of the snapshot.
        replaced: data files that leave, whose deletes were applied.
        sequence_number: that of the files that replace them; newer deletes stay.
        trust_bounds: also those whose key bounds exclude all data files; the bounds of some writers are wrong.
    """
    outside = {name_of(file) for file in plan.index.pruned.get("key bounds", ())} if trust_bounds else set()
    data, matched = plan.index.tasks.data_files, plan.index.tasks.deletes
    stays = np.array([path not in replaced for path in data.paths()], np.bool_)
    needed: set[FileName] = set()
    released: set[FileName] = set()
    for index, files in [*matched.position_files.items(), *((i, (v,)) for i, v in matched.vectors.items())]:
        (needed if stays[index] else released).update(name_of(file) for file in files)
    oldest: dict[Any, int] = {}

    def oldest_in(scope: Any) -> int:
        if scope not in oldest:
            files = data.indices(scope)
            oldest[scope] = int(data.sequence_numbers[files[stays[files]]].min(initial=np.iinfo(np.int64).max))
        return oldest[scope]

    found = set()
    for file in deletes:
        if file.data_sequence_number > sequence_number:
            continue
        scope = file.spec_id, file.partition
        if file.content is DeleteContent.EQUALITY:
            is_global = plan.context.specs[file.spec_id].is_unpartitioned
            if name_of(file) in outside or oldest_in(None if is_global else scope) >= file.data_sequence_number:
                found.add(name_of(file))
        elif oldest_in(scope) > file.data_sequence_number or name_of(file) in released - needed:
            found.add(name_of(file))
    return frozenset(found)


def is_intact(paths: Collection[str], read: State, now: State, *, moves: bool) -> bool:
    """Whether data files that were rewritten from one snapshot may be replaced in a later one.

    They must be live, and no position delete may have come for them. New equality deletes apply to the new files as well,
    because these are not newer than the snapshot that was read; but if the files move to another partition spec, not those
    of single partitions, and never those by columns that were dropped before, which the new files lack.
    """
    columns = frozenset(read.plan.context.projection.field_ids)
    before, after = read.tasks_of(paths), now.tasks_of(paths)
    for path in paths:
        if path not in after:
            return False
        one, other = before[path].data_file, after[path].data_file
        if one.data_sequence_number != other.data_sequence_number or one.spec_id != other.spec_id:
            return False
        known = {name_of(file) for file in position_deletes(before[path])}
        if any(name_of(file) not in known for file in position_deletes(after[path])):
            return False
        newer = (
            f
            for g in after[path].equality_deletes
            for f in g.files
            if f.data_sequence_number > read.snapshot.sequence_number
        )
        if any(not columns.issuperset(file.equality_ids) for file in newer):
            return False
    return not moves or not any(
        file.content is DeleteContent.EQUALITY
        and file.data_sequence_number > read.snapshot.sequence_number
        and not now.plan.context.specs[file.spec_id].is_unpartitioned
        for file in now.deletes
    )


def _max_dead_rows(task: FileScanTask) -> int:
    keys = sum(file.record_count for group in task.equality_deletes for file in group.files)
    return min(task.data_file.record_count, keys + sum(file.record_count for file in position_deletes(task)))


@dataclass(frozen=True, slots=True)
class _Group:
    """Files that were rewritten, and what became of them; `moves` tells whether they had another partition spec."""

    files: Sequence[FileDebt]
    written: tuple[ContentFile, ...]
    dead_rows: int
    moves: bool

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(f.task.data_file.path for f in self.files)


@dataclass(slots=True)
class _Run:
    """One compaction of a table."""

    table: "CatalogTable"
    settings: CompactSettings
    report: CompactReport
    progress: Progress
    began: float
    done_bytes: int = 0
    total_bytes: int = 0
    lost: set[str] = field(default_factory=set)
    drops: Drops | None = None
    spark: SparkRewrites | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> ScanOptions:
        # Rows that a rewrite leaves out are gone for good: the deletes decide, not an index of what they once did.
        return ScanOptions.of(memory_limit_bytes=self.settings.memory_limit_bytes // 2, record_filters=False)

    def round(self, only: Collection[str] | None) -> frozenset[str]:
        """Rewrite what pays, of all files or of some; return those that another writer has changed meanwhile."""
        refresh(self.table)
        opened = open_current(self.table)
        state = State.of(opened.scan().with_options(self.options))
        if state is not None and self._converts(opened, state):
            opened = open_current(self.table)
            state = State.of(opened.scan().with_options(self.options))
        if state is None:
            return frozenset()
        check_listed_once(self.report.table, state.plan)
        delta = RowDelta(self.table)
        check_keys_stored(self.table, delta.schema, state.plan.tasks)
        columns = pa.Table.from_batches([], schema=parquet_schema(delta.schema))
        check_order(columns, self.settings.order.columns, delta.schema)
        groups = self._groups(opened, state, delta.default_spec, only)
        self.lost = set()
        if self.settings.is_dry:
            self._report_dry(state, groups)
            return frozenset()
        self.total_bytes = self.done_bytes + sum(f.size for files in groups for f in files)
        ready: list[_Group] = []
        rewritten = self._rewritten(groups, self._how(state, delta)) if groups else iter(())
        operation: Operation | None = "replace" if self.drops is None else None
        latest = self.began + self.settings.max_seconds
        with Replacement(self.table, operation, forgets=self.drops is not None) as replacement:
            while time.monotonic() <= latest and (made := next(rewritten, None)) is not None:
                ready += made
                replacement.written += [file for group in made for file in group.written]
                if sum(group.size for group in ready) >= COMMIT_BYTES and self.drops is None:
                    self._commit(replacement, ready, state)
                    ready = []
            if ready or only is None:
                self._commit(replacement, ready, state)
        return frozenset(self.lost)

    def _converts(self, opened: Table, state: State) -> bool:
        """Convert equality deletes to positions if nobody asked for a rewrite and scans lose noticeably by them; whether that was done."""
        settings = self.settings
        if not settings.is_automatic or settings.is_dry:
            return False
        debts = debts_of(state.plan, Costs.at(opened.location), lambda tasks: [0] * len(tasks))
        if not pays_conversion(debts):
            return False
        done = convert(self.table, self.options)
        self.report.commits += done.snapshot_id is not None
        self.report.deletes_converted += done.removed_files
        return done.snapshot_id is not None

    def _groups(
        self, opened: Table, state: State, spec: PartitionSpec, only: Collection[str] | None
    ) -> list[list[FileDebt]]:
        settings, costs = self.settings, Costs.at(opened.location)
        plan = state.plan
        if self.drops is not None:
            live = state.tasks_of(only or ()).values()
            return choose_groups([FileDebt(task, 0, 0.0) for task in live], spec, costs, settings)
        if settings.is_automatic:
            # Resolving deletes reads keys; first see whether it could matter if every key removed a row.
            most = debts_of(plan, costs, lambda tasks: [_max_dead_rows(t) for t in tasks])
            if not self._is_indebted(most, costs):
                return []
        debts = debts_of(plan, costs, lambda tasks: self._dead_rows(tasks, plan.context))
        is_indebted = self._is_indebted(debts, costs)
        if settings.is_automatic and not is_indebted:
            return []
        if only is not None:
            debts = [debt for debt in debts if debt.task.data_file.path in only]
        if settings.where is not None:
            matching = opened.scan().with_options(self.options).where(settings.where).plan()
            paths = {task.data_file.path for task in matching.tasks}
            debts = [debt for debt in debts if debt.task.data_file.path in paths]
        groups = choose_groups(debts, spec, costs, settings)
        target = settings.target_file_bytes
        groups.sort(key=lambda files: -costs.saved_seconds(files, target) / max(sum(f.size for f in files), 1))
        return groups

    def _dead_rows(self, tasks: Sequence[FileScanTask], context: ScanContext) -> Sequence[int]:
        spark = self._on_spark(sum(task.data_file.file_size_bytes for task in tasks)) if tasks else None
        return count_dead_rows(tasks, context) if spark is None else spark.count_dead_rows(tasks, context)

    def _is_indebted(self, debts: Sequence[FileDebt], costs: Costs) -> bool:
        """Whether scans lose a noticeable part of their time."""
        target = self.settings.target_file_bytes
        scan, lost = costs.scan_seconds(debts, target), costs.saved_seconds(debts, target)
        if not self.report.scan_seconds:
            self.report.scan_seconds, self.report.debt_seconds = scan, max(lost, 0.0)
        return pays_unasked(lost, scan)

    def _report_dry(self, state: State, groups: Sequence[Sequence[FileDebt]]) -> None:
        report, target = self.report, self.settings.target_file_bytes
        for files in groups:
            live = sum(f.live_bytes for f in files)
            report.files_before += len(files)
            report.bytes_before += sum(f.size for f in files)
            report.files_after += ceil(live / target)
            report.bytes_after += round(live)
            report.dead_rows_removed += sum(f.dead_rows for f in files)
            report.rows += sum(f.task.data_file.record_count - f.dead_rows for f in files)
        replaced = frozenset(f.task.data_file.path for files in groups for f in files)
        report.delete_files_dropped = len(self._needless(state, replaced, state.snapshot.sequence_number))

    def _needless(self, state: State, replaced: Collection[str], sequence_number: int) -> frozenset[FileName]:
        properties = self.table.metadata.properties
        is_ours = KEY in properties and ADOPTED not in properties
        return needless_deletes(state.plan, state.deletes, replaced, sequence_number, trust_bounds=is_ours)

    def _how(self, state: State, delta: RowDelta) -> Rewrite:
        """How groups of files are rewritten."""
        settings, schema = self.settings, delta.schema
        layout = FileLayout(
            target_file_bytes=settings.target_file_bytes,
            row_group_bytes=min(
                DEFAULT_ROW_GROUP_BYTES, settings.memory_limit_bytes // SORT_SHARE, settings.target_file_bytes
            ),
            compression=settings.compression,
            bloom_filters=tuple(name for name in settings.bloom_columns if name in schema.names),
            sample_dictionaries=True,
        )
        context, target = state.plan.context, delta.target
        if self.table.format_version > 2:  # rows keep their ids, and who changed them last
            context = replace(context, projection=context.projection.with_fields(*ROW_LINEAGE))
            target = replace(target, schema=target.schema.with_fields(*ROW_LINEAGE))
        return Rewrite(
            table=self.report.table,
            context=context,
            target=target,
            spec=delta.default_spec,
            layout=layout,
            key_ids=tuple(schema.find(name).field_id for name in settings.key if name in schema.names),
            order=settings.order,
            sort_bytes=settings.memory_limit_bytes // SORT_SHARE,
        )

    def _on_spark(self, num_bytes: int) -> SparkRewrites | None:
        """The tasks of Spark that work on so many bytes of data files; None for this process."""
        settings = self.settings
        if self.drops is not None or not settings.takes_spark(num_bytes):
            return None
        if self.spark is None:
            self.spark = SparkRewrites.of(settings.spark)
        return self.spark

    def _rewritten(self, groups: Sequence[Sequence[FileDebt]], how: Rewrite) -> Iterator[list[_Group]]:
        """Write the live rows of groups to new files, which are not committed yet: one group at a time, or a job's."""
        spark = self._on_spark(sum(f.size for files in groups for f in files))
        if spark is None:
            for files in groups:
                yield [self._group(files, how([f.task for f in files], self._read, self.drops), how.spec)]
            return
        self.report.engine = "spark"
        most = GROUPS_PER_SLOT * spark.slots
        for chosen in (groups[begin : begin + most] for begin in range(0, len(groups), most)):
            made = spark.rewrite([[f.task for f in files] for files in chosen], how)
            self._done(sum(f.size for files in chosen for f in files))
            yield [self._group(files, one, how.spec) for files, one in zip(chosen, made, strict=True)]

    @staticmethod
    def _group(files: Sequence[FileDebt], made: Rewritten, spec: PartitionSpec) -> _Group:
        moves = any(f.task.data_file.spec_id != spec.spec_id for f in files)
        return _Group(files, made.files, made.dead_rows, moves)

    def _read(self, split: Split, metrics: ScanMetrics) -> Iterator[pa.RecordBatch]:
        yield from read_split(split, metrics)
        self._done(split.tasks[0].data_file.file_size_bytes)

    def _done(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        self.progress(self.done_bytes, self.total_bytes, self.report.table)

    def _commit(self, replacement: Replacement, groups: Sequence[_Group], read: State) -> None:
        """Replace the old files of these groups by the new ones, unless another writer has changed them."""
        intact: list[_Group] = []
        dropped: frozenset[FileName] = frozenset()

        def choose(_: RowDelta) -> Swap | None:
            nonlocal intact, dropped
            intact, dropped = [], frozenset()
            now = State.of(open_current(self.table).scan().with_options(self.options))
            known = read.snapshot.snapshot_id in {s.snapshot_id for s in ancestors(self.table)}
            if now is None or not known:  # rolled back, or the snapshots in between have expired
                return None
            if now.format_version != read.format_version:  # the new files lack the ids that rows may have got meanwhile
                return None
            intact = [g for g in groups if is_intact(g.paths, read, now, moves=g.moves)]
            replaced = frozenset(path for group in intact for path in group.paths)
            dropped = self._needless(now, replaced, read.snapshot.sequence_number)
            if not replaced and not dropped:
                return None
            removed = frozenset((path, None) for path in replaced) | dropped
            number = read.snapshot.sequence_number  # rule 30
            added = [replace(file, data_sequence_number=number) for group in intact for file in group.written]
            return Swap(added, removed, self.properties)

        committed = replacement.commit(choose)
        report = self.report
        report.commits += committed is not None
        report.delete_files_dropped += len(dropped)
        for group in intact:
            report.files_before += len(group.files)
            report.bytes_before += group.size
            report.files_after += len(group.written)
            report.bytes_after += sum(f.file_size_bytes for f in group.written)
            report.rows += sum(f.record_count for f in group.written)
            report.dead_rows_removed += group.dead_rows
        kept = {id(group) for group in intact}
        self.lost.update(path for group in groups if id(group) not in kept for path in group.paths)
