"""What the catalogs of PostgreSQL 14 to 18 say differently about what is sent."""

import pytest

from tests.pipelines.postgres.conftest import VERSIONS, Shop

TABLES = {
    "stored": "CREATE TABLE items (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n * 2) STORED, v text)",
    "partitioned": "CREATE TABLE items (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n * 2) STORED, v text) "
    "PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF items FOR VALUES FROM (0) TO (1000)",
    "virtual": "CREATE TABLE items (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n * 2) VIRTUAL, v text)",
    "identity": "CREATE TABLE items (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int, v text)",
}
PUBLISHED = {
    "table": "FOR TABLE items",
    "columns": "FOR TABLE items (id, n)",
    "all": "FOR ALL TABLES",
    "schema": "FOR TABLES IN SCHEMA public",
    "generated": "FOR TABLE items (id, g)",
    "stored": "FOR TABLE items WITH (publish_generated_columns = stored)",
}
SENT = {"columns": ["id", "n"], "generated": ["id", "g"]}


@pytest.mark.each(28)
@VERSIONS
@pytest.mark.parametrize("published", PUBLISHED)
@pytest.mark.parametrize("kind", TABLES)
def test_a_mirror_has_the_columns_that_are_sent_and_keeps_their_values(shop: Shop, kind: str, published: str) -> None:
    is_new = shop.connection.server_version >= 180000
    if not is_new and (kind == "virtual" or published in {"generated", "stored"}):
        pytest.skip("18 is the first version that has it")
    if published == "generated" and kind in {"virtual", "identity"}:
        pytest.skip("such a column cannot be published")
    shop.sql(TABLES[kind], "INSERT INTO items (n, v) VALUES (1, 'a')" if kind == "identity" else "INSERT INTO items (id, n, v) VALUES (1, 1, 'a')")  # fmt: skip
    options = "" if "WITH" in PUBLISHED[published] else " WITH (publish_via_partition_root = true)"
    if kind == "partitioned" and not options:
        options = ", publish_via_partition_root"
        shop.sql(f"CREATE PUBLICATION pub {PUBLISHED[published][:-1]}{options})")
    else:
        shop.sql(f"CREATE PUBLICATION pub {PUBLISHED[published]}{options}")
    config = shop.config("items")
    shop.ingest(config)
    sent = SENT.get(
        published, ["id", "n", *(["g"] if published == "stored" and kind in {"stored", "partitioned"} else []), "v"]
    )
    assert shop.mirror(config, "items").column_names == sent
    for statement in ("UPDATE items SET n = 5 WHERE id = 1", "UPDATE items SET v = 'b'"):
        shop.sql(statement)
        shop.ingest(config)
        assert shop.rows(config, "items") == shop.sql(f"SELECT {', '.join(sent)} FROM items")
