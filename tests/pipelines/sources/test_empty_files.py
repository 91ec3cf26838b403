"""Files without events: counted as read, never an error, whatever their kind and their place among others."""

import gzip
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once

Row = dict[str, Any]
_SCHEMA = pa.schema([("op", pa.string()), ("id", pa.int64()), ("v", pa.string())])
_AVRO = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "op", "type": "string"}, {"name": "id", "type": "long"}, {"name": "v", "type": "string"}],
}


def parquet(rows: list[Row]) -> bytes:
    written = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), written)
    return written.getvalue()


def avro(rows: list[Row]) -> bytes:
    written = BytesIO()
    fastavro.writer(written, _AVRO, rows)
    return written.getvalue()


def csv(rows: list[Row]) -> bytes:
    return ("op,id,v\n" + "".join(f"{r['op']},{r['id']},{r['v']}\n" for r in rows)).encode()


def lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def array(rows: list[Row]) -> bytes:
    return json.dumps(rows).encode()


def nothing(write: Callable[[list[Row]], bytes]) -> Callable[[list[Row]], bytes]:
    return lambda rows: write(rows) if rows else b""


def blank(write: Callable[[list[Row]], bytes]) -> Callable[[list[Row]], bytes]:
    return lambda rows: write(rows) if rows else b"\n \n"


def zipped(write: Callable[[list[Row]], bytes]) -> Callable[[list[Row]], bytes]:
    return lambda rows: gzip.compress(write(rows), mtime=0)


KINDS = {
    "parquet": ("parquet", parquet),
    "avro": ("avro", avro),
    "csv": ("csv", csv),
    "json-lines": ("json", lines),
    "json-array": ("json", array),
    "parquet-0": ("parquet", nothing(parquet)),
    "avro-0": ("avro", nothing(avro)),
    "csv-0": ("csv", nothing(csv)),
    "csv-blank": ("csv", blank(csv)),
    "json-blank": ("json", blank(lines)),
    "parquet-gz": ("parquet.gz", zipped(parquet)),
    "avro-gz": ("avro.gz", zipped(avro)),
    "csv-gz": ("csv.gz", zipped(csv)),
    "csv-0-gz": ("csv.gz", zipped(nothing(csv))),
    "json-gz": ("json.gz", zipped(lines)),
    "parquet-0-gz": ("parquet.gz", zipped(nothing(parquet))),
    "avro-0-gz": ("avro.gz", zipped(nothing(avro))),
}
ORDERS = {"alone": (0,), "first": (0, 2), "last": (2, 0), "between": (1, 0, 0, 2)}


@pytest.mark.each(49)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("at_once", [True, False], ids=["one-run", "run-per-file"])
def test_a_file_without_events_is_read_as_such(kind: str, order: str, tmp_path: Path, *, at_once: bool) -> None:
    suffix, write = KINDS[kind]
    (tmp_path / "landing").mkdir()
    source = {"type": "files", "path": "landing/*", "format": "rows"}
    config = {"tables": {"shop.t": {"source": source, "key": ["id"]}}}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(config))
    expected, reports = 0, []
    for number, count in enumerate(ORDERS[order]):
        rows = [{"op": "I", "id": expected + i, "v": "x"} for i in range(count)]
        (tmp_path / f"landing/{number}.{suffix}").write_bytes(write(rows))
        expected += count
        if not at_once:
            reports.append(run_once(load(tmp_path / "nevermore.yaml")))
    reports += [run_once(load(tmp_path / "nevermore.yaml")) for _ in range(2)]
    tables = [table for report in reports for table in report.tables]
    assert [(t.error, t.rejected) for t in tables] == [(None, 0)] * len(tables)
    assert sum(t.events.total() for t in tables) == expected
    assert not any(report.skipped for report in reports)
    mirror = find_table(open_catalog(load(tmp_path / "nevermore.yaml")), "shop.t")
    assert mirror is None or (expected and mirror.current_snapshot() is not None)


@pytest.mark.each(7)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_empty_is_read_once_it_has_events(kind: str, tmp_path: Path) -> None:
    suffix, write = KINDS[kind]
    (tmp_path / "landing").mkdir()
    source = {"type": "files", "path": "landing/*", "format": "rows"}
    config = {"tables": {"shop.t": {"source": source, "key": ["id"]}}}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump(config))
    counts = []
    for rows in ([], [{"op": "I", "id": 1, "v": "x"}]):
        (tmp_path / f"landing/0.{suffix}").write_bytes(write(rows))
        (table,) = run_once(load(tmp_path / "nevermore.yaml")).tables
        assert (table.error, table.rejected) == (None, 0)
        counts.append(table.events.total())
    assert counts == [0, 1]
