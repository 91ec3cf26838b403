"""KeySet: the distinct keys of a join's build side, with an exact lookup and what pruning needs to know of them.

The lookup is the one of equality deletes (`keys/equality_index.py`): a table over close integers, else a seeded Bloom
filter in front of exact hashes, every hit verified, spilled beyond the memory limit. It is built once per process, on
first use, however many splits carry the set.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from scan_core.columns.file_reader import StatisticsOf
from scan_core.io.cache import BoundedCache
from scan_core.joins.column_keys import ColumnKeys, KeyField, column_keys
from scan_core.joins.key_types import unify_zeros
from scan_core.keys.equality_index import (
    EqualityIndex,
    build_bytes,
    build_index,
    build_index_streamed,
    covers_all,
    find_deleted,
    needs_streaming,
)
from scan_core.keys.summary import DeleteKeys
from scan_core.model.arrays import Mask
from scan_core.model.options import ScanOptions
from scan_core.native.compiled import may_use_numba
from scan_core.prune.verdicts import Match

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
        key = self, may_use_numba(options), options.memory_limit_bytes
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

    def contains(self, rows: Sequence[pa.Array], *, use_numba: bool = True) -> Mask:
        """True for rows whose columns, in the engine's types and perhaps dictionary-encoded, are a key; NULL is none."""
        if not len(rows[0]):
            return np.ones(0, np.bool_)
        if self.keys.num_keys == 0:
            return np.zeros(len(rows[0]), np.bool_)
        return find_deleted(self.index, [unify_zeros(r) for r in rows], 0, use_numba=use_numba)

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
    use_numba = may_use_numba(options)
    expected = build_bytes(keys.num_keys, keys.num_bytes)
    if needs_streaming(expected, options.memory_limit_bytes):
        starts = range(0, keys.num_keys, _PART_ROWS)

        def parts() -> list[DeleteKeys]:
            return [DeleteKeys(1, tuple(c.slice(s, _PART_ROWS) for c in keys.columns)) for s in starts]

        index = build_index_streamed(parts, kinds, (1,), expected, options.memory_limit_bytes, use_numba=use_numba)
    else:
        index = build_index([DeleteKeys(1, keys.columns)], kinds, options.memory_limit_bytes, use_numba=use_numba)
    columns = tuple(
        column_keys(field, column, summary)
        for field, column, summary in zip(keys.fields, keys.columns, index.summaries, strict=True)
    )
    return KeyLookup(keys, index, columns)


def _empty_lookup(keys: KeySet, options: ScanOptions) -> KeyLookup:
    none = pa.array([], pa.int64())
    index = build_index([DeleteKeys(1, (none,))], (none.type,), options.memory_limit_bytes, use_numba=False)
    columns = tuple(
        column_keys(field, column, index.summaries[0]) for field, column in zip(keys.fields, keys.columns, strict=True)
    )
    return KeyLookup(keys, index, columns)


_LOOKUPS: BoundedCache[tuple[KeySet, bool, int], KeyLookup] = BoundedCache(lambda lookup: lookup.num_bytes)
"""Those of this process."""
os.register_at_fork(after_in_child=_LOOKUPS.forget_threads)
