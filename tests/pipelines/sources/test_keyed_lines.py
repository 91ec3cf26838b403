"""Lines of a key, a separator and a value: a tombstone is one that says so, and a line without the separator is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.quarantine_replay import replay_quarantine
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.project import Project, event, the
from tests.pipelines.sources.folder_reader import Reader

KEY = json.dumps({"id": 1, "a:b": "x:y"})
CREATED, DELETED = event("c", {"id": 1, "name": "a"}), event("d", {"id": 1})


def keyed_project(folder: Path, **options: Any) -> Project:
    project = Project(folder)
    project.write({"shop.products": {"key": ["id"], "max_quarantine_ratio": 1}}, layout="keyed-lines", **options)
    return project


def held(project: Project) -> list[tuple[int, str]]:
    rows = project.table("quarantine.shop_products").scan().to_arrow().to_pylist()
    return sorted((row["source_offset"], row["reason"]) for row in rows)


def test_line_without_the_separator_goes_to_quarantine_and_is_no_tombstone(tmp_path: Path) -> None:
    project = keyed_project(tmp_path)
    project.land(
        "1.jsonl",
        [f"{KEY}\t{CREATED}", CREATED, f"{KEY}:{DELETED}", f"{KEY}^null", KEY, "\t", f"{KEY}\tnull", f"{KEY}\t"],
    )
    report = project.run()
    assert (the(report).events, the(report).rejected, report.skipped) == ({"c": 1}, 5, {"tombstone": 2})
    assert [line for line, _ in held(project)] == [2, 3, 4, 5, 6]
    assert all("lacks a key, the separator '\\t' after it, or both" in reason for _, reason in held(project))


def test_line_that_is_the_key_of_a_connect_message_by_its_schema_is_a_tombstone(tmp_path: Path) -> None:
    project = keyed_project(tmp_path)
    lines = [
        json.dumps({"schema": {"type": "struct", "name": name}, "payload": {"id": 1}})
        for name in ("a.t.Key", "a.t.Value")
    ]
    project.land("1.jsonl", [f"{KEY}\t{CREATED}", *lines])
    report = project.run()
    assert (report.skipped, [line for line, _ in held(project)]) == ({"tombstone": 1}, [3])


@pytest.mark.parametrize("separator", [":", "::", "\t", " => ", "\u00a7"])
@pytest.mark.parametrize("key", [KEY, '"text"', "[1, 2]", "plain", "17"])
def test_separator_is_found_behind_the_key_and_never_inside_it(tmp_path: Path, separator: str, key: str) -> None:
    reader = Reader(tmp_path)
    reader.write("1", f"{key}{separator}{CREATED}\n{key}{separator}null\n{key}{separator}\r\n{key}{separator}")
    found = reader.run(layout="keyed-lines", key_separator=separator, report_incomplete=True)
    assert [(line, *pair) for _, line, pair in found] == [
        (1, key, CREATED),
        (2, key, "null"),
        (3, key, None),
        (4, key, None),
    ]


def test_key_separator_lets_quarantine_replay_apply_what_lacked_a_tab(tmp_path: Path) -> None:
    project = keyed_project(tmp_path)
    project.land("1.jsonl", [f"{KEY}:{CREATED}", f"{KEY}\t{event('c', {'id': 2, 'name': 'b'})}"])
    project.run()
    assert [row["id"] for row in project.rows()] == [2]
    project.write(
        {"shop.products": {"key": ["id"], "max_quarantine_ratio": 1}}, layout="keyed-lines", key_separator=":"
    )
    config = load(tmp_path / "nevermore.yaml")
    assert replay_quarantine(open_catalog(config), config, "shop.products").applied == 1
    assert [row["id"] for row in project.rows()] == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layout": "keyed-lines", "delimiter": "^"},
            "delimiter '\\^' has no effect .* keyed-lines, only for csv; key_separator",
        ),
        ({"layout": "lines", "header": False}, "header False has no effect"),
        ({"layout": "framed", "comments": ("#",)}, "comments .* has no effect"),
        ({"layout": "csv", "first_line": 2}, "first_line 2 has no effect"),
        ({"layout": "lines", "key_separator": ":"}, "key_separator ':' has no effect"),
        ({"key_separator": ":"}, "key_separator requires layout: keyed-lines"),
        ({"layout": "keyed-lines", "key_separator": ""}, "key_separator must be"),
        ({"layout": "keyed-lines", "key_separator": "a\nb"}, "key_separator must be"),
        ({"layout": "keyd-lines"}, "unknown layout 'keyd-lines'"),
    ],
)
def test_options_that_mean_nothing_for_a_layout_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileOptions(**options)


def test_delimiter_for_files_that_turn_out_to_be_no_csv_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write({"shop.products": {"key": ["id"]}}, delimiter=";")
    project.land("1.jsonl", [CREATED])
    assert "delimiter ';' has no effect for files whose layout is lines" in str(the(project.run()).error)


def test_part_of_an_event_in_psql_output_is_refused_and_what_psql_writes_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('SELECT 1;\n data\n------\n {"n":1}\n "table":"t"}\n(1 row)\n\nTime: 1.2 ms\n')
    (batch,) = discover([str(tmp_path / "a")], None, FileOptions(layout="psql"))
    assert batch.raw.skipped == {"psql output": 5, "blank line": 1}
    assert batch.raw.rejected.table.column("source_offset").to_pylist() == [5]


def test_open_transaction_at_the_end_is_told_with_its_events(tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/*", "format": "wal2json"}
    (tmp_path / "nevermore.yaml").write_text(
        yaml.safe_dump({"tables": {"shop.products": {"source": source, "key": ["id"]}}})
    )
    rows = [
        json.dumps(
            {
                "action": "I",
                "schema": "shop",
                "table": "products",
                "columns": [{"name": "id", "type": "bigint", "value": n}],
            }
        )
        for n in range(3)
    ]
    begin, commit = '{"action": "B"}', '{"action": "C"}'
    project.land("1.jsonl", [begin, rows[0], commit, begin, rows[1], rows[2]])
    report = project.run()
    assert report.skipped["waiting for the commit of their transaction"] == 3
    assert the(report).events == {"c": 1}
    assert project.run().skipped == {"waiting for the commit of their transaction": 3}
    project.land("2.jsonl", [commit])
    assert "waiting for the commit of their transaction" not in project.run().skipped
    assert len(project.rows()) == 3


def test_row_before_an_update_without_its_new_row_is_told(tmp_path: Path) -> None:
    project = Project(tmp_path)
    source = {"type": "files", "path": "landing/*", "format": "rows"}
    (tmp_path / "nevermore.yaml").write_text(
        yaml.safe_dump({"tables": {"shop.products": {"source": source, "key": ["id"]}}})
    )
    project.land("1.jsonl", ['{"op": "+I", "id": 1}', '{"op": "-U", "id": 1}'])
    assert project.run().skipped == {"waiting for the new row of their update": 1}
