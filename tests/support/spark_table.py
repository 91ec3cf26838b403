"""The table that tests of Spark read: small, with deleted rows and some of them back."""

from pathlib import Path

from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

NUM_FILES, ROWS_PER_FILE = 4, 100


def build_spark_table(folder: Path) -> str:
    """The metadata of 400 rows in 4 files; every tenth id deleted, then 3 of them inserted again."""
    builder = TableBuilder(
        folder / "with space", [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "qty", "int")]
    )
    for number in range(NUM_FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        builder.commit(
            builder.data({"id": list(ids), "name": [f"n{i % 7}" for i in ids], "qty": [i % 13 for i in ids]})
        )
    builder.commit(builder.equality_delete({"id": list(range(0, 400, 10))}, ids=[1]))
    builder.commit(builder.data({"id": [0, 10, 20], "name": ["back", None, "back"], "qty": [1, 2, None]}))
    return str(builder.metadata_path)
