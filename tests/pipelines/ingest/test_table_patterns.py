"""Entries `namespace.*`: mirrors for every table that a feed carries."""

from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import expanded, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once, sources
from tests.pipelines.project import Project, event, product


def project_with(folder: Path, **tables: dict[str, Any]) -> Project:
    return Project(folder, {name.replace("__", "."): table for name, table in tables.items()} | {})


def tables_of(project: Project) -> list[str]:
    config = load(project.folder / "nevermore.yaml")
    return list(expanded(config, open_catalog(config)).tables)


def test_every_table_of_the_feed_gets_a_mirror(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1), table=t) for t in ("products", "orders", "products")])
    report = project.run()
    assert report.exit_code == 0
    assert [t.table for t in report.tables] == ["shop.orders", "shop.products"]
    assert project.rows("shop.orders") == [product(1)]
    assert project.run().found_nothing_new
    assert tables_of(project) == ["shop.orders", "shop.products"]


def test_table_that_comes_later_joins_the_others(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1))])
    project.run()
    project.land("2.jsonl", [event("c", product(2)), event("c", product(7), table="orders")])
    assert project.run().exit_code == 0
    project.land("3.jsonl", [event("u", product(7, "B"), table="orders")])
    project.run()
    assert project.rows() == [product(1), product(2)]
    assert project.rows("shop.orders") == [product(7, "B")]


def test_table_that_was_passed_by_when_nobody_asked_for_it_is_read_from_the_start(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1)), event("c", product(7), table="orders")])
    project.run()
    project.write({"shop.products": {"key": ["id"]}, "shop.*": {"key": ["id"]}})
    project.land("2.jsonl", [event("c", product(2)), event("u", product(7, "B"), table="orders")])
    project.land("3.jsonl", [event("c", product(8), table="orders")])
    assert project.run().exit_code == 0
    assert project.rows() == [product(1), product(2)]
    assert project.rows("shop.orders") == [product(7, "B"), product(8)]
    assert project.run().found_nothing_new


def test_tables_are_included_and_excluded_by_their_names_in_the_feed(tmp_path: Path) -> None:
    settings = {"key": ["id"], "include_tables": ["shop.*"], "exclude_tables": ["tmp_*"]}
    project = Project(tmp_path, {"shop.*": settings})
    names = ("products", "tmp_a", "orders")
    project.land("1.jsonl", [event("c", product(1), table=t) for t in names])
    report = project.run()
    assert [t.table for t in report.tables] == ["shop.orders", "shop.products"]
    assert report.skipped["other table"] == 1


def test_entry_of_its_own_goes_before_the_pattern(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}, "shop.orders": {"key": ["id"], "exclude": ["name"]}})
    project.land("1.jsonl", [event("c", product(1), table=t) for t in ("products", "orders")])
    assert project.run().exit_code == 0
    assert project.rows("shop.orders") == [{"id": 1}]
    assert project.rows("shop.products") == [product(1)]


def test_table_that_fails_on_its_first_day_is_read_from_the_start_on_the_next(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["nr"], "rename": {"id": "nr"}, "max_quarantine_ratio": 0.4}})
    project.land("1.jsonl", [event("c", product(1)), event("c", {"name": "no key"}, table="orders")])
    report = project.run()
    assert {t.table: t.error is None for t in report.tables} == {"shop.orders": False, "shop.products": True}
    project.land("2.jsonl", [event("c", product(i), table="orders") for i in range(3)])
    assert project.run().exit_code == 3
    assert len(project.rows("shop.orders", "nr")) == 3
    assert len(project.rows("shop.products", "nr")) == 1


def test_two_tables_that_would_become_one_mirror_stop_the_feed(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1))])
    project.run()
    project.land("2.jsonl", [event("c", product(2)).replace('"db": "shop"', '"db": "other"')])
    (table,) = project.run().tables
    assert "other.products" in str(table.error)
    assert "exclude_tables" in str(table.error)
    assert project.rows() == [product(1)]


def test_events_without_a_table_are_rejected_beside_a_pattern(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(i)) for i in range(3)])
    project.run()
    project.land("2.jsonl", [event("c", product(8)), event("c", product(9)).replace("source", "origin")])
    report = project.run()
    assert report.exit_code == 3
    assert report.unassigned == 1
    assert len(project.rows()) == 4


def test_pattern_can_be_run_alone(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", product(1), table=t) for t in ("products", "orders")])
    assert len(project.run(tables=["shop.*"]).tables) == 2
    project.land("2.jsonl", [event("c", product(2), table=t) for t in ("products", "orders", "new")])
    assert [t.table for t in project.run(tables=["shop.orders"]).tables] == ["shop.orders"]
    assert sources(load(project.folder / "nevermore.yaml")) == [("shop.*",)]
    assert sorted(t.table for t in project.run(tables=["shop.*"]).tables) == [
        "shop.new",
        "shop.orders",
        "shop.products",
    ]
    assert project.rows("shop.new") == [product(2)]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"shop.p*": {}}, r"namespace\.\*"),
        ({"shop.*": {"source_table": "x"}}, "include_tables"),
        ({"shop.t": {"exclude_tables": ["x"]}}, r"namespace\.\*"),
    ],
)
def test_patterns_that_mean_nothing_are_refused(tables: dict[str, Any], message: str, tmp_path: Path) -> None:
    project = Project(tmp_path, tables)
    with pytest.raises(ConfigError, match=message):
        run_once(load(project.folder / "nevermore.yaml"))


def test_inner_names_are_no_config_keys(tmp_path: Path) -> None:
    (tmp_path / "nevermore.yaml").write_text("tables: {}\npatterns: {}\n")
    with pytest.raises(ConfigError, match=r"nevermore\.yaml:2: unknown key 'patterns'"):
        load(tmp_path / "nevermore.yaml")


def test_table_behind_the_others_keeps_the_table_of_the_feed_that_it_was_found_for(tmp_path: Path) -> None:
    entry = {"lake.*": {"key": ["id"], "include_tables": ["shop.*"]}}
    project = Project(tmp_path, entry)
    project.land("1.jsonl", [event("c", product(1), table=t) for t in ("products", "orders")])
    project.run()
    foreign = event("c", product(66), table="orders").replace('"db": "shop"', '"db": "aside"')
    project.land("2.jsonl", [foreign, event("c", product(2)), event("c", product(2), table="orders")])
    assert [t.error for t in project.run(tables=["lake.products"]).tables] == [None]
    project.land("3.jsonl", [event("c", product(3)), event("c", product(3), table="orders")])
    report = project.run()
    assert [t.error for t in report.tables] == [None, None]
    assert project.rows("lake.products") == project.rows("lake.orders") == [product(i) for i in (1, 2, 3)]
