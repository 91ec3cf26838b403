"""An event means the same whatever stands beside it in a batch, and is applied or refused, never both."""

import json
import re
from decimal import Decimal, InvalidOperation
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.json_columns import decode
from nevermore.pipelines.decode.value_types import from_arrow
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.jsonscan.members import scan_objects
from nevermore.pipelines.jsonscan.spans import from_binary
from tests.pipelines.formats.decoded_feed import TABLE, changes, dms, read, reasons, wal

OLD = {"keynames": ["id"], "keytypes": ["integer"], "keyvalues": [1]}
VERSION_1 = {"change": [{"kind": "delete", "schema": "public", "table": "products", "oldkeys": OLD}]}
DEBEZIUM = {"op": "d", "before": {"id": 1}, "after": None, "source": {"table": "products"}}
CANAL = {"type": "DELETE", "data": [{"id": "1"}], "old": None, "table": "products", "mysqlType": {"id": "BIGINT"}}
MAXWELL = {"database": "d", "table": "products", "type": "delete", "ts": 1, "data": {"id": 1}}
DELETES: dict[str, tuple[str, Any]] = {
    "debezium": ("debezium-json", DEBEZIUM),
    "unwrapped": ("debezium-json", {"id": 1, "__deleted": "true"}),
    "canal": ("canal-json", {**CANAL, "database": "d", "isDdl": False, "es": 1}),
    "maxwell": ("maxwell-json", MAXWELL),
    "dms": ("dms", dms("delete", {"id": 1})),
    "wal2json": ("wal2json", wal("D", None, {"id": 1})),
    "wal2json 1": ("wal2json", VERSION_1),
    "rows": ("rows", {"op": "d", "id": 1}),
}


def each_alone(name: str, events: list[Any], **feed: Any) -> list[Any]:
    return [found for event in events for found in changes(read(name, event, **feed), "op", "key", "before", "after")]


@pytest.mark.each(2)
@pytest.mark.parametrize(
    "behind", [b"", b"tru", b'"x', b"[" * 3000 + b"]" * 3000 + b"}"], ids=["cut", "word", "text", "deep"]
)
@pytest.mark.parametrize("kind", DELETES)
def test_broken_events_are_refused_and_not_applied_too(kind: str, behind: bytes) -> None:
    name, event = DELETES[kind]
    broken = json.dumps(event).encode()[:-1] + b', "x": ' + behind
    decoded = read(name, broken, event)
    assert [c["op"] for c in changes(decoded)] == ["d"]
    too_deep = "nested too deeply: more than 256 levels of objects and arrays"
    assert reasons(decoded) == [too_deep if behind.startswith(b"[[") else "not JSON"]


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("wal2json", wal("D", None, {"id": 1}) | {"identity": [{"name": "id", "type": "integer", "value": n} for n in (1, 2)]}),
        ("dms", dms("update", {"id": 1}, **{"before-image": "@"})),
    ],
    ids=["column of wal2json", "before image of DMS"],
)  # fmt: skip
def test_rows_that_give_a_column_twice_are_refused(name: str, event: Any) -> None:
    document = json.dumps(event).replace('"@"', '{"id": 2, "id": 3}').encode()
    decoded = read(name, document)
    assert changes(decoded) == []
    assert reasons(decoded) == ["an object gives a member twice"]


def test_each_event_of_wal2json_tells_its_version() -> None:
    insert = {"kind": "insert", "schema": "public", "table": "products"}
    first = {
        "change": [insert | {"columnnames": ["id"], "columntypes": ["integer"], "columnvalues": [n]} for n in (5, 6)]
    }
    events: list[Any] = [first, wal("I", {"id": 1}), VERSION_1, wal("U", {"id": 2}, {"id": 1})]
    for order in permutations(events):
        decoded = read("wal2json", *order)
        assert reasons(decoded) == []
        assert changes(decoded, "op", "key", "before", "after") == each_alone("wal2json", list(order))
    assert len(reasons(read("wal2json", *events, options={"version": 2}))) == 2


def test_each_row_tells_its_operation_by_its_own_member() -> None:
    rows: list[Any] = [
        {"op": "c", "id": 1},
        {"_op": "d", "id": 1},
        {"__$operation": 3, "id": 1},
        {"__$operation": 4, "id": 1},
    ]
    doubtful = {"op": "c", "operation": "d", "id": 4}
    decoded = read("rows", *rows, doubtful)
    assert [c["op"] for c in changes(decoded)] == ["c", "d", "u"]
    assert reasons(decoded)[0].startswith("several columns may contain the operation")
    assert reasons(read("rows", doubtful)) == reasons(decoded)
    assert [c["op"] for c in changes(read("rows", doubtful, options={"op_column": "operation"}))] == ["d"]
    assert decoded.tables["shop.products"].row_type == pa.struct([("id", pa.int64())])


def test_tables_of_which_several_columns_may_tell_are_refused() -> None:
    table = pa.table({"op": ["c"], "operation": ["d"], "id": [1]})
    raw = from_documents(pa.nulls(1, pa.binary()))
    raw = RawEvents(**{**raw.__dict__, "documents": None, "rows": table})
    with pytest.raises(SourceError, match=r"op and operation: several columns may contain the operation.*op_column"):
        read("rows", raw=raw)
    assert [c["op"] for c in changes(read("rows", raw=raw, options={"op_column": "operation"}))] == ["d"]


def test_maps_may_be_written_in_both_ways_within_a_batch() -> None:
    values: list[Any] = [{"a": 1}, [["b", 2]], [], {}, None, [["c", 3], ["d", 4]], [["e"]]]
    documents = from_binary(pa.array([json.dumps({"m": value}).encode() for value in values], pa.binary()))
    wanted = from_arrow(pa.map_(pa.string(), pa.int64()))
    column = scan_objects(documents).column("m")
    found, bad = decode(column, wanted)
    assert found.to_pylist() == [[("a", 1)], [("b", 2)], [], [], None, [("c", 3), ("d", 4)], None]
    assert bad.tolist() == [False] * 6 + [True]
    for row in range(len(values)):
        alone, wrong = decode(column.take(np.array([row])), wanted)
        assert (alone.to_pylist()[0], bool(wrong[0])) == (found[row].as_py(), bool(bad[row]))


def test_a_before_image_of_dms_stands_beside_its_column_in_the_same_row() -> None:
    """Another row's column makes no before image of a column that has the prefix by chance."""
    rows = [dms("update", {"id": 1, "BI_x": 5}), dms("update", {"id": 2, "x": 1, "BI_x": 7})]
    together = changes(read("dms", *rows, types={"BI_x": "long", "x": "long"}), "before", "after")
    assert together[0]["after"]["BI_x"] == 5
    assert (together[0]["before"] or {}).get("x") is None
    assert together[1]["before"]["x"] == 7
    assert together[1]["after"]["x"] == 1


ENVELOPES = {
    "dumped": ("debezium-json", {"key": {"id": 1}, "value": DEBEZIUM}),
    "payload": ("debezium-json", {"payload": DEBEZIUM}),
    "text": ("debezium-json", {"key": None, "value": json.dumps(DEBEZIUM).replace("op", "\\u006fp"), "topic": "t", "partition": 0, "offset": 1}),
    "pgcopydb": ("wal2json", {"action": "D", "xid": "1", "lsn": "0/1", "message": wal("D", None, {"id": 1})}),
}  # fmt: skip


@pytest.mark.each(12)
@pytest.mark.parametrize("kind", [*DELETES, *ENVELOPES])
def test_names_of_members_may_be_written_with_escapes(kind: str) -> None:
    """Every name of the event in turn, by its first, by its last and by all of its characters."""
    name, event = {**DELETES, **ENVELOPES}[kind]
    plain = json.dumps(event)
    wanted = changes(read(name, plain.encode()))
    assert [c["op"] for c in wanted] == ["d"]
    for member in sorted(set(re.findall(r'"([^"\\]+)": ', plain))):
        escaped = [f"\\u{ord(letter):04x}" for letter in member]
        for written in (
            escaped[0] + member[1:],
            member[:-1] + escaped[-1].upper().replace("\\U", "\\u"),
            "".join(escaped),
        ):
            decoded = read(name, plain.replace(f'"{member}": ', f'"{written}" : ').encode())
            assert changes(decoded) == wanted, (member, reasons(decoded))


def test_escapes_in_values_stay_and_endless_odd_names_are_refused() -> None:
    text = 'a "b": \\u006fp \u00e9 <x>'
    row = json.dumps({"op": "c", "id": 1, "t": text, "\u00e9": 2}).replace("<", "\\u003c").encode()
    odd = b'{"\\u006fp": "c", "id": 2, "t": "\\"\\u006fp\\": "}'
    found = changes(read("rows", row, odd), "after")
    assert [c["after"]["t"] for c in found] == [text, '"op": ']
    assert found[0]["after"]["\u00e9"] == 2
    many = ", ".join(f'"\\u006f{n}": 1' for n in range(200))
    with pytest.raises(SourceError, match="unnecessary escapes"):
        read("rows", f'{{"op": "c", "id": 1, {many}}}'.encode())


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 2),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "1", "1.5", "true", "null", "{}", "[]", "2020-01-01", "\U0001f600"]),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=5,
)
BATCHES = st.lists(st.lists(VALUES, min_size=1, max_size=5), min_size=1, max_size=3)


def is_same(found: Any, sent: Any) -> bool:
    """Whether a decoded value is the one in JSON: of any type that holds it, with NULL for members that others have."""
    if isinstance(found, dict) and isinstance(sent, dict):
        return all(is_same(found.get(name), sent.get(name)) for name in {*found, *sent})
    if isinstance(found, list) and isinstance(sent, list):
        return len(found) == len(sent) and all(map(is_same, found, sent))
    if isinstance(found, str) and not isinstance(sent, str):
        return bool(json.loads(found) == sent)
    if isinstance(sent, str) and isinstance(found, bool):
        return found == (sent in {"1", "true"})
    if isinstance(sent, str) and isinstance(found, int | float | Decimal):
        try:
            return Decimal(sent) == found
        except InvalidOperation:
            return False
    return bool(found == sent)


@pytest.mark.parametrize(
    "kind", ["debezium-json", *(pytest.param(k, marks=pytest.mark.slow) for k in ("rows", "maxwell-json", "dms"))]
)
@settings(max_examples=60, deadline=None)
@given(batches=BATCHES)
@example(batches=[[{"x": 1}], ["t", {"x": 1, "z": 5}], [{"x": "t"}, {"x": 2, "y": 6}]])
@example(batches=[[{"x": 1, "z": []}, {"x": 1, "z": [[None]]}], [[{"x": 1}], [{"y": []}]]])
def test_a_value_is_kept_or_refused_whatever_stands_beside_it_and_came_before(
    kind: str, batches: list[list[Any]]
) -> None:
    known: dict[str, pa.DataType] = {}
    for values in batches:
        rows = [{"id": number, "a": value} for number, value in enumerate(values)]
        events = {
            "debezium-json": [
                {"op": "c", "before": None, "after": row, "source": {"table": "products"}} for row in rows
            ],
            "rows": [{"op": "c", **row} for row in rows],
            "maxwell-json": [{**MAXWELL, "type": "insert", "data": row} for row in rows],
            "dms": [dms("insert", row) for row in rows],
        }
        decoded = read(kind, *events[kind], known_types=known)
        batch = decoded.tables.get(TABLE)
        found = {} if batch is None else {row["id"]: row.get("a") for row in batch.table.column("after").to_pylist()}
        refused = {offset - 1 for offset in decoded.rejected.table.column("source_offset").to_pylist()}
        assert found.keys() | refused == set(range(len(values)))
        assert not found.keys() & refused
        for number, value in found.items():
            assert is_same(value, values[number]), (value, values[number])
        if batch is not None:
            known |= {field.name: field.type for field in batch.row_type}
