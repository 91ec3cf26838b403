"""Rule 29: a mirror and its change log, and where each stands."""

from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.errors import CommitConflictError, PositionLostError
from nevermore.pipelines.iceberg.positions import LOG_ORDINAL, newest_property
from tests.pipelines.change_batches import Pipeline, batch_of, change
from tests.pipelines.iceberg_tables import catalog_in, rows_of
from tests.pipelines.mirrors.mirrored_rows import COLUMNS, row

# -- rule 29: positions ---------------------------------------------------------------------------------------------


def test_rule_29_mirror_catches_up_from_the_log_in_batches(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS, options={"commit_rows": 2})
    pipeline.log(change("c", row(1)), change("c", row(2)), change("u", row(1, "B")))
    pipeline.log(change("d", row(2)), change("c", row(3)))
    applied = pipeline.catch_up()
    assert [a.last_ordinal for a in applied] == [2, 4, 5]
    assert pipeline.rows == [row(1, "B"), row(3)]
    assert newest_property(pipeline.table, LOG_ORDINAL) == "5"
    assert pipeline.catch_up() == []


def test_rule_29_mirror_never_shows_a_part_of_what_was_appended_atomically(tmp_path: Path) -> None:
    log = ChangeLog(catalog_in(tmp_path), "change_log.shop_t")
    for number, size in enumerate((1, 3, 2, 1, 1)):
        changes = [change("c", row(10 * number + i)) for i in range(size)]
        log.append(batch_of(changes, COLUMNS), f"run {number}", is_atomic=number < 3)
    pipeline = Pipeline(tmp_path, COLUMNS, options={"commit_rows": 2})
    assert [a.last_ordinal for a in pipeline.catch_up()] == [1, 4, 6, 8]


def test_rule_29_changes_read_back_that_memory_does_not_take_are_one_commit_nevertheless(tmp_path: Path) -> None:
    text = "x" * 10_000
    changes = [
        *(change("c", row(i % 40, f"{text}{i}")) for i in range(200)),
        *(change("d", row(i)) for i in range(0, 40, 3)),
        change("u", row(77, text), before=row(1)),
    ]
    found = []
    for name, limit in (("small", "1MiB"), ("large", "1GiB")):
        (tmp_path / name).mkdir()
        pipeline = Pipeline(tmp_path / name, COLUMNS, options={"memory_limit_bytes": limit})
        for part in range(0, len(changes), 50):
            pipeline.log(*changes[part : part + 50])
        applied = pipeline.catch_up()
        found.append(pipeline.rows)
        assert sum(a.num_changes for a in applied) == len(changes)
        assert len(applied) == 1
    assert found[0] == found[1]


def test_rule_29_table_with_rows_and_no_position_is_an_error(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)))
    catalog = catalog_in(tmp_path)
    catalog.drop_table("shop.t")
    table = catalog.create_table("shop.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    with pytest.raises(PositionLostError, match=r"shop\.t"):
        pipeline.run(change("c", row(2)))


def test_rule_29_mirror_ahead_of_its_log_is_an_error(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)), change("c", row(2)))
    catalog_in(tmp_path).drop_table("change_log.shop_t")
    with pytest.raises(PositionLostError, match="re-made"):
        pipeline.run(change("c", row(3)))


def test_rule_29_log_that_another_ingester_has_made_meanwhile_is_not_appended_to(tmp_path: Path) -> None:
    late = ChangeLog(catalog_in(tmp_path), "change_log.shop_t")
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.log(change("c", row(1)))
    with pytest.raises(CommitConflictError, match="another ingester"):
        late.append(batch_of([change("c", row(1))], COLUMNS), "run 1")
    assert ChangeLog(catalog_in(tmp_path), "change_log.shop_t").last_ordinal == 1


def test_change_log_keeps_every_change_with_rising_ordinals(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, COLUMNS)
    pipeline.run(change("c", row(1)), change("u", row(1, "B")))
    pipeline.run(change("d", row(1)))
    table = catalog_in(tmp_path).load_table("change_log.shop_t")
    logged = rows_of(table, order="ordinal")
    assert [(r["ordinal"], r["op"]) for r in logged] == [(1, "c"), (2, "u"), (3, "d")]
    assert [r["after"] for r in logged] == [row(1), row(1, "B"), None]
    assert table.spec().fields[0].name == "ingested_at_hour"
    assert batch_of([], COLUMNS).num_rows == 0
