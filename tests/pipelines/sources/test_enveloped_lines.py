"""Events in the schema envelope, and lines that only look like some: what each becomes does not depend on the others of its batch."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats import debezium_json
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.project import Project, the


def schema(*names: str, kind: str = "string") -> str:
    fields = [{"field": "id", "type": "int64"}, *({"field": name, "type": kind, "optional": True} for name in names)]
    images = [{"type": "struct", "fields": fields, "field": image, "optional": True} for image in ("before", "after")]
    return json.dumps({"type": "struct", "fields": [*images, {"type": "string", "field": "op"}], "name": "Envelope"})


SCHEMAS = [schema("name"), schema("name", "näme"), schema("schema", "payload", "key", "value")]


def payload(number: int, table: str, names: tuple[str, ...] = ("name",)) -> str:
    after = {"id": number, **{name: f"{name} \n {number}" for name in names}}
    return json.dumps({"before": None, "after": after, "op": "c", "source": {"table": table, "ts_ms": number}})


def enveloped(number: int, which: int = 0, end: str = "}\n") -> bytes:
    return f'{{"schema":{SCHEMAS[which]},"payload":{payload(number, "ab"[which % 2])}{end}'.encode()


def odd(number: int) -> list[bytes]:
    """Lines that begin as others do, or do not, and are something else."""
    whole = enveloped(number)
    return [
        payload(number, "a").encode() + b"\n",
        b"\n",
        whole[: len(whole) // 2] + b"\n",
        whole[:-40] + b"}\n",
        whole.replace(b'"op": "c"', b'"op": "c" "op"'),
        whole.replace(b'"op": "c"', b'"op": "x"'),
        whole.replace(b'"op"', b'"\\u006fp"'),
        whole.replace(b"name ", b"name \xff"),
        whole.replace(b'"name": "n', b'"name": "\x00'),
        whole.replace(b'"Envelope"', b'"Enve\xfflope"'),
        whole.replace(b'"Envelope"', b'"Enve\x00lope"'),
        whole.replace(b'"payload":', b'"payload":null, "payload":'),
        whole[:-2] + b',"more":1}\n',
        whole[:-2] + b"},\n",
        whole[:-2] + b"}} \n",
        whole[:-2] + b"}\r\n",
        b'{"schema":' + SCHEMAS[0].encode() + b',"payload":null}\n',
        b'{"schema":' + SCHEMAS[0].encode() + b',"payload":5}\n',
        b'{"schema":' + SCHEMAS[0].encode() + b',"payload":}\n',
        b'{"schema":' + SCHEMAS[0].encode() + b',"payload":{"schema":{},"payload":{"op":"c"}}}\n',
        b'{"schema":' + SCHEMAS[0].encode() + b',"payload":{"key":{},"value":{"op":"c"}}}\n',
        b'{"schema":{},"payload":{}}\n',
        b'{"schema":null,"payload":' + payload(number, "a").encode() + b"}\n",
        b'{"schema":\n',
        b'{"schema":{"type":"struct","fields":[]},"payload":[1]}\n',
    ]


def read(path: Path, *, batch_bytes: int = 2**20, batch_rows: int = 10_000) -> tuple[Any, ...]:
    """(changes of each table, rejected events, skipped ones, positions of the files)."""
    tables = tuple(TableFeed(name=name, key=("id",), source_table=name) for name in "ab")
    config = FeedConfig(format="debezium-json", tables=tables)
    options = FileOptions(batch_bytes=batch_bytes, batch_rows=batch_rows, report_incomplete=True)
    changes: dict[str, list[Any]] = {"a": [], "b": []}
    rejected, skipped, position = [], Counter[str](), None
    for batch in discover([str(path)], None, options):
        found = decode(batch.raw, config)
        for name, rows in changes.items():
            table = found.tables[name].table
            for row in table.drop_columns([c for c in table.column_names if c == "ingested_at"]).to_pylist():
                images = [{k: v for k, v in (row[i] or {}).items() if v is not None} for i in ("before", "after")]
                rows.append((row["op"], row["source_offset"], row["source_ts"], *images))
        rejected += found.rejected.table.to_pylist()
        skipped.update(found.skipped)
        position = batch.position_after.named
    return changes, sorted(rejected, key=str), skipped, position


def compared(path: Path, **options: int) -> tuple[Any, ...]:
    together = read(path, **options)
    assert read(path, batch_rows=1) == together
    return together


@pytest.mark.each(3)
@pytest.mark.parametrize("batch_bytes", [3_000, 20_000, 2**20])
def test_lines_of_several_schemas(tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(enveloped(n, n % 3 if n < 30 else n // 40 % 3) for n in range(200)) + enveloped(200)[:-1])
    changes, rejected, skipped, _ = compared(path, batch_bytes=batch_bytes)
    assert not rejected
    assert not skipped
    assert len(changes["a"]) + len(changes["b"]) == 201


@pytest.mark.each(25)
@pytest.mark.parametrize("kind", range(len(odd(0))))
def test_a_line_that_is_something_else(tmp_path: Path, kind: int) -> None:
    lines = [enveloped(n, n % 2) for n in range(60)]
    for place in (2, 20, 21, 40, 59):
        lines[place] = odd(place)[kind]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines))
    compared(path, batch_bytes=8_000)
    compared(path, batch_rows=7)


@pytest.mark.each(12)
@pytest.mark.parametrize("seed", range(12))
def test_random_lines(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines = []
    for n in range(150):
        if chance.random() < 0.1:
            lines.append(chance.choice(odd(n)))
        else:
            lines.append(enveloped(n, chance.choice([0, 0, 0, 1, 2])))
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines)[: None if seed % 2 else -5])
    compared(path, batch_bytes=chance.choice([2_000, 10_000, 100_000]), batch_rows=chance.choice([5, 64, 1_000]))


def test_what_an_event_becomes_does_not_depend_on_those_before(tmp_path: Path) -> None:
    whole = enveloped(0)
    empty = whole[: whole.index(b'"payload":') + 10] + b"}\n"
    with_more = whole[:-2] + b',"more":1}\n'
    for lines in ([whole, empty, with_more], [empty, with_more, whole], [with_more, whole, empty]):
        (tmp_path / "events.jsonl").write_bytes(b"".join(lines))
        changes, rejected, skipped, *_ = read(tmp_path / "events.jsonl")
        assert len(changes["a"]) == 2
        assert [(r["source_offset"], r["raw"]) for r in rejected] == [(lines.index(empty) + 1, empty)]
        assert not skipped


def test_more_schemas_than_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debezium_json, "MAX_COMPARED_SCHEMAS", 2)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(enveloped(n, n // 7 % 3) for n in range(90)))
    compared(path, batch_bytes=10_000)


def test_an_ingest_keeps_the_whole_event_that_it_rejects(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.a": {"key": ["id"], "max_quarantine_ratio": 1.0}})
    bad = enveloped(7).replace(b'"op": "c"', b'"op": "x"').decode().strip()
    project.land("1.jsonl", [*(enveloped(n).decode().strip() for n in range(20)), bad])
    assert the(project.run()).error is None
    assert [row["id"] for row in project.rows("shop.a")] == list(range(20))
    (rejected,) = project.table("quarantine.shop_a").scan().to_arrow().to_pylist()
    assert rejected["raw"].decode().strip() == bad
    assert rejected["source_offset"] == 21
