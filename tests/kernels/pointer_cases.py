"""Random arguments for every kernel that takes pointers, in arrays that have exactly the room that they need."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nevermore.scan_core.files.parquet.footer import _schema_of
from nevermore.scan_core.files.parquet.thrift import read_list_header, read_value
from nevermore.scan_core.keys.lookup import BLOCK_ROWS, HashTable, build_hash_table
from nevermore.scan_core.metadata import AvroReader, parse_record
from nevermore.scan_core.native.compiled import load
from tests.kernels.array_cases import Arguments, Random
from tests.pipelines.decode.avro_schemas import Schemas

U64 = NDArray[np.uint64]


def words(random: Random, count: int) -> U64:
    return random.integers(0, 2**64, count, np.uint64)


def size(random: Random) -> int:
    return int(random.choice([0, 1, 2, 63, 64, 65, 200, 2047, 2048, 2049, 5000]))


def number(random: Random) -> int:
    return int(random.integers(0, 2**63))


def strings(random: Random, count: int, dtype: type) -> tuple[Any, NDArray[np.uint8], int]:
    """(offsets, data, length of the data)."""
    lengths = random.choice([0, 1, 7, 8, 9, 15, 16, 17, 80], count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)
    data = random.integers(0, 256, int(offsets[-1])).astype(np.uint8)
    return offsets, data, len(data)


def hash_bytes(random: Random, dtype: type) -> Arguments:
    count = min(size(random), 200)
    offsets, data, end = strings(random, count, dtype)
    return [offsets, data, count, end, number(random), words(random, 24), words(random, 3), words(random, count)]


def same_bytes(random: Random, dtype: type) -> Arguments:
    offsets, data, end = strings(random, count := int(random.integers(1, 20)), dtype)
    others, other_data, other_end = offsets.astype(np.int64), data.copy(), end
    if end:
        other_data[random.integers(0, end)] ^= 1
    pairs = min(size(random), 200)
    rows, other_rows = (random.integers(0, count, pairs).astype(np.int64) for _ in range(2))
    same = np.ones(pairs, np.uint8)
    return [offsets, data, end, rows, others, other_data, other_end, other_rows, pairs, same]


def partition(random: Random) -> Arguments:
    found = words(random, size(random))
    return [found, len(found), np.zeros(257, np.uint64), np.zeros_like(found), np.zeros(len(found), np.uint32)]


def level(random: Random) -> tuple[U64, int, int, U64, NDArray[np.uint32], U64]:
    """(hashes, multiplier, shift, bits set, entries before each word, a place for each entry)."""
    found = words(random, size(random))
    found[::5] = found[:1]
    multiplier, shift = number(random) | 1, int(random.integers(54, 59))
    bits = np.zeros(1 << (58 - shift), np.uint64)
    places = (found * np.uint64(multiplier)) >> np.uint64(shift)
    np.bitwise_or.at(bits, (places >> np.uint64(6)).astype(np.int64), np.uint64(1) << (places & np.uint64(63)))
    ones = np.bitwise_count(bits).astype(np.uint32)
    return found, multiplier, shift, bits, np.cumsum(ones, dtype=np.uint32) - ones, np.zeros(len(found), np.uint64)


def set_bits(random: Random) -> Arguments:
    found, multiplier, shift, bits, _, _ = level(random)
    return [found, len(found), multiplier, shift, np.zeros_like(bits)]


def count_bits(random: Random) -> Arguments:
    bits = words(random, size(random))
    return [bits, len(bits), int(random.integers(0, 9)), np.zeros(len(bits), np.uint32)]


def place(random: Random) -> Arguments:
    found, multiplier, shift, bits, before, table = level(random)
    count = len(found)
    rows, taken = np.arange(count, dtype=np.uint32), np.full(count, 0xFFFFFFFF, np.uint32)
    repeats = np.zeros(2 * count + 1, np.uint64)
    return [found, rows, count, multiplier, shift, bits, before, table, taken, repeats]


def table_and_probes(random: Random) -> tuple[HashTable, U64]:
    load()  # without kernels, tables have another form
    hashes = words(random, size(random))
    probes = random.permutation(np.concatenate([hashes, words(random, size(random))]))
    return build_hash_table(hashes.copy()).table, probes


def scratch() -> Arguments:
    return [np.zeros(BLOCK_ROWS, np.uint64), np.zeros(BLOCK_ROWS, np.uint64), np.zeros(4 * BLOCK_ROWS, np.uint32)]


def find(random: Random) -> Arguments:
    table, probes = table_and_probes(random)
    found = [np.zeros(len(probes), np.uint32), np.zeros(len(probes), np.uint32)]
    return [probes, len(probes), *table.arguments, *scratch(), *found]


def varint(given: int) -> bytes:
    zigzag, out = (given << 1) ^ (given >> 63), bytearray()
    zigzag &= 2**64 - 1
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def damaged(random: Random, data: bytes) -> NDArray[np.uint8]:
    """Bytes of a file, half of the time not what they should be."""
    found = bytearray(data)
    if random.random() < 0.5 and found:
        for _ in range(random.integers(1, 4)):
            found[random.integers(0, len(found))] = int(random.choice([0, 1, 127, 128, 254, 255]))
        del found[len(found) - int(random.integers(0, 3)) :]
    return np.frombuffer(bytes(found), np.uint8)


def _pairs(random: Random, *, of_bytes: bool) -> bytes:
    """A map as an Avro array, in one block or two, which may state their size."""
    stored = b""
    for _ in range(random.integers(0, 3)):
        count = int(random.integers(1, 4))
        value = varint(3) + random.bytes(3) if of_bytes else varint(int(random.integers(-99, 99)))
        items = b"".join(varint(key) + value for key in range(count))
        stored += (varint(-count) + varint(len(items)) if random.random() < 0.3 else varint(count)) + items
    return stored + b"\0"


def _placed(random: Random, parts: list[bytes]) -> tuple[NDArray[np.uint8], Any, Any]:
    """(data, perhaps damaged; where each part begins; where it ends, rarely elsewhere)."""
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    starts, ends = ends[:-1].copy(), ends[1:].copy()
    if parts and random.random() < 0.2:
        which = starts if random.random() < 0.5 else ends
        which[random.integers(0, len(parts))] = random.choice([-9, 0, 1, 2**40, 2**63 - 1])
    return damaged(random, b"".join(parts)), starts, ends


def find_in_pairs(random: Random) -> Arguments:
    of_bytes = int(random.integers(0, 2))
    # a schema may say that there are other pairs than those that are asked for
    kind = (random.random() < 0.8) == bool(of_bytes)
    data, starts, ends = _placed(random, [_pairs(random, of_bytes=kind) for _ in range(random.integers(0, 6))])
    found, lengths = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    return [data, len(data), starts, ends, len(starts), int(random.integers(0, 5)), of_bytes, found, lengths]


def read_values(random: Random) -> Arguments:
    """A program of random steps with room for its results, and values that it may read, one in three damaged."""
    types: list[Any] = [
        "int",
        "string",
        {"type": "fixed", "name": "f", "size": 3},
        {"type": "enum", "name": "e", "symbols": ["a"]},
    ]
    types += ["boolean", "long", "float", "double", "null", ["null", "bytes"], ["int", "string", "null"]]
    types += [
        {"type": "array", "items": kind} for kind in ("int", ["null", "string"], {"type": "map", "values": "int"})
    ]
    kinds = [types[i] for i in random.permutation(len(types))[: random.integers(0, 7)]]
    schema = {"type": "record", "name": "r", "fields": [{"name": f"f{i}", "type": k} for i, k in enumerate(kinds)]}
    program = AvroReader.of(parse_record(schema, raw=["f0", "f1"])).program
    made = Schemas(int(random.integers(2**31)), unions=True)
    values = [made.message(schema) for _ in range(random.integers(0, 5))]
    values = [made.damaged(value) if random.random() < 0.33 else value for value in values]
    cut, of_arrays = int(random.integers(0, len(values) + 1)), int(random.random() < 0.3)
    parts = [values[:cut], values[cut:]] if of_arrays or random.random() < 0.5 else [[value] for value in values]
    counts = np.array([len(part) for part in parts], np.int64)
    stored = [b"".join(part) for part in parts]
    if of_arrays:
        stored = [varint(len(part)) + data + b"\0" * bool(part) for part, data in zip(parts, stored, strict=True)]
    elif len(counts) and random.random() < 0.2:
        counts[random.integers(0, len(counts))] += 1
    data, starts, ends = _placed(random, stored)
    room = int(random.choice([counts.sum(), 1])) if not of_arrays else int(counts.sum())
    steps = program.steps, len(program.steps) // 4, program.targets, len(program.targets)
    results = np.zeros(program.slots * room, np.int64), np.zeros(program.slots * room, np.int32), room, program.slots
    rest = np.zeros(room, np.uint8), np.zeros(5 * program.depth, np.int64), program.depth
    return [
        data,
        len(data),
        starts,
        ends,
        counts,
        len(counts),
        of_arrays,
        np.zeros(3, np.int64),
        *steps,
        *results,
        *rest,
    ]


def find_column_chunks(random: Random) -> Arguments:
    """Row groups of a footer that pyarrow writes, with statistics of nested and flat columns; perhaps damaged."""
    num_rows, num_columns = int(random.integers(0, 9)), int(random.integers(1, 20))
    kinds = (pa.int64(), pa.string(), pa.list_(pa.float64()), pa.bool_())
    columns = {f"c{i}": pa.nulls(num_rows, kinds[i % 4]) for i in range(num_columns)}
    sink = pa.BufferOutputStream()
    size_per_group = max(int(random.integers(1, 5)), 1)
    pq.write_table(pa.table(columns), sink, row_group_size=size_per_group, write_page_index=bool(random.random() < 0.5))
    content = sink.getvalue().to_pybytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    _, at = _schema_of(footer)
    _, at = read_value(footer, at + 1, 6, 0)  # the number of rows, then the row groups
    num_groups, _, first = read_list_header(footer, at + 1)
    num_leaves = num_columns if not num_groups or random.random() < 0.9 else num_columns + 1
    stack, groups = np.zeros(64, np.int64), np.zeros(2 * num_groups, np.int64)
    data = damaged(random, footer)
    first = min(first, len(data))
    places = np.zeros(num_groups * num_leaves, np.int64)
    return [data, len(data), first, num_groups, num_leaves, stack, groups, places]


CASES: dict[str, Callable[[Random], Arguments]] = {
    "hash_bytes32": lambda random: hash_bytes(random, np.int32),
    "hash_bytes64": lambda random: hash_bytes(random, np.int64),
    "same_bytes32": lambda random: same_bytes(random, np.int32),
    "same_bytes64": lambda random: same_bytes(random, np.int64),
    "partition": partition,
    "set_bits": set_bits,
    "count_bits": count_bits,
    "place": place,
    "find": find,
    "find_in_pairs": find_in_pairs,
    "read_values": read_values,
    "find_column_chunks": find_column_chunks,
}
"""By kernel: how to make arguments."""
