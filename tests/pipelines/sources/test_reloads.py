"""Tables that are loaded again: readers of the mirror see the old rows until the new ones are complete, whatever stops the load."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, get_args

import pytest

from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import CommitConflictError, CommitUnknownError, SourceError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.table_ingest import TableIngest
from nevermore.pipelines.maintain import replay
from nevermore.pipelines.maintain.replay import resync, resync_from, resync_from_source
from nevermore.pipelines.sources.table_position import LoadOutdatedError
from nevermore.scan_core import open_table
from tests.pipelines.postgres.conftest import Shop as PostgresShop
from tests.pipelines.sources.conftest import Shop

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest"])
POINTS = get_args(storage.CrashPoint)
ROWS = [(i, f"a{i}") for i in range(1, 10)]
ALTERED = "ALTER TABLE items ADD c int NOT NULL DEFAULT 9"
"""Both servers change all rows by this, and send none of them."""


@pytest.fixture
def shop(empty_shop: Shop) -> Shop:
    empty_shop.sql("CREATE TABLE items (id int PRIMARY KEY, a varchar(20))")
    empty_shop.sql("INSERT INTO items VALUES " + ", ".join(f"({i}, '{a}')" for i, a in ROWS))
    if isinstance(empty_shop, PostgresShop):
        empty_shop.sql("CREATE PUBLICATION pub FOR TABLE items")
    return empty_shop


def rows(config: Config) -> list[tuple[Any, ...]]:
    table = find_table(open_catalog(config), "shop.items")
    return [] if table is None else sorted(tuple(r.values()) for r in open_current(table).scan().to_table().to_pylist())


def snapshots(config: Config) -> list[list[tuple[Any, ...]]]:
    """The rows of every snapshot that the mirror had, without those of its first load."""
    table = open_catalog(config).load_table("shop.items")
    opened = open_table(table.metadata_location)
    at = (opened.scan().as_of_snapshot(s.snapshot_id) for s in table.metadata.snapshots)
    found = [sorted(tuple(r.values()) for r in scan.to_table().to_pylist()) for scan in at]
    return found[[len(rows) for rows in found].index(len(ROWS)) :]


def in_source(shop: Shop) -> list[tuple[Any, ...]]:
    return list(shop.sql("SELECT * FROM items ORDER BY id"))


def kind_of(shop: Shop) -> str:
    return "postgres" if isinstance(shop, PostgresShop) else "mysql"


@pytest.mark.each(2)
def test_a_load_that_is_refused_leaves_the_rows_until_one_succeeds(shop: Shop) -> None:
    config = shop.config("items", schema_changes="freeze")
    shop.ingest(config)
    shop.sql(ALTERED, "UPDATE items SET a = 'after' WHERE id = 3")
    for _ in range(2):
        (table,) = run_once(config).tables
        assert "schema_changes: freeze" in str(table.error)
        assert "keeps the rows that it had" in str(table.error)
        assert rows(config) == ROWS
    config = shop.config("items", schema_changes="evolve")
    shop.sql("DELETE FROM items WHERE id = 4")
    shop.ingest(config)
    assert rows(config) == in_source(shop)
    assert all(len(found) >= 8 for found in snapshots(config))


def test_a_full_load_from_files_is_refused_until_the_running_one_is_complete(shop: Shop) -> None:
    config = shop.config("items", schema_changes="freeze")
    shop.ingest(config)
    dump = shop.folder / "dump.jsonl"
    dump.write_text("".join(f'{{"id": {i}, "a": "dumped"}}\n' for i in range(3)))
    shop.sql(ALTERED)
    assert "keeps the rows that it had" in str(run_once(config).tables[0].error)
    log = open_catalog(config).load_table("change_log.shop_items").metadata.current_snapshot_id
    for _ in range(2):
        with pytest.raises(SourceError, match=r"is being loaded again from its source.*nevermore ingest shop\.items"):
            resync_from(open_catalog(config), config, "shop.items", (str(dump),), "rows-json")
        assert rows(config) == ROWS
        assert open_catalog(config).load_table("change_log.shop_items").metadata.current_snapshot_id == log
    config = shop.config("items")
    shop.ingest(config)
    assert rows(config) == in_source(shop)
    assert resync_from(open_catalog(config), config, "shop.items", (str(dump),), "rows-json").num_rows == 3
    shop.sql("UPDATE items SET a = 'later' WHERE id = 7")
    shop.ingest(config)
    assert [row[:2] for row in rows(config)] == [*((i, "dumped") for i in range(3)), (7, "later")]


def test_a_full_load_from_files_gives_way_to_a_load_that_begins_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = shop.config("items")
    shop.ingest(config)
    dump = shop.folder / "dump.jsonl"
    dump.write_text('{"id": 1, "a": "dumped"}\n')
    read = replay.snapshot_batches

    def beginning(*arguments: Any) -> Any:
        batches = list(read(*arguments))
        shop.sql(ALTERED)
        run_once(shop.config("items", schema_changes="freeze"))
        return iter(batches)

    monkeypatch.setattr(replay, "snapshot_batches", beginning)
    with pytest.raises(CommitConflictError):
        resync_from(open_catalog(config), config, "shop.items", (str(dump),), "rows-json")
    assert rows(config) == ROWS
    config = shop.config("items")
    shop.ingest(config)
    assert rows(config) == in_source(shop)


@pytest.mark.each(4)
@pytest.mark.parametrize("how", ["unsent", "resync"])
def test_a_load_that_fails_in_the_middle_leaves_the_rows_and_goes_on(
    shop: Shop, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"nevermore.pipelines.sources.{kind_of(shop)}.load.MAX_CHUNK_ROWS", 4)
    config = shop.config("items")
    shop.ingest(config)
    shop.sql(ALTERED) if how == "unsent" else shop.sql("UPDATE items SET a = 'new'")
    place = f"nevermore.pipelines.sources.{kind_of(shop)}.load"
    whole = import_module(place).TableLoad.parts

    def broken(*arguments: Any) -> Iterator[Any]:
        yield next(whole(*arguments))
        raise SourceError("the server has gone") from ConnectionError()

    with monkeypatch.context() as patch:
        patch.setattr(f"{place}.TableLoad.parts", broken)
        if how == "unsent":
            (table,) = run_once(config).tables
            assert "the server has gone" in str(table.error)
        else:
            with pytest.raises(SourceError, match="the server has gone"):
                resync_from_source(open_catalog(config), config, "shop.items")
        assert rows(config) == ROWS
        shop.sql("DELETE FROM items WHERE id = 4", "INSERT INTO items (id, a) VALUES (50, 'meanwhile')")
        if how == "unsent":
            run_once(config)
            assert rows(config) == ROWS
            resync(open_catalog(config), config, "shop.items")  # from the log alone, which has no complete load
            assert [row[:2] for row in rows(config)] == ROWS
    shop.ingest(config)
    assert rows(config) == in_source(shop)
    assert all(len(found) >= 8 for found in snapshots(config))
    resync(open_catalog(config), config, "shop.items")
    assert rows(config) == in_source(shop)


def test_a_load_that_begins_again_leaves_the_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    config = shop.config("items")
    shop.ingest(config)
    shop.sql(ALTERED)
    place = f"nevermore.pipelines.sources.{kind_of(shop)}.load"
    whole = import_module(place).TableLoad.parts
    begun: list[str] = []

    def outdated(load: Any, known: Any) -> Iterator[Any]:
        yield from whole(load, known)
        if len(begun) < 1:
            begun.append("once")
            raise LoadOutdatedError("truncated meanwhile", known.to_json())

    monkeypatch.setattr(f"{place}.TableLoad.parts", outdated)
    run_once(config)
    shop.ingest(config)
    assert rows(config) == in_source(shop)
    assert all(len(found) == len(ROWS) for found in snapshots(config))


def test_a_load_whose_end_was_not_recorded_is_something_to_do(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    config = shop.config("items")
    shop.ingest(config)
    shop.sql("UPDATE items SET a = 'new'")

    def killed(_: TableIngest) -> None:
        raise CommitUnknownError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(TableIngest, "end_reload", killed)
        with pytest.raises(SourceError, match="killed"):
            resync_from_source(open_catalog(config), config, "shop.items")
    assert rows(config) == ROWS
    shop.ingest(config)
    assert rows(config) == in_source(shop)


def end(config: str, how: str, point: str, kind: str) -> None:
    """A run in a process of its own, which is killed at a point, if it comes there."""
    import_module(f"nevermore.pipelines.sources.{kind}.load").MAX_CHUNK_ROWS = 5
    os.environ[storage.VARIABLE] = point
    if how == "resync":
        loaded = load(config)
        resync_from_source(open_catalog(loaded), loaded, "shop.items")
        sys.exit(0)
    sys.exit(run_once(load(config)).exit_code)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unsent", "resync"])
@pytest.mark.parametrize("point", POINTS)
def test_a_load_that_is_killed_leaves_the_rows_and_goes_on(shop: Shop, point: str, how: str) -> None:
    config = shop.config("items")
    shop.ingest(config)
    path = str(shop.folder / "nevermore.yaml")
    old = in_source(shop)
    for times in range(1, 20):
        column = f"ALTER TABLE items ADD c{times} int NOT NULL DEFAULT {times}"
        shop.sql(column if how == "unsent" else f"UPDATE items SET a = 'at {times}'")
        new = in_source(shop)
        process = FORKS.Process(target=end, args=(path, how, f"{point}:{times}", kind_of(shop)))
        process.start()
        process.join(300)
        found = rows(config)
        assert found in (old, new)
        shop.sql(f"UPDATE items SET a = 'then {times}' WHERE id = 2")
        shop.ingest(config)
        old = in_source(shop)
        assert rows(config) == old
        if process.exitcode == 0:
            break
        assert process.exitcode == storage.EXIT_CODE
    else:
        pytest.fail("the run never came to its end")
    assert all(len(found) == len(ROWS) for found in snapshots(config))
