"""Values of environment variables, passwords in URLs and values of catalogs show up in no message, log, JSON or metadata."""

import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from nevermore.pipelines.cli import main
from nevermore.pipelines.cli.terminal import print_json
from nevermore.pipelines.config.project import SECTIONS, CatalogConfig, load
from nevermore.pipelines.errors import ConfigError, PipelineError, SourceError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.scan_core.model import errors
from nevermore.scan_core.model.errors import hide_secrets, remember_secret
from tests.pipelines.project import Project, event, product

CANARY = "c4nary-Vog3l"
SHAPES: dict[str, Any] = {
    "text": "${SECRET}",
    "inside": "https://name:${SECRET}@host.invalid/x${SECRET}",
    "list": ["${SECRET}", {"a": "${SECRET}"}],
    "mapping": {"${SECRET}": "${SECRET}", "b": ["${SECRET}"]},
    "literal": "https://name:c4nary-Vog3l@host.invalid/x",
}
FIELDS = [
    *(
        (("catalog",), name)
        for name in (*CatalogConfig.model_fields, "password", "token", "s3.secret-access-key", "headers")
    ),
    *(
        (place, name)
        for place, model in SECTIONS.items()
        for name in model.model_fields
        if name not in {"path", "patterns"}
    ),
    *((("tables", "*", "source"), name) for name in ("path",)),
    *(
        (("tables", "*", "source", "options"), name)
        for name in (
            "registry",
            "registry_user",
            "registry_token",
            "schemas",
            "layout",
            "delimiter",
            "unknown",
            "batch_rows",
        )
    ),
]


@pytest.fixture(autouse=True)
def _canary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SECRET", CANARY)
    monkeypatch.setattr(errors, "_known", {})
    factory = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(factory)


def config_with(place: tuple[str, ...], name: str, value: Any) -> dict[str, Any]:
    """A right config but for one value."""
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json", "options": {}}
    document: dict[str, Any] = {
        "catalog": {"type": "sql"},
        "tables": {"shop.products": {"key": ["id"], "source": source, "index": {}, "maintenance": {}}},
        "published": {
            "shop.made": {"sql": "select id from shop.products", "options": {}, "index": {}, "maintenance": {}}
        },
        "spark": {},
        "maintenance": {},
    }
    names = {"tables": "shop.products", "published": "shop.made"}
    at = document
    above = ""
    for step in place:
        if above == "source":  # the type of the source, which decides about its other options
            at["type"] = step
            for other in () if step == "files" else ("path", "format", "options"):
                at.pop(other, None)
        elif step == "expectations":  # a list of sections
            at = at.setdefault(step, [{"expect": "expect_column_values_to_not_be_null", "column": "id"}])[0]
        elif above != "expectations":
            at = at.setdefault(names[above] if step == "*" else step, {})
        above = step
    at[name] = value
    return document


@pytest.mark.each(6)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_fault_of_a_config_shows_what_the_environment_held(tmp_path: Path, shape: str) -> None:
    faults = 0
    for place, name in FIELDS:
        path = tmp_path / "nevermore.yaml"
        path.write_text(yaml.safe_dump(config_with(place, name, SHAPES[shape])))
        try:
            config = load(path)
            open_catalog(config)
        except PipelineError as error:
            faults += 1
            told = str(error) + "".join(traceback.format_exception(error))
        else:
            told = ""
        assert CANARY not in told, (place, name)
    assert faults > 20


@pytest.mark.parametrize("value", [12345678, ["x-secret"], {"a": "x-secret"}, 3.25, True], ids=str)
@pytest.mark.parametrize("name", ["uri", "warehouse", "type", "name"])
def test_values_of_a_catalog_are_not_repeated_when_they_are_of_the_wrong_type(
    tmp_path: Path, name: str, value: Any
) -> None:
    path = tmp_path / "nevermore.yaml"
    path.write_text(yaml.safe_dump(config_with(("catalog",), name, value)))
    with pytest.raises(ConfigError, match=f"catalog.{name}: must be ") as caught:
        load(path)
    assert "x-secret" not in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_passwords_in_urls_are_left_out() -> None:
    told = str(
        SourceError("https://me:pass@word@host/x and s3://key:sec@bucket/y, postgres://u:p@h; mail a@b.c, 10:30")
    )
    assert told == "https://***@host/x and s3://***@bucket/y, postgres://***@h; mail a@b.c, 10:30"


def test_logs_show_names_of_variables(caplog: pytest.LogCaptureFixture) -> None:
    remember_secret("SECRET", CANARY)
    logging.getLogger("some.library").warning("asked %s with %s", f"http://h/{CANARY}", CANARY)
    assert [r.getMessage() for r in caplog.records] == ["asked http://h/${SECRET} with ${SECRET}"]
    assert hide_secrets(repr(f"a\n{CANARY}")) == r"'a\n${SECRET}'"


def test_traces_of_errors_that_led_to_ours_show_nothing() -> None:
    remember_secret("SECRET", CANARY)
    try:
        try:
            raise ValueError(f"cannot log in with {CANARY}")  # noqa: TRY301
        except ValueError as error:
            raise SourceError(f"no {CANARY}") from error
    except SourceError as error:
        told = "".join(traceback.format_exception(error))
    assert CANARY not in told.replace(f"{{{'CANARY'}}}", "")
    assert "cannot log in with ${SECRET}" in told


def test_the_command_line_shows_nothing_of_a_source_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nevermore.yaml"
    for value in (f"s3://name:{CANARY}@bucket.invalid/x", "${SECRET}/none.jsonl", {"a": "${SECRET}"}):
        path.write_text(yaml.safe_dump(config_with(("tables", "*", "source"), "path", value)))
        for words in (
            ["ingest", "--config", str(path)],
            ["ingest", "--config", str(path), "--json"],
        ):
            with pytest.raises(SystemExit) as ended:
                main.main(words)
            assert ended.value.code
            shown = capsys.readouterr()
            assert CANARY not in shown.out + shown.err
            assert "error" in shown.out + shown.err or "failed" in shown.err


COMMANDS = (
    ["ingest"],
    ["ingest", "--json"],
    ["status"],
    ["status", "--json"],
    ["tables"],
    ["tables", "--json"],
    ["describe", "shop.products"],
    ["describe", "shop.products", "--json"],
    ["quarantine", "list"],
    ["quarantine", "show", "shop.products", "--json"],
    ["quarantine", "replay", "shop.products"],
    ["replay", "shop.products", "--all"],
    ["resync", "shop.products", "--json"],
    ["why", "shop.products", "--key", "id=1"],
    ["check"],
    ["publish", "--explain"],
    ["recover", "--dry-run", "--json"],
)
"""Commands that read a config; each prints text or JSON to standard output, and messages to standard error."""
REJECTED = [json.dumps("no object"), json.dumps("no object"), '{"broken": "event"}']
"""Lines of which so many are rejected that nothing is applied."""
TABLE_DATA = {"key", "partition_by", "properties", "rename", "sort_by", "source_table", "types", "cast", "path"}
"""Fields that say what the tables themselves contain: names of columns and files, and properties."""


def outputs(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """All that a command prints, with its log and the traceback of its error."""
    try:
        main.main([*words])
    except SystemExit:
        trace = ""
    except Exception as error:  # noqa: BLE001 - errors that are not ours are printed with their traceback
        trace = "".join(traceback.format_exception(error))
    shown = capfd.readouterr()
    return shown.out + shown.err + trace


def leaks_of(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    place: tuple[str, ...],
    name: str,
    value: Any,
    *,
    lines: Sequence[str],
    commands: Sequence[list[str]] = COMMANDS,
) -> Iterator[str]:
    """Commands, logs and files that show the value of a field."""
    (folder / "landing").mkdir(parents=True)
    (folder / "landing" / "1.jsonl").write_text("\n".join(lines))
    path = folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump(config_with(place, name, value)))
    for words in commands:
        if CANARY in outputs(capfd, *words, "--config", str(path)):
            yield f"{place} {name}: {' '.join(words)}"
    if any(CANARY in record.getMessage() or CANARY in (record.exc_text or "") for record in caplog.records):
        yield f"{place} {name}: log"
    caplog.clear()
    for file in (folder / "warehouse").rglob("*"):
        if name not in TABLE_DATA and file.is_file() and CANARY.encode() in file.read_bytes():
            yield f"{place} {name}: {file.name}"


@pytest.mark.parametrize(("name", "value"), [("include", "${SECRET}"), ("properties", {"note": "${SECRET}"})])
def test_a_value_of_the_environment_is_in_no_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, name: str, value: Any
) -> None:
    lines = [*(event("c", product(number)) for number in (1, 2, 3)), '{"broken": "event"}']
    found = leaks_of(tmp_path, capfd, caplog, ("tables", "*"), name, value, lines=lines, commands=COMMANDS[:8])
    assert list(found) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", ["text", "inside"])
def test_a_value_of_the_environment_in_any_field_is_in_no_output_of_a_run_that_rejects_its_events(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, shape: str
) -> None:
    caplog.set_level(logging.DEBUG)
    leaks = [
        leak
        for number, (place, name) in enumerate(FIELDS)
        for leak in leaks_of(tmp_path / str(number), capfd, caplog, place, name, SHAPES[shape], lines=REJECTED)
        if (place, name) != (("catalog",), "name")  # the catalog stores its own name
    ]
    assert leaks == []


def test_a_secret_with_quotes_is_hidden_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    remember_secret("SECRET", 'with "quotes" and \\')
    print_json({"a": ['x with "quotes" and \\ y'], 'with "quotes" and \\': 1})
    assert json.loads(capfd.readouterr().out) == {"a": ["x ${SECRET} y"], "${SECRET}": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["inside", "literal"])
def test_canaries_in_every_field_reach_no_output_of_any_command_nor_the_warehouse(tmp_path: Path, shape: str) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"]}})
    project.land("1.jsonl", (event("c", product(n)) for n in range(3)))
    environment = {**os.environ, "SECRET": CANARY, "DAGSTER_HOME": str(tmp_path / "dagster")}
    Path(tmp_path / "dagster").mkdir()
    path = tmp_path / "nevermore.yaml"
    extra = {"password": SHAPES[shape], "token": SHAPES[shape], "s3.secret-access-key": SHAPES[shape]}
    whole = config_with(("catalog",), "password", SHAPES[shape])
    whole["catalog"] |= extra
    options = {"registry": SHAPES[shape], "registry_user": SHAPES[shape], "registry_token": SHAPES[shape]}
    broken = [
        config_with(place, name, SHAPES[shape]) for place, name in FIELDS[1::15]
    ]  # not the name of a catalog, which it keeps
    avro = config_with(("tables", "*", "source"), "format", "debezium-avro")
    avro["tables"]["shop.products"]["source"]["options"] = options
    commands = [["ingest", "--json"], ["status", "--json"], ["check", "--json"], ["check"], ["status"]]
    program = (
        "import sys; from dagster import materialize, DagsterInstance; from nevermore.assets.definitions import defs\n"
        "d = defs() if callable(defs) else defs\n"
        "job = d.get_implicit_global_asset_job_def()\n"
        "r = job.execute_in_process(raise_on_error=False, instance=DagsterInstance.get())\n"
        "print(*[repr(e) for e in r.all_events], sep='\\n')"
    )
    shown = ""
    for document in [whole, avro, *broken]:
        path.write_text(yaml.safe_dump(document))
        for words in commands if document is whole else commands[:1]:
            done = subprocess.run(
                [sys.executable, "-m", "nevermore.pipelines.cli.main", *words, "--config", str(path)],
                env=environment, capture_output=True, text=True, check=False, cwd=tmp_path,
            )  # fmt: skip
            shown += done.stdout + done.stderr
        if document in (whole, avro):
            dagster = subprocess.run(
                [sys.executable, "-c", program],
                env={**environment, "NEVERMORE_CONFIG": str(path)}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            shown += dagster.stdout + dagster.stderr
    assert "shop.products" in shown
    assert CANARY not in shown, shown[max(shown.find(CANARY) - 600, 0) : shown.find(CANARY) + 100]
    for file in (tmp_path / "warehouse").rglob("*"):
        if file.is_file():
            assert CANARY.encode() not in file.read_bytes(), file
    for file in (tmp_path / "dagster").rglob("*"):
        if file.is_file():
            assert CANARY.encode() not in file.read_bytes(), file
    assert json.dumps(shown)
