"""Mirrors for the interop proof: small feeds of every kind of table, ingested in two rounds."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, build_indexes
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once

_HEAD = 'catalog: {type: sql, uri: "sqlite:///warehouse/catalog.db", warehouse: warehouse}\ntables:\n'
_TABLE = """\
  proof.{name}:
    source: {{type: files, path: "landing/{name}/*.jsonl", format: debezium-json}}
    key: [{key}]
    types: {types}
    partition_by: {partition_by}
    {deletes}
"""


@dataclass(frozen=True, slots=True)
class Feed:
    """A mirror to be made: `rows` per key value, keys to change and to delete in the second round."""

    name: str
    key: tuple[str, ...]
    types: dict[str, str]
    partition_by: tuple[str, ...] = ()
    before_images: bool = True
    deletes: str = "deletes: equality"

    def before(self, row: dict[str, Any]) -> dict[str, Any]:
        """What the feed tells of a row that is gone: all of it, or its key, as PostgreSQL does by default."""
        return row if self.before_images else {name: row[name] for name in self.key}

    def row(self, n: int, version: int) -> dict[str, Any]:
        """Row number `n` in its `version`th state; every seventh has NULLs."""
        values = {
            "id": n,
            "code": f"k-{n:04d} é",
            "amount": f"{n}.{version:02d}",
            "day": f"2026-01-{1 + n % 5:02d}",
            "uid": f"00000000-0000-0000-0000-{n:012x}",
            "region": ["north", "south", None][n % 3],
            "note": None if n % 7 == 0 else f"v{version}",
            "seen": f"2026-01-{1 + (n + version) % 5:02d}T00:00:{n % 60:02d}.000001Z",
        }
        return {name: values[name] for name in self.types}


FEEDS = (
    Feed("unpartitioned", ("id",), {"id": "long", "note": "string", "amount": "decimal(10, 2)"}),
    Feed("two_keys", ("code", "day"), {"code": "string", "day": "date", "note": "string"}),
    Feed("decimal_key", ("amount",), {"amount": "decimal(20, 2)", "note": "string"}),
    Feed("timestamp_key", ("seen",), {"seen": "timestamptz", "id": "int", "note": "string"}),
    Feed("by_key_bucket", ("id",), {"id": "long", "note": "string"}, ("bucket(4, id)",)),
    Feed("by_key_day", ("id", "day"), {"id": "int", "day": "date", "note": "string"}, ("day(day)",)),
    Feed("by_look_up", ("id",), {"id": "long", "region": "string", "seen": "timestamptz"}, ("day(seen)", "region")),
    Feed(
        "global_deletes",
        ("id",),
        {"id": "long", "region": "string", "seen": "timestamptz"},
        ("day(seen)", "region"),
        before_images=False,
    ),
    *(
        Feed(name, ("id",), {"id": "long", "region": "string", "day": "date"}, partition_by, deletes=deletes)
        for name, partition_by, deletes in (
            ("converted", ("region",), "deletes: converted"),
            ("vectors", ("region", "month(day)"), "deletes: vectors\n    format_version: 3"),
            ("converted_to_vectors", (), "deletes: converted\n    format_version: 3"),
        )
    ),
)
ROWS = 60


@dataclass(frozen=True, slots=True)
class Proof:
    """One snapshot of a mirror, to be read by everybody."""

    name: str
    metadata: str
    snapshot_id: int


def make_mirrors(folder: Path) -> list[Proof]:
    """Ingest all feeds in two rounds: inserts, then updates, deletes, key changes and re-inserts; index after each."""
    config = folder / "nevermore.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(
        _HEAD
        + "".join(
            _TABLE.format(
                name=f.name,
                key=", ".join(f.key),
                types=json.dumps(f.types),
                partition_by=json.dumps(f.partition_by),
                deletes=f.deletes,
            )
            for f in FEEDS
        ),
        encoding="utf-8",
    )
    for number, events in enumerate((_inserts, _changes), 1):
        for feed in FEEDS:
            path = folder / "landing" / feed.name / f"{number}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps({**e, "source": {"table": feed.name}, "ts_ms": 1}) + "\n" for e in events(feed)]
            path.write_text("".join(lines), encoding="utf-8")
        # small tables are looked up rather than burdened with global deletes; here they are the point
        with patch.multiple("nevermore.pipelines.mirrors.delete_scope", AFFORDABLE_ROWS=0, AFFORDABLE_RATIO=0):
            reports = [run_once(load(config), tables=["proof.global_deletes"])]
        reports.append(run_once(load(config)))
        assert [t.error for report in reports for t in report.tables if t.error] == []
        catalog = open_catalog(load(config))
        for feed in FEEDS:
            columns = [name for name, kind in feed.types.items() if not kind.startswith("decimal")]
            target = CatalogTarget(find_table(catalog, f"proof.{feed.name}"))
            build_indexes(target, columns)
    return [
        Proof(feed.name, str(table.metadata_location).removeprefix("file://"), snapshot.snapshot_id)
        for feed in FEEDS
        for table in [find_table(catalog, f"proof.{feed.name}")]
        if table is not None
        for snapshot in table.snapshots()
    ]


def _inserts(feed: Feed) -> Iterator[dict[str, Any]]:
    for n in range(ROWS):
        yield {"op": "c", "before": None, "after": feed.row(n, 0)}


def _changes(feed: Feed) -> Iterator[dict[str, Any]]:
    for n in range(0, ROWS, 2):
        before = feed.row(n, 0)
        kind = n // 2 % 5
        if kind == 0:
            yield {"op": "d", "before": feed.before(before), "after": None}
        elif kind == 1:
            yield {
                "op": "u",
                "before": feed.before(before),
                "after": {**feed.row(n, 1), **{k: before[k] for k in feed.key}},
            }
        elif kind == 2:
            yield {"op": "u", "before": feed.before(before), "after": feed.row(n + 1_000, 1)}
        elif kind == 3:
            yield {"op": "d", "before": feed.before(before), "after": None}
            yield {"op": "c", "before": None, "after": before}
    for n in range(ROWS, ROWS + 5):
        yield {"op": "c", "before": None, "after": feed.row(n, 0)}
