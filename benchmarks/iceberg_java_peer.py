"""Runs in the second environment (`make interop` makes it): answers queries with Spark and Iceberg Java, one per line.

A request is a JSON object {"metadata": path, "sql": text with {table}}; the reply {"answer": rows, "seconds": float}.
"""

import json
import os
import sys
import time

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        spark.read.format("iceberg").load(request["metadata"]).createOrReplaceTempView("bench")
        start = time.perf_counter()
        rows = spark.sql(request["sql"].format(table="bench")).collect()
        seconds = time.perf_counter() - start
        print(json.dumps({"answer": [list(row) for row in rows], "seconds": seconds}, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
