"""Numbers among the members of objects: the ones that Python reads, or none."""

import json
import random
import struct
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nevermore.pipelines.decode.json_columns import floats, whole_numbers
from nevermore.pipelines.decode.value_types import ValueType
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import Members, from_binary

DIGITS = st.text("0123456789", max_size=24)
NUMBER_TEXTS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-", "+"]),
    st.one_of(st.just("0"), DIGITS),
    st.one_of(st.just(""), st.builds(".{}".format, st.builds("{}{}".format, st.sampled_from(["", "000"]), DIGITS))),
    st.one_of(st.just(""), st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "-", "+"]), DIGITS)),
)


def scanned(texts: list[str], behind: str = "") -> Members:
    """One member `n` per text, with so much behind it that words are or are not read at once."""
    documents = [f'{{"n":{text}{behind}}}'.encode() for text in texts]
    return scan_objects(from_binary(pa.array(documents, pa.binary())), ("n",))


def check(texts: list[str], behind: str = "") -> None:
    members = scanned(texts, behind)
    column = members.column("n")
    whole, _, no_integer = whole_numbers(column)
    doubles, no_double = floats(column, ValueType(pa.float64()))
    for row, text in enumerate(texts):
        try:
            value: Any = json.loads(text)
        except ValueError:
            assert members.status[row] == kernels.BROKEN, text
            continue
        assert members.status[row] == kernels.OK, text
        assert members.data[members.start[0, row] : members.end[0, row]].tobytes().decode() == text.strip()
        assert members.kind[0, row] == (kernels.INT if isinstance(value, int) else kernels.FLOAT), text
        if isinstance(value, int) and not no_integer[row]:
            assert int(whole[row]) == value, text
        if isinstance(value, int):
            assert no_integer[row] == (not -(2**63) <= value < 2**63), text
        elif not no_double[row]:
            assert struct.pack("d", doubles[row].as_py()) == struct.pack("d", value), text


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBER_TEXTS, min_size=1, max_size=8), st.sampled_from(["", ' , "x" : "some more text"', "   "]))
@example(["-0", "0", "-0.0", "0.0", "01", "1.", ".5", "-", "1e", "1e+", "0e0", "00"], "")
@example([str(2**63 - 1), str(-(2**63)), str(2**63), str(-(2**63) - 1), "9" * 19, "1" * 20], "")
@example(["0." + "0" * 30 + "12345", "1" * 12 + "." + "1" * 12, "0.00012345678901234567", "1e99999999999"], "")
def test_numbers_are_those_of_json_or_none(texts: list[str], behind: str) -> None:
    check(texts, behind)


def test_usual_numbers_are_read() -> None:
    draw = random.Random(3)
    texts = [str(draw.getrandbits(draw.randint(1, 63)) * draw.choice((1, -1)) or 1) for _ in range(3_000)]
    texts += [repr(draw.uniform(-1, 1) * 10.0 ** draw.randint(-20, 20)) for _ in range(3_000)]
    check(texts)
    column = scanned(texts).column("n")
    assert not floats(column, ValueType(pa.float64()))[1][3_000:].any()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=20), st.text(max_size=30), max_size=4), max_size=4))
def test_names_and_texts_of_any_length_are_found(rows: list[dict[str, str]]) -> None:
    documents = [json.dumps(row, ensure_ascii=len(row) % 2 == 0).encode("utf-8", "surrogatepass") for row in rows]
    members = scan_objects(from_binary(pa.array(documents, pa.binary())))
    for row, document in enumerate(documents):
        expected = json.loads(document)
        for name in members.names:
            column = members.column(name)
            assert (column.kind[row] != kernels.MISSING) == (name in expected)
            if name in expected:
                span = column.data[column.start[row] : column.end[row]].tobytes()
                assert json.loads(b'"' + span + b'"') == expected[name]
