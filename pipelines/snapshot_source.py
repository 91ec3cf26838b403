"""A full load of a source table, to take the place of what a mirror has: every event a row, none refused.

Read with the format of the table's own feed or another one; where it lacks an operation, rows are snapshot reads.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.changes.change_batch import ChangeBatch
from pipelines.config import FilesSource, TableConfig
from pipelines.errors import SourceError
from pipelines.feeds import Feed
from pipelines.formats.feed import Decided
from pipelines.formats.registry import decode, lookup
from pipelines.sources.files import RE_DELIVERED
from pipelines.table_ingest import TableIngest

ROWS_FORMAT = "rows"


def snapshot_batches(
    table: TableIngest, config: TableConfig, paths: tuple[str, ...], kind: str | None
) -> Iterator[ChangeBatch]:
    """The rows of a full load, as snapshot reads.

    Args:
        table: whose state it is.
        config: of the table.
        paths: files or patterns.
        kind: format of them; None is that of the table's feed.

    Raises:
        SourceError: no files, an event that cannot be decoded, or one that is no row.
    """
    source = config.source if kind is None else FilesSource(path=paths, format=kind)
    options = dict(source.options)
    if source.format is not None and lookup(source.format) is lookup(ROWS_FORMAT):
        options.setdefault("no_op", "r")
    own = config.model_copy(update={"order_by": "position", "source_table": config.source_table or table.source_table})
    source = source.model_copy(update={"path": paths, "options": options})
    feed = Feed(source, {table.name: own}, (table.name,))
    feed.check()
    decided = Decided()
    types = table.known_types
    for files in feed.batches(None, [], _refuse_gaps):
        told = feed.config([table], decided)
        decoded = decode(files.raw, replace(told, tables=(replace(told.tables[0], known_types=types),)))
        decided = decoded.decided
        if decoded.rejected.num_rows:
            first = decoded.rejected.table.slice(0, 1).to_pylist()[0]
            raise SourceError(
                f"{first['source_file']}:{first['source_offset']}: {first['reason']}; a full load with a gap would delete "
                "the rows it lacks, so nothing of it was taken"
            )
        batch = decoded.tables[table.name]
        types |= {c.name: c.type for c in batch.row_type if not pa.types.is_null(c.type)}
        if batch.num_rows:
            yield _reads(batch)


def _refuse_gaps(reason: str, count: int) -> None:
    if reason != RE_DELIVERED:
        raise SourceError(f"left out: {count:,} {reason}; a full load with a gap would delete the rows it lacks")


def _reads(batch: ChangeBatch) -> ChangeBatch:
    ops = batch.table.column("op")
    removing = pc.is_in(ops, value_set=pa.array(["d", "t"]))
    if pc.any(removing).as_py():
        row = batch.table.filter(removing).slice(0, 1).to_pylist()[0]
        raise SourceError(
            f"{row['source_file']}:{row['source_offset']}: a {'delete' if row['op'] == 'd' else 'truncate'} in a full load"
        )
    reads = pa.repeat(pa.scalar("r"), batch.num_rows)
    return replace(batch, table=batch.table.set_column(batch.table.schema.get_field_index("op"), "op", reads))
