"""How fast landed files become change batches and folded rows, per core, beside what a bare JSON reader takes.

Narrow (5 columns) and wide (60), Debezium JSON bare and in its schema envelope. `floor` is DuckDB's `from_json` into
known types of the same payloads, which tells neither missing from null nor notices values that do not fit.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.race import chosen
from pipelines.decode.feed import FeedConfig, TableFeed
from pipelines.formats.registry import decode
from pipelines.mirrors.fold import fold
from pipelines.sources.file_options import FileOptions
from pipelines.sources.files import discover

ROUNDS = 3


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


if __name__ == "__main__":
    chosen(__doc__)
    main()
