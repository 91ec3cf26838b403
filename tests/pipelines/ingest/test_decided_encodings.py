"""How values are written is decided by config or schema, kept with the table, and never by the values around them."""

import json
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feeds import decided_in
from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine
from tests.pipelines.formats.decoded_feed import changes, dms, read, reasons
from tests.pipelines.project import Project, event, the

NAME = "shop.products"
DECIMAL = "org.apache.kafka.connect.data.Decimal"
MICROS = "io.debezium.time.MicroTime"


def row(key: int, price: Any) -> str:
    return event("c", {"id": key, "price": price})


def enveloped(key: int, price: str, scale: int = 2, **more: Any) -> str:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "price", "type": "bytes", "name": DECIMAL, "parameters": {"scale": str(scale)}},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    return json.dumps({"schema": schema, "payload": {**json.loads(row(key, price)), **more}})


def started(folder: Path, **table: Any) -> Project:
    project = Project(folder)
    project.write({NAME: {"key": ["id"], "max_quarantine_ratio": 1, **table}})
    return project


def prices(project: Project) -> dict[int, Decimal]:
    return {found["id"]: found["price"] for found in project.rows()}


def test_schema_decides_for_bare_events_of_later_runs(tmp_path: Path) -> None:
    project = started(tmp_path)
    project.land("1.jsonl", [enveloped(1, "AQ==")])
    project.run()
    project.land("2.jsonl", [row(2, "1234"), row(3, "AeJA")])
    assert the(project.run()).error is None
    assert prices(project) == {1: Decimal("0.01"), 2: Decimal("-26588.24"), 3: Decimal("1234.56")}
    position = project.table("change_log.shop_products").metadata.current_snapshot().summary["nevermore.position"]
    assert decided_in(position).encodings == {NAME: {"price": "base64:2"}}


def test_config_decides_and_stays_when_it_is_taken_out(tmp_path: Path) -> None:
    project = started(tmp_path, types={"price": "decimal(10,2)"}, encodings={"price": "plain"})
    project.land("1.jsonl", [row(1, "1234")])
    project.run()
    project.write({NAME: {"key": ["id"], "types": {"price": "decimal(10,2)"}, "max_quarantine_ratio": 1}})
    project.land("2.jsonl", [row(2, "5678"), row(3, "AQ==")])
    assert the(project.run()).rejected == 1
    assert prices(project) == {1: Decimal(1234), 2: Decimal(5678)}


def test_without_a_decision_it_is_refused_with_the_option_and_replayed_once_it_is_set(tmp_path: Path) -> None:
    types = {"price": "decimal(10,2)"}
    project = started(tmp_path, types=types)
    project.land("1.jsonl", [row(1, "10.50"), row(2, "1234"), row(3, "AQ=="), row(4, 7)])
    assert the(project.run()).rejected == 2
    assert prices(project) == {1: Decimal("10.50"), 4: Decimal(7)}
    held = project.table("quarantine.shop_products").scan().to_arrow().column("reason").to_pylist()
    assert all("encodings: {price: base64} or {price: plain}" in reason for reason in held)
    project.write({NAME: {"key": ["id"], "types": types, "encodings": {"price": "plain"}, "max_quarantine_ratio": 1}})
    config = load(tmp_path / "nevermore.yaml")
    done = replay_quarantine(open_catalog(config), config, NAME)
    assert (done.applied, done.rejected) == (1, 1)
    assert prices(project)[2] == Decimal(1234)


def test_type_of_the_config_keeps_scale_and_unit_of_the_schema() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "price", "type": "bytes", "name": DECIMAL, "parameters": {"scale": "4"}},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    payload = {
        "op": "c",
        "before": None,
        "after": {"id": 1, "price": "MDk=", "at": 1_000_000},
        "source": {"table": "products"},
    }
    decoded = read(
        "debezium-json", {"schema": schema, "payload": payload}, types={"price": "decimal(20,6)", "at": "timestamptz"}
    )
    (change,) = changes(decoded)
    assert change["after"]["price"] == Decimal("1.2345")
    assert change["after"]["at"].timestamp() == 1.0


EVENTS = [row(1, "1234"), row(2, "AQ=="), row(3, "10.50"), row(4, "oops"), row(5, 3)]


@pytest.mark.each(2)
@pytest.mark.parametrize("order", list(permutations(range(5)))[::17])
def test_what_becomes_of_an_event_is_the_same_alone_and_in_any_company(order: tuple[int, ...]) -> None:
    def outcome(*lines: str) -> dict[int, Any]:
        decoded = read("debezium-json", *(line.encode() for line in lines), types={"price": "decimal(10,2)"})
        return {c["after"]["id"]: c["after"]["price"] for c in changes(decoded)}

    alone = {key: price for line in EVENTS for key, price in outcome(line).items()}
    assert outcome(*(EVENTS[n] for n in order)) == alone == {3: Decimal("10.50"), 5: Decimal(3)}


@pytest.mark.parametrize("dump_first", [True, False])
def test_dumped_messages_are_told_one_by_one(dump_first: bool) -> None:  # noqa: FBT001
    inner = json.loads(row(1, 5))
    lines = [json.dumps({"key": {"id": 1}, "value": inner}).encode(), row(2, 6).encode()]
    decoded = read("debezium-json", *(lines if dump_first else lines[::-1]))
    assert sorted(c["after"]["id"] for c in changes(decoded)) == [1, 2]


def test_before_images_of_dms_under_either_name_are_read_beside_each_other() -> None:
    update = dms("update", {"id": 2})
    decoded = read("dms", {**update, "before-image": {"id": 1}}, {**dms("update", {"id": 4}), "before": {"id": 3}})
    assert [c["before"] for c in changes(decoded)] == [{"id": 1}, {"id": 3}]


def test_word_that_is_no_operation_does_not_make_deletes_of_dms_rows_of_a_full_load(tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/*", "format": "dms"}
    project.write({NAME: {"key": ["id"], "types": {"id": "long"}, "max_quarantine_ratio": 1}})
    document = (tmp_path / "nevermore.yaml").read_text().replace("debezium-json", "dms").replace("*.jsonl", "*")
    assert source["format"] in document
    (tmp_path / "nevermore.yaml").write_text(document)
    project.land("1.csv", ["op,id", "I,1", "D,1", "X,2"])
    report = the(project.run())
    assert (dict(report.events), report.rejected) == ({"c": 1, "d": 1}, 1)
    assert project.rows() == []


def test_reasons_of_other_feeds_name_no_encoding() -> None:
    decoded = read("rows", {"op": "I", "id": 1, "price": "AQ=="}, types={"price": "decimal(10,2)"})
    assert reasons(decoded) == ["column price: text 'AQ==' is no decimal(10,2)"]
