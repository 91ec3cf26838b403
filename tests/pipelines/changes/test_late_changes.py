"""`order_by` across batches and runs: what comes late takes its place, and ends as if everything had come in order."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.pipelines.changes import change_log
from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest import table_ingest
from nevermore.pipelines.ingest.report import TableReport
from nevermore.scan_core.io.private_files import spill_folder
from tests.pipelines.project import Project

Event = dict[str, Any]
UNSENT = "__debezium_unavailable_value"


def event(lsn: int, op: str, row: Event | None, before: Event | None = None) -> str:
    after, old = (None, row) if op == "d" else (row, before)
    source = {"db": "shop", "table": "products", "lsn": lsn}
    return json.dumps({"op": op, "before": old, "after": after, "source": source, "ts_ms": 1})


def product(key: int, name: str = "a", text: str = "t") -> Event:
    return {"id": key, "name": name, "text": text}


def project_in(folder: Path, **settings: Any) -> Project:
    return Project(folder, {"shop.products": {"key": ["id"], "order_by": ["source.lsn"], **settings}})


def land_and_run(project: Project, *files: list[str]) -> TableReport:
    """Each file in a run of its own; the last report."""
    for lines in files:
        project.land(f"{len(list(project.landing.iterdir())):03d}.jsonl", lines)
        (report,) = project.run().tables
        assert report.error is None
    return report


def test_rule_26_late_update_does_not_overwrite_a_newer_row(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    report = land_and_run(
        project,
        [event(1, "c", product(1)), event(2, "c", product(2)), event(9, "u", product(1, "newest"))],
        [event(5, "u", product(1, "late")), event(6, "u", product(2, "in time for its key"))],
    )
    assert report.events == {"u": 2}
    assert project.rows() == [product(1, "newest"), product(2, "in time for its key")]
    assert project.run().found_nothing_new


def test_rule_26_late_insert_does_not_bring_a_deleted_row_back(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(project, [event(3, "c", product(2)), event(4, "d", product(1))], [event(1, "c", product(1))])
    assert project.rows() == [product(2)]


def test_rule_26_late_delete_leaves_the_row_that_came_after_it(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(project, [event(1, "c", product(1)), event(8, "c", product(1, "again"))], [event(5, "d", product(1))])
    assert project.rows() == [product(1, "again")]


def test_rule_26_column_that_a_later_change_did_not_send_is_that_of_the_late_one(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(
        project,
        [event(1, "c", product(1, "a", "old")), event(9, "u", product(1, "newest", UNSENT))],
        [event(5, "u", product(1, "late", "text of the late one"))],
    )
    assert project.rows() == [product(1, "newest", "text of the late one")]


@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (event(3, "u", product(1, "x", "found later")), [product(1, "newest", "found later")]),
        (event(3, "d", product(1)), []),
        (event(3, "t", None), []),
    ],
)
def test_rule_26_column_taken_from_the_log_is_taken_again_when_an_earlier_change_comes_still_later(
    last: str, wanted: list[Event], tmp_path: Path
) -> None:
    project = project_in(tmp_path, max_quarantine_ratio=1.0)
    first = [event(1, "c", product(1, "a", "old")), event(9, "u", product(1, "newest", UNSENT))]
    land_and_run(project, first, [event(5, "u", product(1, "late", UNSENT))])
    assert project.rows() == [product(1, "newest", "old")]
    land_and_run(project, [last])
    assert project.rows() == wanted
    config = load(project.folder / "nevermore.yaml")
    name = "shop.products"
    failed = {found.name for found in run_checks(config, name, checks_of(config, name)) if not found.passed}
    assert failed <= {"no_key_is_stale", "quarantine_is_small"}  # a change of a row that turns out to be gone


def test_rule_26_event_with_several_changes_of_a_key_stays_whole_however_many_late_ones_come(tmp_path: Path) -> None:
    project = project_in(
        tmp_path, order_by=["es"], source={"type": "files", "path": "landing/*.jsonl", "format": "canal-json"}
    )

    def canal(es: int, kind: str, *names: str) -> str:
        rows = [{"id": "1", "name": name} for name in names]
        head = {
            "database": "shop",
            "table": "products",
            "isDdl": False,
            "pkNames": ["id"],
            "old": [{"name": ""}] * len(rows),
        }
        types = {"id": "int", "name": "varchar(9)"}
        return json.dumps(head | {"type": kind, "es": es, "ts": es, "mysqlType": types, "data": rows})

    late = [canal(es, "UPDATE", f"late {es}") for es in (5000, 3000, 7000, 2000)]
    land_and_run(project, [canal(1000, "INSERT", "a")], [canal(9000, "UPDATE", "b", "c", "b", "c")])
    for number, one in enumerate(late):
        project.land(f"late{number}.jsonl", [one])
        project.run()
        assert project.rows() == [{"id": 1, "name": "c"}]


def test_rule_28_late_changes_follow_later_key_changes(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(
        project,
        [
            event(1, "c", product(1)),
            event(7, "u", product(2, "moved", UNSENT), before={"id": 1}),
            event(9, "u", product(3, "moved twice", UNSENT), before={"id": 2}),
        ],
        [event(5, "u", product(1, "late", "late text"))],
    )
    assert project.rows() == [product(3, "moved twice", "late text")]


def test_rule_28_change_older_than_a_truncate_leads_to_nothing(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    truncate = event(6, "t", None)
    report = land_and_run(project, [truncate, event(7, "c", product(2))], [event(5, "c", product(1))])
    assert (report.superseded, report.events) == (1, {"c": 1})
    assert project.rows() == [product(2)]


def test_rule_28_late_truncate_removes_only_what_is_older(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(project, [event(1, "c", product(1)), event(8, "c", product(2))], [event(5, "t", None)])
    assert project.rows() == [product(2)]


def test_rule_28_late_truncate_holds_only_a_part_of_what_the_log_has_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_in(tmp_path)
    later = [event(100 + n, "c", product(n, text="long " * 100)) for n in range(400)]
    land_and_run(project, [event(1, "c", product(1)), event(2, "c", product(999))], later)
    monkeypatch.setattr(change_log, "FIRST_ROWS", 10)
    config = load(project.folder / "nevermore.yaml")
    log = ChangeLog(open_catalog(config), "change_log.shop_products")
    parts = list(change_log.read_by_place(log.table, "", 50_000))
    assert sum(rows.num_rows for rows, _ in parts) == 402
    assert max(rows.nbytes for rows, _ in parts) < 100_000
    monkeypatch.setattr(table_ingest, "BATCH_SHARE", 1024**3 // 50_000)
    late = [event(50, "t", None), event(150, "u", product(7, "late")), event(300, "u", product(60, "late"))]
    land_and_run(project, late)
    rows = {row["id"]: row["name"] for row in project.rows()}
    assert len(rows) == 400
    assert [key for key, name in rows.items() if name == "late"] == [7, 60]


def test_changes_spilled_in_their_order_are_removed_when_the_commit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise PipelineError("no")

    project = project_in(tmp_path)
    land_and_run(project, [event(5, "c", product(1))])
    folder = spill_folder().path  # other tests run beside this one
    before = set(folder.iterdir())
    monkeypatch.setattr(table_ingest, "BATCH_SHARE", 2**60)
    monkeypatch.setattr(ChangeLog, "append", fail)
    project.land("2.jsonl", [event(3, "u", product(1)), event(7, "u", product(1))])
    assert project.run().exit_code == 1
    assert set(folder.iterdir()) <= before


def test_new_column_of_a_late_change_is_added(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(
        project,
        [event(9, "c", product(1)), event(9, "c", product(2))],
        [event(5, "c", product(1) | {"extra": 1}), event(6, "c", product(3) | {"extra": 3})],
    )
    assert project.rows() == [product(i) | {"extra": 3 if i == 3 else None} for i in (1, 2, 3)]


def test_log_holds_each_change_once_more_at_most_per_late_one(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(project, [event(9, "c", product(1))], *([event(n, "u", product(1, str(n)))] for n in (5, 4, 3, 2)))
    lsns = [int(r["source_order"][1:], 16) % 16 for r in project.rows("change_log.shop_products", "ordinal")]
    assert lsns == [9, 5, 9, 4, 5, 9, 3, 4, 5, 9, 2, 3, 4, 5, 9]
    assert project.rows() == [product(1)]


def test_other_columns_than_before_are_refused(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    land_and_run(project, [event(9, "c", product(1))])
    project.write({"shop.products": {"key": ["id"], "order_by": ["ts_ms"]}})
    project.land("9.jsonl", [event(10, "c", product(2))])
    report = project.run()
    assert report.exit_code == 2
    assert "order_by was [source.lsn] and is now [ts_ms]" in (report.tables[0].error or "")


@pytest.mark.each(3)
@pytest.mark.parametrize("seed", range(3))
def test_rule_26_shuffled_history_ends_as_the_ordered_one(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    rows: dict[int, Event] = {}
    lines = []
    for lsn in range(120):
        key = draw.randrange(8)
        old = rows.get(key)
        if draw.random() < 0.02:
            rows.clear()
            lines.append(event(lsn, "t", None))
        elif old is None:
            rows[key] = product(key, str(lsn), str(lsn))
            lines.append(event(lsn, "c", rows[key]))
        elif draw.random() < 0.2:
            lines.append(event(lsn, "d", rows.pop(key)))
        elif draw.random() < 0.4 and (new := draw.randrange(8)) not in rows:
            rows[new] = {**rows.pop(key), "id": new, "name": str(lsn)}
            lines.append(event(lsn, "u", {**rows[new], "text": "whole"}, before=old))
            rows[new]["text"] = "whole"
        else:
            rows[key] = {**old, "name": str(lsn)}
            lines.append(event(lsn, "u", {**rows[key]}))
    project = project_in(tmp_path, max_quarantine_ratio=1.0)
    draw.shuffle(lines)
    land_and_run(project, *(lines[i : i + 30] for i in range(0, 120, 30)))
    assert project.rows() == sorted(rows.values(), key=lambda r: r["id"])
    assert load(project.folder / "nevermore.yaml").tables["shop.products"].order_by == ("source.lsn",)


@pytest.mark.parametrize(
    ("later", "wanted"),
    [
        ([event(9, "c", product(1, "again", "other"))], [product(1, "again", "other"), product(2, "moved", "big")]),
        ([event(9, "d", product(1))], [product(2, "moved", "big")]),
        ([event(9, "u", product(2, "newest", UNSENT))], [product(2, "newest", "big")]),
    ],
)
def test_rule_28_late_key_change_takes_what_it_did_not_send_from_the_row_of_its_place(
    later: list[str], wanted: list[Event], tmp_path: Path
) -> None:
    project = project_in(tmp_path, max_quarantine_ratio=1.0)
    late = event(5, "u", product(2, "moved", UNSENT), before={"id": 1})
    report = land_and_run(project, [event(1, "c", product(1, "a", "big")), *later], [late])
    assert report.quarantined == 0
    assert project.rows() == wanted


@pytest.mark.each(4)
@pytest.mark.parametrize(("seed", "size"), [(0, 30), (1, 30), (2, 9), (3, 9)])
def test_rule_26_columns_that_were_not_sent_end_as_if_all_had_come_in_order(
    seed: int, size: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    rows: dict[int, Event] = {}
    lines = []
    for lsn in range(90):
        key = draw.randrange(6)
        old = rows.get(key)
        if old is None:
            rows[key] = product(key, str(lsn), str(lsn))
            lines.append(event(lsn, "c", rows[key]))
        elif draw.random() < 0.15:
            lines.append(event(lsn, "d", rows.pop(key)))
        else:
            new = draw.randrange(6) if draw.random() < 0.4 else key
            rows[new if new not in rows else key] = {**rows.pop(key), "name": str(lsn)}
            (moved,) = (k for k, row in rows.items() if row["name"] == str(lsn))
            rows[moved]["id"] = moved
            text = UNSENT if draw.random() < 0.6 else f"new {lsn}"
            rows[moved]["text"] = rows[moved]["text"] if text == UNSENT else text
            lines.append(event(lsn, "u", {**rows[moved], "text": text}, before={"id": key}))
    project = project_in(tmp_path, max_quarantine_ratio=1.0)
    draw.shuffle(lines)
    land_and_run(project, *(lines[i : i + size] for i in range(0, 90, size)))
    assert project.rows() == sorted(rows.values(), key=lambda r: r["id"])
