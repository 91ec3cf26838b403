"""ORC files as Spark writes them with its settings, filtered: statistics, indexes and Bloom filters exclude no row of the result."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nevermore import scan_core
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
COLUMNS = (Column(1, "id", "long"), Column(2, "n", "int"), Column(3, "s", "string"))
ROWS = 25_000


@pytest.mark.each(2)
@pytest.mark.parametrize(
    "written",
    [
        {"orc.create.index": "false"},
        {"orc.row.index.stride": "1000", "compression": "zstd"},
        {"orc.bloom.filter.columns": "n,s", "orc.compress.size": "4096"},
        {"orc.write.format": "0.11", "orc.dictionary.key.threshold": "0"},
    ],
    ids=",".join,
)
def test_filters_find_the_rows_of_files_that_spark_writes(
    spark: "SparkSession", tmp_path: Path, written: dict[str, str]
) -> None:
    draw = np.random.default_rng(5)
    n = [None if at % 7 == 0 else int(value) for at, value in enumerate(draw.integers(0, 500, ROWS))]
    rows = {"id": draw.permutation(ROWS).tolist(), "n": n, "s": [f"text {(value or 0) % 40}" for value in n]}
    mapping = [{"field-id": column.id, "names": [column.name]} for column in COLUMNS]
    table = TableBuilder(tmp_path / "t", COLUMNS, properties={"schema.name-mapping.default": json.dumps(mapping)})
    file = table.data(rows, file_format="orc", field_ids=False)
    frame = spark.createDataFrame(list(zip(*rows.values(), strict=True)), "id bigint, n int, s string").coalesce(1)
    frame.write.options(**written).orc(str(tmp_path / "written"))
    (part,) = (tmp_path / "written").glob("*.orc")
    shutil.copy(part, file.local)
    file.record["file_size_in_bytes"] = part.stat().st_size
    table.commit(file)
    scan = scan_core.open_table(table.metadata_path).scan()
    conditions = {
        "id = 77": [row == 77 for row in rows["id"]],
        "n is null": [row is None for row in n],
        "n is not null": [row is not None for row in n],
        "n = 8 or id = 3": [a == 8 or b == 3 for a, b in zip(n, rows["id"], strict=True)],
        "s = 'text 7' and id < 9000": [a == "text 7" and b < 9_000 for a, b in zip(rows["s"], rows["id"], strict=True)],
    }
    for condition, wanted in conditions.items():
        found = scan.where(condition).select("id").to_table().column("id").to_pylist()
        assert sorted(found) == sorted(row for row, is_wanted in zip(rows["id"], wanted, strict=True) if is_wanted)
