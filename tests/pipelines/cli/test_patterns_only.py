"""A project whose mirrors all come from an entry such as `shop.*`: every command that takes a table knows them."""

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.spark.session import query_tables, register_views
from tests.pipelines.project import Project, event, product

Run = Callable[..., tuple[int, str, str]]

PUBLISHED = {
    "shop.daily": {"sql": "select count(*) as n from shop.orders"},
    "shop.joined": {"sql": "select o.id from shop.orders o join shop.products p on o.id = p.id"},
}
COMMANDS = {
    "ingest": ["shop.orders"],
    "publish": ["shop.daily", "shop.joined"],
    "check": ["shop.orders", "shop.daily"],
    "changes": ["shop.orders"],
    "compact": ["shop.orders"],
    "convert": ["shop.orders"],
    "debt": ["shop.orders"],
    "describe": ["shop.orders"],
    "docs": ["shop.orders"],
    "erase": ["shop.orders", "--where", "id = 1"],
    "expire": ["shop.orders"],
    "explain": ["shop.orders"],
    "files": ["shop.orders"],
    "index": ["shop.orders", "--columns", "name"],
    "orphans": ["shop.orders"],
    "quarantine": ["list", "shop.orders"],
    "replay": ["shop.orders", "--from", "0"],
    "readers": ["shop.orders"],
    "recover": [],
    "report": ["shop.orders"],
    "resync": ["shop.orders"],
    "scan": ["shop.orders"],
    "snapshots": ["shop.orders"],
    "sql": ["select name from shop.orders"],
    "status": ["shop.orders"],
    "trim-log": ["shop.orders", "--keep-log", "30d"],
    "verify": ["shop.orders"],
    "why": ["shop.orders", "--key", "id=1"],
    "rollback": ["shop.orders", "--to", "1"],
}
REFUSED = {"rollback": "snapshot 1"}
"""Commands that have nothing to do here, with what they say instead."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"), {"shop.*": {"key": ["id"]}})
    path = made.folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"published": PUBLISHED}))
    return made


def land(project: Project) -> None:
    project.land("1.jsonl", [event("c", product(i), table=t) for t in ("products", "orders") for i in range(3)])


@pytest.mark.each(16)
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_knows_the_mirrors_that_a_pattern_has_found(
    run: Run, project: Project, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    land(project)
    project.run()
    code, output, errors = run(command, *COMMANDS[command])
    if command in REFUSED:
        assert REFUSED[command] in errors
        return
    assert code == 0, errors
    assert "no table shop" not in output + errors


def test_no_command_that_takes_tables_is_left_out() -> None:
    commands = {entry.name: entry.load() for entry in entry_points(group="nevermore.commands")}
    take_tables = {
        name
        for name, command in commands.items()
        if {"table", "tables", "names"} & set(inspect.signature(command).parameters)
    }
    assert take_tables - {"adopt", "run"} <= set(COMMANDS)  # adopt takes foreign tables, run does not end


@pytest.mark.spark
def test_programs_know_the_mirrors_that_a_pattern_has_found(project: Project, spark: object) -> None:
    land(project)
    project.run()
    config = load(project.folder / "nevermore.yaml")
    assert set(register_views(spark, config)) == {"shop.orders", "shop.products"}
    assert query_tables(spark, config, "select id from orders").count() == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["publish"],
            "no table shop.orders; the config has no tables yet: nevermore ingest creates those of its patterns",
        ),
        (["check", "other.table"], "no table 'other.table' in nevermore.yaml; it has shop.*"),
    ],
)
def test_before_the_first_ingest_commands_say_what_is_missing(
    run: Run, tmp_path: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Project(tmp_path, {"shop.*": {"key": ["id"]}})
    path = made.folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"published": PUBLISHED}))
    monkeypatch.chdir(tmp_path)
    made.land("1.jsonl", [])
    made.run()
    code, _, errors = run(*words)
    assert code == 2
    assert message in errors
