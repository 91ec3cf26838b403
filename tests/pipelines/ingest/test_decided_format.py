"""What decides how events are read is what came before them, never what lies beside them or behind them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import Decided, FeedConfig, TableFeed
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.ingest.feeds import decided_in
from tests.pipelines.formats.decoded_feed import canal, changes, read, reasons, wal
from tests.pipelines.project import Project, event, the

NAME = "shop.products"
KEYED = {"pk": [{"name": "id", "type": "integer"}]}


def test_format_that_the_first_events_show_is_kept_and_another_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    config = tmp_path / "nevermore.yaml"
    config.write_text(config.read_text().replace("format: debezium-json", "format: null"))
    project.land("1.jsonl", [event("c", {"id": 1})])
    assert the(project.run()).error is None
    position = project.table("change_log.shop_products").metadata.current_snapshot().summary["nevermore.position"]
    assert decided_in(position).format == "debezium-json"
    project.land("2.jsonl", [json.dumps(canal("INSERT", [{"id": "2"}]))])
    error = str(the(project.run()).error)
    assert "look like canal-json, but the feed was detected as debezium-json" in error
    assert "format: debezium-json" in error


def feed(**decided: Any) -> FeedConfig:
    return FeedConfig(tables=(TableFeed(name=NAME, key=("id",)),), decided=Decided(**decided))


def test_events_that_show_no_format_are_read_by_that_of_the_feed_and_record_none() -> None:
    nothing = from_documents([None, b" "])
    assert decode(nothing, feed()).decided.format == ""
    assert decode(nothing, feed(format="canal-json")).decided.format == "canal-json"


def test_rows_after_rows_may_have_members_that_other_formats_have() -> None:
    row = {"op": "c", "id": 1}
    assert decode(from_documents([json.dumps(row).encode()]), feed()).decided.format == "rows"
    with pytest.raises(SourceError, match="detected as rows"):
        decode(from_documents([event("c", {"id": 1}).encode()]), feed(format="rows"))


def test_a_key_is_taken_from_events_before_and_not_from_those_behind() -> None:
    bare, keyed = (wal("I", {"id": number}, **more) for number, more in ((1, {}), (2, KEYED)))
    later = wal("I", {"id": 3})
    together = read("wal2json", bare, keyed, later, key=())
    assert [found["key"]["id"] for found in changes(together, "key")] == [2, 3]
    assert [reason.split(":")[0] for reason in reasons(together)] == ["no key"]
    # The same one by one, each batch knowing what came before.
    known: tuple[str, ...] = ()
    taken = []
    for one in (bare, keyed, later):
        alone = read("wal2json", one, key=(), known_key=known)
        taken += [found["key"]["id"] for found in changes(alone, "key")]
        known = alone.tables[NAME].key if alone.tables[NAME].num_rows else known
    assert taken == [2, 3]


def test_a_type_is_taken_from_events_before_and_not_from_those_behind() -> None:
    def cells(number: int, **kind: str) -> dict[str, Any]:
        columns = [{"name": "id", "type": "integer", "value": number}, {"name": "n", "value": "1.50", **kind}]
        return {"action": "I", "schema": "public", "table": "products", "columns": columns, **KEYED}

    bare, typed = cells(1), cells(2, type="numeric(8,3)")
    first = read("wal2json", bare, known_types={}).tables[NAME].row_type
    assert str(first.field("n").type) == "string"
    both = read("wal2json", bare, typed)
    assert [found["after"]["n"] for found in changes(both, "after")] == ["1.50"], "as without the event behind it"
    assert len(reasons(both)) == 1
    other_way = changes(read("wal2json", typed, bare), "after")
    assert len({type(found["after"]["n"]) for found in other_way}) == 1
    assert all(a["after"]["n"] == b["after"]["n"] for a, b in pairwise(other_way))


def test_an_order_that_an_event_gives_twice_is_no_order() -> None:
    twice = event("u", {"id": 1, "n": 2}).replace('"source": {', '"source": {"lsn": 5, "lsn": 9, ')
    plain = event("c", {"id": 1, "n": 1}).replace('"source": {', '"source": {"lsn": 7, ')
    decoded = read("debezium-json", plain.encode(), twice.encode(), order_by=("source.lsn",))
    assert [found["op"] for found in changes(decoded)] == ["c"]
    assert reasons(decoded) == ["order_by: source.lsn: an object gives a member twice"]
