"""Events that other projects published, through the real ingest, reach exactly the rows expected of them."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from nevermore.pipelines.config.project import load, quarantine_name
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.ingest.report import IngestReport
from nevermore.scan_core import open_table

Row = dict[str, Any]


@dataclass
class Project:
    """A config that reads files of a landing folder into the tables of a set."""

    folder: Path
    tables: Mapping[str, Any]
    format: str = "debezium-json"
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        (self.folder / "landing").mkdir()
        source = {"type": "files", "path": "landing/*", "format": self.format, "options": dict(self.options)}
        several = len(self.tables) > 1
        tables = {
            name: {
                "source": source,
                "key": table["key"],
                **({"source_table": name} if several else {}),
                **self.settings,
            }
            for name, table in self.tables.items()
        }
        (self.folder / "nevermore.yaml").write_text(yaml.safe_dump({"tables": tables}))

    def land(self, *files: Path) -> None:
        for file in files:
            (self.folder / "landing" / f"{self.number}_{file.name}").write_bytes(file.read_bytes())
            self.number += 1

    def run(self) -> IngestReport:
        report = run_once(load(self.folder / "nevermore.yaml"))
        assert [t.error for t in report.tables] == [None] * len(report.tables)
        return report

    def table(self, name: str) -> pa.Table | None:
        table = find_table(open_catalog(load(self.folder / "nevermore.yaml")), name)
        return None if table is None else open_table(table).scan().to_table()

    def assert_rows(self, stage: Mapping[str, Any] | None = None) -> None:
        for name, table in (stage or self.tables).items():
            assert_rows(self.table(name), self.tables[name]["key"], table["rows"])


def expected_value(value: Any, like: Any) -> Any:
    """A value of `expected.json` in the type of the stored one."""
    if value is None or like is None:
        return value
    match like:
        case datetime() if like.tzinfo is not None:
            return datetime.fromisoformat(value).astimezone(UTC)
        case datetime():
            return datetime.fromisoformat(value)
        case date():
            return date.fromisoformat(value)
        case time():
            return time.fromisoformat(value)
        case bytes():
            return b64decode(value)
        case Decimal():
            return Decimal(value)
        case str() if isinstance(value, dict):
            return like if json.loads(like) == value else value
        case dict():
            return {name: expected_value(value.get(name), member) for name, member in like.items()}
        case _:
            return value


def assert_rows(table: pa.Table | None, key: Sequence[str], rows: list[Row]) -> None:
    stored = [] if table is None else table.to_pylist()
    assert len(stored) == len(rows)
    names = {name for row in rows for name in row}
    for row in rows:
        found = [s for s in stored if all(s[k] == expected_value(row[k], s[k]) for k in key)]
        assert len(found) == 1, f"{len(found)} rows for {row}"
        got = {name: value for name, value in found[0].items() if name in names or value is not None}
        assert got == {name: expected_value(row.get(name), got.get(name)) for name in sorted({*names, *got})}
        for name, value in got.items():
            if isinstance(value, Decimal):
                assert str(value) == row[name]


@pytest.fixture(scope="session")
def expected(shared_dir: Path) -> dict[str, Any]:
    return json.loads((shared_dir / "cdc" / "expected.json").read_text())


STREAMS = [
    ("debezium_mysql_products", "debezium-json"),
    ("debezium_partial_before", "debezium-json"),
    ("canal_mysql_products", "canal-json"),
    ("canal_mysql_schema_evolution", "canal-json"),
    ("maxwell_mysql_products", "maxwell-json"),
    ("dms_json_schema_evolution", "dms"),
    ("wal2json_pagila", "wal2json"),
]


@pytest.mark.each(8)
@pytest.mark.parametrize(("name", "format_name"), STREAMS)
def test_stream_reaches_expected_rows(
    name: str, format_name: str, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected[name]
    project = Project(tmp_path, case["tables"], format_name)
    project.land(*(shared_dir / "cdc" / name / file for file in case["files"]))
    assert project.run().exit_code == 0
    project.assert_rows()
    again = project.run()
    assert again.found_nothing_new


@pytest.mark.each(2)
@pytest.mark.parametrize("name", [name for name, _ in STREAMS if name != "wal2json_pagila"])
def test_stream_in_commits_of_one_change_reaches_the_same_rows(
    name: str, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected[name]
    project = Project(tmp_path, case["tables"], dict(STREAMS)[name], settings={"commit_rows": 1})
    project.land(*(shared_dir / "cdc" / name / file for file in case["files"]))
    assert project.run().exit_code == 0
    project.assert_rows()


@pytest.mark.each(3)
@pytest.mark.parametrize(
    "name", ["debezium_partial_before", "dms_json_schema_evolution", "canal_mysql_schema_evolution"]
)
def test_stream_has_the_expected_rows_after_each_file(
    name: str, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    case = expected[name]
    project = Project(tmp_path, case["tables"], dict(STREAMS)[name])
    for stage in case["stages"]:
        project.land(shared_dir / "cdc" / name / stage["after_file"])
        assert project.run().exit_code == 0
        project.assert_rows(stage["tables"])


@pytest.mark.parametrize("file", ["with_schema.jsonl", "without_schema.jsonl"])
def test_both_envelopes_reach_the_same_rows(
    file: str, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    name = "debezium_mysql_customers"
    project = Project(tmp_path, expected[name]["tables"])
    project.land(shared_dir / "cdc" / name / file)
    assert project.run().exit_code == 0
    project.assert_rows()


def test_delete_that_names_no_row_is_quarantined_and_the_rest_applied(
    tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    name = "debezium_postgres_no_before"
    project = Project(tmp_path, expected[name]["tables"])
    project.land(shared_dir / "cdc" / name / "events.jsonl")
    report = project.run()
    assert report.exit_code == 3
    project.assert_rows()
    rejected = project.table(quarantine_name("inventory.products"))
    assert rejected is not None
    assert rejected.column("source_offset").to_pylist() == [16]
    assert project.run().exit_code == 0


@pytest.mark.each(2)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "replayed"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_dump_sorted_as_text_is_ordered_by_its_time(
    number: int, *, together: bool, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    name = "debezium_keyed_tombstones"
    case = expected[name]
    ((table, facts),) = case["tables"].items()
    stage = case["stages"][number]
    project = Project(tmp_path, case["tables"], settings={"order_by": ["payload.ts_ms"]})
    first = 0 if together else number
    for earlier in case["stages"][first : number + 1]:
        project.land(shared_dir / "cdc" / name / earlier["file"])
        assert project.run().exit_code == 0
    project.assert_rows({table: {"rows": facts["rows"] + ([stage["row_id_1"]] if stage["row_id_1"] else [])}})


@pytest.mark.parametrize("file", ["with_schema.json", "without_schema.json", "without_schema_numeric_decimal.json"])
def test_every_type_of_mysql_in_every_encoding_reaches_the_same_row(
    file: str, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    name = "debezium_mysql_all_types"
    case = expected[name]
    ((_, table),) = case["tables"].items()
    text = (shared_dir / "cdc" / name / file).read_text()
    split = text.index('"expected_binlog"')
    first = text[text.index("{", 1) : text.rindex(",", 0, split)]
    second = text[text.index("{", split) : text.rindex("}")]
    lines = tmp_path / "events.jsonl"
    lines.write_text("".join(" ".join(part.split("\n")) + "\n" for part in (first, second)))
    types = {
        column: kind.split(" ")[0].replace("decimal(65,1)", "decimal(38,1)")
        for column, kind in table["columns"].items()
        if kind != "struct"
    }
    row = json.loads(first)
    after = row.get("payload", row)["after"]
    encodings = {n: "base64" for n, kind in types.items() if "decimal" in kind and isinstance(after[n], str)}
    settings = {"types": types, "encodings": encodings, "source_table": "*.full_types"}
    project = Project(tmp_path, case["tables"], settings=settings)
    project.land(lines)
    assert project.run().exit_code == 0
    project.assert_rows()


def test_placeholder_of_an_unsent_column_keeps_the_value_of_the_mirror(
    tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    name = "debezium_postgres_toast"
    case = expected[name]
    ((_, table),) = case["tables"].items()
    project = Project(tmp_path, case["tables"], options={"comments": ["#"]}, settings={"types": {"dob": "timestamp"}})
    seed = tmp_path / "seed.json"
    source = {"db": "postgres", "schema": "inventory", "table": "authors"}
    seed.write_text(json.dumps({"op": "c", "before": None, "after": table["seed_row"], "source": source}) + "\n")
    project.land(seed)
    assert project.run().exit_code == 0
    project.land(shared_dir / "cdc" / name / "key_and_value.json5")
    assert project.run().exit_code == 0
    project.assert_rows()


@pytest.mark.parametrize("file", ["actions.out", "truncate.out", "pk.out"])
def test_psql_output_of_wal2json_reaches_expected_rows(
    file: str, tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    part = expected["wal2json_regression"]["parts"][file]
    first, last = part["lines"]
    project = Project(
        tmp_path, part["tables"], "wal2json", options={"layout": "psql", "first_line": first, "last_line": last}
    )
    project.land(shared_dir / "cdc" / "wal2json_regression" / file)
    assert project.run().exit_code == 0
    project.assert_rows()


def test_renamed_key_columns_stop_the_table_instead_of_being_guessed(
    tmp_path: Path, shared_dir: Path, expected: dict[str, Any]
) -> None:
    part = expected["wal2json_regression"]["parts"]["rename_column.out"]
    first, last = part["lines"]
    tables = {name: {"key": []} for name in part["tables"]}
    project = Project(tmp_path, tables, "wal2json", options={"layout": "psql", "first_line": first, "last_line": last})
    project.land(shared_dir / "cdc" / "wal2json_regression" / "rename_column.out")
    report = run_once(load(tmp_path / "nevermore.yaml"))
    assert report.exit_code in {1, 3}
    assert all(t.error is not None or t.quarantined for t in report.tables)
