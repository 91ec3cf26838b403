"""Debt of mirrors: what scans lose by small files and deletes, and what maintenance would do about it.

Estimated as compaction does, which decides by it. Key columns are read of files to which deletes may apply.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.tables import DEFAULT_MAX_DEBT
from nevermore.pipelines.iceberg.catalog import expanded, find_table
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.iceberg.replacement import State
from nevermore.pipelines.maintain.compact import (
    MIN_NOTICED_SECONDS,
    SMALL_SHARE,
    CompactSettings,
    Costs,
    FileDebt,
    choose_groups,
    debts_of,
    needless_deletes,
    pays_conversion,
    pays_unasked,
)
from nevermore.pipelines.maintain.rewrite import count_dead_rows
from nevermore.pipelines.wording import counted
from nevermore.scan_core import ScanOptions, Table
from nevermore.scan_core.io import size_text
from nevermore.scan_core.parts import partition_text

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable


MAX_PARTITIONS = 5
"""Partitions that are listed: those of which scans lose most."""


@dataclass(frozen=True, slots=True)
class PartitionDebt:
    """What scans of one partition lose.

    Attributes:
        partition: its values, `day = 2026-01-01`.
        data_files: data files.
        dead_rows: rows that deletes removed and that scans still read.
        lost_seconds: estimated seconds of one core that a scan of the partition loses.
    """

    partition: str
    data_files: int
    dead_rows: int
    lost_seconds: float

    @classmethod
    def of_all(
        cls, debts: Sequence[FileDebt], table: Table, costs: Costs, target_bytes: int
    ) -> "tuple[PartitionDebt, ...]":
        """The partitions of which scans lose most; none for a table without partitions."""
        by_partition: dict[tuple[int, tuple[Any, ...]], list[FileDebt]] = defaultdict(list)
        for debt in debts:
            file = debt.task.data_file
            if file.partition:
                by_partition[file.spec_id, file.partition].append(debt)
        found = []
        for (spec_id, values), files in by_partition.items():
            name = partition_text(table.metadata.specs[spec_id], values, table.metadata.field_paths())
            lost = max(costs.saved_seconds(files, target_bytes), 0.0)
            found.append(cls(name, len(files), sum(f.dead_rows for f in files), lost))
        return tuple(sorted(found, key=lambda one: -one.lost_seconds)[:MAX_PARTITIONS])


@dataclass(frozen=True, slots=True)
class Debt:
    """What scans of a table lose, by its current snapshot.

    Attributes:
        table: name of the table.
        snapshot_id: the snapshot; None for an empty table.
        snapshots: snapshots in its metadata.
        manifests: manifests of the current one; every plan reads them.
        data_files: data files.
        small_files: data files that are so small that compaction merges them.
        rows: rows in data files, including dead ones.
        dead_rows: rows that deletes removed and that scans still read.
        delete_files: delete files.
        delete_rows: keys and positions in them.
        lost_seconds: estimated seconds of one core that a scan of all columns loses.
        scan_seconds: estimated seconds of the same scan without debt.
        max_debt: part of the time of a scan above which the check warns.
        is_due: whether compaction begins on its own.
        compact_files: data files that `nevermore compact` would rewrite.
        compact_bytes: their stored bytes.
        dropped_deletes: delete files that leave with it.
        saved_seconds: estimated seconds that each scan saves by it.
        partitions: the partitions of which scans lose most.
    """

    table: str
    snapshot_id: int | None = None
    snapshots: int = 0
    manifests: int = 0
    data_files: int = 0
    small_files: int = 0
    rows: int = 0
    dead_rows: int = 0
    delete_files: int = 0
    delete_rows: int = 0
    lost_seconds: float = 0.0
    scan_seconds: float = 0.0
    max_debt: float = DEFAULT_MAX_DEBT
    is_due: bool = False
    compact_files: int = 0
    compact_bytes: int = 0
    dropped_deletes: int = 0
    saved_seconds: float = 0.0
    partitions: tuple[PartitionDebt, ...] = ()

    @property
    def share(self) -> float:
        """Part of the time of a scan that is lost."""
        whole = self.lost_seconds + self.scan_seconds
        return self.lost_seconds / whole if whole else 0.0

    @property
    def is_too_much(self) -> bool:
        """Whether more than `max_debt` is lost, and enough for anyone to notice."""
        return self.lost_seconds > MIN_NOTICED_SECONDS and self.share > self.max_debt

    @property
    def lines(self) -> Iterator[str]:
        """The debt as text."""
        whole = self.lost_seconds + self.scan_seconds
        warning = f", more than max_debt ({self.max_debt:.0%})" if self.is_too_much else ""
        if self.lost_seconds > MIN_NOTICED_SECONDS:
            yield f"{self.table}: scans lose about {self.lost_seconds:.3g} s of {whole:.3g} s ({self.share:.0%}){warning}"
        else:  # a share of a scan of some milliseconds says nothing
            yield f"{self.table}: scans lose about {self.lost_seconds:.3g} s, too little to notice"
        yield (
            f"  data files  {self.data_files:,}, {self.small_files:,} of them small; "
            f"{counted(self.rows, 'row')}, {self.dead_rows:,} of them dead"
        )
        yield f"  deletes     {counted(self.delete_rows, 'row')} in {counted(self.delete_files, 'file')}"
        yield f"  metadata    {counted(self.snapshots, 'snapshot')}, {counted(self.manifests, 'manifest')}"
        for number, one in enumerate(self.partitions):
            files = counted(one.data_files, "data file")
            line = f"{one.partition}: {one.lost_seconds:.3g} s lost, {files}, {counted(one.dead_rows, 'dead row')}"
            yield f"  {'' if number else 'partitions':<12}{line}"
        yield f"  compact     {self._compaction}"

    @property
    def _compaction(self) -> str:
        if not self.compact_files and not self.dropped_deletes:
            return "nothing to compact"
        when = "; starts automatically after the next commit of `nevermore run`" if self.is_due else ""
        return (
            f"would rewrite {counted(self.compact_files, 'file')} of {size_text(self.compact_bytes)}, drop "
            f"{counted(self.dropped_deletes, 'delete file')} and save about {self.saved_seconds:.3g} s of each scan{when}"
        )

    def as_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self) | {"share": self.share, "is_too_much": self.is_too_much}


def debts_of_all(catalog: "Catalog", config: Config, names: Collection[str] | None = None) -> Iterator[Debt]:
    """The debt of the mirrors of a config that exist.

    Raises:
        ConfigError: an unknown name.
        ScanError: metadata, or keys of a file, cannot be read.
    """
    config = expanded(config, catalog)
    for name in names or ():
        config.table(name)
    for name in config.tables:
        table = None if names and name not in names else find_table(catalog, name)
        if table is not None:
            yield debt_of(table, config)


def debt_of(table: "CatalogTable", config: Config) -> Debt:
    """The debt of one mirror.

    Raises:
        ScanError: metadata, or keys of a file, cannot be read.
    """
    name, opened = ".".join(table.name()), open_current(table)
    entry = config.table(name).maintenance
    settings, costs = CompactSettings.of(table, config), Costs.at(opened.location)
    memory = settings.memory_limit_bytes // 2
    options = ScanOptions.of(memory_limit_bytes=memory)
    snapshots = table.metadata.snapshots  # `opened` has the current one alone
    state = State.of(opened.scan().with_options(options))
    if state is None:
        return Debt(name, snapshots=len(snapshots), max_debt=entry.max_debt)
    plan, target = state.plan, settings.target_file_bytes
    debts = debts_of(plan, costs, lambda tasks: count_dead_rows(tasks, plan.context))
    scan, lost = costs.scan_seconds(debts, target), max(costs.saved_seconds(debts, target), 0.0)
    spec = opened.metadata.specs[opened.metadata.default_spec_id]
    groups = choose_groups(debts, spec, costs, settings)
    chosen = [debt for group in groups for debt in group]
    paths = frozenset(debt.task.data_file.path for debt in chosen)
    dropped = needless_deletes(plan, state.deletes, paths, state.snapshot.sequence_number)
    return Debt(
        table=name,
        snapshot_id=state.snapshot.snapshot_id,
        snapshots=len(snapshots),
        manifests=state.num_manifests,
        data_files=len(debts),
        small_files=sum(debt.size < SMALL_SHARE * target for debt in debts),
        rows=sum(debt.task.data_file.record_count for debt in debts),
        dead_rows=sum(min(debt.dead_rows, debt.task.data_file.record_count) for debt in debts),
        delete_files=len(state.deletes),
        delete_rows=sum(file.record_count for file in state.deletes),
        lost_seconds=lost,
        scan_seconds=scan,
        max_debt=entry.max_debt,
        is_due=entry.compact == "auto" and (pays_unasked(lost, scan) or pays_conversion(debts)),
        compact_files=len(chosen),
        compact_bytes=sum(debt.size for debt in chosen),
        dropped_deletes=len(dropped),
        saved_seconds=sum(costs.saved_seconds(group, target) for group in groups),
        partitions=PartitionDebt.of_all(debts, opened, costs, target),
    )
