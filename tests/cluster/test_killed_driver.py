"""The driver is killed while its tasks write, before it commits, and after: what is published next is right, and tidy."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.storage import EXIT_CODE, VARIABLE
from nevermore.pipelines.maintain.orphans import orphans_of_all
from tests.cluster.conftest import REPOSITORY
from tests.cluster.sales_project import DAYS, make_project, published

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

SECONDS = 300
_SOLD = """
  shop.sold:
    partition: day
    mode: {mode}
    key: [id]
    sql: select day, id, amount from shop.sales where id % 3 < 2
    options: {{distribution: rebalance}}
spark:
  master: local[2]
  conf: {{spark.driver.memory: 1g, spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}
"""
COLUMNS = ["day", "id", "amount"]


def start(module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    settings = known | {"PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"} | environment
    return subprocess.Popen(command, cwd=REPOSITORY, env=settings, stdout=subprocess.DEVNULL)


def publish(path: Path, day: str, **environment: str) -> int:
    """The exit code of `nevermore publish`."""
    arguments = ("publish", "shop.sold", "--partition", day, "--config", str(path))
    return start("nevermore.pipelines.cli.main", *arguments, **environment).wait(SECONDS)


def kill_while_writing(path: Path, day: str, marker: Path) -> None:
    process = start("tests.cluster.hanging_job", str(path), day, str(marker))
    deadline = time.monotonic() + SECONDS
    try:
        while not marker.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("mode", ["replace", "upsert"])
def test_what_is_published_next_is_right_and_nothing_lies_around(mode: str, tmp_path: Path) -> None:
    path = make_project(tmp_path / "project", 40_000, 10_000)
    with path.open("a", encoding="utf-8") as config_file:
        config_file.write(_SOLD.format(mode=mode))
    config = load(path)

    assert publish(path, DAYS[1]) == 0
    kill_while_writing(path, DAYS[0], tmp_path / "hangs")
    assert publish(path, DAYS[0], **{VARIABLE: "after-files"}) == EXIT_CODE
    table = find_table(open_catalog(config), "shop.sold")
    assert table is not None
    assert len(table.metadata.snapshots) == 1
    folder = Path(table.location().removeprefix("file://"))
    named = {p.removeprefix("file://") for p in table.inspect.all_files()["file_path"].to_pylist()}
    files = {str(p) for p in folder.rglob("*.parquet")}
    assert len(files) > len(named)

    assert publish(path, DAYS[0], **{VARIABLE: "after-commit"}) == EXIT_CODE
    assert files < {str(p) for p in folder.rglob("*.parquet")}
    assert publish(path, DAYS[1]) == 0

    truth = Counter({row: n for row, n in published(config, "shop.sales", COLUMNS).items() if row[1] % 3 < 2})
    assert published(config, "shop.sold", COLUMNS) == truth
    table = find_table(open_catalog(config), "shop.sold")
    assert table is not None
    named = {p.removeprefix("file://") for p in table.inspect.all_files()["file_path"].to_pylist()}
    left = {str(p) for p in folder.rglob("*.parquet")} - named
    (found,) = orphans_of_all(open_catalog(config), config, ["shop.sold"], overrides=RetentionConfig(orphan_age=0.001))
    assert left <= {path.removeprefix("file://") for path in found.files}
