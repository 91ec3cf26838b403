"""Which archives a session ships, by where it runs."""

from pathlib import Path

import pytest

from pipelines.config.project import SparkConfig
from pipelines.errors import ConfigError
from pipelines.spark import session as spark_place
from pipelines.spark.package import SparkPackage


@pytest.fixture(autouse=True)
def _built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_place, "build_package", lambda _folder: SparkPackage(Path("/built.zip"), ()))


@pytest.mark.parametrize(
    ("section", "archives"),
    [
        ({}, []),
        ({"master": "local[2]"}, []),
        ({"master": "local-cluster[2,1,1024]"}, []),
        ({"master": "spark://host:7077"}, ["/built.zip"]),
        ({"master": "yarn"}, ["/built.zip"]),
        ({"remote": "sc://host"}, ["/built.zip"]),
        ({"master": "yarn", "package": "installed"}, []),
        ({"master": "yarn", "package": "s3://bucket/ours.zip"}, ["s3://bucket/ours.zip"]),
    ],
)
def test_code_is_shipped_to_other_machines_only(section: dict[str, str], archives: list[str]) -> None:
    assert spark_place._archives(SparkConfig(**section)) == archives  # type: ignore[arg-type] # text alone


def test_an_archive_that_is_not_there_is_told_before_spark_starts() -> None:
    with pytest.raises(ConfigError, match=r"no archive /none\.zip"):
        spark_place._archives(SparkConfig(package="/none.zip"))
