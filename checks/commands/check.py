"""`nevermore check`: prove mirrors and published tables against the reference."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG


def check(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE]...",
            help="Mirrors and published tables of the config; all of them if none is named.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per check.")] = False,
) -> None:
    """Compare mirrors with their change logs and files, and published tables with their SQL, in DuckDB, and with their files.

    Exit code 0 if every check passes, 1 if one fails.
    """
    from checks.mirror_checks import checks_of, run_checks
    from checks.publish_checks import check_published
    from pipelines.catalog import check_catalog, find_table, open_catalog
    from pipelines.config import load
    from pipelines.errors import SourceError
    from pipelines.table_patterns import expanded

    given = load(config)
    check_catalog(given)
    catalog = open_catalog(given)
    settings = expanded(given, catalog)
    for name in tables or ():
        if name not in settings.published:
            settings.table(name)
        if find_table(catalog, name) is None:
            raise SourceError(f"there is no table {name} to check yet: ingest or publish it first")
    failed = False
    for name in tables or (*settings.tables, *settings.published):
        if name in settings.published:
            results = check_published(settings, name)
        else:
            results = run_checks(settings, name, checks_of(settings, name))
        for result in results:
            failed |= not result.passed
            if as_json:
                import orjson

                document = {
                    "table": name,
                    "check": result.name,
                    "passed": result.passed,
                    "compared": result.compared,
                    "offending_keys": result.offending_keys,
                    "details": result.details,
                }
                typer.echo(orjson.dumps(document, default=str))
                continue
            compared = ", ".join(f"{count:,} {what}" for what, count in result.compared.items())
            typer.echo(
                f"{('passed' if result.compared else 'nothing') if result.passed else 'FAILED'}  {name}  {result.name}  {compared}"
            )
            for line in [*result.details, *(f"key {key}" for key in result.offending_keys)]:
                typer.echo(f"        {line}")
    raise typer.Exit(1 if failed else 0)
