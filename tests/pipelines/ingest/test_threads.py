"""Ingests with one thread and with several: the same rows, logs, quarantine, counts and errors, whatever the batches hold."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from tests.pipelines.project import event, product

KEY = {"key": ["id"]}
Land = Callable[[Path, random.Random], None]


def lines(folder: Path, name: str, texts: list[str]) -> None:
    (folder / name).write_text("".join(f"{text}\n" for text in texts))


def changing(folder: Path, draw: random.Random) -> None:
    """Columns that come, go and change their type; broken lines, tombstones, deletes and truncates."""
    for number in range(6):
        texts = []
        for n in range(60):
            row: dict[str, Any] = {"id": draw.randrange(40), "n": n}
            if number * 60 + n > 130:
                row["late"] = draw.choice([1, 2.5, None])
            if number > 2:
                row["mixed"] = draw.choice([7, 2**40, "text"]) if draw.random() < 0.1 else 7
            op = draw.choice("cuuudt") if n % 20 == 0 else draw.choice("cuud")
            texts.append('{"op": "t", "source": {}}' if op == "t" else event(op, row, before=row))
            texts += draw.choices(["{ no json", "null", ""], k=1) if draw.random() < 0.05 else []
        lines(folder, f"{number}.jsonl", texts)


def of_tables(folder: Path, draw: random.Random) -> None:
    """Tables that come one after the other."""
    for number in range(5):
        rows = [(f"t{draw.randrange(number + 1)}", product(draw.randrange(30), f"{n}")) for n in range(50)]
        lines(folder, f"{number}.jsonl", [event("u", row, table=table) for table, row in rows])


def of_transactions(folder: Path, draw: random.Random) -> None:
    """wal2json with transactions that are larger than batches, the last of which has no end."""
    texts: list[str] = []
    for number in range(12):
        texts.append('{"action": "B"}')
        for _ in range(draw.randrange(1, 40)):
            columns = [
                {"name": "id", "type": "bigint", "value": draw.randrange(30)},
                {"name": "v", "type": "text", "value": f"{number}"},
            ]
            texts.append(json.dumps({"action": "I", "schema": "shop", "table": "products", "columns": columns}))
        texts += ['{"action": "C"}'] if number < 11 else []
    lines(folder, "0.jsonl", texts[: len(texts) // 2])
    lines(folder, "1.jsonl", texts[len(texts) // 2 :])


def of_columns(folder: Path, draw: random.Random) -> None:
    """DMS Parquet, whose second file has another column and another type."""
    for number in range(4):
        rows = [
            {"Op": draw.choice("IUUD"), "id": draw.randrange(50), "v": n} | ({"w": f"{n}"} if number > 1 else {})
            for n in range(80)
        ]
        kind = pa.int32() if number < 2 else pa.int64()
        schema = pa.schema(
            [("Op", pa.string()), ("id", pa.int64()), ("v", kind), *([("w", pa.string())] if number > 1 else [])]
        )
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{number}.parquet", row_group_size=25)


def csv(folder: Path, draw: random.Random) -> None:
    for number in range(4):
        rows = [f"{draw.choice('IUUD')},{draw.randrange(50)},{n}" for n in range(70)]
        lines(folder, f"{number}.csv", ["Op,id,v", *rows])


def compressed(folder: Path, draw: random.Random) -> None:
    """Files that are compressed, one of which is cut."""
    for number in range(4):
        texts = [event("u", product(draw.randrange(40), f"{n}")) for n in range(60)]
        data = gzip.compress("".join(f"{text}\n" for text in texts).encode())
        (folder / f"{number}.jsonl.gz").write_bytes(data[: len(data) // 2] if number == 2 else data)


def of_events_in_disorder(folder: Path, draw: random.Random) -> None:
    for number in range(4):
        rows = [product(draw.randrange(20), f"{number}-{n}") for n in range(50)]
        source = {"db": "shop", "table": "products"}
        places = [draw.randrange(1000) for _ in rows]
        texts = [
            json.dumps({"op": "u", "before": None, "after": row, "source": source | {"ts_ms": place}, "ts_ms": 1})
            for row, place in zip(rows, places, strict=True)
        ]
        lines(folder, f"{number}.jsonl", texts)


ODD_VALUES = (
    *(
        "1e400",
        "1e-400",
        "-0",
        "-0.0",
        "1.0",
        "10e-1",
        "9223372036854775808",
        "-9223372036854775809",
        "01",
        "1.",
        "NaN",
    ),
    *(
        '"\\ud800"',
        '"\\ude00\\ud83d"',
        '"\\ud83d\\ude00"',
        '"\\u0000"',
        '"\\u12"',
        '"\t"',
        '"\\x"',
        "[" * 80 + "]" * 80,
    ),
    *('1, "v": 2', '1, "\\u0076": 2', '1, "\\u0077": 2', '1, ".w": 2', "{}", "[]", "tru"),
)
"""What may follow the name of a member, for better or worse."""


def odd(folder: Path, draw: random.Random) -> None:
    """Odd values, names and keys, members in any order; files with a mark of their encoding, other ends of lines, bad bytes or a cut end."""
    for number in range(6):
        texts = []
        for n in range(60):
            value = draw.choice(ODD_VALUES) if number > 1 else str(n)
            name, key = draw.choice(["id", "i\\u0064"]), draw.choice(["null", "1.0"]) if n % 9 == 0 else n % 20
            row = f'{{"{name}": {key}, "v": {value}}}'
            members = ['"op": "u"', f'"after": {row}', '"source": {"table": "products"}', '"before": null']
            texts.append("{" + ", ".join(draw.sample(members, 4)) + "}")
        data = ("\r\n" if number % 2 else "\n").join(texts).encode()
        data = b"\xef\xbb\xbf" + data if number == 2 else data
        data = data.replace(b'": 7}', b'": "\xff"}') + (b"" if number == 3 else b"\n")
        (folder / f"{number}.jsonl").write_bytes(data[:-9] if number == 4 else data)


FEEDS: dict[str, tuple[Land, str | None, dict[str, Any]]] = {
    "changing": (changing, "debezium-json", {"shop.products": KEY | {"max_quarantine_ratio": 1.0}}),
    "changing, no format": (changing, None, {"shop.products": KEY | {"max_quarantine_ratio": 1.0}}),
    "changing, new columns": (
        changing,
        "debezium-json",
        {"shop.products": KEY | {"on_conflict": "new_column", "max_quarantine_ratio": 1.0}},
    ),
    "changing, whole rows": (
        changing,
        "debezium-json",
        {"shop.products": {"identity": "full", "max_quarantine_ratio": 1.0}},
    ),
    "changing, too much in quarantine": (
        changing,
        "debezium-json",
        {"shop.products": KEY | {"max_quarantine_ratio": 0.001, "commit_rows": 50}},
    ),
    "tables of a pattern": (of_tables, "debezium-json", {"shop.*": KEY}),
    "named tables": (of_tables, None, {f"shop.t{n}": KEY for n in range(4)}),
    "transactions": (of_transactions, "wal2json", {"shop.products": KEY}),
    "columns": (of_columns, "dms", {"shop.products": KEY}),
    "odd": (odd, "debezium-json", {"shop.products": KEY | {"max_quarantine_ratio": 1.0}}),
    "csv": (csv, None, {"shop.products": KEY}),
    "compressed and cut": (compressed, "debezium-json", {"shop.products": KEY}),
    "cut, in quarantine": (compressed, "debezium-json", {"shop.products": KEY | {"unreadable": "quarantine"}}),
    "in order of a member": (
        of_events_in_disorder,
        "debezium-json",
        {"shop.products": KEY | {"order_by": ["source.ts_ms"]}},
    ),
}


def ingested(folder: Path, land: Land, kind: str | None, tables: dict[str, Any], threads: int, seed: int) -> Any:
    """Everything that an ingest in two runs leaves, without times and names of files of tables."""
    folder.mkdir()
    draw = random.Random(seed)
    options: dict[str, Any] = {"batch_rows": draw.choice([7, 30, 100])}
    entries = {}
    for name, given in tables.items():
        own = {"commit_rows": 120} | given
        if unreadable := own.pop("unreadable", None):
            options["unreadable"] = unreadable
        source = {"type": "files", "path": "landing/*", "options": options} | ({"format": kind} if kind else {})
        entries[name] = {"source": source} | own
    (folder / "nevermore.yaml").write_text(yaml.safe_dump({"threads": threads, "tables": entries}))
    landed = folder / "all"
    landed.mkdir()
    (folder / "landing").mkdir()
    land(landed, draw)
    files = sorted(landed.iterdir())
    reports = []
    for part in (files[: len(files) // 2], files[len(files) // 2 :]):
        for file in part:
            file.rename(folder / "landing" / file.name)
        reports.append(_facts(run_once(load(folder / "nevermore.yaml")), folder))
    catalog = open_catalog(load(folder / "nevermore.yaml"))
    names = sorted(".".join(n) for namespace in catalog.list_namespaces() for n in catalog.list_tables(namespace))
    return reports, {name: _rows(catalog, name, folder) for name in names}


def _facts(report: IngestReport, folder: Path) -> Any:
    counts = ("events", "rejected", "data_rows", "delete_rows", "log_commits", "mirror_commits", "exit_code")
    return dict(report.skipped), [
        (t.table, (t.error or "").replace(str(folder), ""), *(getattr(t, count) for count in counts))
        for t in report.tables
    ]


def _rows(catalog: Any, name: str, folder: Path) -> list[dict[str, Any]]:
    rows = live_rows(catalog.load_table(name).metadata_location.removeprefix("file://")).to_pylist()
    unlike = {"ingested_at", "quarantined_at"}
    plain = [
        {k: v.replace(str(folder), "") if isinstance(v, str) else v for k, v in row.items() if k not in unlike}
        for row in rows
    ]
    order = "ordinal" if plain and "ordinal" in plain[0] else None
    return sorted(plain, key=lambda row: (row[order] if order else 0, repr(sorted(row.items(), key=str))))


@pytest.mark.each(14)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("feed", FEEDS)
def test_threads_change_nothing(feed: str, seed: int, tmp_path: Path) -> None:
    alone = ingested(tmp_path / "1", *FEEDS[feed], threads=1, seed=seed)
    assert alone[0][0][1]
    assert ingested(tmp_path / "4", *FEEDS[feed], threads=4, seed=seed) == alone
