""""""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.errors import ConfigError, QuarantineLimitError, SchemaConflictError
from tests.pipelines.change_batches import Pipeline, change
from tests.pipelines.mirrors.mirrored_rows import COLUMNS, row


def test_inserts_updates_and_deletes_lead_to_the_last_state(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)), change("c", row(2)), change("c", row(3)))
    (applied,) = pipeline.run(change("u", row(2, "B")), change("d", row(1)), change("c", row(4)), change("d", row(4)))
    assert pipeline.rows == [row(2, "B"), row(3)]
    assert applied.committed.operation == "overwrite"
    assert applied.delete_rows == 2
    assert applied.num_changes == 4


def test_rule_01_key_deleted_and_inserted_in_one_batch_stays(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)))
    pipeline.run(change("d", row(1)), change("c", row(1, "again")))
    assert pipeline.rows == [row(1, "again")]


def test_rule_26_first_batch_and_keys_beyond_all_files_write_no_deletes(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    (first,) = pipeline.run(change("r", row(1)), change("c", row(5)))
    (second,) = pipeline.run(change("c", row(6)), change("c", row(9)))
    assert (first.delete_rows, second.delete_rows) == (0, 0)
    assert second.committed.operation == "append"


def test_rule_26_checked_insert_of_a_live_key_replaces_the_row(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)), change("c", row(5)))
    (applied,) = pipeline.run(change("c", row(5, "again")), change("c", row(3)))
    assert applied.delete_rows == 2
    assert pipeline.rows == [row(1), row(3), row(5, "again")]


def test_rule_26_trusted_inserts_write_no_deletes_but_updates_do(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS, options={"inserts": "trusted"})
    pipeline.run(change("c", row(1)), change("c", row(5)))
    (applied,) = pipeline.run(change("c", row(3)), change("u", row(5, "B")))
    assert applied.delete_rows == 1
    assert pipeline.rows == [row(1), row(3), row(5, "B")]


def test_rule_28_key_change_moves_the_row(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)), change("c", row(2)))
    pipeline.run(change("u", row(7, "moved"), before=row(1)))
    assert pipeline.rows == [row(2), row(7, "moved")]


def test_rule_28_truncate_removes_only_what_came_before_in_one_snapshot(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)), change("c", row(2)))
    before = len(pipeline.table.metadata.snapshots)
    pipeline.run(change("c", row(3)), change("t"), change("c", row(4)))
    assert pipeline.rows == [row(4)]
    assert len(pipeline.table.metadata.snapshots) == before + 1
    (applied,) = pipeline.run(change("t"))
    assert pipeline.rows == []
    assert applied.committed.operation == "delete"


def test_rule_09_null_in_a_multi_column_key_is_a_value(tmp_path: Path) -> None:
    columns = {"id": pa.int64(), "part": pa.string(), "v": pa.int32()}
    pipeline = Pipeline(tmp_path, columns, key=("id", "part"))
    rows = [{"id": 1, "part": p, "v": 0} for p in (None, "x")]
    pipeline.run(*(change("c", r) for r in rows))
    pipeline.run(change("u", {"id": 1, "part": None, "v": 5}))
    assert sorted(pipeline.rows, key=str) == sorted([rows[1], {"id": 1, "part": None, "v": 5}], key=str)
    pipeline.run(change("d", {"id": 1, "part": None, "v": 5}))
    assert pipeline.rows == [rows[1]]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.list_(pa.int32())])
def test_rule_25_illegal_key_is_refused_before_anything_is_written(tmp_path: Path, kind: pa.DataType) -> None:
    pipeline = Pipeline(tmp_path, {"id": kind}, key=("id",))
    value: Any = [1] if pa.types.is_list(kind) else 1.0
    with pytest.raises(SchemaConflictError, match="key"):
        pipeline.run(change("c", {"id": value}))


def test_rule_28_table_without_key_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.log(change("c", row(1)))
    pipeline.key = ()
    with pytest.raises(SchemaConflictError, match="identity: full"):
        pipeline.catch_up()


# -- rule 26: columns that were not sent ------------------------------------------------------------------------------


def test_rule_26_unsent_column_is_taken_from_the_table(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()})
    pipeline.run(change("c", row(1, big="kept")), change("c", row(2, big="other")))
    pipeline.run(change("u", row(1, "B", big=None), unchanged=["big"]), change("u", row(2, "C", big="new")))
    assert pipeline.rows == [row(1, "B", big="kept"), row(2, "C", big="new")]


def test_rule_26_unsent_column_follows_a_key_change(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()})
    pipeline.run(change("c", row(1, big="kept")))
    pipeline.run(
        change("u", row(7, "B", big=None), before=row(1), unchanged=["big"]),
        change("u", row(7, "C", big=None), unchanged=["big"]),
    )
    assert pipeline.rows == [row(7, "C", big="kept")]


def test_rule_26_unsent_column_of_an_unknown_row_is_rejected_and_the_rest_goes_on(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()})
    pipeline.run(change("c", row(1, big="kept")))
    pipeline.run(change("u", row(9, "B", big=None), unchanged=["big"]), change("u", row(1, "C", big="x")))
    assert pipeline.rows == [row(1, "C", big="x")]
    (rejected,) = pipeline.rejected
    assert rejected.table.column("source_offset").to_pylist() == [1]
    assert "big" in rejected.table.column("reason")[0].as_py()


@pytest.mark.parametrize(("ratio", "num_refused"), [(0.5, 11), (0.0, 1)])
def test_too_many_changes_that_cannot_be_applied_stop_the_batch(ratio: float, num_refused: int, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()}, options={"max_quarantine_ratio": ratio})
    pipeline.run(change("c", row(1, big="kept")))
    refused = [change("u", row(100 + i, "B", big=None), unchanged=["big"]) for i in range(num_refused)]
    with pytest.raises(QuarantineLimitError, match=f"{num_refused} of {num_refused + 1} events.*max_quarantine_ratio"):
        pipeline.run(change("u", row(1, "C", big="x")), *refused)
    assert pipeline.rows == [row(1, big="kept")]
    assert pipeline.rejected == []
    pipeline.options = {"max_quarantine_ratio": 1.0}
    pipeline.catch_up()
    assert pipeline.rows == [row(1, "C", big="x")]


def test_rule_26_refused_key_change_leaves_the_row_of_its_new_key(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()})
    pipeline.run(change("c", row(2, big="live")))
    pipeline.run(change("u", row(2, "B", big=None), before=row(1), unchanged=["big"]))
    assert pipeline.rows == [row(2, big="live")]
    assert sum(r.num_rows for r in pipeline.rejected) == 1


def test_rule_26_what_builds_on_a_refused_change_is_refused_too(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()})
    pipeline.run(change("c", row(2, big="live")))
    pipeline.run(
        change("u", row(9, "B", big=None), unchanged=["big"]),
        change("u", row(9, "C", big=None), unchanged=["big"]),
        change("u", row(7, "D", big=None), before=row(9), unchanged=["big"]),
        change("u", row(2, "E", big=None), unchanged=["big"]),
    )
    assert pipeline.rows == [row(2, "E", big="live")]
    (rejected,) = pipeline.rejected
    assert rejected.table.column("source_offset").to_pylist() == [1, 2, 3]


def test_rule_26_row_that_a_refused_change_would_have_moved_to_gives_its_columns(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {**COLUMNS, "big": pa.string()})
    pipeline.run(change("c", row(2, big="live")))
    pipeline.run(
        change("u", row(2, "B", big=None), before=row(1), unchanged=["big"]),
        change("u", row(2, "C", big=None), unchanged=["big"]),
    )
    assert pipeline.rows == [row(2, "C", big="live")]
    (rejected,) = pipeline.rejected
    assert rejected.table.column("source_offset").to_pylist() == [1]


# -- schema changes -------------------------------------------------------------------------------------------------


def test_new_wider_and_dropped_columns_come_with_the_rows(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {"id": pa.int32(), "name": pa.string()})
    pipeline.run(change("c", row(1)), change("c", row(2)))
    pipeline.row_type = {"id": pa.int64(), "note": pa.string()}
    before = len(pipeline.table.metadata.snapshots)
    pipeline.run(change("u", {"id": 2, "note": "n"}), change("c", {"id": 2**40, "note": None}))
    assert len(pipeline.table.metadata.snapshots) == before + 1
    assert pipeline.rows == [
        row(1, note=None),
        {"id": 2, "name": None, "note": "n"},
        {"id": 2**40, "name": None, "note": None},
    ]


def test_column_without_values_is_added_with_its_first_value(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {"id": pa.int64(), "note": pa.null()})
    pipeline.run(change("c", {"id": 1, "note": None}))
    assert pipeline.rows == [{"id": 1}]
    pipeline.row_type = {"id": pa.int64(), "note": pa.string()}
    pipeline.run(change("u", {"id": 1, "note": "x"}))
    assert pipeline.rows == [{"id": 1, "note": "x"}]


def test_type_clash_stops_the_table_with_its_column(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)))
    pipeline.row_type = {"id": pa.int64(), "name": pa.int64()}
    with pytest.raises(SchemaConflictError, match=r"'after\.name'"):
        pipeline.run(change("c", {"id": 2, "name": 5}))


@pytest.mark.parametrize("bloom_filters", [False, True])
def test_data_files_are_sorted_and_bloom_filtered_as_config_asks(tmp_path: Path, *, bloom_filters: bool) -> None:
    options = {"sort_by": ["name", "id"], "bloom_filters": bloom_filters}
    pipeline = Pipeline(tmp_path, COLUMNS, options=options)
    pipeline.run(*(change("c", row(i, f"n{i % 3}")) for i in (5, 1, 4, 2, 3, 0)))
    (applied,) = pipeline.run(change("u", row(2, "z")), change("d", row(0)))
    first = pipeline.table.inspect.data_files().to_pylist()[-1]["file_path"].removeprefix("file://")
    assert [(r["name"], r["id"]) for r in pq.read_table(first).to_pylist()] == [
        ("n0", 0), ("n0", 3), ("n1", 1), ("n1", 4), ("n2", 2), ("n2", 5)
    ]  # fmt: skip
    for file in applied.files:
        chunk = pq.read_metadata(file.path.removeprefix("file://")).row_group(0).column(0)
        assert (chunk.bloom_filter_offset is not None) == bloom_filters
    assert [r["id"] for r in pipeline.rows] == [1, 2, 3, 4, 5]


def test_sorting_by_an_unknown_column_stops_the_table(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS, options={"sort_by": ["nothing"]})
    with pytest.raises(ConfigError, match="sort_by: nothing is not a plain column of the table"):
        pipeline.run(change("c", row(1)))
