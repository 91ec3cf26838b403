"""Writes rows as JSON lines, CSV, Parquet or a table for the terminal.

They go to the terminal, to a pipe, or to a file that appears completely or not at all.
"""

import codecs
import math
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.cli.terminal import draw_grid
from nevermore.pipelines.errors import ConfigError
from nevermore.scan_core.io import whole_file
from nevermore.scan_core.parts import uuid_text

RENDER_ROWS = 8_192
"""Number of rows turned into Python objects at a time."""


def render_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows as JSON-ready dictionaries, in order. The names of columns are unique."""
    for offset in range(0, batch.num_rows, RENDER_ROWS):
        columns = map(_values, batch.slice(offset, RENDER_ROWS).columns)
        yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(array: pa.Array) -> list[Any]:
    """The values of an array as JSON-ready Python objects."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return uuid_text(array.storage).to_pylist() if kind.extension_name == "arrow.uuid" else _values(array.storage)
    for matches, render in _RENDERERS:
        if matches(kind):
            return render(array)
    return list(array.to_pylist())


def _struct(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    members = [_values(member) for member in array.flatten()]
    rows = zip(*members, strict=True) if members else ((),) * len(array)
    return [
        dict(zip(names, row, strict=True)) if valid else None
        for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _list(array: pa.Array) -> list[Any]:
    items = _values(array.flatten())
    ends = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)).tolist()
    starts = [0, *ends][: len(ends)]
    valid = array.is_valid().to_pylist()
    return [items[a:b] if v else None for a, b, v in zip(starts, ends, valid, strict=True)]


def _map(array: pa.Array) -> list[Any]:
    entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    rows = zip(_list(pa.ListArray.from_arrays(array.offsets, entries)), array.is_valid().to_pylist(), strict=True)
    return [{_key(entry["key"]): entry["value"] for entry in row} if valid else None for row, valid in rows]


def _key(key: Any) -> str:
    return key if isinstance(key, str) else orjson.dumps(key).decode()


def _floats(array: pa.Array) -> list[Any]:
    if not pa.types.is_float64(array.type):
        # the shortest digits of the narrow type: 0.1, not 0.10000000149011612 as after widening
        array = array.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
    return [v if v is None or math.isfinite(v) else _special(v) for v in array.to_pylist()]


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimals(array: pa.Array) -> list[Any]:
    return [None if v is None else f"{v:f}" for v in array.to_pylist()]


def _bytes(array: pa.Array) -> list[Any]:
    return [None if v is None else v.hex() for v in array.to_pylist()]


def _dates(array: pa.Array) -> list[Any]:
    return _iso(array.cast(pa.int32()).cast(pa.int64()), "D")


def _times(array: pa.Array) -> list[Any]:
    texts = _iso(array.cast(pa.time64(_unit(array))).cast(pa.int64()), _unit(array))
    return [None if t is None else t.split("T", 1)[1] for t in texts]


def _timestamps(array: pa.Array) -> list[Any]:
    unit = _unit(array)
    texts = _iso(array.cast(pa.timestamp(unit, array.type.tz)).cast(pa.int64()), unit)
    suffix = "+00:00" if array.type.tz else ""
    return [None if t is None else t + suffix for t in texts]


def _unit(array: pa.Array) -> str:
    return "ns" if array.type.unit == "ns" else "us"


def _iso(numbers: pa.Array, unit: str) -> list[str | None]:
    """ISO text of int64 counts of `unit` since the epoch, over NumPy's whole range of years."""
    valid = numbers.is_valid().to_pylist()
    counts: npt.NDArray[np.int64] = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    texts = np.datetime_as_string(counts.astype(f"datetime64[{unit}]")).tolist()
    return [text if ok else None for text, ok in zip(texts, valid, strict=True)]


_RENDERERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (pa.types.is_dictionary, lambda array: _values(array.dictionary_decode())),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_large_list, _list),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_binary, _bytes),
    (pa.types.is_large_binary, _bytes),
    (pa.types.is_fixed_size_binary, _bytes),
    (pa.types.is_date, _dates),
    (pa.types.is_time, _times),
    (pa.types.is_timestamp, _timestamps),
)


TABLE_ROWS = 100
"""Maximum number of rows in the terminal's table; the other formats write all rows."""
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


def write_rows(
    source: RowSource,
    output_format: str | None,
    output: Path | None,
    *,
    null: str | None = None,
    as_json: bool = False,
) -> None:
    """Write the rows of `source` in `output_format`, else in the format of the output's suffix, else as a table.

    Args:
        source: the rows.
        output_format: a key of `_WRITERS`.
        output: a file; None or `-` for standard output.
        null: the text for NULL in CSV; None for nothing.
        as_json: write JSON lines; no other format may be requested.

    Raises:
        ConfigError: `as_json` and another format, Parquet or Arrow to a terminal, or an output folder that does not exist.
    """
    if output == Path("-"):
        output = None
    chosen = output_format or (_BY_SUFFIX.get(output.suffix.lower()) if output else "table")
    if as_json:
        if (chosen if output_format or output else None) not in {None, "jsonl"}:
            raise ConfigError(f"--json writes JSON lines, but {chosen} is requested, too: leave --json out")
        chosen = "jsonl"
    if chosen is None:
        raise ConfigError(f"--output {output}: unknown suffix; add --format or use {', '.join(_BY_SUFFIX)}")
    if output is None and chosen in {"parquet", "arrow"} and sys.stdout.isatty():
        raise ConfigError(f"--format {chosen} is binary: give --output FILE or pipe it")
    if null is not None and (chosen != "csv" or _QUOTED.search(null)):
        raise ConfigError(f"--null {null!r}: a text without commas, quotes and line breaks, for --format csv alone")
    with _sink(output) as sink:
        if chosen == "csv":
            _write_csv(source, sink, null or "")
        else:
            _WRITERS[chosen](source, sink)


_QUOTED = re.compile(r'[",\r\n]')
_TEXT = codecs.getwriter("utf-8")
"""Text into a binary sink, which it never closes, also when writing fails: the sink may be standard output."""


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
    option = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    for batch in source.to_batches():
        sink.writelines(orjson.dumps(row, option=option) for row in render_rows(batch))


def _text(value: object) -> str:
    """A value as text; lists, maps, structs and booleans as JSON."""
    return orjson.dumps(value).decode() if isinstance(value, dict | list | bool) else str(value)


def _write_csv(source: RowSource, sink: IO[bytes], null: str) -> None:
    def cell(value: object) -> str:
        if value is None:
            return null
        # quotes distinguish a text from NULL: the empty one, and one that is spelled like it
        text = _text(value)
        return '"' + text.replace('"', '""') + '"' if text in {"", null} or _QUOTED.search(text) else text

    lines = _TEXT(sink)
    lines.write(",".join(map(cell, source.arrow_schema.names)) + "\r\n")
    for batch in source.to_batches():
        lines.writelines(",".join(map(cell, row.values())) + "\r\n" for row in render_rows(batch))


def _write_parquet(source: RowSource, sink: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    _write_with(pq.ParquetWriter(sink, source.arrow_schema, compression="zstd", write_page_checksum=True), source)


def _write_arrow(source: RowSource, sink: IO[bytes]) -> None:
    _write_with(pa.ipc.new_stream(sink, source.arrow_schema), source)


def _write_with(writer: Any, source: RowSource) -> None:
    with writer:
        for batch in source.to_batches():
            writer.write_batch(batch)


def _write_table(source: RowSource, sink: IO[bytes]) -> None:
    from rich.text import Text

    rows = _first_rows(source, TABLE_ROWS + 1)
    shown_rows = (
        [Text("NULL", style="dim") if value is None else _cell(value) for value in row.values()]
        for batch in rows.slice(0, TABLE_ROWS).to_batches()
        for row in render_rows(batch)
    )
    columns = ((field.name, _is_number(field.type)) for field in rows.schema)
    console = draw_grid(columns, shown_rows, cast("IO[str]", _TEXT(sink)))
    shown = min(rows.num_rows, TABLE_ROWS)
    more = "more than " if rows.num_rows > TABLE_ROWS else ""
    note = "; --format jsonl, csv, parquet or arrow writes all" if more else ""
    console.print(f"{more}{shown} row{'' if shown == 1 else 's'}{note}")


def _cell(value: object) -> str:
    """A value in the terminal's table, where NULL is written as such: that text itself has quotes."""
    return f"'{value}'" if value == "NULL" else _text(value)


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
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "table": _write_table,
}
