"""Maps of manifest entries, which Avro holds as arrays of key and value: skipped fast, decoded when asked for.

A manifest has six per data file, each over all columns; most are never looked at. One regular expression skips one.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scan_core.avro.container import AvroError, read_long, read_slice
from scan_core.avro.schema import INTEGER_TYPES, record_fields, resolve, type_name
from scan_core.avro.values import Decoder, Skipper, array_decoder, array_skipper, pair_decoder, skip_long, skip_slice

_COMMON_LENGTHS = (8, 4, 16, 1, 0, *(n for n in range(64) if n not in {8, 4, 16, 1, 0}))
_VARINT = rb"[\x80-\xff]*+[\x00-\x7f]"


class LazyPairs(Mapping[int, Any]):
    """A map of a manifest entry, decoded at first use; pickles as a plain dict."""

    __slots__ = ("_buffer", "_content", "_decode", "_start")

    def __init__(self, buffer: bytes, start: int, decode: Decoder) -> None:
        self._buffer, self._start, self._decode = buffer, start, decode
        self._content: dict[int, Any] | None = None

    def __getitem__(self, key: int) -> Any:
        return self._pairs()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._pairs())

    def __len__(self) -> int:
        return len(self._pairs())

    def get(self, key: int, default: Any = None) -> Any:
        """The value of `key`, or the default."""
        return self._pairs().get(key, default)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._pairs(),)

    def __repr__(self) -> str:
        return repr(self._pairs())

    def _pairs(self) -> dict[int, Any]:
        if self._content is None:
            self._content = self._decode(self._buffer, self._start)[0]
        return self._content


def pairs_decoder(items: Any, named: Mapping[str, Any]) -> tuple[Decoder, Skipper]:
    """A decoder of key-value arrays into LazyPairs, and a skipper of them."""
    fields = record_fields(resolve(items, named))
    kinds = [type_name(resolve(f["type"], named)) for f in fields]
    names = [f.get("name") for f in fields]
    if names != ["key", "value"] or kinds[0] not in INTEGER_TYPES:
        raise AvroError(f"a map has entries {names} of {kinds}; expected key and value")
    if kinds[1] in INTEGER_TYPES:
        skip = _pairs_skipper(_integer_pairs, array_skipper(_skip_pair(skip_long)))
        return _lazy_decoder(skip, array_decoder(pair_decoder(read_long))), skip
    if kinds[1] == "bytes":
        skip = _pairs_skipper(_bytes_pairs, array_skipper(_skip_pair(skip_slice)))
        return _lazy_decoder(skip, array_decoder(pair_decoder(read_slice))), skip
    raise AvroError(f"a map has values of type {kinds[1]}")


def is_pair(items: Any, named: Mapping[str, Any]) -> bool:
    """True if `items` describes a key and a value that `pairs_decoder` takes."""
    try:
        pairs_decoder(items, named)
    except AvroError:
        return False
    return True


def _lazy_decoder(skip: Skipper, pairs: Decoder) -> Decoder:
    def decode_pairs(buffer: bytes, position: int) -> tuple[dict[int, Any], int]:
        entries, position = pairs(buffer, position)
        return dict(entries), position

    def read(buffer: bytes, position: int) -> tuple[Any, int]:
        if buffer[position] == 0:
            return _EMPTY, position + 1
        return LazyPairs(buffer, position, decode_pairs), skip(buffer, position)

    return read


def _pairs_skipper(pattern_of: Callable[[int], re.Pattern[bytes]], skip_one_by_one: Skipper) -> Skipper:
    patterns: dict[int, Callable[[bytes, int], Any]] = {}

    def skip(buffer: bytes, position: int) -> int:
        first = buffer[position]
        match = patterns.get(first)
        if match is None:
            if first == 0:
                return position + 1
            if first & 1 or first > 127:  # a negative count, or one of several bytes
                return skip_one_by_one(buffer, position)
            match = patterns[first] = pattern_of(first >> 1).match
        found = match(buffer, position + 1)
        return skip_one_by_one(buffer, position) if found is None else int(found.end())

    return skip


_EMPTY: Mapping[int, Any] = {}


def _integer_pairs(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:%b){%d}+\x00" % (_VARINT, 2 * count))


def _bytes_pairs(count: int) -> re.Pattern[bytes]:
    values = b"|".join(re.escape(bytes([2 * n])) + b"." * n for n in _COMMON_LENGTHS)
    return re.compile(rb"(?>%b(?:%b)){%d}+\x00" % (_VARINT, values, count), re.DOTALL)


def _skip_pair(skip_value: Skipper) -> Skipper:
    return lambda buffer, position: skip_value(buffer, skip_long(buffer, position))
