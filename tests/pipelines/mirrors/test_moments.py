"""Mirrors as of a time whose snapshot has expired: the change log has the rows."""

import gc
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.checks.equality import difference_of_base
from nevermore.checks.reference.expected_rows import fold_changes
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import Config, change_log_name, load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import AdoptedRowsError, SourceError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.project import Project as Opened
from nevermore.pipelines.ingest.project import open_project
from nevermore.pipelines.maintain.log_base import trim_logs
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.scan_core import SnapshotNotFoundError
from nevermore.scan_core.io import spill_folder
from tests.pipelines.maintain.test_adoption import adopted, project_with_table
from tests.pipelines.project import Project, event, product

NAME = "shop.products"
NOT_SENT = "__debezium_unavailable_value"
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "spilled": {"memory_limit_bytes": 1024**2, "commit_rows": 5},
    "partitioned": {"partition_by": ["bucket(3, id)"]},
    "vectors": {"deletes": "vectors", "format_version": 3},
    "soft": {"soft_delete": True, "commit_rows": 7},
    "whole rows": {"identity": "full", "key": []},
}


def expire(config: Config) -> None:
    least = RetentionConfig(keep_snapshots=1, keep_for=0.001)
    assert not [one.error for one in expire_all(open_catalog(config), config, overrides=least) if one.error]


def events_at_random(draw: random.Random, live: dict[int, Any], *, has_key: bool) -> list[str]:
    """Changes of few rows as a database sends them: new keys, values that are not sent, deletes, truncates."""
    found = []
    for number in range(draw.randrange(1, 12)):
        key, kind = draw.randrange(6), draw.random()
        row = {"id": key, "name": f"n{number}", "text": f"t{draw.randrange(99)}"}
        if kind < 0.04:
            live.clear()
            found.append(event("t"))
        elif key not in live:
            live[key] = row
            found.append(event("c", row))
        elif kind < 0.25:
            found.append(event("d", live.pop(key)))
        else:
            old = live.pop(key)
            new = draw.choice([k for k in range(6) if k not in live]) if kind < 0.5 else key
            live[new] = {**row, "id": new, "text": old["text"] if kind > 0.8 else row["text"]}
            sent = {**live[new], "text": NOT_SENT} if has_key and kind > 0.8 else live[new]
            found.append(event("u", sent, before=old))
    return found


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=str)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_rows_of_each_time_are_what_the_snapshot_showed_before_it_expired(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    draw = random.Random(str(options))
    project, has_key = Project(tmp_path, {NAME: {"key": ["id"], **options}}), "identity" not in options
    config = load(tmp_path / "nevermore.yaml")
    live: dict[int, Any] = {}
    seen = []
    for number in range(12):
        project.land(
            f"{number:03}.jsonl",
            [event("c", {"id": 9, "name": "", "text": ""})]
            if not number
            else events_at_random(draw, live, has_key=has_key),
        )
        project.run()
        seen.append(
            (
                datetime.now(UTC),
                ChangeLog(open_catalog(config), change_log_name(NAME)).last_ordinal,
                in_order(Opened(config).scan(NAME).to_table()),
            )
        )
    assert len({str(rows) for _, _, rows in seen}) > 8
    before = [in_order(Opened(config).as_of(time, [NAME])[NAME].to_table()) for time, _, _ in seen]
    expire(config)
    log = ChangeLog(open_catalog(config), change_log_name(NAME))
    for (time, ordinal, rows), of_snapshot in zip(seen, before, strict=True):
        found = in_order(Opened(config).as_of(time, [NAME])[NAME].to_table())
        assert found == rows == of_snapshot
        if has_key and not options.get("soft_delete"):
            logged = log.scan().where(f"ordinal <= {ordinal}").to_table().sort_by("ordinal")
            assert found == in_order(fold_changes(logged, ["id"]).rows)
    with pytest.raises(SnapshotNotFoundError):
        Opened(config).as_of("2020-01-01", [NAME])[NAME].count()


def test_rows_of_a_time_are_in_files_of_the_process_and_go_with_their_scan(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    paths = {f"write.{what}.path": f"file://{place}/{what}" for what in ("data", "metadata")}
    project = Project(tmp_path, {NAME: {"key": ["id"], "inserts": "trusted", "properties": paths}})
    config, seen = load(tmp_path / "nevermore.yaml"), []
    for number, key in enumerate([1, 2, 4, 3]):
        project.land(f"{number}.jsonl", [event("c", {"id": key, "name": f"n{number}"})])
        project.run()
        seen.append((datetime.now(UTC), in_order(Opened(config).scan(NAME).to_table())))
    assert [len(rows) for _, rows in seen] == [1, 2, 3, 4]
    expire(config)
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    for time, rows in seen:
        scan = Opened(config).as_of(time, [NAME])[NAME]
        batches = scan.to_batches()
        del scan
        gc.collect()
        assert in_order(pa.Table.from_batches(batches)) == rows
        del batches
    gc.collect()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files
    assert [name for name in spill_folder().names() if name != "lock"] == []


def test_the_command_line_and_duckdb_show_rows_without_a_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path)
    project.land("1.jsonl", [event("c", product(key)) for key in range(5)])
    project.run()
    first = datetime.now(UTC)
    project.land("2.jsonl", [event("t")])
    project.run()
    second = datetime.now(UTC)
    project.land("3.jsonl", [event("c", product(8))])
    project.run()
    expire(load(tmp_path / "nevermore.yaml"))
    query = "select count(*), count(name) from products"
    for time, count in ((first, 5), (second, 0)):
        with pytest.raises(SystemExit, match="0"):
            main(
                [
                    "sql",
                    query,
                    "--as-of",
                    time.isoformat(),
                    "--format",
                    "csv",
                    "--config",
                    str(tmp_path / "nevermore.yaml"),
                ]
            )
        assert f"{count},{count}" in capsys.readouterr().out
        found = open_project(tmp_path).duckdb([NAME], as_of=time).sql("select count(*) from products")
        assert found.fetchall() == [(count,)]


def test_a_time_before_the_base_of_a_log_is_an_error_and_one_after_it_is_not(tmp_path: Path) -> None:
    project, times = Project(tmp_path), []
    config = load(tmp_path / "nevermore.yaml")
    for number in range(6):
        rows = [event("c", product(1, f"n{number}")), event("c", product(number))]
        project.land(f"{number}.jsonl", [*rows, event("d", product(0))] if number == 3 else rows)
        project.run()
        times.append(datetime.now(UTC))
        if number == 3:
            expire(config)
            (done,) = trim_logs(open_catalog(config), config, difference_of_base, keep_seconds=0.0)
            assert done.ordinal == 9
    expire(config)
    for time in times[:3]:
        with pytest.raises(SourceError, match="only the last change of each key of that time: ask for a later one"):
            Opened(config).as_of(time, [NAME])
    assert [Opened(config).as_of(time, [NAME])[NAME].count() for time in times[3:]] == [3, 4, 5]


def test_rows_that_a_mirror_was_adopted_with_are_not_left_out(tmp_path: Path) -> None:
    project = project_with_table(tmp_path)
    adopted(project)
    times = []
    for name, lines in (
        ("1", [event("u", {"id": 1, "name": "a"})]),
        ("2", [event("t")]),
        ("3", [event("c", product(7))]),
    ):
        project.land(f"{name}.jsonl", lines)
        project.run()
        times.append(datetime.now(UTC))
    config = load(tmp_path / "nevermore.yaml")
    expire(config)
    with pytest.raises(AdoptedRowsError, match="was adopted with rows that change_log"):
        Opened(config).as_of(times[0], [NAME])
    assert [Opened(config).as_of(time, [NAME])[NAME].count() for time in times[1:]] == [0, 1]
