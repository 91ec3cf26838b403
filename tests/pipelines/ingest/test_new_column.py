"""Values that do not fit their column, from real feeds: into a column of their own, or to quarantine, as config says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport

Row = dict[str, Any]


class Feed:
    """Files that land one after the other, for one table."""

    def __init__(self, folder: Path, kind: str, key: str | None = "id", **options: Any) -> None:
        (folder / "landing").mkdir(parents=True)
        self.folder, self.number = folder, 0
        source = {"type": "files", "path": "landing/*", "format": kind}
        table = {"source": source, "on_conflict": "new_column", **({"key": [key]} if key else {}), **options}
        (folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.t": table}}))

    def land(self, *lines: Any) -> IngestReport:
        self.number += 1
        text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        (self.folder / "landing" / f"{self.number}.jsonl").write_text(text)
        report = run_once(load(self.folder / "nevermore.yaml"))
        assert [t.error for t in report.tables] == [None]
        return report

    def rows(self, order: str = "id") -> list[Row]:
        table = find_table(open_catalog(load(self.folder / "nevermore.yaml")), "shop.t")
        assert table is not None
        return list(live_rows(table.metadata_location.removeprefix("file://")).sort_by(order).to_pylist())


def debezium(row: Row, op: str = "c", before: Row | None = None, **types: str) -> Row:
    """An event; in the schema envelope where types are given."""
    payload = {"op": op, "before": before, "after": row, "source": {"db": "shop", "table": "t"}, "ts_ms": 1}
    if not types:
        return payload
    fields = [{"type": kind, "optional": True, "field": name} for name, kind in types.items()]
    images = [{"type": "struct", "fields": fields, "optional": True, "field": image} for image in ("before", "after")]
    return {"schema": {"type": "struct", "fields": images, "name": "Envelope"}, "payload": payload}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "batch by batch"])
def test_canal_modify_column_to_text_goes_to_a_column_of_its_own(
    tmp_path: Path, shared_dir: Path, *, at_once: bool
) -> None:
    """The events of the shared set, with the ALTER that MySQL allows and Iceberg has no promotion for."""
    part = (shared_dir / "cdc/canal_mysql_schema_evolution/part-2.txt").read_text().splitlines()
    events = [json.loads(line) for line in part if line.startswith("{")]
    events = [e for e in events if e["table"] == "schema_evolution_1"]
    ddl = events[0] | {"sql": "ALTER TABLE schema_evolution_1 MODIFY COLUMN v2 VARCHAR(10)"}
    insert = next(e for e in events if not e["isDdl"])
    types = insert["mysqlType"] | {"v2": "VARCHAR(10)"}
    texts = insert | {
        "data": [{"pt": "1", "_id": "9", "v1": "nine", "v2": "ninety"}, {"pt": "1", "_id": "5", "v1": "V", "v2": "L"}],
        "mysqlType": types,
    }
    feed = Feed(tmp_path, "canal-json", key="_id")
    if at_once:
        feed.land(*events, ddl, texts)
    else:
        feed.land(*events)
        feed.land(ddl, texts)
    rows = {r["_id"]: (r["v2"], r["v2__string"]) for r in feed.rows("_id")}
    assert rows[3] == (30, None)
    assert rows[5] == (None, "L")
    assert rows[9] == (None, "ninety")


def test_debezium_declared_type_changes_and_changes_back(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(debezium({"id": 1, "n": 5}, id="int32", n="int32"), debezium({"id": 2, "n": 6}, id="int32", n="int32"))
    feed.land(debezium({"id": 1, "n": "five"}, "u", id="int32", n="string"))
    assert feed.rows() == [{"id": 1, "n": None, "n__string": "five"}, {"id": 2, "n": 6, "n__string": None}]
    feed.land(debezium({"id": 1, "n": 7}, "u", id="int32", n="int32"))
    feed.land(debezium({"id": 2, "n": "six"}, "u", id="int32", n="string"), debezium({"id": 3, "n": 0.5}))
    assert feed.rows() == [
        {"id": 1, "n": 7, "n__string": None, "n__double": None},
        {"id": 2, "n": None, "n__string": "six", "n__double": None},
        {"id": 3, "n": None, "n__string": None, "n__double": 0.5},
    ]


def test_dms_value_of_another_type_goes_to_a_column_of_its_own(tmp_path: Path, shared_dir: Path) -> None:
    lines = (shared_dir / "cdc/dms_json_schema_evolution/part-1.txt").read_text().splitlines()
    lines = [line for line in lines if line.startswith("{")]
    heavy = json.loads(lines[0])
    heavy["data"] |= {"id": 900, "weight": "heavy"}
    feed = Feed(tmp_path, "dms-json")
    report = feed.land(*lines, heavy)
    assert report.exit_code == 0
    rows = {r["id"]: (r["weight"], r["weight__string"]) for r in feed.rows()}
    assert rows[101] == (3.14, None)
    assert rows[900] == (None, "heavy")


def test_unsent_value_of_a_variant_is_kept_like_the_one_of_its_column(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json", types={"id": "long"})
    feed.land(debezium({"id": 1, "n": 1, "m": 1}), debezium({"id": 2, "n": "text", "m": 2}))
    placeholder = "__debezium_unavailable_value"
    feed.land(*(debezium({"id": i, "n": placeholder, "m": 9}, "u") for i in (1, 2)))
    assert feed.rows() == [
        {"id": 1, "n": 1, "m": 9, "n__string": None},
        {"id": 2, "n": None, "m": 9, "n__string": "text"},
    ]


def test_misfit_in_a_key_column_is_quarantined(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(debezium({"id": 1, "n": 1}))
    report = feed.land(debezium({"id": 2, "n": 2}), debezium({"id": "x", "n": 3}))
    assert report.exit_code == 3
    assert feed.rows() == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]


def test_scales_that_cannot_be_one_decimal_get_columns_each(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json", types={"price": "decimal(5,2)"})
    feed.land(debezium({"id": 1, "price": "1.25"}), debezium({"id": 2, "price": "1.2345"}))
    second = feed.rows()[1]
    assert second["price"] is None
    assert [v for name, v in second.items() if name.startswith("price__")] == ["1.2345"]


def test_nested_misfit_goes_to_a_variant(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(debezium({"id": 1, "tags": 5}))
    feed.land(debezium({"id": 2, "tags": ["a", "b"]}))
    feed.land(debezium({"id": 3, "tags": {"a": 1}}))
    feed.land(debezium({"id": 4, "tags": {"b": 2}}))
    found = {r.pop("id"): {n: v for n, v in r.items() if v is not None} for r in feed.rows()}
    assert found == {
        1: {"tags": 5},
        2: {"tags__list": ["a", "b"]},
        3: {"tags__struct": {"a": 1, "b": None}},
        4: {"tags__struct": {"a": None, "b": 2}},
    }


def test_table_without_key_keeps_variants_in_step(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json", key=None, identity="full")
    feed.land(debezium({"id": 1, "n": 1}), debezium({"id": 1, "n": "x"}), debezium({"id": 1, "n": "x"}))
    feed.land(debezium({"id": 1, "n": 2}, "u", before={"id": 1, "n": "x"}))
    rows = sorted((r["n"] or 0, r["n__string"] or "") for r in feed.rows())
    assert rows == [(0, "x"), (1, ""), (2, "")]


def test_without_the_option_misfits_are_quarantined(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json", on_conflict="quarantine")
    feed.land(debezium({"id": 1, "n": 1}))
    report = feed.land(debezium({"id": 2, "n": 2}), debezium({"id": 3, "n": "three"}))
    assert report.exit_code == 3
    assert feed.rows() == [{"id": 1, "n": 1}, {"id": 2, "n": 2}]


@pytest.mark.each(2)
@pytest.mark.parametrize("at_once", [True, False], ids=["in one batch", "batch by batch"])
def test_numbers_that_are_no_long_go_to_columns_of_their_types(tmp_path: Path, *, at_once: bool) -> None:
    values = [1.5, True, 2**70, 2.0, "7"]
    events = [debezium({"id": number, "n": value}) for number, value in enumerate(values)]
    feed = Feed(tmp_path, "debezium-json")
    feed.land(debezium({"id": 9, "n": 5}))
    for batch in [events] if at_once else [[event] for event in events]:
        feed.land(*batch)
    columns = ("n", "n__double", "n__boolean", "n__decimal_38_0")
    assert [tuple(row[name] for name in columns) for row in feed.rows()] == [
        (None, 1.5, None, None), (None, None, True, None), (None, None, None, 2**70), (2, None, None, None),
        (7, None, None, None), (5, None, None, None),
    ]  # fmt: skip
    assert feed.rows()[0].keys() == {"id", *columns}
