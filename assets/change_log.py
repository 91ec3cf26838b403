"""Change logs as assets: one per table, all tables of a source in one step, so that a source is read once."""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.keys import CHANGE_LOG_GROUP, change_log_key, table_pool
from assets.reports import change_log_metadata, require_success
from assets.resources import Project
from pipelines.config import Config, quarantine_name
from pipelines.ingest import run_once


def change_log_assets(tables: Sequence[str], config: Config) -> dg.AssetsDefinition:
    """The change logs of the tables of one source.

    Each run appends everything new, in order, and a change that is in the log already is not appended again.
    """
    names = {change_log_key(table): table for table in tables}
    source = config.tables[tables[0]].source

    @dg.multi_asset(
        name="change_logs_of_" + "_and_".join(key.path[-1] for key in names),
        specs=[
            dg.AssetSpec(
                key,
                group_name=CHANGE_LOG_GROUP,
                kinds={"iceberg"},
                description=f"Every decoded change of {table}, append-only, from {', '.join(source.path)}.",
                metadata={
                    "source": dg.TextMetadataValue(", ".join(source.path)),
                    "quarantine": dg.TextMetadataValue(quarantine_name(table)),
                },
                skippable=True,
            )
            for key, table in names.items()
        ],
        can_subset=True,
        pool=table_pool(tables[0]),
    )
    def change_logs(context: dg.AssetExecutionContext, project: Project) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg] # the value is None
        selected = [table for key, table in names.items() if key in context.selected_asset_keys]
        current = project.config()
        report = run_once(
            current, lambda table: context.log.info("%s: committed", table.table), selected, log_only=True
        )
        for table in report.tables:
            if table.error is None:
                yield dg.MaterializeResult(
                    asset_key=change_log_key(table.table), metadata=change_log_metadata(current, table)
                )
        require_success(report)

    return change_logs
