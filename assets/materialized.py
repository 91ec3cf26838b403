"""What a materialization says of its table: counts of the run, state, columns with their lineage, and location."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.project import change_log_key, mirror_key
from pipelines.config.project import Config, change_log_name
from pipelines.iceberg.catalog import find_table, open_catalog
from pipelines.ingest.report import TableReport
from pipelines.publish.query import published_query
from pipelines.publish.refresh_report import PartitionWritten, PublishReport
from scan_core import NestedField, Schema, StructType, Table, open_table

OF_PARTITION = ("dagster/partition_row_count", "data files", "bytes written")
"""Metadata that is reported for each partition; all other values are those of the whole run."""
MAX_REASONS = 50
"""Partitions whose reason is shown on a materialization."""
_OPERATIONS = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete", "t": "truncate"}
_ROW_AFTER = "after"
"""Column of a change log with the new row."""


def change_log_metadata(config: Config, report: TableReport) -> dict[str, Any]:
    """Events by operation, the number in quarantine, and the state of the log."""
    values: dict[str, Any] = {
        "status": report.status,
        "events": report.events.total(),
        "quarantined": report.quarantined,
        "commits": report.log_commits,
        "snapshot id": str(report.log_snapshot_id),
        "position": str(report.position),
    }
    for operation, count in sorted(report.events.items()):
        values[f"events: {_OPERATIONS.get(operation, operation)}"] = count
    table = find_table(open_catalog(config), change_log_name(report.table))
    if table is None:
        return values
    opened = open_table(table)
    values |= _state(opened)
    snapshot = opened.metadata.current_snapshot
    if snapshot is not None:
        values["dagster/row_count"] = int(snapshot.summary.get("total-records", 0))
        values["bytes in log"] = int(snapshot.summary.get("total-files-size", 0))
    return values


def mirror_metadata(config: Config, report: TableReport) -> dict[str, Any]:
    """What was written, and what the mirror contains now."""
    values: dict[str, Any] = {
        "status": report.status,
        "rows written": report.data_rows,
        "data files written": report.data_files,
        "delete files written": report.delete_files,
        "deleted keys written": report.delete_rows,
        "removals that found no row": report.missed_removals,
        "bytes written": report.written_bytes,
        "commits": report.mirror_commits,
        "snapshot id": str(report.snapshot_id),
    }
    if report.indexes is not None:
        values |= report.indexes.as_metadata()
    if report.conversion is not None:
        values |= report.conversion.as_metadata()
    table = find_table(open_catalog(config), report.table)
    if table is not None:
        opened = open_table(table)
        scan = opened.scan()
        values |= _state(opened)
        # the change log has the names that `rename` gives; its own columns follow from the table's
        log = change_log_key(report.table)
        sources = {name: [dg.TableColumnDep(log, f"{_ROW_AFTER}.{name}")] for name in opened.schema.names}
        values["dagster/column_lineage"] = dg.TableColumnLineage(sources)
        values["dagster/row_count"] = scan.count()
        values["rows removed by deletes"] = (
            scan.metrics.rows_removed_by_equality_deletes + scan.metrics.rows_removed_by_position_deletes
        )
        values["bytes read to count"] = scan.metrics.bytes_read
    return values


def refresh_metadata(report: PublishReport) -> dict[str, Any]:
    """Metadata of one run of `publish`: what was built, why, and from what."""
    metrics = report.metrics
    values: dict[str, Any] = {
        **_written(PartitionWritten(report.rows, report.data_files, report.bytes_written)),
        "rows removed by deletes": report.rows_removed_by_deletes,
        "rows read": metrics.rows_out,
        "bytes read": metrics.bytes_read,
        "bytes skipped": metrics.bytes_skipped,
        "snapshot id": str(report.snapshot_id),
        "reason": report.reason,
        "partitions made": "all" if report.partitions is None else len(report.partitions),
    }
    if report.why:
        values["why"] = {key: list(why) for key, why in list(report.why.items())[:MAX_REASONS]}
    if report.indexes is not None:
        values |= report.indexes.as_metadata()
    if len(report.written) > 1:
        values["rows of the run"] = report.rows
    if report.checks:
        values["checks before publishing"] = {f"{v.table}: {v.check}": v.text for v in report.checks}
    values |= {f"changed rows of {table}": count for table, count in report.changed_rows.items()}
    values |= {f"snapshot id of {table}": str(read.snapshot_id) for table, read in report.reads.items()}
    values |= {f"read of {table}": read.as_dict() for table, read in report.reads.items()}
    return values


def partition_metadata(report: PublishReport, key: str) -> dict[str, Any]:
    """Metadata of one partition of a run, with the counts of the partition instead of those of the run."""
    return refresh_metadata(report) | _written(report.written.get(key, PartitionWritten()))


def published_columns(config: Config, name: str) -> dict[str, Any]:
    """Columns, column lineage and location of a published table; nothing if it does not exist yet."""
    catalog = open_catalog(config)
    table = find_table(catalog, name)
    if table is None:
        return {}
    opened = open_table(table)
    query = published_query(config, name)
    mirrors = {mirror: find_table(catalog, mirror) for mirror in query.tables}
    schemas = {mirror: open_table(found).schema for mirror, found in mirrors.items() if found is not None}
    values = _state(opened)
    if len(schemas) == len(mirrors):
        values["dagster/column_lineage"] = _published_lineage(opened.schema, query.column_sources(schemas))
    return values


def _published_lineage(schema: Schema, sources: Mapping[str, Sequence[tuple[str, str]]]) -> dg.TableColumnLineage:
    by_lower = {column.lower(): pairs for column, pairs in sources.items()}
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(mirror_key(table), column) for table, column in by_lower.get(name.lower(), ())]
            for name in schema.names
        }
    )


def _state(table: Table) -> dict[str, Any]:
    """Columns and location of a table."""
    return {"dagster/column_schema": dg.TableSchema(list(_columns(table.schema.fields))), "dagster/uri": table.location}


def _columns(fields: Sequence[NestedField], prefix: str = "") -> Iterator[dg.TableColumn]:
    """All columns, and the members of structs after their struct, as `after.id`."""
    for field in fields:
        is_struct = isinstance(field.type, StructType)
        kind = "struct" if is_struct else str(field.type)
        constraints = dg.TableColumnConstraints(nullable=not field.required)
        yield dg.TableColumn(prefix + field.name, kind, field.doc, constraints)
        if isinstance(field.type, StructType):
            yield from _columns(field.type.fields, f"{prefix}{field.name}.")


def _written(written: PartitionWritten) -> dict[str, Any]:
    return dict(zip(OF_PARTITION, (written.rows, written.data_files, written.bytes_written), strict=True))
