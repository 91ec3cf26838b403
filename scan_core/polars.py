"""Tables as Polars LazyFrames: Polars asks the scan for columns, conditions and a limit, and does only the rest."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from scan_core.foreign.polars_filters import conjuncts, translate
from scan_core.foreign.pushdown import Translation, project
from scan_core.model.errors import require_package
from scan_core.scan import Scan, Table, open_table

if TYPE_CHECKING:
    import polars as pl


def scan_iceberg(source: "Scan | Table | str | os.PathLike[str] | Any", **options: Any) -> "pl.LazyFrame":
    """A table, or what a scan selects of it, as a LazyFrame that is read when it is collected.

    The snapshot is fixed here. Columns, limits and all conditions that mean exactly the same in a scan are pushed down,
    so files, row groups and pages without matching rows are not read; Polars evaluates the other conditions.

    Args:
        source: a scan, a table, or what `open_table` takes, such as a folder or a PyIceberg `Table`.
        options: of `open_table`, where a table is opened.

    Raises:
        MissingPackageError: Polars is not installed.
        ScanError: the table cannot be opened, or a column cannot be read.
    """
    plugins = require_package("polars.io.plugins", "scan_iceberg", "nevermore-iceberg[polars]")
    polars = require_package("polars", "scan_iceberg", "nevermore-iceberg[polars]")
    if isinstance(source, Scan):
        scan = source
    else:
        scan = (source if isinstance(source, Table) else open_table(source, **options)).scan()
    snapshot = scan.snapshot
    if snapshot is not None:  # branches and times may mean another snapshot later
        scan = scan.as_of_snapshot(snapshot.snapshot_id) if scan.ref or scan.timestamp_ms else scan
    schema = scan.arrow_schema

    def read(
        columns: list[str] | None, predicate: "pl.Expr | None", num_rows: int | None, _batch_size: int | None
    ) -> "Iterator[pl.DataFrame]":
        return _read(scan, schema.names if columns is None else columns, predicate, num_rows)

    return cast(
        "pl.LazyFrame",
        plugins.register_io_source(
            read,
            schema=polars.from_arrow(schema.empty_table()).schema,
            is_pure=True,
            explain_name="scan_iceberg",
            explain_detail=scan.table.location,
        ),
    )


def _read(
    scan: Scan, columns: list[str], predicate: "pl.Expr | None", num_rows: int | None
) -> "Iterator[pl.DataFrame]":
    """The rows; Polars takes `num_rows` before it asks the predicate."""
    import polars as pl

    if num_rows is not None:
        scan = scan.limit(num_rows)
    if predicate is None:
        scan, left = project(scan, columns), None
    else:
        narrowed = Translation(scan, _conjuncts(predicate), translate)
        left = predicate if narrowed.left else None
        scan = project(narrowed.scan, [*columns, *(predicate.meta.root_names() if narrowed.left else ())])
    for batch in scan.to_batches():
        frame = cast("pl.DataFrame", pl.from_arrow(pa.Table.from_batches([batch])))
        if left is not None:
            frame = frame.filter(left)
        yield frame.select(columns)


def _conjuncts(predicate: "pl.Expr") -> list[Any]:
    import polars as pl

    try:
        return conjuncts(predicate.meta.serialize(format="json"))
    except (pl.exceptions.ComputeError, ValueError):  # such as functions in Python
        return [None]
