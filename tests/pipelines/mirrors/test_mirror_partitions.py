"""Rule 27: how far the deletes of a partitioned mirror reach."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipelines.change_batches import Pipeline, change
from tests.pipelines.mirrors.mirrored_rows import COLUMNS, row

DAYS = {**COLUMNS, "day": pa.date32()}


def day(number: int) -> dt.date:
    return dt.date(2026, 1, number)


def specs_of_deletes(pipeline: Pipeline) -> list[int]:
    manifests = pipeline.table.current_snapshot().manifests(pipeline.table.io)
    return sorted(m.partition_spec_id for m in manifests if m.content == 1)


# -- rule 27: partitioned tables ------------------------------------------------------------------------------------


def test_rule_27_partition_that_is_a_function_of_the_key_scopes_its_deletes(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS, options={"partition_by": ["bucket(4, id)"]})
    pipeline.run(*(change("c", row(i)) for i in range(20)))
    pipeline.run(*(change("u", row(i, "B")) for i in range(0, 20, 2)), change("d", row(3)))
    assert pipeline.rows == [row(i, "a" if i % 2 else "B") for i in range(20) if i != 3]
    assert specs_of_deletes(pipeline) == [0]


def test_rule_27_row_that_moves_between_partitions_leaves_no_copy(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, DAYS, options={"partition_by": ["day(day)"]})
    pipeline.run(change("c", row(1, day=day(1))), change("c", row(2, day=day(2))))
    pipeline.run(change("u", row(1, "moved", day=day(2)), before=row(1, day=day(1))), change("d", row(2, day=day(2))))
    assert pipeline.rows == [row(1, "moved", day=day(2))]
    assert specs_of_deletes(pipeline) == [0]


def test_rule_27_old_partition_is_looked_up_where_nothing_tells_it(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, DAYS, options={"partition_by": ["day(day)"]})
    pipeline.run(change("c", row(1, day=day(1))), change("c", row(2, day=None)), change("c", row(3, day=day(3))))
    (applied,) = pipeline.run(
        change("u", row(1, "moved", day=day(3))), change("u", row(2, "B", day=day(1))), change("d", key={"id": 3})
    )
    assert pipeline.rows == [row(1, "moved", day=day(3)), row(2, "B", day=day(1))]
    assert specs_of_deletes(pipeline) == [0]
    assert applied.delete_rows == 3


def test_rule_27_looking_up_is_left_out_where_it_would_cost_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_ROWS", 0)
    monkeypatch.setattr("nevermore.pipelines.mirrors.delete_scope.AFFORDABLE_RATIO", 0)
    pipeline = Pipeline(tmp_path, DAYS, options={"partition_by": ["day(day)"]})
    pipeline.run(change("c", row(1, day=day(1))), change("c", row(3, day=day(3))))
    pipeline.run(change("u", row(1, "moved", day=day(3))))
    assert pipeline.rows == [row(1, "moved", day=day(3)), row(3, day=day(3))]
    assert specs_of_deletes(pipeline) == [1]
    assert pipeline.table.spec().spec_id == 0


def test_rule_27_deletes_reach_rows_under_older_specs(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, DAYS, options={"partition_by": ["day(day)"]})
    pipeline.run(change("c", row(1, day=day(1))), change("c", row(2, day=day(2))))
    with pipeline.table.update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")
    pipeline.run(change("c", row(3, day=day(1))))
    pipeline.run(*(change("u", row(i, "B", day=day(i)), before=row(i, day=day(i))) for i in (1, 2)))
    pipeline.run(change("d", key={"id": 1}), change("u", row(3, "C", day=day(3))))
    assert pipeline.rows == [row(2, "B", day=day(2)), row(3, "C", day=day(3))]


def test_rule_27_rows_in_unpartitioned_files_need_global_deletes(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, DAYS)
    pipeline.run(change("c", row(1, day=day(1))), change("c", row(2, day=day(2))))
    with pipeline.table.update_spec() as update:
        update.add_field("day", "day", "day_day")
    pipeline.run(change("d", row(1, day=day(1))))
    assert pipeline.rows == [row(2, day=day(2))]
    assert specs_of_deletes(pipeline) == [0]
