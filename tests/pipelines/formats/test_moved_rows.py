"""Changes of a key that Debezium sends as a delete and an insert, which lacks the large values that did not change."""

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml

from nevermore.checks.mirror_checks import run_checks
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.changes.quarantine import held_events
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.ingest.test_new_column import Feed

UNSENT = "__debezium_unavailable_value"
_ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "d", "type": ["null", "string"]},
    ],
}
_SOURCE = [("db", "string"), ("table", "string"), ("txId", "long"), ("lsn", "long")]
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", _ROW]},
        {"name": "after", "type": ["null", "Row"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": n, "type": ["null", t], "default": None} for n, t in _SOURCE],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ],
}
Event = dict[str, Any]


def event(op: str, before: Event | None, after: Event | None, *, flat: bool = False, **source: Any) -> Event:
    origin = {"db": "shop", "table": "t", **source}
    if flat:
        row = after or before or {}
        return {**row, "__deleted": str(op == "d").lower(), "__op": op, **{f"__{n}": v for n, v in origin.items()}}
    return {"before": before, "after": after, "source": origin, "op": op, "ts_ms": 1}


def moves(steps: list[tuple[int, int]], *, flat: bool = False, full: bool = False, at: Any = None) -> list[Any]:
    """Updates of keys in one transaction; each at its own place of the log, or all `at` one."""
    text, numbers = {1: "one", 2: "two", 3: "three"}, {1: 1, 2: 1, 3: 1}
    events: list[Any] = []
    for number, (old, new) in enumerate(steps):
        place = {"txId": 7, "lsn": 100 + number} if at is None else at
        before = {"id": old, "n": numbers[old], "d": text[old]} if full else {"id": old, "n": None, "d": None}
        events.append(event("d", before, None, flat=flat, **place))
        events.append(event("c", None, {"id": new, "n": 2, "d": UNSENT}, flat=flat, **place))
        text[new], numbers[new] = text.pop(old), 2
    return events


def first_rows(*, flat: bool = False) -> list[Event]:
    return [event("c", None, {"id": i, "n": 1, "d": d}, flat=flat) for i, d in ((1, "one"), (2, "two"), (3, "three"))]


STEPS = {
    "one": [(1, 9)],
    "chain": [(1, 9), (9, 8), (8, 7)],
    "swap": [(1, -1), (2, 1), (-1, 2)],
    "there and back": [(1, 9), (9, 1)],
    "rotation": [(3, -3), (2, 3), (1, 2), (-3, 1)],
}


def expected(steps: list[tuple[int, int]]) -> list[Event]:
    rows = {1: ("one", 1), 2: ("two", 1), 3: ("three", 1)}
    for old, new in steps:
        rows[new] = (rows.pop(old)[0], 2)
    return [{"id": i, "n": n, "d": d} for i, (d, n) in sorted(rows.items())]


@pytest.mark.each(64)
@pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "two runs"])
@pytest.mark.parametrize("layout", ["envelope", "flat", "identity full", "one place per transaction", "file and pos"])
@pytest.mark.parametrize("steps", STEPS)
def test_values_follow_the_row_to_its_new_key(steps: str, layout: str, tmp_path: Path, *, at_once: bool) -> None:
    flat = layout == "flat"
    one_place = {"one place per transaction": {"txId": 7, "lsn": 5}, "file and pos": {"file": "log.1", "pos": 5}}
    events = moves(STEPS[steps], flat=flat, full=layout == "identity full", at=one_place.get(layout))
    feed = Feed(tmp_path, "debezium-json")
    if at_once:
        feed.land(*first_rows(flat=flat), *events)
    else:
        feed.land(*first_rows(flat=flat))
        feed.land(*events)
    assert feed.rows() == expected(STEPS[steps])


@pytest.mark.parametrize("options", [{"soft_delete": True}, {"key": None, "identity": "full"}], ids=["soft", "full"])
def test_values_follow_the_row_in_other_kinds_of_mirrors(options: dict[str, Any], tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json", **options, on_conflict="quarantine")
    feed.land(*first_rows())
    feed.land(*moves(STEPS["swap"], full="identity" in options))
    rows = [{n: row[n] for n in ("id", "n", "d")} for row in feed.rows() if not row.get("_deleted")]
    assert rows == expected(STEPS["swap"])


def test_insert_that_comes_before_the_delete_of_its_row(tmp_path: Path) -> None:
    """Other partitions of a topic may be read first."""
    feed = Feed(tmp_path, "debezium-json")
    feed.land(*first_rows())
    feed.land(*reversed(moves(STEPS["one"])))
    assert feed.rows() == expected(STEPS["one"])


def test_delete_and_insert_of_different_changes_stay_what_they_are(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(*first_rows())
    place = {"txId": 7, "lsn": 100}
    feed.land(
        event("d", {"id": 1, "n": None, "d": None}, None, **place),
        event("c", None, {"id": 9, "n": 2, "d": UNSENT}, **place | {"lsn": 101}),
        event("d", {"id": 2, "n": None, "d": None}, None, **place | {"lsn": 102}),
        event("c", None, {"id": 8, "n": 2, "d": "sent"}, **place | {"lsn": 102}),
    )
    assert feed.rows() == [{"id": 3, "n": 1, "d": "three"}, {"id": 8, "n": 2, "d": "sent"}]


def test_delete_is_applied_where_the_insert_is_rejected(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json", types={"n": "int"}, on_conflict="quarantine", max_quarantine_ratio=1)
    feed.land(*first_rows())
    delete, insert = moves(STEPS["one"])
    insert["after"]["n"] = "no number"
    feed.land(delete, insert)
    assert [row["id"] for row in feed.rows()] == [2, 3]


def test_delete_and_insert_in_files_that_are_read_together(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(*first_rows())
    delete, insert = moves(STEPS["one"])
    (tmp_path / "landing" / "15.jsonl").write_text(json.dumps(delete) + "\n")
    feed.number = 15
    feed.land(insert)
    assert feed.rows() == expected(STEPS["one"])


CUTS = {
    **{f"{rows} per batch": {"batch_rows": rows} for rows in (1, 2, 3, 4)},
    **{f"{rows} per batch, a file per event": {"batch_rows": rows, "per_file": 1} for rows in (1, 2, 3)},
    "3 per batch, 2 per file": {"batch_rows": 3, "per_file": 2},
}


@pytest.mark.each(212)
@pytest.mark.parametrize("tombstones", [True, False], ids=["with tombstones", "without"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", ["json", "avro"])
@pytest.mark.parametrize("steps", STEPS)
def test_no_batch_ends_between_the_delete_and_the_insert(
    steps: str, kind: str, cut: str, tmp_path: Path, *, tombstones: bool
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    options = {"batch_rows": CUTS[cut]["batch_rows"]}
    source = {"type": "files", "path": "landing/*", "format": f"debezium-{kind}", "options": options}
    config = tmp_path / "nevermore.yaml"
    config.write_text(yaml.safe_dump({"tables": {"shop.t": {"source": source, "key": ["id"]}}}))
    events = [*first_rows(), *moves(STEPS[steps])]
    if tombstones and kind == "json":
        events = [each for e in events for each in ([e, None] if e["op"] == "d" else [e])]
    size = CUTS[cut].get("per_file", len(events))
    for number, first in enumerate(range(0, len(events), size)):
        some = events[first : first + size]
        if kind == "avro":
            with (landing / f"{number:04}.avro").open("wb") as file:
                fastavro.writer(file, ENVELOPE, some)
        else:
            (landing / f"{number:04}.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in some))
    (report,) = run_once(load(config)).tables
    assert (report.error, report.rejected) == (None, 0)
    table = find_table(open_catalog(load(config)), "shop.t")
    assert table is not None
    rows = live_rows(table.metadata_location.removeprefix("file://")).sort_by("id").to_pylist()
    assert rows == expected(STEPS[steps])


def test_a_delete_at_the_end_of_the_input_does_not_wait(tmp_path: Path) -> None:
    feed = Feed(tmp_path, "debezium-json")
    feed.land(*first_rows(), event("d", {"id": 1, "n": None, "d": None}, None, txId=7, lsn=100))
    assert [row["id"] for row in feed.rows()] == [2, 3]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft delete": {"soft_delete": True},
    "identity full": {"key": None, "identity": "full"},
    "ordered": {"order_by": ["source.lsn"]},
}


@pytest.mark.each(8)
@pytest.mark.parametrize("delete_first", [True, False], ids=["delete first", "insert first"])
@pytest.mark.parametrize("kind", KINDS)
def test_move_that_is_cut_by_the_end_of_a_run_is_held_until_the_row_is_sent_again(
    kind: str, tmp_path: Path, *, delete_first: bool
) -> None:
    """Its delete is applied, its insert lacks values that nothing has any more."""
    feed = Feed(tmp_path, "debezium-json", **KINDS[kind], on_conflict="quarantine", max_quarantine_ratio=1)
    place = {"txId": 1, "lsn": 1}
    feed.land(*(each | {"source": each["source"] | place} for each in first_rows()))
    move = moves(STEPS["one"], full=kind == "identity full")
    for each in move if delete_first else move[::-1]:
        feed.land(each)
    config = load(tmp_path / "nevermore.yaml")
    (held,) = held_events(open_catalog(config), "shop.t", 9)
    assert "snapshot of Debezium" in held["reason"]
    (stale,) = run_checks(config, "shop.t", ["no_key_is_stale"])
    # Without a key, nothing tells which row it is of: `quarantine_is_small` counts it.
    assert (stale.passed, stale.severity) == (kind == "identity full", "block")
    feed.land(event("r", None, {"id": 9, "n": 2, "d": "one"}, txId=8, lsn=200))
    rows = [{n: row[n] for n in ("id", "n", "d")} for row in feed.rows() if not row.get("_deleted")]
    assert rows == expected(STEPS["one"])


def test_insert_in_a_file_with_another_schema_than_its_delete_is_held(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    source = {"type": "files", "path": "landing/*", "format": "debezium-avro"}
    table = {"source": source, "key": ["id"], "max_quarantine_ratio": 1}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {"shop.t": table}}))
    delete, insert = moves(STEPS["one"])
    wider = json.loads(json.dumps(ENVELOPE))
    wider["fields"][0]["type"][1]["fields"].append({"name": "x", "type": ["null", "long"], "default": None})
    for name, schema, events in (("1", ENVELOPE, [*first_rows(), delete]), ("2", wider, [insert])):
        with (landing / f"{name}.avro").open("wb") as file:
            fastavro.writer(file, schema, events)
    config = load(tmp_path / "nevermore.yaml")
    (report,) = run_once(config).tables
    assert (report.error, report.rejected) == (None, 1)
    (held,) = held_events(open_catalog(config), "shop.t", 9)
    assert "snapshot of Debezium" in held["reason"]
