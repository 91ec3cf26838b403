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
from nevermore.scan_core.joins.column_keys import ColumnKeys, KeyField, column_keys, may_hold
from nevermore.scan_core.keys.equality_index import (
    EqualityIndex,
    build_bytes,
    build_index,
    build_index_streamed,
    covers_all,
    find_deleted,
    needs_streaming,
)
from nevermore.scan_core.keys.lookup import DeleteKeys
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
        if not all(may_hold(column, statistics_of) for column in self.columns):
            return Match.NEVER
        first = statistics_of(self.columns[0].field.field_id)
        return Match.ALWAYS if covers_all(self.index, first, 0) else Match.MAYBE


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


_UUID_TEXT = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"


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
    if str(column_type) == "uuid":
        found = _as_uuids(keys, target)
    else:
        found = _in_type(keys, target) if _can_be_equal(keys.type, target) else None
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
    if pt.is_unsigned_integer(keys.type) and keys.type.bit_width < 64:  # the largest would become negative
        return keys.cast(pa.int64())
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


def _in_type(keys: pa.Array, target: pa.DataType) -> pa.Array:
    """The keys that are the same in another type, the others NULL."""
    if keys.type == target or pt.is_large_string(keys.type):
        return keys
    if pt.is_fixed_size_binary(target):
        return _as_fixed(keys, target)
    if pt.is_decimal(keys.type) or pt.is_decimal(target) or pt.is_uint64(keys.type):  # to have any of their values
        keys = keys.cast(pa.decimal256(76, keys.type.scale if pt.is_decimal(keys.type) else 0))
    found = keys.cast(target, safe=False)
    again = found.cast(keys.type, safe=False)
    is_same = pc.equal(again, keys)
    if pt.is_floating(keys.type):
        is_same = pc.or_kleene(is_same, pc.and_(pc.is_nan(again), pc.is_nan(keys)))
    if pt.is_decimal(target):  # a cast does not count digits
        wide = pa.decimal256(76, target.scale)
        limit = pa.scalar(10 ** (target.precision - target.scale), pa.decimal256(76, 0)).cast(wide)
        is_same = pc.and_kleene(is_same, pc.less(pc.abs(found.cast(wide)), limit))
    return _where(found, is_same)


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


_Kind = Callable[[pa.DataType], bool]
_KINDS: tuple[tuple[_Kind, tuple[_Kind, ...]], ...] = (
    (pt.is_integer, (pt.is_integer, pt.is_decimal, pt.is_floating)),
    (pt.is_decimal, (pt.is_integer, pt.is_decimal)),
    (pt.is_floating, (pt.is_floating, pt.is_integer)),
    (pt.is_date32, (pt.is_date,)),
    (pt.is_time, (pt.is_time,)),
    (pt.is_string, (pt.is_string, pt.is_large_string)),
    (pt.is_binary, (pt.is_binary, pt.is_fixed_size_binary, pt.is_large_binary)),
    (pt.is_fixed_size_binary, (pt.is_binary, pt.is_fixed_size_binary)),
)
"""Kinds of columns, each with the kinds of keys that may be equal to their values."""


def _can_be_equal(kind: pa.DataType, target: pa.DataType) -> bool:
    if pt.is_timestamp(kind) and pt.is_timestamp(target):
        return (kind.tz is None) == (target.tz is None)
    return kind == target or any(to(target) and any(of(kind) for of in kinds) for to, kinds in _KINDS)
