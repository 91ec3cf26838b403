import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.changes.keys import KeySet


def found(wanted: list[list[Any]], rows: list[list[Any]], types: list[pa.DataType]) -> list[int]:
    keys = KeySet([pa.array(c, t) for c, t in zip(wanted, types, strict=True)])
    return keys.find([pa.array(c, t) for c, t in zip(rows, types, strict=True)]).tolist()


def test_rule_09_null_equals_null_and_nothing_else() -> None:
    assert found([[1, None]], [[None, 1, 2]], [pa.int64()]) == [1, 0, -1]
    assert found([[0]], [[None, 0]], [pa.int64()]) == [-1, 0]


def test_all_columns_must_be_equal() -> None:
    types = [pa.int32(), pa.string()]
    assert found([[1, 1, 2], ["a", None, "a"]], [[1, 2, 1, 2], ["a", None, None, "a"]], types) == [0, -1, 1, 2]


def test_first_of_equal_keys_is_found() -> None:
    assert found([[5, 5]], [[5]], [pa.int64()]) == [0]


def test_nothing_is_found_in_an_empty_set() -> None:
    assert found([[]], [[1, None]], [pa.int64()]) == [-1, -1]
    assert found([[1]], [[]], [pa.int64()]) == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [dt.date(2026, 1, 1), None]),
        (pa.decimal128(38, 3), [None, 1]),
        (pa.binary(2), [b"ab", b"zz"]),
        (pa.uuid(), [b"\x01" * 16, None]),
        (pa.timestamp("us", "UTC"), [0, None]),
        (pa.dictionary(pa.int32(), pa.string()), ["x", None]),
        (pa.bool_(), [True, None]),
    ],
)
def test_keys_of_every_type_are_found(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(values, kind)
    assert KeySet([array]).find([array]).tolist() == [0, 1]
    chunked = pa.chunked_array([array.slice(1), array.slice(0, 1)])
    assert KeySet([array]).find([chunked]).tolist() == [1, 0]


def test_random_keys_match_like_tuples() -> None:
    generator = random.Random(7)
    types = [pa.int64(), pa.string(), pa.int8()]

    def columns(count: int) -> list[list[Any]]:
        return [
            [generator.choice([None, *range(6)]) for _ in range(count)],
            [generator.choice([None, "a", "b", ""]) for _ in range(count)],
            [generator.choice([None, 1, 2]) for _ in range(count)],
        ]

    wanted, rows = columns(40), columns(300)
    tuples = list(zip(*wanted, strict=True))
    expected = [tuples.index(row) if row in tuples else -1 for row in zip(*rows, strict=True)]
    assert found(wanted, rows, types) == expected
