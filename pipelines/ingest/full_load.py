"""Reads a full load of a source table, whose rows replace those of a mirror."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.sources import FilesSource
from nevermore.pipelines.decode.batches import ChangeBatch
from nevermore.pipelines.decode.feed import Decided
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.formats.registry import decode, lookup
from nevermore.pipelines.iceberg.row_shape import with_columns
from nevermore.pipelines.ingest.feeds import Feed, remote_files, with_located_options
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.sources.file_changes import RE_DELIVERED, Listing

ROWS_FORMAT = "rows"


def snapshot_batches(
    table: TableIngest, project: Config, paths: tuple[str, ...], kind: str | None
) -> Iterator[ChangeBatch]:
    """The rows of a full load, as snapshot reads.

    Args:
        table: the table that is loaded in full.
        project: the config that has the table.
        paths: files or patterns of files.
        kind: their format; None is that of the table's feed.

    Raises:
        SourceError: no files, an event that cannot be decoded, or one that is not a row.
    """
    config = project.table(table.name)
    if kind is None and not isinstance(config.source, FilesSource):
        raise ConfigError(f"{table.name} is not read from files: state the format of these files (--format)")
    source = (
        config.source
        if kind is None and isinstance(config.source, FilesSource)
        else FilesSource(path=paths, format=kind)
    )
    source = with_located_options(source, project.folder)
    options = dict(source.options)
    if source.format is not None and lookup(source.format) is lookup(ROWS_FORMAT):
        options.setdefault("no_op", "r")
    own = config.model_copy(update={"order_by": "position", "source_table": config.source_table or table.source_table})
    source = source.model_copy(update={"path": paths, "options": options})
    feed = Feed(source, {table.name: own}, (table.name,), Listing(paths, remote_files(project)))
    feed.check()
    decided = Decided()
    types = table.known_types
    for files in feed.batches(None, feed.applied_lines([]), _refuse_gaps):
        decoding = feed.config([table], decided)
        decoded = decode(files.raw, replace(decoding, tables=(replace(decoding.tables[0], known_types=types),)))
        decided = decoded.decided
        if decoded.rejected.num_rows:
            first = decoded.rejected.table.slice(0, 1).to_pylist()[0]
            raise SourceError(
                f"{first['source_file']}:{first['source_offset']}: {first['reason']}; a full load with a gap would delete "
                "the rows that it lacks, so none of it was read"
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
    return replace(batch, table=with_columns(batch.table, {"op": reads}))
