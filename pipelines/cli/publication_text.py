"""How a publication is printed: what was made and why, and how its mirrors are read."""

from typing import TYPE_CHECKING

from pipelines.cli.terminal import counted

if TYPE_CHECKING:
    from pipelines.publish.refresh_report import PublishReport

_MAX_SHOWN = 20
"""Partitions listed with their reasons; --json has all of them."""


def describe_publication(report: "PublishReport", *, with_reasons: bool) -> str:
    """What a run made, or would make; `with_reasons` also what made each partition necessary and how mirrors are read."""
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
    if report.is_dry:
        lines = [f"{report.name}: would make {what} ({report.reason})"]
    else:
        verb = {"replace": "made", "append": "appended", "upsert": "upserted"}[report.mode]
        deleted = f", {counted(report.delete_rows, 'key')} deleted first" if report.delete_rows else ""
        lines = [
            f"{report.name}: {verb} {what} ({report.reason}): {counted(report.rows, 'row')} in "
            f"{counted(report.data_files, 'file')}{deleted}, snapshot {report.snapshot_id}"
            + ("; unchecked" if report.is_unchecked else "")
        ]
    if empty := report.empty_partitions:
        more = f" and {len(empty) - _MAX_SHOWN} more" if len(empty) > _MAX_SHOWN else ""
        shown = ", ".join(empty[:_MAX_SHOWN]) + more
        lines.append(f"  warning: the SQL gives no rows for {shown}: published empty, in place of what was there")
    if with_reasons:
        lines += [f"  {table}: {counted(n, 'row')} came or went" for table, n in report.changed_rows.items()]
        reasons = [f"  {key}: {', '.join(why)}" for key, why in report.why.items() if why]
        lines += reasons[:_MAX_SHOWN]
        lines += [f"  and {len(reasons) - _MAX_SHOWN} more"] if len(reasons) > _MAX_SHOWN else []
        for table, read in report.reads.items():
            lines += read.described(table)
    return "\n".join(lines)
