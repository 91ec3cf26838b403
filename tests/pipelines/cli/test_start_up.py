"""Commands that only look load none of the libraries that take seconds; an ingest that finds nothing new changes nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import CatalogMismatchError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog, open_to_look
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.project import Project, event

HEAVY = ("duckdb", "dagster", "great_expectations", "numba", "pyspark", "sqlglot")
COMMANDS = (
    ["scan", "shop.products", "--count"],
    ["describe", "shop.products"],
    ["snapshots", "shop.products"],
    ["files", "shop.products"],
    ["explain", "shop.products"],
    ["tables"],
    ["status"],
    ["ingest"],
    ["ingest", "shop.products", "--json"],
)
_SCRIPT = """
import sys
from nevermore.pipelines.cli.main import main
for command in {commands!r}:
    try:
        main(command)
    except SystemExit as ended:
        found = [name for name in {heavy!r} if name in sys.modules]
        if ended.code or found:
            sys.exit(f"{{command}}: exit code {{ended.code}}, loaded {{found}}")
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.land("1.jsonl", [event("c", {"id": 1, "name": "a"}), event("c", {"id": 2, "name": "b"})])
    assert made.run().exit_code == 0
    return made


def _run_apart(folder: Path, commands: list[list[str]], heavy: tuple[str, ...] = HEAVY) -> None:
    script = _SCRIPT.format(commands=commands, heavy=heavy)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYICEBERG_")}
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout


def test_commands_that_look_load_no_heavy_library(project: Project) -> None:
    _run_apart(project.folder, list(COMMANDS))
    _run_apart(project.folder, [["--version"]], (*HEAVY, "pyiceberg", "sqlalchemy", "pandas"))


def test_an_ingest_that_finds_news_lists_its_sources_once(project: Project) -> None:
    project.land("2.jsonl", [event("c", {"id": 3, "name": "c"})])
    listed: list[str] = []

    def record(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "glob.glob" and is_recording:
            listed.append(arguments[0])

    is_recording = True
    sys.addaudithook(record)
    report = run_once(load(project.folder / "nevermore.yaml"))
    is_recording = False
    assert report.tables[0].events == {"c": 1}
    assert len(listed) == 1, listed


def test_a_check_of_nothing_loads_no_heavy_library(project: Project) -> None:
    path = project.folder / "nevermore.yaml"
    path.write_text("tables: {}\n")
    _run_apart(project.folder, [["check"], ["status"]])


@pytest.mark.slow
def test_the_script_can_fail(project: Project) -> None:
    with pytest.raises(AssertionError, match="sqlglot"):
        _run_apart(project.folder, [["scan", "shop.products", "--count", "--where", "id > 1"]])


def test_metadata_that_is_not_whole_is_reported(project: Project) -> None:
    config = load(project.folder / "nevermore.yaml")
    metadata = Path(project.table("shop.products").metadata_location.removeprefix("file://"))
    for text in (b"", b"{", b"{}", metadata.read_bytes()[:-10]):
        metadata.write_bytes(text)
        with pytest.raises(CatalogMismatchError, match="nevermore recover"):
            find_table(open_catalog(config), "shop.products")


def test_a_missing_catalog_stays_missing(project: Project) -> None:
    shutil.rmtree(project.folder / "warehouse")
    assert open_to_look(load(project.folder / "nevermore.yaml")) is None
    assert not (project.folder / "warehouse").exists()


def _products(project: Project, **settings: Any) -> None:
    project.write({"shop.products": {"key": ["id"], **settings}})


def _land_more(project: Project) -> None:
    project.land("2.jsonl", [event("d", {"id": 1})])


def _touch_file(project: Project) -> None:
    (project.landing / "1.jsonl").touch()


def _delete_file(project: Project) -> None:
    (project.landing / "1.jsonl").unlink()


def _land_of_another_table(project: Project) -> None:
    project.land("2.jsonl", [event("c", {"id": 1}, table="other")])


def _read_patterns(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"]}, "shop.*": {"key": ["id"], "exclude_tables": ["products"]}})
    _land_of_another_table(project)
    assert project.run().exit_code == 0


def _convert_deletes(project: Project) -> None:
    _land_more(project)
    assert project.run().exit_code == 0
    _products(project, deletes="converted")


def _keep_converted(project: Project) -> None:
    _convert_deletes(project)
    assert project.run().exit_code == 0


def _quarantine(project: Project) -> None:
    _products(project, max_quarantine_ratio=1)
    project.land("2.jsonl", ["no event"])
    assert project.run().exit_code == 3


def _empty_sources(project: Project) -> None:
    project.write({"shop.products": {"key": ["id"]}, "shop.other": {"key": ["id"], "source_table": "other"}})


def _keep_empty_table(project: Project) -> None:
    _empty_sources(project)
    _land_more(project)
    assert project.run().exit_code == 0


def _configure(**settings: Any) -> Any:
    def change(project: Project) -> None:
        _products(project, **settings)

    return change


QUICK = {"nothing changed", "deleted file", "empty table"}
NOTHING: dict[str, Any] = {
    "nothing changed": lambda _: None,
    "deleted file": _delete_file,
    "touched file": _touch_file,
    "table of a pattern without news": _read_patterns,
    "deletes are converted": _keep_converted,
    "events in quarantine": _quarantine,
    "empty table": _keep_empty_table,
    "config of later commits": _configure(commit_rows=10, index={"bloom": ["name"]}),
    "choice of the engine": _configure(ingest={"engine": "auto"}),
}


@pytest.mark.parametrize(
    "change",
    [pytest.param(c, id=n, marks=() if n in QUICK else pytest.mark.slow) for n, c in NOTHING.items()],
)
def test_a_run_that_finds_nothing_new_changes_nothing(project: Project, change: Any) -> None:
    change(project)
    before = project.snapshots()
    report = run_once(load(project.folder / "nevermore.yaml"))
    assert report.found_nothing_new
    assert (report.exit_code, project.snapshots()) == (0, before)


def test_a_copied_project_is_still_refused(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copied") / "project"
    shutil.copytree(project.folder, copy)
    config = load(copy / "nevermore.yaml")
    with pytest.raises(CatalogMismatchError, match="was copied or moved"):
        run_once(config)
