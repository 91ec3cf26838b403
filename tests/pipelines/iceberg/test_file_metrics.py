import io
import math
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.iceberg.file_metrics import nan_counts, parquet_metrics, single_value
from nevermore.pipelines.iceberg.row_shape import conform
from nevermore.scan_core.model.schema import NestedField, Schema, parse_type
from nevermore.scan_core.model.statistics import decode_bound


def metrics_of(text: str, values: list[object], *, row_group_rows: int = 100, key: bool = False) -> SimpleNamespace:
    schema = Schema(0, (NestedField(1, "a", parse_type(text)),))
    from nevermore.scan_core.model.schema import arrow_type

    table = conform(pa.table({"a": pa.array(values, arrow_type(schema.fields[0].type))}), schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False, row_group_size=row_group_rows)
    footer = pq.read_metadata(io.BytesIO(sink.getvalue()))
    key_ids = frozenset({1} if key else set())
    return SimpleNamespace(**parquet_metrics(footer, schema, nan_counts=nan_counts(table, schema), key_ids=key_ids))


@pytest.mark.parametrize(
    ("text", "values", "low", "high"),
    [
        ("int", [3, None, -1], -1, 3),
        ("long", [2**62, -(2**62)], -(2**62), 2**62),
        ("double", [1.5, None, -2.0], -2.0, 1.5),
        ("boolean", [True, False], False, True),
        ("date", [19000, -800000], -800000, 19000),
        ("time", [5, 86_399_999_999], 5, 86_399_999_999),
        ("timestamp", [-62_135_596_800_000_000, 7], -62_135_596_800_000_000, 7),
        ("string", ["b", "a\u00e9"], "a\u00e9", "b"),
        ("binary", [b"\xff", b"\x00"], b"\x00", b"\xff"),
        ("uuid", [b"\xff" * 16, b"\x01" * 16], b"\x01" * 16, b"\xff" * 16),
        ("fixed[2]", [b"zz", b"aa"], b"aa", b"zz"),
    ],
)
def test_bounds_are_the_least_and_greatest_value(text: str, values: list[object], low: object, high: object) -> None:
    metrics = metrics_of(text, values, row_group_rows=1)
    kind = parse_type(text)
    assert decode_bound(metrics.lower_bounds[1], kind) == low
    assert decode_bound(metrics.upper_bounds[1], kind) == high
    assert metrics.value_counts[1] == len(values)
    assert metrics.null_value_counts[1] == sum(v is None for v in values)


@pytest.mark.parametrize("text", ["decimal(5,2)", "decimal(15,2)", "decimal(38,2)"])
def test_decimal_bounds_are_minimal_big_endian(text: str) -> None:
    from decimal import Decimal

    metrics = metrics_of(text, [Decimal("-1.28"), Decimal("1.28")])
    assert metrics.lower_bounds[1] == b"\x80"
    assert metrics.upper_bounds[1] == b"\x00\x80"


def test_only_nan_or_null_leaves_no_bounds_but_counts() -> None:
    metrics = metrics_of("double", [math.nan, None, math.nan])
    assert not metrics.lower_bounds
    assert metrics.nan_value_counts == {1: 2}
    assert metrics.null_value_counts == {1: 1}


def test_nan_is_no_bound_and_a_row_group_of_nan_leaves_the_bounds_unknown() -> None:
    assert metrics_of("double", [1.0, math.nan, 2.0]).upper_bounds[1] == single_value(2.0, parse_type("double"))
    assert not metrics_of("double", [1.0, math.nan, 2.0], row_group_rows=1).upper_bounds


def test_long_text_is_cut_and_the_upper_bound_rounded_up() -> None:
    metrics = metrics_of("string", ["x" * 20, "x" * 30])
    assert metrics.lower_bounds[1] == b"x" * 16
    assert metrics.upper_bounds[1] == b"x" * 15 + b"y"


def test_upper_bound_carries_over_the_last_code_point() -> None:
    metrics = metrics_of("string", ["ab" + "\U0010ffff" * 20])
    assert metrics.upper_bounds[1] == b"ac"
    assert metrics_of("string", ["a" * 15 + "\ud7ff" + "z"]).upper_bounds[1].decode() == "a" * 15 + "\ue000"


def test_upper_bound_that_cannot_be_rounded_up_is_left_out() -> None:
    assert not metrics_of("binary", [b"\xff" * 20]).upper_bounds
    assert metrics_of("binary", [b"\xff" * 20]).lower_bounds[1] == b"\xff" * 16


def test_key_bounds_are_kept_long() -> None:
    metrics = metrics_of("string", ["customer-000000000000000001"], key=True)
    assert metrics.lower_bounds[1] == metrics.upper_bounds[1] == b"customer-000000000000000001"


def test_columns_inside_lists_have_no_metrics() -> None:
    schema = Schema(
        0,
        (
            NestedField(1, "l", parse_type({"type": "list", "element-id": 2, "element": "int"})),
            NestedField(3, "s", parse_type({"type": "struct", "fields": [{"id": 4, "name": "x", "type": "int"}]})),
        ),
    )
    table = conform(pa.table({"l": [[1, 2], None], "s": [{"x": 5}, None]}), schema)
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False)
    metrics = parquet_metrics(pq.read_metadata(io.BytesIO(sink.getvalue())), schema)
    assert metrics["value_counts"] == {4: 2}
    assert metrics["null_value_counts"] == {4: 1}


def test_nan_values_are_counted_in_structs_of_many_members_without_a_call_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = [{"id": 10 + i, "name": f".c{i}", "type": "double" if i % 500 == 0 else "int"} for i in range(1_000)]
    schema = Schema(
        0,
        (
            NestedField(1, "s", parse_type({"type": "struct", "fields": members})),
            NestedField(2, "f", parse_type("float")),
        ),
    )
    row = {f".c{i}": float("nan") if i == 500 else 1 for i in range(1_000)}
    table = conform(pa.table({"s": [row, None], "f": pa.array([float("nan")] * 2, pa.float32())}), schema)
    monkeypatch.setattr(pc, "struct_field", None)  # it looks at all members of a struct for each
    assert nan_counts(table, schema) == {10: 0, 510: 1, 2: 2}
    assert nan_counts(table.slice(0, 0), schema) == {10: 0, 510: 0, 2: 0}


@pytest.mark.parametrize(
    ("value", "data"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x00\x80"), (-128, b"\x80"), (-129, b"\xff\x7f")]
)
def test_unscaled_decimals_take_the_fewest_bytes(value: int, data: bytes) -> None:
    assert single_value(value, parse_type("decimal(9,2)")) == data
