import datetime as dt
import random
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore.checks.comparison import compare
from nevermore.checks.reference.expected_rows import fold_changes, fold_log, live_rows
from nevermore.pipelines.mirrors.multiset import recount, steps
from tests.pipelines.change_batches import Change, Pipeline, batch_of, change
from tests.pipelines.iceberg_tables import catalog_in

COLUMNS = {"a": pa.int64(), "b": pa.string()}
Row = tuple[int | None, str | None]


def row(values: Row) -> dict[str, Any]:
    return dict(zip(COLUMNS, values, strict=True))


def agree(row: Row, other: Row, carried: Sequence[str]) -> bool:
    return all(a == b for name, a, b in zip(COLUMNS, row, other, strict=True) if name in carried)


def apply(live: Counter[Row], changes: list[Change]) -> tuple[Counter[Row], int, int]:
    """The rows after a batch as `recount` has it, how many distinct rows it deletes, how many removals found none."""
    batch = batch_of(changes, COLUMNS, ("a", "b"))

    def find_live(rows: pa.Table) -> pa.Table:
        asked = (
            [tuple(r.get(name) for name in COLUMNS) for r in rows.to_pylist()] if rows.num_columns else [(None, None)]
        )
        found = [r for r in live.elements() if any(agree(r, other, rows.column_names) for other in asked)]
        return pa.Table.from_pylist([row(r) for r in found], pa.schema(list(COLUMNS.items())))

    counted = recount(steps(batch.table, ("a", "b")), find_live)
    after = Counter[Row]() if counted.truncated else live.copy()
    for gone in counted.deletes.to_pylist():
        del after[gone["a"], gone["b"]]
    after.update((r["a"], r["b"]) for r in counted.upserts.to_pylist())
    return +after, counted.deletes.num_rows, counted.num_missed


def removed(live: Counter[Row], old: dict[str, Any], lacking: Sequence[str]) -> Row | None:
    """The row that an old row removes: of those that agree in what it has, the first by column, NULL before all."""
    wanted = (old["a"], old["b"])
    carried = [name for name in COLUMNS if name not in lacking]
    found = [r for r, count in live.items() if count > 0 and agree(r, wanted, carried)]
    return min(found, key=lambda r: [(value is not None, str(value)) for value in r], default=None)


def replay(live: Counter[Row], changes: list[Change]) -> tuple[Counter[Row], int]:
    after, missed = live.copy(), 0
    for c in changes:
        if c["op"] == "t":
            after.clear()
            missed = 0
        if c["op"] in "ud":
            gone = removed(after, c["before"], c["unchanged"] or [])
            if gone is None:
                missed += 1
            else:
                after[gone] -= 1
        if c["op"] in "rcu":
            after[c["after"]["a"], c["after"]["b"]] += 1
    return +after, missed


def test_rule_28_one_of_several_equal_rows_is_removed() -> None:
    live = Counter({(1, "x"): 3, (2, None): 1})
    after, deletes, _ = apply(live, [change("d", row((1, "x")))])
    assert after == {(1, "x"): 2, (2, None): 1}
    assert deletes == 1


def test_rule_28_inserts_only_write_no_deletes() -> None:
    after, deletes, _ = apply(Counter({(1, "x"): 1}), [change("c", row((1, "x"))), change("c", row((1, "x")))])
    assert after == {(1, "x"): 3}
    assert deletes == 0


def test_removing_a_row_that_is_not_there_does_nothing() -> None:
    after, deletes, missed = apply(Counter(), [change("d", row((1, None))), change("c", row((1, None)))])
    assert after == {(1, None): 1}
    assert (deletes, missed) == (0, 1)


VALUES: list[Row] = [(1, "x"), (1, None), (None, "x"), (2, "y"), (1, "y")]


def random_changes(generator: random.Random, lacking: Sequence[Sequence[str]] = ((),)) -> list[Change]:
    """Changes whose old rows lack some columns, and whose truncates are rare."""
    changes = []
    for _ in range(generator.randrange(12)):
        op = generator.choices("cudt", [5, 4, 5, 0.4])[0]
        old, new = row(generator.choice(VALUES)), row(generator.choice(VALUES))
        lacks = list(generator.choice(lacking)) if op in "ud" else []
        old |= dict.fromkeys(lacks)
        changes.append(change(op, old if op == "d" else new, before=old if op in "ud" else None, unchanged=lacks))
    return changes


@pytest.mark.parametrize(
    ("count", "lacking"),
    [
        (12, ((), ("a",), ("b",), ("b",))),
        pytest.param(200, ((),), marks=pytest.mark.slow),
        pytest.param(200, ((), ("b",)), marks=pytest.mark.slow),
        pytest.param(200, ((), ("a",), ("b",), ("b",)), marks=pytest.mark.slow),
        pytest.param(200, (("a", "b"), ("b",), ()), marks=pytest.mark.slow),
    ],
)
def test_random_batches_count_like_a_multiset(count: int, lacking: Sequence[Sequence[str]]) -> None:
    generator = random.Random(3)
    for _ in range(count):
        live = Counter({v: generator.randrange(4) for v in VALUES})
        changes = random_changes(generator, lacking)
        after, _, missed = apply(+live, changes)
        assert (after, missed) == replay(live, changes), changes
        folded = fold_changes(logged(live, changes), ())
        assert Counter((r["a"], r["b"]) for r in folded.rows.to_pylist()) == after, changes
        assert folded.num_missed == missed, changes


def logged(live: Counter[Row], changes: list[Change]) -> pa.Table:
    """A log of the rows and then of the changes."""
    batch = batch_of([*(change("c", row(r)) for r in live.elements()), *changes], COLUMNS, ("a", "b")).table
    return batch.append_column("ordinal", pa.array(np.arange(1, batch.num_rows + 1)))


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


def test_rows_are_matched_by_the_columns_that_the_old_row_has(pipeline: Pipeline) -> None:
    rows = [{"id": 1, "b": "x"}, {"id": 1, "b": None}, {"id": 1, "b": "a"}, {"id": 2, "b": "y"}]
    pipeline.run(*(change("c", r) for r in rows))
    (applied,) = pipeline.run(
        *(change("d", {"id": 1, "b": None}, unchanged=["b"]) for _ in range(2)),
        change("u", {"id": 3, "b": None}, before={"id": 2, "b": None}, unchanged=["b"]),
        change("d", {"id": 9, "b": None}, unchanged=["b"]),
        change("d", {"id": 1, "b": None}),
    )
    assert pipeline.rows == [rows[0], {"id": 3, "b": None}]
    assert applied.num_missed == 2


@pytest.mark.slow
@pytest.mark.parametrize(("memory_limit", "num_ids", "num_changes"), [("1GiB", 6, 120), ("1MiB", 500, 4_000)])
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_of_rows_that_lack_columns_are_those_of_the_log(
    seed: int, memory_limit: str, num_ids: int, num_changes: int, tmp_path: Path
) -> None:
    columns = {"id": pa.int64(), "b": pa.string(), "c": pa.date32(), "d": pa.decimal128(9, 2)}
    options = {"identity": "full", "memory_limit_bytes": memory_limit}
    pipeline = Pipeline(tmp_path, columns, key=tuple(columns), options=options)
    generator = random.Random(seed)

    def any_row() -> dict[str, Any]:
        return {
            "id": generator.randrange(num_ids),
            "b": generator.choice([None, "", "x", "é"]),
            "c": generator.choice([None, dt.date(1969, 1, 1), dt.date(2026, 1, 1)]),
            "d": generator.choice([None, Decimal("-1.50"), Decimal("2.00")]),
        }

    missed = 0
    for number in range(8):
        # Columns are dropped as time goes by; each source has rows of all times.
        dropped = [list(columns)[1 + i] for i in range(3) if number > 2 * i + 1 and generator.random() < 0.8]
        changes = []
        for _ in range(generator.randrange(num_changes // 4, num_changes)):
            op = generator.choices("cudt", [6, 3, 5, 4 / num_changes])[0]
            old, new = any_row(), any_row() | dict.fromkeys(dropped)
            old |= dict.fromkeys(dropped)
            changes.append(
                change(
                    op,
                    old if op == "d" else new,
                    before=old if op in "ud" else None,
                    unchanged=dropped if op in "ud" else [],
                )
            )
        (applied,) = pipeline.run(*changes)
        missed = applied.num_missed + (0 if any(c["op"] == "t" for c in changes) else missed)
        log = catalog_in(tmp_path).load_table("change_log.shop_t")
        folded = fold_log(log.metadata_location.removeprefix("file://"), ())
        found = live_rows(pipeline.table.metadata_location.removeprefix("file://"))
        assert not compare(found, folded.rows).num_left_only
        assert compare(found, folded.rows).equal
        assert folded.num_missed == missed
