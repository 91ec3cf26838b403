"""A table of a database becomes a mirror: first what exists, then what changes."""

from typing import Any


def test_loads_and_follows_a_table(shop: Any) -> None:
    shop.sql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), at timestamptz)",
        "INSERT INTO items SELECT i, 'item ' || i, i * 1.5, '2026-01-01' FROM generate_series(1, 100) i",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    config = shop.config("items")
    report = shop.ingest(config)
    assert report.tables[0].events == {"r": 100}
    assert len(shop.rows(config, "items")) == 100
    shop.sql(
        "UPDATE items SET name = E'tab\\tand\\nline' WHERE id = 5",
        "DELETE FROM items WHERE id = 7",
        "UPDATE items SET id = 1000 WHERE id = 8",
        "BEGIN; INSERT INTO items VALUES (200, NULL, NULL, NULL); DELETE FROM items WHERE id = 9; COMMIT",
    )
    report = shop.ingest(config)
    assert report.tables[0].events == {"u": 2, "d": 2, "c": 1}
    found = {row[0]: row for row in shop.rows(config, "items")}
    assert len(found) == 99
    assert found[5][1] == "tab\tand\nline"
    assert found[1000][1] == "item 8"
    assert found[200] == (200, None, None, None)
    assert shop.ingest(config).found_nothing_new
