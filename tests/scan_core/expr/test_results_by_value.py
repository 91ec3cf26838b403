"""Conditions on dictionary-encoded columns are evaluated once per distinct value, with the results of plain columns."""

import decimal

import numpy as np
import pyarrow as pa
import pytest

from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.expr.kernels import judge
from nevermore.scan_core.model.schema import parse_schema
from tests.support.iceberg_json import Column

COLUMNS = [
    Column(1, "i", "int"),
    Column(2, "d", "decimal(12, 2)"),
    Column(3, "f", "double"),
    Column(4, "t", "timestamp"),
    Column(5, "day", "date"),
    Column(6, "s", "string"),
]
SCHEMA = parse_schema({"type": "struct", "fields": [c.json() for c in COLUMNS]})
ROWS = 40_000
CONDITIONS = [
    "cast(i as string) like '%7'",
    "i % 7 = 3 or i is null",
    "not (i * i + 3 * i > 1000)",
    "100 / (i - 5) > 3",
    "try_divide(100, i - 5) > 3",
    "d * 1.1 + 2 > 300",
    "d % 7 <> 3",
    "round(f, 1) = 3.5",
    "isnan(f * 2) or 1 / f < 0",
    "cast(f as decimal(10, 2)) > 5",
    "date_trunc('month', t) = timestamp_ntz '1970-02-01'",
    "year(t) = 1970 and month(t) = 3",
    "add_months(day, 1) > date '1970-05-01'",
    "upper(reverse(lower(replace(s, '1', 'x')))) like '%X%'",
    "cast(s as int) % 7 = 3 or s is null",
]


def batch(seed: int, low: int, high: int) -> dict[int, pa.Array]:
    """Values between `low` and `high`, some NULL."""
    random = np.random.default_rng(seed)

    def numbers() -> pa.Array:
        return pa.array(random.integers(low, high, ROWS), mask=random.random(ROWS) < 0.1)

    doubles = np.where(random.random(ROWS) < 0.1, -0.0, random.integers(low, high, ROWS) / 2)
    doubles[random.random(ROWS) < 0.05] = np.nan
    cents = [None if v is None else decimal.Decimal(v) / 4 for v in range(low, high)]
    return {
        1: numbers().cast(pa.int32()),
        2: pa.array(cents, pa.decimal128(12, 2)).take(pa.array(random.integers(0, high - low, ROWS))),
        3: pa.array(doubles),
        4: pa.array(random.integers(low, high, ROWS) * 86_400_000_000).cast(pa.timestamp("us")),
        5: numbers().cast(pa.int32()).cast(pa.date32()),
        6: numbers().cast(pa.string()).dictionary_encode(),
    }


@pytest.mark.each(6)
@pytest.mark.parametrize("where", CONDITIONS)
def test_results_by_value_are_those_by_row_in_one_batch_after_the_other(where: str) -> None:
    for seed, (low, high) in enumerate([(0, 120), (0, 600), (0, 600), (50, 160), (300, 1000), (2000, 2100), (0, 40)]):
        columns = batch(seed, low, high)
        encoded = {k: v if isinstance(v, pa.DictionaryArray) else v.dictionary_encode() for k, v in columns.items()}
        for conjunct in bind(where, SCHEMA).conjuncts:
            plain, by_value = judge(conjunct, columns, ROWS), judge(conjunct, encoded, ROWS)
            assert (plain.passed == by_value.passed).all()
            if plain.failed is None or by_value.failed is None:
                assert plain.failed is by_value.failed
            else:
                assert (plain.failed == by_value.failed).all()
                assert plain.reason == by_value.reason
