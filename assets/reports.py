"""What a run reports, as Dagster shows it on a materialization; and failed tables as failed steps."""

import dagster as dg

from pipelines.catalog import find_table, open_catalog
from pipelines.config import Config, change_log_name
from pipelines.ingest_report import IngestReport, TableReport
from scan_core.schema import Schema
from scan_core.table import open_table

_OPERATIONS = {"r": "snapshot", "c": "insert", "u": "update", "d": "delete", "t": "truncate"}


def require_success(report: IngestReport) -> None:
    """Fail the step if a table failed; the others keep what they committed.

    Raises:
        dagster.Failure: names every failed table; retried only where trying again can help.
    """
    failed = [table for table in report.tables if table.error is not None]
    if failed:
        raise dg.Failure(
            "; ".join(f"{table.table}: {table.error}" for table in failed),
            metadata={table.table: str(table.error) for table in failed},
        )


def change_log_metadata(config: Config, report: TableReport) -> dict[str, dg.MetadataValue]:
    """Events by operation, what went to quarantine, and where the log stands."""
    values: dict[str, dg.MetadataValue] = {
        "status": dg.TextMetadataValue(report.status),
        "events": dg.IntMetadataValue(report.events.total()),
        "quarantined": dg.IntMetadataValue(report.quarantined),
        "commits": dg.IntMetadataValue(report.log_commits),
        "snapshot id": dg.TextMetadataValue(str(report.log_snapshot_id)),
        "position": dg.TextMetadataValue(str(report.position)),
    }
    for operation, count in sorted(report.events.items()):
        values[f"events: {_OPERATIONS.get(operation, operation)}"] = dg.IntMetadataValue(count)
    table = find_table(open_catalog(config), change_log_name(report.table))
    snapshot = None if table is None else open_table(table).metadata.current_snapshot
    if snapshot is not None:
        values["dagster/row_count"] = dg.IntMetadataValue(int(snapshot.summary.get("total-records", 0)))
        values["bytes in log"] = dg.IntMetadataValue(int(snapshot.summary.get("total-files-size", 0)))
    return values


def mirror_metadata(config: Config, report: TableReport) -> dict[str, dg.MetadataValue]:
    """What was written, and what the mirror holds now."""
    values: dict[str, dg.MetadataValue] = {
        "status": dg.TextMetadataValue(report.status),
        "rows written": dg.IntMetadataValue(report.data_rows),
        "data files written": dg.IntMetadataValue(report.data_files),
        "delete files written": dg.IntMetadataValue(report.delete_files),
        "deleted keys written": dg.IntMetadataValue(report.delete_rows),
        "removals that found no row": dg.IntMetadataValue(report.missed_removals),
        "bytes written": dg.IntMetadataValue(report.written_bytes),
        "commits": dg.IntMetadataValue(report.mirror_commits),
        "snapshot id": dg.TextMetadataValue(str(report.snapshot_id)),
    }
    table = find_table(open_catalog(config), report.table)
    if table is not None:
        opened = open_table(table)
        scan = opened.scan()
        values["dagster/row_count"] = dg.IntMetadataValue(scan.count())
        values["dagster/column_schema"] = column_schema(opened.schema)
        values["rows removed by deletes"] = dg.IntMetadataValue(
            scan.metrics.rows_removed_by_equality_deletes + scan.metrics.rows_removed_by_position_deletes
        )
        values["bytes read to count"] = dg.IntMetadataValue(scan.metrics.bytes_read)
    return values


def column_schema(schema: Schema) -> dg.TableSchemaMetadataValue:
    """A table's columns as Dagster shows them."""
    return dg.TableSchemaMetadataValue(
        dg.TableSchema(
            [
                dg.TableColumn(
                    f.name, str(f.type), f.doc, constraints=dg.TableColumnConstraints(nullable=not f.required)
                )
                for f in schema.fields
            ]
        )
    )
