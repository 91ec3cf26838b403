"""`format("nevermore")` in a session that nobody has prepared: Spark finds the data source by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

SCRIPT = """
import sys
from pyspark.sql import SparkSession

path = sys.argv[1]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(sorted(row.id for row in spark.read.format("nevermore").load(path).collect()))
spark.sql(f"create temporary view v using nevermore options (path '{path}', where 'id > 2')")
print(spark.sql("select count(*) as n from v").first().n)
try:
    spark.sql(f"create table t using nevermore options (path '{path}')")
except Exception as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_finds_the_data_source(tmp_path: Path) -> None:
    builder = TableBuilder(tmp_path / "t", [Column(1, "id", "int")])
    builder.commit(builder.data({"id": [1, 2, 3, 4]}))
    builder.commit(builder.equality_delete({"id": [3]}, ids=[1]))
    environment_folder = tmp_path / "environment"  # Spark looks for no data sources if the path of Python has a blank
    environment_folder.symlink_to(sys.prefix)
    environment = os.environ | {"PYSPARK_PYTHON": str(environment_folder / "bin" / Path(sys.executable).name)}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(builder.metadata_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows, count, refused = done.stdout.splitlines()[-3:]
    assert (rows, count) == ("[1, 2, 4]", "1")
    assert "CREATE TABLE ... USING nevermore is not supported" in refused
    assert "write CREATE TEMPORARY VIEW ... USING nevermore OPTIONS (path '...')" in refused


def test_a_session_that_lists_data_sources_loads_nothing_of_the_engine() -> None:
    code = "import sys, pyspark_nevermore as m; print(m.DefaultSource.name(), 'nevermore.scan_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["nevermore", "False"]
