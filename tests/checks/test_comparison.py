import datetime as dt
import uuid
from typing import Any

import pyarrow as pa
import pytest

from nevermore.checks.comparison import compare
from nevermore.pipelines.publish.audit import CheckResult

NAN = float("nan")
NESTED = pa.list_(pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.float32()))]))


def table(values: list[Any], kind: pa.DataType) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("kind", "values", "other"),
    [
        (pa.int64(), [1, None, 3], 4),
        (pa.float64(), [NAN, None, 0.0], -0.0),
        (pa.float32(), [NAN, None, -0.0], 0.0),
        (pa.string(), ["", None, "é"], "e"),
        (pa.binary(3), [b"abc", None, b"ab\0"], b"ab "),
        (pa.decimal128(38, 10), [1, None, 2], 3),
        (
            pa.timestamp("us", "UTC"),
            [dt.datetime(1, 1, 1, tzinfo=dt.UTC), None, None],
            dt.datetime(9999, 1, 1, tzinfo=dt.UTC),
        ),
        (pa.timestamp("ns"), [1, None, 2], 3),
        (pa.null(), [None, None, None], None),
        (NESTED, [[{"x": -0.0, "m": [("k", NAN)]}, None], None, []], [{"x": 0.0, "m": [("k", NAN)]}, None]),
    ],
    ids=str,
)
def test_equal_rows_in_another_order_are_equal_and_one_other_value_is_not(
    kind: pa.DataType, values: list[Any], other: Any
) -> None:
    left = table(values, kind)
    assert compare(left, left.take([2, 0, 1])).equal
    if other is not None:
        found = compare(left, table([other, *values[1:]], kind), sort_by=["id"])
        assert (found.num_left_only, found.num_right_only) == (1, 1)
        assert found.left_only.column("id").to_pylist() == [0] == found.right_only.column("id").to_pylist()


def test_duplicates_count() -> None:
    left = pa.table({"a": [1, 1, 2]})
    found = compare(left, pa.table({"a": [1, 2, 2]}))
    assert (found.num_left_only, found.num_right_only) == (1, 1)
    assert not found.equal


def test_encodings_of_a_type_are_equal_and_types_are_not() -> None:
    left = pa.table({"s": pa.array(["a", "b"]).dictionary_encode()})
    assert compare(left, pa.table({"s": pa.array(["b", "a"], pa.large_string())})).equal
    raw = pa.array([uuid.UUID(int=1).bytes], pa.binary(16))
    assert compare(pa.table({"u": raw}), pa.table({"u": pa.ExtensionArray.from_storage(pa.uuid(), raw)})).equal
    found = compare(pa.table({"n": pa.array([1], pa.int32())}), pa.table({"n": pa.array([1], pa.int64())}))
    assert found.type_differences == ("column n: int32 and int64",)
    assert not found.equal


def test_other_column_names_or_order_are_different() -> None:
    assert not compare(pa.table({"a": [1], "b": [2]}), pa.table({"b": [2], "a": [1]})).equal


def test_chunks_and_slices_compare_like_whole_arrays() -> None:
    values = [[{"x": float(i), "m": [("k", 0.5)]}] if i % 3 else None for i in range(10)]
    left = table(values, NESTED)
    assert compare(pa.concat_tables([left.slice(5), left.slice(0, 5)]), left).equal
    assert compare(left.slice(3, 4), table(values, NESTED).slice(3, 4)).equal


def test_nested_differences_are_shown_as_values() -> None:
    found = compare(table([[{"x": -0.0, "m": []}]], NESTED), table([[{"x": 0.0, "m": []}]], NESTED))
    assert str(found.left_only.column("v").to_pylist()[0][0]["x"]) == "-0.0"


def test_empty_tables_are_equal() -> None:
    assert compare(table([], NESTED), table([], NESTED)).equal


def test_counts_of_one_are_singular() -> None:
    compared = {"rows in table": 1, "data files": 1, "keys deleted in log": 2000, "last change applied": 1}
    shown = "1 row in table, 1 data file, 2,000 keys deleted in log, 1 last change applied"
    assert CheckResult("some_check", passed=True, compared=compared).counts() == shown
