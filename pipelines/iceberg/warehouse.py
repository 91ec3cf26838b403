"""Which tables of a project a local warehouse folder holds, read from the folder alone, and whether a remote one can be written."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from nevermore.pipelines.config.project import Config, change_log_name, quarantine_name
from nevermore.pipelines.errors import CatalogMismatchError, SourceError

METADATA_NAME = re.compile(r"(\d{1,18})-[^/]*\.metadata\.json")
CREATED = 0
"""Version of a table's first metadata file: a table with only this one has nothing to lose."""


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A metadata file in a table's folder; `version` is the number in its name."""

    path: Path
    version: int


def local_warehouse(config: Config) -> Path | None:
    """The folder of the warehouse; None if it is not on a local disk."""
    return None if config.catalog.warehouse is None else local_path(config.catalog.warehouse)


def local_path(location: str) -> Path | None:
    """The path of a local file or folder; None for remote ones."""
    if location.startswith("file:"):
        return Path(location.removeprefix("file://").removeprefix("file:"))
    return None if "://" in location else Path(location)


def table_folder(warehouse: Path, name: str) -> Path:
    """Where catalogs put the table `namespace.table` by default."""
    return warehouse.joinpath(*name.split("."))


def names_written(config: Config, warehouse: Path) -> Iterator[str]:
    """The tables that runs of this config write."""
    for pattern in config.patterns:
        logs = table_folder(warehouse, change_log_name(pattern.removesuffix(".*"))).parent
        prefix = change_log_name(pattern.removesuffix("*")).rpartition(".")[2]
        yield from (f"{logs.name}.{found.name}" for found in sorted(logs.glob(f"{prefix}*")))
    for name in config.tables:
        yield from (name, change_log_name(name), quarantine_name(name))
    yield from config.published


def metadata_files(folder: Path) -> Iterator[MetadataFile]:
    """Metadata files of a table, newest version first; files of the same version latest first.

    Commits that lost a race and expiry delete files meanwhile: those are left out where their time would be needed.
    """
    versions: dict[int, list[Path]] = defaultdict(list)
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in (folder / "metadata").iterdir():
            if match := METADATA_NAME.fullmatch(path.name):
                versions[int(match[1])].append(path)
    for version in sorted(versions, reverse=True):
        paths = versions[version]
        if len(paths) > 1:  # commits that collided; opening every file would cost more than the listing
            times = {path: time for path in paths if (time := _changed_at(path)) is not None}
            paths = sorted(times, key=times.__getitem__, reverse=True)
        yield from (MetadataFile(path, version) for path in paths)


def _changed_at(path: Path) -> int | None:
    """When a file was changed last, in nanoseconds; None if it does not exist any more."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def refuse_copy(config: Config, name: str, location: str) -> None:
    """Refuse a table that lies elsewhere although this warehouse has files of it, too.

    Raises:
        CatalogMismatchError: the project was copied or moved; says what to do.
    """
    path, warehouse = local_path(location), local_warehouse(config)
    if (
        path is None
        or warehouse is None
        or path.resolve().is_relative_to(warehouse.resolve())
        or config.tables_elsewhere == "allow"
    ):
        return
    if table_folder(warehouse, f"{name}.metadata").is_dir():
        raise CatalogMismatchError(
            f"{name} of this catalog is in {path.parent.parent}, but this project's warehouse {warehouse} has files of it, "
            "too: the project was copied or moved. `nevermore recover` makes the catalog name the files in this warehouse; "
            "`tables_elsewhere: allow` in the config keeps using the other files"
        )


def refuse_unknown(warehouse: Path, unknown: Sequence[str]) -> None:
    """Refuse to go on where a catalog does not know these tables of its warehouse.

    Only change logs count: a dropped mirror can be rebuilt from its log and a published table from mirrors, without loss.

    Raises:
        CatalogMismatchError: the tables, and what to do.
    """
    if any(name.startswith(change_log_name("")) for name in unknown):
        raise CatalogMismatchError(
            f"the warehouse {warehouse} has tables that the catalog does not know: {', '.join(unknown)}; continuing would "
            "create them again. `nevermore recover` registers them; if you do not need them, move their folders away"
        )


def refuse_without_catalog(config: Config) -> None:
    """Refuse to take tables for not yet written where only the catalog is missing.

    Raises:
        CatalogMismatchError: the warehouse holds tables of the config.
    """
    warehouse = local_warehouse(config)
    if warehouse is None or not warehouse.is_dir():
        return
    newest = (
        (name, next(metadata_files(table_folder(warehouse, name)), None)) for name in names_written(config, warehouse)
    )
    refuse_unknown(warehouse, [name for name, stored in newest if stored is not None and stored.version != CREATED])


def write_probe(warehouse: str, properties: Mapping[str, str]) -> None:
    """Write a file to a warehouse in an object store, read it, and delete it.

    Raises:
        SourceError: one of these fails; says what to check.
    """
    from pyiceberg.io import load_file_io

    place = f"{warehouse.rstrip('/')}/nevermore-doctor-{uuid4()}"
    content = b"nevermore doctor"
    step = "written"
    try:
        files = load_file_io(dict(properties), place)
        with files.new_output(place).create() as stream:
            stream.write(content)
        step = "read"
        with files.new_input(place).open() as stream:
            found = stream.read()
        step = "deleted"
        files.delete(place)
    except Exception as error:  # each store has its own errors, and so have the libraries that reach it
        words = " ".join(str(error).split())[:300]
        raise SourceError(
            f"a file in {warehouse} cannot be {step}: {words}; check the bucket, its policy (read, write, delete, list), and the "
            "credentials in the environment"
        ) from error
    if found != content:
        raise SourceError(
            f"a file in {warehouse} was read with another content than was written: check what is between"
        )
