"""A source whose optional package is not installed says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from nevermore.pipelines.cli.main import _EXTRAS as EXTRAS
from nevermore.pipelines.cli.main import _missing_extra, main
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

SOURCES = {
    "confluent_kafka": ("kafka", "{type: kafka, brokers: '127.0.0.1:1', topics: shop.t, format: debezium-json}"),
    "psycopg2": ("postgres", "{type: postgres, dsn: 'postgresql://shop@127.0.0.1:1/shop'}"),
}


def test_tables_of_parquet_are_read_without_any_package_of_an_extra(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "long")])
    builder.commit(builder.data({"id": [1, 2]}))
    command = f"main(['scan', {str(builder.metadata_path)!r}, '--count'])"
    code = f"import sys; sys.modules.update(dict.fromkeys({[*EXTRAS]})); from nevermore.pipelines.cli.main import main; {command}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"


@pytest.mark.slow
@pytest.mark.parametrize("package", SOURCES)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    kind, source = SOURCES[package]
    config = tmp_path / "nevermore.yaml"
    config.write_text(
        "catalog: {type: sql, uri: 'sqlite:///catalog.db', warehouse: warehouse}\n"
        f"tables: {{shop.t: {{source: {source}, key: [id]}}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as end:
        main(["ingest", "--config", str(config)])
    printed = capsys.readouterr()
    assert end.value.code == 2, printed
    wanted = f"a source of type {kind} requires {package}: pip install 'nevermore-iceberg[{kind}]'"
    assert wanted in printed.out + printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("imported", ["pyspark", "py4j", "py4j.protocol", "pyspark.sql"])
def test_pyspark_is_named_whichever_part_of_it_is_imported_first(
    imported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    hint = _missing_extra(ModuleNotFoundError(name=imported))
    assert hint is not None
    assert hint.startswith("this needs pyspark, which is not installed: pip install 'nevermore-iceberg[spark]'")
