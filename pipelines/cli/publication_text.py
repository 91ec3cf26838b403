"""Formats the report of a publication: what was built and why, and how mirrors are read."""

from typing import TYPE_CHECKING

from pipelines.cli.terminal import counted

if TYPE_CHECKING:
    from pipelines.publish.refresh_report import PublishReport

_MAX_SHOWN = 20
"""Maximum number of partitions listed with their reasons; --json lists all."""


def describe_publication(report: "PublishReport", *, with_reasons: bool) -> str:
    """What a run built, or would build; `with_reasons` adds why each partition is rebuilt and how mirrors are read."""
    if report.is_unchanged:
        return f"{report.name}: up to date, {report.reason}"
    if report.partitions is None:
        what = "all partitions"
    else:
        what = (
            f"partition {report.partitions[0]}"
            if len(report.partitions) == 1
            else f"{len(report.partitions)} partitions"
        )
    if report.changed_keys is not None:
        what = counted(report.changed_keys, "key")
    if report.is_dry:
        lines = [f"{report.name}: would build {what} ({report.reason})"]
    else:
        verb = {"replace": "built", "append": "appended", "upsert": "upserted"}[report.mode]
        deleted = f", {counted(report.delete_rows, 'key')} deleted first" if report.delete_rows else ""
        lines = [
            f"{report.name}: {verb} {what} ({report.reason}): {counted(report.rows, 'row')} in "
            f"{counted(report.data_files, 'file')}{deleted}, snapshot {report.snapshot_id}"
            + ("; unchecked" if report.is_unchecked else "")
        ]
    if empty := report.empty_partitions:
        more = f" and {len(empty) - _MAX_SHOWN} more" if len(empty) > _MAX_SHOWN else ""
        shown = ", ".join(empty[:_MAX_SHOWN]) + more
        lines.append(f"  warning: the SQL returns no rows for {shown}: published empty, without any earlier rows")
    if report.indexes is not None:
        lines += [f"  {line}" for line in report.indexes.lines]
        lines += [f"  warning: indexes: {warning}" for warning in report.indexes.warnings]
    if with_reasons:
        lines += [f"  {table}: {counted(n, 'row')} added or removed" for table, n in report.changed_rows.items()]
        reasons = [f"  {key}: {', '.join(why)}" for key, why in report.why.items() if why]
        lines += reasons[:_MAX_SHOWN]
        lines += [f"  and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
        for table, read in report.reads.items():
            lines += read.described(table)
    return "\n".join(lines)
