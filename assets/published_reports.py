"""What runs of published tables report: metadata of materializations, of the run and of each partition; checks; failures."""

from collections.abc import Iterator, Sequence

import dagster as dg

from assets.keys import published_key
from checks.asset_checks import check_metadata
from checks.manifest_facts import NAME as MANIFESTS
from checks.published_equality import NAME as EQUALS_DUCKDB
from checks.staged_rows import COMPLETE
from pipelines.published.audit import CheckFailedError, Verdict
from pipelines.published.refresh_report import PartitionWritten, PublishReport

ROW_CHECKS = {
    COMPLETE: "All rows that the tasks wrote are staged, and no others where partitions are replaced.",
    MANIFESTS: "Partition values, bounds and counts in manifests are those of the files that were staged.",
    EQUALS_DUCKDB: "The rows are those that DuckDB computes from the mirrors, where it can.",
}
"""By name, the checks of rows on their branch, before anybody reads them."""
OF_PARTITION = ("dagster/partition_row_count", "data files", "bytes written")
"""Metadata that a run tells of each partition; all else is of the whole run."""
MOST_TOLD = 50
"""Partitions whose reason is shown on a materialization."""


def refresh_metadata(report: PublishReport) -> dict[str, dg.MetadataValue]:
    """Metadata of one run of `publish`: what was made, why, and from what."""
    values = _metadata(report)
    values["reason"] = dg.TextMetadataValue(report.reason)
    values["partitions made"] = (
        dg.TextMetadataValue("all") if report.partitions is None else dg.IntMetadataValue(len(report.partitions))
    )
    if report.why:
        values["why"] = dg.JsonMetadataValue({key: list(why) for key, why in list(report.why.items())[:MOST_TOLD]})
    if len(report.written) > 1:
        values["rows of the run"] = dg.IntMetadataValue(report.rows)
    if report.checks:
        told = {f"{verdict.table}: {verdict.check}": verdict.text for verdict in report.checks}
        values["checks before publishing"] = dg.JsonMetadataValue(told)
    for table, count in report.changed_rows.items():
        values[f"changed rows of {table}"] = dg.IntMetadataValue(count)
    for table, read in report.reads.items():
        values[f"snapshot id of {table}"] = dg.TextMetadataValue(str(read.snapshot_id))
    return values


def partition_metadata(report: PublishReport, key: str) -> dict[str, dg.MetadataValue]:
    """Metadata of one partition of a run of `publish`, beside that of the whole run."""
    return _written(report.written.get(key, PartitionWritten()))


def failure_of(error: CheckFailedError) -> dg.Failure:
    """A failed check as a failed step, which is not tried again: the rows would be the same."""
    failed = {f"{v.table}: {v.check}": dg.TextMetadataValue(v.text) for v in error.verdicts if not v.passed}
    return dg.Failure(str(error), metadata=failed, allow_retries=False)


def row_check_results(name: str, verdicts: Sequence[Verdict]) -> Iterator[dg.AssetCheckResult]:
    """The results of the checks of a published table's rows, of which there are none where nothing was made."""
    found = {verdict.check: verdict for verdict in verdicts if verdict.table == name}
    for check in ROW_CHECKS:
        verdict = found.get(check, Verdict(name, check, passed=True, text="nothing was made"))
        yield dg.AssetCheckResult(
            asset_key=published_key(name),
            check_name=check,
            passed=verdict.passed,
            description=verdict.text,
            metadata=check_metadata(verdict.compared, verdict.offending_keys),
        )


def _written(written: PartitionWritten) -> dict[str, dg.MetadataValue]:
    counts = (written.rows, written.data_files, written.bytes_written)
    return {name: dg.IntMetadataValue(count) for name, count in zip(OF_PARTITION, counts, strict=True)}


def _metadata(report: PublishReport) -> dict[str, dg.MetadataValue]:
    metrics = report.metrics
    all_of_it = PartitionWritten(report.rows, report.data_files, report.bytes_written)
    return {
        **_written(all_of_it),
        "rows removed by deletes": dg.IntMetadataValue(report.rows_removed_by_deletes),
        "rows read": dg.IntMetadataValue(metrics.rows_out),
        "bytes read": dg.IntMetadataValue(metrics.bytes_read),
        "bytes skipped": dg.IntMetadataValue(metrics.bytes_skipped),
        "snapshot id": dg.TextMetadataValue(str(report.snapshot_id)),
    }
