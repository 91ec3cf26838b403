"""Faults that are seeded one at a time into a right mirror: in its writer, its maintenance, its log, or the engine.

Each says which checks find it; the page `faults` of the site lists them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore.pipelines.iceberg.positions import LAST_ORDINAL, LOG_ORDINAL
from nevermore.scan_core.deletes.filter import EqualityFilter
from nevermore.scan_core.plan import delete_index, planner
from nevermore.scan_core.plan.file_set import ObjectPart
from nevermore.scan_core.scan import Scan
from tests.checks.mirror_tables import MirrorTables
from tests.support.table_builder import BuiltFile

EQUALS, DELETED, UNIQUE = "mirror_equals_reference", "no_deleted_row_reappears", "key_is_unique"
MANIFESTS, ROLLED_BACK, COMPLETE = "manifests_match_files", "nothing_was_rolled_back", "log_is_complete"
Batches = Sequence[Sequence[BuiltFile]]
Seed = Callable[[MirrorTables, Batches, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        where: the part of the product whose fault it would be.
        what: the fault in words.
        found_by: the checks that fail, exactly.
        seed: breaks a right mirror.
        partitioned: whether the mirror is partitioned by region.
        version: format version of the tables.
    """

    where: str
    what: str
    found_by: frozenset[str]
    seed: Seed
    partitioned: bool = False
    version: int = 2


FAULTS: list[Fault] = []


def fault(where: str, what: str, *found_by: str, **options: Any) -> Callable[[Seed], Seed]:
    def register(seed: Seed) -> Seed:
        FAULTS.append(Fault(where, what, frozenset(found_by), seed, **options))
        return seed

    return register


def swap(tables: MirrorTables, old: BuiltFile, new: BuiltFile | None, *, sequence: int | None = None) -> None:
    """Put a file in the place of another, with the sequence number of its batch."""
    if new is not None:
        new.sequence_number = old.committed_sequence if sequence is None else sequence
    tables.mirror.commit(*([] if new is None else [new]), remove=[old], operation="replace")


def rows(tables: MirrorTables, ids: list[int | None], regions: list[str], quantities: list[int | None]) -> BuiltFile:
    return tables.mirror.data({"id": ids, "region": regions, "qty": quantities})


def deletes(tables: MirrorTables, *keys: tuple[int | None, str], ids: Sequence[int] = (1, 2)) -> BuiltFile:
    return tables.mirror.equality_delete({"id": [k[0] for k in keys], "region": [k[1] for k in keys]}, ids=list(ids))


# -- the writer; batches are those of `shop` --------------------------------------------------------------------------


@fault("writer", "the delete file of a batch is not committed", EQUALS, DELETED, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], None)


@fault("writer", "the data file of a batch is not committed", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], None)


@fault("writer", "a batch is truncated: its last row is missing", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [4], ["us"], [60]))


@fault("writer", "a row that is inserted again after its delete is lost", EQUALS)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    # a delete that is committed after the insert that follows it
    tables.mirror.commit(deletes(tables, (1, "eu")))


@fault("writer", "a batch of inserts is written twice", EQUALS, UNIQUE)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.mirror.commit(rows(tables, [4, 1], ["us", "eu"], [60, 11]))


@fault("writer", "an update is inserted without deleting the old row", EQUALS, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], deletes(tables, (1, "eu"), (None, "eu")))


@fault("writer", "a key changes, the row with the old key is not deleted", EQUALS, DELETED)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    files = tables.apply([(8, "us", 60)], deletes=[(4, "us")])
    swap(tables, files[1], deletes(tables, (8, "us")))


@fault("writer", "one deleted key of a batch is left out", EQUALS, DELETED)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][1], deletes(tables, (4, "us"), (1, "eu")))


@fault("writer", "a NULL in a deleted key is written as 0", EQUALS, DELETED)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], deletes(tables, (1, "eu"), (0, "eu"), (2, "eu")))


@fault("writer", "a delete has the equality id of one of two key columns", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], deletes(tables, (1, "eu"), (None, "eu"), (2, "eu"), ids=[1]))


@fault("writer", "the equality ids of a delete name another column", EQUALS, DELETED, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    wrong = tables.mirror.equality_delete({"id": [1, None, 2], "qty": [1, 2, 3]}, ids=[1, 3])
    swap(tables, batches[1][1], wrong)


@fault("writer", "the sequence number of a delete is one too low", EQUALS, DELETED, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], deletes(tables, (1, "eu"), (None, "eu"), (2, "eu")), sequence=1)


@fault("writer", "the sequence number of a delete is one too high", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], deletes(tables, (1, "eu"), (None, "eu"), (2, "eu")), sequence=3)


@fault("writer", "the sequence number of a data file is one too low", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][0], rows(tables, [2], ["eu"], [21]), sequence=1)


@fault("writer", "a value of a row is another one", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [4, 1], ["us", "eu"], [61, 11]))


@fault("writer", "a value of a row is NULL", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [4, 1], ["us", "eu"], [None, 11]))


@fault("writer", "a column is shifted by one row", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [4, 1], ["us", "eu"], [11, 60]))


@fault("writer", "a data file is in a wrong partition", MANIFESTS, partitioned=True)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    old = next(f for f in batches[2] if not f.is_delete and f.record["partition"] == {"region": "us"})
    wrong = tables.mirror.data({"id": [4], "region": ["us"], "qty": [60]}, partition={"region": "eu"})
    swap(tables, old, wrong)


@fault("writer", "a delete file is in a wrong partition", EQUALS, DELETED, MANIFESTS, partitioned=True)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    old = next(f for f in batches[2] if f.is_delete and f.record["partition"] == {"region": "us"})
    wrong = tables.mirror.equality_delete(
        {"id": [3, 4], "region": ["us", "us"]}, ids=[1, 2], partition={"region": "eu"}
    )
    swap(tables, old, wrong)


@fault("writer", "a manifest has a wrong number of rows", MANIFESTS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    new = rows(tables, [4, 1], ["us", "eu"], [60, 11])
    new.record["record_count"] = 3
    swap(tables, batches[2][0], new)


@fault("writer", "the bounds of a column leave out one of its values", MANIFESTS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    new = rows(tables, [4, 1], ["us", "eu"], [60, 11])
    new.record["upper_bounds"] = [
        {**bound, "value": (1).to_bytes(8, "little")} if bound["key"] == 1 else bound
        for bound in new.record["upper_bounds"]
    ]
    swap(tables, batches[2][0], new)


@fault("writer", "the bounds of a delete file leave out one of its keys", MANIFESTS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    new = deletes(tables, (3, "us"), (4, "us"), (1, "eu"))
    new.record["upper_bounds"] = [
        {**bound, "value": (1).to_bytes(8, "little")} if bound["key"] == 1 else bound
        for bound in new.record["upper_bounds"]
    ]
    swap(tables, batches[2][1], new)


@fault("writer", "values of two columns are exchanged", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [60, 11], ["us", "eu"], [4, 1]))


@fault("writer", "a key of a row gets a trailing space", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [4, 1], ["us", "eu "], [60, 11]))


@fault("writer", "a batch is recorded as applied, and was not", EQUALS, DELETED)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    tables.mirror.commit(remove=list(batches[1]), operation="overwrite")


@fault("writer", "a batch is applied, but the position of the one before is recorded", EQUALS, DELETED, ROLLED_BACK)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.mirror.commit(summary={LOG_ORDINAL: str(tables.ordinal - 3)})


@fault("writer", "the position is that of changes that the log has and the mirror does not", EQUALS)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.log.commit(tables.log.data(tables._changes([("c", (7, "us"), (7, "us", 1))])))
    tables.mirror.commit(summary={LOG_ORDINAL: str(tables.ordinal)})


# -- maintenance -------------------------------------------------------------------------------------------------------


@fault("maintenance", "compaction writes deleted rows into a newer file", EQUALS, DELETED, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    new = rows(tables, [1, 2, None, 1, 3], ["eu", "eu", "eu", "us", "us"], [10, 20, 30, 40, 50])
    swap(tables, batches[0][0], new, sequence=4)


@fault("maintenance", "compaction loses a live row", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[0][0], rows(tables, [3], ["us"], [50]))


@fault("maintenance", "compaction gives new rows the oldest sequence number", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][0], rows(tables, [1, 4], ["eu", "us"], [11, 60]), sequence=1)


@fault("maintenance", "compaction leaves the files that it has rewritten in the table", EQUALS, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    new = rows(tables, [4, 1], ["us", "eu"], [60, 11])
    new.sequence_number = batches[2][0].committed_sequence
    tables.mirror.commit(new, operation="replace")


@fault("maintenance", "compaction rewrites the rows of one partition into another", EQUALS, partitioned=True)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    old = next(f for f in batches[2] if not f.is_delete and f.record["partition"] == {"region": "us"})
    swap(tables, old, tables.mirror.data({"id": [4], "region": ["eu"], "qty": [60]}, partition={"region": "eu"}))


@fault("maintenance", "a deletion vector loses its last position", EQUALS, DELETED, version=3)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], tables.mirror.deletion_vector(batches[0][0], [0, 1]))


@fault("maintenance", "a delete file is dropped while rows still need it", EQUALS, DELETED)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[2][1], None)


@fault("maintenance", "positions of a conversion are shifted by one", EQUALS)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    # rows 0, 1 and 2 of the first file are dead by the second batch, row 4 by the third
    shifted = tables.mirror.position_delete([(batches[0][0], place) for place in (1, 2, 3)])
    swap(tables, batches[1][1], shifted)


@fault("maintenance", "a deletion vector is shifted by one", EQUALS, version=3)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], tables.mirror.deletion_vector(batches[0][0], [1, 2, 3]))


@fault("maintenance", "positions of deleted rows name another file", EQUALS, DELETED, UNIQUE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    wrong = tables.mirror.position_delete([(batches[2][0], place) for place in (0, 1)])
    swap(tables, batches[1][1], wrong)


@fault("maintenance", "the mirror is set back to an earlier snapshot", ROLLED_BACK)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.mirror.rollback(1002)


# -- the change log ----------------------------------------------------------------------------------------------------


@fault("change log", "a batch of changes is missing from the log", EQUALS, DELETED, COMPLETE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    tables.log.commit(remove=[tables.logged[2]], operation="overwrite")


@fault("change log", "a value of a change is another one", EQUALS)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.apply([(4, "us", 62)])
    tables.ordinal -= 1
    swap_logged(tables, tables.log.data(tables._changes([("c", (4, "us"), (4, "us", 63))])))


@fault("change log", "two changes of a key have each other's number", EQUALS, DELETED)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.apply([(4, "us", 62)], deletes=[(4, "us")])
    tables.ordinal -= 2
    exchanged = tables.log.data(tables._changes([("c", (4, "us"), (4, "us", 62)), ("d", (4, "us"), None)]))
    swap_logged(tables, exchanged)


@fault("change log", "a delete is logged as an update", EQUALS)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.apply([], deletes=[(4, "us")])
    tables.ordinal -= 1
    swap_logged(tables, tables.log.data(tables._changes([("u", (4, "us"), (4, "us", 60))])))


@fault("change log", "a delete is logged that was not applied", EQUALS, DELETED)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    tables.log.commit(tables.log.data(tables._changes([("d", (4, "us"), None)])))
    tables.mirror.commit(summary={LOG_ORDINAL: str(tables.ordinal)})


@fault("change log", "a batch is lost in the log and in the mirror alike", COMPLETE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    tables.log.commit(remove=[tables.logged[1]], operation="overwrite")
    tables.mirror.commit(remove=list(batches[1]), operation="overwrite")
    # the second update of a key hides what the first one did; what the lost batch deleted was alive before
    tables.apply([], deletes=[(1, "eu"), (None, "eu"), (2, "eu")])


@fault("change log", "the last batch is lost in the log and in the mirror alike", COMPLETE)
def _(tables: MirrorTables, batches: Batches, _: pytest.MonkeyPatch) -> None:
    tables.log.commit(remove=[tables.logged[2]], operation="overwrite", summary={LAST_ORDINAL: str(tables.ordinal)})
    tables.mirror.commit(remove=list(batches[2]), operation="overwrite")


@fault("change log", "a change of the log is written twice", COMPLETE)
def _(tables: MirrorTables, _: Batches, __: pytest.MonkeyPatch) -> None:
    again = tables.ordinal
    tables.ordinal = again - 1
    tables.log.commit(tables.log.data(tables._changes([("c", (1, "eu"), (1, "eu", 11))])))


def swap_logged(tables: MirrorTables, new: BuiltFile) -> None:
    """Put changes in the place of the last ones of the log."""
    tables.log.commit(
        new, remove=[tables.logged[-1]], operation="overwrite", summary={LAST_ORDINAL: str(tables.ordinal)}
    )


# -- the engine --------------------------------------------------------------------------------------------------------


def plan_objects(patch: pytest.MonkeyPatch) -> None:
    """Let the planner take files as objects, which were changed, not as the columns of their manifests."""
    patch.setattr(planner, "parts_of", lambda manifests: [ObjectPart([*files]) for files in manifests])


def change_deletes(patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Let the planner see other delete files."""
    read = planner.read_delete_manifests

    def changed(*arguments: Any, **options: Any) -> Any:
        return [[c for c in map(change, files) if c is not None] for files in read(*arguments, **options)]

    patch.setattr(planner, "read_delete_manifests", changed)
    plan_objects(patch)


@fault("engine", "no delete file is read", EQUALS, DELETED, UNIQUE)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    change_deletes(patch, lambda _: None)


@fault("engine", "the newest delete file is not read", EQUALS, DELETED)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    change_deletes(patch, lambda file: None if file.data_sequence_number == 3 else file)


@fault("engine", "deletes remove rows of their own commit", EQUALS)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    change_deletes(patch, lambda file: replace(file, data_sequence_number=file.data_sequence_number + 1))


@fault("engine", "deletes do not reach the commit before", EQUALS, DELETED, UNIQUE)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    change_deletes(patch, lambda file: replace(file, data_sequence_number=file.data_sequence_number - 1))


@fault("engine", "deletes of a partition reach all partitions", EQUALS, partitioned=True)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delete_index, "scope_of", lambda *_: None)


@fault("engine", "NULL does not equal NULL in deleted keys", EQUALS, DELETED)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    keep = EqualityFilter.keep

    def null_is_unknown(self: EqualityFilter, keys: Any) -> Any:
        kept = keep(self, keys)
        for key in keys:
            kept = kept | key.is_null().to_numpy(zero_copy_only=False)
        return kept

    patch.setattr(EqualityFilter, "keep", null_is_unknown)


@fault("engine", "the mask of deleted rows is shifted by one", EQUALS, DELETED)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    keep = EqualityFilter.keep
    patch.setattr(EqualityFilter, "keep", lambda self, keys: np.roll(keep(self, keys), 1))


@fault("engine", "the last row of a scan is lost", EQUALS)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    lose_the_last_row(patch)


@fault("engine", "a data file is left out of the plan", EQUALS)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    change_files(patch, lambda files: files[1:])


@fault("engine", "a data file is read twice", EQUALS, UNIQUE)
def _(_: MirrorTables, __: Batches, patch: pytest.MonkeyPatch) -> None:
    change_files(patch, lambda files: [*files, *files[:1]])


@fault("engine", "deletion vectors are not read", EQUALS, DELETED, UNIQUE, version=3)
def _(tables: MirrorTables, batches: Batches, patch: pytest.MonkeyPatch) -> None:
    swap(tables, batches[1][1], tables.mirror.deletion_vector(batches[0][0], [0, 1, 2]))
    change_deletes(patch, lambda file: None if file.referenced_data_file else file)


def change_files(patch: pytest.MonkeyPatch, change: Callable[[list[Any]], list[Any]]) -> None:
    """Let the planner see other data files."""
    read = planner.read_data_manifests
    patch.setattr(
        planner, "read_data_manifests", lambda *given, **options: [change(list(f)) for f in read(*given, **options)]
    )
    plan_objects(patch)


def lose_the_last_row(patch: pytest.MonkeyPatch) -> None:
    """Let every scan lose its last row."""
    whole, parts = Scan.to_table, Scan.to_batches

    def shorter(self: Any) -> pa.Table:
        found = whole(self)
        return found.slice(0, max(found.num_rows - 1, 0))

    def fewer(self: Any) -> Iterator[pa.RecordBatch]:
        *before, last = [batch for batch in parts(self) if batch.num_rows]
        return iter([*before, last.slice(0, last.num_rows - 1)])

    patch.setattr(Scan, "to_table", shorter)
    patch.setattr(Scan, "to_batches", fewer)
