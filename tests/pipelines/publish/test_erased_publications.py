"""A table that Spark published key by key forgets what an erasure removes from its mirrors: files, manifests, bounds."""

from pathlib import Path

from pyspark.sql import SparkSession

from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.manifests import read_avro
from nevermore.pipelines.maintain.erase import erase
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.publish.daily_orders import NAME, apply, customers, make_config, orders
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST
JOINED = """
select cast(o.at as date) as day, o.id, c.city, o.amount
from shop.orders o left join shop.customers c on c.id = o.customer_id
"""


def test_no_manifest_names_an_erased_person(tmp_path: Path, spark: SparkSession) -> None:
    config = make_config(tmp_path, JOINED, incremental="keys", key=["id"])
    city = "Longyearbyen on Svalbard"
    apply(config, "shop.customers", customers((1, "Oslo"), (2, city)))
    apply(config, "shop.orders", orders((1, 1, 1, 10), (2, 2, 1, 20), (3, 1, 3, 30)))
    publish(config, NAME)
    apply(config, "shop.orders", orders((2, 2, 1, 21), (4, 2, 3, 40)), deleted=[2])
    publish(config, NAME)
    assert names(tmp_path, city)
    erased = erase(
        open_catalog(config),
        config,
        "shop.customers",
        f"city = '{city}'",
        is_dry=False,
        publish=lambda name: publish(config, name, is_full=True),
    )
    assert erased.is_complete, list(erased.lines)
    assert not names(tmp_path, city)
    made = find_table(open_catalog(config), NAME)
    assert made is not None
    assert publish(config, NAME).is_unchanged  # the state is known, though the snapshot that recorded it is gone


def names(folder: Path, text: str) -> list[str]:
    """Files below the warehouse that have a text, or in manifests the first 16 characters, to which bounds are cut."""
    found = []
    for path in (folder / "warehouse").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        decoded = repr(read_avro(data, str(path)).rows) if path.suffix == ".avro" else data.decode("latin-1")
        if text[:16] in decoded:
            found.append(path.name)
    return found
