import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.cli.ingest_commands import counted_reason

Run = Callable[..., tuple[int, str, str]]

CONFIG = """
catalog: {{type: sql, uri: "sqlite:///warehouse/catalog.db", warehouse: warehouse}}
tables:
  {table}:
    source: {{type: files, path: "landing/*", format: debezium-json}}
    key: [id]
"""
EVENT = '{{"before": null, "after": {{"id": {id}, "name": "a"}}, "source": {{"table": "t"}}, "op": "c", "ts_ms": 1}}\n'


def project(folder: Path, table: str, files: dict[str, bytes]) -> Path:
    (folder / "landing").mkdir(parents=True)
    for name, content in files.items():
        (folder / "landing" / name).write_bytes(content)
    (folder / "nevermore.yaml").write_text(CONFIG.format(table=table), encoding="utf-8")
    return folder / "nevermore.yaml"


def rows_of(run: Run, config: Path, table: str) -> list[dict[str, Any]]:
    code, output, errors = run("scan", table, "--config", config, "--format", "jsonl")
    assert code == 0, errors
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("debezium_mysql_products", ["events.jsonl"]),
        ("debezium_mysql_customers", ["with_schema.jsonl"]),
        ("debezium_mysql_customers", ["without_schema.jsonl"]),
        ("debezium_partial_before", ["part-1.txt", "part-2.txt", "part-3.txt"]),
    ],
)
def test_real_captures_reach_exactly_their_rows(
    run: Run, shared_dir: Path, tmp_path: Path, name: str, files: list[str]
) -> None:
    folder = shared_dir / "cdc"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[name]["tables"]
    ((table, wanted),) = expected.items()
    config = project(tmp_path, table, {file: (folder / name / file).read_bytes() for file in files})

    code, _, errors = run("ingest", "--config", config)
    assert code == 0, errors
    assert sorted(rows_of(run, config, table), key=str) == sorted(wanted["rows"], key=str)

    code, output, _ = run("ingest", "--config", config)
    assert (code, output) == (0, f"{table}: nothing new\n")


def test_files_that_arrive_later_are_applied_by_the_next_run(run: Run, shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "cdc" / "debezium_partial_before"
    stages = json.loads((shared_dir / "cdc" / "expected.json").read_text(encoding="utf-8"))[folder.name]["stages"]
    config = project(tmp_path, "test.product", {})
    for stage in stages:
        shutil.copy(folder / stage["after_file"], tmp_path / "landing")
        assert run("ingest", "--config", config)[0] == 0
        found = rows_of(run, config, "test.product")
        assert sorted(found, key=str) == sorted(stage["tables"]["test.product"]["rows"], key=str)


def test_a_broken_line_goes_to_quarantine_and_the_rest_goes_on(run: Run, tmp_path: Path) -> None:
    broken = b'{"before": null, "after": {"id": 3,\n'
    keyless = b'{"before": null, "after": {"name": "x"}, "op": "c"}\n'
    lines = [EVENT.format(id=1).encode(), broken, keyless, EVENT.format(id=2).encode()]
    config = project(tmp_path, "shop.t", {"1.jsonl": b"".join(lines)})

    code, _, errors = run("ingest", "--config", config)

    assert code == 3
    assert "2 events went to quarantine" in errors
    assert sorted(row["id"] for row in rows_of(run, config, "shop.t")) == [1, 2]
    kept = rows_of(run, config, "quarantine.shop_t")
    assert sorted(row["source_offset"] for row in kept) == [2, 3]
    assert all(row["reason"] for row in kept)
    assert bytes.fromhex(kept[0]["raw"]).strip() in {broken.strip(), keyless.strip()}


def test_a_failed_table_is_named_once(run: Run, tmp_path: Path) -> None:
    config = project(tmp_path, "shop.t", {"1.jsonl": b"broken\n"})
    code, _, errors = run("ingest", "--config", config)
    assert code == 1
    assert errors.startswith("shop.t: failed: 1 of 1 events were rejected")


def test_a_report_can_be_read_by_programs(run: Run, tmp_path: Path) -> None:
    config = project(tmp_path, "shop.t", {"1.jsonl": EVENT.format(id=1).encode()})
    code, output, _ = run("ingest", "--config", config, "--json")
    report = json.loads(output)
    assert (code, report["exit_code"]) == (0, 0)
    assert report["tables"][0]["events"] == {"c": 1}
    assert report["tables"][0]["position"]["source"] == "files"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("key: [id]", "kye: [id]"), "did you mean 'key'"),
        (("debezium-json", "debezium-jsn"), "debezium-json"),
        (("key: [id]", "key: [id"), "YAML"),
        (("type: files", "type: flies"), "files"),
    ],
)
def test_a_wrong_config_names_line_and_remedy(run: Run, tmp_path: Path, change: tuple[str, str], message: str) -> None:
    config = project(tmp_path, "shop.t", {"1.jsonl": EVENT.format(id=1).encode()})
    config.write_text(config.read_text(encoding="utf-8").replace(*change), encoding="utf-8")

    code, output, errors = run("ingest", "--config", config)

    assert (code, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ingst"], "No such command 'ingst'. Did you mean 'ingest', 'init'?; see `nevermore --help`"),
        (["ingest", "--jsn"], "No such option: --jsn (Possible options: --json); see `nevermore ingest --help`"),
        (["run", "--interval", "soon"], "--interval: must be a number, not 'soon'; see `nevermore run --help`"),
        (["run", "--interval", "0"], "--interval: must be at least 0.01, not '0'; see `nevermore run --help`"),
        (
            ["quarantine", "shw", "shop.orders"],
            "verb: 'shw' is not one of 'list', 'show', 'replay'; see `nevermore quarantine --help`",
        ),
        (["replay"], "Missing argument 'TABLE'; see `nevermore replay --help`"),
        (["rollback", "a.b", "c"], "Got unexpected extra argument(s) (c); see `nevermore rollback --help`"),
    ],
)
def test_wrong_usage_is_one_line_or_one_object(run: Run, words: list[str], message: str) -> None:
    assert run(*words) == (2, "", f"error: {message}\n")
    code, output, errors = run(*words, "--json")
    assert (code, output, json.loads(errors)) == (2, "", {"error": message})


def test_no_words_are_a_wish_for_help(run: Run) -> None:
    code, output, _ = run()
    assert code == 0
    assert "Turn change events into tables" in output


@pytest.mark.parametrize("command", ["ingest", "run"])
def test_a_config_without_tables_is_said_to_have_none(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "nevermore.yaml").write_text("tables: {}\n", encoding="utf-8")
    code, output, errors = run(command, "--config", tmp_path / "nevermore.yaml")
    assert (code, output) == (2, "")
    assert "nevermore.yaml: there are no entries under tables, so there is nothing to ingest" in errors


def test_a_pattern_that_no_table_of_the_feed_matches_says_so(run: Run, tmp_path: Path) -> None:
    config = project(tmp_path, "shop.*", {"1.jsonl": EVENT.format(id=1).encode()})
    config.write_text(config.read_text(encoding="utf-8") + "    include_tables: [order*]\n", encoding="utf-8")
    code, output, errors = run("ingest", "--config", config)
    assert code == 0
    assert "skipped: 1 event of other tables: t\n" in output
    assert "shop.*: matches no table in its feed (include_tables: order*)" in errors
    report = json.loads(run("ingest", "--config", config, "--json")[1])
    assert (report["unmatched_patterns"], report["untaken_tables"]) == (["shop.*"], ["t"])


def test_columns_that_config_names_and_nothing_has_are_told_with_the_nearest(run: Run, tmp_path: Path) -> None:
    config = project(tmp_path, "shop.t", {"1.jsonl": EVENT.format(id=1).encode()})
    names = "types: {nmae: string, id: long}\n    exclude: [secret]\n    rename: {idd: key, name: title}\n"
    config.write_text(f"{config.read_text(encoding='utf-8')}    {names}", encoding="utf-8")
    code, output, errors = run("ingest", "--config", config)
    assert (code, errors) == (0, "")
    nothing = "which exists neither in the events of this run nor in the table"
    assert f"shop.t: types names nmae, {nothing}; did you mean name?\n" in output
    assert f"shop.t: exclude names secret, {nothing}\n" in output
    assert f"shop.t: rename names idd, {nothing}; did you mean id?\n" in output
    assert output.count(nothing) == 3

    assert "neither in the events" not in run("ingest", "--config", config)[1]
    (tmp_path / "landing" / "2.jsonl").write_text(
        '{"before": null, "after": {"id": 2, "secret": 1}, "source": {"table": "t"}, "op": "c", "ts_ms": 1}\n'
    )
    (table,) = json.loads(run("ingest", "--config", config, "--json")[1])["tables"]
    assert table["unmet_columns"] == [
        {"option": "types", "column": "nmae", "nearest": "name"},
        {"option": "rename", "column": "idd", "nearest": "id"},
    ]


def test_what_was_skipped_is_counted_in_words(run: Run, tmp_path: Path) -> None:
    events = "".join(EVENT.format(id=number) for number in range(2)).encode()
    config = project(
        tmp_path, "shop.t", {"1.jsonl": events + b"\n", "2.jsonl": b"null\n" + EVENT.format(id=3).encode()}
    )
    assert run("ingest", "--config", config)[1].endswith("skipped: 1 blank line\nskipped: 1 tombstone\n")
    for copy in ("3.jsonl", "4.jsonl"):
        (tmp_path / "landing" / copy).write_bytes(events + b"\n")
    assert "skipped: 2 re-delivered files\n" in run("ingest", "--config", config)[1]


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [
        (1, "psql output", "1 line of psql output"),
        (2_000, "psql output", "2,000 lines of psql output"),
        (2, "DDL", "2 DDL statements"),
        (3, "waiting for the commit of their transaction", "3 events waiting for the commit of their transaction"),
        (2, "row before an update", "2 rows before updates"),
        (2, "truncate of a table without rows", "2 truncates of tables without rows"),
        (2, "control event", "2 control events"),
    ],
)
def test_reasons_have_a_plural(number: int, reason: str, words: str) -> None:
    assert counted_reason(number, reason) == words


def test_a_missing_config_and_an_unknown_table_are_usage_errors(run: Run, tmp_path: Path) -> None:
    assert run("ingest", "--config", tmp_path / "none.yaml")[0] == 2
    config = project(tmp_path, "shop.t", {})
    code, _, errors = run("ingest", "shop.tt", "--config", config)
    assert code == 2
    assert "did you mean shop.t?" in errors


def test_threads_and_engine_of_one_run(run: Run, tmp_path: Path) -> None:
    files = {f"{n}.jsonl": EVENT.format(id=n).encode() for n in range(4)}
    config = project(tmp_path, "shop.t", files)
    code, output, errors = run("ingest", "--threads", 3, "--engine", "local", "--config", config)
    assert (code, output.startswith("shop.t: 4 creates")) == (0, True), errors
    assert [row["id"] for row in rows_of(run, config, "shop.t")] == [0, 1, 2, 3]
    (tmp_path / "landing" / "4.jsonl").write_text(EVENT.format(id=4))
    code, output, _ = run("ingest", "--engine", "auto", "--config", config)
    assert "shop.t: read by this process, not by Spark: " in output
    assert "new bytes are less than spark_above_bytes: 10,737,418,240" in output
    for options, said in (
        (["--threads", 0], "--threads: must be at least 1"),
        (["--engine", "java"], "--engine"),
    ):
        code, _, errors = run("ingest", *options, "--config", config)
        assert (code, said in " ".join(errors.split())) == (2, True), errors
    config.write_text("tables: {shop.t: {key: [id], source: {type: postgres}}}")
    code, _, errors = run("ingest", "--engine", "spark", "--config", config)
    assert code == 2
    assert (
        "shop.t: Spark ingests files and topics, and slot nevermore, publication nevermore of PostgreSQL is read"
        in errors
    )


def test_events_of_no_table_are_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"op": "c", "id": 1}\n')
    table = '{source: {type: files, path: "*.jsonl", format: rows}, key: [id], max_quarantine_ratio: 1}'
    config = tmp_path / "nevermore.yaml"
    config.write_text(f"tables:\n  shop.a: {table}\n  shop.b: {table}\n")
    code, _, errors = run("ingest", "--config", config)
    assert code == 3
    assert "1 event of no table of the config: to quarantine.feed_of_TABLE" in errors
