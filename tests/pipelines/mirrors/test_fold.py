"""Folding against a naive model that applies one change after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.mirrors.fold import fold
from nevermore.pipelines.workers import workers
from tests.pipelines.memory_mirror import MemoryMirror

Row = dict[str, Any]
Key = tuple[Any, ...]
UNSENT = "<unsent>"


@dataclass
class Change:
    op: str
    key: Row | None = None
    after: Row | None = None


@dataclass
class NaiveMirror:
    """The rows of a table, changed one event at a time, as SEMANTICS section 4 says."""

    key: tuple[str, ...]
    rows: dict[Key, Row] = field(default_factory=dict)
    refused: int = 0

    def apply(self, change: Change) -> None:
        if change.op == "t":
            self.rows.clear()
            return
        assert change.key is not None
        old = tuple(change.key[name] for name in self.key)
        if change.after is None:
            self.rows.pop(old, None)
            return
        row = dict(change.after)
        unsent = [name for name, value in row.items() if value == UNSENT]
        if unsent:
            if old not in self.rows:
                self.refused += 1
                return
            row.update({name: self.rows[old][name] for name in unsent})
        self.rows.pop(old, None)
        self.rows[tuple(row[name] for name in self.key)] = row


def table_of(changes: Sequence[Change], row_type: pa.StructType, key: Sequence[str]) -> pa.Table:
    key_type = pa.struct([row_type.field(name) for name in key])
    rows = []
    for change in changes:
        unsent = [n for n, v in (change.after or {}).items() if v == UNSENT]
        after = None if change.after is None else {n: None if n in unsent else v for n, v in change.after.items()}
        rows.append({"op": change.op, "key": change.key, "after": after, "unchanged": unsent})
    schema = pa.schema(
        [("op", pa.string()), ("key", key_type), ("after", row_type), ("unchanged", pa.list_(pa.string()))]
    )
    return pa.Table.from_pylist(rows, schema=schema)


ROW = pa.struct([("k", pa.int64()), ("j", pa.string()), ("a", pa.int64()), ("b", pa.string())])
KEY = ("k", "j")


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[Change]]:
    """Rows of a table, and changes of few keys with everything that can happen to them."""
    keys = st.fixed_dictionaries({"k": st.sampled_from([None, 1, 2]), "j": st.sampled_from(["x", None])})
    unsent = draw(st.booleans())
    number = st.integers(0, 99) | st.none()
    text = st.sampled_from(["p", "q", None])
    payload = st.fixed_dictionaries(
        {"a": (number | st.just(UNSENT)) if unsent else number, "b": (text | st.just(UNSENT)) if unsent else text}
    )
    start = {tuple(k.values()): {**k, "a": n, "b": "start"} for n, k in enumerate(draw(st.lists(keys, max_size=4)))}
    changes = []
    for op in draw(st.lists(st.sampled_from("rccuuuuuddt" if draw(st.booleans()) else "rccuuuuudd"), max_size=12)):
        key = draw(keys)
        if op == "t":
            changes.append(Change("t"))
        elif op == "d":
            changes.append(Change("d", key))
        else:
            new = draw(keys) if op == "u" and draw(st.integers(0, 3)) == 0 else key
            after = {**new, **draw(payload)}
            if op != "u":
                after = {n: 7 if n == "a" and v == UNSENT else "s" if v == UNSENT else v for n, v in after.items()}
            changes.append(Change(op, key, after))
    return list(start.values()), changes


def check_history(history: tuple[list[Row], list[Change]]) -> None:
    start, changes = history
    naive = NaiveMirror(KEY, {tuple(row[n] for n in KEY): dict(row) for row in start})
    mirror = MemoryMirror(KEY, [dict(row) for row in start])
    for change in changes:
        naive.apply(change)
    result = mirror.apply(table_of(changes, ROW, KEY))
    assert len(result.deletes.to_pylist()) == len({tuple(row.values()) for row in result.deletes.to_pylist()})
    written = [tuple(row[n] for n in KEY) for row in result.upserts.to_pylist()]
    assert len(written) == len(set(written))
    # The naive mirror refuses a change at once; a fold that needs nothing from it in the end need not.
    if not naive.refused:
        assert not mirror.unresolved
        assert mirror.rows == naive.rows


@settings(max_examples=150, deadline=None)
@given(histories())
def test_rule_26_fold_and_write_equals_one_change_after_the_other(history: tuple[list[Row], list[Change]]) -> None:
    check_history(history)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(histories())
def test_rule_26_fold_and_write_equals_many_changes_one_after_the_other(
    history: tuple[list[Row], list[Change]],
) -> None:
    check_history(history)


def fold_changes(changes: Sequence[Change], row_type: pa.StructType = ROW, key: Sequence[str] = KEY) -> Any:
    return fold(table_of(changes, row_type, key), key)


def row(k: Any, a: Any = 0, b: Any = "", j: Any = "x") -> Row:
    return {"k": k, "j": j, "a": a, "b": b}


def key(k: Any, j: Any = "x") -> Row:
    return {"k": k, "j": j}


def test_rule_26_unsent_column_takes_the_value_of_an_earlier_change_through_a_key_change() -> None:
    result = fold_changes(
        [
            Change("c", key(1), row(1, a=5, b="long")),
            Change("u", key(1), row(2, a=6, b=UNSENT)),
            Change("u", key(2), row(2, a=UNSENT, b=UNSENT)),
        ]
    )
    assert result.upserts.to_pylist() == [row(2, a=6, b="long")]
    assert result.deletes.to_pylist() == [key(1), key(2)]
    assert result.needs_lookup is None


def test_rule_26_unsent_column_without_an_earlier_change_is_looked_up_under_the_old_key() -> None:
    result = fold_changes([Change("u", key(1), row(2, a=1, b=UNSENT)), Change("u", key(2), row(3, a=UNSENT, b=UNSENT))])
    assert result.upserts.to_pylist() == [row(3, a=1, b=None)]
    assert result.needs_lookup.to_pylist() == [{"upsert": 0, "key": key(1), "unchanged": ["b"]}]


@pytest.mark.parametrize("before", [Change("d", key(1)), Change("t"), Change("u", key(1), row(9))])
def test_rule_26_nothing_survives_a_delete_truncate_or_move_in_between(before: Change) -> None:
    result = fold_changes([Change("c", key(1), row(1, b="long")), before, Change("u", key(1), row(1, a=4, b=UNSENT))])
    (refused,) = result.unresolved.to_pylist()
    assert refused["change"] == 2
    assert "column b was not sent" in refused["reason"]
    assert key(1) not in [{n: r[n] for n in KEY} for r in result.upserts.to_pylist()]


def test_rule_26_refused_change_leaves_the_state_before_it() -> None:
    result = fold_changes(
        [
            Change("d", key(1)),
            Change("u", key(1), row(1, a=4, b=UNSENT)),
            Change("u", key(1), row(1, a=UNSENT, b="z")),
            Change("u", key(2), row(2, a=1, b="y")),
        ]
    )
    assert result.unresolved.column("change").to_pylist() == [1, 2]
    assert result.upserts.to_pylist() == [row(2, a=1, b="y")]
    assert result.deletes.to_pylist() == [key(1), key(2)]


def test_rule_28_key_change_deletes_the_old_key_and_upserts_the_new() -> None:
    result = fold_changes([Change("u", key(1), row(2, a=3))])
    assert result.upserts.to_pylist() == [row(2, a=3)]
    assert result.deletes.to_pylist() == [key(2), key(1)] or result.deletes.to_pylist() == [key(1), key(2)]


def test_rule_28_truncate_between_inserts_removes_only_the_earlier_ones() -> None:
    result = fold_changes([Change("c", key(1), row(1)), Change("t"), Change("c", key(2), row(2))])
    assert result.truncated
    assert result.upserts.to_pylist() == [row(2)]
    assert result.counts == {"c": 2, "t": 1}


def test_two_rows_swap_their_keys_through_a_third() -> None:
    result = fold_changes(
        [
            Change("u", key(1), row(9, a=1)),
            Change("u", key(2), row(1, a=2)),
            Change("u", key(9), row(2, a=1)),
        ]
    )
    assert sorted(r["k"] for r in result.upserts.to_pylist()) == [1, 2]
    assert {r["k"]: r["a"] for r in result.upserts.to_pylist()} == {1: 2, 2: 1}
    assert sorted(r["k"] for r in result.deletes.to_pylist()) == [1, 2, 9]


def test_insert_of_a_key_that_is_new_to_the_batch_is_marked() -> None:
    result = fold_changes(
        [Change("c", key(1), row(1)), Change("u", key(2), row(2)), Change("d", key(3)), Change("c", key(3), row(3))]
    )
    marked = dict(zip([r["k"] for r in result.deletes.to_pylist()], result.delete_is_insert.tolist(), strict=True))
    assert marked == {1: True, 2: False, 3: False}


def test_no_changes_give_an_empty_result() -> None:
    result = fold_changes([])
    assert (result.upserts.num_rows, result.deletes.num_rows, result.truncated) == (0, 0, False)


@pytest.mark.parametrize(
    ("arrow", "values"),
    [
        (pa.int32(), [1, 2, None]),
        (pa.int64(), [-(2**63), 2**63 - 1, None]),
        (pa.string(), ["", "a", None]),
        (pa.bool_(), [True, False, None]),
        (pa.date32(), [date(1, 1, 1), date(2026, 1, 1), None]),
        (pa.decimal128(38, 10), [Decimal("1.5"), Decimal("-99999999999999999999.5"), None]),
        (pa.binary(16), [b"0" * 16, b"1" * 16, None]),
        (pa.binary(), [b"", b"\0", None]),
        (pa.time64("us"), [0, 1, None]),
        (pa.timestamp("us", "UTC"), [0, -1, None]),
        (pa.timestamp("ns"), [0, -1, None]),
    ],
)
def test_keys_of_every_legal_type_fold(arrow: pa.DataType, values: list[Any]) -> None:
    row_type = pa.struct([("k", arrow), ("v", pa.int64())])
    keys = pa.array([*values, *values], arrow)
    count = len(keys)
    table = pa.table(
        {
            "op": ["c"] * count,
            "key": pa.StructArray.from_arrays([keys], names=["k"]),
            "after": pa.StructArray.from_arrays([keys, pa.array(range(count))], fields=list(row_type)),
            "unchanged": pa.array([[]] * count, pa.list_(pa.string())),
        }
    )
    result = fold(table, ["k"])
    assert result.upserts.column("v").to_pylist() == [3, 4, 5]
    assert result.deletes.column("k").combine_chunks().equals(pa.array(values, arrow))


@pytest.mark.parametrize("arrow", [pa.float64(), pa.float32(), pa.list_(pa.int64())])
def test_keys_of_illegal_types_are_refused(arrow: pa.DataType) -> None:
    row_type = pa.struct([("k", arrow)])
    table = table_of([Change("c", {"k": None}, {"k": None})], row_type, ["k"])
    with pytest.raises(SchemaConflictError, match="cannot be keys"):
        fold(table, ["k"])


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(1, 5), st.sampled_from([1, 3]))
def test_chunks_and_threads_change_nothing(
    history: tuple[list[Row], list[Change]], chunk_rows: int, threads: int
) -> None:
    whole = table_of(history[1], ROW, KEY)
    parts = pa.Table.from_batches(whole.to_batches(max_chunksize=chunk_rows), whole.schema)
    with workers(threads):
        found, wanted = fold(parts, KEY), fold(whole.combine_chunks(), KEY)
    for name in ("upserts", "deletes", "needs_lookup", "unresolved"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one == other or one.equals(other), name
    assert (found.delete_is_insert == wanted.delete_is_insert).all()
    assert (found.num_missed, found.counts) == (wanted.num_missed, wanted.counts)


def test_rows_are_taken_chunk_by_chunk_as_all_texts_may_not_fit_into_one_array() -> None:
    row_type = pa.struct([("k", pa.int64()), ("v", pa.string())])
    updates = [Change("u", {"k": n // 2}, {"k": n // 2, "v": f"text {n}"}) for n in range(8)]
    changes = table_of(updates, row_type, ["k"])
    parts = pa.Table.from_batches(changes.to_batches(max_chunksize=2), changes.schema)
    upserts = fold(parts, ["k"]).upserts
    assert upserts.column("v").to_pylist() == [f"text {n}" for n in (1, 3, 5, 7)]
    assert [column.num_chunks for column in upserts.columns] == [4] * upserts.num_columns
