"""Small tables to be broken: of every format version, file format and kind of delete, and the shared fixtures.

A subject is a folder that holds all files of one table, and how to open it. Nothing here knows what is done to it.
"""

import datetime as dt
import gzip
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.fixture_tables import fixture_tables
from tests.support.iceberg_json import Column, Partition, list_of, map_of, struct
from tests.support.table_builder import TableBuilder

LOCATION = "/written/by/somebody/t"
"""Where the built tables say that they lie: they are read by relocation from wherever a campaign puts them."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A table in `folder`; `metadata` is relative to it, `relocate` the prefix that stands for it in the metadata."""

    name: str
    folder: Path
    metadata: str
    relocate: str

    @property
    def is_built(self) -> bool:
        """Made here, with little compression: damage goes deeper than in the fixtures."""
        return self.relocate == LOCATION

    def files(self) -> list[str]:
        """The table's files, relative to the folder, sorted; of its metadata files only the one that is read."""
        found = (p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
        return [*sorted(p for p in found if ".metadata.json" not in p and "version-hint" not in p), self.metadata]


def build_subjects(folder: Path) -> list[Subject]:
    """All subjects, in an order that does not change."""
    subjects = [_built(folder / name, make) for name, make in sorted(_TABLES.items())]
    for name, fixture in sorted(fixture_tables().items()):
        copy = folder / name
        shutil.copytree(fixture.folder / name, copy)
        subjects.append(Subject(name, copy, fixture.facts["metadata"], fixture.facts["location"]))
    return subjects


def _built(folder: Path, make: Callable[[Path], Path]) -> Subject:
    metadata = make(folder)
    return Subject(folder.name, folder, metadata.relative_to(folder).as_posix(), LOCATION)


_NESTED = [
    Column(1, "id", "long"),
    Column(2, "name", "string"),
    Column(3, "s", struct(Column(4, "x", "int"), Column(5, "y", "string"))),
    Column(6, "tags", list_of(7, "string")),
    Column(8, "m", map_of(9, "string", 10, "double")),
]
_KEY = _NESTED[:1]


def _rows(start: int, count: int) -> dict[str, list[Any]]:
    ids = range(start, start + count)
    return {
        "id": list(ids),
        "name": [None if i % 5 == 0 else f"name-{i % 3}" for i in ids],
        "s": [None if i % 4 == 0 else {"x": i, "y": "y" * (i % 3)} for i in ids],
        "tags": [None if i % 3 == 0 else ["a", None, "b"][: i % 4] for i in ids],
        "m": [None if i % 6 == 0 else {"k": i / 2} for i in ids],
    }


def _formats(folder: Path) -> Path:
    """v2, data and equality deletes in every format, uncompressed, so that a flipped bit reaches the decoder."""
    table = TableBuilder(folder, _NESTED, written_location=LOCATION)
    plain: dict[str, dict[str, Any]] = {
        "parquet": {"compression": "none", "row_group_size": 8, "use_dictionary": ["name"]},
        "orc": {"compression": "uncompressed"},
        "avro": {},
    }
    table.commit(*(table.data(_rows(i * 20, 20), file_format=f, **o) for i, (f, o) in enumerate(plain.items())))
    table.commit(
        *(
            table.equality_delete({"id": [i * 20 + 3, i * 20 + 7]}, ids=[1], columns=_KEY, file_format=f, **o)
            for i, (f, o) in enumerate(plain.items())
        ),
        table.equality_delete({"name": ["name-1"], "id": [25]}, ids=[2, 1], columns=_NESTED[:2]),
    )
    return table.metadata_path


def _compressed(folder: Path) -> Path:
    """v2, partitioned, position deletes in every format, compressed, metadata in gzip."""
    table = TableBuilder(folder, _NESTED, written_location=LOCATION, partitions=[Partition("name", 2)])
    options: dict[str, dict[str, Any]] = {
        "parquet": {"compression": "zstd"},
        "orc": {"compression": "zlib"},
        "avro": {},
    }
    files = []
    for file_format, chosen in options.items():
        rows = {k: v for k, v in _rows(0, 12).items() if k != "name"}
        files.append(table.data(rows, file_format=file_format, partition={"name": "p"}, **chosen))
    table.commit(*files)
    table.commit(
        *(
            table.position_delete([(file, 2), (file, 5)], file_format=file_format)
            for file, file_format in zip(files, options, strict=True)
        )
    )
    table.repartition(Partition("b", 1, "bucket[4]"), Partition("t", 2, "truncate[3]"))
    data = table.data(_rows(50, 10), partition={"b": 2, "t": "nam"})
    table.commit(data, table.equality_delete({"id": [51]}, ids=[1], columns=_KEY, partition={"b": 2, "t": "nam"}))
    packed = table.metadata_path.with_name("packed.gz.metadata.json")
    packed.write_bytes(gzip.compress(table.metadata_path.read_bytes(), mtime=0))
    return packed


def _vectors(folder: Path) -> Path:
    """v3: deletion vectors in one Puffin file, row ids, a default, an equality delete."""
    table = TableBuilder(folder, _NESTED[:2], version=3, written_location=LOCATION)
    files = [
        table.data({"id": list(range(n)), "name": [f"n{i}" for i in range(n)]}, compression="none")
        for n in (30, 6_000, 5)
    ]
    table.commit(*files)
    table.evolve(*_NESTED[:2], Column(11, "added", "int", initial_default=7))
    positions = [[1, 2, 29], [*range(100, 4_300), 5_999], [0]]
    table.commit(
        *table.deletion_vectors(dict(zip(files, positions, strict=True))),
        table.equality_delete({"id": [4]}, ids=[1], columns=_KEY),
    )
    return table.metadata_path


_EVERY_TYPE: dict[str, list[Any]] = {
    "boolean": [True, None],
    "int": [1, -(2**31)],
    "long": [2**63 - 1, None],
    "float": [1.5, float("nan")],
    "double": [-0.0, float("inf")],
    "decimal(9,2)": [Decimal("1.50"), None],
    "decimal(38,4)": [Decimal("-1.0000"), Decimal(10**30)],
    "date": [dt.date(2024, 2, 29), None],
    "time": [dt.time(23, 59, 59), dt.time(0)],
    "timestamp": [dt.datetime(2024, 1, 1), None],  # noqa: DTZ001
    "timestamptz": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None],
    "string": ["é", ""],
    "uuid": [uuid.UUID(int=5), None],
    "fixed[3]": [b"abc", None],
    "binary": [b"\0\xff", b""],
}


def _types(folder: Path) -> Path:
    """v2: a column of every primitive type, in every format, found by name mapping, half of them delete keys."""
    columns = [Column(i, f"c{i}", kind) for i, kind in enumerate(_EVERY_TYPE, 1)]
    mapping = "[" + ", ".join(f'{{"field-id": {c.id}, "names": ["{c.name}"]}}' for c in columns) + "]"
    table = TableBuilder(
        folder, columns, written_location=LOCATION, properties={"schema.name-mapping.default": mapping}
    )
    rows = {c.name: _EVERY_TYPE[c.type] for c in columns}
    for file_format in ("parquet", "orc", "avro"):
        table.commit(table.data(rows, file_format=file_format, field_ids=file_format != "parquet"))
    for column in columns[::2]:
        key = {column.name: _EVERY_TYPE[column.type][:1]}
        table.commit(table.equality_delete(key, ids=[column.id], columns=[column]))
    table.evolve(*columns[1:4], Column(99, "new", "int"), columns[0], *columns[5:])
    return table.metadata_path


def _pages(folder: Path) -> Path:
    """v2: column chunks of many pages with a page index, large enough that single pages are read."""
    table = TableBuilder(folder, [*_NESTED[:2], Column(11, "n", "double")], written_location=LOCATION)
    count = 12_000
    rows = {
        "id": list(range(count)),
        "name": [f"{i * 7919 % 10_007:07}" for i in range(count)],
        "n": [None if i % 7 == 0 else i / 3 for i in range(count)],
    }
    options: dict[str, Any] = {"data_page_size": 4_096, "write_batch_size": 256, "use_dictionary": ["n"]}
    table.commit(
        table.data(rows, compression="none", **options),
        table.data(rows, compression="snappy", data_page_version="2.0", **options),
    )
    table.commit(table.equality_delete({"id": list(range(0, 600, 3))}, ids=[1], columns=_KEY))
    return table.metadata_path


def _first_version(folder: Path) -> Path:
    """v1, manifests named in the metadata."""
    table = TableBuilder(folder, _NESTED, version=1, written_location=LOCATION)
    table.commit(table.data(_rows(0, 10)), inline_manifests=True)
    table.commit(table.data(_rows(10, 10), file_format="orc"), inline_manifests=True)
    return table.metadata_path


_TABLES: dict[str, Callable[[Path], Path]] = {
    "built_compressed": _compressed,
    "built_first_version": _first_version,
    "built_formats": _formats,
    "built_pages": _pages,
    "built_types": _types,
    "built_vectors": _vectors,
}
