"""Directories of Spark's archives are read once per worker, those of others before every task."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from scan_core.spark.source import keep_archives_of_spark


def _archive(path: Path, *modules: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in modules:
            archive.writestr(f"{name}.py", f"name = {name!r}")


@pytest.mark.parametrize(
    ("archive", "is_kept"),
    [("pyspark.zip", True), ("py4j-0.10.9-src.zip", True), ("spark-core_2.13-4.1.4.jar", True), ("jobs.zip", False)],
)
def test_only_archives_of_spark_are_not_read_again(
    archive: str, *, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / archive
    one, two = (f"nevermore_{number}_{archive.partition('.')[0].replace('-', '_')}" for number in ("one", "two"))
    _archive(path, one)
    monkeypatch.setattr(sys, "path", [*sys.path, str(path)])
    assert importlib.import_module(one).name == one
    keep_archives_of_spark()
    _archive(path, one, two)
    importlib.invalidate_caches()
    if is_kept:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(two)
    else:
        assert importlib.import_module(two).name == two
    sys.path_importer_cache.pop(str(path))
