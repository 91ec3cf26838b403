"""Doubles as Python reads them, and columns that no event has."""

import json
import random
import struct
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.pipelines.decode import image
from nevermore.pipelines.decode.image import typed
from nevermore.pipelines.decode.json_columns import floats
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import from_binary

PLACEHOLDER = "__debezium_unavailable_value"
TYPES = {
    "text": ValueType(pa.string()),
    "long": ValueType(pa.int64()),
    "int": ValueType(pa.int32()),
    "double": ValueType(pa.float64()),
    "float": ValueType(pa.float32()),
    "decimal": ValueType(pa.decimal128(20, 4)),
    "date": ValueType(pa.date32(), Encoding.DAYS),
    "at": ValueType(pa.timestamp("us"), Encoding.MILLIS),
    "truth": ValueType(pa.bool_()),
    "list": ValueType(pa.list_(pa.field("element", pa.int64())), members=(("element", ValueType(pa.int64())),)),
}
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**40), 2**40),
    st.sampled_from([2**63 - 1, -(2**63), 2**66, -(2**66), 10**17]),
    st.floats(),
    st.booleans(),
    st.sampled_from(
        ["", "é", 'a"b\\c\n', "\ud800x", "5", "-7.25", "1e3", "NaN", "2020-01-01", PLACEHOLDER, [PLACEHOLDER]]
    ),
    st.lists(st.integers(0, 9), max_size=2),
)


def doubles(texts: list[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(bits of the doubles that texts in JSON are read as, whether they are none)."""
    documents = pa.array([json.dumps({"n": text}) for text in texts]).cast(pa.binary())
    column = scan_objects(from_binary(documents), ("n",)).column("n")
    values, bad = floats(column, ValueType(pa.float64()))
    return np.asarray(values.fill_null(0.0)).view(np.uint64), bad


def test_doubles_are_the_nearest_ones_or_none() -> None:
    draw = random.Random(7)
    texts = [repr(struct.unpack("d", draw.randbytes(8))[0]) for _ in range(5_000)]
    texts += [repr(draw.random() * 10.0 ** draw.randint(-10, 20)) for _ in range(5_000)]
    texts += [f"{draw.getrandbits(63)}e{draw.randint(-360, 330)}" for _ in range(5_000)]
    texts += [str(((draw.getrandbits(53) | 1) * 2 + 1) << draw.randint(0, 9)) for _ in range(5_000)]  # half way
    texts += ["0.0", "-0.0", "0", "0e9", "1e22", "1e23", "-1.5E+3", "9007199254740993", "2.2250738585072014e-308"]
    texts = [text for text in texts if "n" not in text]
    bits, bad = doubles(texts)
    wanted = np.array([float(text) for text in texts]).view(np.uint64)
    assert [texts[i] for i in np.flatnonzero((bits != wanted) & ~bad)] == []
    assert not bad[5_000:9_500].any()


def test_what_is_no_number_is_none() -> None:
    texts = ["", "-", ".", "e5", "1e", "1e+", "1.2.3", "1x", "1e99999", "1e400", " 1"]
    assert doubles(texts)[1].all()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["text", "int", "list"]), VALUES) | st.just([]), max_size=5))
def test_columns_that_no_event_has_are_what_decoding_them_gives(rows: list[Any]) -> None:
    types = TYPES | {
        "struct": ValueType(pa.struct([("a", pa.int64())]), members=(("a", ValueType(pa.int64())),)),
        "null": ValueType(pa.null()),
        "json": ValueType(pa.string(), Encoding.TEXT),
        "wide": ValueType(pa.int32(), widens=True),
        "into": ValueType(pa.int64(), into=pa.decimal128(20, 2)),
        "bytes": ValueType(pa.binary()),
        "uuid": ValueType(pa.binary(16)),
    }
    members = scan_objects(from_binary(pa.array([json.dumps(row).encode() for row in rows], pa.binary())), tuple(types))
    found = typed(members, types)
    with patch.object(image, "absent_columns", lambda _: frozenset()):
        wanted = typed(members, types)
    assert [(n, c.type, c.null_count) for n, c in found.columns.items()] == [
        (n, c.type, c.null_count) for n, c in wanted.columns.items()
    ]
    assert {n: m.tolist() for n, m in found.missing.items()} == {n: m.tolist() for n, m in wanted.missing.items()}
    assert (found.unavailable.keys(), found.wrong.keys()) == (wanted.unavailable.keys(), wanted.wrong.keys())
    assert (found.num_cut, found.repeated is None) == (wanted.num_cut, wanted.repeated is None)
