"""TPC-H as mirrors: its 22 queries by `publish`, by Spark with Iceberg Java, and by Spark over plain Parquet.

Run: `python -m benchmarks.tpch [--scale 1] [--keys skewed] [--queries 1 3 5]`. `tpchgen-cli` makes the rows (`make peers` installs
it). A twentieth of customers, orders and items was deleted and another updated, by equality deletes: everywhere, or `skewed`,
most of them among the newest. Plain Parquet has the rows that are alive, in as many files. All three find the tables, run the query
and write what it gives: an Iceberg table by us and by Iceberg Java, else a folder of Parquet files; the rows must be the same. One
session of Spark 4.1, CPU time with Java and its Python workers.
"""

import argparse
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.interop_session import ICEBERG, cpu_seconds, is_inside, run_inside
from benchmarks.race import Answer, Goal, Timing, race, report
from benchmarks.results import Ratio, record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from nevermore.pipelines.config.project import Config

SCALE = 1.0
ROUNDS = 3
KEYS = {
    "customer": ("c_custkey",),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "supplier": ("s_suppkey",),
    "nation": ("n_nationkey",),
    "region": ("r_regionkey",),
}
"""Tables and their keys."""
CHANGED = {"customer": "c_acctbal", "orders": "o_totalprice", "lineitem": "l_quantity"}
"""Tables with updates and deletes, and the column that an update changes."""
FILE_ROWS = 1_000_000
_CATALOG = "java"
_BENCHMARKS = Path(__file__).parent


def queries() -> dict[int, str]:
    """The queries by number."""
    parts = (_BENCHMARKS / "tpch.sql").read_text().split("-- Q")[1:]
    return {int(part.split("\n", 1)[0]): part.split("\n", 1)[1].strip().rstrip(";") for part in parts}


def over_mirrors(sql: str) -> str:
    """A query with the names of the mirrors."""
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(sql, dialect="spark")
    for table in tree.find_all(exp.Table):
        if table.name in KEYS:
            alias = table.alias or table.name
            table.replace(exp.alias_(exp.table_(table.name, "tpch"), alias, table=True))
    return str(tree.sql("spark"))


def make_config(folder: Path) -> "Config":
    """A project with all mirrors and a published table for each query."""
    import yaml

    from nevermore.pipelines.config.project import parse

    tables = {
        f"tpch.{name}": {"source": {"type": "files", "path": "none"}, "key": [*key]} for name, key in KEYS.items()
    }
    published = {f"tpch.q{number}": {"sql": over_mirrors(sql)} for number, sql in queries().items()}
    return parse(yaml.safe_dump({"tables": tables, "published": published}), folder / "nevermore.yaml")


def prepare(folder: Path, scale: float, keys: str) -> "Config":
    """Make the rows, the mirrors and the plain files, once."""
    config = make_config(folder)
    if (folder / "ready").exists():
        return config
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tool = _BENCHMARKS.parent / ".venv-peers" / "bin" / "tpchgen-cli"
    program = str(tool) if tool.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise SystemExit("tpchgen-cli is missing: make peers installs it")
    subprocess.run([program, "parquet", "-s", str(scale), f"--output-dir={folder / 'rows'}"], check=True)
    for name in KEYS:
        _fill(config, folder, name, keys)
    (folder / "ready").touch()
    return config


def _fill(config: "Config", folder: Path, name: str, keys: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from nevermore.pipelines.iceberg.catalog import create_table, find_table, open_catalog
    from nevermore.pipelines.iceberg.commit import RowDelta
    from nevermore.pipelines.iceberg.schema_evolution import iceberg_fields
    from nevermore.pipelines.iceberg.table_writer import write_deletes, write_rows

    catalog = open_catalog(config)
    raw = pq.ParquetFile(folder / "rows" / f"{name}.parquet")
    plain = folder / "plain" / name
    plain.mkdir(parents=True)
    gone: list[pa.Table] = []
    renewed: list[pa.Table] = []
    total, first = raw.metadata.num_rows, 0
    for number, part in enumerate(_parts(raw)):
        table = find_table(catalog, f"tpch.{name}") or create_table(
            catalog, f"tpch.{name}", iceberg_fields(part.schema)
        )
        delta = RowDelta(table)
        old, deleted, updated = _history(part, name, first, total, keys)
        delta.commit(list(write_rows(old, delta.target, delta.default_spec)), {})
        first += len(part)
        gone.append(pa.concat_tables([deleted, updated]).select([*KEYS[name]]))
        renewed.append(updated)
        alive = part.join(deleted.select([*KEYS[name]]), [*KEYS[name]], join_type="left anti") if len(deleted) else part
        pq.write_table(alive, plain / f"{number}.parquet", compression="zstd")
    if name in CHANGED:
        delta = RowDelta(find_table(catalog, f"tpch.{name}"))
        key_ids = [delta.schema.find(column).field_id for column in KEYS[name]]
        files = list(write_rows(pa.concat_tables(renewed), delta.target, delta.default_spec))
        files += write_deletes(pa.concat_tables(gone), delta.target, delta.default_spec, key_ids)
        delta.commit(files, {})


def _parts(file: Any) -> Iterator["pa.Table"]:
    import pyarrow as pa

    for batch in file.iter_batches(FILE_ROWS):
        part = pa.Table.from_batches([batch])
        strings = [pa.string() if pa.types.is_string_view(field.type) else field.type for field in part.schema]
        yield part.cast(pa.schema([(field.name, kind) for field, kind in zip(part.schema, strings, strict=True)]))


def _history(part: "pa.Table", name: str, first: int, total: int, keys: str) -> "tuple[pa.Table, pa.Table, pa.Table]":
    """The rows as they were, those of them that were deleted, and the updated ones as they are."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in CHANGED:
        return part, part.slice(0, 0), part.slice(0, 0)
    place = (first + np.arange(len(part))) / total
    share = np.where(place > 0.9, 0.8, 0.02) if keys == "skewed" else 0.1  # a tenth of all rows, in both
    chance = np.random.default_rng(first).random(len(part))
    is_deleted, is_updated = chance < share / 2, (chance >= share / 2) & (chance < share)
    column = CHANGED[name]
    values = part.column(column)
    old = pc.if_else(
        pa.array(is_updated), pc.add(values, pa.scalar(Decimal("1.00"), values.type)).cast(values.type), values
    )
    were = part.set_column(part.schema.get_field_index(column), column, old)
    return were, part.filter(pa.array(is_deleted)), part.filter(pa.array(is_updated))


def ways(spark: "SparkSession", config: "Config", folder: Path, number: int) -> dict[str, Callable[[], Answer]]:
    """One query as each of the candidates runs it."""
    from nevermore import scan_core
    from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
    from nevermore.pipelines.publish.refresh import publish

    catalog = open_catalog(config)
    sql = queries()[number]
    output = folder / "output"

    def timed(run: Callable[[], Any], read: "Callable[[], pa.Table]") -> Answer:
        wall, cpu = time.perf_counter(), cpu_seconds()
        run()
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        rows = [[_plain(value) for value in row.values()] for row in read().to_pylist()]
        return Answer(sorted(rows, key=str), wall, cpu)

    def published() -> Answer:
        name = f"tpch.q{number}"
        return timed(
            lambda: publish(config, name, is_full=True),
            lambda: scan_core.open_table(find_table(catalog, name)).scan().to_table(),
        )

    def by_spark(read: Callable[[str], Any], write: Callable[[Any], None], written: "Callable[[], pa.Table]") -> Answer:
        def run() -> None:
            for name in KEYS:
                if name in sql:
                    read(name).createOrReplaceTempView(name)
            write(spark.sql(sql))

        return timed(run, written)

    def to_parquet(result: Any) -> None:
        result.write.mode("overwrite").parquet(str(output))

    def by_iceberg(name: str) -> Any:
        return spark.read.format("iceberg").load(metadata[name].removeprefix("file://"))

    def in_table() -> "pa.Table":
        return scan_core.open_table(str(folder / "java" / "tpch" / f"q{number}")).scan().to_table()

    import pyarrow.parquet as pq

    java = f"{_CATALOG}.tpch.q{number}"
    metadata = {name: str(find_table(catalog, f"tpch.{name}").metadata_location) for name in KEYS}  # type: ignore[union-attr]
    return {
        "publish": published,
        "iceberg_java": lambda: by_spark(by_iceberg, lambda result: result.writeTo(java).createOrReplace(), in_table),
        "plain Parquet": lambda: by_spark(
            lambda name: spark.read.parquet(str(folder / "plain" / name)), to_parquet, lambda: pq.read_table(output)
        ),
    }


def _plain(value: Any) -> Any:

    return float(f"{value:.6g}") if isinstance(value, float | Decimal) else str(value)


def measure(numbers: Sequence[int], scale: float, keys: str, rounds: int) -> None:
    """Race every query, and record the geometric means."""
    from benchmarks.shapes import DATA
    from nevermore.scan_core.spark.session import spark_session

    folder = DATA / f"tpch_{scale:g}_{keys}"
    config = prepare(folder, scale, keys)
    settings = {
        "spark.jars.packages": ICEBERG,
        "spark.driver.memory": "6g",
        "spark.sql.shuffle.partitions": "4",
        f"spark.sql.catalog.{_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{_CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{_CATALOG}.warehouse": str(folder / "java"),
    }
    spark = spark_session("tpch", master="local[2]", config=settings)
    found: dict[int, dict[str, Timing]] = {}
    try:
        for number in numbers:
            found[number] = race(ways(spark, config, folder, number), rounds)
            title = f"TPC-H {scale:g}, {keys} keys, query {number}"
            report(title, found[number], "publish", [Goal("publish", "iceberg_java", 1.0)])
    finally:
        spark.stop()
    for against, goal in (("iceberg_java", 1 / 2.5), ("plain Parquet", 1.15)):
        wall, cpu = (
            statistics.geometric_mean(
                getattr(timings["publish"], what) / getattr(timings[against], what) for timings in found.values()
            )
            for what in ("median", "cpu")
        )
        seconds = sum(timings["publish"].median for timings in found.values())
        case = f"TPC-H {scale:g}, {keys} keys, geometric mean of {len(found)} queries"
        ratio = Ratio(case, "publish", against, wall, cpu, goal, seconds)
        record(ratio)
        print(f"\n{case}: {ratio.sentence()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=SCALE)
    parser.add_argument("--keys", choices=["uniform", "skewed"], default="uniform")
    parser.add_argument("--queries", nargs="*", type=int, default=[*range(1, 23)])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if not is_inside():
        run_inside("benchmarks.tpch")
        raise SystemExit(0)
    measure(arguments.queries, arguments.scale, arguments.keys, arguments.rounds)
