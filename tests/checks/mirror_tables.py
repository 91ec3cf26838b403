"""A mirror and its change log as test tables: right, so that a mutation is the only thing wrong with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nevermore.checks.equality import row_results
from nevermore.checks.subject import Subject
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL
from nevermore.pipelines.publish.audit import CheckResult
from tests.support.iceberg_json import Column, Partition, list_of, struct
from tests.support.table_builder import BuiltFile, TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "region", "string"), Column(3, "qty", "int")]
_LOG_COLUMNS = [
    Column(1, "ordinal", "long"),
    Column(2, "op", "string"),
    Column(3, "key", struct(Column(4, "id", "long"), Column(5, "region", "string"))),
    Column(6, "after", struct(Column(7, "id", "long"), Column(8, "region", "string"), Column(9, "qty", "int"))),
    Column(10, "unchanged", list_of(11, "string")),
]
KEY = ("id", "region")
Row = tuple[int | None, str, int]


class MirrorTables:
    """Two tables to which batches are applied: the log gets the changes, the mirror data files and deletes."""

    def __init__(self, folder: Path, *, partitioned: bool = False, version: int = 2) -> None:
        partitions = [Partition("region", 2)] if partitioned else []
        self.partitioned = partitioned
        self.mirror = TableBuilder(folder / "mirror", COLUMNS, partitions=partitions, version=version)
        self.log = TableBuilder(folder / "log", _LOG_COLUMNS)
        self.ordinal = 0
        self.logged: list[BuiltFile] = []

    def apply(self, upserts: Sequence[Row], deletes: Sequence[tuple[int | None, str]] = ()) -> list[BuiltFile]:
        """One batch, as one snapshot of each table; the mirror's files."""
        events = [("d", key, None) for key in deletes] + [("c", (row[0], row[1]), row) for row in upserts]
        self.logged.append(self.log.data(self._changes(events)))
        self.log.commit(self.logged[-1])
        gone = [*deletes, *((row[0], row[1]) for row in upserts)]
        files = []
        for region in sorted({key[1] for key in gone}) if self.partitioned else [None]:
            partition = {"region": region} if self.partitioned else {}
            rows = [r for r in upserts if region is None or r[1] == region]
            keys = [k for k in gone if region is None or k[1] == region]
            if rows:
                files.append(self.mirror.data(self._rows(rows), partition=partition))
            delete_rows = {"id": [k[0] for k in keys], "region": [k[1] for k in keys]}
            ids = [1] if self.partitioned else [1, 2]
            files.append(self.mirror.equality_delete(delete_rows, ids=ids, partition=partition))
        self.mirror.commit(*files, summary={LOG_ORDINAL: str(self.ordinal)})
        return files

    def subject(self) -> Subject:
        """Both tables as checks see them now."""
        return Subject(str(self.mirror.metadata_path), KEY, str(self.log.metadata_path))

    @staticmethod
    def _rows(rows: Sequence[Row]) -> dict[str, list[Any]]:
        return {c.name: [row[i] for row in rows] for i, c in enumerate(COLUMNS)}

    def _changes(self, events: Sequence[tuple[str, tuple[int | None, str], Row | None]]) -> dict[str, list[Any]]:
        first, self.ordinal = self.ordinal + 1, self.ordinal + len(events)
        names = [c.name for c in COLUMNS]
        return {
            "ordinal": list(range(first, self.ordinal + 1)),
            "op": [op for op, _, _ in events],
            "key": [dict(zip(KEY, key, strict=True)) for _, key, _ in events],
            "after": [None if row is None else dict(zip(names, row, strict=True)) for _, _, row in events],
            "unchanged": [[] for _ in events],
        }


def shop(folder: Path, *, partitioned: bool = False, version: int = 2) -> tuple[MirrorTables, list[list[BuiltFile]]]:
    """A mirror after inserts, updates, deletes and a re-insert, one of the keys being NULL; the files per batch."""
    tables = MirrorTables(folder, partitioned=partitioned, version=version)
    batches = [
        tables.apply([(1, "eu", 10), (2, "eu", 20), (None, "eu", 30), (1, "us", 40), (3, "us", 50)]),
        tables.apply([(2, "eu", 21)], deletes=[(1, "eu"), (None, "eu")]),
        tables.apply([(4, "us", 60), (1, "eu", 11)], deletes=[(3, "us")]),
    ]
    return tables, batches


def mirror_equals_reference(subject: Subject) -> CheckResult:
    """The check of this name alone."""
    return row_results(subject, ["mirror_equals_reference"])["mirror_equals_reference"]


def key_is_unique(subject: Subject) -> CheckResult:
    """The check of this name alone."""
    return row_results(subject, ["key_is_unique"])["key_is_unique"]


def no_deleted_row_reappears(subject: Subject) -> CheckResult:
    """The check of this name alone."""
    return row_results(subject, ["no_deleted_row_reappears"])["no_deleted_row_reappears"]


def no_rows_lost(subject: Subject) -> CheckResult:
    """Every key that the log leaves alive is among the rows that the engine returns."""
    found = {tuple(row.values()) for row in subject.opened.scan().select(*subject.key).to_table().to_pylist()}
    with subject.folding() as folding:
        alive = folding.rows.table().select(list(subject.key)).to_pylist()
    lost = [row for row in alive if tuple(row.values()) not in found]
    return CheckResult("no_rows_lost", not lost, {"keys alive in log": len(alive)}, lost)
