"""What decides how events are read is what came before them, never what lies beside them or behind them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.formats.decoded_feed import canal, changes, read, reasons, wal
from tests.pipelines.project import Project, event, the

NAME = "shop.products"
KEYED = {"pk": [{"name": "id", "type": "integer"}]}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (event("c", {"id": 1}), "its events look like debezium-json, so add format: debezium-json"),
        (json.dumps(canal("INSERT", [{"id": "2"}])), "its events look like canal-json, so add format: canal-json"),
        (json.dumps({"id": 1}), "the events look like no known format; state the format"),
    ],
)
def test_a_source_without_a_format_is_refused_with_the_one_that_its_events_look_like(
    tmp_path: Path, line: str, told: str
) -> None:
    project = Project(tmp_path)
    config = tmp_path / "nevermore.yaml"
    config.write_text(config.read_text().replace("format: debezium-json", "format: null"))
    project.land("1.jsonl", [line])
    report = project.run()
    assert report.exit_code == (2 if "add format" in told else 1)
    assert told in str(the(report).error)
    assert project.table("shop.products") is None


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
