"""Rewrites, compactions and delete files that replace others: no change where no row changed."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.scan_core.diff.table_changes import COLUMNS, changes_of, rows, scan_of
from tests.support.table_builder import BuiltFile, TableBuilder


def test_rewritten_equal_row_is_no_change(build: Callable[..., TableBuilder]) -> None:
    table = build()
    first = table.commit(table.data(rows(a=1, b=2)))
    table.commit(table.equality_delete({"id": [1, 2]}, ids=[1], columns=COLUMNS[:1]), table.data(rows(a=1, c=2)))
    assert changes_of(table, first) == [("delete", 2, "b"), ("insert", 2, "c")]


def test_replaced_deletion_vector_counts_only_what_it_adds(build: Callable[..., TableBuilder]) -> None:
    table = build(version=3)
    data = table.data(rows(a=1, b=2, c=3, d=4))
    start = table.commit(data)
    vector = table.deletion_vector(data, [1])
    first = table.commit(vector)
    table.commit(table.deletion_vector(data, [1, 3]), remove=[vector])
    assert changes_of(table, first) == [("delete", 4, "d")]
    assert changes_of(table, start) == [("delete", 2, "b"), ("delete", 4, "d")]


def test_smaller_deletion_vector_brings_rows_back(build: Callable[..., TableBuilder]) -> None:
    table = build(version=3)
    data = table.data(rows(a=1, b=2, c=3))
    vector = table.deletion_vector(data, [0, 1])
    first = table.commit(data, vector)
    table.commit(table.deletion_vector(data, [1, 2]), remove=[vector])
    assert changes_of(table, first) == [("delete", 3, "c"), ("insert", 1, "a")]


def test_deletion_vector_that_replaces_position_deletes_is_no_change(build: Callable[..., TableBuilder]) -> None:
    table = build(version=3)
    data = table.data(rows(a=1, b=2, c=3))
    positions = table.position_delete([(data, 1)])
    first = table.commit(data, positions)
    second = table.commit(table.deletion_vector(data, [1]), remove=[positions])
    table.commit(table.position_delete([(data, 2)]))
    assert changes_of(table, first, second) == []
    assert changes_of(table, second) == []
    assert changes_of(table, first) == []


def compacted(table: TableBuilder, gone: list[BuiltFile], new: dict[str, list[Any]], sequence: int) -> int:
    """A compaction that gives its file the sequence number of the snapshot it read."""
    file = table.data(new)
    file.sequence_number = sequence
    return table.commit(file, remove=gone, operation="replace")


@pytest.mark.parametrize("trust_rewrites", [False, True])
def test_compaction_is_no_change(build: Callable[..., TableBuilder], *, trust_rewrites: bool) -> None:
    table = build()
    files = [table.data(rows(a=1)), table.data(rows(b=2, c=3))]
    first = table.commit(*files)
    delete = table.equality_delete({"id": [2]}, ids=[1], columns=COLUMNS[:1])
    second = table.commit(delete)
    third = compacted(table, [*files, delete], rows(a=1, c=3), 2)
    table.commit(table.equality_delete({"id": [3]}, ids=[1], columns=COLUMNS[:1]), table.data(rows(d=4)))
    deleted, later = ("delete", 2, "b"), [("delete", 3, "c"), ("insert", 4, "d")]
    assert changes_of(table, second, third, trust_rewrites=trust_rewrites) == []
    assert changes_of(table, first, third, trust_rewrites=trust_rewrites) == [deleted]
    assert changes_of(table, first, trust_rewrites=trust_rewrites) == [deleted, *later]
    assert changes_of(table, third, trust_rewrites=trust_rewrites) == later


def test_what_trusted_compaction_rewrote_is_not_read(build: Callable[..., TableBuilder]) -> None:
    table = build()
    files = [table.data(rows(a=1)), table.data(rows(b=2, c=3))]
    first = table.commit(*files)
    compacted(table, files, rows(a=1, b=2, c=3), 1)
    table.commit(table.data(rows(d=4)))
    changes = scan_of(table).changes(first, trust_rewrites=True)
    assert changes.count() == 1
    assert changes.metrics.data_files_read == 1


def test_rewrite_that_changes_rows_shows_unless_trusted(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2))
    first = table.commit(data)
    compacted(table, [data], rows(a=1), 1)
    assert changes_of(table, first) == [("delete", 2, "b")]
    assert changes_of(table, first, trust_rewrites=True) == []


def test_copy_on_write_yields_only_the_rows_that_changed(build: Callable[..., TableBuilder]) -> None:
    table = build()
    data = table.data(rows(a=1, b=2, c=3))
    first = table.commit(data)
    table.commit(table.data({"id": [1, 2, 3], "name": ["a", "B", "c"]}), remove=[data], operation="overwrite")
    assert changes_of(table, first) == [("delete", 2, "b"), ("insert", 2, "B")]
