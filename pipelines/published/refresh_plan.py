"""What a run of a published table has to make, as far as snapshots and the SQL tell: nothing, all, or what changes reach.

No Spark here. Which partitions the changed rows are part of is asked of Spark later, by the queries of a plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from pipelines.config import PublishedConfig
from pipelines.errors import ConfigError
from pipelines.published.query import PublishedQuery
from pipelines.published.slice_queries import Reach
from pipelines.published.state import Base, PublishedState
from scan_core.changes.file_changes import FileChanges, file_changes
from scan_core.changes.request import Changes
from scan_core.errors import ScanError
from scan_core.scan import Scan


@dataclass(frozen=True, slots=True)
class MakeNothing:
    """The table reflects its mirrors."""

    reason: str


@dataclass(frozen=True, slots=True)
class MakeAll:
    """Every row is made anew."""

    reason: str


@dataclass(frozen=True, slots=True)
class MakeReached:
    """Partitions that changes can have reached are made anew.

    Attributes:
        reaches: of tables that changed, called as in `PublishedQuery.view_names`; all have values.
        changes: rows that came and went, by table of the config.
        keys: partitions to make in any case, with the reason.
    """

    reaches: tuple[Reach, ...]
    changes: Mapping[str, Changes]
    keys: Mapping[str, str]


RefreshPlan = MakeNothing | MakeAll | MakeReached


def plan_refresh(
    entry: PublishedConfig,
    query: PublishedQuery,
    scans: Mapping[str, Scan],
    base: Base,
    wanted: PublishedState,
    *,
    is_full: bool = False,
) -> RefreshPlan:
    """What to make so that the table reflects `wanted`.

    Args:
        entry: of the config.
        query: its SQL.
        scans: of the mirrors, with the columns that the query needs.
        base: what the table holds.
        wanted: what it is to hold.
        is_full: all was asked for.
    """
    if is_full:
        return MakeAll("all was asked for")
    state = base.state
    if state is None:
        return MakeAll(base.why_unknown)
    if state.query != wanted.query:
        return MakeAll("the SQL, its parameters or its settings changed")
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    if (reason := query.why_unrepeatable(schemas)) is not None:
        return MakeAll(reason)
    changed = [table for table in query.tables if state.sources.get(table) != wanted.sources[table]]
    if not changed and not base.made_since and state.until == wanted.until:
        return MakeNothing("no mirror changed")
    if not entry.incremental or entry.partitioning is None:
        return MakeAll(f"changed: {', '.join(changed)}" if changed else "partitions were made alone since")
    return _reached(entry, query, scans, base=base, wanted=wanted, changed=changed)


def why_never_incremental(entry: PublishedConfig, query: PublishedQuery, scans: Mapping[str, Scan]) -> str | None:
    """Why no change of any mirror would ever be traced to partitions; None if some would."""
    if entry.partitioning is None:
        return "the table has no partition"
    reaches = query.reaches({table: scan.table.schema for table, scan in scans.items()}, entry.partitioning)
    known = {r.table for r in reaches} - {r.table for r in reaches if r.values is None}
    return None if known else next((r.reason for r in reaches if r.values is None), "the SQL reads no table")


def _reached(
    entry: PublishedConfig,
    query: PublishedQuery,
    scans: Mapping[str, Scan],
    *,
    base: Base,
    wanted: PublishedState,
    changed: list[str],
) -> RefreshPlan:
    state, partition = base.state, entry.partitioning
    if state is None or partition is None:
        raise ConfigError(f"published {query.name}: nothing to start from")
    found: list[Reach] = []
    changes: dict[str, Changes] = {}
    schemas = {table: scan.table.schema for table, scan in scans.items()}
    reaches = query.reaches(schemas, partition)
    for table in changed:
        before, after = state.sources.get(table), wanted.sources[table]
        if before is None or before.uuid != after.uuid:
            return MakeAll(f"{table} is another table than before")
        if before.columns != after.columns:
            return MakeAll(f"columns of {table} that the SQL reads have changed")
        try:
            between = _changes(scans[table], before.snapshot_id)
            differing = _differing(between)
        except ScanError as error:
            return MakeAll(f"what changed in {table} cannot be found any more: {error}")
        if not (differing.may_insert or differing.may_delete):
            continue
        of_table = [reach for reach in reaches if reach.table == query.view_names[table]]
        if (unknown := next((r for r in of_table if r.values is None), None)) is not None:
            return MakeAll(f"{table} changed, and its rows cannot be traced to partitions: {unknown.reason}")
        found += of_table
        changes[table] = between
    keys = dict.fromkeys(sorted(base.made_since), "made alone since the last run")
    return MakeReached(tuple(found), changes, keys)


def _changes(scan: Scan, since: int | None) -> Changes:
    """Rows that came or went in the columns that the query needs; a row that changed in others only did neither."""
    found = scan.changes(since)
    return replace(found, schema=found.context.projection)


def _differing(changes: Changes) -> FileChanges:
    """The files in which the snapshots differ."""
    if changes.to_snapshot is None:
        return FileChanges()
    return file_changes(changes.metadata, changes.from_snapshot, changes.to_snapshot, changes.context)


def told(plan: RefreshPlan) -> str:
    """The plan in one sentence."""
    match plan:
        case MakeNothing(reason):
            return f"nothing to make: {reason}"
        case MakeAll(reason):
            return f"all partitions: {reason}"
        case MakeReached(changes=changes):
            return f"partitions that changes of {', '.join(changes)} reach" if changes else "no rows changed"
        case _:
            assert_never(plan)
