"""The scanning kernels against `json.loads`."""

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nevermore.pipelines.decode.column_types import InferenceOptions, infer
from nevermore.pipelines.decode.json_columns import decode, json_text, text
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.errors import WideBatchError
from nevermore.pipelines.jsonscan import members
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects, scan_pairs
from nevermore.pipelines.jsonscan.spans import from_binary

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3), max_leaves=8
)
NAMES = st.sampled_from(["a", "b", "é", 'q"q', "\\", "long name", ""])


def scan(*documents: bytes, names: tuple[str, ...] = (), learn: bool = True) -> Any:
    return scan_objects(from_binary(pa.array(documents, pa.binary())), names, learn=learn)


def members_of(scanned: Any, row: int) -> dict[str, Any]:
    """The members as `json.loads` gives them, from the texts of the spans."""
    result = {}
    for name in scanned.names:
        column = scanned.column(name)
        if column.kind[row] == kernels.MISSING:
            continue
        one = column.documents(*range(kernels.NULL, kernels.ARRAY + 1))
        result[name] = json.loads(column.data[one.start[row] : one.end[row]].tobytes())
    return result


def same(left: Any, right: Any) -> bool:
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=4),
    st.sampled_from([{}, {"ensure_ascii": False}, {"indent": 1}]),
)
def test_members_of_valid_objects_are_those_of_json_loads(objects: list[dict[str, Any]], style: dict[str, Any]) -> None:
    texts = [json.dumps(o, **style) for o in objects]
    encoded = [t.encode("utf-8", "surrogatepass") for t in texts]
    try:
        [e.decode() for e in encoded]
    except UnicodeDecodeError:
        return
    scanned = scan(*encoded)
    assert scanned.is_object.all()
    for row, document in enumerate(objects):
        assert same(members_of(scanned, row), json.loads(json.dumps(document)))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 400), unique=True, max_size=140), min_size=1, max_size=6), st.booleans())
def test_names_are_learned_in_any_numbers(rows: list[list[int]], learned_first: bool) -> None:  # noqa: FBT001 - drawn
    objects = [{f"column {n}": n for n in row} for row in rows]
    scanned = scan(*(json.dumps(o).encode() for o in objects), names=("column 0", "x") if learned_first else ())
    assert scanned.is_object.all()
    given_columns, given_rows = np.nonzero(scanned.kind == kernels.INT)
    found: list[dict[str, Any]] = [{} for _ in rows]
    for column, row in zip(given_columns.tolist(), given_rows.tolist(), strict=True):
        found[row][scanned.names[column]] = int(
            scanned.data[scanned.start[column, row] : scanned.end[column, row]].tobytes()
        )
    assert found == objects


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An object with some bytes cut, doubled or changed."""
    data = bytearray(
        json.dumps(draw(st.dictionaries(NAMES, VALUES, max_size=3)), ensure_ascii=False).encode("utf-8", "replace")
    )
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.integers(0, 3)):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + 1]
            case 2:
                data[at:at] = draw(
                    st.sampled_from([b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"0", b"-", b" ", b"e", b"\n"])
                )
            case _:
                data += draw(st.sampled_from([b"}", b" x", b"{}", b"\n"]))
    return bytes(data)


@pytest.mark.slow
@settings(max_examples=700, deadline=None)
@given(damaged())
@example(b'{"a":01}')
@example(b'{"a":1.}')
@example(b'{"a":.5}')
@example(b'{"a":-}')
@example(b'{"a":1e}')
@example(b'{"a":+1}')
@example(b'{"a":"\\x"}')
@example(b'{"a":"\\u12"}')
@example(b'{"a":"\x01"}')
@example(b'{"a":[1,]}')
@example(b'{"a":{"b":1,}}')
@example(b'{"a":1,}')
@example(b'{"a" 1}')
@example(b'{"a":tru}')
@example(b'{"a":{"b":}}')
@example(b"{,}")
@example(b'{"a":1}{"a":1}')
@example(b'{"a":1,"a":1}')
@example(b'"a"')
@example(b"[1]")
@example(b"")
@example(b"{")
def test_broken_documents_are_refused_exactly_where_json_loads_refuses(data: bytes) -> None:
    try:
        text_ = data.decode()
    except UnicodeDecodeError:
        return
    repeats: list[bool] = []

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeats.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    try:
        wanted = json.loads(text_, object_pairs_hook=object_of)
    except (ValueError, RecursionError):
        wanted = ...
    scanned = scan(data)
    if scanned.status[0] == kernels.REPEATED:
        assert wanted is ... or repeats[-1]
        return
    assert bool(scanned.is_object[0]) == (isinstance(wanted, dict) and not repeats[-1])
    if isinstance(wanted, dict):
        assert same(members_of(scanned, 0), wanted)
    elif not text_.strip():
        assert scanned.status[0] == kernels.EMPTY
    else:
        assert scanned.status[0] == (
            kernels.BROKEN if wanted is ... else kernels.IS_NULL if wanted is None else kernels.NOT_CONTAINER
        )


def test_a_broken_document_leaves_its_neighbours_alone() -> None:
    scanned = scan(b'{"a":1}', b'{"a":', b'{"a":3}')
    assert scanned.is_object.tolist() == [True, False, True]
    assert scanned.column("a").kind.tolist()[::2] == [kernels.INT, kernels.INT]


def test_missing_null_and_empty_are_told_apart() -> None:
    column = scan(b'{"a":null}', b"{}", b'{"a":""}').column("a")
    assert column.kind.tolist() == [kernels.NULL, kernels.MISSING, kernels.STRING]


def test_an_object_that_gives_a_member_twice_is_none() -> None:
    scanned = scan(b'{"a":1,"b":2,"a":1}', b'{"a":1,"\\u0061":2}', b'{"a":3,"c":{"b":1,"b":1}}')
    assert scanned.status.tolist() == [kernels.REPEATED, kernels.REPEATED, kernels.OK]
    assert scanned.column("a").kind.tolist() == [kernels.MISSING, kernels.MISSING, kernels.INT]


def test_escaped_names_are_the_same_column() -> None:
    scanned = scan(b'{"\\u0061b":1}', b'{"ab":2}')
    assert scanned.names == ("ab",)
    assert scanned.column("ab").kind.tolist() == [kernels.INT, kernels.INT]


def test_unknown_names_are_skipped_unless_they_are_to_be_learned() -> None:
    scanned = scan(b'{"x":{"deep":[1,{"y":2}]},"a":1}', names=("a",), learn=False)
    assert scanned.names == ("a",)
    assert scanned.column("a").kind.tolist() == [kernels.INT]


def test_nesting_without_end_is_refused() -> None:
    assert scan(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}").status.tolist() == [kernels.TOO_DEEP]


def test_many_names_in_few_bytes_do_not_take_much_memory() -> None:
    documents = [b'{"n%d":1}' % (n % 1000) for n in range(20_000)]
    with pytest.raises(WideBatchError, match="more than 209 member names in 20,000 objects,"):
        scan(*documents)
    assert scan(*documents[:4_000]).is_object.all()


def test_scanning_ends_when_there_are_enough_names() -> None:
    documents = from_binary(pa.array([b'{"n%d":1}' % n for n in range(100)], pa.binary()))
    assert scan_objects(documents, enough=30).names == tuple(f"n{n}" for n in range(30))


def test_what_a_kernel_was_given_stays_as_names_are_learned() -> None:
    names = members.MemberNames(["a", "bc"], 10)
    joined, offsets, slots = names.tables()
    names.learn(b"def")
    assert (joined.tobytes().rstrip(b"\0"), offsets.tolist(), slots.tolist()) == (b"abc", [0, 1, 3], [0, 1])
    joined, offsets, slots = names.tables()
    assert (joined.tobytes().rstrip(b"\0"), offsets.tolist(), slots.tolist()) == (b"abcdef", [0, 1, 3, 6], [0, 1, 2])


def test_too_many_names_reject_the_events_that_bring_more(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [b'{"n%d":1}' % n for n in range(53)]
    monkeypatch.setattr(members, "MAX_COLUMNS", 50)
    scanned = scan(*documents, b'{"n1":1}')
    assert (scanned.status == kernels.TOO_MANY).sum() == 3
    assert scanned.is_object[-1]


def test_elements_of_arrays_are_found() -> None:
    found = scan_arrays(from_binary(pa.array([b"[1, [2], {}]", b"[]", None, b"[1", b"7", b'["x"]'], pa.binary())))
    assert found.offsets.tolist() == [0, 3, 3, 3, 3, 3, 4]
    assert found.values.kind.tolist() == [kernels.INT, kernels.ARRAY, kernels.OBJECT, kernels.STRING]


@given(st.lists(st.text(), min_size=1))
def test_texts_come_back_without_their_escapes(values: list[str]) -> None:
    documents = [json.dumps({"a": v}).encode() for v in values]
    column = scan(*documents).column("a")
    got, bad = text(column, np.ones(len(values), np.bool_))
    for value, decoded, is_bad in zip(values, got.to_pylist(), bad, strict=True):
        assert decoded == value or is_bad
    assert not bad.any()


def test_lone_surrogates_are_marked() -> None:
    column = scan(b'{"a":"\\ud800"}', b'{"a":"\\ude00x"}', b'{"a":"\\ud83d\\ude00"}').column("a")
    got, bad = text(column, np.ones(3, np.bool_))
    assert bad.tolist() == [True, True, False]
    assert got.to_pylist() == [None, None, "😀"]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1))
def test_integers_decode_exactly(values: list[int | None]) -> None:
    column = scan(*[json.dumps({"a": v}).encode() for v in values]).column("a")
    got, bad = decode(column, ValueType(pa.int64()))
    assert got.to_pylist() == values
    assert not bad.any()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**17), 10**17), min_size=1))
def test_doubles_decode_to_the_nearest_value(values: list[float]) -> None:
    column = scan(*[json.dumps({"a": v}).encode() for v in values]).column("a")
    got, bad = decode(column, ValueType(pa.float64()))
    # Whole numbers between doubles are none; their shortest digits are.
    right = [isinstance(v, float) or v in {int(float(v)), int(Decimal(repr(float(v))))} for v in values]
    assert got.to_pylist() == [float(v) if ok else None for v, ok in zip(values, right, strict=True)]
    signs = [math.copysign(1, v) for v, ok in zip(values, right, strict=True) if ok]
    assert [math.copysign(1, v) for v in got.drop_null().to_pylist()] == signs
    assert bad.tolist() == [not ok for ok in right]


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "0.0000001e-400", "9007199254740993", "1" + "0" * 39])
def test_numbers_that_would_become_other_numbers_are_no_doubles(text: str) -> None:
    got, bad = decode(scan(f'{{"a": {text}}}'.encode()).column("a"), ValueType(pa.float64()))
    assert (got.to_pylist(), bad.tolist()) == ([None], [True])


@pytest.mark.parametrize(
    "text", ["0.0", "-0", "0e999", "1e308", "12345678901234567000", "1152921504606846976", '"-Infinity"']
)
def test_numbers_at_the_edge_of_doubles_are_kept(text: str) -> None:
    got, bad = decode(scan(f'{{"a": {text}}}'.encode()).column("a"), ValueType(pa.float64()))
    assert got.to_pylist() == [float(text.strip('"'))]
    assert not bad.any()


def test_number_beyond_float_is_no_float() -> None:
    got, bad = decode(scan(b'{"a": 1e39}', b'{"a": 1e38}').column("a"), ValueType(pa.float32()))
    assert (got.is_null().to_pylist(), bad.tolist()) == ([True, False], [True, False])


@pytest.mark.parametrize(
    ("documents", "wanted"),
    [
        (["1", "2"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["1", "9223372036854775808"], pa.decimal128(38, 0)),
        (["true", "null"], pa.bool_()),
        (['"x"', "null"], pa.string()),
        (["null", "null"], pa.null()),
        (["[1,2]", "[null]"], pa.list_(pa.field("element", pa.int64()))),
        (["[]"], pa.null()),
        (['[1,"a"]'], pa.string()),
        (['{"x":1,"y":null}', '{"x":2.5,"z":"t"}'], pa.struct([("x", pa.float64()), ("z", pa.string())])),
    ],
)
def test_undeclared_columns_get_the_type_of_their_values(documents: list[str], wanted: pa.DataType) -> None:
    column = scan(*[f'{{"a":{d}}}'.encode() for d in documents]).column("a")
    assert infer(column, InferenceOptions()).arrow == wanted


def test_nested_objects_stay_text_where_asked() -> None:
    column = scan(b'{"a":{"x": 1.50}}').column("a")
    assert infer(column, InferenceOptions(objects_as_text=True)) == ValueType(pa.string(), Encoding.TEXT)
    assert json_text(column)[0].to_pylist() == ['{"x": 1.50}']


@given(st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=5), min_size=1, max_size=4))
def test_names_and_values_of_objects_are_found_in_turn(objects: list[dict[str, Any]]) -> None:
    found = scan_pairs(from_binary(pa.array([json.dumps(o).encode() for o in objects], pa.binary())))
    texts = found.values.documents(*range(kernels.NULL, kernels.ARRAY + 1))
    values = [json.loads(texts.data[a:b].tobytes()) for a, b in zip(texts.start, texts.end, strict=True)]
    assert same(values, [part for o in objects for pair in o.items() for part in pair])
    assert found.offsets.tolist() == np.cumsum([0, *(2 * len(o) for o in objects)]).tolist()


@pytest.mark.parametrize(
    "text", [b'{"a":1,}', b'{"a" 1}', b"{1:1}", b'{"a"}', b'{"a":}', b'{"a":1', b'{"a":1}x', b"[]", b"{,}"]
)
def test_what_is_no_object_has_no_names(text: bytes) -> None:
    found = scan_pairs(from_binary(pa.array([text, b'{"b":2}'], pa.binary())))
    assert found.offsets.tolist() == [0, 0, 2]
    assert found.status[0] != kernels.OK
