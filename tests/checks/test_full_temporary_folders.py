"""Checks when the temporary folder cannot be written: those that need it fail and say why, others still run, no failure is stored."""

import json
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa
import pytest

from nevermore.checks.published_equality import check_published
from nevermore.checks.reference import sql_columns
from nevermore.checks.reference.sql_columns import (
    TemporaryFolderError,
    limited_memory,
    open_connection,
    private_database,
)
from nevermore.pipelines.cli.main import main
from tests.checks.test_published_equality import NAME, make_config, state_of, write
from tests.pipelines.project import event, product

ROWS = 20_000


@contextmanager
def small_files(num_bytes: int = 8192) -> Iterator[None]:
    """No file may be larger, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _stored() -> None:
    rows = pa.table({"c0": range(ROWS)})
    with private_database() as database:
        database.store("given", rows.schema, rows.to_batches())


def _sorted() -> None:
    with limited_memory(64 * 1024**2), open_connection() as connection:
        connection.execute(
            "CREATE TEMP TABLE t AS SELECT i::VARCHAR || repeat('x', 99) AS s FROM range(2_000_000) t(i) ORDER BY s"
        )


def _streamed() -> None:
    with limited_memory(64 * 1024**2), open_connection() as connection:
        query = "SELECT i::VARCHAR || repeat('x', 99) AS s, random() AS r FROM range(2_000_000) t(i) ORDER BY r"
        for _ in connection.sql(query).to_arrow_reader(1000):
            pass


@pytest.mark.each(3)
@pytest.mark.parametrize("use", [_stored, _sorted, _streamed])
def test_the_folder_is_named_and_the_next_use_works(use: Callable[[], None]) -> None:
    with (
        small_files(),
        pytest.raises(TemporaryFolderError, match=r"temporary files, /.* make room in it .* set TMPDIR"),
    ):
        use()
    use()


def _project(folder: Path) -> Path:
    (folder / "landing").mkdir()
    for name in ("products", "orders"):
        lines = (event("c", product(i), table=name) + "\n" for i in range(ROWS))
        (folder / "landing" / f"{name}.jsonl").write_text("".join(lines))
    source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
    table = {"source": source, "key": ["id"], "checks": {"expectations": []}}
    config = folder / "nevermore.yaml"
    config.write_text(json.dumps({"tables": {"shop.products": table, "shop.orders": table}}))
    return config


@pytest.mark.each(3)
@pytest.mark.parametrize("words", [[], ["--full"], ["--changed"]])
def test_other_verdicts_are_told_and_nothing_is_kept(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*command: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*command, "--config", str(config)])
        return ended.value.code, *capsys.readouterr()

    config = _project(tmp_path)
    with suppress(SystemExit):
        main(["ingest", "--config", str(config)])
    capsys.readouterr()
    with small_files():
        code, out, errors = run("check", *words)
    assert code == 1
    assert "Traceback" not in errors + out
    if words == ["--changed"]:
        assert [line.split(": the folder for temp")[0] for line in errors.splitlines()] == [
            "error: shop.products",
            "error: shop.orders",
        ]
    else:
        for table in ("shop.products", "shop.orders"):
            assert f"passed  {table}  manifests_match_files" in out
            assert f"FAILED  {table}  mirror_equals_reference" in out
        assert out.count("not checked: the folder for temporary files, /") == 6
    code, out, _ = run("check", *words)
    assert (code, out.count("FAILED")) == (0, 0)


def test_a_published_table_fails_instead_of_not_being_compared(tmp_path: Path) -> None:
    config = make_config(tmp_path, "select o.id, o.amount from shop.orders o", partition=None)
    orders = pa.table({"id": range(ROWS), "amount": [0.5] * ROWS})
    write(config, "shop.orders", orders)
    write(config, "shop.customers", pa.table({"id": [1], "city": ["Oslo"]}))
    write(config, NAME, orders, state_of(config))
    with small_files():
        found, *others = check_published(config, NAME)
    assert not found.passed
    assert "the folder for temporary files, /" in found.details[0]
    assert [other.passed for other in others] == [True]
    assert all(result.passed for result in check_published(config, NAME))


class Ended:
    """A connection to a database that a broken disk ends, after which every use of it fails."""

    def __init__(self) -> None:
        self.real = open_connection()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.real.close()

    def execute(self, sql: str) -> object:
        if "DETACH" in sql:
            raise duckdb.FatalException("database has been invalidated because of a previous fatal error")
        return self.real.execute(sql)


def test_a_database_that_a_broken_disk_has_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sql_columns._first_connection()
    with monkeypatch.context() as patch:
        patch.setattr(sql_columns, "open_connection", Ended)
        with (
            pytest.raises(TemporaryFolderError, match=r"temporary files, /.* set TMPDIR .*cannot sync"),
            limited_memory(64 * 1024**2),
            private_database(),
        ):
            raise duckdb.IOException(f"cannot sync {tempfile.gettempdir()}/nevermore-duckdb-1/rows.duckdb.wal")
    assert sql_columns._first_connection() is not before
    _stored()
