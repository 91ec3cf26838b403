"""`nevermore tables`: what the catalog of a project holds, and what its config names that is not there yet."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.table_argument import DEFAULT_CONFIG, PROJECT_CONFIG
from pipelines.commands.terminal import print_grid

if TYPE_CHECKING:
    from pipelines.config import Config


def tables(
    config: Annotated[Path, PROJECT_CONFIG] = DEFAULT_CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
) -> None:
    """List the tables of a project's catalog: mirrors, change logs, quarantines, published tables, others.

    Rows are those in data files; `nevermore scan TABLE --count` counts without the deleted ones.
    """
    from pipelines.catalog import has_catalog, open_catalog
    from pipelines.config import load
    from pipelines.table_patterns import expanded

    settings = load(config)
    catalog = open_catalog(settings) if has_catalog(settings) else None
    found = list(_tables(settings if catalog is None else expanded(settings, catalog), catalog))
    if as_json:
        import orjson

        typer.echo(orjson.dumps(found))
        return
    print_grid(
        ("table", "is a", "rows in files", "data files", "delete files", "last commit", "location"),
        [
            (
                t["table"],
                t["role"],
                *(("not made yet", "", "", "", "") if t["location"] is None else _cells(t)),
            )
            for t in found
        ],
    )


def _cells(table: dict[str, Any]) -> tuple[object, ...]:
    counts = tuple(f"{table[name]:,}" for name in ("rows_in_files", "data_files", "delete_files"))
    return (*counts, table["last_commit"] or "never", table["location"])


def _tables(settings: "Config", catalog: Any | None) -> Iterator[dict[str, Any]]:
    """The tables of the config in its order, each mirror with its log and quarantine; then the catalog's others."""
    from pipelines.config import change_log_name, quarantine_name

    there = set() if catalog is None else set(_names(catalog))
    known: dict[str, str] = {}
    for name in settings.tables:
        known |= {name: "mirror", change_log_name(name): f"change log of {name}"}
        if (held := quarantine_name(name)) in there:
            known[held] = f"quarantine of {name}"
    known |= dict.fromkeys(settings.published, "published table")
    known |= dict.fromkeys(sorted(there - set(known)), "table outside the config")
    for name, role in known.items():
        yield _facts(name, role, catalog if name in there else None)


def _names(catalog: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    for namespace in catalog.list_namespaces(above):
        yield from (".".join(name) for name in catalog.list_tables(namespace))
        if len(namespace) > len(above):
            yield from _names(catalog, namespace)


def _facts(name: str, role: str, catalog: Any | None) -> dict[str, Any]:
    from datetime import UTC, datetime

    from pipelines.catalog import find_table
    from pipelines.tables.positions import current_snapshot

    table = None if catalog is None else find_table(catalog, name)
    snapshot = None if table is None else current_snapshot(table)
    totals = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    return {
        "table": name,
        "role": role,
        "location": None if table is None else table.location(),
        "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
        "last_commit": None
        if snapshot is None
        else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds"),
        "rows_in_files": int(totals.get("total-records", 0)),
        "data_files": int(totals.get("total-data-files", 0)),
        "delete_files": int(totals.get("total-delete-files", 0)),
    }
