"""Runs in the second environment: reads tables with Iceberg Java and writes their rows as Parquet.

Usage: read_with_iceberg_java.py JOBS, a JSON list of {"metadata": path, "snapshot": id, "output": folder}.
"""

import json
import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main(jobs_file: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # its cache of delete keys lacks the key type: it misses keys after a promotion
        .config("spark.sql.iceberg.executor-cache.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for job in json.loads(Path(jobs_file).read_text(encoding="utf-8")):
        reader = spark.read.format("iceberg")
        if job.get("snapshot") is not None:
            reader = reader.option("versionAsOf", job["snapshot"])
        table = reader.load(job["metadata"]).toArrow()
        pq.write_table(table, job["output"])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
