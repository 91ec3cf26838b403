"""A catalog in PostgreSQL whose connections end at any place: every change is applied once, and no file is lost."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from sqlalchemy.exc import OperationalError

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg import commit
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.ingest.test_concurrent_writers import PROGRAM
from tests.pipelines.project import Project, event, product
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.postgres_server import postgres, programs_or_skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with postgres(programs_or_skip()) as server:
        yield server.port


@pytest.fixture
def proxied(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Project, CutProxy]]:
    monkeypatch.setattr(commit, "PAUSE_SECONDS", 0.01)
    project = Project(tmp_path)
    project.write({"shop.products": {"key": ["id"], "commit_rows": 50}}, batch_rows=50)
    with cut_proxy(port) as proxy, (tmp_path / "nevermore.yaml").open("a") as config:
        catalog = {"type": "sql", "name": tmp_path.name, "warehouse": str(tmp_path / "warehouse")}
        catalog["uri"] = f"postgresql+psycopg2://postgres@127.0.0.1:{proxy.port}/postgres"
        config.write(yaml.safe_dump({"catalog": catalog}))
        config.flush()
        yield project, proxy


def land(project: Project, number: int) -> None:
    rows = [product(i % 7, f"{number}.{i}") for i in range(60)]
    project.land(f"{number:03d}.jsonl", [event("u", row) for row in rows])


def check_exactly_once(project: Project, files: int) -> None:
    assert run_once(load(project.folder / "nevermore.yaml")).exit_code == 0
    assert project.rows() == [
        product(key, f"{files - 1}.{max(i for i in range(60) if i % 7 == key)}") for key in range(7)
    ]
    log = project.rows("change_log.shop_products", "ordinal")
    assert [r["ordinal"] for r in log] == list(range(1, files * 60 + 1))
    assert len({(r["source_file"], r["source_offset"]) for r in log}) == files * 60


@pytest.mark.parametrize("first", ["a new table", "a table with rows"])
def test_the_catalog_may_be_cut_anywhere(proxied: tuple[Project, CutProxy], first: str) -> None:
    project, proxy = proxied
    files = 0
    if first == "a table with rows":
        land(project, files)
        files += 1
        assert project.run().exit_code == 0
    piece = 1
    while True:
        land(project, files)
        files += 1
        proxy.cut_at(piece)
        with suppress(ConfigError, OperationalError):  # before any table is looked at
            assert all(table.error is None or table.may_retry for table in project.run().tables)
        proxy.cut_at(None)
        if proxy.pieces < piece:
            break
        piece += 1
        if files % 5 == 0:
            check_exactly_once(project, files)
    assert piece > 15
    check_exactly_once(project, files)


def test_two_ingesters_beside_each_other(proxied: tuple[Project, CutProxy], engine_program: str) -> None:
    project, proxy = proxied
    for number in range(6):
        land(project, number)
    command = [sys.executable, "-c", engine_program + PROGRAM, str(project.folder / "nevermore.yaml")]
    proxy.cut_at(25)
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for run in runs:
        output, errors = run.communicate(timeout=200)
        assert run.returncode in {0, 1}, output + errors
    proxy.cut_at(None)
    check_exactly_once(project, 6)
