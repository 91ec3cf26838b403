"""What tasks of Spark ingest equals what one process ingests: rows, change log, quarantine, counts and errors."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.decode.batches import change_schema
from nevermore.pipelines.ingest import spark_run
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from nevermore.pipelines.spark.ingest import DecodedChanges, ToBuckets
from nevermore.pipelines.spark.jobs import packed_table, row_of, unpacked_table
from tests.pipelines.project import Project, event, product
from tests.support.spark_session import SPARK_TEST

pytestmark = [*SPARK_TEST, pytest.mark.usefixtures("spark")]

Landing = dict[str, bytes]


def lines(*events: str) -> bytes:
    return "".join(f"{one}\n" for one in events).encode()


@dataclass(frozen=True)
class Case:
    """Files that land one run after the other, and how they are read."""

    runs: Sequence[Landing]
    table: dict[str, Any] = field(default_factory=lambda: {"key": ["id"]})
    source: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] | None = None


def _versions(first: int, count: int, version: str) -> list[str]:
    return [event("u", product(i, f"{version}-{i}")) for i in range(first, first + count)]


def _at(key: int | None, place: Any, name: str = "a", op: str = "u") -> str:
    """An event with its place in an order; a truncate without a key."""
    made = json.loads(event("t") if key is None else event(op, product(key, name)))
    return json.dumps({**made, "ts_ms": place})


UNSENT = "__debezium_unavailable_value"
_SMALL = {"batch_bytes": 1024}
"""Pieces of a few lines, so that small files are cut."""
_ROW = {"format": "rows", "path": "landing/*"}

CASES = {
    "one file": Case([{"1.jsonl": lines(*(event("c", product(i)) for i in range(5)))}]),
    "pieces of lines": Case(
        [
            {
                "1.jsonl": lines(
                    *_versions(0, 60, "a"), *_versions(20, 60, "b"), *(event("d", product(i)) for i in range(9))
                )
            }
        ],
        options=_SMALL,
    ),
    "a first load": Case(
        [{"1.jsonl": lines(*(event("r", product(i)) for i in range(90)))}, {"2.jsonl": lines(*_versions(60, 60, "b"))}],
        options=_SMALL,
    ),
    "a first load with a key twice": Case(
        [{"1.jsonl": lines(*(event("r", product(i % 80, f"{i}")) for i in range(90)))}],
        options=_SMALL,
    ),
    "later runs": Case(
        [
            {"1.jsonl": lines(*(event("c", product(i)) for i in range(80)))},
            {"2.jsonl": lines(*_versions(10, 50, "b")), "3.jsonl": lines(*(event("d", product(i)) for i in range(15)))},
            {"1.jsonl": lines(*(event("c", product(i)) for i in range(80)), *_versions(70, 40, "c"))},
        ],
        options=_SMALL,
    ),
    "trusted inserts": Case(
        [
            {"1.jsonl": lines(*(event("c", product(i)) for i in range(40)))},
            {"2.jsonl": lines(*(event("c", product(i)) for i in range(40, 60)), *_versions(35, 10, "b"))},
        ],
        table={"key": ["id"], "inserts": "trusted"},
        options=_SMALL,
    ),
    "truncate": Case(
        [
            {"1.jsonl": lines(*_versions(0, 60, "a"))},
            {"2.jsonl": lines(*_versions(0, 40, "b"), event("t"), *_versions(30, 30, "c"), event("d", product(31)))},
        ],
        options=_SMALL,
    ),
    "a column appears": Case(
        [
            {
                "1.jsonl": lines(*_versions(0, 40, "a")),
                "2.jsonl": lines(*(event("u", {**product(i), "price": i + 0.5}) for i in range(20, 60))),
                "3.jsonl": lines(*(event("u", {**product(i), "note": "n"}) for i in range(50, 90))),
            }
        ],
        options=_SMALL,
    ),
    "a value that does not fit": Case(
        [
            {
                "1.jsonl": lines(*(event("c", {"id": i, "n": i}) for i in range(60))),
                "2.jsonl": lines(
                    event("c", {"id": 99, "n": "many"}), *(event("c", {"id": i, "n": i}) for i in range(60, 99))
                ),
            }
        ],
        table={"key": ["id"], "max_quarantine_ratio": 0.5},
        options=_SMALL,
    ),
    "broken events": Case(
        [
            {
                "1.jsonl": lines(
                    *_versions(0, 50, "a"), "{not json", event("c", {"name": "no key"}), *_versions(50, 20, "b")
                )
            }
        ],
        table={"key": ["id"], "max_quarantine_ratio": 0.2},
        options=_SMALL,
    ),
    "too many broken events": Case([{"1.jsonl": lines(*_versions(0, 5, "a"), *["{not json"] * 50)}], options=_SMALL),
    "an unreadable file": Case(
        [{"1.jsonl": lines(*_versions(0, 30, "a")), "2.parquet": b"PAR1 no", "3.jsonl": lines(*_versions(0, 9, "b"))}],
        source={"path": "landing/*", "format": "debezium-json"},
        options=_SMALL,
    ),
    "a key changes": Case(
        [
            {"1.jsonl": lines(*_versions(0, 50, "a"))},
            {
                "2.jsonl": lines(
                    *_versions(0, 30, "b"), event("u", product(100), before=product(7)), *_versions(100, 3, "c")
                )
            },
        ],
        options=_SMALL,
    ),
    "soft deletes": Case(
        [{"1.jsonl": lines(*_versions(0, 50, "a"), *(event("d", product(i)) for i in range(5)))}],
        table={"key": ["id"], "soft_delete": True},
        options=_SMALL,
    ),
    "unsent values": Case(
        [
            {"1.jsonl": lines(*_versions(0, 50, "a"))},
            {
                "2.jsonl": lines(
                    *(event("u", product(i, UNSENT if i % 3 else "b")) for i in range(40)),
                    event("u", product(7, UNSENT)),
                    event("u", product(900, UNSENT)),
                    event("c", product(901, "new")),
                    event("u", product(901, UNSENT)),
                )
            },
        ],
        table={"key": ["id"], "max_quarantine_ratio": 0.5},
        options=_SMALL,
    ),
    "unsent values of keys that change": Case(
        [
            {"1.jsonl": lines(*_versions(0, 50, "a"))},
            {
                "2.jsonl": lines(
                    event("u", product(100, UNSENT), before=product(7, UNSENT)),
                    event("u", product(101, UNSENT), before=product(100, UNSENT)),
                    event("u", product(8, "kept"), before=product(9)),
                    *_versions(10, 30, "b"),
                    event("d", product(101)),
                    event("u", product(12, UNSENT)),
                )
            },
        ],
        table={"key": ["id"], "max_quarantine_ratio": 0.5},
        options=_SMALL,
    ),
    "soft deletes of keys that change, unsent values and a truncate": Case(
        [
            {"1.jsonl": lines(*_versions(0, 50, "a"))},
            {
                "2.jsonl": lines(
                    event("u", product(100), before=product(7)),
                    event("u", product(8, UNSENT)),
                    *(event("d", product(i)) for i in range(20, 40)),
                    event("c", product(25, "again")),
                    event("t"),
                    *_versions(45, 20, "b"),
                )
            },
            {"3.jsonl": lines(event("d", product(46)), event("u", product(200), before=product(47)))},
        ],
        table={"key": ["id"], "soft_delete": True, "max_quarantine_ratio": 0.5},
        options=_SMALL,
    ),
    "whole rows that change, and a truncate": Case(
        [
            {"1.jsonl": lines(*(event("c", product(i % 7)) for i in range(60)))},
            {
                "2.jsonl": lines(
                    *(event("u", product(i, "b"), before=product(i)) for i in range(7)),
                    event("d", product(3, "b")),
                    event("d", product(99)),
                )
            },
            {"3.jsonl": lines(event("t"), *(event("c", product(i % 3)) for i in range(40)))},
        ],
        table={"identity": "full", "max_quarantine_ratio": 0.5},
        options=_SMALL,
    ),
    "no key": Case(
        [{"1.jsonl": lines(*(event("c", product(i % 7)) for i in range(60)), event("d", product(3)))}],
        table={"identity": "full"},
        options=_SMALL,
    ),
    "partitions": Case(
        [
            {"1.jsonl": lines(*(event("c", {"id": i, "day": f"2024-01-0{1 + i % 3}"}) for i in range(60)))},
            {"2.jsonl": lines(*(event("u", {"id": i, "day": f"2024-01-0{1 + i % 2}"}) for i in range(0, 60, 2)))},
        ],
        table={"key": ["id"], "partition_by": ["day"], "types": {"day": "date"}},
        options=_SMALL,
    ),
    "partitions by key": Case(
        [{"1.jsonl": lines(*_versions(0, 60, "a"))}, {"2.jsonl": lines(*_versions(30, 60, "b"))}],
        table={"key": ["id"], "partition_by": ["bucket(3, id)"]},
        options=_SMALL,
    ),
    "vectors": Case(
        [{"1.jsonl": lines(*_versions(0, 60, "a"))}, {"2.jsonl": lines(*_versions(30, 60, "b"))}],
        table={"key": ["id"], "deletes": "vectors", "format_version": 3},
        options=_SMALL,
    ),
    "csv": Case(
        [{"1.csv": b"op,id,name\n" + b"".join(b'I,%d,"a\nb"\n' % i for i in range(200)) + b"D,3,\n"}],
        source=_ROW,
        options=_SMALL,
    ),
    "rows before and after": Case(
        [
            {
                f"{n}.jsonl": lines(*(json.dumps({"op": o, "id": i, "v": n}) for i in range(9) for o in ("-U", "+U")))
                for n in "12"
            }
        ],
        source=_ROW,
        options={"batch_rows": 3, **_SMALL},
    ),
    "an order": Case(
        [{"1.jsonl": lines(*(_at(i % 40, (i * 37) % 100) for i in range(100)))}],
        table={"key": ["id"], "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "an order of few places": Case(
        [{"1.jsonl": lines(*(_at(i % 40, i // 50, f"{i}") for i in range(100)), _at(39, 0, "older"))}],
        table={"key": ["id"], "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "an order with a truncate": Case(
        [{"1.jsonl": lines(*(_at(i, i) for i in range(80)), _at(None, 41.5), _at(3, 90), _at(3, 91, op="d"))}],
        table={"key": ["id"], "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "an order with a change of a key": Case(
        [
            {
                "1.jsonl": lines(
                    *(_at(i % 40, (i * 37) % 100) for i in range(100)),
                    json.dumps({**json.loads(event("u", product(77, "moved"), before=product(3))), "ts_ms": 40.5}),
                    *(_at(77, 30 + i, f"{i}") for i in range(20)),
                )
            }
        ],
        table={"key": ["id"], "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "late events": Case(
        [
            {"1.jsonl": lines(*(_at(i, 2 * i) for i in range(80)))},
            {"2.jsonl": lines(*(_at(i, 2 * i + (1 if i % 3 else -1), "b") for i in range(40, 90)), _at(5, 1, "c"))},
            {"3.jsonl": lines(*(_at(i, 500 - i, "d") for i in range(60)))},
        ],
        table={"key": ["id"], "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "places that cannot be compared": Case(
        [{"1.jsonl": lines(*(_at(i, i) for i in range(80)), _at(99, {"no": "place"}))}],
        table={"key": ["id"], "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "an order without a key": Case(
        [{f"{n}.jsonl": lines(*(_at(i % 7, i) for i in range(40)))} for n in "12"],
        table={"identity": "full", "order_by": ["ts_ms"]},
        options=_SMALL,
    ),
    "a pattern": Case(
        [
            {"1.jsonl": lines(*(event("c", product(i), table="abcd"[i // 25]) for i in range(100)))},
            {
                "2.jsonl": lines(
                    *(event("u", product(i, "b"), table="abcde"[i % 5]) for i in range(60)), event("t", table="c")
                )
            },
        ],
        tables={"shop.*": {"key": ["id"], "exclude_tables": ["b"]}, "shop.d": {"key": ["id"], "soft_delete": True}},
        options=_SMALL,
    ),
    "a table of a pattern that cannot be": Case(
        [
            {
                f"{n}.jsonl": lines(*(event("c", product(i), table=t) for i in range(50)))
                for n, t in enumerate(("a", "x.a"))
            }
        ],
        tables={"shop.*": {"key": ["id"]}},
        options=_SMALL,
    ),
    "several tables": Case(
        [
            {
                "1.jsonl": lines(
                    *(event("c", product(i), table=("products", "orders", "others")[i % 3]) for i in range(90)),
                    "{broken",
                )
            }
        ],
        tables={
            "shop.products": {"key": ["id"], "max_quarantine_ratio": 0.5},
            "shop.orders": {"key": ["id"], "max_quarantine_ratio": 0.5},
        },
        options=_SMALL,
    ),
}


def _write(project: Project, case: Case, engine: str) -> None:
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json", **case.source}
    source["options"] = {**case.source.get("options", {}), **case.options}
    tables = case.tables or {"shop.products": case.table}
    document = {"tables": {n: {"source": source, **t, "ingest": {"engine": engine}} for n, t in tables.items()}}
    (project.folder / "nevermore.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


def _seen(report: IngestReport) -> dict[str, Any]:
    tables = {
        t.table: (dict(t.events), t.quarantined, t.missed_removals, t.exit_code, (t.error or "").rpartition("/")[2])
        for t in report.tables
    }
    return {
        "tables": tables,
        "skipped": report.skipped,
        "unassigned": report.unassigned,
        "untaken": report.untaken_tables,
    }


def _content(project: Project) -> dict[str, list[str]]:
    """The rows of every table, of mirrors, logs and quarantines, without the times of the run; logs have their ordinals."""
    found = {}
    for name in project.snapshots():
        rows = live_rows(project.table(name).metadata_location.removeprefix("file://")).to_pylist()
        timeless = ({k: v for k, v in row.items() if k not in {"ingested_at", "quarantined_at"}} for row in rows)
        found[name] = sorted(map(str, timeless))
    return found


_QUICK = {"a first load with a key twice", "a key changes", "broken events", "rows before and after"}


@pytest.mark.parametrize(
    ("mib", "slots", "pieces", "piece_mib"),
    [(1, 2, 1, 32), (400, 2, 8, 50), (4_000, 2, 16, 256), (4_000, 1000, 125, 32), (2_048_000, 1000, 4000, 512)],
)
def test_pieces_are_large_where_each_slot_still_has_some(mib: int, slots: int, pieces: int, piece_mib: int) -> None:
    size = spark_run.piece_bytes(mib * 2**20, 32 * 2**20, slots)
    assert (-(-mib * 2**20 // size), size) == (pieces, piece_mib * 2**20)


@pytest.mark.parametrize(
    ("pieces", "rows", "slots", "tasks"),
    [
        (0, 50_000, 2, 1),
        (1, 50_000, 2, 1),
        (2, 50_000, 2, 2),
        (3, 50_000, 2, 2),
        (10, 50_000, 2, 5),
        (125, 50_000, 1000, 125),
        (4000, 50_000, 1000, 2000),
        (1000, 1, 2, 2),
        (1000, 1, 16, 16),
        (1000, 100, 2, 10),
    ],
)
def test_tasks_pass_over_several_pieces_and_many_changes_unless_slots_would_be_idle(
    pieces: int, rows: int, slots: int, tasks: int
) -> None:
    assert DecodedChanges([], 0, dict.fromkeys(range(pieces), rows)).num_tasks(slots) == tasks


def test_a_shuffle_carries_only_what_is_folded() -> None:
    narrow, wide = (
        pa.struct([pa.field("id", kind), pa.field("name", pa.string())]) for kind in (pa.int32(), pa.int64())
    )
    rows = [{"id": n, "name": f"{n}"} for n in range(9)]
    given = [{"op": "u", "key": {"id": row["id"]}, "before": row, "after": row, "unchanged": []} for row in rows]
    changes = pa.Table.from_pylist(given, change_schema(narrow, ("id",)))
    spread = ToBuckets(
        wide, ("id",), {0: 1}, num_buckets=3, first=3, most_bytes=2**20, columns=("op", "key", "after", "unchanged")
    )
    sent = [row for batch in spread([row_of(0, 0, 0, packed_table(changes))]) for row in batch.to_pylist()]
    tables = [unpacked_table(row["data"]) for row in sent]
    assert {tuple(table.column_names) for table in tables} == {("op", "key", "after", "unchanged")}
    assert {table.schema.field("after").type for table in tables} == {wide}
    assert sorted(key["id"] for table in tables for key in table.column("key").to_pylist()) == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_engines_agree(name: str, tmp_path: Path) -> None:
    case, seen = CASES[name], {}
    for engine in ("local", "spark"):
        (tmp_path / engine).mkdir()
        project = Project(tmp_path / engine)
        _write(project, case, engine)
        reports = []
        for landing in case.runs:
            for file, content in landing.items():
                (project.landing / file).write_bytes(content)
            reports.append(_seen(run_once(load(project.folder / "nevermore.yaml"))))
        seen[engine] = (reports, _content(project))
    assert seen["spark"][0] == seen["local"][0]
    assert seen["spark"][1] == seen["local"][1]


def test_tasks_identify_large_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_run, "LOOKED_AT_BYTES", 0)
    project = Project(tmp_path)
    _write(project, Case([], options=_SMALL), "spark")
    for name in ("1.jsonl", "2.jsonl"):
        project.land(name, [event("u", product(i, name)) for i in range(30)])
    first = run_once(load(project.folder / "nevermore.yaml"))
    (project.landing / "1.jsonl").rename(project.landing / "4.jsonl")
    project.land("5.jsonl", _versions(20, 20, "b"))
    second = run_once(load(project.folder / "nevermore.yaml"))
    assert (first.exit_code, second.exit_code, dict(second.tables[0].events)) == (0, 0, {"u": 20})
    assert [row["id"] for row in project.rows()] == list(range(40))
