"""Tables of the same name from several databases, schemas, topics or folders never become one mirror unless the config says so."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import Decided, FeedConfig, TableFeed, origin_of
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.ingest.feeds import feeds_of
from tests.pipelines.project import Project, event, product

_CANAL = {"type": "INSERT", "isDdl": False, "es": 1, "mysqlType": {"id": "BIGINT"}, "pkNames": ["id"]}
_DMS = {"timestamp": "2024-10-27T12:39:03.210671Z", "record-type": "data", "operation": "insert"}
_COLUMN = {"name": "id", "type": "bigint", "value": 1}


def change(format_name: str, space: str, table: str) -> dict[str, Any]:
    """An insert of `space.table`, as each format names tables."""
    return {
        "debezium-json": {"op": "c", "before": None, "after": {"id": 1}, "source": {"db": space, "table": table}},
        "canal-json": {**_CANAL, "data": [{"id": "1"}], "database": space, "table": table},
        "maxwell-json": {"database": space, "table": table, "type": "insert", "ts": 1, "data": {"id": 1}},
        "dms": {"data": {"id": 1}, "metadata": {**_DMS, "schema-name": space, "table-name": table}},
        "wal2json": {"action": "I", "schema": space, "table": table, "columns": [_COLUMN]},
        "rows": {"op": "c", "id": 1},
    }[format_name]


FORMATS = ("debezium-json", "canal-json", "maxwell-json", "dms", "wal2json", "rows")
NAMED = FORMATS[:-1]


def of_topics(*messages: tuple[str, dict[str, Any]]) -> RawEvents:
    raw = from_documents([json.dumps(value).encode() for _, value in messages])
    places = pa.array([f"{topic}-0" for topic, _ in messages]).dictionary_encode()
    return RawEvents(**{**{name: getattr(raw, name) for name in raw.__dataclass_fields__}, "source_file": places})


def reading(format_name: str, *tables: TableFeed, **more: Any) -> FeedConfig:
    return FeedConfig(format=format_name, tables=tables, **more)


@pytest.mark.each(2)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("later", [False, True], ids=["in one batch", "in a later batch"])
def test_events_of_one_name_in_two_topics_are_refused(format_name: str, *, later: bool) -> None:
    config = reading(format_name, TableFeed(name="shop.orders", key=("id",)), origin="topic")
    first, second = ((f"{server}.shop.orders", change(format_name, "shop", "orders")) for server in "ab")
    decided = Decided()
    if later:
        decided = decode(of_topics(first), config).decided
    messages = (second,) if later else (first, second)
    with pytest.raises(SourceError, match=r"topics a.shop.orders and b.shop.orders both have .* merge_topics: true"):
        decode(of_topics(*messages), reading(format_name, *config.tables, origin="topic", decided=decided))
    merged = decode(of_topics(first, second), reading(format_name, *config.tables))
    assert merged.tables["shop.orders"].num_rows == 2


@pytest.mark.each(2)
@pytest.mark.parametrize("format_name", NAMED)
@pytest.mark.parametrize("later", [False, True], ids=["in one batch", "in a later batch"])
@pytest.mark.parametrize("stated", [None, "orders"], ids=["by its name", "by source_table"])
def test_tables_of_two_databases_are_refused(format_name: str, stated: str | None, *, later: bool) -> None:
    table = TableFeed(name="shop.orders", key=("id",), source_table=stated)
    first, second = (change(format_name, space, "orders") for space in ("a.shop", "b.shop"))
    decided = Decided()
    if later:
        decided = decode(of_topics(("t", first)), reading(format_name, table)).decided
    messages = (("t", second),) if later else (("t", first), ("t", second))
    with pytest.raises(SourceError, match=r"shop.orders fits a.shop.orders and b.shop.orders"):
        decode(of_topics(*messages), reading(format_name, table, decided=decided))
    whole = TableFeed(name="shop.orders", key=("id",), source_table="*.orders")
    assert (
        decode(of_topics(("t", first), ("t", second)), reading(format_name, whole)).tables["shop.orders"].num_rows == 2
    )
    one = TableFeed(name="shop.orders", key=("id",), source_table="a.shop.orders")
    assert decode(of_topics(("t", first), ("t", second)), reading(format_name, one)).tables["shop.orders"].num_rows == 1


@pytest.mark.usefixtures("engine")
def test_a_table_that_was_found_takes_no_other_one_that_ends_in_its_name(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    nameless = json.dumps({"op": "c", "before": None, "after": product(1), "source": {"table": "orders"}})
    project.land("1.jsonl", [nameless])
    assert project.run().exit_code == 0
    project.land("2.jsonl", [event("c", product(2), table="orders")])
    (report,) = project.run().tables
    assert "the feed contains shop.orders" in str(report.error)
    assert project.rows("shop.orders") == [product(1)]


@pytest.mark.usefixtures("engine")
def test_two_folders_with_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/**/*.jsonl", "format": "debezium-json"}

    def write(**more: Any) -> None:
        document = {"tables": {"shop.*": {"source": {**source, **more}, "key": ["id"]}}}
        (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))

    write()
    for place, key in (("a/day=1", 1), ("a/2025/01", 2)):
        (project.landing / place).mkdir(parents=True)
        project.land(f"{place}/1.jsonl", [event("c", product(key))])
    assert project.run().exit_code == 0
    (project.landing / "b").mkdir()
    project.land("b/1.jsonl", [event("c", product(3))])
    (report,) = project.run().tables
    assert "both have events of shop.products" in str(report.error)
    assert project.rows() == [product(1), product(2)]
    write(merge_folders=True)
    assert project.run().exit_code == 0
    assert project.rows() == [product(1), product(2), product(3)]


def of_server(server: str | None, key: int, **more: Any) -> dict[str, Any]:
    """An insert into `shop.products` that a connector has read."""
    source = {"version": "3.1", "connector": "mysql", "db": "shop", "table": "products", "ts_ms": 1}
    name = {} if server is None else {"name": server}
    return {"op": "c", "before": None, "after": product(key), "source": {**name, **source}, **more}


@pytest.mark.each(2)
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("entry", ["shop.*", "shop.products"])
@pytest.mark.parametrize("later", [False, True], ids=["in one run", "in a later run"])
def test_two_connectors_with_tables_of_one_name_are_refused(tmp_path: Path, entry: str, *, later: bool) -> None:
    project = Project(tmp_path)
    source: dict[str, Any] = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}

    def write(**more: Any) -> None:
        document = {"tables": {entry: {"source": {**source, **more}, "key": ["id"]}}}
        (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))

    write()
    project.land("1.jsonl", [json.dumps(of_server(s, k)) for s, k in (("a", 1), (None, 2), ("a", 3), (None, 4))])
    if later:
        assert project.run().exit_code == 0
        project.land("2.jsonl", [json.dumps(of_server("a", 5))])
        assert project.run().exit_code == 0
    project.land("3.jsonl", [json.dumps(of_server("a", 6)), json.dumps(of_server("b", 7))])
    (report,) = project.run().tables
    assert "the connectors a and b (source.name) both have events of shop.products" in str(report.error)
    assert "merge_folders: true" in str(report.error)
    if later:
        assert project.rows() == [product(key) for key in (1, 2, 3, 4, 5)]
    write(merge_folders=True)
    assert project.run().exit_code == 0
    assert project.rows() == [product(key) for key in ((1, 2, 3, 4, 5, 6, 7) if later else (1, 2, 3, 4, 6, 7))]


def test_paths_that_are_listed_for_one_table_are_parts_of_it(tmp_path: Path) -> None:
    source = {"type": "files", "path": ["landing/1.jsonl", "landing/2.jsonl"], "format": "debezium-json"}
    project = Project(tmp_path)
    document = {"tables": {"shop.products": {"source": source, "key": ["id"]}}}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(document))
    project.land("1.jsonl", [json.dumps(of_server("a", 1))])
    project.land("2.jsonl", [json.dumps(of_server("b", 2))])
    assert project.run().exit_code == 0
    assert project.rows() == [product(1), product(2)]


@pytest.mark.parametrize("layout", ["plain", "envelope", "columns"])
@pytest.mark.parametrize(
    "names", [("a", "b"), ("a", "a"), ("a", None), ("", "a"), ("\u00e9", "e"), tuple(map(str, range(40)))]
)
def test_the_server_of_every_event_counts(layout: str, names: tuple[str | None, ...]) -> None:
    events = [of_server(name, number) for number, name in enumerate(names)]
    if layout == "envelope":
        events = [{"schema": {"type": "struct", "fields": []}, "payload": event} for event in events]
    raw = of_topics(*(("t", event) for event in events))
    if layout == "columns":
        raw = RawEvents(**{**raw.__dict__, "rows": pa.Table.from_pylist(events)})
    table = TableFeed(name="shop.products", key=("id",))
    distinct = {name for name in names if name}
    config = reading("debezium-json", table, one_server="merge_topics")
    if len(distinct) > 1:
        with pytest.raises(SourceError, match=r"\(source.name\) both have .* merge_topics: true"):
            decode(raw, config)
    else:
        decoded = decode(raw, config)
        assert decoded.tables["shop.products"].num_rows == len(names)
        assert decoded.decided.servers == {"shop.products": "a"}
    assert decode(raw, reading("debezium-json", table)).tables["shop.products"].num_rows == len(names)


@pytest.mark.parametrize(
    ("topics", "tables", "merges", "origin"),
    [
        (["a", "b"], ["shop.orders"], False, ""),
        (["a", "b"], ["shop.orders", "shop.items"], False, "topic"),
        (["^a.*"], ["shop.orders"], False, "topic"),
        (["a", "b"], ["shop.*"], False, "topic"),
        (["^a.*"], ["shop.*"], True, ""),
    ],
)
def test_topics_are_parts_of_a_table_if_the_config_says_so(
    topics: list[str], tables: list[str], origin: str, tmp_path: Path, *, merges: bool
) -> None:
    source = {"type": "kafka", "brokers": "localhost:1", "topics": topics, "merge_topics": merges}
    path = tmp_path / "nevermore.yaml"
    path.write_text(yaml.safe_dump({"tables": {name: {"source": source, "key": ["id"]} for name in tables}}))
    (feed,) = feeds_of(load(path), tables)
    assert feed.origin == origin
    decided = Decided(origins={"orders": "a", "items": "other"})
    # A topic that the config has replaced by another one does not stand in its way.
    assert feed.config([], decided).decided.origins == ({"orders": "a"} if origin else {})


def test_folders_of_partitions_days_and_runs_count_as_one() -> None:
    assert origin_of("topic", "a-b.shop-12") == "a-b.shop"
    batches = (
        "2025-01-01",
        "day=1/hour=2",
        "2025/01/31",
        "run-0001",
        "part.3",
        "20250101T101500Z",
        "0190163d-8694-739b-aea5-966c26f8ad90",
    )
    files = ("orders/f", *(f"orders/{batch}/f" for batch in batches))
    assert {origin_of("folder", name) for name in files} == {"orders"}
    assert origin_of("folder", "f") == origin_of("folder", "20250101/f") == "."
    assert origin_of("folder", "orders2/f") != origin_of("folder", "orders/f")
