"""Runs in the second environment: executes SQL of Spark with Iceberg Java on the tables of a SQL catalog of ours.

Usage: java_statements.py CATALOG_DB WAREHOUSE. Each line of standard input is a JSON object with `sql` and, for a query, `output`,
the Parquet file for its rows. Each is answered by a line of JSON with `error`, which is null or a text.
"""

import json
import os
import sys

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.50.3.0"


def main(database: str, warehouse: str) -> None:
    settings = {
        "spark.jars.packages": PACKAGES,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        # the name of the catalog is part of its rows
        "spark.sql.catalog.nevermore": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.nevermore.type": "jdbc",
        "spark.sql.catalog.nevermore.uri": f"jdbc:sqlite:{database}",
        "spark.sql.catalog.nevermore.jdbc.busy_timeout": "30000",
        "spark.sql.catalog.nevermore.jdbc.schema-version": "V1",
        "spark.sql.catalog.nevermore.warehouse": warehouse,
        "spark.sql.catalog.nevermore.cache-enabled": "false",
        # its cache of delete keys lacks the key type: it misses keys after a promotion
        "spark.sql.iceberg.executor-cache.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            rows = spark.sql(asked["sql"])
            if "output" in asked:
                pq.write_table(rows.toArrow(), asked["output"])
            error = None
        except Exception as problem:  # noqa: BLE001  the test that asked fails with it
            error = f"{type(problem).__name__}: {problem}"
        print(json.dumps({"error": error}), flush=True)  # noqa: T201  the protocol
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
