"""KeySet: the distinct keys of a join's build side, as values of a column, with an exact lookup and facts for pruning.

The lookup is the one of equality deletes (`keys/equality_index.py`): a table over close integers, else a seeded Bloom
filter in front of exact hashes, every hit verified, spilled beyond the memory limit. It is built once per process, on
first use, however many splits carry the set.

Callers that give keys need not know the width, unit or precision of the column: 5 as int64 is 5 as int32, and 2**40 is in no
int column. Another kind of value (text for a number, a date for a timestamp) is refused, never converted.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from nevermore.scan_core.columns.file_reader import StatisticsOf
from nevermore.scan_core.expr.casts import uuid_values
from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.joins.column_keys import ColumnKeys, KeyField, column_keys
from nevermore.scan_core.keys.equality_index import (
    EqualityIndex,
    build_bytes,
    build_index,
    build_index_streamed,
    covers_all,
    find_deleted,
    needs_streaming,
)
from nevermore.scan_core.keys.summary import DeleteKeys
from nevermore.scan_core.model.cached_property import cached_property
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import Type, arrow_type
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.rows.buffers import Mask

_PART_ROWS = 1_000_000


@dataclass(frozen=True)
class KeySet:
    """Distinct keys.

    Attributes:
        fields: the columns that they are compared with.
        columns: one array per column, in the engine's types, without NULL.
    """

    fields: tuple[KeyField, ...]
    columns: tuple[pa.Array, ...]

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and (self.fields, self.digest) == (other.fields, other.digest)

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return len(self.columns[0])

    @property
    def num_bytes(self) -> int:
        """Memory of the keys themselves."""
        return sum(int(column.nbytes) for column in self.columns)

    @cached_property
    def digest(self) -> str:
        """A digest that identifies the keys."""
        content = hashlib.blake2b(digest_size=16)
        for field, column in zip(self.fields, self.columns, strict=True):
            content.update(f"{field.field_id} {field.type} {len(column)};".encode())
            content.update(self._stream(column))
        return content.hexdigest()

    def lookup(self, options: ScanOptions) -> "KeyLookup":
        """The lookup, built on first use in this process and cached within `delete_cache_bytes`."""
        key = self, options.memory_limit_bytes
        return _LOOKUPS.get(key, lambda: build_lookup(self, options), options.delete_cache_bytes)

    @staticmethod
    def _stream(column: pa.Array) -> memoryview:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("k", column.type)])) as writer:
            writer.write_batch(pa.record_batch([column], names=["k"]))
        return memoryview(sink.getvalue())


@dataclass(frozen=True, slots=True, eq=False)
class KeyLookup:
    """Whether rows have a key of the set.

    Attributes:
        keys: the set.
        index: its exact index.
        columns: what pruning knows of each column.
    """

    keys: KeySet
    index: EqualityIndex
    columns: tuple[ColumnKeys, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held, the keys themselves included."""
        return self.keys.num_bytes + self.index.num_bytes

    def contains(self, rows: Sequence[pa.Array]) -> Mask:
        """True for rows whose columns, in the engine's types and perhaps dictionary-encoded, are a key; NULL is none."""
        if not len(rows[0]):
            return np.ones(0, np.bool_)
        if self.keys.num_keys == 0:
            return np.zeros(len(rows[0]), np.bool_)
        return find_deleted(self.index, [unify_zeros(r) for r in rows], 0)

    def match(self, statistics_of: StatisticsOf) -> Match:
        """NEVER: no row within these statistics has a key; ALWAYS: every row has one; MAYBE: rows must be looked up."""
        known = [statistics_of(column.field.field_id) for column in self.columns]
        if not all(column.may_hold(k) for column, k in zip(self.columns, known, strict=True)):
            return Match.NEVER
        return Match.ALWAYS if covers_all(self.index, known[0], 0) else Match.MAYBE


def build_lookup(keys: KeySet, options: ScanOptions) -> KeyLookup:
    """Index the keys, within the memory limit of a scan."""
    if keys.num_keys == 0:
        return _empty_lookup(keys, options)
    kinds = tuple(column.type for column in keys.columns)
    expected = build_bytes(keys.num_keys, keys.num_bytes)
    if needs_streaming(expected, options.memory_limit_bytes):
        starts = range(0, keys.num_keys, _PART_ROWS)

        def parts() -> list[DeleteKeys]:
            return [DeleteKeys(1, tuple(c.slice(s, _PART_ROWS) for c in keys.columns)) for s in starts]

        index = build_index_streamed(parts, kinds, (1,), expected, options.memory_limit_bytes)
    else:
        index = build_index([DeleteKeys(1, keys.columns)], kinds, options.memory_limit_bytes)
    columns = tuple(
        column_keys(field, column, summary)
        for field, column, summary in zip(keys.fields, keys.columns, index.summaries, strict=True)
    )
    return KeyLookup(keys, index, columns)


def _empty_lookup(keys: KeySet, options: ScanOptions) -> KeyLookup:
    none = pa.array([], pa.int64())
    index = build_index([DeleteKeys(1, (none,))], (none.type,), options.memory_limit_bytes)
    columns = tuple(
        column_keys(field, column, index.summaries[0]) for field, column in zip(keys.fields, keys.columns, strict=True)
    )
    return KeyLookup(keys, index, columns)


_LOOKUP_BYTES = 4 * 1024
"""What a lookup takes besides its keys."""
_LOOKUPS: BoundedCache[tuple[KeySet, int], KeyLookup] = BoundedCache(lambda lookup: lookup.num_bytes + _LOOKUP_BYTES)
"""Lookups of this process."""
os.register_at_fork(after_in_child=_LOOKUPS.forget_threads)


_MAX_DIGITS = 38
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MILLISECONDS_PER_DAY = 86_400_000
_FLOAT_EXACT = 1 << 53
_UUID_TEXT = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"


Conversion = Callable[[pa.Array, pa.DataType], pa.Array | None]


def as_column_values(keys: pa.Array, column: str, column_type: Type) -> pa.Array:
    """The keys that can be values of the column, in the engine's Arrow type, the others NULL; one per key.

    Args:
        keys: an array of any Arrow type.
        column: its name, for messages.
        column_type: its Iceberg type.

    Raises:
        OptionError: the keys are of another kind than the column.
    """
    target = arrow_type(column_type)
    keys = _plain(keys)
    if pt.is_null(keys.type):
        return pa.nulls(len(keys), target)
    is_uuid = str(column_type) == "uuid"
    convert = _as_uuids if is_uuid else _conversion(keys.type, target)
    found = convert(keys, target) if convert is not None else None
    if found is None:
        raise OptionError(
            f"keys of type {keys.type} cannot be compared with column {column!r} of type {column_type}; convert them first"
        )
    return unify_zeros(found)


def unify_zeros(array: pa.Array) -> pa.Array:
    """Floats with one zero: both zeros are one key, as in every join."""
    if pt.is_dictionary(array.type) and pt.is_floating(array.type.value_type):
        array = array.dictionary_decode()
    return pc.add(array, pa.scalar(0.0, array.type)) if pt.is_floating(array.type) else array


def _plain(keys: pa.Array) -> pa.Array:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if isinstance(keys, pa.DictionaryArray):
        keys = keys.dictionary_decode()
    if isinstance(keys, pa.ExtensionArray):
        keys = keys.storage
    if pt.is_float16(keys.type):  # few kernels know it
        return keys.cast(pa.float32())
    if pt.is_string_view(keys.type) or pt.is_large_string(keys.type):
        return _narrow_text(keys, pa.string(), pa.large_string())
    if pt.is_binary_view(keys.type) or pt.is_large_binary(keys.type):
        return _narrow_text(keys, pa.binary(), pa.large_binary())
    return keys


def _narrow_text(keys: pa.Array, narrow: pa.DataType, wide: pa.DataType) -> pa.Array:
    return keys.cast(narrow) if keys.nbytes < 2**31 else keys.cast(wide)


def _where(array: pa.Array, condition: pa.Array) -> pa.Array:
    """The values for which the condition is true, the others NULL."""
    return pc.if_else(condition.fill_null(False), array, pa.scalar(None, array.type))


def _within(keys: pa.Array, low: int, high: int) -> pa.Array:
    """The keys in the range, as far as their type reaches."""
    kind = keys.type
    if pt.is_integer(kind):
        bits, signed = kind.bit_width, pt.is_signed_integer(kind)
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        low, high = max(low, least), min(high, most)
    inside = pc.and_(pc.greater_equal(keys, pa.scalar(low, kind)), pc.less_equal(keys, pa.scalar(high, kind)))
    return _where(keys, inside)


def _as_integers(keys: pa.Array, target: pa.DataType) -> pa.Array:
    limit = 1 << (target.bit_width - 1)
    return _within(keys, -limit, limit - 1).cast(target)


def _whole_to_integers(keys: pa.Array, target: pa.DataType) -> pa.Array:
    whole = _where(keys, pc.equal(keys, pc.floor(keys)))
    if pt.is_floating(keys.type):
        wide = whole.cast(pa.float64())
        inside = pc.and_(pc.greater_equal(wide, -(2.0**63)), pc.less(wide, 2.0**63))
        return _as_integers(_where(wide, inside).cast(pa.int64()), target)
    integral = whole.cast(pa.decimal256(76, whole.type.scale)).cast(pa.decimal256(76, 0))
    limit = 1 << (target.bit_width - 1)
    inside = pc.and_(
        pc.greater_equal(integral, pa.scalar(-limit, pa.decimal256(76, 0))),
        pc.less(integral, pa.scalar(limit, pa.decimal256(76, 0))),
    )
    return _where(integral, inside).cast(target)


def _as_decimals(keys: pa.Array, target: pa.DataType) -> pa.Array | None:
    if pt.is_integer(keys.type):
        wide = (
            keys.cast(pa.decimal256(76, 0))
            if keys.type.bit_width == 64
            else keys.cast(pa.int64()).cast(pa.decimal256(76, 0))
        )
    else:
        wide = keys.cast(pa.decimal256(76, keys.type.scale))
    common = pa.decimal256(76, max(target.scale, wide.type.scale))
    wide = wide.cast(common)
    if target.precision - target.scale + common.scale < common.precision:  # else everything is below the limit
        limit = pa.scalar(10 ** (target.precision - target.scale), pa.decimal256(76, 0)).cast(common)
        wide = _where(wide, pc.less(pc.abs(wide), limit))
    scaled = wide.cast(pa.decimal256(76, target.scale), safe=False)
    return _where(scaled, pc.equal(scaled.cast(common), wide)).cast(target)


def _as_floats(keys: pa.Array, target: pa.DataType) -> pa.Array:
    if pt.is_integer(keys.type):
        keys = _within(keys, -_FLOAT_EXACT, _FLOAT_EXACT).cast(pa.float64())
    wide = keys.cast(pa.float64())
    narrow = wide.cast(target, safe=False)
    back = narrow.cast(pa.float64())
    return _where(narrow, pc.or_kleene(pc.equal(back, wide), pc.and_(pc.is_nan(back), pc.is_nan(wide))))


def _as_moments(keys: pa.Array, target: pa.DataType) -> pa.Array | None:
    if pt.is_timestamp(target) and (keys.type.tz is None) != (target.tz is None):
        return None
    have, want = _PER_SECOND[keys.type.unit], _PER_SECOND[target.unit]
    stored = keys.cast(pa.int32()).cast(pa.int64()) if keys.type.bit_width == 32 else keys.cast(pa.int64())
    if want >= have:
        limit = ((1 << 63) - 1) // (want // have)
        numbers = pc.multiply(_within(stored, -limit, limit), want // have)
    else:
        step = have // want
        numbers = pc.divide(stored, step)
        numbers = _where(numbers, pc.equal(pc.multiply(numbers, step), stored))
    return numbers.cast(target) if target.bit_width == 64 else numbers.cast(pa.int32()).cast(target)


def _as_dates(keys: pa.Array, target: pa.DataType) -> pa.Array:
    """Dates from milliseconds; values that are not whole days are NULL."""
    stored = keys.cast(pa.int64())
    days = pc.divide(stored, _MILLISECONDS_PER_DAY)
    whole = _where(days, pc.equal(pc.multiply(days, _MILLISECONDS_PER_DAY), stored))
    return _as_integers(whole, pa.int32()).cast(target)


def _as_fixed(keys: pa.Array, target: pa.DataType) -> pa.Array | None:
    variable = keys.cast(pa.binary())
    return _where(variable, pc.equal(pc.binary_length(variable), target.byte_width)).cast(target)


def _as_uuids(keys: pa.Array, target: pa.DataType) -> pa.Array | None:
    """UUIDs from 16 bytes, or from text in one of its usual forms."""
    if pt.is_binary(keys.type) or pt.is_fixed_size_binary(keys.type):
        return _as_fixed(keys, target)
    if not pt.is_string(keys.type):
        return None
    return uuid_values(keys, np.asarray(pc.match_substring_regex(keys, _UUID_TEXT).fill_null(False)))


def _unchanged(keys: pa.Array, target: pa.DataType) -> pa.Array:  # noqa: ARG001
    return keys


def _as_bytes(keys: pa.Array, target: pa.DataType) -> pa.Array:
    return keys.cast(target)


_Kind = Callable[[pa.DataType], bool]
_CONVERSIONS: tuple[tuple[_Kind, _Kind, Conversion], ...] = (
    (pt.is_integer, pt.is_integer, _as_integers),
    (pt.is_integer, pt.is_decimal, _whole_to_integers),
    (pt.is_integer, pt.is_floating, _whole_to_integers),
    (pt.is_decimal, pt.is_integer, _as_decimals),
    (pt.is_decimal, pt.is_decimal, _as_decimals),
    (pt.is_floating, pt.is_floating, _as_floats),
    (pt.is_floating, pt.is_integer, _as_floats),
    (pt.is_date32, pt.is_date64, _as_dates),
    (pt.is_timestamp, pt.is_timestamp, _as_moments),
    (pt.is_time, pt.is_time, _as_moments),
    (pt.is_string, pt.is_large_string, _unchanged),
    (pt.is_binary, pt.is_fixed_size_binary, _as_bytes),
    (pt.is_binary, pt.is_large_binary, _as_bytes),
    (pt.is_fixed_size_binary, pt.is_binary, _as_fixed),
    (pt.is_fixed_size_binary, pt.is_fixed_size_binary, _as_fixed),
)
"""Kind of the column, kind of the keys, and how these become values of the column."""


def _conversion(source: pa.DataType, target: pa.DataType) -> Conversion | None:
    if source == target:
        return _unchanged
    return next((convert for to, of, convert in _CONVERSIONS if to(target) and of(source)), None)
