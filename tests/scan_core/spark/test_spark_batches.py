import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from nevermore.scan_core.expr.casts import uuid_text
from nevermore.scan_core.model.errors import UnsupportedError
from nevermore.scan_core.spark.types import conform

_UUIDS = [uuid.UUID(int=1), None, uuid.UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"), uuid.UUID(int=2**128 - 1)]


def _uuid_array() -> pa.Array:
    return pa.array([None if u is None else u.bytes for u in _UUIDS], pa.binary(16))


def test_uuids_become_canonical_text_with_nulls_kept() -> None:
    expected = [None if u is None else str(u) for u in _UUIDS]
    for offset in range(len(expected) + 1):
        text = uuid_text(_uuid_array().slice(offset))
        text.validate(full=True)
        assert text.to_pylist() == expected[offset:]


def test_an_equal_schema_passes_the_batch_through() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    assert conform(batch, batch.schema) is batch


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array(["a", "b", "a", None]).dictionary_encode(), pa.string()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array([b"a", None], pa.large_binary()), pa.binary()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), pa.decimal128(9, 2)),
        (pa.array([1, None], pa.int32()), pa.int64()),
    ],
)
def test_other_encodings_become_the_declared_type(array: pa.Array, target: pa.DataType) -> None:
    result = conform(pa.record_batch({"c": array}), pa.schema([pa.field("c", target)]))
    assert result.schema.field("c").type == target
    assert result.column(0).to_pylist() == array.to_pylist()


def test_field_metadata_and_required_flags_follow_the_declared_schema() -> None:
    field = pa.field("c", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "1"})
    target = pa.schema([pa.field("c", pa.int64())])
    result = conform(pa.record_batch([pa.array([1])], schema=pa.schema([field])), target)
    assert result.schema.equals(target, check_metadata=True)


def test_nested_columns_are_conformed_at_every_depth_also_in_slices() -> None:
    one = uuid.UUID(int=7).bytes
    source = pa.struct(
        [
            pa.field("u", pa.binary(16)),
            pa.field("l", pa.list_(pa.field("element", pa.binary(16)))),
            pa.field("m", pa.map_(pa.field("key", pa.int32(), nullable=False), pa.field("value", pa.binary(16)))),
        ]
    )
    target = pa.struct(
        [
            pa.field("u", pa.string()),
            pa.field("l", pa.list_(pa.field("element", pa.string()))),
            pa.field("m", pa.map_(pa.field("key", pa.int32(), nullable=False), pa.field("value", pa.string()))),
        ]
    )
    rows = [
        {"u": one, "l": [one, None], "m": [(1, one)]},
        None,
        {"u": None, "l": None, "m": None},
        {"u": one, "l": [], "m": [(2, None)]},
    ]
    text = str(uuid.UUID(int=7))
    expected = [
        {"u": text, "l": [text, None], "m": [(1, text)]},
        None,
        {"u": None, "l": None, "m": None},
        {"u": text, "l": [], "m": [(2, None)]},
    ]
    for offset in range(len(rows)):
        batch = pa.record_batch({"s": pa.array(rows, source).slice(offset)})
        result = conform(batch, pa.schema([pa.field("s", target)]))
        result.validate(full=True)
        assert result.column(0).to_pylist() == expected[offset:]


def test_a_value_that_does_not_fit_is_refused_with_the_column_named() -> None:
    batch = pa.record_batch({"big": pa.array([2**40])})
    with pytest.raises(UnsupportedError, match="column 'big': int64 does not fit Spark's int32"):
        conform(batch, pa.schema([pa.field("big", pa.int32())]))
