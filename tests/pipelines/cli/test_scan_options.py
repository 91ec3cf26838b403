"""Options of scans from the config and the command line reach the scan of every command that reads."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.checks.mirror_checks import mirror_subject
from nevermore.pipelines.cli.arguments import open_named_table
from nevermore.pipelines.config.project import load, parse
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.publish.mirror_reads import mirror_scans
from nevermore.pipelines.publish.query import published_query
from nevermore.scan_core import OptionError, ScanOptions, Switches
from tests.scan_core.read.test_bombs import bomb_table
from tests.support.iceberg_json import Column
from tests.support.shop_project import ShopProject
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]
TABLES = "tables: {shop.orders: {source: {type: files, path: x.jsonl, format: debezium-json}, key: [id]}}\n"


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """Two data files with distant ids."""
    table = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    for start in (0, 1_000):
        table.commit(table.data({"id": list(range(start, start + 100))}))
    return table.metadata_path


def test_every_option_can_be_written_as_text() -> None:
    other: dict[str, Any] = {f.name: not f.default for f in (*fields(ScanOptions), *fields(Switches)) if f.type is bool}
    other |= {f.name: 7 for f in fields(ScanOptions) if f.type is int}
    other |= {"index_folder": "/x"}
    assert ScanOptions.from_settings({name: str(value) for name, value in other.items()}).changed() == other
    assert ScanOptions.from_settings(other).changed() == other
    assert ScanOptions.from_settings({"memory_limit_bytes": "64MiB"}).memory_limit_bytes == 64 * 1024**2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"memory_limit": 5}, "unknown scan option 'memory_limit'; did you mean 'memory_limit_bytes'?"),
        ({"memory_limit_bytes": "many"}, "memory_limit_bytes must be a size, such as 64MiB, not 'many'"),
        ({"parallelism": "2k"}, "parallelism must be a whole number, not '2k'"),
        ({"parallelism": 0}, "parallelism must be at least 1, not 0"),
        ({"prune_pages": "perhaps"}, "prune_pages must be true or false, not 'perhaps'"),
        ({"index_folder": 5}, "index_folder must be the path of a folder, not 5"),
        ({"switches": 5}, "unknown scan option 'switches'"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_given(
    run: Run, two_files: Path, setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as refused:
        ScanOptions.from_settings(setting)
    assert message in str(refused.value)
    with pytest.raises(ConfigError) as of_config:
        parse(TABLES + f"scan: {json.dumps(setting)}")
    assert message in str(of_config.value)
    assert "nevermore.yaml:2: " in str(of_config.value)
    if setting != {"index_folder": 5}:
        (name, value), *_ = setting.items()
        code, _, errors = run("scan", two_files, "--scan-option", f"{name}={value}")
        assert code == 2
        assert message in errors.replace("\n", " ")


def test_switches_of_the_command_line_change_what_is_read(run: Run, two_files: Path) -> None:
    for words in (["--count"], []):
        request = ["scan", two_files, "--where", "id < 50", *words, "--metrics"]
        pruned = json.loads(run(*request)[2])
        everything = json.loads(run(*request, "--scan-option", "prune_files=false")[2])
        assert (pruned["data_files_pruned"], everything["data_files_pruned"]) == (1, 0)
    explained = run("explain", two_files, "--where", "id < 50", "--scan-option", "prune_files=false")[1]
    assert "options: prune_files = False" in explained
    assert "data files: 2 to read of 2 listed" in explained
    assert run("scan", two_files, "--scan-option", "prune_files")[0] == 2


def test_every_reader_starts_with_the_options(
    run: Run, tmp_path: Path, two_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ScanOptions] = []
    real = scan_core.open_table

    def opened(*args: Any, **named: Any) -> scan_core.Table:
        table = real(*args, **named)
        seen.append(table.options)
        return table

    monkeypatch.setattr(scan_core, "open_table", opened)
    for command in (["scan"], ["scan", "--count"], ["changes"], ["explain"], ["why", "--key", "id=5"]):
        seen.clear()
        assert run(command[0], two_files, *command[1:], "--scan-option", "memory_limit_bytes=64MiB")[0] == 0
        assert [o.changed() for o in seen] == [{"memory_limit_bytes": 64 * 1024**2}]


def test_mirrors_of_a_project_are_read_with_its_options(run: Run, tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    project.land_orders()
    project.land_people()
    project.path.write_text(project.path.read_text() + "scan: {memory_limit_bytes: 64MiB, index_folder: indexes}\n")
    ingested = run("ingest", "--config", project.path)
    assert ingested[0] == 0, ingested[2]
    config = load(project.path).with_scan({"prune_pages": "false"})
    expected = {"memory_limit_bytes": 64 * 1024**2, "index_folder": str(tmp_path / "indexes"), "prune_pages": False}
    scans = mirror_scans(open_catalog(config), config, published_query(config, "shop.daily"))
    assert scans["shop.orders"].options.changed() == expected
    subject = mirror_subject(config, "shop.orders")
    assert subject is not None
    assert subject.opened.scan().options.changed() == expected
    opened = open_named_table("shop.orders", None, project.path, ["prune_pages=false"])
    assert opened.scan().options.changed() == expected


@pytest.mark.parametrize("command", [["check"], ["publish", "shop.daily"], ["sql", "select id from shop.orders"]])
def test_commands_of_a_project_refuse_a_wrong_option(run: Run, tmp_path: Path, command: list[str]) -> None:
    project = ShopProject(tmp_path)
    code, _, errors = run(*command, "--config", project.path, "--scan-option", "memory_limit=5")
    assert (code, "did you mean 'memory_limit_bytes'?" in errors.replace("\n", " ")) == (2, True), errors


def test_a_memory_limit_of_the_command_line_is_kept(run: Run, tmp_path: Path) -> None:
    path, num_rows = bomb_table(tmp_path / "t", "one large page")
    code, _, errors = run(
        "scan", path, "--output", tmp_path / "out.parquet", "--scan-option", "memory_limit_bytes=64MiB"
    )
    assert code != 0
    assert "raise memory_limit_bytes" in errors.replace("\n", " ")
    large = ["--output", tmp_path / "out.parquet", "--scan-option", "memory_limit_bytes=2GiB"]
    assert run("scan", path, *large)[0] == 0
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == num_rows
