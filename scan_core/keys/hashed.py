"""Delete keys of any type and number of columns as a table of 64-bit hashes, each hit verified on the full key.

Where the key is one 64-bit word its hash is a bijection: nothing is stored or verified beside it, and NULL is kept
apart.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.keys.columns import (
    DictionaryColumn,
    FixedColumn,
    Flags,
    KeyColumn,
    Rows,
    Words,
    column_bytes,
    concat,
    is_one_word,
    key_column,
    null_flags,
)
from scan_core.keys.hash import HashSeed, KeyRows, hash_rows, hash_seed, rotated, same_keys
from scan_core.keys.summary import DeleteKeys, KeySummary, Ranks, rank_of, ranks_of, summarise
from scan_core.keys.table import BuiltTable, HashTable, build_hash_table, scratch
from scan_core.model.errors import ScanError
from scan_core.native.compiled import kernels_if_worthwhile, measured
from scan_core.native.machine_code import Kernels

_MAX_SEEDS = 8
_NO_ROWS = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HashedIndex:
    """Entry e of `table` is row `rows[e]` of `columns`, and has rank `ranks[e]`.

    `columns` and `rows` are empty where the hash alone is the key; NULL then has `null_rank`.
    """

    sequence_numbers: tuple[int, ...]
    seed: HashSeed
    table: HashTable
    columns: tuple[KeyColumn, ...]
    rows: npt.NDArray[np.uint32]
    ranks: Ranks
    null_rank: int
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        held = self.table.num_bytes + self.rows.nbytes + self.ranks.nbytes + sum(s.num_bytes for s in self.summaries)
        return held + sum(column_bytes(c) for c in self.columns)

    @property
    def num_keys(self) -> int:
        """Distinct keys."""
        return len(self.ranks) + int(self.null_rank > 0)

    def deleted(self, keys: Sequence[pa.Array], threshold: int, *, use_numba: bool = True) -> Flags:
        """Rows whose key has a rank above the threshold."""
        kernels = kernels_if_worthwhile(use_numba=use_numba)
        with measured(kernels):
            columns = [key_column(array) for array in keys]
            if kernels is not None and not self.columns and isinstance(columns[0], FixedColumn):
                return self._deleted_words(columns[0], threshold, kernels)
            hashes = hash_rows(columns, self.seed, kernels)
            return self.deleted_hashes(hashes, columns, threshold, kernels)

    def _deleted_words(self, column: FixedColumn, threshold: int, kernels: Kernels) -> Flags:
        """The same for keys of one word, which are hashed and looked up without storing the hashes."""
        words = np.ascontiguousarray(column.words[0])
        key = self.seed.secret(0, 0), self.seed.first, self.seed.multiplier(0, 0)
        ranks = self.ranks.view(np.uint8), self.ranks.itemsize, threshold
        dead = np.zeros(len(words), np.bool_)
        kernels["mark_words"](words, len(words), *key, *self.table.arguments, *ranks, *scratch(), dead.view(np.uint8))
        if column.valid is not None:
            dead[~column.valid] = self.null_rank > threshold
        return dead

    def deleted_hashes(
        self,
        hashes: Words,
        columns: Sequence[KeyColumn],
        threshold: int,
        kernels: Kernels | None,
        among: Rows | None = None,
    ) -> Flags:
        """The same for rows that were hashed with `seed` before; `among` are their places in the columns."""
        rows, entries = self.table.find(hashes, kernels)
        if threshold > 0:
            live = self.ranks[entries] > threshold
            rows, entries = rows[live], entries[live]
        dead = np.zeros(len(hashes), np.bool_)
        if self.columns:
            stored = KeyRows(self.columns, self.rows[entries].astype(np.int64))
            places = rows if among is None else among[rows]
            dead[rows[same_keys(KeyRows(columns, places), stored, kernels)]] = True
        else:
            dead[rows] = True
            if (nulls := null_flags(columns[0])) is not None:
                dead[nulls if among is None else nulls[among]] = self.null_rank > threshold
        return dead


def build_hashed(
    parts: Sequence[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    *,
    use_numba: bool,
    seed: HashSeed | None = None,
    rotation: int = 0,
) -> HashedIndex:
    """A table over the keys of the parts, which ascend by sequence number.

    Hashed with the given seed, by default with a random one under which no two keys have one hash; then rotated by so
    many bits, which all keys of a partition have in common.

    Raises:
        ScanError: different keys have one hash under the given seed.
    """
    kernels = kernels_if_worthwhile(use_numba=use_numba)
    with measured(kernels):
        columns = tuple(
            concat([key_column(p.columns[i]) for p in parts] or [key_column(pa.array([], kind))])
            for i, kind in enumerate(key_types)
        )
        ranks = ranks_of(parts, sequence_numbers)
        has_null = [null_flags(c) is not None for c in columns]
        is_bijective = len(columns) == 1 and is_one_word(key_types[0])
        null_rank = 0
        if is_bijective:
            null_rank = max(
                (rank_of(p.sequence_number, sequence_numbers) for p in parts if p.columns[0].null_count), default=0
            )
            columns, ranks = _without_nulls(columns[0], ranks)
        seed, built = _build_table(columns, seed, rotation, kernels)
        ranks = ranks[built.rows]
        summaries = tuple(
            summarise([c], has_null=n, kind=kind, kernels=kernels)
            for c, n, kind in zip(columns, has_null, key_types, strict=True)
        )
        columns, rows = ((), _NO_ROWS) if is_bijective else (columns, built.rows)
        return HashedIndex(sequence_numbers, seed, built.table, columns, rows, ranks, null_rank, summaries)


def random_seed() -> HashSeed:
    """A seed that nobody can guess."""
    return hash_seed(secrets.randbits(63))


def _without_nulls(column: KeyColumn, ranks: Ranks) -> tuple[tuple[KeyColumn, ...], Ranks]:
    nulls = null_flags(column)
    if nulls is None:
        return (column,), ranks
    kept = np.flatnonzero(~nulls)
    plain, places = (column.values, column.codes[kept]) if isinstance(column, DictionaryColumn) else (column, kept)
    assert isinstance(plain, FixedColumn)  # noqa: S101 - the key is one word
    return (FixedColumn((plain.words[0][places],), None, len(kept)),), ranks[kept]


def _build_table(
    columns: Sequence[KeyColumn], seed: HashSeed | None, rotation: int, kernels: Kernels | None
) -> tuple[HashSeed, BuiltTable]:
    """A seed under which different keys have different hashes, and the table of these."""
    for _ in range(_MAX_SEEDS if seed is None else 1):
        tried = random_seed() if seed is None else seed
        built = build_hash_table(rotated(hash_rows(columns, tried, kernels), rotation), kernels)
        one, other = (KeyRows(columns, rows) for rows in built.repeats)
        if same_keys(one, other, kernels).all():
            return tried, built
    raise ScanError(f"delete keys collide under {_MAX_SEEDS if seed is None else 1} random seeds")
