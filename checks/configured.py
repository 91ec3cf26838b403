"""The checks that a config adds to a table: expectations, and its health.

Health is its age, the volume of changes, its schema compared with its log, the share of events in quarantine, the log that a
replication slot holds, and the time that scans lose. Results of expectations are kept by snapshot; the checks of health are
computed again each time.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from nevermore import scan_core
from nevermore.checks.comparison import MAX_OFFENDING_KEYS
from nevermore.checks.expectations import (
    MUST,
    NAMES,
    SHOULD,
    RowsToCheck,
    Validation,
    expectations_of,
    validate,
)
from nevermore.checks.kept_results import KeptResults, ResultStore
from nevermore.checks.subject import DELETED_FLAG, Subject
from nevermore.pipelines.changes.quarantine import stale_keys
from nevermore.pipelines.config.checks import ChecksConfig, TableChecksConfig
from nevermore.pipelines.config.project import Config, quarantine_name
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.config.sources import PostgresSource
from nevermore.pipelines.config.tables import TableConfig
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.maintain.compact import MIN_NOTICED_SECONDS
from nevermore.pipelines.maintain.debt import Debt, debt_of
from nevermore.pipelines.publish.audit import CheckResult, StagedRows
from nevermore.pipelines.publish.query import published_entry
from nevermore.pipelines.wording import counted
from nevermore.scan_core import MissingPackageError, Scan, ScanError, StructType, Table, TableMetadata, open_table

DESCRIPTIONS: Mapping[str, str] = {
    MUST: "All rows meet the expectations of the config.",
    SHOULD: "All rows meet the expectations of the config that only warn.",
    "freshness": "The newest snapshot is at most `max_age` old.",
    "volume": "The last complete day has about as many changes as the days before it.",
    "schema_matches": "Columns and types of the mirror are those of its change log.",
    "no_key_is_stale": "No key's newest change is in quarantine.",
    "quarantine_is_small": "At most `max_share` of all events are in quarantine.",
    "scans_are_fast": "Scans lose at most `max_debt` of their time by small files and deletes.",
    "slot_holds_little_log": "The database keeps at most `max_held_bytes` of its log for the replication slot.",
}
"""Checks that a config can add, in the order of output."""
KIND = "expectations-"
_ROWS = "rows"
"""Entry of kept results: whether all expectations hold that are decided row by row."""
Severity = Literal["block", "warn"]

_DAY_MICROSECONDS = 86_400_000_000
MIN_DAYS = 3
"""Days before the last one: the median of fewer says nothing."""


def configured(settings: TableConfig | PublishedConfig) -> dict[str, Severity]:
    """The checks that a config adds to a table, and what a failure of each means; without those that are off."""
    checks = settings.checks
    found: dict[str, Literal["block", "warn", "off"]] = {}
    severities = {checks.schema_severity, *(e.severity for e in checks.expectations)}
    found |= {name: severity for severity, name in NAMES.items() if severity in severities}
    if checks.freshness is not None:
        found["freshness"] = checks.freshness.severity
    if isinstance(checks, ChecksConfig):
        if checks.volume is not None:
            found["volume"] = checks.volume.severity
        found |= {
            "no_key_is_stale": checks.no_key_is_stale,
            "quarantine_is_small": checks.quarantine_is_small.severity,
            "schema_matches": checks.schema_matches,
            "scans_are_fast": checks.scans_are_fast,
        }
    if isinstance(settings, TableConfig) and isinstance(settings.source, PostgresSource):
        found["slot_holds_little_log"] = "warn"  # the rows are right, whatever the server keeps
    return {name: severity for name in DESCRIPTIONS if (severity := found.get(name, "off")) != "off"}


def severity_of(settings: TableConfig | PublishedConfig, name: str) -> Severity:
    """What a failure of a check means; checks that no config adds always block."""
    return configured(settings).get(name, "block")


def mirror_results(
    config: Config, table: str, subject: Subject, names: Iterable[str], *, full: bool = False
) -> Iterator[CheckResult]:
    """The results of checks that the config adds to a mirror.

    Args:
        config: the project.
        table: a mirror of the project.
        subject: the mirror at the snapshot that is checked.
        names: the checks to run.
        full: check all rows against all expectations, and use no results that are kept.

    Raises:
        MissingPackageError: expectations are configured, but Great Expectations is not installed.
    """
    settings, wanted = config.tables[table], set(names)
    for name, severity in configured(settings).items():
        if name in wanted and name not in NAMES.values():
            yield replace(_health(config, table, subject, name), severity=severity)
    yield from _of_expectations(_Target(config, table, subject.opened, subject.key, settings.checks), wanted, full=full)


def published_results(
    config: Config, name: str, names: Iterable[str] | None = None, *, full: bool = False
) -> Iterator[CheckResult]:
    """The results of checks that the config adds to a published table, in its present state; all of them by default."""
    entry = published_entry(config, name)
    wanted = set(configured(entry) if names is None else names)
    found = find_table(open_catalog(config), name)
    if found is None:
        yield from (CheckResult(n, passed=True, details=[f"{name} does not exist yet"]) for n in sorted(wanted))
        return
    opened = open_table(found, options=config.scan_options)
    if "freshness" in wanted and entry.checks.freshness is not None:
        result = freshness(opened.metadata, entry.checks.freshness.max_age)
        yield replace(result, severity=severity_of(entry, "freshness"))
    yield from _of_expectations(_Target(config, name, opened, entry.key, entry.checks), wanted, full=full)


def staged_results(
    config: Config, staged: StagedRows, own: Callable[[Scan], Iterable[pa.RecordBatch]]
) -> list[CheckResult]:
    """The results of the expectations of a published table for rows that a run has staged.

    `own` gives the rows of a scan that the run has written: those that are checked row by row.
    """
    entry = published_entry(config, staged.name)
    if not entry.checks.has_expectations:
        return []
    opened = open_table(staged.staged.table, options=config.scan_options)
    target = _Target(config, staged.name, opened, entry.key, entry.checks, staged.staged.committed.snapshot_id)
    return [*_expected(target, _Staged(staged.staged.base_id, own), full=False).values()]


def kept_expectations(config: Config, name: str, opened: Table, key: tuple[str, ...]) -> KeptResults | None:
    """The newest kept results of the expectations of a mirror or published table; None if there are none.

    Args:
        config: the project.
        name: an entry of `tables` or `published`.
        opened: the table.
        key: columns that identify its rows.
    """
    entry = config.published[name] if name in config.published else config.tables[name]
    return _Target(config, name, opened, key, entry.checks).store().find()


@dataclass(frozen=True, slots=True)
class _Staged:
    """Rows that are not visible yet."""

    base_id: int | None
    own: Callable[[Scan], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Target:
    """A table with the expectations of its config, at one snapshot; None for the current one."""

    config: Config
    name: str
    opened: Table
    key: tuple[str, ...]
    checks: TableChecksConfig
    snapshot: int | None = None

    @property
    def snapshot_id(self) -> int:
        return self.snapshot or self.opened.metadata.current_snapshot_id or 0

    @property
    def scan(self) -> Scan:
        scan = self.opened.scan()
        return scan if self.snapshot is None else scan.as_of_snapshot(self.snapshot)

    def store(self) -> ResultStore:
        """The kept results of these expectations."""
        expectations = expectations_of(self.checks, self.scan.schema, self.key)
        shape = [self.key, [e.model_dump(mode="json") for e in expectations]]
        return ResultStore(self.config, self.name, self.opened, shape, KIND)

    def session(self) -> Any:
        from nevermore.pipelines.spark.session import project_session

        return project_session(self.config.spark)


def _of_expectations(target: _Target, wanted: set[str], *, full: bool) -> Iterator[CheckResult]:
    if wanted.isdisjoint(NAMES.values()):
        return
    try:
        found = _expected(target, None, full=full)
    except MissingPackageError as error:
        if not target.checks.is_schema_default:
            raise
        found = {SHOULD: CheckResult(SHOULD, passed=True, details=[f"not checked: {error}"], severity="warn")}
    yield from (result for name, result in found.items() if name in wanted)


def _expected(target: _Target, staged: _Staged | None, *, full: bool) -> dict[str, CheckResult]:
    store, snapshot_id = target.store(), target.snapshot_id
    kept = None if full else store.find(snapshot_id)
    if kept is not None:
        return {name: result for name, result in kept.results.items() if name != _ROWS}
    expectations = expectations_of(target.checks, target.scan.schema, target.key)
    limit = target.checks.frame_bytes
    green = None if full or staged is not None else store.last_green(snapshot_id, [_ROWS])
    since, snapshots = None, target.opened.metadata.snapshots
    if green is not None and snapshots[green.snapshot_id].schema_id == snapshots[snapshot_id].schema_id:
        since = green.snapshot_id
    changed: Callable[[Scan], Iterable[pa.RecordBatch]] | None = None
    how = ""
    if staged is not None:
        changed, how = staged.own, "of the new rows: "
    elif since is not None:
        changed, how = _rows_since(since), f"of the rows that changed since snapshot {since}: "

    def run(changed: Callable[[Scan], Iterable[pa.RecordBatch]] | None) -> Validation:
        return validate(RowsToCheck(target.name, target.scan, target.key, changed, target.session), expectations, limit)

    try:
        validation = run(changed)
    except ScanError:
        if since is None:
            raise
        validation, since, how = run(None), None, ""  # rows of the earlier snapshot are gone
    results = validation.results()
    rows = CheckResult(_ROWS, validation.rows_passed)
    # what is known of new rows is true of all rows only if it was of those before
    base = staged.base_id if staged else None
    if base is None or ((kept := store.find(base)) is not None and kept.is_green([_ROWS])):
        store.keep(KeptResults(snapshot_id, {**results, _ROWS: rows}, since, time.time(), validation.documents))
    if not how:
        return results
    return {n: replace(r, details=[how + text for text in r.details]) for n, r in results.items()}


def _rows_since(green_id: int) -> Callable[[Scan], Iterator[pa.RecordBatch]]:
    """The rows of a scan that came since a snapshot."""

    def came(scan: Scan) -> Iterator[pa.RecordBatch]:
        for batch in scan.changes(green_id).inserts.to_batches():
            yield pa.RecordBatch.from_arrays(
                [column.cast(f.type) for column, f in zip(batch.columns, scan.arrow_schema, strict=True)],
                schema=scan.arrow_schema,
            )

    return came


def _health(config: Config, table: str, subject: Subject, name: str) -> CheckResult:
    checks = config.tables[table].checks
    log = subject.change_log
    match name:
        case "freshness" if checks.freshness is not None:
            return freshness(subject.opened.metadata, checks.freshness.max_age)
        case "volume" if checks.volume is not None and log is not None:
            return volume(subject.open(log), checks.volume.days, checks.volume.factor)
        case "schema_matches" if log is not None:
            return schema_matches(subject)
        case "no_key_is_stale":
            keys = stale_keys(open_catalog(config), table)
            details = [f"{key}: its newest change is in quarantine" for key in keys[:MAX_OFFENDING_KEYS]]
            more = [f"nevermore quarantine show {table}"] if keys else ()
            return CheckResult(name, not keys, {"stale keys": len(keys)}, details=details, reproduce=more)
        case "quarantine_is_small" if log is not None:
            rejected = find_table(open_catalog(config), quarantine_name(table))
            opened = None if rejected is None else subject.open(str(rejected.metadata_location))
            return quarantine_is_small(opened, subject.open(log), checks.quarantine_is_small.max_share)
        case "scans_are_fast":
            return scans_are_fast(config, table)
        case "slot_holds_little_log":
            return slot_holds_little_log(config, table)
        case _:
            return CheckResult(name, passed=True, details=[f"{table} has no change log: nothing to compare it with"])


def freshness(metadata: TableMetadata, max_age_seconds: float, now: datetime | None = None) -> CheckResult:
    """The table's current snapshot is at most `max_age_seconds` old; a table without snapshots is not fresh."""
    current = metadata.current_snapshot
    if current is None:
        return CheckResult("freshness", passed=False, details=["the table has no snapshot"])
    written = datetime.fromtimestamp(current.timestamp_ms / 1000, UTC)
    age = (now or datetime.now(UTC)) - written
    max_age = timedelta(seconds=max_age_seconds)
    stated = f"snapshot {current.snapshot_id} was written {written.isoformat(timespec='seconds')}"
    details = [f"{stated}, more than {max_age} ago: nevermore ingest adds what is new"] if age > max_age else []
    return CheckResult("freshness", not details, {"age in seconds": int(age.total_seconds())}, details=details)


def scans_are_fast(config: Config, table: str) -> CheckResult:
    """Scans of a mirror lose at most the part of their time that the config allows by small files and deletes."""
    mirror = find_table(open_catalog(config), table)
    debt = Debt(table) if mirror is None else debt_of(mirror, config)
    compared = {
        "percent of scan time lost": round(100 * debt.share),
        "data files": debt.data_files,
        "small files": debt.small_files,
        "dead rows": debt.dead_rows,
        "delete files": debt.delete_files,
        "delete rows": debt.delete_rows,
        "manifests": debt.manifests,
        "snapshots": debt.snapshots,
        "milliseconds lost": round(1000 * debt.lost_seconds),
    }
    details = list(debt.lines) if debt.is_too_much else []
    if debt.share > debt.max_debt and not debt.is_too_much:
        details.append(f"less than {1000 * MIN_NOTICED_SECONDS:.0f} milliseconds of a scan are too few to matter")
    return CheckResult("scans_are_fast", not debt.is_too_much, compared, details=details)


def slot_holds_little_log(config: Config, table: str) -> CheckResult:
    """The server of a mirror's source keeps little log for its slot; a server that cannot be asked does not pass."""
    from nevermore.pipelines.sources.postgres.server import slot_of

    name, source = "slot_holds_little_log", config.tables[table].source
    assert isinstance(source, PostgresSource)  # noqa: S101 - no other source has this check
    try:
        slot = slot_of(source)
    except PipelineError as error:
        return CheckResult(name, passed=False, details=[str(error)])
    complaint = slot.complaint(source)
    compared = {"bytes of log held": slot.held_bytes, "bytes not confirmed": slot.lag_bytes}
    return CheckResult(name, complaint is None, compared, details=[] if complaint is None else [complaint])


def volume(change_log: scan_core.Table, days: int, factor: float, now: datetime | None = None) -> CheckResult:
    """The last complete day has about as many changes as the days before it, by the time of the source, in UTC.

    Rows of an initial snapshot do not count. A day counts if it is after the first day of the log, whose beginning is unknown.

    Args:
        change_log: the log.
        days: earlier days whose median is the usual volume.
        factor: how many times more or less than usual there may be.
        now: end of the period; by default the present time.
    """
    name, today = "volume", int((now or datetime.now(UTC)).timestamp() // 86_400)
    metadata = change_log.metadata
    if metadata.current_snapshot is None or "source_ts" not in [f.name for f in change_log.schema.fields]:
        return CheckResult(name, passed=True, details=["not compared: the change log has no times"])
    begin = datetime.fromtimestamp((today - days - 2) * 86_400, UTC).isoformat()
    end = datetime.fromtimestamp(today * 86_400, UTC).isoformat()
    counts: Counter[int] = Counter()
    scan = change_log.scan().select("source_ts").where(f"op <> 'r' and source_ts >= timestamp '{begin}'")
    for batch in scan.where(f"source_ts < timestamp '{end}'").to_batches():
        moments = batch.column(0).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        found = np.unique(np.floor_divide(moments, _DAY_MICROSECONDS), return_counts=True)
        counts.update(dict(zip(*(part.tolist() for part in found), strict=True)))
    first = min(counts, default=today)
    before = [counts[day] for day in range(max(first + 1, today - 1 - days), today - 1)]
    last = counts[today - 1]
    compared = {"changes on the last day": last, "days before": len(before)}
    if len(before) < MIN_DAYS:
        return CheckResult(name, passed=True, compared=compared, details=["not compared: too few days"])
    usual = float(np.median(before))
    compared["usual changes per day"] = round(usual)
    day = datetime.fromtimestamp((today - 1) * 86_400, UTC).date()
    wrong = f"{day} has {counted(last, 'change')}; the {len(before)} days before have {usual:,.0f} (median)"
    details = [] if usual / factor <= last <= usual * factor else [wrong]
    return CheckResult(name, not details, compared, details=details)


def schema_matches(subject: Subject) -> CheckResult:
    """Every column of the log's rows is in the table, in the same type; columns of the key are in both."""
    if subject.change_log is None:
        raise ValueError(f"{subject.table} has no change log to compare with")
    log = subject.open(subject.change_log).schema
    after = next((f.type for f in log.fields if f.name == "after"), StructType(()))
    wanted = {f.name: str(f.type) for f in after.fields} if isinstance(after, StructType) else {}
    there = {f.name: str(f.type) for f in subject.opened.schema.fields if f.name != DELETED_FLAG}
    details = [f"column {n} is missing" for n in wanted if n not in there]
    details += [f"column {n} is {there[n]}, the log has {t}" for n, t in wanted.items() if there.get(n, t) != t]
    details += [f"key column {n} is missing" for n in subject.key if n not in there]
    return CheckResult(
        "schema_matches", not details, {"columns in log": len(wanted), "columns in table": len(there)}, details=details
    )


def quarantine_is_small(
    quarantine: scan_core.Table | None, change_log: scan_core.Table, max_share: float
) -> CheckResult:
    """At most `max_share` of all events are in quarantine; None stands for a quarantine that does not exist."""
    rejected = quarantine.scan().count() if quarantine is not None else 0
    applied = change_log.scan().count()
    share = rejected / max(rejected + applied, 1)
    details = [f"{share:.2%} of the events are in quarantine, more than {max_share:.2%}"] if share > max_share else []
    return CheckResult(
        "quarantine_is_small",
        not details,
        {"events in quarantine": rejected, "changes in log": applied},
        details=details,
    )
