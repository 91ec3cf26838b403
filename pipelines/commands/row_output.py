"""Writing rows of a table: to the terminal, a pipe, or a file that appears whole or not at all."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa

from pipelines.errors import ConfigError
from pipelines.rendering import json_lines, render_rows
from scan_core.private_files import whole_file

TABLE_ROWS = 100
"""Most rows of the terminal's table; the other formats write all."""
_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "table",
}


class RowSource(Protocol):
    """A request for rows: a scan, or the changes between two snapshots."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the rows."""
        ...

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows."""
        ...


def write_rows(source: RowSource, output_format: str | None, output: Path | None) -> None:
    """Write the rows of `source` in `output_format`, else in the format of the output's suffix, else as a table.

    Args:
        source: the rows.
        output_format: a key of `_WRITERS`.
        output: a file; None or `-` for standard output.

    Raises:
        ConfigError: Parquet or Arrow to a terminal, or an output folder that does not exist.
    """
    if output == Path("-"):
        output = None
    chosen = output_format or (_BY_SUFFIX.get(output.suffix.lower()) if output else "table")
    if chosen is None:
        raise ConfigError(f"--output {output}: the suffix tells no format; add --format or use {', '.join(_BY_SUFFIX)}")
    if output is None and chosen in {"parquet", "arrow"} and sys.stdout.isatty():
        raise ConfigError(f"--format {chosen} is binary: give --output FILE or pipe it")
    with _sink(output) as sink:
        _WRITERS[chosen](source, sink)


@contextmanager
def _sink(output: Path | None) -> Iterator[IO[bytes]]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: the folder {output.parent} does not exist")
    with whole_file(output) as sink:
        yield sink


def _write_jsonl(source: RowSource, sink: IO[bytes]) -> None:
    for batch in source.to_batches():
        sink.writelines(json_lines(batch))


def _write_csv(source: RowSource, sink: IO[bytes]) -> None:
    import csv
    import io

    import orjson

    def cell(value: object) -> object:
        return orjson.dumps(value).decode() if isinstance(value, dict | list | bool) else value

    text = io.TextIOWrapper(sink, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(source.arrow_schema.names)
    for batch in source.to_batches():
        writer.writerows([cell(value) for value in row.values()] for row in render_rows(batch))
    text.detach()


def _write_parquet(source: RowSource, sink: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, source.arrow_schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in source.to_batches():
            writer.write_batch(batch)


def _write_arrow(source: RowSource, sink: IO[bytes]) -> None:
    with pa.ipc.new_stream(sink, source.arrow_schema) as writer:
        for batch in source.to_batches():
            writer.write_batch(batch)


def _write_table(source: RowSource, sink: IO[bytes]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = _first_rows(source, TABLE_ROWS + 1)
    grid = Table(show_edge=False, pad_edge=False)
    for field in rows.schema:
        grid.add_column(field.name, justify="right" if _is_number(field.type) else "left", overflow="fold")
    for row in render_rows(rows.slice(0, TABLE_ROWS)):
        grid.add_row(*("" if value is None else str(value) for value in row.values()))
    import io

    text = io.TextIOWrapper(sink, encoding="utf-8", write_through=True)
    console = Console(file=text, markup=False, highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(grid)
    shown = min(rows.num_rows, TABLE_ROWS)
    more = "more than " if rows.num_rows > TABLE_ROWS else ""
    note = "; --format jsonl, csv, parquet or arrow writes all" if more else ""
    console.print(f"{more}{shown} row{'' if shown == 1 else 's'}{note}")
    text.detach()


def _first_rows(source: RowSource, num_rows: int) -> pa.Table:
    """At most `num_rows` rows, read from `source` itself so that its metrics count them."""
    found: list[pa.RecordBatch] = []
    missing = num_rows
    with closing(source.to_batches()) as batches:
        for batch in batches:
            found.append(batch.slice(0, missing))
            missing -= found[-1].num_rows
            if not missing:
                break
    return pa.Table.from_batches(found, source.arrow_schema)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_WRITERS: dict[str, Callable[[RowSource, IO[bytes]], None]] = {
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "table": _write_table,
}
