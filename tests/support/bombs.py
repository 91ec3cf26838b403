"""Small files that become very large when decoded, and a process of its own to read them in.

Limits are set after the imports: a process maps more than a gigabyte before it has read anything.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq

from tests.support.memory import PEAK_BYTES

MIB = 1024**2
LONG = 20_000_000
_PRELUDE = """{peak_bytes}
import json, resource, sys, time
{imports}
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + {allowance}
resource.setrlimit(resource.RLIMIT_AS, (most, most))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
before, started = peak_bytes(), time.process_time()
try:
    found = (lambda: {expression})()
except BaseException as error:
    found = f"{{type(error).__name__}}: {{error}}"
print(json.dumps([found, peak_bytes() - before, time.process_time() - started]))
"""


def run_limited(
    imports: str, expression: str, allowance: int = 3 * 1024 * MIB, seconds: int = 120
) -> tuple[Any, int, float]:
    """What an expression gives (or its error as text), by how many bytes the process grew, and the seconds of CPU time it took.

    Args:
        imports: statements, run before memory is limited.
        expression: whose value JSON can hold.
        allowance: bytes of address space beyond what the imports took.
        seconds: after which it is ended.
    """
    code = _PRELUDE.format(peak_bytes=PEAK_BYTES, imports=imports, expression=expression, allowance=allowance)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=seconds)
    assert result.returncode == 0, (result.returncode, result.stderr[-2000:])
    found, grown, took = json.loads(result.stdout.splitlines()[-1])
    return found, grown, took


def repeated(count: int, size: int = LONG, kind: pa.DataType | None = None) -> pa.DictionaryArray:
    """One long value in every row."""
    values = pa.array(["x" * size], pa.string()).cast(kind or pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), values)


def _lists(values: pa.Array, per_row: int) -> pa.ListArray:
    offsets = pa.array(np.arange(0, len(values) + 1, per_row, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, values)


def _maps(values: pa.Array) -> pa.MapArray:
    keys = pa.array([str(i) for i in range(len(values))])
    return pa.MapArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), keys, values)


_PREFIXES: dict[str, Any] = {
    "use_dictionary": False,
    "column_encoding": {"v": "DELTA_BYTE_ARRAY"},
    "data_page_size": 1 << 30,
    "write_batch_size": 100_000,
    "max_rows_per_page": 1 << 30,
}
PARQUET_BOMBS: Mapping[str, Callable[[], tuple[pa.Array, dict[str, Any]]]] = {
    "text": lambda: (repeated(200), {}),
    "binary": lambda: (repeated(200, kind=pa.binary()), {}),
    "member": lambda: (pa.StructArray.from_arrays([repeated(200), pa.array(range(200))], ["x", "y"]), {}),
    "list": lambda: (_lists(repeated(200), 1), {}),
    "one list": lambda: (_lists(repeated(200), 200), {}),
    "map": lambda: (_maps(repeated(200)), {}),
    "plain text": lambda: (pa.chunked_array([pa.array(["x" * LONG])] * 40), {"use_dictionary": False}),
    "fixed": lambda: (pa.array([b"x" * MIB] * 400, pa.binary(MIB)), {}),
    "equal numbers": lambda: (
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), pa.array([7], pa.int64())),
        {},
    ),
    "list of equal numbers": lambda: (
        pa.ListArray.from_arrays(
            pa.array([0, 40_000_000], pa.int32()),
            pa.array(np.zeros(40_000_000, np.int8)),
        ),
        {"data_page_size": 1 << 30},
    ),
    "shared prefixes": lambda: (pa.chunked_array([pa.array(["x" * LONG])] * 40), _PREFIXES),
    "many shared prefixes": lambda: (
        pa.chunked_array([pa.array(["x" * 20_000] * 1_000)] * 40),
        {**_PREFIXES, "data_page_version": "2.0"},
    ),
    "list of shared prefixes": lambda: (
        _lists(pa.array(["x" * 20_000] * 40_000, pa.large_string()), 10),
        {**_PREFIXES, "column_encoding": {"v.list.element": "DELTA_BYTE_ARRAY"}},
    ),
    "one large page": lambda: (pa.array(["x" * 150_000_000]), {"use_dictionary": False}),
}
"""Columns by what makes them large, with the options of their writer."""


ORC_BOMBS: Mapping[str, Callable[[], tuple[pa.Array, dict[str, Any]]]] = {
    "text": lambda: (pa.chunked_array([pa.array(["x" * MIB])] * 600), {"dictionary_key_size_threshold": 1.0}),
    "plain text": lambda: (pa.chunked_array([pa.array(["x" * MIB])] * 600), {}),
    "list": lambda: (
        pa.chunked_array([_lists(pa.array(["x" * MIB] * 4), 4)] * 500),
        {"dictionary_key_size_threshold": 1.0},
    ),
    "equal numbers": lambda: (pa.array(np.full(20_000_000, 7)), {}),
    "list of equal numbers": lambda: (
        pa.ListArray.from_arrays(pa.array([0, 40_000_000], pa.int32()), pa.array(np.zeros(40_000_000, np.int8))),
        {},
    ),
}
"""As `PARQUET_BOMBS`, in one stripe."""


def write_orc_bomb(path: Path, name: str) -> int:
    """An ORC file of a column `id` and a column `v` from `ORC_BOMBS`; how many rows it has."""
    column, options = ORC_BOMBS[name]()
    ids = pa.array(np.arange(len(column)) // 1_000_000)
    po.write_table(pa.table({"id": ids, "v": column}), path, compression="zstd", stripe_size=1 << 40, **options)
    return len(column)


def write_parquet(path: Path, column: pa.Array, options: Mapping[str, Any]) -> int:
    """A Parquet file of rows with a number in `id` and a column `v`, without field ids; how many rows it has."""
    settings: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": True,
        "dictionary_pagesize_limit": 1 << 30,
        "store_schema": False,
        "row_group_size": len(column),
        "write_statistics": False,
    }
    pq.write_table(pa.table({"id": np.arange(len(column)) // 1_000_000, "v": column}), path, **{**settings, **options})
    return len(column)


def write_avro(path: Path, count: int, codec: str, *, text: str = "") -> None:
    """An Avro file of one block of equal records."""
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "long", "field-id": 1},
            {"name": "v", "type": "string", "field-id": 2},
        ],
    }
    if codec == "zstandard":
        _write_zstandard_avro(path, schema, count, text)
        return
    with path.open("wb") as file:
        records = itertools.repeat({"id": 1, "v": text}, count)
        fastavro.writer(file, schema, records, codec=codec, sync_interval=1 << 40)


def _write_zstandard_avro(path: Path, schema: object, count: int, text: str) -> None:
    """The same in a codec that the writer has no library for."""
    zigzag = len(text.encode()) << 1
    length = bytearray()
    while zigzag >= 0x80:
        length.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    record = b"\x02" + bytes([*length, zigzag]) + text.encode()
    block = pa.BufferOutputStream()
    with pa.CompressedOutputStream(block, "zstd") as stream:
        for _ in range(count):
            stream.write(record)
    payload, sync = block.getvalue().to_pybytes(), b"s" * 16
    header = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"zstandard"}
    with path.open("wb") as file:
        file.write(b"Obj\x01")
        fastavro.schemaless_writer(file, {"type": "map", "values": "bytes"}, header)
        file.write(sync)
        fastavro.schemaless_writer(file, "long", count)
        fastavro.schemaless_writer(file, "bytes", payload)
        file.write(sync)
