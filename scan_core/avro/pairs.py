"""Maps of manifest entries, which Avro holds as arrays of key and value: skipped fast, decoded when asked for.

A manifest has six per data file, each over all columns; most are never looked at. One regular expression skips one and
proves it well-formed, so that decoding it later cannot fail. What was decoded is not kept: a plan of many files would
hold it all.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scan_core.avro.container import AvroError, read_long, read_slice
from scan_core.avro.schema import INTEGER_TYPES, record_fields, resolve, type_name
from scan_core.avro.values import Decoder, Skipper, array_decoder, pair_decoder

_COMMON_LENGTHS = (8, 4, 16, 1, 0, *(n for n in range(64) if n not in {8, 4, 16, 1, 0}))
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_MOST_PAIRS = 4096
"""More are decoded at once: no real table has so many columns, and patterns are kept."""
_EMPTY: Mapping[int, Any] = {}


class LazyPairs(Mapping[int, Any]):
    """A map of a manifest entry, decoded whenever it is used; pickles as a plain dict."""

    __slots__ = ("_buffer", "_count", "_of_bytes", "_start")

    def __init__(self, buffer: bytes, start: int, count: int, of_bytes: bool) -> None:  # noqa: FBT001 - hot, private
        self._buffer, self._start, self._count, self._of_bytes = buffer, start, count, of_bytes

    def __getitem__(self, key: int) -> Any:
        for found, value in self._pairs():
            if found == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[int]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def get(self, key: int, default: Any = None) -> Any:
        """The value of `key`, or the default."""
        for found, value in self._pairs():
            if found == key:
                return value
        return default

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._content(),)

    def __repr__(self) -> str:
        return repr(self._content())

    def _content(self) -> dict[int, Any]:
        content: dict[int, Any] = {}
        for key, value in self._pairs():
            content.setdefault(key, value)
        return content

    def _pairs(self) -> Iterator[tuple[int, Any]]:
        buffer, position, of_bytes = self._buffer, self._start, self._of_bytes
        for _ in range(self._count):
            byte = buffer[position]
            if byte < 128:
                key = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                key, position = read_long(buffer, position)
            byte = buffer[position]
            if byte < 128:
                number = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                number, position = read_long(buffer, position)
            if of_bytes:
                yield key, buffer[position : position + number]
                position += number
            else:
                yield key, number


def pairs_decoder(items: Any, named: Mapping[str, Any]) -> tuple[Decoder, Skipper]:
    """A decoder of key-value arrays into mappings, and a skipper of them.

    Raises:
        AvroError: the items are no pairs of an integer and an integer or bytes.
    """
    fields = record_fields(resolve(items, named))
    kinds = [type_name(resolve(f["type"], named)) for f in fields]
    names = [f.get("name") for f in fields]
    if names != ["key", "value"] or kinds[0] not in INTEGER_TYPES:
        raise AvroError(f"a map has entries {names} of {kinds}; expected key and value")
    if kinds[1] in INTEGER_TYPES:
        return _pairs_decoder(_integer_pairs, array_decoder(pair_decoder(read_long)), of_bytes=False)
    if kinds[1] == "bytes":
        return _pairs_decoder(_bytes_pairs, array_decoder(pair_decoder(read_slice)), of_bytes=True)
    raise AvroError(f"a map has values of type {kinds[1]}")


def is_pair(items: Any, named: Mapping[str, Any]) -> bool:
    """True if `items` describes a key and a value that `pairs_decoder` takes."""
    try:
        pairs_decoder(items, named)
    except AvroError:
        return False
    return True


def _pairs_decoder(
    pattern_of: Callable[[int], re.Pattern[bytes]], eager: Decoder, *, of_bytes: bool
) -> tuple[Decoder, Skipper]:
    patterns: dict[int, Callable[[bytes, int], re.Match[bytes] | None]] = {}

    def skip(buffer: bytes, position: int) -> tuple[int, int, int]:
        """Count, start and end of well-formed pairs in one block; count -1 for anything else."""
        count, start = read_long(buffer, position)
        if not 0 < count <= _MOST_PAIRS:
            return -1, start, start
        match = patterns.get(count)
        if match is None:
            match = patterns[count] = pattern_of(count).match
        found = match(buffer, start)
        return (-1, start, start) if found is None else (count, start, found.end())

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        if buffer[position] == 0:
            return _EMPTY, position + 1
        count, start, end = skip(buffer, position)
        if count > 0:
            return LazyPairs(buffer, start, count, of_bytes), end
        pairs, end = eager(buffer, position)
        return dict(reversed(pairs)), end

    def skip_all(buffer: bytes, position: int) -> int:
        if buffer[position] == 0:
            return position + 1
        count, _, end = skip(buffer, position)
        return end if count > 0 else eager(buffer, position)[1]

    return read, skip_all


def _integer_pairs(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:%b){%d}+\x00" % (_VARINT, 2 * count))


def _bytes_pairs(count: int) -> re.Pattern[bytes]:
    values = b"|".join(re.escape(bytes([2 * n])) + b"." * n for n in _COMMON_LENGTHS)
    return re.compile(rb"(?>%b(?:%b)){%d}+\x00" % (_VARINT, values, count), re.DOTALL)
