"""Filters in memory and in scans, each beside the figure of its seed: what do vectors, compact form and order gain?

The seed (ORC's benchmarks of HIVE filters) evaluates batches of 1,024 rows in Java: IN lists row by row and as vectors,
ANDs of ORs compact and in conjunctive normal form. Here the same shapes on the same batch size, and on batches of scans.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.race import Goal, chosen, race, report
from benchmarks.shapes import build
from nevermore import scan_core
from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.kernels import judge
from nevermore.scan_core.expr.nodes import BoundPredicate
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema, parse_schema

SEED_ROWS = 1_024
SCAN_ROWS = 131_072
REPEATS = 200
SEED_IN = {4: (38.2, 18.7), 8: (50.7, 35.5), 16: (52.4, 34.0), 32: (68.5, 51.7), 256: (88.3, 72.6), 1_000: None}
"""Microseconds per batch, row by row and as vectors, by values of the IN list."""
"""Microseconds per batch, in CNF and compact, by ORs."""
_LONG, _STRING = PrimitiveType("long"), PrimitiveType("string")
SCHEMA = Schema(
    0,
    (
        *(NestedField(k + 1, f"c{k}", _LONG) for k in range(16)),
        NestedField(17, "city", _STRING),
    ),
)


def batch(num_rows: int) -> dict[int, pa.Array]:
    """Columns by field id."""
    random = np.random.default_rng(3)
    columns = {k + 1: pa.array(random.integers(0, 1_000_000, num_rows)) for k in range(16)}
    cities = pa.array([f"city-{k}-{'x' * (k % 9)}" for k in range(500)])
    columns[17] = pa.DictionaryArray.from_arrays(pa.array(random.integers(0, 500, num_rows).astype(np.int32)), cities)
    return columns


def passing(predicate: BoundPredicate, columns: dict[int, pa.Array], num_rows: int) -> int:
    """Rows that fulfil all conjuncts, each evaluated on all rows."""
    kept = np.ones(num_rows, dtype=np.bool_)
    for conjunct in predicate.conjuncts:
        kept &= judge(conjunct, columns, num_rows).passed
    return int(kept.sum())


def repeated(run: Callable[[], int], repeats: int) -> Callable[[], int]:
    """Many calls, for what is too short to time."""

    def many() -> int:
        result = 0
        for _ in range(repeats):
            result = run()
        return result

    return many


def row_by_row(test: Callable[[tuple[int, ...]], bool], rows: list[tuple[int, ...]]) -> int:
    """A filter asked of one row after the other, rows made beforehand."""
    total = 0
    for row in rows:
        if test(row):
            total += 1
    return total


def in_lists() -> None:
    """IN lists of 4 to 1,000 values."""
    for num_rows in (SEED_ROWS, SCAN_ROWS):
        for size, seed in SEED_IN.items():
            in_list(num_rows, size, seed)


def in_list(num_rows: int, size: int, seed: tuple[float, float] | None) -> None:
    """One IN list, half of whose values occur."""
    columns = batch(num_rows)
    rows = list(zip(columns[1].to_pylist(), columns[2].to_pylist(), strict=True))
    values = {row[0] for row in rows[: size // 2]} | set(range(10**7, 10**7 + size - size // 2))
    predicate = bind(f"c0 in ({', '.join(map(str, values))})", SCHEMA)
    repeats = max(1, REPEATS * SEED_ROWS // num_rows)
    candidates: dict[str, Callable[[], Any]] = {
        "vector": repeated(lambda: passing(predicate, columns, num_rows), repeats),
        "row by row": repeated(lambda: row_by_row(lambda row: row[0] in values, rows), repeats),
    }
    told = "no figure" if seed is None else f"row {seed[0]} us, vector {seed[1]} us"
    goal = Goal("vector", "row by row", None if seed is None else seed[1] / seed[0])
    title = f"{repeats} x IN of {size} on {num_rows} rows (seed, 1,024 rows: {told})"
    report(title, race(candidates), "vector", [goal])


def dictionaries() -> None:
    """LIKE and a cast on a column of 500 distinct strings, encoded and not."""
    columns = batch(SCAN_ROWS)
    plain = {17: columns[17].cast(pa.string())}
    for text in ("city like '%-4%x%'", "lower(substr(city, 6)) like '4%x'"):
        predicate = bind(text, SCHEMA)
        candidates: dict[str, Callable[[], Any]] = {
            "on dictionary values": lambda p=predicate: passing(p, columns, SCAN_ROWS),  # type: ignore[misc]
            "on every row": lambda p=predicate: passing(p, plain, SCAN_ROWS),  # type: ignore[misc]
        }
        report(f"{text} on {SCAN_ROWS} rows of 500 values", race(candidates), "on dictionary values")


NUMBERS = {
    "i % 7 = 3": pa.int64(),
    "cast(i as string) like '%7'": pa.int64(),
    "d * 1.1 + 2 > 300": pa.decimal128(12, 2),
    "year(t) = 1970 and month(t) = 3": pa.timestamp("us"),
    "round(f, 1) = 3.5": pa.float64(),
}


def numbers() -> None:
    """Conditions on 500 distinct numbers, once per value and once per row."""
    random = np.random.default_rng(9)
    whole = pa.array(random.integers(0, 500, SCAN_ROWS))
    fields = [(1, "i", "long"), (2, "d", "decimal(12, 2)"), (3, "t", "timestamp"), (4, "f", "double")]
    schema = parse_schema(
        {"type": "struct", "fields": [{"id": i, "name": n, "type": t, "required": False} for i, n, t in fields]}
    )
    columns = {
        1: whole,
        2: whole.cast(pa.decimal128(22, 2)).cast(pa.decimal128(12, 2)),
        3: pa.array(np.asarray(whole) * 86_400_000_000).cast(pa.timestamp("us")),
        4: whole.cast(pa.float64()),
    }
    encoded = {field_id: column.dictionary_encode() for field_id, column in columns.items()}
    for text, kind in NUMBERS.items():
        conjuncts = bind(text, schema).conjuncts
        candidates: dict[str, Callable[[], Any]] = {
            "once per value": lambda c=conjuncts: [int(judge(x, encoded, SCAN_ROWS).passed.sum()) for x in c],  # type: ignore[misc]
            "once per row": lambda c=conjuncts: [int(judge(x, columns, SCAN_ROWS).passed.sum()) for x in c],  # type: ignore[misc]
        }
        goal = Goal("once per value", "once per row", 0.5)
        report(f"{text} on {SCAN_ROWS} rows of 500 values of {kind}", race(candidates), "once per value", [goal])


SCANS = {
    "four filters of 0.9 each, the dearest first": "lower(k1) not like '%7' and v0 * 3 / 7 < 385.7 and i0 < 90 and q < 90",
    "an expensive LIKE beside cheap filters": "k1 like '%9%9%' and q < 5 and i0 < 10",
}


def orders() -> None:
    """The same filters in the order of their measured cost, and as written."""
    table = build("no_deletes")
    opened = scan_core.open_table(table.metadata_location)
    for name, where in SCANS.items():
        scan = opened.scan().where(where)
        candidates: dict[str, Callable[[], Any]] = {
            "measured order": scan.count,
            "as written, no narrowing": lambda w=where: whole(opened, w),  # type: ignore[misc]
        }
        goal = Goal("measured order", "as written, no narrowing", 1.0)
        report(f"{name}: {where}", race(candidates, rounds=5), "measured order", [goal])


def whole(table: Any, where: str) -> int:
    """Every conjunct on every row: all columns are decoded, all conjuncts evaluated."""
    predicate = bind(where, table.scan().schema)
    names = {field.field_id: field.name for field in table.scan().schema.fields}
    total = 0
    for rows in table.scan().select(*(names[i] for i in predicate.column_ids)).to_batches():
        total += passing(predicate, {i: rows.column(names[i]) for i in predicate.column_ids}, rows.num_rows)
    return total


if __name__ == "__main__":
    chosen(__doc__)
    in_lists()
    dictionaries()
    numbers()
    orders()
