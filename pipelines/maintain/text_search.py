"""Texts that are searched for in files of any kind, in all the ways in which these may write them."""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nevermore.pipelines.iceberg.manifests import EntryStatus, read_avro
from nevermore.pipelines.iceberg.storage import StoredFile
from nevermore.pipelines.maintain.retention import OpenedTable
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import cached_property

_ALTERNATIVES = 200
"""Texts in one pattern."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def texts_of(keys: pa.Table) -> Iterator[str]:
    """The values of keys that are text, or are written as text."""
    for column in keys.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            yield from (text for text in pc.unique(column).to_pylist() if text)
        elif pa.types.is_fixed_size_binary(column.type) and column.type.byte_width == 16:
            yield from (str(UUID(bytes=value)) for value in pc.unique(column).to_pylist() if value)


def _parts(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (values[begin : begin + size] for begin in range(0, len(values), size))


def patterns(texts: Sequence[str]) -> Iterator[str]:
    """Regular expressions for texts, as they are and as JSON writes them, that are not a part of a longer word."""
    written = list(dict.fromkeys(chain.from_iterable(map(spellings, texts))))
    for part in _parts(written, _ALTERNATIVES):
        yield rf"(?:^|[^0-9A-Za-z])(?:{'|'.join(map(re.escape, part))})(?:$|[^0-9A-Za-z])"


def spellings(text: str) -> Iterator[str]:
    """A text as it is, and as JSON may write it: with escapes for quotes, control characters, slashes and letters beyond ASCII."""
    escaped = json.dumps(text)[1:-1]
    in_capitals = re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), escaped)
    written = dict.fromkeys((text, json.dumps(text, ensure_ascii=False)[1:-1], escaped, in_capitals))
    yield from dict.fromkeys((*written, *(one.replace("/", r"\/") for one in written)))


def members(names: Iterable[str], values: Iterable[Any]) -> Iterator[str]:
    """Regular expressions for members of JSON objects that have one of these names and one of these values."""
    name = "|".join(re.escape(written) for one in names for written in spellings(one))
    known = (value for value in values if value is not None)
    written = sorted(set(chain.from_iterable(map(_written, known))))
    for part in _parts(written, _ALTERNATIVES):
        yield rf'"(?:{name})"\s*:\s*"?(?:{"|".join(part)})"?\s*(?:[,}}\]]|$)'


def _written(value: Any) -> Iterator[str]:
    """Regular expressions for a value as feeds write it: times as text, or as a number since 1970 of days or parts of a second."""
    match value:
        case datetime():
            moment = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).astimezone(UTC)
            yield rf'{moment:%Y-%m-%d}[T ]{moment:%H:%M:%S}[^"]*'
            micros = (moment - _EPOCH) // timedelta(microseconds=1)
            yield from (str(micros * 1000), str(micros), str(micros // 1000), str(micros // 1_000_000))
        case date():
            yield from (value.isoformat(), str((value - _EPOCH.date()).days))
        case _:
            yield from map(re.escape, spellings(str(value)))


@dataclass(frozen=True, slots=True)
class Searched:
    """What the search of a file found.

    Attributes:
        has_text: whether it has one of the texts.
        num_bytes: bytes of the values that were compared.
        fault: what keeps anybody from knowing which texts and keys it has, such as damage; empty if they are known.
    """

    has_text: bool
    num_bytes: int = 0
    fault: str = ""


class TextSearch:
    """Searches texts in files of any kind."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._patterns = list(patterns(texts))
        self._stored = [written.encode() for text in texts for written in spellings(text)]

    @cached_property
    def _compiled(self) -> list[re.Pattern[str]]:
        return [re.compile(pattern) for pattern in self._patterns]

    def look_into(self, file: StoredFile, found: OpenedTable) -> Searched:
        """Search one file, of whatever format its name states."""
        if not self._patterns and not file.path.endswith(".avro"):
            return Searched(has_text=False)
        try:
            return self._look_into(file.path, found)
        except FileNotFoundError:  # it was deleted meanwhile
            return Searched(has_text=False)
        except (ScanError, pa.ArrowException, OSError, EOFError, ValueError) as error:
            return Searched(has_text=False, fault=str(error))

    def _look_into(self, path: str, found: OpenedTable) -> Searched:
        if path.endswith(".parquet"):
            return self._in_parquet(path, found)
        data = found.storage.read(path)
        if path.endswith(".avro"):
            rows = read_avro(data, path).rows
            values = list(_leaves(rows))
            fault = "bounds of files that were removed" * any(map(_has_removed_bounds, rows))
            return Searched(
                any(pattern.search(value) for pattern in self._compiled for value in values),
                sum(map(len, values)),
                fault,
            )
        if path.endswith(".gz"):
            with pa.CompressedInputStream(io.BytesIO(data), "gzip") as stream:
                data = stream.read()
        return Searched(any(text in data for text in self._stored), len(data))

    def _in_parquet(self, path: str, found: OpenedTable) -> Searched:
        num_bytes = 0
        has_text = False
        with found.storage.open_input(path) as source, pq.ParquetFile(source) as stored:
            for batch in stored.iter_batches():
                num_bytes += batch.nbytes
                has_text = has_text or any(self._in_column(column) for column in batch.columns)
        return Searched(has_text, num_bytes)

    def _in_column(self, column: pa.Array) -> bool:
        kind = column.type
        if isinstance(column, pa.ExtensionArray):
            return self._in_column(column.storage)
        if pa.types.is_dictionary(kind):
            return self._in_column(column.dictionary)
        if pa.types.is_struct(kind):
            return any(self._in_column(one) for one in column.flatten())
        if pa.types.is_map(kind):
            return self._in_column(column.keys) or self._in_column(column.items)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return self._in_column(column.flatten())
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)):
            return False
        return any(pc.any(pc.match_substring_regex(column, pattern)).as_py() for pattern in self._patterns)


def _has_removed_bounds(row: Mapping[str, Any]) -> bool:
    """Whether a row of a manifest has values of a removed file: cut off, or of any type, so that no text finds them."""
    return row.get("status") == EntryStatus.DELETED and bool(row["data_file"].get("lower_bounds"))


def _leaves(value: Any) -> Iterator[str]:
    """Texts in a decoded Avro file; bytes as text of their single bytes, so that those of UTF-8 are found as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _leaves(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
