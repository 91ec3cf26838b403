"""Quarantine tables: events that could not be applied, with the reason, the position and the raw bytes.

They are applied again in `ingest/quarantine_replay.py`.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.config.project import change_log_name, quarantine_name
from nevermore.pipelines.decode.batches import KEY_FIELDS, REJECTED_SCHEMA, TIMESTAMP, Rejected, key_texts
from nevermore.pipelines.errors import QuarantineLimitError
from nevermore.pipelines.iceberg.catalog import create_table, find_table
from nevermore.pipelines.iceberg.commit import RowDelta, retry_conflicts
from nevermore.pipelines.iceberg.loaded_table import open_current, refresh
from nevermore.pipelines.iceberg.row_shape import without_extensions
from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.scan_core import col

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Catalog
    from nevermore.pipelines.iceberg.catalog import Table as CatalogTable

QUARANTINED_AT = "quarantined_at"
_IDENTITY = ["source_file", "source_offset", "raw"]
QUARANTINE_SCHEMA = pa.schema([*REJECTED_SCHEMA, *KEY_FIELDS, pa.field(QUARANTINED_AT, TIMESTAMP)])
LOAD = "load of "
"""How the place of a row of a load begins. Each load numbers its rows anew."""


_SHOWN_VALUE = r"(?s)(: \w* ?)'.*'($| is no )"
FEW_CHANGES = 10
"""So many refused changes are no sign of a wrong config: a feed may start mid-table, and a database may hold values that cannot be decoded."""


def check_ratio(
    name: str, num_events: int, rejected: Rejected, limit: float, *, tolerated: int = 0, hint: str | None = None
) -> None:
    """Refuse a batch if too many of its events were rejected, in decoding or in applying.

    Args:
        name: of the mirror.
        num_events: number of events of the batch, including rejected ones.
        rejected: the rejected events.
        limit: maximum share of rejected events.
        tolerated: number of rejected events that is always accepted, unless `limit` is 0.
        hint: possible reason, for the message.

    Raises:
        QuarantineLimitError: there are more; nothing of the batch may be applied.
    """
    if rejected.num_rows <= max(limit * num_events, tolerated if limit else 0):
        return
    counted = _by_reason(rejected.table.column("reason"))
    shown = "; ".join(f"{count} x {reason}" for reason, count in list(counted.items())[:3])
    raise QuarantineLimitError(
        f"{name}: {rejected.num_rows} of {num_events} events were rejected, more than max_quarantine_ratio {limit:g} "
        f"allows, so none of them was applied: {shown}" + (f"; {hint}" if hint else "")
    )


def quarantine(catalog: "Catalog", name: str, rejected: Rejected) -> int:
    """Add events to the quarantine table `name` unless it contains them; returns how many were new."""
    if rejected.num_rows == 0:
        return 0
    table = find_table(catalog, name)
    if table is None:
        table = create_table(catalog, name, iceberg_fields(QUARANTINE_SCHEMA), partition_by=[("day", QUARANTINED_AT)])
    return retry_conflicts(lambda: _attempt(table, rejected.table))


def _attempt(table: "CatalogTable", events: pa.Table) -> int:
    refresh(table)
    fresh = _without_known(table, events)
    if fresh.num_rows == 0:
        return 0
    now = pa.array([datetime.now(UTC)] * fresh.num_rows, TIMESTAMP)
    with RowDelta(table) as delta:
        files = write_rows(fresh.append_column(QUARANTINED_AT, now), delta.target, delta.default_spec)
        delta.commit(files, {}, operation="append")
    return int(fresh.num_rows)


def _without_known(table: "CatalogTable", events: pa.Table) -> pa.Table:
    if table.metadata.current_snapshot_id is None:
        return events
    bounds = pc.min_max(events.column("source_offset")).as_py()
    scan = open_current(table).scan().select(*_IDENTITY)
    if bounds["min"] is not None:
        scan = scan.where(f"source_offset >= {bounds['min']} and source_offset <= {bounds['max']}")
    known = _comparable(scan.to_table().filter(~pc.starts_with(pc.field("source_file"), LOAD)))
    numbered = _comparable(events).append_column("row", pa.array(np.arange(events.num_rows)))
    left = numbered.join(known, keys=_IDENTITY, join_type="left anti")
    return events.take(left.column("row").sort())


def _comparable(events: pa.Table) -> pa.Table:
    """The columns that identify events, with NULL replaced, since NULL equals nothing."""
    raw = pc.fill_null(events.column("raw").cast(pa.binary()), b"")
    return events.select(_IDENTITY[:-1]).append_column("raw", raw)


def reasons(catalog: "Catalog", mirror: str) -> dict[str, int]:
    """Number of events in the quarantine of a mirror by reason, the most frequent first."""
    table = find_table(catalog, quarantine_name(mirror))
    if table is None:
        return {}
    held = open_current(table).scan().select("reason").to_table().column("reason")
    return _by_reason(held)


def _by_reason(reasons: pa.ChunkedArray) -> dict[str, int]:
    """Number of events by reason, the most frequent first; reasons that differ only in the value shown count as one."""
    kinds = pc.replace_substring_regex(reasons, _SHOWN_VALUE, r"\1...\2")
    counted = (
        pa.table({"kind": kinds, "reason": reasons})
        .group_by("kind")
        .aggregate([("reason", "count"), ("reason", "count_distinct"), ("reason", "min")])
    )
    found = {
        row["reason_min"] if row["reason_count_distinct"] == 1 else row["kind"]: row["reason_count"]
        for row in counted.to_pylist()
    }
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def stale_keys(catalog: "Catalog", mirror: str) -> list[str]:
    """Keys whose newest change is in the quarantine of a mirror, so that its rows have an older one, or none."""
    table, log = find_table(catalog, quarantine_name(mirror)), find_table(catalog, change_log_name(mirror))
    names, times = (f.name for f in KEY_FIELDS)
    if table is None or log is None or all(f.name != names for f in open_current(table).schema.fields):
        return []
    held = open_current(table).scan().select(names, times).to_table()
    held = held.filter(pc.field(names).is_valid()).group_by(names).aggregate([(times, "max")])
    if not held.num_rows:
        return []
    keys, newest = held.column(names).combine_chunks(), held.column(f"{times}_max")
    since = np.asarray(newest.cast(pa.int64()))
    later = open_current(log).scan().select("op", "key", times).where(col(times) > pc.min_max(newest)["min"].as_py())
    last = np.full(len(keys) + 1, -1)
    for batch in later.to_batches():
        rows = without_extensions(pa.Table.from_batches([batch]))
        texts = key_texts(rows.column("key").combine_chunks())
        found = pc.fill_null(pc.index_in(texts, keys), len(keys))
        when = np.asarray(rows.column(times).cast(pa.int64()))
        np.maximum.at(last, np.asarray(found), when)
        last = np.maximum(last, when[np.asarray(pc.equal(rows.column("op"), "t"))].max(initial=-1))
    return sorted(keys.filter(pa.array(last[:-1] <= since)).to_pylist())


def held_events(catalog: "Catalog", mirror: str, limit: int) -> list[dict[str, Any]]:
    """The first events in the quarantine of a mirror, by position."""
    table = find_table(catalog, quarantine_name(mirror))
    if table is None:
        return []
    held = open_current(table).scan().to_table()
    ordered = held.sort_by([("source_file", "ascending"), ("source_offset", "ascending")])
    return list(ordered.slice(0, limit).to_pylist())
