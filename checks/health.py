"""The health of a table: age, volume, schema compared with its log, time lost by scans, share of events in quarantine."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

import scan_core
from checks.comparison import CheckResult
from checks.subject import DELETED_FLAG, Subject
from pipelines.config.checks import DEFAULT_MAX_QUARANTINE_SHARE
from pipelines.config.project import Config
from pipelines.config.sources import PostgresSource
from pipelines.errors import PipelineError
from pipelines.iceberg.catalog import find_table, open_catalog
from pipelines.maintain.debt import Debt, debt_of
from scan_core import StructType, TableMetadata

_DAY_MICROSECONDS = 86_400_000_000
MIN_DAYS = 3
"""Days before the last one: the median of fewer says nothing."""


def freshness(metadata: TableMetadata, max_age_seconds: float, now: datetime | None = None) -> CheckResult:
    """The table's current snapshot is at most `max_age_seconds` old; a table without snapshots is not fresh."""
    current = metadata.current_snapshot
    if current is None:
        return CheckResult("freshness", passed=False, details=["the table has no snapshot"])
    written = datetime.fromtimestamp(current.timestamp_ms / 1000, UTC)
    age = (now or datetime.now(UTC)) - written
    max_age = timedelta(seconds=max_age_seconds)
    late = age > max_age
    details = []
    if late:
        stated = f"snapshot {current.snapshot_id} was written {written.isoformat(timespec='seconds')}"
        details.append(f"{stated}, more than {max_age} ago: nevermore ingest adds what is new")
    return CheckResult("freshness", not late, {"age in seconds": int(age.total_seconds())}, details=details)


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
    if debt.growth.per_day is not None:
        compared["milliseconds lost more per day"] = round(1000 * debt.growth.per_day)
    if debt.growth.days_left is not None:
        compared["days until max_debt"] = round(debt.growth.days_left)
    details = list(debt.lines) if debt.is_too_much else []
    return CheckResult("scans_are_fast", not debt.is_too_much, compared, details=details)


def slot_holds_little_log(config: Config, table: str) -> CheckResult:
    """The server of a mirror's source keeps little log for its slot; a server that cannot be asked does not pass."""
    from pipelines.sources.postgres.server import slot_of

    name, source = "slot_holds_little_log", config.tables[table].source
    if not isinstance(source, PostgresSource):
        return CheckResult(name, passed=True, details=[f"{table} is not read from a replication slot"])
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
    counts: dict[int, int] = {}
    scan = change_log.scan().select("source_ts").where(f"op <> 'r' and source_ts >= timestamp '{begin}'")
    for batch in scan.where(f"source_ts < timestamp '{end}'").to_batches():
        numbers = np.floor_divide(batch.column(0).cast(pa.timestamp("us", "UTC")).cast(pa.int64()), _DAY_MICROSECONDS)
        for day, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            counts[int(day)] = counts.get(int(day), 0) + int(count)
    first = min(counts, default=today)
    before = [counts.get(day, 0) for day in range(max(first + 1, today - 1 - days), today - 1)]
    last = counts.get(today - 1, 0)
    compared = {"changes on the last day": last, "days before": len(before)}
    if len(before) < MIN_DAYS:
        return CheckResult(name, passed=True, compared=compared, details=["not compared: too few days"])
    usual = float(np.median(before))
    compared["usual changes per day"] = round(usual)
    day = datetime.fromtimestamp((today - 1) * 86_400, UTC).date()
    details = []
    if last > usual * factor or last < usual / factor:
        details.append(f"{day} has {last:,} changes; the {len(before)} days before have {usual:,.0f} (median)")
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
    quarantine: scan_core.Table | None, change_log: scan_core.Table, max_share: float = DEFAULT_MAX_QUARANTINE_SHARE
) -> CheckResult:
    """At most `max_share` of all events are in quarantine; None stands for a quarantine that does not exist."""
    rejected = quarantine.scan().count() if quarantine is not None else 0
    applied = change_log.scan().count()
    share = rejected / (rejected + applied) if rejected else 0.0
    details = [f"{share:.2%} of the events are in quarantine, more than {max_share:.2%}"] if share > max_share else []
    return CheckResult(
        "quarantine_is_small",
        not details,
        {"events in quarantine": rejected, "changes in log": applied},
        details=details,
    )
