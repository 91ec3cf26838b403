"""How fast landed files become change batches and folded rows, per core, beside what a bare JSON reader takes.

Narrow (5 columns) and wide (60), Debezium JSON bare and in its schema envelope. `floor` is DuckDB's `from_json` into
known types of the same payloads, which tells neither missing from null nor notices values that do not fit.

Then narrow messages in Avro and Protobuf, which name their schema by an id, beside the same events in JSON, and Avro files,
with the kernels for Avro and with fastavro.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa

from benchmarks.race import chosen
from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import decode
from nevermore.pipelines.mirrors.fold import fold
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats import avro_events as avro
from tests.pipelines.formats import protobuf_events as protobuf

ROUNDS = 3
MESSAGES = 100_000
NARROW = {"name": "string", "city": "string", "qty": "int", "price": "double"}


def row(n: int, columns: int) -> dict[str, Any]:
    values: dict[str, Any] = {"id": n, "name": f"product {n % 1000}", "price": n * 0.25, "quantity": n % 100}
    values["updated_at"] = 1_700_000_000_000_000 + n
    for i in range(columns - 5):
        values[f"column_{i}"] = (n * i, f"value {n * i}", n / (i + 1), None)[i % 4]
    return values


def schema(columns: int) -> dict[str, Any]:
    def kind(value: Any) -> str:
        return {int: "int64", str: "string", float: "double"}.get(type(value), "string")

    fields = [{"type": kind(v), "optional": True, "field": n} for n, v in row(1, columns).items()]
    images = [
        {"type": "struct", "fields": fields, "optional": True, "name": "shop.products.Value", "field": image}
        for image in ("before", "after")
    ]
    return {
        "type": "struct",
        "fields": [*images, {"type": "string", "optional": False, "field": "op"}],
        "name": "Envelope",
    }


def write(path: Path, events: int, columns: int, *, envelope: bool) -> None:
    head = '{"schema":' + json.dumps(schema(columns), separators=(",", ":")) + ',"payload":' if envelope else ""
    with path.open("w") as file:
        for n in range(events):
            after = row(n % (events // 2), columns)
            event = {
                "before": None if n < events // 2 else row(n - events // 2, columns),
                "after": after,
                "source": {
                    "version": "2.7",
                    "connector": "mysql",
                    "name": "s",
                    "ts_ms": 1_700_000_000_000 + n,
                    "db": "shop",
                    "table": "products",
                    "file": "bin.1",
                    "pos": n,
                    "row": 0,
                },
                "op": "c" if n < events // 2 else "u",
                "ts_ms": 1_700_000_000_000 + n,
            }
            file.write(head + json.dumps(event, separators=(",", ":")) + ("}\n" if envelope else "\n"))


def ours(path: Path, fold_too: bool) -> int:  # noqa: FBT001 - a switch of the benchmark
    feed = FeedConfig(format="debezium-json", tables=(TableFeed(name="shop.products", key=("id",)),))
    done = 0
    for batch in discover([str(path)], None, FileOptions()):
        decoded = decode(batch.raw, feed).tables["shop.products"]
        done += decoded.num_rows
        if fold_too:
            fold(decoded.table, decoded.key)
    return done


def floor(path: Path, columns: int, envelope: bool) -> int:  # noqa: FBT001 - a switch of the benchmark
    kinds = {int: "BIGINT", str: "VARCHAR", float: "DOUBLE"}
    types = {n: kinds.get(type(v), "VARCHAR") for n, v in row(1, columns).items()}
    structure = {
        "before": types,
        "after": types,
        "op": "VARCHAR",
        "source": {"ts_ms": "BIGINT", "db": "VARCHAR", "table": "VARCHAR"},
    }
    lines = path.read_bytes().splitlines()
    if envelope:
        cut = lines[0].index(b',"payload":') + 11
        lines = [line[cut:-1] for line in lines]
    table = pa.table({"line": pa.array(lines, pa.binary()).cast(pa.string())})
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    connection.register("events", table)
    return connection.sql(f"select from_json(line, '{json.dumps(structure)}') from events").to_arrow_table().num_rows


def best(run: Callable[[], int]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        count = run()
        times.append((time.process_time() - start) / count)
    return 1 / min(times)


def updates(number: int) -> dict[str, Any]:
    """An update of a narrow row in Debezium's envelope."""
    return avro.event(
        "u", {"id": number, "name": f"n{number % 977}", "city": "Oslo", "qty": number % 97, "price": number / 8}
    )


Serialize = Callable[[dict[str, Any]], bytes]


def serializers(folder: Path) -> dict[str, Serialize]:
    """By format, what makes messages of Debezium's events of narrow rows; the schemas are 1 in the folder."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    kinds = {"id": "int32", **{name: kind.replace("int", "int32") for name, kind in NARROW.items()}}
    columns = [protobuf.field(name, number, kind) for number, (name, kind) in enumerate(kinds.items(), 1)]
    made = protobuf.envelope(protobuf.message("Row", *columns))
    files = [protobuf.known_file(name) for name in made.dependency]
    (folder / "1.desc").write_bytes(FileDescriptorSet(file=[*files, made]).SerializeToString())
    (folder / "1.avsc").write_text(json.dumps(avro.envelope(NARROW)))
    of_message, schema = protobuf.class_of(made, "Envelope"), fastavro.parse_schema(avro.envelope(NARROW))

    def in_protobuf(event: dict[str, Any]) -> bytes:
        source = {name: event["source"][name] for name in ("db", "schema", "table", "ts_ms")}
        return protobuf.framed(of_message(**{**event, "source": source}).SerializeToString(), 1)

    def in_avro(event: dict[str, Any]) -> bytes:
        stream = BytesIO(b"\0\0\0\0\1")
        stream.seek(5)
        fastavro.schemaless_writer(stream, schema, event)
        return stream.getvalue()

    return {
        "debezium-json": lambda event: json.dumps(event, separators=(",", ":")).encode(),
        "debezium-protobuf": in_protobuf,
        "debezium-avro": in_avro,
    }


def decoded(raw: RawEvents, name: str, schemas: Path) -> int:
    options = {} if name == "debezium-json" or raw.rows is not None else {"schemas": str(schemas)}
    feed = FeedConfig(format=name, tables=(TableFeed(name="public.t", key=("id",)),), options=options)
    return decode(raw, feed).tables["public.t"].num_rows


def file_decoded(folder: Path) -> int:
    batches = discover([str(folder / "events.avro")])
    return sum(decoded(batch.raw, "debezium-avro", folder) for batch in batches)


def measure_messages() -> None:
    """Print the rates of messages."""
    print("| messages | bytes each | decode k/s |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = [updates(number) for number in range(MESSAGES)]
        (folder / "events.avro").write_bytes(avro.container(avro.envelope(NARROW), events, "deflate"))
        for kind, serialize in serializers(folder).items():
            messages = [serialize(event) for event in events]
            raw = from_documents(messages)
            rate = best(lambda r=raw, k=kind: decoded(r, k, folder))
            print(f"| {kind} | {sum(map(len, messages)) // MESSAGES} | {rate / 1000:,.0f} |")
        print(f"| Avro file | | {best(lambda: file_decoded(folder)) / 1000:,.0f} |")


def main() -> None:
    pa.set_cpu_count(1)
    print("| events | floor k/s | decode k/s | decode + fold k/s |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for columns, events in ((5, 400_000), (60, 60_000)):
            for envelope in (False, True):
                path = Path(folder) / f"{columns}-{envelope}.jsonl"
                write(path, events, columns, envelope=envelope)
                name = f"{'narrow' if columns == 5 else 'wide'}, {'envelope' if envelope else 'bare'}"
                ours(path, fold_too=True)
                rates = (
                    best(lambda p=path, c=columns, e=envelope: floor(p, c, e)),
                    best(lambda p=path: ours(p, fold_too=False)),
                    best(lambda p=path: ours(p, fold_too=True)),
                )
                print(f"| {name} | " + " | ".join(f"{rate / 1000:,.0f}" for rate in rates) + " |")
                sys.stdout.flush()
                path.unlink()
    measure_messages()


if __name__ == "__main__":
    chosen(__doc__)
    main()
