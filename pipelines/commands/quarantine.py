"""`nevermore quarantine`: events that could not be applied: what there is, in full, and tried again."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import counted, print_json
from pipelines.errors import ConfigError


def quarantine(
    verb: Annotated[Literal["list", "show", "replay"], typer.Argument(help="What to do.", show_default=False)],
    table: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE]", help="A mirror of the config; `list` takes all.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most events to show.")] = 20,
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> None:
    """List quarantines with their reasons, show the events of one, or try them again.

    `replay` applies what can be decoded now, takes it out of quarantine, and ends with 3 if something stays.
    """
    from pipelines.catalog import has_catalog
    from pipelines.config import load
    from pipelines.recovery import open_existing
    from pipelines.table_patterns import expanded

    given = load(config)
    if table is not None:
        given.table(table)
    if verb == "list" and not has_catalog(given):
        _list(None, [table] if table is not None else list(given.tables), as_json=as_json)
        return
    catalog = open_existing(given)
    settings = expanded(given, catalog)
    if table is not None:
        settings.table(table)
    elif verb != "list":
        raise ConfigError(f"nevermore quarantine {verb} needs a table: {', '.join(settings.tables)}")
    if verb == "list":
        _list(catalog, [table] if table is not None else list(settings.tables), as_json=as_json)
    elif verb == "show":
        _show(catalog, str(table), limit, as_json=as_json)
    else:
        _replay(catalog, settings, str(table), as_json=as_json)


def _list(catalog: Any, tables: list[str], *, as_json: bool) -> None:
    from pipelines.quarantine import reasons

    found = [(name, {} if catalog is None else reasons(catalog, name)) for name in tables]
    if as_json:
        print_json([{"table": n, "events": sum(r.values()), "reasons": r} for n, r in found])
        return
    for name, counts in found:
        typer.echo(f"{name}: {counted(sum(counts.values()), 'event')}")
        for reason, count in counts.items():
            typer.echo(f"  {count:,} x {reason}")


def _show(catalog: Any, table: str, limit: int, *, as_json: bool) -> None:
    from pipelines.formats.raw_rows import shown
    from pipelines.quarantine import held_events

    events = held_events(catalog, table, limit)
    if as_json:
        print_json([e | {"raw": shown(e["raw"]).decode(errors="replace")} for e in events])
        return
    for event in events:
        typer.echo(f"{event['source_file']}:{event['source_offset']} {event['reason']}")
        typer.echo(f"  {shown(event['raw']).decode(errors='replace').rstrip()}")


def _replay(catalog: Any, settings: Any, table: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    from pipelines.quarantine_replay import replay_quarantine

    done = replay_quarantine(catalog, settings, table)
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(
            f"{table}: {done.applied:,} applied, {done.known:,} were applied before, {done.superseded:,} stay because "
            f"their key has changed since, {done.rejected:,} stay rejected"
        )
    raise typer.Exit(3 if done.superseded or done.rejected else 0)
