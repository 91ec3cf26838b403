"""Casts of numbers to decimals: the same number, or a value that is told to be none."""

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nevermore.pipelines.decode.casting import cast_each, from_text

NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "+"]),
    st.text("0179", min_size=1, max_size=60),
    st.one_of(st.just(""), st.builds(".{}".format, st.text("019", min_size=1, max_size=60))),
    st.one_of(st.just(""), st.builds("e{}".format, st.integers(-420, 420))),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=8), st.sampled_from([(38, 0), (38, 2), (38, 20), (38, 38), (5, 3)]))
@example(["9" * 39, str(2**128 + 1), "1" + "0" * 200, "-7e38", "1.5e-400"], (38, 0))
@example(["9" * 37 + ".99", "-7e36", "1e-105", "0." + "0" * 40 + "1"], (38, 2))
def test_text_is_the_decimal_that_it_says_or_none(texts: list[str], shape: tuple[int, int]) -> None:
    values, bad = cast_each(pa.array(texts), pa.decimal128(*shape))
    for text, value, is_bad in zip(texts, values.to_pylist(), bad, strict=True):
        assert value == (None if is_bad else Decimal(text)), text


@pytest.mark.parametrize(
    "number", ["70000000000000000000000000000000000000", "-99999999999999999999999999999999999999"]
)
def test_decimal_that_gets_more_digits_than_fit_is_none(number: str) -> None:
    values, bad = cast_each(pa.array([Decimal(number), Decimal(1), None], pa.decimal128(38, 0)), pa.decimal128(38, 2))
    assert (values.to_pylist(), bad.tolist()) == ([None, Decimal("1.00"), None], [True, False, False])


def test_all_that_fits_is_cast() -> None:
    texts = ["9" * 36 + ".99", "1e10", "1.50", "+1", "-0", "5.", ".5", None]
    values, bad = cast_each(pa.array(texts), pa.decimal128(38, 2))
    assert values.to_pylist() == [None if text is None else Decimal(text) for text in texts]
    assert not bad.any()


@pytest.mark.each(2)
@pytest.mark.parametrize("shape", [(1, 0), (3, 0), (4, 2), (20, 2), (21, 2), (38, 18), (38, 30), (38, 38)])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_integers_that_have_the_digits_of_a_decimal_are_cast(kind: str, shape: tuple[int, int]) -> None:
    info = np.iinfo(kind)
    numbers = [
        n
        for n in (None, 0, 5, -5, 10, 99, 100, 10**10, 10**18, info.min, info.max)
        if n is None or info.min <= n <= info.max
    ]
    values, bad = cast_each(pa.array(numbers, pa.type_for_alias(kind)), pa.decimal128(*shape))
    fits = [n is None or abs(n) < 10 ** (shape[0] - shape[1]) for n in numbers]
    assert values.to_pylist() == [n if fit else None for n, fit in zip(numbers, fits, strict=True)]
    assert bad.tolist() == [not fit for fit in fits]


TYPES = [
    *(
        pa.bool_(),
        pa.int8(),
        pa.int64(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.binary(8),
    ),
    *(pa.binary(16), pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("s")),
    *(pa.decimal128(3, 2), pa.decimal128(38, 0), pa.decimal128(38, 38)),
]


@pytest.mark.each(10)
@pytest.mark.parametrize("wanted", TYPES, ids=str)
@pytest.mark.parametrize("held", TYPES, ids=str)
def test_null_is_a_value_of_every_type(held: pa.DataType, wanted: pa.DataType) -> None:
    for count in (1, 3):
        values, bad = cast_each(pa.nulls(count, held), wanted)
        assert (values.type, values.null_count) == (wanted, count)
        assert not bad.any()


@pytest.mark.parametrize("zone", ["", "Z", "+02:00", "-11:30", " UTC"])
@pytest.mark.parametrize("time", ["", "T23:30:00", " 23:30:00.5"])
def test_a_zone_leaves_a_date_as_it_is(zone: str, time: str) -> None:
    days, bad = from_text(pa.array([f"2020-02-29{time}{zone}", "2020-02-30Z", "2020-02-29 BC", None]), pa.date32())
    assert days.to_pylist() == [date(2020, 2, 29), None, None, None]
    assert bad.tolist() == [False, True, True, False]


@pytest.mark.parametrize("separator", [" ", "T"])
@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("1890-01-01{}00:00:00+00:19:32", "1889-12-31 23:40:28"),
        ("1890-01-01{}00:00:00.25-00:25:21", "1890-01-01 00:25:21.250000"),
        ("1890-01-01{}00:00:00+001932", "1889-12-31 23:40:28"),
        ("1890-01-01{}00:00:00.123456789+00:19:32", "1889-12-31 23:40:28.123456"),
        ("1890-01-01{}00:00:00-15:59:59", "1890-01-01 15:59:59"),
        ("1890-01-01{}00:00:00+00:19:60", None),
        ("1890-01-01{}00:00:00+00:19:32:10", None),
        ("1890-02-30{}00:00:00+00:19:32", None),
        ("1890-01-01{}00:00:00+00:19:32 BC", None),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_zone_may_have_seconds(text: str, separator: str, utc: str | None, zone: str | None) -> None:
    # beside text of other kinds, which must stay as it is
    texts = [
        text.format(separator),
        "1890-01-01 00:00:00+05:30",
        "1890-01-01 12:00:00",
        None,
        "Mon Jan 05 08:00:00 1970",
    ]
    moments, bad = from_text(pa.array(texts), pa.timestamp("us", zone))
    shown = [None if m is None else str(m.replace(tzinfo=None)) for m in moments.to_pylist()]
    assert shown == [utc, "1889-12-31 18:30:00", "1890-01-01 12:00:00", None, "1970-01-05 08:00:00"]
    assert bad.tolist() == [utc is None, False, False, False, False]


def test_a_zone_with_seconds_does_not_pass_the_bounds_of_a_type() -> None:
    texts = ["1677-09-21 00:12:43.145224193+00:00:01", "2262-04-11 23:47:16.854775807-00:00:01", None]
    moments, bad = from_text(pa.array(texts), pa.timestamp("ns", "UTC"))
    assert (moments.null_count, bad.tolist()) == (3, [True, True, False])


@pytest.mark.parametrize(
    ("text", "time"), [("10:00:00+00:19:32", "10:00:00"), ("10:00:00+001932", "10:00:00"), ("10:00:00+00:19:60", None)]
)
def test_a_time_of_day_has_no_zone(text: str, time: str | None) -> None:
    times, _ = from_text(pa.array([text]), pa.time64("us"))
    assert [None if t is None else str(t) for t in times.to_pylist()] == [time]
