"""Keys of written files come in pieces of bounded size, and nothing else of them does."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.publish.task import written_keys


@pytest.mark.parametrize(
    ("groups", "sizes"), [(0, [30, 30, 30, 10, 30, 10]), (2, [60, 40, 40]), (3, [90, 50]), (9, [140])]
)
def test_row_groups_of_all_files_are_gathered_up_to_so_many_bytes(
    groups: int, sizes: list[int], tmp_path: Path
) -> None:
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    rows = pa.table({"x": [0.5] * 140, "id": range(140), "a.b": [f"k{i:03}" for i in range(140)]})
    for path, part in zip(paths, (rows.slice(0, 100), rows.slice(100)), strict=True):
        pq.write_table(part, path, row_group_size=30)
    of_group = pq.ParquetFile(paths[0]).read_row_group(0, ["id", "a.b"]).nbytes
    pieces = list(written_keys(paths, Storage(), ("a.b", "id"), groups * of_group))
    assert [piece.num_rows for piece in pieces] == sizes
    assert pa.concat_tables(pieces).select(["id", "a.b"]).equals(rows.select(["id", "a.b"]))
