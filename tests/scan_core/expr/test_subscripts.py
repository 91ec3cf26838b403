"""Conditions on positions of lists and keys of maps, on whole columns at once: what asking row by row would give."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from scan_core.expr.bind import bind
from scan_core.expr.kernels import evaluate
from scan_core.schema import Schema, parse_schema

SCHEMA: Schema = parse_schema(
    {
        "type": "struct",
        "fields": [
            {
                "id": 1,
                "name": "m",
                "type": {"type": "map", "key-id": 2, "key": "int", "value-id": 3, "value": "int"},
            },
            {"id": 4, "name": "l", "type": {"type": "list", "element-id": 5, "element": "int"}},
        ],
    }
)
VALUES = st.one_of(st.none(), st.integers(0, 3))
MAPS = st.one_of(st.none(), st.dictionaries(st.integers(0, 4), VALUES, max_size=5).map(lambda d: list(d.items())))
LISTS = st.one_of(st.none(), st.lists(VALUES, max_size=4))


def element(values: list[Any] | None, position: int) -> Any:
    return values[position] if values is not None and position < len(values) else None


def passing(text: str, columns: dict[int, pa.Array], num_rows: int) -> list[bool]:
    masks = [evaluate(conjunct, columns, num_rows) for conjunct in bind(text, SCHEMA).conjuncts]
    return [all(mask[k] for mask in masks) for k in range(num_rows)]


@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(st.tuples(MAPS, LISTS), min_size=1, max_size=12),
    wanted=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=3),
    cut=st.integers(0, 3),
)
def test_conjunctions_of_subscripts_are_those_of_each_row(
    rows: list[tuple[Any, Any]], wanted: list[tuple[int, int]], cut: int
) -> None:
    columns = {
        1: pa.array([m for m, _ in rows], pa.map_(pa.int32(), pa.int32())).slice(cut),
        4: pa.array([values for _, values in rows], pa.list_(pa.int32())).slice(cut),
    }
    rows, num_rows = rows[cut:], len(columns[1])
    of_maps = " and ".join(f"m[{k}] = {v}" for k, v in wanted)
    of_lists = " or ".join(f"get(l, {k}) = {v} and cardinality(m) > {v}" for k, v in wanted)
    in_maps, in_lists = (passing(text, columns, num_rows) for text in (of_maps, of_lists))
    assert in_maps == [all(dict(m or []).get(k) == v for k, v in wanted) for m, _ in rows]
    assert in_lists == [
        any(element(values, k) == v and m is not None and len(m) > v for k, v in wanted) for m, values in rows
    ]
