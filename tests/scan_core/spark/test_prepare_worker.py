"""What a worker of Spark does around each task: directories of archives, and garbage collection."""

import gc
import importlib
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.spark.source import prepare_worker


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
    prepare_worker()
    _archive(path, one, two)
    importlib.invalidate_caches()
    if is_kept:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(two)
    else:
        assert importlib.import_module(two).name == two
    sys.path_importer_cache.pop(str(path))


def test_only_workers_exclude_imports_from_garbage_collection() -> None:
    before = gc.get_freeze_count()
    prepare_worker()
    assert gc.get_freeze_count() == before


@pytest.mark.spark
def test_workers_visit_few_objects_after_each_task(spark: Any) -> None:
    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for _ in batches:
            pass
        counts = {"frozen": [gc.get_freeze_count()], "others": [len(gc.get_objects())]}
        yield pa.RecordBatch.from_pydict(counts)

    (row,) = spark.range(1).coalesce(1).mapInArrow(count, "frozen long, others long").collect()
    assert row.frozen > 10 * row.others
