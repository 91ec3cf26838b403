from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.errors import SchemaConflictError
from tests.pipelines.change_batches import Pipeline, change

COLUMNS = {"id": pa.int64(), "name": pa.string(), "note": pa.string()}


def row(key: int, name: str = "a", note: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": key, "name": name, "note": note, **more}


def kept(key: int, name: str = "a", note: str | None = None, *, deleted: bool = False) -> dict[str, Any]:
    return row(key, name, note, _deleted=deleted)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(tmp_path, COLUMNS, options={"soft_delete": True})
    pipeline.run(change("c", row(1, note="n")), change("c", row(2)))
    return pipeline


def test_deleted_row_stays_with_its_values_and_the_flag(pipeline: Pipeline) -> None:
    pipeline.run(change("d", row(1, note="n")))
    assert pipeline.rows == [kept(1, note="n", deleted=True), kept(2)]


def test_values_that_the_delete_does_not_tell_come_from_the_row(pipeline: Pipeline) -> None:
    pipeline.run(change("u", row(1, "B", "m")), change("d", key={"id": 1}), change("d", key={"id": 2}))
    assert pipeline.rows == [kept(1, "B", "m", deleted=True), kept(2, deleted=True)]


def test_reinserted_row_is_alive_again(pipeline: Pipeline) -> None:
    pipeline.run(change("d", key={"id": 1}))
    pipeline.run(change("c", row(1, "again")))
    assert pipeline.rows == [kept(1, "again"), kept(2)]


def test_delete_of_an_unknown_row_does_nothing(pipeline: Pipeline) -> None:
    pipeline.run(change("d", key={"id": 9}), change("u", row(2, "B")))
    assert pipeline.rows == [kept(1, note="n"), kept(2, "B")]
    assert pipeline.rejected == []


def test_truncate_flags_what_came_before_it(pipeline: Pipeline) -> None:
    pipeline.run(change("c", row(3)), change("t"), change("c", row(4)), change("u", row(2, "back")))
    assert pipeline.rows == [kept(1, note="n", deleted=True), kept(2, "back"), kept(3, deleted=True), kept(4)]


def test_source_column_of_the_same_name_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {"id": pa.int64(), "_deleted": pa.bool_()}, options={"soft_delete": True})
    with pytest.raises(SchemaConflictError, match="_deleted"):
        pipeline.run(change("c", {"id": 1, "_deleted": False}))


def test_delete_that_tells_only_its_key_keeps_the_values_of_all_columns(pipeline: Pipeline) -> None:
    pipeline.row_type = {"id": pa.int64()}
    pipeline.run(change("d", key={"id": 1}))
    assert pipeline.rows == [kept(1, note="n", deleted=True), kept(2)]


def test_delete_with_a_before_image_of_defaults_keeps_the_values(pipeline: Pipeline) -> None:
    pipeline.run(change("d", row(1, "", "")))
    assert pipeline.rows == [kept(1, note="n", deleted=True), kept(2)]


def test_delete_of_an_unknown_row_makes_none_whatever_it_tells(pipeline: Pipeline) -> None:
    pipeline.run(change("d", row(9, "x")))
    pipeline.row_type = {"id": pa.int64()}
    pipeline.run(change("d", key={"id": 8}))
    assert pipeline.rows == [kept(1, note="n"), kept(2)]
    assert pipeline.rejected == []


def test_table_of_nothing_but_its_key_has_no_row_for_an_unknown_one(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {"id": pa.int64()}, options={"soft_delete": True})
    pipeline.run(change("c", {"id": 1}))
    pipeline.run(change("d", {"id": 1}), change("d", {"id": 9}))
    assert pipeline.rows == [{"id": 1, "_deleted": True}]


def test_first_batch_of_deletes_makes_no_rows(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS, options={"soft_delete": True})
    pipeline.run(change("d", row(9)), change("c", row(1)), change("d", key={"id": 1}))
    assert pipeline.rows == [kept(1, deleted=True)]


def moved(old: int, new: dict[str, Any], **more: Any) -> Any:
    return change("u", new, key={"id": old}, **more)


def test_row_under_its_old_key_stays_flagged_with_its_values(pipeline: Pipeline) -> None:
    pipeline.run(moved(1, row(7, "moved")))
    assert pipeline.rows == [kept(1, note="n", deleted=True), kept(2), kept(7, "moved")]
    pipeline.run(change("u", row(7, "later")))
    assert pipeline.rows == [kept(1, note="n", deleted=True), kept(2), kept(7, "later")]


def test_columns_that_a_key_change_does_not_send_come_from_the_row_it_leaves(pipeline: Pipeline) -> None:
    pipeline.run(moved(1, row(7, "moved"), unchanged=["note"]), moved(7, row(8, "again"), unchanged=["note"]))
    assert pipeline.rows == [
        kept(1, note="n", deleted=True), kept(2), kept(7, "moved", "n", deleted=True), kept(8, "again", "n")
    ]  # fmt: skip


def test_keys_that_change_places_are_both_alive(pipeline: Pipeline) -> None:
    pipeline.run(moved(1, row(9, note="n")), moved(2, row(1)), moved(9, row(2, note="n")))
    assert pipeline.rows == [kept(1), kept(2, note="n"), kept(9, note="n", deleted=True)]


def test_a_key_change_of_an_unknown_row_flags_none(pipeline: Pipeline) -> None:
    pipeline.run(moved(5, row(6, "new")))
    assert pipeline.rows == [kept(1, note="n"), kept(2), kept(6, "new")]
    assert pipeline.rejected == []


def test_a_delete_of_the_old_key_after_its_change_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.run(
        change("u", row(1, "B", "m")), moved(1, row(7, "moved")), change("d", key={"id": 1}), change("d", key={"id": 7})
    )
    assert pipeline.rows == [kept(1, "B", "m", deleted=True), kept(2), kept(7, "moved", deleted=True)]
    assert pipeline.rejected == []


def test_an_old_key_that_is_inserted_anew_is_alive(pipeline: Pipeline) -> None:
    pipeline.run(moved(1, row(7, "moved")), change("c", row(1, "new")))
    assert pipeline.rows == [kept(1, "new"), kept(2), kept(7, "moved")]


@pytest.mark.each(2)
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    "gone",
    [change("d", key={"id": 1}), change("t"), moved(1, row(7, "moved"))],
    ids=["delete", "truncate", "key change"],
)
def test_nothing_of_a_flagged_row_survives(gone: Any, batches: int, pipeline: Pipeline) -> None:
    late = change("u", row(1, "B"), unchanged=["note"])
    for changes in ([gone, late],) if batches == 1 else ([gone], [late]):
        pipeline.run(*changes)
    assert pipeline.rows[0] == kept(1, note="n", deleted=True)
    assert [rejected.num_rows for rejected in pipeline.rejected] == [1]
    pipeline.run(moved(1, row(8, "late"), unchanged=["note"]))
    assert [row["id"] for row in pipeline.rows if row["id"] == 8] == []
    assert [rejected.num_rows for rejected in pipeline.rejected] == [1, 1]
    pipeline.run(change("u", row(1, "whole", "m")), change("u", row(1, "C"), unchanged=["note"]))
    assert pipeline.rows[0] == kept(1, "C", "m")
