"""Publishing over mirrors, and into tables, whose manifests hold DELETED entries alone, EXISTING ones alone, or none."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.publish.refresh import publish
from tests.pipelines.publish.daily_orders import (
    NAME,
    apply,
    assert_is_what_all_gives,
    customers,
    make_config,
    orders,
    published,
)
from tests.support.manifest_states import STATES, State, restate
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.slow]


def metadata_of(config: Config, name: str) -> Path:
    table = find_table(open_catalog(config), name)
    assert table is not None
    return Path(table.metadata_location.removeprefix("file://"))


@pytest.mark.parametrize("state", STATES)
def test_published_rows_are_those_of_a_full_run_over_every_state(
    tmp_path: Path, spark: SparkSession, state: State
) -> None:
    config = make_config(tmp_path)
    apply(config, "shop.customers", customers((1, "Oslo"), (2, "Bergen")))
    apply(config, "shop.orders", orders((1, 1, 1, 10), (2, 2, 2, 20), (3, 1, 3, 30)))
    publish(config, NAME)
    apply(config, "shop.orders", orders((2, 1, 2, 25)), deleted=[2, 3])
    for content in (0, 1):
        restate(metadata_of(config, "shop.orders"), content, state, alone=False)
    restate(metadata_of(config, NAME), 0, state, alone=False)
    publish(config, NAME)
    assert [(row[1], row[3]) for row in published(config)] == [("Oslo", 10), ("Oslo", 25)]
    assert_is_what_all_gives(config)
