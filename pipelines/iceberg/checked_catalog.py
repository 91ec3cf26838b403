"""Opens a catalog only if it agrees with its warehouse, which every run checks before it writes; `recovery.py` repairs it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.errors import CatalogMismatchError, SourceError
from nevermore.pipelines.iceberg.catalog import (
    check_catalog,
    metadata_location,
    open_catalog,
    sqlite_file,
)
from nevermore.pipelines.iceberg.warehouse import (
    CREATED,
    METADATA_NAME,
    MetadataFile,
    local_path,
    local_warehouse,
    metadata_files,
    names_written,
    refuse_copy,
    refuse_unknown,
    table_folder,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def open_existing(config: Config) -> "Catalog":
    """Open the catalog of a config to change existing tables.

    Raises:
        SourceError: the catalog does not exist.
        ConfigError: it cannot be opened with these properties.
        CatalogMismatchError: see `open_for_writing`.
    """
    check_catalog(config)
    return open_for_writing(config)


def open_for_writing(config: Config) -> "Catalog":
    """Open the catalog of a config, if it agrees with the warehouse.

    Raises:
        ConfigError: it cannot be opened with these properties.
        CatalogMismatchError: the warehouse has tables that the catalog does not know, or not as they are.
        SourceError: this user may not write to the catalog's file or to the warehouse.
    """
    _check_writable(config)
    catalog = open_catalog(config)
    check_warehouse(config, catalog)
    return catalog


def _check_writable(config: Config) -> None:
    """Refuse, before anything is read, a catalog or warehouse for which the first write would fail."""
    warehouse, file = local_warehouse(config), sqlite_file(config)
    folders = [] if warehouse is None else [table_folder(warehouse, name) for name in names_written(config, warehouse)]
    tables = [place for folder in folders for place in (folder, folder / "metadata", folder / "data")]
    catalog = [] if file is None else [file.parent, file]
    for place in (*catalog, *([] if warehouse is None else [warehouse]), *tables):
        if not os.access(place, os.W_OK) and place.exists():  # in this order, as tables may be dropped meanwhile
            raise SourceError(
                f"{place} is not writable for this user (uid {os.geteuid()}); nothing was read or written"
            )


def check_warehouse(config: Config, catalog: "Catalog") -> None:
    """Refuse to write where catalog and warehouse do not agree.

    Raises:
        CatalogMismatchError: the warehouse has tables that the catalog does not know or knows in an older state, or the
            catalog names tables of another place; says which, and what to do.
    """
    warehouse = local_warehouse(config)
    if warehouse is None or not warehouse.is_dir():
        return
    unknown, ahead = [], []
    for name in names_written(config, warehouse):
        stored = next(metadata_files(table_folder(warehouse, name)), None)
        if stored is None or stored.version == CREATED:
            continue
        # Checked after the listing, so that a concurrent commit does not look as if the warehouse were ahead.
        location = metadata_location(catalog, name)
        if location is None:
            unknown.append(name)
            continue
        refuse_copy(config, name, location)
        path = local_path(location)
        if path is not None and path.parent == stored.path.parent and (lead := _lead(path, stored)) > 0:
            ahead.append((name, lead))
    refuse_unknown(warehouse, unknown)
    lost = {name for name, lead in ahead if lead > 1} | _lost_in_pairs({name for name, _ in ahead})
    if lost:
        raise CatalogMismatchError(
            f"the warehouse {warehouse} has newer metadata than the catalog: {', '.join(sorted(lost))}; was the catalog "
            "restored from an older copy? `nevermore recover` brings it forward to the newest commit of each table"
        )


def _lead(registered: Path, stored: MetadataFile) -> int:
    """Number of commits by which the newest metadata file is ahead of the one in the catalog."""
    match = METADATA_NAME.fullmatch(registered.name)
    return 0 if match is None else stored.version - int(match[1])


def _lost_in_pairs(ahead: Iterable[str]) -> set[str]:
    """Find mirrors that are one commit ahead, together with their logs.

    A commit that was interrupted before the catalog was updated also leaves a metadata file that is one ahead, and the next run repeats the
    commit. But a mirror is committed after its log, so both cannot be interrupted in one run.
    """
    names = set(ahead)
    return {name for pair in ((n, change_log_name(n)) for n in names) if names.issuperset(pair) for name in pair}
