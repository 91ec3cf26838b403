import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.mirrors.multiset import recount, steps
from tests.pipelines.change_batches import Change, Pipeline, batch_of, change

COLUMNS = {"a": pa.int64(), "b": pa.string()}
Row = tuple[int | None, str | None]


def row(values: Row) -> dict[str, Any]:
    return dict(zip(COLUMNS, values, strict=True))


def apply(live: Counter[Row], changes: list[Change]) -> tuple[Counter[Row], int]:
    """The rows after a batch as `recount` has it, and how many distinct rows it deletes."""
    batch = batch_of(changes, COLUMNS, ("a", "b"))

    def count_live(rows: pa.Table) -> np.ndarray[Any, Any]:
        return np.array([live[r["a"], r["b"]] for r in rows.to_pylist()], np.int64)

    counted = recount(steps(batch.table, ("a", "b")), count_live)
    after = Counter[Row]() if counted.truncated else live.copy()
    for gone in counted.deletes.to_pylist():
        del after[gone["a"], gone["b"]]
    after.update((r["a"], r["b"]) for r in counted.upserts.to_pylist())
    return +after, counted.deletes.num_rows


def replay(live: Counter[Row], changes: list[Change]) -> Counter[Row]:
    after = live.copy()
    for c in changes:
        if c["op"] == "t":
            after.clear()
        old = c["before"]
        if c["op"] in "ud" and after[old["a"], old["b"]] > 0:
            after[old["a"], old["b"]] -= 1
        if c["op"] in "rcu":
            after[c["after"]["a"], c["after"]["b"]] += 1
    return +after


def test_rule_28_one_of_several_equal_rows_is_removed() -> None:
    live = Counter({(1, "x"): 3, (2, None): 1})
    after, deletes = apply(live, [change("d", row((1, "x")))])
    assert after == {(1, "x"): 2, (2, None): 1}
    assert deletes == 1


def test_rule_28_inserts_only_write_no_deletes() -> None:
    after, deletes = apply(Counter({(1, "x"): 1}), [change("c", row((1, "x"))), change("c", row((1, "x")))])
    assert after == {(1, "x"): 3}
    assert deletes == 0


def test_removing_a_row_that_is_not_there_does_nothing() -> None:
    after, deletes = apply(Counter(), [change("d", row((1, None))), change("c", row((1, None)))])
    assert after == {(1, None): 1}
    assert deletes == 0


def test_random_batches_count_like_a_multiset() -> None:
    generator = random.Random(3)
    values: list[Row] = [(1, "x"), (1, None), (None, "x"), (2, "y")]
    for _ in range(300):
        live = Counter({v: generator.randrange(4) for v in values})
        changes = []
        for _ in range(generator.randrange(12)):
            op = generator.choices("cudt", [5, 4, 5, 0.4])[0]
            old, new = row(generator.choice(values)), row(generator.choice(values))
            changes.append(change(op, old if op == "d" else new, before=old if op in "ud" else None))
        after, _ = apply(+live, changes)
        assert after == replay(live, changes), changes


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    columns = {"id": pa.int64(), "b": pa.string()}
    return Pipeline(tmp_path, columns, key=("id", "b"), options={"identity": "full"})


def test_rule_28_mirror_without_a_key_keeps_the_right_number_of_equal_rows(pipeline: Pipeline) -> None:
    one, two = {"id": 1, "b": "x"}, {"id": 2, "b": None}
    pipeline.run(*(change("c", one) for _ in range(3)), change("c", two))
    pipeline.run(change("d", one), change("u", one, before=two))
    assert pipeline.rows == [one, one, one]
    pipeline.run(change("d", one), change("d", one))
    assert pipeline.rows == [one]
    pipeline.run(change("t"), change("c", two))
    assert pipeline.rows == [two]
