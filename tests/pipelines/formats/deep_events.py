"""Events of every format that are deep or huge, what must become of them, and a main that reads some of them.

Run as a process of its own with an upper limit of memory: `python -m tests.pipelines.formats.deep_events SHAPE SIZE...`.
"""

import json
import resource
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.jsonscan.value_kernels import MAX_DEPTH
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover

REASON = f"nested too deeply: more than {MAX_DEPTH} levels of objects and arrays"
MEMORY_BYTES, CPU_SECONDS = 4 * 1024**3, 60

SOURCE = '"source":{"db":"s","table":"t"},"ts_ms":1'
FORMATS: dict[str, tuple[str, int]] = {
    "debezium-json": (f'{{"op":"c","before":null,"after":{{"id":1,"v":@}},{SOURCE}}}', 2),
    "debezium-json origin": ('{"op":"c","after":{"id":1},"source":{"db":"s","table":"t","x":@},"ts_ms":1}', 2),
    "debezium-json member": (f'{{"op":"c","after":{{"id":1}},{SOURCE},"x":@}}', 1),
    "debezium-json envelope": (f'{{"schema":null,"payload":{{"op":"c","after":{{"id":1,"v":@}},{SOURCE}}}}}', 2),
    "debezium-json schema": (f'{{"schema":{{"x":@}},"payload":{{"op":"c","after":{{"id":1}},{SOURCE}}}}}', 1),
    "debezium-json row": ('{"__op":"c","id":1,"v":@}', 1),
    "canal-json": (
        '{"data":[{"id":"1","v":@}],"database":"s","table":"t","type":"INSERT","isDdl":false,"es":1,"pkNames":["id"]}',
        3,
    ),
    "canal-json types": (
        '{"data":[{"id":"1"}],"mysqlType":{"v":@},"database":"s","table":"t","type":"INSERT","isDdl":false,"es":1}',
        2,
    ),
    "maxwell-json": ('{"database":"s","table":"t","type":"insert","ts":1,"data":{"id":1,"v":@}}', 2),
    "dms": ('{"data":{"id":1,"v":@},"metadata":{"record-type":"data","operation":"insert","table-name":"t"}}', 2),
    "wal2json": (
        (
            '{"action":"I","schema":"s","table":"t","columns":[{"name":"id","type":"integer","value":1},'
            '{"name":"v","type":"json","value":@}]}'
        ),
        3,
    ),
    "wal2json 1": (
        (
            '{"change":[{"kind":"insert","schema":"s","table":"t","columnnames":["id","v"],'
            '"columntypes":["integer","json"],"columnvalues":[1,@]}]}'
        ),
        4,
    ),
    "rows": ('{"op":"c","id":1,"v":@}', 1),
}
"""By format: an event with `@` in place of a value, and the levels around that; an envelope is not counted."""

SHAPES = ("lists", "objects", "mixed", "lines")
HUGE = {
    "long name": lambda size: '{"' + "n" * size + '":1}',
    "long text": lambda size: '"' + "x" * size + '"',
    "escapes": lambda size: '"' + r"\u0041" * (size // 6) + '"',
    "array": lambda size: "[" + "0," * (size // 2) + "0]",
    "array of texts": lambda size: "[" + '"a",' * (size // 4) + '"a"]',
    "names": lambda size: "{" + ",".join(f'"k{i}":1' for i in range(size // 10)) + "}",
    "digits": lambda size: "1" * size,
    "fraction": lambda size: "0." + "1" * size,
    "exponent": lambda size: "1e" + "9" * size,
}
"""Values of so many bytes that are not deep."""


def deep(shape: str, depth: int) -> str:
    """A value of so many levels."""
    opening, closing = {
        "lists": ("[", "]"), "objects": ('{"a":', "}"), "mixed": ('[{"a":', "}]"), "lines": ('{"a":\n', "\n}"),
    }[shape]  # fmt: skip
    pairs = depth // 2 if shape == "mixed" else depth
    if shape == "mixed" and depth % 2:
        return f"[{opening * pairs}1{closing * pairs}]"
    return f"{opening * pairs}1{closing * pairs}"


def event(name: str, value: str) -> bytes:
    return FORMATS[name][0].replace("@", value).encode()


def feed(name: str) -> FeedConfig:
    return FeedConfig(tables=(TableFeed(name="s.t", key=("id",)),), format=name.partition(" ")[0])


def outcome(decoded: DecodedFeed) -> tuple[int, list[str]]:
    """(rows taken, reasons of the rejected events)."""
    return decoded.tables["s.t"].num_rows, decoded.rejected.table.column("reason").to_pylist()


def read(name: str, *events: bytes) -> tuple[int, list[str]]:
    return outcome(decode(from_documents(list(events)), feed(name)))


def files(value: str) -> Iterator[tuple[str, str | None, bytes]]:
    """(name, layout, content) of files in which an event with this value stands between two good ones."""

    def of(number: int, inside: str) -> bytes:
        return event("debezium-json", inside).replace(b'"id":1', f'"id":{number}'.encode())

    first, odd, last = of(5, "null"), of(1, value), of(6, "null")
    if "\n" not in value:
        yield "lines", None, b"\n".join((first, odd, last, b""))
        yield "last line", None, b"\n".join((first, last, odd))
        yield "keyed lines", "keyed-lines", b"\n".join(b'{"id":1}\t' + e for e in (first, odd, last))
        yield "psql", "psql", b"\n".join((b" x ", b"---", first, odd, last, b"(3 rows)"))
    pretty = [e.replace(b',"source"', b',\n"source"').replace(b'{"op"', b'{\n"op"', 1) for e in (first, odd, last)]
    yield "documents", "documents", b"\n".join(pretty)
    yield "first document", None, b"\n".join((pretty[1], pretty[0], pretty[2]))
    yield "array", None, b"[" + b",".join((first, odd, last)) + b"]"
    yield "frames", "framed", b"".join(struct.pack(">i", len(e)) + e for e in (first, odd, last))
    yield "keyed documents", "keyed-documents", b"\n".join(b'{"id":1}\n' + e for e in pretty)


def read_file(folder: Path, content: bytes, layout: str | None) -> tuple[int, list[str]]:
    path = folder / "events.json"
    path.write_bytes(content)
    count, reasons = 0, []
    for batch in discover([str(path)], None, FileOptions(layout=layout, report_incomplete=True)):
        taken, refused = outcome(decode(batch.raw, feed("debezium-json")))
        count, reasons = count + taken, reasons + refused
    return count, reasons


def outcomes(shape: str, size: int) -> dict[str, tuple[int, list[str]]]:
    """What became of a value of this shape between two good events, by format and by layout of a file."""
    value = HUGE[shape](size) if shape in HUGE else deep(shape, size)
    found = {name: read(name, event(name, "null"), event(name, value), event(name, "null")) for name in FORMATS}
    with tempfile.TemporaryDirectory() as folder:
        for name, layout, content in files(value):
            found[f"file: {name}"] = read_file(Path(folder), content, layout)
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    sys.stdout.write(json.dumps([outcomes(sys.argv[1], int(size)) for size in sys.argv[2:]]))
