"""Published tables as assets: one per entry of `published`, partitioned as its config says, or not at all."""

import warnings
from collections.abc import Iterator, Sequence

import dagster as dg

from assets.keys import PUBLISHED_GROUP, mirror_key, published_key, table_pool
from assets.published_reports import checked_publish, count_made, refresh_metadata
from assets.resources import Project
from pipelines.config import Config
from pipelines.errors import ConfigError
from pipelines.published.entries import tables_read

DAYS_PER_RUN = 31
"""Of a backfill: a month shares one Spark session, a year is still several runs that can be retried alone."""
COMPLETE_CHECK = "published_rows_are_complete"

_Made = tuple[int, int, dict[str, dg.MetadataValue]]
"""Rows written, rows found, metadata."""


def published_asset(name: str, config: Config, partitions: dg.PartitionsDefinition | None) -> dg.AssetsDefinition:
    """The asset of one published table.

    Its check runs inside: a failed check fails the day, where a separate check on a last asset would leave a backfill
    green.
    """
    key = published_key(name)
    entry = config.published[name]

    def published(
        context: dg.AssetExecutionContext, project: Project
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg] # the value is None
        keys = list(context.partition_keys) if partitions is not None else []
        written, found, metadata = _make(name, project, keys)
        context.log.info("%s: %s rows", name, written)
        is_all = project.config().published[name].mode == "replace"  # otherwise earlier rows of the day stay
        verdict = dg.AssetCheckResult(
            passed=found == written if is_all else found >= written,
            check_name=COMPLETE_CHECK,
            metadata={"rows written": written, "rows found": found},
        )
        if not verdict.passed:
            yield verdict
            raise dg.Failure(
                f"{name}: tasks wrote {written} rows, the table holds {found}",
                metadata={"partitions": ", ".join(keys) or "all"},
                allow_retries=False,
            )
        yield dg.MaterializeResult(metadata=metadata)
        yield verdict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # backfill policies are in beta, and without an alternative
        policy = dg.BackfillPolicy.multi_run(max_partitions_per_run=DAYS_PER_RUN)
        return dg.asset(
            key=key,
            deps=[mirror_key(table) for table in _mirrors(config, name)],
            partitions_def=partitions,
            backfill_policy=None if partitions is None else policy,
            check_specs=[
                dg.AssetCheckSpec(
                    COMPLETE_CHECK,
                    asset=key,
                    description="The table holds the rows that the tasks wrote, and no others where days are replaced.",
                )
            ],
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


def _make(name: str, project: Project, keys: Sequence[str]) -> _Made:
    """The partitions of a run in one snapshot, or all of the table."""
    config = project.config()
    report = checked_publish(config, name, partitions=keys, master=project.spark_master)
    found = 0 if report.is_unchanged else count_made(config, report)
    return report.rows, found, refresh_metadata(report)
