"""How a Spark session that does not start is told, and how one of a cluster ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.spark.session import _without_warning, spark_session
from tests.support.spark_session import SPARK_TEST

pytestmark = SPARK_TEST

CLUSTER = "local-cluster[1,1,1024]"
SCRIPT = f"""
from nevermore.scan_core.spark.session import spark_session
spark = spark_session(master={CLUSTER!r}, config={{"spark.driver.memory": "1g"}})
print(spark.range(5).count())
"""


def test_a_session_that_does_not_start_says_what_the_jvm_threw(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> SparkSession:
        raise Py4JError(
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": org.apache.spark.SparkException: Could not parse Master URL: 'local-cluster[2,1]'\n"
            "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3268)"
        )

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fail)
    with pytest.raises(OptionError, match=r"cluster\[2,1\]: Could not parse Master"):
        spark_session(master="local-cluster[2,1]")


@pytest.mark.slow
def test_a_process_that_ends_without_stopping_its_cluster_leaves_no_errors_on_stderr() -> None:
    root = str(Path(__file__).resolve().parents[3])
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "5"), ended.stderr
    assert "ERROR" not in ended.stderr
    assert "incubator" not in ended.stderr


@pytest.mark.parametrize("broken", [False, True], ids=["read", "closed"])
def test_only_the_line_about_modules_is_dropped_of_what_java_writes(
    capfd: pytest.CaptureFixture[str], *, broken: bool
) -> None:
    warning = "WARNING: Using incubator modules: jdk.incubator.vector\n"
    script = (
        f"import os; os.write(2, {f'first{chr(10)}{warning}'!r}.encode()); os.write(2, b'x' * 300_000 + b' no end')"
    )
    with _without_warning():
        java = subprocess.Popen([sys.executable, "-c", script])
    if broken:
        java.kill()
    assert java.wait(60) in {0, -9}
    found, ends = "", time.monotonic() + 60
    while not broken and not found.endswith(" no end") and time.monotonic() < ends:
        found += capfd.readouterr().err
    assert broken or found == "first\n" + "x" * 300_000 + " no end"
    os.write(2, b"python")
    assert capfd.readouterr().err.endswith("python")
