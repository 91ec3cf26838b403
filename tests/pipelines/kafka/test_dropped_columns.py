"""Columns that are dropped, in topics whose partitions have no common order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.kafka.test_topics import KafkaProject
from tests.pipelines.test_dropped_columns import AGAIN, NEW, OLD, Columns, stated
from tests.support.kafka_broker import KafkaBroker, running_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with running_broker() as found:
        yield found


@pytest.mark.slow
def test_an_older_event_of_another_partition_drops_no_column(broker: KafkaBroker, tmp_path: Path) -> None:
    broker.create_topic("columns", 2)
    project = KafkaProject(tmp_path, broker, "columns", dropped_columns="drop")

    def names_after(*sent: tuple[int, Columns, int, dict[str, Any]]) -> list[str]:
        for partition, columns, ts, row in sent:
            broker.produce("columns", [(str(row["id"]).encode(), stated(columns, "c", row, ts).encode())], partition)
        assert project.run().exit_code == 0
        return [f.name for f in project.table("shop.products").schema().fields]

    # c is added between times 2 and 3, and dropped between 5 and 6
    assert names_after((0, NEW, 1, {"id": 1, "a": "x"}), (0, OLD, 3, {"id": 2, "a": "y", "c": 5})) == ["id", "a", "c"]
    assert names_after((1, NEW, 2, {"id": 3, "a": "z"})) == ["id", "a", "c"]
    late = [
        (1, NEW, 2, {"id": 4, "a": "z"}),
        (0, OLD, 4, {"id": 5, "a": "y", "c": 6}),
        (1, OLD, 5, {"id": 6, "a": "y"}),
    ]
    assert names_after(*late) == ["id", "a", "c"]
    assert {row["id"]: row["c"] for row in project.rows()} == {1: None, 2: 5, 3: None, 4: None, 5: 6, 6: None}
    assert names_after((1, NEW, 6, {"id": 7, "a": "z"})) == ["id", "a"]
    assert names_after((0, AGAIN, 7, {"id": 8, "a": "z", "c": "new"})) == ["id", "a", "c"]
    assert [row["c"] for row in project.rows()] == [*[None] * 7, "new"]
