"""Keys of a written file come in pieces of bounded size, and nothing else of it does."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.published.written_keys import written_keys
from pipelines.tables.storage import Storage


@pytest.mark.parametrize(("groups", "sizes"), [(0, [30, 30, 30, 10]), (2, [60, 40]), (3, [90, 10]), (4, [100])])
def test_row_groups_are_gathered_up_to_so_many_bytes(groups: int, sizes: list[int], tmp_path: Path) -> None:
    path = str(tmp_path / "file.parquet")
    rows = pa.table({"x": [0.5] * 100, "id": range(100), "a.b": [f"k{i:02}" for i in range(100)]})
    pq.write_table(rows, path, row_group_size=30)
    footer = pq.read_metadata(path)
    of_keys = [sum(footer.row_group(g).column(c).total_uncompressed_size for c in (1, 2)) for g in range(4)]
    pieces = list(written_keys(path, Storage(), ("a.b", "id"), sum(of_keys[:groups])))
    assert [piece.num_rows for piece in pieces] == sizes
    assert pa.concat_tables(pieces).select(["id", "a.b"]).equals(rows.select(["id", "a.b"]))
