"""Casts of numbers to decimals: the same number, or a value that is told to be none."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.decode.casting import cast_each

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
