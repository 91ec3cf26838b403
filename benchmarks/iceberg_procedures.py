"""From equality deletes to a table that PyIceberg reads: our conversion and compaction beside the procedures of Iceberg in Spark.

`rewrite_position_delete_files` leaves equality deletes as they are; `rewrite_data_files` with `remove-dangling-deletes` gets
there. The session is warm before the first counted round. It needs the environment of `make interop`.
"""

import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.interop_session import ICEBERG, cpu_seconds, is_inside, run_inside
from benchmarks.race import Answer, Goal, chosen, race, report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES, FILE_ROWS, COMMITS, KEYS = 8, 500_000, 20, 2_500
COLUMNS = {"narrow": 0, "wide": 14}
"""Further columns."""
ROUNDS = 3
CATALOG = "procedures"


def make_base(folder: Path, columns: int) -> Any:
    """A table of files with a key, two numbers, a text and more columns."""
    from benchmarks.convert import Base

    class Wide(Base):
        def rows(self, numbers: np.ndarray) -> pa.Table:
            rows = super().rows(numbers)
            for place in range(columns):
                column = numbers * (2 * place + 3) % (1_000 << place)
                rows = rows.append_column(f"c{place}", pa.array(column if place % 2 else column / 7))
            return rows

    return Wide(folder, FILES, FILE_ROWS)


def deleted(base: Any) -> Any:
    """A table with the same data files, and small delete files of many commits whose keys are in all of them."""
    from nevermore.pipelines.iceberg.commit import RowDelta
    from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes

    keys = np.random.default_rng(5).permutation(FILES * FILE_ROWS)[: COMMITS * KEYS]
    table = base.with_deletes(keys[:KEYS])
    for start in range(KEYS, len(keys), KEYS):
        table.refresh()
        delta = RowDelta(table)
        rows = pa.table({"id": base.ids(keys[start : start + KEYS])})
        delta.commit(write_deletes(rows, delta.target, delta.default_spec, check_key(delta.schema, ("id",))), {})
    table.refresh()
    return table


def measure(name: str, base: Any, session: "SparkSession", warehouse: Path) -> None:
    """Race the ways to a table without equality deletes."""
    from pyiceberg.table import StaticTable

    from benchmarks.convert import timed
    from nevermore.pipelines.iceberg.conversion import convert
    from nevermore.pipelines.maintain.compact import CompactSettings, compact

    numbers = count()

    def read(location: str, answer: Answer) -> Answer:
        rows = StaticTable.from_metadata(location).scan(selected_fields=("n",)).to_arrow().num_rows
        return Answer(rows, answer.seconds, answer.cpu)

    def converted() -> Answer:
        table = deleted(base)
        answer = timed(lambda: convert(table).added_positions)
        return read(table.metadata_location, answer)

    def compacted() -> Answer:
        table = deleted(base)
        answer = timed(lambda: compact(table, CompactSettings(rewrite_all=True)).rows)
        return read(table.metadata_location, answer)

    def by_procedures(*calls: str) -> tuple[Path, Answer]:
        """Time calls on a table of a catalog in folders, whose first metadata file is that of ours."""
        from time import perf_counter

        table = f"db.{name}{next(numbers)}"
        metadata = warehouse / table.replace(".", "/") / "metadata"
        metadata.mkdir(parents=True)
        source = Path(deleted(base).metadata_location.removeprefix("file://"))
        (metadata / "v1.metadata.json").write_bytes(source.read_bytes())
        (metadata / "version-hint.text").write_text("1")
        wall, cpu = perf_counter(), cpu_seconds()
        for call in calls:
            session.sql(f"CALL {CATALOG}.system.{call.format(table=table)}").collect()
        return metadata, Answer(0, perf_counter() - wall, cpu_seconds() - cpu)

    positions = "rewrite_position_delete_files(table => '{table}', options => map('rewrite-all', 'true'))"
    data = (
        "rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true',"
        " 'target-file-size-bytes', '268435456'))"
    )

    def procedures() -> Answer:
        metadata, answer = by_procedures(positions, data)
        newest = max(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
        return read(str(newest), answer)

    ways = {"convert": converted, "compact --all": compacted, "Spark's procedures": procedures}
    goals = [Goal("convert", "Spark's procedures", 1 / 20), Goal("compact --all", "Spark's procedures")]
    title = f"to a table that PyIceberg reads: {FILES * FILE_ROWS:,} {name} rows, {COMMITS * KEYS:,} keys in {COMMITS} files"
    report(title, race(ways, rounds=ROUNDS), "convert", goals)


def main(names: list[str]) -> None:
    """One session for all tables."""
    from nevermore.scan_core.spark.session import spark_session

    with tempfile.TemporaryDirectory() as folder:
        warehouse = Path(folder) / "warehouse"
        config = {
            "spark.jars.packages": ICEBERG,
            "spark.driver.memory": "4g",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{CATALOG}.type": "hadoop",
            f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse),
            f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
        }
        session = spark_session("iceberg_procedures", master="local[2]", config=config)
        try:
            for name in names:
                place = Path(folder) / name
                place.mkdir()
                measure(name, make_base(place, COLUMNS[name]), session, warehouse)
        finally:
            session.stop()


if __name__ == "__main__":
    tables = chosen(__doc__, "table", tuple(COLUMNS))
    if is_inside():
        main(tables)
    else:
        run_inside("benchmarks.iceberg_procedures")
