"""What people see of an asset in the UI.

Before its first run: group, owners, tags, kinds, description, and where it is configured. All of it comes from the config alone,
so that definitions load without a network, a table or Spark. After a materialization: counts of the run, state, columns with
their lineage, and location.
"""

import hashlib
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

import dagster as dg
import pyarrow.compute as pc
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

from nevermore.assets.project import change_log_key, own_key, rows_key
from nevermore.checks.asset_checks import shown_as_json
from nevermore.checks.data_docs import page_of
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.published import PublishedConfig
from nevermore.pipelines.config.tables import AssetConfig, TableConfig
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.report import TableReport
from nevermore.pipelines.publish.query import published_query
from nevermore.pipelines.publish.refresh_report import PartitionWritten, PublishReport
from nevermore.pipelines.publish.state import query_hash
from nevermore.pipelines.wording import KINDS
from nevermore.scan_core import NestedField, StructType, Table, open_table

OF_PARTITION = ("dagster/partition_row_count", "data files", "bytes written")
"""Metadata that is reported for each partition; all other values are those of the whole run."""
RECENT_CHANGES = 1000
"""How many changes at the end of a log are searched for the newest one, which tells how far behind the log is."""
MAX_REASONS = 50
"""Partitions whose reason is shown on a materialization."""
_LOG_COLUMNS = {
    "ordinal": "Number of the change in this log, from 1 on, without gaps.",
    "op": "Kind of the change: r snapshot, c insert, u update, d delete, t truncate.",
    "unchanged": "Columns of the new row that the event does not contain, because they did not change.",
    "source_file": "File or partition that the event came from.",
    "source_offset": "Position of the event in it.",
    "source_ts": "Time of the change in the source.",
    "ingested_at": "Time at which the event was read.",
    "schema_version": "Version of the columns that the event has.",
    "key": "Values of the key columns.",
    "before": "The row before the change, as far as the event contains it.",
    "after": "The row after the change; none if it was deleted.",
}

UNCHANGED = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
"""Metadata of the result of a step that changed nothing: steps and checks that need the asset run, but Dagster records no
materialization, which everything downstream that is automated would follow. (Steps after one without a result are skipped.)"""

Layer = Literal["change_log", "mirror", "published"]
LAYER = "nevermore/layer"
"""Tag of every asset, for selections: `tag:nevermore/layer=mirror`."""
_KINDS: dict[Layer, set[str]] = {
    "change_log": {"iceberg", "parquet"},
    "mirror": {"iceberg", "parquet"},
    "published": {"iceberg", "spark", "sql"},
}


def version_of(config: Config, table: str) -> dg.DataVersion | None:
    """The data version of a table: the snapshot that last changed its rows; None if there is no table, or no snapshot."""
    found = find_table(open_catalog(config), table)
    metadata = None if found is None else open_table(found).metadata
    if metadata is None or metadata.current_snapshot is None:
        return None
    line = metadata.ancestors(metadata.current_snapshot.snapshot_id)
    return dg.DataVersion(str(next((s for s in line if s.operation != "replace"), line[0]).snapshot_id))


def known_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """The data version of the newest materialization of an asset."""
    found = instance.get_latest_materialization_event(key)
    made = found and found.asset_materialization
    return made and (made.tags or {}).get(DATA_VERSION_TAG)


def news_of(config: Config, table: str, key: dg.AssetKey, instance: dg.DagsterInstance) -> dg.DataVersion | None:
    """The data version of a table, if it is not that of the newest materialization of its asset."""
    version = version_of(config, table)
    return None if version is None or version.value == known_version(instance, key) else version


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
    # each kind in each run, so that the plots of an asset have no gaps
    kinds = {f"events: {name}": report.events.get(operation, 0) for operation, name in KINDS.items()}
    return values | kinds | change_log_state(config, report.table)


def change_log_state(config: Config, name: str) -> dict[str, Any]:
    """Columns, location and size of a change log, and how far it is behind; nothing if it does not exist yet."""
    table = find_table(open_catalog(config), change_log_name(name))
    if table is None:
        return {}
    opened = open_table(table)
    described = config.table(name).column_descriptions.items()
    of_rows = {f"{row}.{column}": text for row in ("key", "before", "after") for column, text in described}
    values = _state(opened, _LOG_COLUMNS | of_rows)
    snapshot = opened.metadata.current_snapshot
    if snapshot is not None:
        values["dagster/row_count"] = int(snapshot.summary.get("total-records", 0))
        values["bytes in log"] = int(snapshot.summary.get("total-files-size", 0))
    lag = _lag_seconds(opened, int(positions.newest_property(table, positions.LAST_ORDINAL) or 0))
    return values if lag is None else values | {"seconds behind the source": lag}


def _lag_seconds(log: Table, last: int) -> float | None:
    """Age of the newest of the last changes, by the time of the source; None if the feed states no times."""
    scan = log.scan().select("source_ts").where(f"ordinal > {last - RECENT_CHANGES}")
    newest = pc.max(scan.to_table()["source_ts"]).as_py()
    return None if newest is None else round(max(0.0, (datetime.now(UTC) - newest).total_seconds()), 1)


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
    for done in (report.indexes, report.conversion):
        values |= {} if done is None else done.as_metadata()
    return values | mirror_state(config, report.table)


def mirror_state(config: Config, name: str) -> dict[str, Any]:
    """Columns with their lineage, location, rows and files of a mirror; nothing if it does not exist yet."""
    table = find_table(open_catalog(config), name)
    if table is None:
        return {}
    opened = open_table(table)
    values = _state(opened, config.table(name).column_descriptions) | _counts(opened)
    if own_key(config, name):  # knows best what it makes the columns from; the log comes after it
        return values
    # the change log has the names that `rename` gives; its own columns follow from the table's
    log = change_log_key(name)
    sources = {column: [dg.TableColumnDep(log, f"after.{column}")] for column in opened.schema.names}
    return values | {"dagster/column_lineage": dg.TableColumnLineage(sources)}


def _counts(table: Table) -> dict[str, Any]:
    """Rows that are alive, what it costs to know that, and the deletes that every scan has to apply."""
    scan = table.scan()
    began = time.perf_counter()
    alive = scan.count()
    took, metrics = time.perf_counter() - began, scan.metrics
    dead = metrics.rows_removed_by_equality_deletes + metrics.rows_removed_by_position_deletes
    snapshot = table.metadata.current_snapshot
    summary = {} if snapshot is None else snapshot.summary
    return {
        "dagster/row_count": alive,
        "dead rows": dead,
        "percent of rows dead": round(100 * dead / (alive + dead), 1) if alive + dead else 0.0,
        "data files": int(summary.get("total-data-files", 0)),
        "delete files": int(summary.get("total-delete-files", 0)),
        "bytes read to count": metrics.bytes_read,
        "bytes skipped to count": metrics.bytes_skipped,
        "seconds to count": round(took, 4),
    }


def refresh_metadata(report: PublishReport) -> dict[str, Any]:
    """Metadata of one run of `publish`: what was built, why, and from what."""
    if report.is_unchanged:
        return {"reason": report.reason, "snapshot id": str(report.snapshot_id)}
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
        values["checks before publishing"] = {f"{v.table}: {v.name}": v.summary() for v in report.checks}
    values |= {f"changed rows of {table}": count for table, count in report.changed_rows.items()}
    values |= {f"snapshot id of {table}": str(read.snapshot_id) for table, read in report.reads.items()}
    values |= {f"read of {table}": shown_as_json(read.as_dict()) for table, read in report.reads.items()}
    return values


def partition_metadata(report: PublishReport, key: str | None) -> dict[str, Any]:
    """Metadata of one partition of a run, with the counts of the partition instead of those of the run; of all with None."""
    is_part = key is not None and not report.is_unchanged
    return refresh_metadata(report) | (_written(report.written.get(key or "", PartitionWritten())) if is_part else {})


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
    values = _state(opened, config.published[name].column_descriptions)
    # a run reports the data files that it wrote under the name of the table's
    values |= {what: count for what, count in _counts(opened).items() if what not in OF_PARTITION}
    if len(schemas) == len(mirrors):
        sources = {column.lower(): pairs for column, pairs in query.column_sources(schemas).items()}
        values["dagster/column_lineage"] = dg.TableColumnLineage(
            {
                name: [
                    dg.TableColumnDep(rows_key(config, table), column)
                    for table, column in sources.get(name.lower(), ())
                ]
                for name in opened.schema.names
            }
        )
    return values


def _state(table: Table, descriptions: Mapping[str, str]) -> dict[str, Any]:
    """Columns and location of a table."""
    return {
        "dagster/column_schema": dg.TableSchema(list(_columns(table.schema.fields, descriptions))),
        "dagster/uri": table.location,
    }


def _columns(
    fields: Sequence[NestedField], descriptions: Mapping[str, str], prefix: str = ""
) -> Iterator[dg.TableColumn]:
    """All columns, and the members of structs after their struct, as `after.id`."""
    for field in fields:
        kind = "struct" if isinstance(field.type, StructType) else str(field.type)
        name = prefix + field.name
        yield dg.TableColumn(
            name, kind, descriptions.get(name, field.doc), dg.TableColumnConstraints(not field.required)
        )
        if isinstance(field.type, StructType):
            yield from _columns(field.type.fields, descriptions, f"{name}.")


def _written(written: PartitionWritten) -> dict[str, Any]:
    return dict(zip(OF_PARTITION, (written.rows, written.data_files, written.bytes_written), strict=True))


def labels(config: Config, name: str, layer: Layer, table: str, what: str) -> dict[str, Any]:
    """Arguments of an asset or its spec.

    Args:
        config: the project.
        name: entry of `tables` or `published`.
        layer: kind of the table.
        table: its name in the catalog.
        what: one sentence about every table of this kind, which follows the description in the config.
    """
    entry = config.published[name] if layer == "published" else config.tables[name]
    freshness = entry.freshness
    return {
        # without a group in the config: the namespace, with the characters that Dagster allows
        "group_name": entry.group or re.sub("[^A-Za-z0-9]", "_", name.rpartition(".")[0]),
        "owners": list(entry.owners),
        "tags": {LAYER: layer, **entry.tags},
        "kinds": _KINDS[layer],
        "description": "\n\n".join(filter(None, [(entry.description or "").strip(), what])),
        "code_version": _code_version(config, entry),
        "metadata": {
            "dagster/table_name": table,
            "dagster/storage_kind": "iceberg",
            "dagster/code_references": _code_references(config, name),
            **(
                {"data docs": _data_docs(config, name)}
                if layer != "change_log" and entry.checks.has_expectations
                else {}
            ),
        },
        "freshness_policy": None
        if freshness is None
        else dg.FreshnessPolicy.time_window(fail_window=timedelta(seconds=freshness)),
    }


def _code_version(config: Config, entry: TableConfig | PublishedConfig) -> str:
    """Changes with what the config says about the rows of a table, not with how they are described, read or checked."""
    if isinstance(entry, PublishedConfig):
        return query_hash(config, entry)
    meaning = entry.model_dump_json(exclude={*AssetConfig.model_fields, "source", "checks", "maintenance"})
    return hashlib.sha256(meaning.encode()).hexdigest()[:16]


def _data_docs(config: Config, name: str) -> dg.MetadataValue[Any]:
    """Where the page of a table's expectations is: an address if the config has one, otherwise the file."""
    if config.docs.url is None:
        return dg.MetadataValue.path(str(config.docs.folder_of(config.path) / page_of(name)))
    return dg.MetadataValue.url(f"{config.docs.url.rstrip('/')}/{quote(page_of(name))}")


def _code_references(config: Config, name: str) -> dg.CodeReferencesMetadataValue:
    """The entry in the config file."""
    path, line = config.path, config.line(name)
    with preview_features():
        reference = dg.LocalFileCodeReference(file_path=str(path), line_number=line, label=f"{path.name}:{line}")
        return dg.CodeReferencesMetadataValue(code_references=[reference])


@contextmanager
def preview_features() -> Iterator[None]:
    """Use what Dagster calls beta or preview: links to code, backfill policies, partitions of checks; nothing else does this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        yield
