from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import resync, resync_from
from tests.pipelines.project import Project, event, product, the


def test_rule_28_rows_without_a_new_column_are_found(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full", "max_quarantine_ratio": 1.0}})
    old = {"id": 1, "a": "x"}
    project.land("1.jsonl", [event("c", old), event("c", old)])
    project.run()
    project.land("2.jsonl", [event("c", {"id": 2, "a": "x", "z": 5}), event("d", {**old, "z": None})])
    assert the(project.run()).error is None
    assert project.rows() == [{**old, "z": None}, {"id": 2, "a": "x", "z": 5}]
    project.land("3.jsonl", [event("d", {**old, "z": 7})])
    assert the(project.run()).error is None
    assert len(project.rows()) == 2


def test_rule_28_column_that_is_not_sent_is_null_in_the_identity(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full", "max_quarantine_ratio": 1.0}})
    project.land("1.jsonl", [event("c", {"id": 1, "z": 5}), event("c", {"id": 1, "z": None})])
    project.run()
    project.land("2.jsonl", [event("d", {"id": 1})])
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 1, "z": 5}]


def test_truncate_alone_in_a_run_empties_a_table_without_a_key(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full"}})
    project.land("0.jsonl", [event("t")])
    assert project.run().skipped == {"truncate of a table without rows": 1}
    project.land("1.jsonl", [event("c", {"id": 1}), event("c", {"id": 1})])
    project.run()
    project.land("2.jsonl", [event("t"), event("t")])  # the same file twice were a re-delivery
    report = the(project.run())
    assert (report.error, report.events, project.rows()) == (None, {"t": 2}, [])


def test_events_that_do_not_tell_their_key_are_of_the_key_that_is_logged(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {}})
    project.land("1.jsonl", [f'{{"id": {key}}}\t{event("c", {"id": key})}' for key in (1, 2)])
    project.run()
    project.land("2.jsonl", [event("t")])
    assert the(project.run()).events == {"t": 1}
    project.land("3.jsonl", [event("c", {"id": 3})])
    assert the(project.run()).error is None
    assert project.rows() == [{"id": 3}]


def failed(project: Project) -> set[str]:
    config = load(project.folder / "nevermore.yaml")
    (name,) = config.tables
    return {found.name for found in run_checks(config, name, checks_of(config, name)) if not found.passed}


@pytest.mark.parametrize("one_batch", [False, True])
def test_rows_are_removed_after_the_source_dropped_a_column(*, one_batch: bool, tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full"}})
    first = [event("c", {"a": 1, "b": "x"}), event("c", {"a": 2, "b": "y"}), event("c", {"a": 4, "b": "z"})]
    second = [event("d", {"a": 1}), event("u", {"a": 3}, before={"a": 2})]
    project.land("1.jsonl", first + second if one_batch else first)
    project.run()
    if not one_batch:
        project.land("2.jsonl", second)
        assert the(project.run()).missed_removals == 0
    assert project.rows("shop.products", "a") == [{"a": 3, "b": None}, {"a": 4, "b": "z"}]
    assert failed(project) == set()
    # The log alone tells it as well.
    config = load(project.folder / "nevermore.yaml")
    resync(open_catalog(config), config, "shop.products")
    assert project.rows("shop.products", "a") == [{"a": 3, "b": None}, {"a": 4, "b": "z"}]


def test_removals_that_find_no_row_are_told_and_fail_a_check_until_a_full_load(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full"}})
    project.land("1.jsonl", [event("c", {"id": 1, "name": "a"})])
    project.run()
    project.land("2.jsonl", [event("d", {"id": 7, "name": "b"}), event("u", {"id": 3}, before={"id": 1, "name": "c"})])
    with pytest.raises(SystemExit) as exited:
        main(["ingest", "--config", str(tmp_path / "nevermore.yaml")])
    assert exited.value.code == 0
    assert "shop.products: 2 removals matched no row in the mirror" in capfd.readouterr().err
    assert failed(project) == {"removals_find_rows"}
    (tmp_path / "full.jsonl").write_text(event("r", {"id": 5, "name": "e"}) + "\n")
    config = load(tmp_path / "nevermore.yaml")
    resync_from(open_catalog(config), config, "shop.products", (str(tmp_path / "full.jsonl"),))
    assert failed(project) == set()


def test_an_old_row_without_any_column_of_the_table_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full"}})
    project.land("1.jsonl", [event("c", {"id": 1}), event("c", {"id": 2}), event("d", {}), event("d", {"z": 1})])
    report = the(project.run())
    assert (report.quarantined, report.missed_removals) == (1, 1)
    assert [row["id"] for row in project.rows()] == [1, 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # known by the batch, by the bounds of the files, by a look-up of partitions; not where the bounds do not tell
        ({"key": ["id"]}, 3),
        ({"key": ["id"], "partition_by": ["name"]}, 4),
        ({"key": ["id"], "soft_delete": True}, 4),  # a flagged row is as good as deleted
        ({"identity": "full"}, 5),
    ],
)
def test_removals_without_effect_are_counted_as_far_as_they_are_known(
    options: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    project = Project(tmp_path, {"shop.products": options})
    project.land("1.jsonl", [event("c", product(key)) for key in (1, 2, 5)])
    assert the(project.run()).missed_removals == 0
    removals = [
        event("d", product(2)),
        event("d", product(2)),  # gone already
        event("d", product(99)),  # beyond all keys
        event("d", product(3)),  # within their bounds
        event("c", product(6)),
        event("d", product(6)),
        event("u", product(98), before=product(97)),  # a key change
        event("u", product(5, "b"), before=product(5)),
        event("u", product(1, "b"), before=product(1, "no")),
    ]
    project.land("2.jsonl", removals)
    assert the(project.run()).missed_removals == expected


@pytest.mark.parametrize("option", [{"soft_delete": True}, {"inserts": "trusted"}])
def test_options_that_mean_nothing_without_a_key_are_refused(option: dict[str, Any], tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"identity": "full", **option}})
    with pytest.raises(ConfigError, match=f"{next(iter(option))}.*identity: full"):
        project.run()
