"""Commands that only look, and an ingest that finds nothing new, load none of the libraries that take seconds."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.cli.ingest_commands import ingest_once
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import (
    LightCatalog,
    all_table_names,
    find_table,
    metadata_location,
    open_catalog,
    open_light,
    open_to_look,
    table_names,
)
from nevermore.pipelines.ingest.at_rest import found_nothing_new
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.project import Project, event

HEAVY = ("pyiceberg", "pandas", "sqlalchemy", "sqlglot", "duckdb", "dagster", "pyspark", "numba")
WRITERS = (
    "nevermore.pipelines.formats.registry",
    "nevermore.pipelines.iceberg.commit",
    "nevermore.pipelines.sources.file_reader",
    "nevermore.scan_core.plan.planner",
)
WRITERS += ("fastavro", "pyarrow.compute", "pyarrow.csv", "pyarrow.fs", "pyarrow.parquet")
"""What only a run with news decodes and writes with."""
COMMANDS = (
    ["--version"],
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


@pytest.mark.parametrize(
    "words",
    [
        ["scan", "shop.products", "--where", "name = 'a' or id * 2 = 3", "--format", "jsonl"],
        ["changes", "shop.products"],
        ["why", "shop.products", "--key", "id=1"],
    ],
)
def test_a_command_that_reads_rows_does_not_load_pandas(project: Project, words: list[str]) -> None:
    script = f"import sys; sys.argv[1:] = {words}; from nevermore.pipelines.cli.main import main; import atexit; "
    script += "atexit.register(lambda: print('loaded', 'pandas' in sys.modules)); main()"
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("loaded False\n")


def test_an_ingest_that_finds_nothing_new_loads_no_decoder_and_no_writer(project: Project) -> None:
    _run_apart(project.folder, [["ingest"], ["ingest", "shop.products", "--json"]], (*HEAVY, *WRITERS))


def test_an_ingest_that_finds_news_lists_its_sources_once(project: Project) -> None:
    project.land("2.jsonl", [event("c", {"id": 3, "name": "c"})])
    listed: list[str] = []

    def record(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "glob.glob" and is_recording:
            listed.append(arguments[0])

    is_recording = True
    sys.addaudithook(record)
    report = ingest_once(load(project.folder / "nevermore.yaml"))
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


def _seen(catalog: Any, name: str) -> Any:
    try:
        table = find_table(catalog, name)
    except PipelineError as error:
        return str(error)
    if table is None:
        return None
    snapshots = [(s.snapshot_id, s.parent_snapshot_id, s.timestamp_ms) for s in table.metadata.snapshots]
    summaries = [(s.summary.operation.value, dict(s.summary.additional_properties)) for s in table.metadata.snapshots]
    io = {key: str(value) for key, value in table.io.properties.items()}
    facts = (table.metadata_location, table.location(), table.name(), table.format_version, io)
    metadata = table.metadata
    return facts, snapshots, summaries, dict(metadata.properties), metadata.current_snapshot_id


def _change_catalog(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()


_ROW = "UPDATE iceberg_tables SET {} WHERE table_name = 'products'"
CHANGES: dict[str, str | None] = {
    "as it was": None,
    "another catalog in the same file": _ROW.format("catalog_name = 'other'"),
    "a deeper namespace": _ROW.format("table_namespace = 'shop.inner'"),
    "another case": _ROW.format("table_name = 'Products'"),
    "no metadata location": _ROW.format("metadata_location = NULL"),
    "a metadata file that is gone": _ROW.format("metadata_location = 'file:///nowhere/00001-a.metadata.json'"),
    "a view": _ROW.format("iceberg_type = 'VIEW'"),
    "a table of no kind": _ROW.format("iceberg_type = NULL"),
    "a catalog of the first layout": "ALTER TABLE iceberg_tables DROP COLUMN iceberg_type",
    "no tables of a catalog": "DROP TABLE iceberg_tables",
}
QUICK = ("as it was", "another case")


@pytest.mark.parametrize("change", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CHANGES])
def test_a_light_catalog_shows_what_pyiceberg_shows(project: Project, change: str) -> None:
    config = load(project.folder / "nevermore.yaml")
    file = project.folder / "warehouse/catalog.db"
    if (statement := CHANGES[change]) is not None:
        _change_catalog(file, statement)
    copy = project.folder / "copy.db"  # PyIceberg makes the tables that a catalog lacks
    shutil.copy(file, copy)
    light = open_to_look(config)
    names = ["shop.products", "shop.Products", "shop.inner.products", "change_log.shop_products", "no.such"]
    shown = [_seen(light, name) for name in names]
    listed = all_table_names(light), table_names(light, "shop"), table_names(light, "none")
    located = [metadata_location(light, name) for name in names]
    shutil.copy(copy, file)
    whole = open_catalog(config)
    assert shown == [_seen(whole, name) for name in names]
    assert listed == (all_table_names(whole), table_names(whole, "shop"), table_names(whole, "none"))
    if change == "a view":  # whose name the whole catalog gives a location without a look at what it is
        return
    assert located == [metadata_location(whole, name) for name in names]


def test_metadata_that_is_not_whole_is_reported_as_before(project: Project) -> None:
    config = load(project.folder / "nevermore.yaml")
    metadata = Path(project.table("shop.products").metadata_location.removeprefix("file://"))
    for text in (b"", b"{", b"{}", metadata.read_bytes()[:-10]):
        metadata.write_bytes(text)
        light = open_to_look(config)
        assert isinstance(light, LightCatalog)
        assert "nevermore recover" in _seen(light, "shop.products")
        assert _seen(light, "shop.products") == _seen(open_catalog(config), "shop.products")


def test_only_a_plain_sqlite_catalog_is_read_without_pyiceberg(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(project.folder / "nevermore.yaml")
    assert open_light(config) is not None
    for more in (
        {"py-io-impl": "x"},
        {"type": "rest"},
        {"uri": "postgresql://a/b"},
        {"uri": "sqlite:////nowhere/c.db"},
    ):
        assert open_light(config.model_copy(update={"catalog": config.catalog.model_copy(update=more)})) is None
    monkeypatch.setenv("PYICEBERG_CATALOG__NEVERMORE__WAREHOUSE", "elsewhere")
    assert open_light(config) is None
    monkeypatch.delenv("PYICEBERG_CATALOG__NEVERMORE__WAREHOUSE")
    monkeypatch.chdir(project.folder)
    (project.folder / ".pyiceberg.yaml").write_text("catalog: {}\n")
    assert open_light(config) is None


def test_a_missing_catalog_stays_missing(project: Project) -> None:
    shutil.rmtree(project.folder / "warehouse")
    assert open_to_look(load(project.folder / "nevermore.yaml")) is None
    assert not (project.folder / "warehouse").exists()


def _document(report: Any) -> Any:
    found = report.as_dict()
    return {name: value for name, value in found.items() if "second" not in name}


def _products(project: Project, **settings: Any) -> None:
    project.write({"shop.products": {"key": ["id"], **settings}})


def _land_more(project: Project) -> None:
    project.land("2.jsonl", [event("d", {"id": 1})])


def _land_again(project: Project) -> None:
    (project.landing / "2.jsonl").write_bytes((project.landing / "1.jsonl").read_bytes())


def _grow_file(project: Project) -> None:
    with (project.landing / "1.jsonl").open("a") as file:
        file.write(event("d", {"id": 1}) + "\n")


def _replace_file(project: Project) -> None:
    project.land("1.jsonl", [event("c", {"id": 1, "name": "a"}), event("c", {"id": 2, "name": "c"})])


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


def _find_table_by_pattern(project: Project) -> None:
    _read_patterns(project)
    project.land("3.jsonl", [event("c", {"id": 1}, table="third")])


def _log_only(project: Project) -> None:
    _land_more(project)
    assert project.run(log_only=True).exit_code == 0


def _kill_before_mirror(project: Project) -> None:
    _land_more(project)
    environment = {**os.environ, "NEVERMORE_CRASH_AT": "after-commit"}
    command = [
        sys.executable,
        "-m",
        "nevermore.pipelines.cli.main",
        "ingest",
        "--config",
        str(project.folder / "nevermore.yaml"),
    ]
    assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 137


def _lose_catalog(project: Project) -> None:
    (project.folder / "warehouse/catalog.db").unlink()


def _lose_tables(project: Project) -> None:
    _change_catalog(project.folder / "warehouse/catalog.db", "DELETE FROM iceberg_tables")


def _restore_catalog(project: Project) -> None:
    file = project.folder / "warehouse/catalog.db"
    older = file.read_bytes()
    _land_more(project)
    assert project.run().exit_code == 0
    file.write_bytes(older)


def _drop_mirror(project: Project) -> None:
    _change_catalog(project.folder / "warehouse/catalog.db", "DELETE FROM iceberg_tables WHERE table_name = 'products'")


def _convert_deletes(project: Project) -> None:
    _land_more(project)
    assert project.run().exit_code == 0
    _products(project, deletes="converted")


def _keep_converted(project: Project) -> None:
    _convert_deletes(project)
    assert project.run().exit_code == 0


def _exceed_quarantine(project: Project) -> None:
    project.land("2.jsonl", ["no event"])
    assert project.run().exit_code == 1


def _quarantine(project: Project) -> None:
    _products(project, max_quarantine_ratio=1)
    project.land("2.jsonl", ["no event"])
    assert project.run().exit_code == 3


def _refuse_columns(project: Project) -> None:
    _products(project, schema_changes="freeze")
    project.land("2.jsonl", [event("c", {"id": 3, "name": "c", "price": 1})])
    assert project.run().exit_code == 1


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
NEWS: dict[str, Any] = {
    "new file": _land_more,
    "grown file": _grow_file,
    "replaced file": _replace_file,
    "file delivered again": _land_again,
    "events of another table": _land_of_another_table,
    "new table of a pattern": _find_table_by_pattern,
    "mirror behind its log": _log_only,
    "killed between log and mirror": _kill_before_mirror,
    "lost catalog": _lose_catalog,
    "lost tables": _lose_tables,
    "older catalog": _restore_catalog,
    "dropped mirror": _drop_mirror,
    "deletes to convert": _convert_deletes,
    "too much for the quarantine": _exceed_quarantine,
    "frozen columns": _refuse_columns,
    "new table in the config": _empty_sources,
    "other key": _configure(key=["name"]),
    "other partitions": _configure(partition_by=["bucket(2, id)"]),
    "other identity": _configure(key=[], identity="full"),
    "other handling of deletes": _configure(soft_delete=True),
    "unknown column to sort by": _configure(sort_by=["unknown"]),
    "option that does not exist": lambda project: project.write({"shop.products": {"key": ["id"]}}, unknown=1),
}
QUICK = {
    "nothing changed",
    "deleted file",
    "empty table",
    "new file",
    "grown file",
    "mirror behind its log",
    "other key",
}
QUICK |= {"deletes to convert", "new table of a pattern"}


def _cases(cases: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(change, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, change in cases.items()
    ]


@pytest.mark.parametrize("change", _cases(NOTHING))
def test_a_run_that_finds_nothing_new_is_reported_as_by_a_whole_run(project: Project, change: Any) -> None:
    change(project)
    config, before = load(project.folder / "nevermore.yaml"), project.snapshots()
    found = found_nothing_new(config)
    assert found is not None
    assert _document(found) == _document(run_once(config))
    assert found.exit_code == 0
    assert project.snapshots() == before


@pytest.mark.parametrize("change", _cases(NEWS))
def test_whatever_may_be_something_is_left_to_a_whole_run(project: Project, change: Any) -> None:
    change(project)
    assert found_nothing_new(load(project.folder / "nevermore.yaml")) is None


def test_a_copied_project_is_still_refused(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copied") / "project"
    shutil.copytree(project.folder, copy)
    config = load(copy / "nevermore.yaml")
    assert found_nothing_new(config) is None
    with pytest.raises(PipelineError, match="was copied or moved"):
        run_once(config)
