"""Published tables as assets: one per entry of `published`, partitioned as its config says, or not at all."""

import warnings
from collections.abc import Iterator, Sequence

import dagster as dg

from assets.keys import PUBLISHED_GROUP, mirror_key, published_key, table_pool
from assets.published_reports import (
    ROW_CHECKS,
    failure_of,
    partition_metadata,
    refresh_metadata,
    row_check_results,
)
from assets.resources import Project
from checks.asset_checks import leave_run_failed
from checks.publish_checks import ProjectAuditor
from pipelines.config import Config
from pipelines.errors import ConfigError
from pipelines.published.audit import CheckFailedError
from pipelines.published.entries import out_of_range, tables_read
from pipelines.published.refresh import publish

DAYS_PER_RUN = 31
"""Of a backfill: a month shares one Spark session, a year is still several runs that can be retried alone."""


def published_asset(name: str, config: Config, partitions: dg.PartitionsDefinition | None) -> dg.AssetsDefinition:
    """The asset of one published table.

    Its checks run inside, on rows that nobody reads yet: a failed one leaves the table as it was and fails the run, where a
    separate check on a last asset would leave a backfill green.
    """
    key = published_key(name)
    entry = config.published[name]

    def published(
        context: dg.AssetExecutionContext, project: Project
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg] # the value is None
        asked = list(context.partition_keys) if partitions is not None else []
        # tables of a job share their partitions: those before a table's own start are not there to be made
        strange = out_of_range(project.config(), name, asked)
        for reason in strange.values():
            context.log.warning(reason)
        keys = [key for key in asked if key not in strange]
        if asked and not keys:
            yield dg.MaterializeResult(metadata={"partitions": "none: outside of the table's range"})
            yield from row_check_results(name, ())
            return
        try:
            report = publish(
                project.config(), name, partitions=keys, master=project.spark_master, auditor=ProjectAuditor()
            )
        except CheckFailedError as error:
            leave_run_failed(context.op_execution_context)
            if any(verdict.table == name for verdict in error.verdicts):
                yield from row_check_results(name, error.verdicts)
            raise failure_of(error) from error
        context.log.info("%s: %s rows", name, report.rows)
        if keys:
            for partition in keys:
                metadata = {**refresh_metadata(report), **partition_metadata(report, partition)}
                context.add_asset_metadata(metadata, asset_key=key, partition_key=partition)
            yield dg.MaterializeResult()
        else:
            yield dg.MaterializeResult(metadata=refresh_metadata(report))
        yield from row_check_results(name, report.checks)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # backfill policies are in beta, and without an alternative
        policy = dg.BackfillPolicy.multi_run(max_partitions_per_run=DAYS_PER_RUN)
        return dg.asset(
            key=key,
            deps=[mirror_key(table) for table in _mirrors(config, name)],
            partitions_def=partitions,
            backfill_policy=None if partitions is None else policy,
            check_specs=[dg.AssetCheckSpec(n, asset=key, description=text) for n, text in ROW_CHECKS.items()],
            group_name=PUBLISHED_GROUP,
            kinds={"iceberg", "spark"},
            pool=table_pool(name),
            description=f"{_how(entry.partition)}\n\n```sql\n{entry.sql.strip()}\n```",
        )(published)


def _mirrors(config: Config, name: str) -> Sequence[str]:
    """The mirrors that it is made of; none where the SQL is wrong: its runs say so, and all other assets are there."""
    try:
        return tables_read(config, name)
    except ConfigError as error:
        dg.get_dagster_logger().warning(f"{name} cannot be made: {error}")
        return ()


def _how(partition: str | None) -> str:
    return "Made from mirrors as a whole." if partition is None else f"Re-made by {partition} from mirrors."
