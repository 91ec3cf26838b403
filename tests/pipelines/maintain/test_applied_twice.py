"""Changes that are applied a second time lead to the rows of the first: every command x inserts x identity x soft deletes."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError, SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine
from nevermore.pipelines.maintain.adoption import adopt
from nevermore.pipelines.maintain.replay import replay, resync, resync_from
from tests.pipelines.project import Event, Project, event, product, the

TABLE = "shop.products"
LAYOUTS: dict[str, dict[str, Any]] = {
    "checked": {"key": ["id"]},
    "trusted": {"key": ["id"], "inserts": "trusted"},
    "soft": {"key": ["id"], "soft_delete": True},
    "soft and trusted": {"key": ["id"], "soft_delete": True, "inserts": "trusted"},
    "ordered": {"key": ["id"], "order_by": ["source.lsn"]},
    "full": {"identity": "full"},
    "partitioned and trusted": {"key": ["id"], "inserts": "trusted", "partition_by": ["name"]},
}


def config_of(project: Project) -> Any:
    return load(project.folder / "nevermore.yaml")


def apply_again(command: str, project: Project) -> None:
    config = config_of(project)
    catalog = open_catalog(config)
    match command:
        case "replay":
            replay(catalog, config, TABLE, None, None)
        case "replay a range":
            replay(catalog, config, TABLE, "3", "6")
        case "replay the last":
            replay(catalog, config, TABLE, "9", None)
        case "quarantine replay":
            replay_quarantine(catalog, config, TABLE)
        case "resync":
            resync(catalog, config, TABLE)
        case "ingest":
            project.run()
        case "drop the mirror and ingest":
            catalog.drop_table(TABLE)
            project.run()


COMMANDS = (
    "replay",
    "replay a range",
    "replay the last",
    "quarantine replay",
    "resync",
    "ingest",
    "drop the mirror and ingest",
)


def placed(number: int, op: str, row: Event | None = None, **more: Any) -> str:
    """An event with its place in the order that `order_by` asks for."""
    return event(op, row, **more).replace('"source": {', f'"source": {{"lsn": {number}, ', 1)


EVENTS = [
    placed(1, "c", product(1)),
    placed(2, "c", product(2)),
    placed(3, "c", product(3)),
    placed(4, "u", product(2, "b"), before=product(2)),
    placed(5, "d", product(3)),
    placed(6, "u", product(5, "b"), before=product(2, "b")),
    placed(7, "c", product(3, "again")),
    placed(8, "u", product(5, "c"), before=product(5, "b")),
    placed(9, "d", product(1)),
    placed(10, "c", product(6)),
]


def started(folder: Path, layout: str) -> Project:
    """Two commits, and one event in quarantine."""
    project = Project(folder, {TABLE: {**LAYOUTS[layout], "max_quarantine_ratio": 1.0}})
    project.land("1.jsonl", [*EVENTS[:4], "{ no json"])
    project.run()
    project.land("2.jsonl", EVENTS[4:])
    assert the(project.run()).error is None
    return project


def alive(project: Project) -> list[Event]:
    return [{k: v for k, v in row.items() if k != "_deleted"} for row in project.rows() if not row.get("_deleted")]


def green(project: Project) -> None:
    config = config_of(project)
    for found in run_checks(config, TABLE, checks_of(config, TABLE)):
        assert found.passed, found


ROWS = [product(3, "again"), product(5, "c"), product(6)]


def again(folder: Path, layout: str, *commands: str) -> None:
    project = started(folder, layout)
    assert alive(project) == ROWS
    before = project.rows()
    for command in commands:
        if layout == "full" and command.startswith("replay"):
            with pytest.raises(SourceError, match="no key"):
                apply_again(command, project)
        else:
            apply_again(command, project)
        assert project.rows() == before, command
    green(project)


@pytest.mark.each(2)
@pytest.mark.parametrize("layout", ["trusted", "full"])
def test_a_replay_leaves_the_rows_as_they_are(layout: str, tmp_path: Path) -> None:
    again(tmp_path, layout, "replay", "replay a range", "quarantine replay")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_applied_twice_leaves_the_rows_as_they_are(command: str, layout: str, tmp_path: Path) -> None:
    again(tmp_path, layout, command, command, "replay")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["trusted", "soft and trusted"])
@pytest.mark.parametrize(("first", "then"), list(itertools.permutations(COMMANDS, 2)))
def test_one_command_after_the_other_leaves_the_rows_as_they_are(
    first: str, then: str, layout: str, tmp_path: Path
) -> None:
    again(tmp_path, layout, first, then)


def test_a_replay_follows_rows_to_keys_that_they_go_on_to_have(tmp_path: Path) -> None:
    project = Project(tmp_path)
    events = [event("c", product(1)), event("u", product(2, "b"), before=product(1)), event("u", product(2, "c"))]
    project.land("1.jsonl", events)
    project.run()
    config = config_of(project)
    done = replay(open_catalog(config), config, TABLE, "1", "1")
    assert done.num_changes == 3
    assert project.rows() == [product(2, "c")]


def test_what_a_full_load_holds_may_come_once_more_as_trusted_inserts(tmp_path: Path) -> None:
    project = Project(tmp_path, {TABLE: LAYOUTS["trusted"]})
    project.land("1.jsonl", [event("c", product(1)), event("c", product(9))])
    project.run()
    # The load was taken when the source had gone on already.
    (tmp_path / "load.jsonl").write_text("".join(f"{event('r', product(key))}\n" for key in (1, 5, 9)))
    config = config_of(project)
    resync_from(open_catalog(config), config, TABLE, (str(tmp_path / "load.jsonl"),))
    project.land("2.jsonl", [event("c", product(5)), event("c", product(6))])
    project.run()
    rows = [product(key) for key in (1, 5, 6, 9)]
    assert project.rows() == rows
    resync(open_catalog(config), config, TABLE)
    assert project.rows() == rows
    green(project)


@pytest.mark.each(8)
@pytest.mark.parametrize("skip_log", [False, True])
@pytest.mark.parametrize("layout", ["trusted", "full", "soft and trusted", "checked"])
def test_adopted_rows_may_come_once_more(layout: str, *, skip_log: bool, tmp_path: Path) -> None:
    first = Project(tmp_path, {TABLE: LAYOUTS[layout]})
    first.land("1.jsonl", [event("c", product(key)) for key in (1, 5, 9)])
    first.run()
    config = config_of(first)
    catalog = open_catalog(config)
    _forget_position(catalog)
    before = first.snapshots()
    if layout == "full" and not skip_log:
        with pytest.raises(SourceError, match="--skip-log"):
            adopt(catalog, config, TABLE)
        assert first.snapshots() == before
        return
    adopt(catalog, config, TABLE, skip_log=skip_log)
    first.run()
    assert alive(first) == [product(key) for key in (1, 5, 9)]
    replayed: Callable[[], Any] = lambda: replay(catalog, config, TABLE, None, None)  # noqa: E731
    if layout == "full":
        with pytest.raises(SourceError, match="no key"):
            replayed()
    else:
        replayed()
    assert alive(first) == [product(key) for key in (1, 5, 9)]


def _forget_position(catalog: Any) -> None:
    """Make a table of the mirror's rows that others have written."""
    table = find_table(catalog, TABLE)
    rows = table.scan().to_arrow()
    catalog.drop_table(TABLE)
    catalog.create_table(TABLE, rows.schema).append(rows)


def test_a_flagged_row_goes_when_its_key_is_inserted_again_as_a_trusted_insert(tmp_path: Path) -> None:
    project = Project(tmp_path, {TABLE: LAYOUTS["soft and trusted"]})
    for number, line in enumerate([event("c", product(1)), event("d", product(1)), event("c", product(1, "b"))]):
        project.land(f"{number}.jsonl", [line])
        project.run()
    assert project.rows() == [{**product(1, "b"), "_deleted": False}]
    project.land("3.jsonl", [event("d", product(1, "b"))])
    project.run()
    assert project.rows() == [{**product(1, "b"), "_deleted": True}]
    green(project)


def test_trusted_inserts_with_an_order_of_their_own_are_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, {TABLE: {**LAYOUTS["ordered"], "inserts": "trusted"}})
    with pytest.raises(ConfigError, match="order_by"):
        project.run()


def test_a_log_with_late_events_trusts_no_insert_under_a_new_config(tmp_path: Path) -> None:
    project = Project(tmp_path, {TABLE: LAYOUTS["ordered"]})
    project.land("1.jsonl", [placed(3, "c", product(1, "c")), placed(9, "c", product(9))])
    project.run()
    project.land("2.jsonl", [placed(2, "d", product(1, "b"))])
    project.run()
    project.write({TABLE: {**LAYOUTS["trusted"], "commit_rows": 1}})
    for command in ("drop the mirror and ingest", "resync", "replay"):
        apply_again(command, project)
        assert project.rows() == [product(1, "c"), product(9)], command


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["trusted", "soft and trusted", "partitioned and trusted"])
@pytest.mark.parametrize("seed", range(4))
def test_random_ranges_of_random_histories_may_be_replayed(seed: int, layout: str, tmp_path: Path) -> None:
    generator = random.Random(seed)
    project = Project(tmp_path, {TABLE: {**LAYOUTS[layout], "commit_rows": 7}})
    rows: dict[int, Event] = {}
    config = config_of(project)
    count = 0
    for number in range(6):
        lines = []
        for _ in range(20):
            count += 1
            key, new = generator.randrange(8), generator.randrange(8)
            old = rows.get(key)
            if old is None:
                rows[key] = product(key, f"n{count}")
                lines.append(event("c", rows[key]))
            elif generator.random() < 0.3:
                lines.append(event("d", rows.pop(key)))
            else:
                moved = new if new not in rows else key
                rows[moved] = {**rows.pop(key), "id": moved, "name": f"n{count}"}
                lines.append(event("u", rows[moved], before=old))
        project.land(f"{number}.jsonl", lines)
        assert the(project.run()).error is None
        for _ in range(3):
            first = generator.randrange(1, count + 1)
            replay(open_catalog(config), config, TABLE, str(first), str(generator.randrange(first, count + 1)))
            assert alive(project) == sorted(rows.values(), key=lambda row: row["id"])
    green(project)
