"""The tables of the benchmarks, built once by our own writer and kept in `benchmarks/data`.

A shape is rows (narrow: 18 columns, wide: 120), a key layout (sequential, sparse, two strings) and deletes (none, one
million keys in ten files, the same in a thousand commits). Seeded: every machine measures the same bytes.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nevermore import scan_core
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget
from nevermore.pipelines.iceberg.catalog import create_table, open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.iceberg.table_writer import WriterOptions, check_key, write_deletes, write_rows
from nevermore.scan_core.model.schema import NestedField, PrimitiveType

DATA = Path(__file__).parent / "data"
ROWS = 8_000_000
FILE_ROWS = 2_000_000
DELETED = 1_000_000
_COLORS = np.array(["black", "white", "red", "green", "blue", "grey", "pink", "gold"])


@dataclass(frozen=True, slots=True)
class Shape:
    """One table: `columns` beside the keys, keys made by `keys`, deletes in `delete_files` files over `delete_commits`.

    `absent_keys` are deleted beside those of rows, and are of none. With `partitions` each has a data file and
    `delete_files` files of its own deleted keys.
    """

    name: str
    key: tuple[str, ...] = ("id",)
    sparse: bool = False
    delete_files: int = 0
    delete_commits: int = 1
    wide_columns: int = 0
    partitions: int = 0
    absent_keys: int = 0


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("no_deletes"),
        Shape("dense_ints", delete_files=10),
        Shape("sparse_ints", sparse=True, delete_files=10),
        Shape("thousand_files", delete_files=1_000, delete_commits=1_000),
        Shape("two_strings", key=("k1", "k2"), delete_files=10),
        Shape("wide_120", delete_files=10, wide_columns=102),
        Shape("ten_million_deletes", sparse=True, delete_files=20, absent_keys=9_000_000),
        Shape("partitioned_2000", key=("id", "bucket"), delete_files=1, partitions=2_000),
    )
}


def build(name: str, rows: int = ROWS) -> Any:
    """The PyIceberg table of a shape, built on the first call.

    Args:
        name: a key of SHAPES.
        rows: 8 M unless a quick look is enough; deletes scale with it.
    """
    folder = DATA / f"{name}_{rows}"
    catalog = open_catalog(parse("catalog: {type: sql}\ntables: {}\n", folder / "nevermore.yaml"))
    if (folder / "complete").exists():
        return catalog.load_table(("bench", name))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    catalog = open_catalog(parse("catalog: {type: sql}\ntables: {}\n", folder / "nevermore.yaml"))
    shape = SHAPES[name]
    partition_by = [("identity", "bucket")] if shape.partitions else []
    sample = rows_of(shape, 0, 1, rows)
    fields = [NestedField(i, f.name, _TYPES[f.type]) for i, f in enumerate(sample.schema, 1)]
    table = create_table(catalog, f"bench.{name}", fields, partition_by=partition_by)
    file_rows = min(FILE_ROWS, rows)
    delta = RowDelta(table, WriterOptions(file_bytes=1 << 40))
    key_ids = check_key(delta.schema, shape.key)
    files = [
        file
        for start in range(0, rows, file_rows)
        for file in write_rows(
            rows_of(shape, start, min(rows, start + file_rows), rows), delta.target, delta.default_spec, key_ids=key_ids
        )
    ]
    delta.commit(files, {})
    for commit_keys in _deleted_keys(shape, rows):
        delta = RowDelta(catalog.load_table(("bench", name)))
        spec = delta.default_spec
        delta.commit([f for keys in commit_keys for f in write_deletes(keys, delta.target, spec, key_ids)], {})
    (folder / "complete").touch()
    return catalog.load_table(("bench", name))


class MetadataCopy(CatalogTarget):
    """A built table under metadata of its own, so that indexes of one benchmark do not change the table of the others."""

    def __init__(self, name: str) -> None:
        self.storage = Storage()
        self._source = Path(build(name).metadata_location.removeprefix("file://"))
        self._path = self._source

    @property
    def folder(self) -> str:
        """The folder of the metadata files."""
        return str(self._source.parent)

    def load(self) -> scan_core.Table:
        """The table with the indexes made so far."""
        return scan_core.open_table(self._path)

    def set_statistics(self, base: scan_core.Table, entry: Mapping[str, Any], superseded: Collection[str] = ()) -> None:
        """Write the next metadata file of the copy."""
        document = json.loads(Path(self._path).read_bytes())
        others = (s for s in base.metadata.statistics if s["snapshot-id"] != entry["snapshot-id"])
        document["statistics"] = [*(s for s in others if s["statistics-path"] not in superseded), dict(entry)]
        self._path = self._source.with_name(f"copy-{uuid.uuid4()}.metadata.json")
        self._path.write_text(json.dumps(document))


def rows_of(shape: Shape, start: int, end: int, total: int) -> pa.Table:
    """Rows [start, end) of a table of `total` rows."""
    n = np.arange(start, end, dtype=np.int64)
    random = np.random.default_rng((start, end, 7))
    columns: dict[str, Any] = {
        "id": ids(n, sparse=shape.sparse),
        "k1": pa.array(np.char.add("user-", n.astype(np.str_))),
        "k2": _dictionary(np.char.add("region-", np.arange(200).astype(np.str_)), n % 200),
        "s0": _dictionary(_COLORS, random.integers(0, 8, len(n))),
        "s1": _dictionary(np.char.add("city-", np.arange(1_000).astype(np.str_)), random.integers(0, 1_000, len(n))),
        "s2": _dictionary(np.char.add("tag-", np.arange(30).astype(np.str_)), (n // 1_000) % 30),
        **{f"v{i}": random.random(len(n)) * 1_000 for i in range(4)},
        **{f"i{i}": random.integers(0, 10 ** (i + 2), len(n)).astype(np.int32) for i in range(4)},
        "q": random.integers(0, 100, len(n)).astype(np.int64),
        "day": pa.array((n * 365 // total).astype(np.int32)).cast(pa.date32()),
        "ts": pa.array(1_700_000_000_000_000 + n * 1_000).cast(pa.timestamp("us", "UTC")),
        "flag": random.random(len(n)) < 0.5,
    }
    if shape.partitions:
        columns["bucket"] = n * shape.partitions // total
    for i in range(shape.wide_columns):
        columns[f"w{i:03d}"] = _WIDE[i % len(_WIDE)](n, i)
    return pa.table(columns)


def ids(n: np.ndarray, *, sparse: bool) -> np.ndarray:
    """The id of row n: n itself, or 63 bits scattered by a bijection (Fibonacci hashing)."""
    if not sparse:
        return n
    return ((n.astype(np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(1)).astype(np.int64)


def _deleted_keys(shape: Shape, rows: int) -> list[list[pa.Table]]:
    """Keys to delete: by commit, by file."""
    if not shape.delete_files:
        return []
    chosen = np.sort(np.random.default_rng(11).choice(rows, rows * DELETED // ROWS, replace=False)).astype(np.int64)
    chosen = np.concatenate([chosen, np.arange(rows, rows + shape.absent_keys * rows // ROWS)])
    np.random.default_rng(12).shuffle(chosen)
    files = []
    for part in np.array_split(chosen, shape.delete_files):
        columns: dict[str, Callable[[np.ndarray], Any]] = {
            "id": lambda n: ids(n, sparse=shape.sparse),
            "k1": lambda n: np.char.add("user-", n.astype(np.str_)),
            "k2": lambda n: np.char.add("region-", (n % 200).astype(np.str_)),
            "bucket": lambda n: n * shape.partitions // rows,
        }
        files.append(pa.table({name: pa.array(columns[name](part)) for name in shape.key}))
    per_commit = max(1, len(files) // shape.delete_commits)
    return [files[i : i + per_commit] for i in range(0, len(files), per_commit)]


def _dictionary(values: np.ndarray, codes: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(values)).cast(pa.string())


_WIDE: tuple[Callable[[np.ndarray, int], Any], ...] = (
    lambda n, i: (n * (i + 1)) % 10_007,
    lambda n, i: ((n // 64) * (i + 1) % 1_000) / 8.0,
    lambda n, i: _dictionary(np.char.add(f"c{i}-", np.arange(100).astype(np.str_)), (n // 7 + i) % 100),
)
_TYPES = {
    pa.int64(): PrimitiveType("long"),
    pa.int32(): PrimitiveType("int"),
    pa.string(): PrimitiveType("string"),
    pa.float64(): PrimitiveType("double"),
    pa.date32(): PrimitiveType("date"),
    pa.timestamp("us", "UTC"): PrimitiveType("timestamptz"),
    pa.bool_(): PrimitiveType("boolean"),
}
