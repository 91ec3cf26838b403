"""Partition transforms on columns, against the specification's examples and PyIceberg."""

import datetime as dt
import decimal
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import transforms as reference
from pyiceberg import types

from nevermore.scan_core.model.errors import UnsupportedError
from nevermore.scan_core.model.schema import PrimitiveType, arrow_type
from nevermore.scan_core.model.transforms import parse_transform

ICEBERG = {
    "int": types.IntegerType(),
    "long": types.LongType(),
    "date": types.DateType(),
    "time": types.TimeType(),
    "timestamp": types.TimestampType(),
    "timestamptz": types.TimestamptzType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "uuid": types.UUIDType(),
}
MICROS = st.integers(-(2**52), 2**52)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31) + 10_000, 2**31 - 1),
    "long": st.integers(-(2**63) + 10_000, 2**63 - 1),
    "date": st.integers(-100_000, 100_000),
    "time": st.integers(0, 86_399_999_999),
    "timestamp": MICROS,
    "timestamptz": MICROS,
    "string": st.text(max_size=20),
    "binary": st.binary(max_size=40),
    "uuid": st.binary(min_size=16, max_size=16),
}


def column(values: list[Any], kind: str) -> pa.Array:
    target = arrow_type(PrimitiveType(kind))
    if kind in {"date", "time", "timestamp", "timestamptz"}:
        return pa.array(values, pa.int32() if kind == "date" else pa.int64()).cast(target)
    return pa.array(values, target)


def apply(transform: str, values: list[Any], kind: str) -> list[Any]:
    result = parse_transform(transform).apply(column(values, kind), PrimitiveType(kind))
    assert result.type == arrow_type(parse_transform(transform).result_type(PrimitiveType(kind)))
    if pa.types.is_date32(result.type):
        result = result.cast(pa.int32())
    elif pa.types.is_temporal(result.type):
        result = result.cast(pa.int64())
    return list(result.to_pylist())


@pytest.mark.parametrize(
    ("kind", "value", "hashed"),
    [
        ("int", 34, 2017239379),
        ("long", 34, 2017239379),
        ("date", (dt.date(2017, 11, 16) - dt.date(1970, 1, 1)).days, -653330422),
        ("time", 81_068_000_000, -662762989),
        ("timestamp", 1_510_871_468_000_000, -2047944441),
        ("timestamptz", 1_510_871_468_000_001, -1207196810),
        ("timestamp_ns", 1_510_871_468_000_001_001, -1207196810),
        ("string", "iceberg", 1210000089),
        ("uuid", uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, 1488055340),
        ("binary", b"\0\1\2\3", -188683207),
    ],
)
def test_bucket_hashes_as_the_specification_says(kind: str, value: Any, hashed: int) -> None:
    many = 2**31 - 1
    array = column([value, None], kind) if kind != "timestamp_ns" else pa.array([value, None]).cast(pa.timestamp("ns"))
    result = parse_transform(f"bucket[{many}]").apply(array, PrimitiveType(kind))
    assert result.to_pylist() == [(hashed & 0x7FFFFFFF) % many, None]


def test_bucket_hashes_decimals_and_fixed_as_the_specification_says() -> None:
    many = 2**31 - 1
    decimals = pa.array([decimal.Decimal("14.20"), None], pa.decimal128(9, 2))
    result = parse_transform(f"bucket[{many}]").apply(decimals, PrimitiveType("decimal", (9, 2)))
    assert result.to_pylist() == [(-500754589 & 0x7FFFFFFF) % many, None]
    fixed = pa.array([b"\0\1\2\3"], pa.binary(4))
    result = parse_transform(f"bucket[{many}]").apply(fixed, PrimitiveType("fixed", (4,)))
    assert result.to_pylist() == [(-188683207 & 0x7FFFFFFF) % many]


@pytest.mark.parametrize("kind", sorted(ICEBERG))
@settings(max_examples=25)
@given(data=st.data())
def test_bucket_agrees_with_the_catalog_library(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=8))
    expected = [reference.BucketTransform(16).transform(ICEBERG[kind])(v) for v in values]
    assert apply("bucket[16]", values, kind) == expected


@settings(max_examples=25)
@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), max_size=8))
def test_decimal_bucket_and_truncate_agree_with_the_catalog_library(unscaled: list[int | None]) -> None:
    values = [None if v is None else decimal.Decimal(v).scaleb(-10, decimal.Context(prec=40)) for v in unscaled]
    array = pa.array(values, pa.decimal128(38, 10))
    kind, library = PrimitiveType("decimal", (38, 10)), types.DecimalType(38, 10)
    bucketed = parse_transform("bucket[7]").apply(array, kind).to_pylist()
    assert bucketed == [reference.BucketTransform(7).transform(library)(v) for v in values]
    small = [None if v is None else decimal.Decimal(v % 10**20 - 10**19).scaleb(-10) for v in unscaled]
    truncated = parse_transform("truncate[70]").apply(pa.array(small, pa.decimal128(38, 10)), kind).to_pylist()
    assert truncated == [reference.TruncateTransform(70).transform(library)(v) for v in small]


@pytest.mark.parametrize("kind", ["int", "long", "string", "binary"])
@settings(max_examples=25)
@given(data=st.data())
def test_truncate_agrees_with_the_catalog_library(kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=8))
    expected = [reference.TruncateTransform(5).transform(ICEBERG[kind])(v) for v in values]
    assert apply("truncate[5]", values, kind) == expected


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
@pytest.mark.parametrize("part", ["year", "month", "day", "hour"])
@settings(max_examples=15)
@given(data=st.data())
def test_time_parts_agree_with_the_catalog_library(kind: str, part: str, data: st.DataObject) -> None:
    if kind == "date" and part == "hour":
        return
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=8))
    library = getattr(reference, f"{part.title()}Transform")()
    assert apply(part, values, kind) == [library.transform(ICEBERG[kind])(v) for v in values]


def test_nanosecond_timestamps_have_the_time_parts_of_their_instant() -> None:
    array = pa.array([-1, 0, None]).cast(pa.timestamp("ns"))
    kind = PrimitiveType("timestamp_ns")
    assert parse_transform("year").apply(array, kind).to_pylist() == [-1, 0, None]
    assert parse_transform("hour").apply(array, kind).to_pylist() == [-1, 0, None]
    assert parse_transform("day").apply(array, kind).cast(pa.int32()).to_pylist() == [-1, 0, None]


def test_identity_keeps_and_void_forgets() -> None:
    array = pa.array(["a", None])
    assert parse_transform("identity").apply(array, PrimitiveType("string")) is array
    assert parse_transform("void").apply(array, PrimitiveType("string")).to_pylist() == [None, None]


def test_slices_chunks_and_dictionaries_are_columns_too() -> None:
    strings = pa.array(["x", "iceberg", None, "iceberg"])
    transform, kind = parse_transform("bucket[100]"), PrimitiveType("string")
    expected = transform.apply(strings, kind).to_pylist()
    assert transform.apply(strings.dictionary_encode(), kind).to_pylist() == expected
    assert transform.apply(pa.chunked_array([strings[:1], strings[1:]]), kind).to_pylist() == expected
    assert transform.apply(strings[1:], kind).to_pylist() == expected[1:]
    decimals = pa.array([decimal.Decimal(i) for i in range(-5, 5)], pa.decimal128(9, 0))
    kind = PrimitiveType("decimal", (9, 0))
    for text in ("bucket[9]", "truncate[3]"):
        whole = parse_transform(text).apply(decimals, kind)
        assert parse_transform(text).apply(decimals[3:], kind).to_pylist() == whole.to_pylist()[3:]
    ids = pa.array([bytes([i]) * 16 for i in range(9)], pa.binary(16))
    whole = transform.apply(ids, PrimitiveType("uuid"))
    assert transform.apply(ids[4:], PrimitiveType("uuid")).to_pylist() == whole.to_pylist()[4:]


@pytest.mark.parametrize("text", ["zorder", "bucket[0]", "bucket[]", "truncate[-1]", "bucket[99999999999]", ""])
def test_unknown_transforms_are_kept_by_name_and_not_applied(text: str) -> None:
    transform = parse_transform(text)
    assert transform.kind == "unknown"
    assert str(transform) == text
    with pytest.raises(UnsupportedError, match="unknown"):
        transform.apply(pa.array([1]), PrimitiveType("int"))


@pytest.mark.parametrize(
    ("text", "kind"), [("bucket[4]", "double"), ("truncate[4]", "date"), ("hour", "date"), ("year", "string")]
)
def test_undefined_combinations_are_refused(text: str, kind: str) -> None:
    array = pa.nulls(1, arrow_type(PrimitiveType(kind)))
    with pytest.raises(UnsupportedError, match="not defined"):
        parse_transform(text).apply(array, PrimitiveType(kind))


def test_extreme_integers_wrap_as_in_the_reference_implementation() -> None:
    lowest = np.iinfo(np.int64).min
    assert apply("truncate[10]", [lowest], "long") == [2**63 - 2]
