"""Published tables as assets: one per entry of `published`, partitioned by business day."""

import warnings
from collections.abc import Iterator

import dagster as dg

from assets.keys import PUBLISHED_GROUP, mirror_key, published_key, table_pool
from assets.resources import Project
from pipelines.config import Config
from pipelines.materialize import MaterializeReport, count_day, materialize
from pipelines.published_entries import tables_read

DAYS_PER_RUN = 31
"""Of a backfill: a month shares one Spark session, a year is still several runs that can be retried alone."""
COMPLETE_CHECK = "published_rows_are_complete"


def published_asset(name: str, config: Config, days: dg.DailyPartitionsDefinition) -> dg.AssetsDefinition:
    """The asset of one published table.

    Its check runs inside: a failed check fails the day, where a separate check on a last asset would leave a backfill
    green.
    """
    key = published_key(name)

    def published(
        context: dg.AssetExecutionContext, project: Project
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg] # the value is None
        current = project.config()
        reports = []
        for day in context.partition_keys:
            reports.append(materialize(current, name, day, master=project.spark_master))
            context.log.info("%s of %s: %s rows", name, day, reports[-1].rows)
        found = sum(count_day(current, name, report.partition_key, report.snapshot_id) for report in reports)
        written = sum(report.rows for report in reports)
        is_all = current.published[name].mode == "replace"  # otherwise earlier rows of the day stay
        verdict = dg.AssetCheckResult(
            passed=found == written if is_all else found >= written,
            check_name=COMPLETE_CHECK,
            metadata={"rows written": written, "rows found": found},
        )
        if not verdict.passed:
            yield verdict
            raise dg.Failure(
                f"{name}: tasks wrote {written} rows, the table holds {found}",
                metadata={"days": ", ".join(context.partition_keys)},
                allow_retries=False,
            )
        yield dg.MaterializeResult(metadata=published_metadata(reports))
        yield verdict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # backfill policies are in beta, and without an alternative
        return dg.asset(
            key=key,
            deps=[mirror_key(table) for table in tables_read(config, name)],
            partitions_def=days,
            backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=DAYS_PER_RUN),
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
            description=f"Re-made day by day from mirrors.\n\n```sql\n{config.published[name].sql.strip()}\n```",
        )(published)


def published_metadata(reports: list[MaterializeReport]) -> dict[str, dg.MetadataValue]:
    """Metadata of one materialization, which may cover several days."""
    last = reports[-1]
    metrics = [report.metrics for report in reports]
    values: dict[str, dg.MetadataValue] = {
        "dagster/partition_row_count": dg.IntMetadataValue(sum(report.rows for report in reports)),
        "rows removed by deletes": dg.IntMetadataValue(sum(report.rows_removed_by_deletes for report in reports)),
        "rows read": dg.IntMetadataValue(sum(m.rows_out for m in metrics)),
        "data files": dg.IntMetadataValue(sum(report.data_files for report in reports)),
        "bytes written": dg.IntMetadataValue(sum(report.bytes_written for report in reports)),
        "bytes read": dg.IntMetadataValue(sum(m.bytes_read for m in metrics)),
        "bytes skipped": dg.IntMetadataValue(sum(m.bytes_skipped for m in metrics)),
        "snapshot id": dg.TextMetadataValue(str(last.snapshot_id)),
    }
    if len(reports) > 1:
        values["rows by day"] = dg.JsonMetadataValue({report.partition_key: report.rows for report in reports})
    for table, read in last.reads.items():
        values[f"snapshot id of {table}"] = dg.TextMetadataValue(str(read.snapshot_id))
    return values
