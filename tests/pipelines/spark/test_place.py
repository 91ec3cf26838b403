"""Which archives a session ships, by where it runs."""

import os
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest

from nevermore.pipelines.config.project import SparkConfig
from nevermore.pipelines.spark import session as spark_place
from nevermore.scan_core import OptionError


@pytest.mark.parametrize(
    ("section", "archives"),
    [
        ({}, None),
        ({"remote": "sc://host"}, None),
        ({"master": "yarn", "package": "installed"}, []),
        ({"master": "yarn", "package": "s3://bucket/ours.zip"}, ["s3://bucket/ours.zip"]),
    ],
)
def test_the_config_chooses_the_code_that_is_shipped(section: dict[str, str], archives: list[str] | None) -> None:
    assert spark_place._archives(SparkConfig(**section)) == archives  # type: ignore[arg-type] # text alone


@pytest.mark.parametrize(
    ("section", "daemon"),
    [
        ({}, "nevermore.pipelines.spark.daemon"),
        ({"master": "local-cluster[2,1,1024]"}, "nevermore.pipelines.spark.daemon"),
        ({"conf": {"spark.python.daemon.module": "pyspark.daemon"}}, "pyspark.daemon"),
        ({"master": "spark://host:7077"}, None),
        ({"remote": "sc://host", "package": "installed"}, None),
    ],
)
def test_workers_on_this_machine_begin_with_our_code_imported(section: dict[str, Any], daemon: str | None) -> None:
    assert spark_place._settings(SparkConfig(**section)).get("spark.python.daemon.module") == daemon


def test_the_process_that_workers_are_forked_from_makes_workers_until_it_is_let_go() -> None:
    command = [sys.executable, "-m", "nevermore.pipelines.spark.daemon", "pyspark.worker"]
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack(">i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as worker:
            (number,) = struct.unpack(">i", worker.recv(4, socket.MSG_WAITALL))
        assert number > 0
        daemon.stdin.close()
        daemon.wait(300)


def test_an_archive_that_is_not_there_is_told_before_spark_starts() -> None:
    with pytest.raises(OptionError, match=r"no archive /none\.zip"):
        spark_place._archives(SparkConfig(package="/none.zip"))
