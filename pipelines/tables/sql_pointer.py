"""The row of a SQL catalog that says which metadata file is a table's current one: read, and swapped if nobody else did.

Other catalogs do this behind an API of their own; for them every function here answers None.
"""

from typing import Any


def current_location(catalog: Any, identifier: tuple[str, ...]) -> str | None:
    """The current metadata file of a table; None for other catalogs, and if there is no such table."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

    if type(catalog) is not SqlCatalog:
        return None
    from sqlalchemy import select

    statement = select(IcebergTables.metadata_location).where(*_row(catalog, identifier))
    with catalog.engine.connect() as connection:
        found = connection.scalar(statement)
    return None if found is None else str(found)


def swap_location(catalog: Any, identifier: tuple[str, ...], old: str, new: str) -> bool | None:
    """Make `new` the current metadata file if `old` still is; False if not, None for other catalogs."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

    if type(catalog) is not SqlCatalog:
        return None
    from sqlalchemy import update

    statement = (
        update(IcebergTables)
        .where(*_row(catalog, identifier), IcebergTables.metadata_location == old)
        .values(metadata_location=new, previous_metadata_location=old)
    )
    with catalog.engine.begin() as connection:
        return bool(connection.execute(statement).rowcount == 1)


def can_swap(catalog: Any) -> bool:
    """Whether a catalog is a SQL catalog whose dialect tells how many rows an update met."""
    from pyiceberg.catalog.sql import SqlCatalog

    return type(catalog) is SqlCatalog and bool(catalog.engine.dialect.supports_sane_rowcount)


def _row(catalog: Any, identifier: tuple[str, ...]) -> tuple[Any, ...]:
    from pyiceberg.catalog.sql import IcebergTables

    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(identifier[:-1]),
        IcebergTables.table_name == identifier[-1],
    )
