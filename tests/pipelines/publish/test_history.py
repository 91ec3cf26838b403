"""Histories: every version of every row, with the time until which it held, as a replay of the change log says."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.assets.metadata import published_columns
from nevermore.checks.published_equality import ProjectAuditor, check_published
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.publish import query
from nevermore.pipelines.publish.audit import CheckFailedError
from nevermore.pipelines.publish.query import tables_read
from nevermore.pipelines.publish.refresh import publish
from nevermore.scan_core import open_table
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST
HISTORY = {"shop.products_history": {"history": "shop.products"}}


def config_of(folder: Path, published: dict[str, Any] | None = None, **table: Any) -> Config:
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    tables = {"shop.products": {"source": source, "key": ["id", "part"], **table}}
    path = folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump({"tables": tables, "published": published or HISTORY}))
    return load(path)


def land(folder: Path, seed: int, first: int) -> None:
    """Events of every kind; `first` is the number of the first event."""
    dice, lines, rows = random.Random(seed), [], {}
    for number in range(first, first + 120):
        row = {"id": dice.randrange(6), "part": dice.choice("ab"), "name": f"v{number}"}
        key = (row["id"], row["part"])
        source = {"db": "shop", "table": "products", "ts_ms": 1_000_000 + number // 2 * 1000}
        kind = dice.choices(["write", "delete", "move", "truncate"], [8, 3, 2, 0.3])[0]
        old: Any = {"id": key[0], "part": key[1]}
        if key in rows and dice.random() < 0.4:
            row["name"] = "__debezium_unavailable_value"
        if kind == "write":
            event = {"op": "u" if key in rows else "c", "before": old if key in rows else None, "after": row}
            rows[key] = row
        elif kind == "delete":
            event = {"op": "d", "before": old, "after": None}
            rows.pop(key, None)
        elif kind == "move" and key in rows:
            moved = {**row, "id": dice.randrange(6)}
            event = {"op": "u", "before": old, "after": moved}
            rows.pop(key)
            rows[moved["id"], moved["part"]] = moved
        else:
            event = {"op": "t"}
            rows.clear()
        lines.append(json.dumps({**event, "source": source, "ts_ms": source["ts_ms"]}))
    (folder / "landing").mkdir(exist_ok=True)
    (folder / "landing" / f"{first}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def kept(before: list[Any] | None) -> dict[str, Any]:
    """The name that was not sent: the one of the version before, unless that is of another row."""
    is_same = before is not None and before[3] != "d"
    return {"name": before[2], "not_sent": before[4]} if before and is_same else {"not_sent": "name"}


class Versions:
    """All versions so far, and the one of each key that holds."""

    def __init__(self, *, soft: bool) -> None:
        self.soft = soft
        self.found: list[list[Any]] = []
        self.current: dict[tuple[Any, ...], list[Any]] = {}

    def end(self, key: tuple[Any, ...], at: Any) -> list[Any] | None:
        version = self.current.pop(key, None)
        if version is not None:
            version[6:] = [at, False]
        return version

    def begin(self, key: tuple[Any, ...], row: dict[str, Any] | None, op: str, at: Any) -> None:
        version = self.end(key, at)
        if row is None and version is not None and self.soft and version[3] != "d":
            row = {"id": version[0], "part": version[1], "name": version[2], "not_sent": version[4]}
        if row is not None:
            self.current[key] = [row["id"], row["part"], row["name"], op, row.get("not_sent", ""), at, None, True]
            self.found.append(self.current[key])

    def apply(self, change: dict[str, Any], at: Any) -> None:
        old, new = change["before"], change["after"]
        moves = change["op"] == "u" and (old["id"], old["part"]) != (new["id"], new["part"])
        if change["op"] == "d" or moves:
            self.begin((old["id"], old["part"]), None, "d", at)
        if new is not None:
            self.begin((new["id"], new["part"]), new, change["op"], at)


def expected(config: Config, time: str, *, soft: bool) -> list[tuple[Any, ...]]:
    """The versions, by applying the change log one change after the other."""
    log = open_table(open_catalog(config).load_table("change_log.shop_products")).scan().to_table()
    versions = Versions(soft=soft)
    for change in log.sort_by("ordinal").to_pylist():
        at = change["source_ts" if time == "source" else "ingested_at"]
        old, new = change["key"], change["after"]
        for key in [*versions.current] if change["op"] == "t" else ():
            versions.end(key, at)
        moves = change["op"] == "u" and (old["id"], old["part"]) != (new["id"], new["part"])
        if change["op"] == "d" or moves:
            versions.begin((old["id"], old["part"]), None, "d", at)
        if new is not None:
            before = None if moves else versions.current.get((new["id"], new["part"]))
            new |= kept(before) if "name" in change["unchanged"] else {}
            versions.begin((new["id"], new["part"]), new, change["op"], at)
    return sorted(map(tuple, versions.found), key=str)


def published(config: Config, name: str = "shop.products_history") -> list[tuple[Any, ...]]:
    rows = open_table(open_catalog(config).load_table(name)).scan().to_table().to_pylist()
    names = ["id", "part", "name", "operation", "not_sent", "valid_from", "valid_to", "is_current"]
    return sorted((tuple(row[n] for n in names) for row in rows), key=str)


@pytest.mark.each(2)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("time", ["source", "ingest"])
def test_a_history_has_every_version(tmp_path: Path, time: str, deletes: str) -> None:
    entry = {"shop.products_history": {"history": "shop.products", "valid_by": time}}
    config = config_of(tmp_path, entry, soft_delete=deletes == "soft")
    for turn in range(2):
        land(tmp_path, seed=turn, first=turn * 120)
        run_once(config)
        publish(config, "shop.products_history", auditor=ProjectAuditor())
        assert published(config) == expected(config, time, soft=deletes == "soft")
    assert {row[4] for row in published(config)} == {"", "name"}
    (found,) = (r for r in check_published(config, "shop.products_history") if r.name == "published_equals_duckdb")
    assert found.passed
    assert not found.details
    assert found.compared["rows by DuckDB"] == len(published(config))
    assert published_columns(config, "shop.products_history")["dagster/column_schema"]


@pytest.mark.slow
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_versions_are_in_the_order_of_events_that_arrive_late(tmp_path: Path, deletes: str) -> None:
    config = config_of(tmp_path, order_by=["source.ts_ms"], soft_delete=deletes == "soft")
    dice, events, rows = random.Random(3), [], {}
    for number in range(160):
        row = {"id": dice.randrange(4), "part": "a", "name": f"v{number}"}
        old = rows.get(row["id"])
        kind = dice.choice(["write", "write", "write", "delete", "move"])
        event: dict[str, Any] = {"op": "c" if old is None else "u", "before": old, "after": row}
        if kind == "delete" and old is not None:
            event = {"op": "d", "before": old, "after": None}
        elif kind == "move" and old is not None:
            event["after"] = row | {"id": dice.randrange(4)}
        rows.pop(row["id"], None)
        if event["after"] is not None:
            rows[event["after"]["id"]] = event["after"]
        events.append((number, event))
    late = [(number, event) for number, event in events if number % 7 == 5]
    parts = [[e for e in events if e not in late and e[0] // 40 == part] for part in range(4)]
    for part in range(1, 4):
        parts[part] += [e for e in late if e[0] // 40 == part - 1]
    versions_after: list[tuple[int, dict[str, Any]]] = []
    for number, part in enumerate(parts):
        lines = [
            json.dumps(e | {"source": {"db": "shop", "table": "products", "ts_ms": 1_000_000 + n * 1000}})
            for n, e in part
        ]
        (tmp_path / "landing").mkdir(exist_ok=True)
        (tmp_path / "landing" / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        versions_after += part
        run_once(config)
        publish(config, "shop.products_history", auditor=ProjectAuditor())
        versions = Versions(soft=deletes == "soft")
        for n, event in sorted(versions_after, key=lambda e: e[0]):
            versions.apply(event, datetime.fromtimestamp(1000 + n, UTC))
        found, wanted = published(config), sorted(map(tuple, versions.found), key=str)
        assert [row for row in found if row not in wanted][:3] == [row for row in wanted if row not in found][:3] == []
        assert len(found) == len(wanted)


@pytest.mark.each(2)
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_versions_by_the_time_of_ingest_are_the_mirror_of_that_time_however_late_changes_came(
    tmp_path: Path, deletes: str
) -> None:
    entry = {"shop.products_history": {"history": "shop.products", "valid_by": "ingest"}}
    config = config_of(tmp_path, entry, order_by=["source.ts_ms"], soft_delete=deletes == "soft")
    dice = random.Random(5)
    numbers = [*range(60)]
    dice.shuffle(numbers)
    mirrors: list[tuple[datetime, list[tuple[Any, ...]]]] = []
    for part in range(4):
        lines = []
        for number in sorted(numbers[part * 15 : part * 15 + 15]):
            row = {"id": number % 4, "part": "a", "name": f"v{number}"}
            kind: dict[str, Any] = dice.choice([{"op": "c", "after": row}] * 4 + [{"op": "d", "before": row}])
            lines.append(kind | {"source": {"db": "shop", "table": "products", "ts_ms": 1_000_000 + number * 1000}})
        if part == 2:
            lines.append({"op": "t", "source": {"db": "shop", "table": "products", "ts_ms": 1_030_500}})
        land_lines(tmp_path, part, *lines)
        run_once(config)
        publish(config, "shop.products_history", auditor=ProjectAuditor())
        mirror = open_table(open_catalog(config).load_table("shop.products")).scan().to_table().to_pylist()
        alive = [row for row in mirror if not row.get("_deleted")]
        mirrors.append((datetime.now(UTC), sorted((row["id"], row["name"]) for row in alive)))
    versions = published(config)
    assert all(since <= until for *_, since, until, is_current in versions if not is_current)
    for time, rows in mirrors:
        then = [v for v in versions if v[5] <= time and (v[6] is None or time < v[6]) and v[3] != "d"]
        assert sorted((v[0], v[2]) for v in then) == rows
    (found,) = (r for r in check_published(config, "shop.products_history") if r.name == "published_equals_duckdb")
    assert found.passed
    assert not found.details


@pytest.mark.slow
def test_log_without_the_order_that_its_table_got_since_has_versions(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    land(tmp_path, seed=1, first=0)
    run_once(config)
    wanted = expected(config, "source", soft=False)
    ordered = config_of(tmp_path, order_by=["source.ts_ms"])
    publish(ordered, "shop.products_history", auditor=ProjectAuditor())
    assert published(ordered) == wanted
    row = {"op": "c", "before": None, "after": {"id": 9, "part": "c", "name": "new"}}
    land_lines(tmp_path, 9, row | {"source": {"db": "shop", "table": "products", "ts_ms": 9_000_000}})
    run_once(ordered)
    publish(ordered, "shop.products_history", auditor=ProjectAuditor())
    assert len(published(ordered)) == len(wanted) + 1


@pytest.mark.slow
def test_event_with_several_changes_of_a_key_has_several_versions_also_when_its_copies_follow(tmp_path: Path) -> None:
    source = {"type": "files", "path": "landing/*.jsonl", "format": "canal-json"}
    config = config_of(tmp_path, source=source, order_by=["es"])

    def canal(es: int, kind: str, *names: str) -> dict[str, Any]:
        rows = [{"id": "1", "part": "a", "name": name} for name in names]
        types = {"id": "int", "part": "varchar(9)", "name": "varchar(9)"}
        head = {"database": "shop", "table": "products", "isDdl": False, "pkNames": ["id", "part"], "mysqlType": types}
        return head | {"type": kind, "es": es, "ts": es, "data": rows, "old": [{"name": ""}] * len(rows)}

    for number, event in enumerate(
        (canal(1000, "INSERT", "a"), canal(9000, "UPDATE", "b", "c"), canal(5000, "UPDATE", "late"))
    ):
        land_lines(tmp_path, number, event)
        run_once(config)
        publish(config, "shop.products_history", auditor=ProjectAuditor())
    names = [row[2] for row in sorted(published(config), key=lambda row: (row[5], row[7]))]
    assert names == ["a", "late", "b", "c"]


@pytest.mark.slow
def test_versions_take_what_was_not_sent_from_the_change_before_however_late_it_came(tmp_path: Path) -> None:
    config = config_of(tmp_path, order_by=["source.ts_ms"])

    def change(at: int, name: str) -> dict[str, Any]:
        row = {"id": 1, "part": "a", "name": name}
        source = {"db": "shop", "table": "products", "ts_ms": at * 1000}
        return {"op": "c" if at == 1 else "u", "before": None if at == 1 else row, "after": row, "source": source}

    unsent = "__debezium_unavailable_value"
    for number, events in enumerate(([(1, "A"), (9, unsent)], [(5, unsent)], [(3, "B")])):
        land_lines(tmp_path, number, *(change(*event) for event in events))
        run_once(config)
        publish(config, "shop.products_history", auditor=ProjectAuditor())
    found = sorted(published(config), key=lambda row: row[5])
    assert [row[2] for row in found] == ["A", "B", "B", "B"]


def land_lines(folder: Path, number: int, *events: dict[str, Any]) -> None:
    source = {"db": "shop", "table": "products", "ts_ms": 1_000_000 + number * 1000}
    lines = [json.dumps({"ts_ms": source["ts_ms"], "source": source, "before": None, **event}) for event in events]
    (folder / "landing").mkdir(exist_ok=True)
    (folder / "landing" / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_a_run_makes_the_versions_of_keys_that_changed(tmp_path: Path) -> None:
    config = config_of(tmp_path)

    def row(number: int, name: str = "new") -> dict[str, Any]:
        return {"id": number, "part": "a", "name": name}

    steps: list[tuple[list[dict[str, Any]], int | None]] = [
        ([{"op": "c", "after": row(n)} for n in range(60)], None),
        ([], 0),
        (
            [
                {"op": "u", "before": row(1), "after": row(1, "other")},
                {"op": "u", "before": row(2), "after": row(70)},
                {"op": "d", "before": row(3), "after": None},
                {"op": "c", "after": row(80)},
            ],
            5,
        ),
        ([{"op": "u", "before": {"id": 1, "part": "a"}, "after": row(1, "__debezium_unavailable_value")}], 1),
        ([{"op": "t"}], None),
        ([{"op": "c", "after": row(1)}], 1),
    ]
    for number, (events, changed) in enumerate(steps):
        land_lines(tmp_path, number, *events)
        run_once(config)
        report = publish(config, "shop.products_history", auditor=ProjectAuditor())
        assert (0 if report.is_unchanged else report.changed_keys) == changed
        assert published(config) == expected(config, "source", soft=False)
    assert {name for _, _, name, operation, *_ in published(config) if operation == "u"} == {"other", "new"}


def test_keys_of_any_name_are_found_in_the_log(tmp_path: Path) -> None:
    config = config_of(tmp_path, key=["i.d", "k"])
    for number, name in enumerate(["a", "b"]):
        land_lines(tmp_path, number, {"op": "u", "after": {"i.d": 1, "k": 2, "name": name}})
        run_once(config)
        publish(config, "shop.products_history", auditor=ProjectAuditor())
    rows = open_table(open_catalog(config).load_table("shop.products_history")).scan().to_table()
    assert sorted(rows.column("name").to_pylist()) == ["a", "b"]


def test_sql_may_read_change_logs(tmp_path: Path) -> None:
    sql = "select op, count(*) as changes from change_log.shop_products group by op"
    config = config_of(tmp_path, {"shop.kinds": {"sql": sql}})
    land(tmp_path, seed=1, first=0)
    run_once(config)
    publish(config, "shop.kinds", auditor=ProjectAuditor())
    rows = open_table(open_catalog(config).load_table("shop.kinds")).scan().to_table().to_pylist()
    assert sum(row["changes"] for row in rows) == 120
    assert tables_read(config, "shop.kinds") == ("shop.products",)
    assert all(result.passed for result in check_published(config, "shop.kinds"))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"history": "shop.products", "sql": "select 1 as a"}, "either sql or history"),
        ({}, "either sql or history"),
        ({"history": "shop.product"}, "did you mean shop.products"),
    ],
)
def test_what_is_no_history_is_refused(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tables_read(config_of(tmp_path, {"shop.history": entry}), "shop.history")


def test_a_wrong_history_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_HISTORY", query._HISTORY.replace("between 1 following", "between 2 following"))
    config = config_of(tmp_path)
    land(tmp_path, seed=1, first=0)
    run_once(config)
    with pytest.raises(CheckFailedError, match="published_equals_duckdb"):
        publish(config, "shop.products_history", auditor=ProjectAuditor())
