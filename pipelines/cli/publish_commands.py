"""The commands for publishing with Spark: `nevermore publish` and `spark-package`."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.arguments import DEFAULT_CONFIG, MASTER, PROJECT_CONFIG, REMOTE, tell_progress

if TYPE_CHECKING:
    from pipelines.publish.audit import Auditor
    from pipelines.publish.refresh_report import PublishReport

MOST_SHOWN = 20
"""Partitions of which the reason is shown; --json has all."""


def publish(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Tables under `published` in the config; by default all but those to whose partitions rows are added.",
        ),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            "--day",
            help="Make this partition, whatever changed: 2026-01-31, 2026-01-31T13, 2026-01, 2026, a value, or FIRST..LAST. Repeatable.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Make all partitions, whatever changed.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", "--dry-run", help="Say what would be made and why, and make nothing.")
    ] = False,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked", help="Ask for no check, neither of the mirrors nor of the rows; the snapshot says so."
        ),
    ] = False,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    master: Annotated[str | None, MASTER] = None,
    remote: Annotated[str | None, REMOTE] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per table.")] = False,
) -> None:
    """Bring published tables up to date: of incremental ones only the partitions that changed, in one snapshot each.

    What is read has passed its checks: those that are missing are run first, and a mirror that fails one is not published.
    """
    from pipelines.config.project import load
    from pipelines.errors import ConfigError
    from pipelines.iceberg.catalog import check_catalog
    from pipelines.publish.query import (
        left_out_without_asking,
        made_without_asking,
        published_query,
        requested_partitions,
    )
    from pipelines.publish.refresh import publish as make

    settings = load(config)
    chosen = names or made_without_asking(settings)
    if not chosen and settings.published:
        raise ConfigError(f"--partition or a name: rows are added to {', '.join(settings.published)} when asked for")
    if not chosen:
        raise ConfigError(f"{config} publishes nothing; add an entry under published")
    if partition and len(chosen) > 1:
        raise ConfigError("--partition is of one table; name it")
    for name in chosen:
        published_query(settings, name)  # all mistakes are told before Spark starts
        requested_partitions(settings, name, partition or (), is_full=full)
    check_catalog(settings)
    if not as_json:
        tell_progress()
    for name in chosen:
        report = make(
            settings,
            name,
            partitions=partition or (),
            is_full=full,
            is_dry=explain,
            master=master,
            remote=remote,
            auditor=None if unchecked else _auditor(),
        )
        typer.echo(_as_json(report.as_dict()) if as_json else _told(report, with_reasons=explain))
    for name, reason in ({} if names else left_out_without_asking(settings)).items():
        left_out = {"name": name, "made": "nothing", "left_out": True, "reason": reason}
        typer.echo(_as_json(left_out) if as_json else f"{name}: left out, {reason}")


def _as_json(document: Mapping[str, Any]) -> bytes:
    import orjson

    return orjson.dumps(document)


def _auditor() -> "Auditor":
    """The checks of the project, which lie above this layer: found by name, as the command line finds its commands."""
    found: Auditor = import_module("checks.published_equality").ProjectAuditor()
    return found


def _told(report: "PublishReport", *, with_reasons: bool) -> str:
    if report.is_unchanged:
        return f"{report.name}: up to date, {report.reason}"
    what = "all partitions" if report.partitions is None else f"{len(report.partitions)} partitions"
    if report.partitions is not None and len(report.partitions) == 1:
        what = f"partition {report.partitions[0]}"
    if report.is_dry:
        told = f"{report.name}: would make {what} ({report.reason})"
    else:
        verb = {"replace": "made", "append": "appended", "upsert": "upserted"}[report.mode]
        deleted = f", {report.delete_rows:,} keys deleted first" if report.delete_rows else ""
        told = (
            f"{report.name}: {verb} {what} ({report.reason}): {report.rows:,} rows in {report.data_files} files{deleted}, "
            f"snapshot {report.snapshot_id}"
        )
    if not report.is_dry and report.is_unchecked:
        told += "; unchecked"
    if empty := report.empty_partitions:
        shown = ", ".join(empty[:MOST_SHOWN]) + (
            f" and {len(empty) - MOST_SHOWN} more" if len(empty) > MOST_SHOWN else ""
        )
        told += f"\n  warning: the SQL gives no rows for {shown}: published empty, in place of what was there"
    changed = [f"  {table}: {count:,} rows came or went" for table, count in report.changed_rows.items()]
    if not with_reasons:
        return told
    reasons = [f"  {key}: {', '.join(why)}" for key, why in report.why.items() if why]
    more = [f"  and {len(reasons) - MOST_SHOWN} more"] if len(reasons) > MOST_SHOWN else []
    return "\n".join([told, *changed, *reasons[:MOST_SHOWN], *more])


def spark_package(
    output: Annotated[Path, typer.Option("--output", help="Folder for the archives.")] = Path("dist"),
    with_dependencies: Annotated[
        bool,
        typer.Option("--with-dependencies", help="Also pack the libraries, for workers whose Python lacks them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Build the archive that `spark-submit --py-files` and `spark: {package: ...}` take to the workers."""
    from pipelines.spark.package import build_package, pack_dependencies

    package = build_package(output)
    libraries = pack_dependencies(output) if with_dependencies else None
    if as_json:
        import orjson

        facts = {"package": str(package.path), "requirements": package.requirements}
        typer.echo(orjson.dumps(facts if libraries is None else {**facts, "dependencies": str(libraries)}))
        return
    typer.echo(f"{package.path}\n  spark-submit --py-files {package.path} ...")
    if libraries is not None:
        typer.echo(
            f"{libraries}\n  spark-submit --archives {libraries}#nevermore --conf spark.executorEnv.PYTHONPATH=./nevermore ..."
        )
    else:
        typer.echo(f"workers need: {' '.join(package.requirements)}")
