"""Conditions on positions of lists and keys of maps, on whole columns at once: what asking row by row would give."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.scan_core import EvaluationError, ScanOptions
from nevermore.scan_core.expr.bind import bind
from nevermore.scan_core.model.schema import Schema, parse_schema
from tests.support.evaluation import evaluate
from tests.support.iceberg_json import Column, list_of
from tests.support.table_builder import TableBuilder

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


def test_scans_with_several_conjuncts_on_one_map_or_list_give_the_rows_of_naive_evaluation(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    numbers = random.integers(0, 4, (700, 5)).tolist()
    rows: list[tuple[int, dict[int, Any] | None, list[Any] | None]] = [
        (
            i,
            None if i % 11 == 0 else {k: None if v == 3 else v for k, v in enumerate(row) if (i + k) % 6},
            None if i % 13 == 0 else [None if v == 3 else v for v in row[: i % 5 + 1]],
        )
        for i, row in enumerate(numbers)
    ]
    of_map = {"type": "map", "key-id": 3, "key": "int", "value-id": 4, "value": "int", "value-required": False}
    builder = TableBuilder(
        tmp_path / "t", [Column(1, "id", "long"), Column(2, "m", of_map), Column(5, "l", list_of(6, "int"))]
    )
    maps = [None if m is None else list(m.items()) for _, m, _ in rows]
    builder.commit(builder.data({"id": [i for i, _, _ in rows], "m": maps, "l": [values for _, _, values in rows]}))
    scan = scan_core.open_table(builder.metadata_path).scan()

    def ids(text: str) -> list[int]:
        narrowed = scan.select("id").where(text).with_options(ScanOptions(parallelism=1))
        found: list[int] = narrowed.to_table()["id"].to_pylist()
        return found

    of_maps = [i for i, m, _ in rows if m and m.get(3) in {0, 1, 2} and m.get(1) in {1, 2} and m.get(0) == 2]
    of_lists = [i for i, _, v in rows if v and len(v) > 2 and v[2] in {1, 2} and v[0] in {0, 1} and v[1] is not None]
    assert of_maps
    assert of_lists
    for _ in range(2):  # the second scan runs in the order that the first one measured
        assert ids("m[3] >= 0 and m[1] in (1, 2) and m[0] = 2") == of_maps
        text = "l[2] >= 1 and l[0] <= 1 and l[1] is not null and cardinality(l) > 2"
        assert ids(text) == of_lists  # rows of short lists, where l[2] fails, pass no other way
    with pytest.raises(EvaluationError, match="outside the list"):
        ids("l[2] >= 1 and l[0] <= 1")
