"""A full load takes the place of a mirror's rows: vanished keys go, the log tells why, the feed goes on."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import Resynced, resync, resync_from
from tests.pipelines.project import Project, event, product


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path)
    found.land("1.jsonl", [event("c", product(i)) for i in range(6)])
    found.run()
    return found


def load_rows(project: Project, lines: list[str], kind: str | None = None, name: str = "load.jsonl") -> Resynced:
    path = project.folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return from_path(project, path, kind)


def from_path(project: Project, path: Path, kind: str | None = None) -> Resynced:
    config = load(project.folder / "nevermore.yaml")
    return resync_from(open_catalog(config), config, "shop.products", (str(path),), kind)


def test_rows_of_the_load_replace_all_others_and_the_feed_goes_on(project: Project) -> None:
    project.land("2.jsonl", [event("u", product(1, "waits"))])
    done = load_rows(project, [event("r", product(i, "loaded")) for i in (1, 2, 9)])
    assert (done.num_rows, done.quarantined) == (3, 0)
    assert project.rows() == [product(1, "loaded"), product(2, "loaded"), product(9, "loaded")]
    assert project.run().exit_code == 0
    assert project.rows()[0] == product(1, "waits")
    assert [r["op"] for r in project.rows("change_log.shop_products", "ordinal")] == [*"cccccc", "t", *"rrr", "u"]


def test_load_of_plain_rows_needs_no_operations(project: Project, tmp_path: Path) -> None:
    load_rows(project, [json.dumps(product(i, "plain")) for i in (1, 7)], "rows-json")
    assert project.rows() == [product(1, "plain"), product(7, "plain")]
    pq.write_table(pa.table({"id": [4], "name": ["parquet"], "extra": [0.5]}), tmp_path / "load.parquet")
    from_path(project, tmp_path / "load.parquet", "rows-parquet")
    assert project.rows() == [{"id": 4, "name": "parquet", "extra": 0.5}]


def test_soft_deletes_flag_the_keys_that_vanished(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "soft_delete": True}})
    project.land("1.jsonl", [event("c", product(i)) for i in range(3)])
    project.run()
    load_rows(project, [event("r", product(1, "loaded"))])
    assert [(r["id"], r["_deleted"]) for r in project.rows()] == [(0, True), (1, False), (2, True)]


def test_late_events_of_the_feed_bring_nothing_back_from_before_the_load(tmp_path: Path) -> None:
    def at(place: int, i: int, name: str) -> str:
        return json.dumps(json.loads(event("u", product(i, name))) | {"source": {"lsn": place}})

    project = Project(tmp_path, {"shop.products": {"key": ["id"], "order_by": ["source.lsn"]}})
    project.land("1.jsonl", [at(10, 1, "old"), at(20, 2, "old")])
    project.run()
    load_rows(project, [event("r", product(i, "loaded")) for i in (1, 2)])
    project.land("2.jsonl", [at(5, 1, "late"), at(30, 2, "new")])
    assert project.run().exit_code == 0
    assert project.rows() == [product(1, "loaded"), product(2, "new")]
    project.land("3.jsonl", [at(25, 2, "late"), at(25, 1, "late")])
    assert project.run().exit_code == 0
    assert project.rows() == [product(1, "late"), product(2, "new")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([event("r", product(1)), "{broken"], "load.jsonl:2: .*none of it was read"),
        ([event("d", product(1))], "a delete in a full load"),
        ([], "no rows"),
    ],
)
def test_load_with_a_gap_is_refused_and_changes_nothing(project: Project, lines: list[str], message: str) -> None:
    before = project.snapshots()
    with pytest.raises(SourceError, match=message):
        load_rows(project, lines)
    assert project.snapshots() == before


def test_mirror_can_be_made_anew_when_only_changes_after_the_load_are_there(project: Project) -> None:
    load_rows(project, [event("r", product(i, "loaded")) for i in (1, 2)])
    project.land("2.jsonl", [event("d", product(2))])
    project.run()
    config = load(project.folder / "nevermore.yaml")
    assert resync(open_catalog(config), config, "shop.products").num_rows == 1
    assert project.rows() == [product(1, "loaded")]
