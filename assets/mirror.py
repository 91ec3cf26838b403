"""Mirrors as assets: the rows of each table as its change log leaves them."""

import dagster as dg

from assets.keys import MIRROR_GROUP, change_log_key, mirror_key, table_pool
from assets.reports import mirror_metadata, require_success
from assets.resources import Project
from pipelines.config import Config
from pipelines.ingest import apply_logs


def mirror_asset(table: str, config: Config) -> dg.AssetsDefinition:
    """The mirror of one table. Each run applies what its change log has and the mirror has not."""
    settings = config.tables[table]
    key = ", ".join(settings.key) or ("the whole row" if settings.identity == "full" else "told by the feed")

    @dg.asset(
        key=mirror_key(table),
        deps=[change_log_key(table)],
        group_name=MIRROR_GROUP,
        kinds={"iceberg"},
        pool=table_pool(table),
        description=f"The rows of {table} as its change log leaves them. Key: {key}.",
    )
    def mirror(context: dg.AssetExecutionContext, project: Project) -> dg.MaterializeResult:  # type: ignore[type-arg] # the value is None
        current = project.config()
        report = apply_logs(current, tables=[table])
        require_success(report)
        (found,) = report.tables
        context.log.info(
            "%s: %s, %s rows written, %s deleted keys", table, found.status, found.data_rows, found.delete_rows
        )
        return dg.MaterializeResult(metadata=mirror_metadata(current, found))

    return mirror
