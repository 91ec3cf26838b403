"""`nevermore verify`: every byte of every file of a table."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands.table_argument import CONFIG, RELOCATE, TABLE_HELP, catalog_state, open_named_table
from pipelines.commands.terminal import byte_progress, counted, print_json

if TYPE_CHECKING:
    from checks.damage import Verification

_MOST_LISTED = 5
"""Files without checksums named for one table; `--json` names all."""


def verify(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help=TABLE_HELP, show_default=False)],
    all_snapshots: Annotated[
        bool, typer.Option("--all-snapshots", help="The files of all snapshots, not of the current one alone.")
    ] = False,
    relocate: Annotated[list[str] | None, RELOCATE] = None,
    config: Annotated[Path | None, CONFIG] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per table.")] = False,
) -> None:
    """Read every byte of every file of tables, and tell which are damaged.

    Checksums are compared wherever a file has them, every column is decoded, and sizes, numbers of rows, bounds and
    counts are held against what manifests and metadata state. Exit code 0 if nothing is damaged, 1 if something is.

    Example: `nevermore verify shop.orders shop.customers`
    """
    is_damaged = False
    for name in tables:
        found = _verified(name, relocate, config, all_snapshots=all_snapshots)
        is_damaged |= bool(found.damage)
        if as_json:
            print_json({"table": name, **_document(found)})
        else:
            _print(name, found)
    raise typer.Exit(1 if is_damaged else 0)


def _verified(name: str, relocate: list[str] | None, config: Path | None, *, all_snapshots: bool) -> "Verification":
    from checks.damage import Registered, Verification, verify_table
    from scan_core.errors import MalformedTableError
    from scan_core.verification import Damage

    try:
        table = open_named_table(name, relocate, config)
    except MalformedTableError as error:  # its metadata cannot be read: what is to be told, not a mistake of the user
        file, _, problem = str(error).partition(": ")
        return Verification(damage=[Damage(file, "", problem or str(error))])
    stated = catalog_state(name, config)
    with byte_progress(f"Verifying {name}") as show:
        return verify_table(
            table,
            all_snapshots=all_snapshots,
            registered=None if stated is None else Registered(*stated),
            show=show,
        )


def _document(found: "Verification") -> dict[str, Any]:
    return {
        "snapshot_ids": found.snapshot_ids,
        "files": found.num_files,
        "bytes": found.num_bytes,
        "damage": [asdict(damage) for damage in found.damage],
        "unprotected": [asdict(file) for file in found.unprotected],
        "not_compared": sorted(found.not_compared),
    }


def _print(name: str, found: "Verification") -> None:
    for damage in found.damage:
        typer.echo(f"DAMAGED  {damage}")
    for text in sorted(found.not_compared):
        typer.echo(f"not compared: {text}")
    for file in found.unprotected[:_MOST_LISTED]:
        typer.echo(f"no checksum: {file.file}: {', '.join(file.parts)}")
    if (more := len(found.unprotected) - _MOST_LISTED) > 0:
        typer.echo(f"no checksum: {counted(more, 'more file')}; --json lists them")
    files = ", ".join(counted(number, kind) for kind, number in found.num_files.items()) or "no file could be read"
    result = f"{counted(len(found.damage), 'fault')} found" if found.damage else "no damage found"
    typer.echo(f"{name}: {result} in {files.replace('metadatas', 'metadata')}, {found.num_bytes:,} bytes")
