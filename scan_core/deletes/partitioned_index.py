"""Delete keys that do not fit into memory: hashed indexes by ranges of the hash, in files mapped one at a time.

Keys are distributed to spill files while they are read, so that no more than one partition is ever held. Only the bit
filters stay in memory; probing gives the pages of a partition back before it goes on to the next.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa

from scan_core.deletes.delete_keys import DeleteKeys
from scan_core.deletes.hashed_index import HashedIndex, build_hashed, random_seed
from scan_core.deletes.index_file import MappedIndex, write_index
from scan_core.deletes.key_summary import KeySummary, merge_summaries
from scan_core.errors import ScanError
from scan_core.index.hash_table import may_contain
from scan_core.index.key_columns import Flags, Words, key_column, null_flags
from scan_core.index.key_hash import HashSeed, hash_rows, rotated
from scan_core.native.compiled import kernels_if_worthwhile, measured
from scan_core.private_files import PrivateFolder, spill_folder

MAX_PARTITION_BITS = 8
"""256 spill files are open at a time."""
_SEQUENCE_NUMBER = b"sequence-number"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PartitionedIndex:
    """Partition p holds the keys whose hash begins with the bits of p."""

    sequence_numbers: tuple[int, ...]
    seed: HashSeed
    shift: int
    parts: tuple[MappedIndex, ...]
    filters: tuple[Words, ...]
    has_bijective_hash: bool
    null_rank: int
    num_keys: int
    summaries: tuple[KeySummary, ...]

    @property
    def num_bytes(self) -> int:
        """Memory held between probes."""
        return sum(s.num_bytes for s in self.summaries) + sum(f.nbytes for f in self.filters)

    def deleted(self, keys: Sequence[pa.Array], threshold: int, *, use_numba: bool = True) -> Flags:
        """Rows whose key has a rank above the threshold."""
        kernels = kernels_if_worthwhile(use_numba=use_numba)
        with measured(kernels):
            columns = [key_column(array) for array in keys]
            hashes = hash_rows(columns, self.seed, kernels)
            partition = (hashes >> np.uint64(self.shift)).astype(np.uint16)
            hashes = rotated(hashes, 64 - self.shift)
            dead = np.zeros(len(hashes), np.bool_)
            for number, (part, bits) in enumerate(zip(self.parts, self.filters, strict=True)):
                index = _hashed(part)
                own = hashes if index.seed == self.seed else hash_rows(columns, index.seed, kernels)
                among = np.flatnonzero(partition == number)
                among = among[may_contain(bits, own[among], index.table.levels[0, 1])]
                if len(among):
                    dead[among] = index.deleted_hashes(own[among], columns, threshold, kernels, among)
                    part.release()
            if self.has_bijective_hash and (nulls := null_flags(columns[0])) is not None:
                dead[nulls] = self.null_rank > threshold
            return dead


def build_partitioned(
    keys: Iterable[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    partitions: int,
    *,
    use_numba: bool,
) -> PartitionedIndex:
    """An index over keys that are read one file after the other, ascending by sequence number.

    Args:
        keys: by file; each is dropped before the next is asked for.
        key_types: of the key columns.
        sequence_numbers: all of the group, ascending.
        partitions: how many; rounded up to a power of two.
        use_numba: allow compiled kernels.

    Raises:
        OSError: no space for the spill files.
    """
    bits = min(max((partitions - 1).bit_length(), 1), MAX_PARTITION_BITS)
    seed, shift = random_seed(), 64 - bits
    parts: list[MappedIndex] = []
    own, name = spill_folder(), f"deletes-{secrets.token_hex(8)}"
    folder = own.folder(name)
    try:
        with _Spill(folder, key_types, seed, shift) as spill:
            for part in keys:
                spill.add(part, use_numba=use_numba)
        for number in range(1 << bits):
            index = _build_part(spill.read(number), key_types, sequence_numbers, seed, bits, use_numba=use_numba)
            write_index(index, folder, f"{number}.index")
            with folder.read(f"{number}.index") as file:
                parts.append(MappedIndex(file, is_verified=True))  # the mapping outlives the file's name
    finally:
        folder.close()
        own.remove_folder(name)
    num_keys = sum(_hashed(p).num_keys for p in parts)
    summaries = zip(*(_hashed(p).summaries for p in parts), strict=True)
    merged = tuple(merge_summaries(of_column) for of_column in summaries)
    filters = tuple(_hashed(p).table.first_bits.copy() for p in parts)
    for mapped in parts:
        mapped.release()
    is_bijective = not _hashed(parts[0]).columns
    null_rank = max(_hashed(p).null_rank for p in parts)
    return PartitionedIndex(
        sequence_numbers, seed, shift, tuple(parts), filters, is_bijective, null_rank, num_keys, merged
    )


def _hashed(part: MappedIndex) -> HashedIndex:
    assert isinstance(part.index, HashedIndex)  # noqa: S101 - partitions are built as such
    return part.index


def _build_part(
    keys: Iterator[DeleteKeys],
    key_types: Sequence[pa.DataType],
    sequence_numbers: tuple[int, ...],
    seed: HashSeed,
    rotation: int,
    *,
    use_numba: bool,
) -> HashedIndex:
    held = list(keys)
    try:
        return build_hashed(held, key_types, sequence_numbers, use_numba=use_numba, seed=seed, rotation=rotation)
    except ScanError:  # two keys of one hash: this partition gets a seed of its own
        return build_hashed(held, key_types, sequence_numbers, use_numba=use_numba)


class _Spill:
    """Keys by partition in Arrow stream files."""

    def __init__(self, folder: PrivateFolder, key_types: Sequence[pa.DataType], seed: HashSeed, shift: int) -> None:
        self._schema = pa.schema([pa.field(str(i), kind) for i, kind in enumerate(key_types)])
        self._seed = seed
        self._shift = shift
        self._folder = folder
        self._num_partitions = 1 << (64 - shift)
        self._files: list[BinaryIO] = []
        self._writers: list[Any] = []

    def __enter__(self) -> Self:
        self._files = [self._folder.create(f"{number}.keys") for number in range(self._num_partitions)]
        self._writers = [pa.ipc.new_stream(file, self._schema) for file in self._files]
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        for file in self._files:
            file.close()

    def add(self, part: DeleteKeys, *, use_numba: bool) -> None:
        """Append the keys of a file to their partitions."""
        if not part.num_rows:
            return
        plain = [a.dictionary_decode() if pa.types.is_dictionary(a.type) else a for a in part.columns]
        hashes = hash_rows([key_column(a) for a in plain], self._seed, kernels_if_worthwhile(use_numba=use_numba))
        partition = (hashes >> np.uint64(self._shift)).astype(np.uint16)
        order = pa.array(np.argsort(partition, kind="stable"))
        batch = pa.RecordBatch.from_arrays([a.take(order) for a in plain], schema=self._schema)
        metadata = {_SEQUENCE_NUMBER: str(part.sequence_number).encode()}
        ends = np.cumsum(np.bincount(partition, minlength=len(self._writers))).tolist()
        begin = 0
        for writer, end in zip(self._writers, ends, strict=True):
            if end > begin:
                writer.write_batch(batch.slice(begin, end - begin), custom_metadata=metadata)
            begin = end

    def read(self, number: int) -> Iterator[DeleteKeys]:
        """The keys of a partition, in the order in which they were added."""
        with self._folder.read(f"{number}.keys") as file, pa.ipc.open_stream(file) as reader:
            while True:
                try:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                yield DeleteKeys(int(metadata[_SEQUENCE_NUMBER]), tuple(batch.columns))
