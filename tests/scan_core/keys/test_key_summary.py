from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.scan_core.keys.columns import key_column, null_flags
from nevermore.scan_core.keys.lookup import MAX_BUCKETS, KeySummary, summarise
from nevermore.scan_core.model.statistics import ColumnStatistics
from tests.scan_core.keys.key_values import KEY_VALUES


def summary_of(values: Any, kind: pa.DataType) -> KeySummary:
    column = key_column(pa.array(values, type=kind))
    return summarise([column], has_null=null_flags(column) is not None, kind=kind)


ORDERED = [k for k in KEY_VALUES if not pa.types.is_null(k)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_rule_20_summary_never_denies_a_range_that_holds_a_key(data: Any) -> None:
    kind = data.draw(st.sampled_from(ORDERED))
    values = data.draw(st.lists(st.none() | KEY_VALUES[kind], max_size=10))
    summary = summary_of(values, kind)
    plain = [v for v in values if v is not None]
    ends = data.draw(st.tuples(KEY_VALUES[kind], KEY_VALUES[kind]))
    lower, upper = min(ends), max(ends)
    if any(lower <= v <= upper for v in plain):
        assert summary.meets(ColumnStatistics(lower, upper, 0, None, 10))
    if None in values:
        assert summary.meets(ColumnStatistics(lower, upper, 1, None, 10))
        assert summary.meets(ColumnStatistics(lower, upper, None, None, 10))


def test_ranges_between_keys_are_denied() -> None:
    summary = summary_of([10, 1000, None], pa.int64())
    assert not summary.meets(ColumnStatistics(11, 999, 0, None, 5))
    assert not summary.meets(ColumnStatistics(-5, 9, 0, None, 5))
    assert not summary.meets(ColumnStatistics(1001, 2**63 - 1, 0, None, 5))
    assert summary.meets(ColumnStatistics(11, 999, 2, None, 5))
    assert not summary_of([10], pa.int64()).meets(ColumnStatistics(None, None, 5, None, 5))


@pytest.mark.parametrize(
    ("kind", "key", "lower", "upper"),
    [
        (pa.string(), "mmm", "a", "b"),
        (pa.binary(16), b"\x7f" * 16, b"\x80" + bytes(15), b"\xff" * 16),
        (pa.decimal128(9, 2), Decimal("1.25"), Decimal("1.26"), Decimal("9.00")),
        (pa.decimal128(38, 0), Decimal(1 << 70), Decimal(1 << 72), Decimal(1 << 73)),
        (pa.date32(), 5, 6, 7),
    ],
    ids=str,
)
def test_rule_20_ranges_beside_a_key_are_denied_by_type(kind: Any, key: Any, lower: Any, upper: Any) -> None:
    assert not summary_of([key], kind).meets(ColumnStatistics(lower, upper, 0, None, 5))


def test_rule_12_floating_point_keys_are_never_pruned() -> None:
    assert summary_of([1.0], pa.float64()).meets(ColumnStatistics(5.0, 6.0, 0, None, 5))


def test_unknown_statistics_keep() -> None:
    summary = summary_of([10], pa.int64())
    assert summary.meets(None)
    assert summary.meets(ColumnStatistics())
    assert summary.meets(ColumnStatistics(lower=20))


def test_many_keys_are_summarised_in_bounded_memory() -> None:
    summary = summary_of(range(0, 3_000_000, 10), pa.int64())
    assert summary.num_bytes <= MAX_BUCKETS * 8
    assert summary.meets(ColumnStatistics(1000, 1000, 0, None, 5))
    assert not summary.meets(ColumnStatistics(-100, -1, 0, None, 5))
    assert not summary.meets(ColumnStatistics(3_100_000, 4_000_000, 0, None, 5))
