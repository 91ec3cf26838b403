"""The mirror is compared with its table: what is missing, extra or different is found, and what changes meanwhile is not."""

import threading
from typing import Any

import pytest

from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.sources.mysql.load import MysqlBatch
from nevermore.pipelines.sources.mysql.reader import _Reading
from tests.pipelines.mysql.conftest import BOTH, Shop
from tests.support.lost_rows import found_after_losses, loaded_again

ROWS = 20_000
KEYS = {
    "integer": "id int PRIMARY KEY",
    "text": "id varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY",
    "composite": "id int, PRIMARY KEY (body, id)",
    "none": "id int",
}


def items(shop: Shop, key: str = "integer", **settings: Any) -> Any:
    shop.sql(
        f"CREATE TABLE items (n int, body varchar(40), amount decimal(12, 2), {KEYS[key]})",
        f"INSERT INTO items SELECT seq, CONCAT('row ', seq), seq / 8, seq FROM seq_1_to_{ROWS}",
    )
    shop.source["chunk_bytes"] = "1MiB"
    config = shop.config("items", **({"identity": "full"} if key == "none" else {}), **settings)
    shop.ingest(config)
    return config


def lose(shop: Shop, config: Any, *statements: str) -> None:
    """Make changes, and read on without them, as a connector with a fault does."""
    shop.sql(*statements)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Reading, "_rows", lambda *_: None)
        patch.setattr(MysqlBatch, "is_due", lambda *_: True)
        shop.ingest(config)


@pytest.mark.each(8)
@BOTH
@pytest.mark.parametrize("key", KEYS)
def test_missing_extra_and_changed_rows_are_found(shop: Shop, key: str) -> None:
    config = items(shop, key)
    inserted = f"INSERT INTO items VALUES ({ROWS + 8}, 'new', 1, {ROWS + 8})"
    found_after_losses(shop, config, lose, inserted, num_rows=ROWS, has_key=key != "none")


@pytest.mark.slow
@BOTH
def test_keys_that_differ_are_loaded_again(shop: Shop) -> None:
    loaded_again(shop, items(shop), lose, f"INSERT INTO items VALUES ({ROWS + 8}, 'new', 1, {ROWS + 8})")


@pytest.mark.slow
@BOTH
def test_changes_during_the_comparison_are_no_differences(shop: Shop) -> None:
    config = items(shop, checks={"max_rows_per_second": 10_000})
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 77")
    stop = threading.Event()
    writer = shop.server.connect()

    def write() -> None:
        number = 0
        with writer.cursor() as cursor:
            cursor.execute(f"USE {shop.database}")
            while not stop.wait(0.002):
                number += 1
                at = number * 7919 % ROWS
                cursor.execute(f"UPDATE items SET body = 'w{number}' WHERE id = {at} AND n <> 77")
                cursor.execute(f"UPDATE items SET id = -id WHERE id = {at + 1} AND n <> 77")
                cursor.execute(f"DELETE FROM items WHERE id = {at + 2} AND n <> 77")
                cursor.execute(f"INSERT INTO items VALUES ({ROWS + number}, 'new', 1, {ROWS + number})")

    def ingest() -> None:
        while not stop.wait(0.2):
            run_once(config)

    threads = [threading.Thread(target=work) for work in (write, ingest)]
    for thread in threads:
        thread.start()
    try:
        found = [mirror_equals_source(config, "shop.items") for _ in range(3)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        writer.close()
    assert [one.details[0] for one in found] == ["1 row with other values than in the database"] * 3
